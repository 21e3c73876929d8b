//! How far a listener got, in every stream; as text for those who keep it.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{BufMut, BytesMut};

use crate::limits::{ABSENT_EACH, ABSENT_MAX, STREAMS_MAX};
use crate::name::Stream;
use crate::wire::table::pieces;
use crate::wire::{BadMessage, Reader, WirePiece};

const VERSION: u8 = 2;
/// Before there were lineages in it.
const VERSION_WITHOUT: u8 = 1;

/// As a position's number: what comes from now on.
pub const FROM_NOW: u64 = u64::MAX;

pieces! {
    /// A place in a stream: behind the event with a number, of a lineage of the stream's region
    /// ([`Chain::lineage`](crate::message::Chain::lineage)). Those of a greater lineage are behind all of a smaller
    /// one.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub struct Position {
        /// The lineage; 0 if it is not known.
        pub lineage: u64,
        /// The number; [`FROM_NOW`] for a listener that begins with what comes.
        pub seq: u64,
    }
}

impl Position {
    /// Before the first event, of whichever lineage.
    pub const START: Self = Self { lineage: 0, seq: 0 };
    /// Where the stream is when it is asked for.
    pub const NOW: Self = Self { lineage: 0, seq: FROM_NOW };

    /// Whether who is here has all up to `other`, of the same lineage.
    pub(crate) fn covers(self, other: Self) -> bool {
        self.lineage == other.lineage && self.seq >= other.seq
    }

    /// Whether it says nothing of any lineage yet.
    pub fn is_open(self) -> bool {
        self == Self::START || self.seq == FROM_NOW
    }
}

/// What somebody says of a stream is, for a listener,
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// of the events that it listens to,
    Same,
    /// of such as were before those,
    Older,
    /// of others, with which the stream's region has begun anew: its positions there are before the first of them now.
    Anew,
}

/// More streams than a listener may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} streams are named, and a listener names {STREAMS_MAX} at most: name fewer, share them among several listeners, or \
     name none to hear all"
)]
pub struct TooManyStreams(usize);

impl TooManyStreams {
    /// Whether a listener may name so many.
    pub fn check(named: usize) -> Result<(), Self> {
        if named > STREAMS_MAX { Err(Self(named)) } else { Ok(()) }
    }
}

/// Listeners name more streams that have no event yet than there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "listeners name more streams that have no event yet than there is room for ({ABSENT_MAX} together, those of each \
     beyond its first {ABSENT_EACH}): name fewer of them, or try again later"
)]
pub struct NoRoomForStreams;

/// The last number that a listener has, of each stream.
///
/// Its text is opaque to those who keep it: base64url of u8 version (2), u8 whether other streams are wanted, and a
/// list of (stream, u64 lineage, u64 number). Version 1 has no lineages: whoever resumes from one of those begins anew
/// where it had heard something, as nobody knows what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Positions {
    /// The last number that it has.
    pub streams: BTreeMap<Stream, Position>,
    /// Whether streams that are not there are wanted as well, from their beginnings.
    pub others: bool,
}

impl Positions {
    /// Everything that still matters, of every stream.
    pub fn start() -> Self {
        Self { streams: BTreeMap::new(), others: true }
    }

    /// Everything that still matters, of these streams only.
    pub fn of(streams: impl IntoIterator<Item = Stream>) -> Self {
        let streams = streams.into_iter().map(|stream| (stream, Position::START)).collect();
        Self { streams, others: false }
    }

    /// What comes from now on, of these streams only.
    pub fn now(streams: impl IntoIterator<Item = Stream>) -> Self {
        Self { streams: streams.into_iter().map(|stream| (stream, Position::NOW)).collect(), others: false }
    }

    /// What a proxy is told of them: who wants other streams as well gets those of which it has nothing all the same.
    pub fn named(&self) -> Vec<(Stream, Position)> {
        let says_something = |(_, position): &(&Stream, &Position)| !self.others || position.seq > 0;
        let named = self.streams.iter().filter(says_something);
        named.map(|(stream, position)| (stream.clone(), *position)).collect()
    }

    /// Where a stream begins for whoever wanted what comes from now on.
    pub fn begin(&mut self, stream: &Stream, at: Position) {
        if let Some(position) = self.streams.get_mut(stream).filter(|position| position.seq == FROM_NOW) {
            *position = at;
        }
    }

    /// All of a region's streams begin anew, in a lineage.
    pub fn begin_anew(&mut self, region: &str, lineage: u64) {
        for (stream, position) in &mut self.streams {
            if stream.region() == region && position.lineage < lineage && position.seq != FROM_NOW {
                *position = Position { lineage, seq: 0 };
            }
        }
    }

    /// Somebody says something of a stream in a lineage of its region, to whoever is at these positions. A greater one
    /// than theirs puts all of the region's to its beginning: what a proxy has of a region is of one lineage.
    pub fn hear(&mut self, stream: &Stream, lineage: u64) -> Heard {
        if self.streams.get(stream).is_some_and(|position| position.lineage == lineage) {
            return Heard::Same;
        }
        self.hear_region(stream.region(), lineage)
    }

    /// The same of a region.
    pub fn hear_region(&mut self, region: &str, lineage: u64) -> Heard {
        if self.lineage_of(region) > lineage {
            return Heard::Older;
        }
        let is_behind = self.known(region).any(|position| position.lineage < lineage);
        self.begin_anew(region, lineage);
        if is_behind { Heard::Anew } else { Heard::Same }
    }

    /// The lineage of what is known of a region; 0 if nothing is.
    pub fn lineage_of(&self, region: &str) -> u64 {
        self.known(region).map(|position| position.lineage).max().unwrap_or(0)
    }

    /// The positions in a region's streams that say something.
    fn known(&self, region: &str) -> impl Iterator<Item = Position> {
        let of_region = self.streams.iter().filter(move |(stream, _)| stream.region() == region);
        of_region.map(|(_, position)| *position).filter(|position| !position.is_open())
    }

    /// The proxy says where streams begin: what is said of one there, and if that is of an earlier lineage than what is
    /// known of its region, as the proxy lags, it begins before the first event of that one. Answers the regions that
    /// have begun anew, and in which lineage.
    pub(crate) fn hear_begins(&mut self, begins: &mut [(Stream, Position)]) -> Vec<(String, u64)> {
        let mut anew = Vec::new();
        // Where the streams of a region begin changes nothing of what is heard of the next one: there may be thousands.
        let mut known: BTreeMap<(String, u64), u64> = BTreeMap::new();
        for (stream, at) in begins {
            let region = stream.region().to_owned();
            let lineage = *known.entry((region, at.lineage)).or_insert_with_key(|(region, lineage)| {
                match self.hear_region(region, *lineage) {
                    Heard::Older => return self.lineage_of(region),
                    Heard::Anew => anew.push((region.clone(), *lineage)),
                    Heard::Same => {}
                }
                *lineage
            });
            if lineage != at.lineage {
                *at = Position { lineage, seq: 0 };
            }
            self.begin(stream, *at);
        }
        anew
    }

    /// What `wanted` wants, from here in the streams of which something is known here.
    pub fn resumed(&self, wanted: Self) -> Self {
        let from_here = |(stream, otherwise): (Stream, Position)| {
            let known = self.streams.get(&stream).copied();
            // Others are wanted from their beginnings.
            let known = known.or_else(|| self.others.then_some(Position::START));
            (stream, known.unwrap_or(otherwise))
        };
        Self { streams: wanted.streams.into_iter().map(from_here).collect(), others: wanted.others }
    }

    /// As an opaque text of letters, digits, `-` and `_`.
    pub fn token(&self) -> String {
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        out.put_u8(u8::from(self.others));
        out.put_u32_le(self.streams.len() as u32);
        for (stream, position) in &self.streams {
            stream.append(&mut out);
            position.append(&mut out);
        }
        URL_SAFE_NO_PAD.encode(out)
    }

    /// Reads what [`Positions::token`] wrote, or wrote before it knew of lineages.
    pub fn parse(token: &str) -> Result<Self, BadToken> {
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| BadToken("it is cut or changed".to_owned()))?;
        let read = |mut from: Reader| {
            let version = from.u8()?;
            if version != VERSION && version != VERSION_WITHOUT {
                return Err(BadMessage("it is of another version".to_owned()));
            }
            let others = from.u8()? != 0;
            let streams: Vec<(Stream, Position)> = match version {
                VERSION_WITHOUT => {
                    let streams = Vec::<(Stream, u64)>::take(&mut from)?;
                    streams.into_iter().map(|(stream, seq)| (stream, Position { lineage: 0, seq })).collect()
                }
                _ => WirePiece::take(&mut from)?,
            };
            from.end()?;
            // Whoever listens from there would be refused.
            if streams.len() > STREAMS_MAX {
                let count = streams.len();
                return Err(BadMessage(format!(
                    "it is of {count} streams, and {STREAMS_MAX} are carried at most"
                )));
            }
            Ok(Self { streams: streams.into_iter().collect(), others })
        };
        read(Reader::new(bytes.into())).map_err(|error| BadToken(error.0))
    }
}

/// A text that is no resume token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no resume token ({0}): listen without one to begin anew")]
pub struct BadToken(String);

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(name: &str) -> Stream {
        Stream::parse(name).unwrap()
    }

    fn at(lineage: u64, seq: u64) -> Position {
        Position { lineage, seq }
    }

    #[test]
    fn a_token_comes_back_and_a_cut_one_is_refused() {
        let mut positions = Positions::of([stream("eu/prices")]);
        positions.streams.insert(stream("us/flags"), at(6, 7));
        let token = positions.token();
        assert_eq!(Positions::parse(&token).unwrap(), positions);
        for cut in 0..token.len() {
            assert!(Positions::parse(&token[..cut]).is_err());
        }
    }

    #[test]
    fn a_token_of_more_streams_than_a_proxy_carries_is_refused() {
        let token = |count: usize| Positions::of((0..count).map(|n| stream(&format!("eu/{n}")))).token();
        assert_eq!(Positions::parse(&token(STREAMS_MAX)).unwrap().streams.len(), STREAMS_MAX);
        let refused = Positions::parse(&token(STREAMS_MAX + 1)).unwrap_err();
        assert!(refused.to_string().contains("it is of 4097 streams"), "{refused}");
    }

    #[test]
    fn who_resumes_and_names_streams_gets_those_from_where_it_was_and_new_ones_from_where_it_says() {
        let [prices, flags, stock] = ["eu/prices", "us/flags", "us/stock"].map(stream);
        let mut positions = Positions::of([prices.clone()]);
        positions.streams.insert(flags.clone(), at(6, 7));
        let resumed = |positions: &Positions, wanted| {
            let Positions { streams, others } = positions.resumed(wanted);
            assert!(!others);
            streams.into_iter().collect::<Vec<_>>()
        };
        let named = [flags.clone(), stock.clone()];
        let of_both = |otherwise| vec![(flags.clone(), at(6, 7)), (stock.clone(), otherwise)];
        assert_eq!(resumed(&positions, Positions::of(named.clone())), of_both(Position::START));
        assert_eq!(resumed(&positions, Positions::now(named.clone())), of_both(Position::NOW));
        // It had wanted all of a stream that it had not heard of.
        positions.others = true;
        assert_eq!(resumed(&positions, Positions::now(named)), of_both(Position::START));
    }

    #[test]
    fn a_token_without_lineages_is_known_and_whoever_has_it_begins_anew() {
        let mut out = BytesMut::from(&[1u8, 0][..]);
        vec![(stream("eu/prices"), 7_u64), (stream("us/flags"), 0)].append(&mut out);
        let mut positions = Positions::parse(&URL_SAFE_NO_PAD.encode(out)).unwrap();
        assert_eq!(positions.streams[&stream("eu/prices")], at(0, 7));
        assert_eq!(positions.hear(&stream("eu/prices"), 4), Heard::Anew);
        assert_eq!(positions.hear(&stream("us/flags"), 4), Heard::Same, "it had heard nothing");
        let streams = [(stream("eu/prices"), at(4, 0)), (stream("us/flags"), at(4, 0))].into();
        assert_eq!(positions, Positions { streams, others: false });
    }

    #[test]
    fn a_later_lineage_puts_all_of_its_region_to_the_beginning_and_an_earlier_one_nothing() {
        let streams = [
            (stream("eu/a"), at(4, 10)),
            (stream("eu/b"), at(4, 20)),
            (stream("eu/c"), Position::NOW),
            (stream("us/a"), at(4, 30)),
        ];
        let mut positions = Positions { streams: streams.into(), others: true };
        assert_eq!(positions.hear(&stream("eu/b"), 4), Heard::Same);
        assert_eq!(positions.hear(&stream("eu/b"), 3), Heard::Older);
        assert_eq!(
            positions.hear(&stream("eu/new"), 3),
            Heard::Older,
            "of a stream that it has not heard of, too"
        );
        assert_eq!(positions.hear(&stream("eu/new"), 5), Heard::Anew);
        let streams = [
            (stream("eu/a"), at(5, 0)),
            (stream("eu/b"), at(5, 0)),
            (stream("eu/c"), Position::NOW),
            (stream("us/a"), at(4, 30)),
        ];
        assert_eq!(positions, Positions { streams: streams.into(), others: true });
        assert_eq!(positions.hear(&stream("eu/a"), 5), Heard::Same);
        assert_eq!(positions.hear(&stream("eu/a"), 4), Heard::Older);
    }

    #[test]
    fn where_now_is_at_a_proxy_that_lags_is_before_the_first_event_of_the_lineage_that_is_known() {
        let streams = [(stream("eu/a"), at(5, 10)), (stream("eu/b"), Position::NOW)];
        let mut positions = Positions { streams: streams.into(), others: false };
        let mut began = [(stream("eu/b"), at(4, 70))];
        assert_eq!(positions.hear_begins(&mut began), []);
        assert_eq!((began[0].1, positions.streams[&stream("eu/b")]), (at(5, 0), at(5, 0)));
        assert_eq!(positions.hear(&stream("eu/b"), 5), Heard::Same, "it goes on there");
    }

    #[test]
    fn where_many_streams_begin_is_heard_of_each_region_once() {
        let streams = [
            (stream("eu/a"), at(4, 10)),
            (stream("eu/b"), Position::NOW),
            (stream("us/a"), at(4, 30)),
            (stream("us/b"), Position::NOW),
        ];
        let mut positions = Positions { streams: streams.into(), others: false };
        let mut began = [
            (stream("eu/a"), at(5, 0)),
            (stream("eu/b"), at(5, 7)),
            (stream("us/a"), at(4, 30)),
            (stream("us/b"), at(4, 8)),
        ];
        let said = began.clone();
        assert_eq!(positions.hear_begins(&mut began), [("eu".to_owned(), 5)]);
        assert_eq!((&began, positions.streams), (&said, said.clone().into()));
    }
}
