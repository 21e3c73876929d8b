//! The `[[bridge]]` tables.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tailwater_broadcast::{Collect, Stream};
use tailwater_cache::Configuration;

use super::BroadcastConfig;
use crate::backend::CellKind;

/// Carries a log stream's records into a broadcast stream, or a broadcast stream's events into a log stream, or tells a
/// broadcast stream which keys of a cell have changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BridgeConfig {
    /// Where from: `log:NAME`, `broadcast:REGION/NAME` or `cell:NAME`.
    pub from: String,
    /// Where to: from a broadcast stream a log stream, and otherwise a broadcast stream.
    pub to: String,
    /// Which earlier events each event makes obsolete, as in `tailwater broadcast publish --collect`; into a broadcast
    /// stream only.
    #[serde(default)]
    pub collect: String,
    /// Which shards of the log stream to read; all if empty.
    #[serde(default)]
    pub shards: Vec<u32>,
    /// Where to begin the first time: with all that is there, or with what comes.
    #[serde(default)]
    pub start: BridgeStart,
}

/// Where a bridge begins the first time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BridgeStart {
    /// With all that is there.
    #[default]
    Start,
    /// With what comes from now on.
    Now,
}

/// One end of a bridge.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BridgeEnd {
    /// A stream of the log, by its name.
    Log(String),
    /// A broadcast stream.
    Broadcast(Stream),
    /// A created cell, by its name.
    Cell(String),
}

impl fmt::Display for BridgeEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BridgeEnd::Log(name) => write!(f, "log:{name}"),
            BridgeEnd::Broadcast(stream) => write!(f, "broadcast:{stream}"),
            BridgeEnd::Cell(name) => write!(f, "cell:{name}"),
        }
    }
}

impl FromStr for BridgeEnd {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("log", name)) if !name.is_empty() => Ok(BridgeEnd::Log(name.to_owned())),
            Some(("broadcast", name)) => {
                Stream::parse(name).map(BridgeEnd::Broadcast).map_err(|error| format!("{text:?}: {error}"))
            }
            Some(("cell", name)) => {
                let checked = Configuration::check_name(name).map_err(|error| format!("{text:?}: {error}"));
                checked.map(|()| BridgeEnd::Cell(name.to_owned()))
            }
            _ => Err(format!("{text:?} is neither log:NAME nor broadcast:REGION/NAME nor cell:NAME")),
        }
    }
}

impl BridgeConfig {
    /// Its ends, if they are some.
    pub fn ends(&self) -> Result<(BridgeEnd, BridgeEnd), String> {
        Ok((self.from.parse()?, self.to.parse()?))
    }

    fn check(&self, broadcast: &BroadcastConfig) -> Result<(BridgeEnd, BridgeEnd), String> {
        let (from, to) = self.ends()?;
        let stream = match (&from, &to) {
            (BridgeEnd::Log(_), BridgeEnd::Broadcast(stream)) => stream,
            (BridgeEnd::Broadcast(stream), BridgeEnd::Log(_)) => stream,
            (BridgeEnd::Cell(name), BridgeEnd::Broadcast(_)) if CellKind::named(name).is_some() => {
                return Err(format!("the {name} cell is the log's own: name one that was created"));
            }
            (BridgeEnd::Cell(_), BridgeEnd::Broadcast(stream)) => stream,
            _ => {
                return Err(
                    "one end has to be a log stream and the other one a broadcast stream, or the first a \
                            cell and the second a broadcast stream"
                        .to_owned(),
                );
            }
        };
        if !broadcast.enabled {
            return Err("the node takes no part in broadcasts: set enabled in [broadcast]".to_owned());
        }
        let region = stream.region();
        if region != broadcast.region && !broadcast.regions.contains_key(region) {
            return Err(format!("region {region} is neither the node's own nor in [broadcast.regions]"));
        }
        let is_shaped = !self.collect.is_empty() || !self.shards.is_empty();
        if is_shaped && !matches!(from, BridgeEnd::Log(_)) {
            return Err("collect and shards are for bridges from log streams".to_owned());
        }
        if matches!(from, BridgeEnd::Cell(_)) && self.start == BridgeStart::Now {
            return Err("a bridge from a cell tells of what comes, and has no start".to_owned());
        }
        if !self.collect.is_empty() {
            Collect::parse(&self.collect, 0).map_err(|error| format!("collect: {error}"))?;
        }
        Ok((from, to))
    }
}

/// Whether bridges can be carried out; if not, which one can't and why.
pub(super) fn check(bridges: &[BridgeConfig], broadcast: &BroadcastConfig) -> anyhow::Result<()> {
    let mut onwards: BTreeMap<BridgeEnd, Vec<BridgeEnd>> = BTreeMap::new();
    for bridge in bridges {
        let (from, to) = bridge.check(broadcast).map_err(|why| {
            anyhow::anyhow!("[[bridge]] from = {:?}, to = {:?}: {why}", bridge.from, bridge.to)
        })?;
        anyhow::ensure!(
            !onwards.get(&from).is_some_and(|ends| ends.contains(&to)),
            "[[bridge]] from = {:?}, to = {:?} is there twice",
            bridge.from,
            bridge.to
        );
        // What is reached from its end must not be its beginning.
        let (mut reached, mut next) = (vec![to.clone()], 0);
        while next < reached.len() {
            anyhow::ensure!(
                reached[next] != from,
                "[[bridge]] from = {:?}, to = {:?}: what it carries would come back to it for ever: {}",
                bridge.from,
                bridge.to,
                reached.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            );
            let more: Vec<BridgeEnd> = onwards.get(&reached[next]).into_iter().flatten().cloned().collect();
            reached.extend(more.into_iter().filter(|end| !reached.contains(end)).collect::<Vec<_>>());
            next += 1;
        }
        onwards.entry(from).or_default().push(to);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bridge(from: &str, to: &str) -> BridgeConfig {
        BridgeConfig {
            from: from.to_owned(),
            to: to.to_owned(),
            collect: String::new(),
            shards: Vec::new(),
            start: BridgeStart::Start,
        }
    }

    #[test]
    fn bridges_that_can_not_be_or_lead_in_a_circle_are_refused_with_why() {
        let broadcast = BroadcastConfig::default();
        let why = |bridges: &[BridgeConfig]| check(bridges, &broadcast).expect_err("refused").to_string();
        assert!(why(&[bridge("log:a", "log:b")]).contains("the other one a broadcast stream"));
        assert!(why(&[bridge("a", "broadcast:local/b")]).contains("log:NAME"));
        assert!(why(&[bridge("log:a", "broadcast:mars/b")]).contains("mars"));
        let one = bridge("log:a", "broadcast:local/b");
        assert!(why(&[one.clone(), one.clone()]).contains("twice"));
        assert!(why(&[one.clone(), bridge("broadcast:local/b", "log:a")]).contains("for ever"));
        let circle = [
            one.clone(),
            bridge("broadcast:local/b", "log:c"),
            bridge("log:c", "broadcast:local/d"),
            bridge("broadcast:local/d", "log:a"),
        ];
        assert!(why(&circle).contains("for ever"));
        check(&circle[..3], &broadcast).expect("a line is no circle");
        let collect = BridgeConfig { collect: "everything".to_owned(), ..one.clone() };
        assert!(why(&[collect]).contains("collect"));
        let back = BridgeConfig { shards: vec![1], ..bridge("broadcast:local/b", "log:a") };
        assert!(why(&[back]).contains("from log streams"));
        assert!(why(&[bridge("broadcast:local/b", "cell:tiles")]).contains("the first a cell"));
        assert!(why(&[bridge("log:a", "cell:tiles")]).contains("the first a cell"));
        assert!(why(&[bridge("cell:data", "broadcast:local/b")]).contains("the log's own"));
        assert!(why(&[bridge("cell:a b", "broadcast:local/b")]).contains("a b"));
        let cell = bridge("cell:tiles", "broadcast:local/tiles");
        assert!(why(&[BridgeConfig { shards: vec![1], ..cell.clone() }]).contains("from log streams"));
        assert!(why(&[BridgeConfig { start: BridgeStart::Now, ..cell.clone() }]).contains("no start"));
        check(&[cell], &broadcast).expect("a cell's changes are told");
        let off = BroadcastConfig { enabled: false, ..BroadcastConfig::default() };
        assert!(check(&[one], &off).is_err());
    }
}
