//! Where the segments of streams are: `segments`, and `[ledgers]` for those in BookKeeper.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tailwater_store::OpenSegments;

/// `segments` of a node that keeps them in its data directory.
pub(super) const EMBEDDED: &str = "embedded";

/// What a build without the client of BookKeeper says to whoever wants segments there.
#[cfg(not(feature = "bookkeeper"))]
const NO_BOOKKEEPER: &str = "segments names a BookKeeper cluster, but this build has no client of BookKeeper: `make dist` makes \
    target/dist/tailwater, which has it, as has one of `cargo build --release -p tailwater --features bookkeeper`; or use \
    \"embedded\"";

/// How many bookies a new segment's ledger is on, how many copies an entry has, and how many of them acknowledge it. A
/// segment keeps what it began with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LedgersSection {
    /// Bookies of a ledger.
    pub ensemble: usize,
    /// Copies of each entry.
    pub write_quorum: usize,
    /// Copies that are durable before an entry is acknowledged.
    pub ack_quorum: usize,
    /// Regions that the copies which acknowledge an entry are in, whichever they are.
    pub regions_min: usize,
    /// The region of this node, by whose bookies it reads first; empty if there is none.
    pub region: String,
    /// Where bookies are: `/REGION/RACK` of each, by its name.
    pub places: BTreeMap<String, String>,
}

impl Default for LedgersSection {
    fn default() -> Self {
        let (region, places) = (String::new(), BTreeMap::new());
        Self { ensemble: 3, write_quorum: 3, ack_quorum: 2, regions_min: 1, region, places }
    }
}

impl LedgersSection {
    /// The store that `segments` names; `None` for the one in the data directory.
    ///
    /// # Errors
    /// If it names none, or the quorums are out of order.
    #[cfg(feature = "bookkeeper")]
    pub(super) fn opening(&self, segments: &str) -> anyhow::Result<Option<Arc<dyn OpenSegments>>> {
        use anyhow::Context;
        use tailwater_bookkeeper::limits::{ENSEMBLE_MAX, ENTRY_BYTES_MAX};
        use tailwater_bookkeeper::{BookieId, BookiePlace, BookiePlaces, LedgerTimes, LedgersUri, Quorums};

        // What the log appends at once is at most an append and its header: a bookie takes each.
        const _: () = assert!(
            tailwater_format::limits::APPEND_BYTES_MAX + tailwater_format::ENTRY_HEADER_BYTES
                <= ENTRY_BYTES_MAX
        );

        let Self { ensemble, write_quorum, ack_quorum, regions_min, .. } = *self;
        let quorums = Quorums::new(ensemble, write_quorum, ack_quorum);
        let quorums = quorums.ok_or_else(|| {
            anyhow::anyhow!(
                "[ledgers] has ensemble = {ensemble}, write_quorum = {write_quorum}, ack_quorum = {ack_quorum}, and needs \
                 1 <= ack_quorum <= write_quorum <= ensemble <= {ENSEMBLE_MAX}"
            )
        })?;
        let place = |(bookie, place): (&String, &String)| -> anyhow::Result<_> {
            let place = place.parse().with_context(|| format!("[ledgers.places] {bookie:?}"))?;
            Ok((BookieId::new(bookie), place))
        };
        let of: BTreeMap<BookieId, BookiePlace> =
            self.places.iter().map(place).collect::<anyhow::Result<_>>()?;
        let own_region = (!self.region.is_empty()).then(|| self.region.as_str().into());
        let places = BookiePlaces { places: Arc::new(of), own_region, regions_min };
        anyhow::ensure!(
            regions_min <= ack_quorum,
            "[ledgers] has regions_min = {regions_min} and ack_quorum = {ack_quorum}: so few copies are not in so many regions"
        );
        if segments == EMBEDDED {
            return Ok(None);
        }
        let uri: LedgersUri = segments.parse().map_err(|_| no_place(segments))?;
        Ok(Some(Arc::new(tailwater_ledgers::LedgerOpening {
            uri,
            quorums,
            places,
            times: LedgerTimes::default(),
        })))
    }

    /// The same in a build that has the data directory only.
    ///
    /// # Errors
    /// If `segments` names anything else.
    #[cfg(not(feature = "bookkeeper"))]
    pub(super) fn opening(&self, segments: &str) -> anyhow::Result<Option<Arc<dyn OpenSegments>>> {
        match segments {
            EMBEDDED => Ok(None),
            _ if segments.starts_with("bookkeeper://") => anyhow::bail!(NO_BOOKKEEPER),
            _ => Err(no_place(segments)),
        }
    }
}

fn no_place(segments: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "segments = {segments:?} is no place for segments: use \"{EMBEDDED}\", or \
         bookkeeper://HOST[:PORT][,HOST[:PORT]...]/PATH with the servers of ZooKeeper"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_in_the_data_directory_or_where_a_url_says() {
        let section = LedgersSection::default();
        assert!(section.opening(EMBEDDED).expect("a place").is_none());
        for wrong in ["", "bookeeper://zk1/ledgers", "http://zk1/ledgers", "/ledgers"] {
            let error = section.opening(wrong).expect_err("refused").to_string();
            assert!(
                error.contains(&format!("segments = {wrong:?}")) && error.contains("embedded"),
                "{error}"
            );
        }
        let named = section.opening("bookkeeper://zk1,zk2:2182/ledgers");
        if cfg!(feature = "bookkeeper") {
            assert!(named.expect("a place").is_some());
        } else {
            assert!(named.expect_err("refused").to_string().contains("make dist"));
        }
    }

    #[cfg(feature = "bookkeeper")]
    #[test]
    fn quorums_out_of_order_are_refused_by_name() {
        let section = LedgersSection { write_quorum: 4, ..LedgersSection::default() };
        let error = section.opening("bookkeeper://zk1/ledgers").expect_err("refused").to_string();
        assert!(error.contains("write_quorum = 4"), "{error}");
    }
}
