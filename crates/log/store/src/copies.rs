//! How many copies of a segment there are: what a stream wants, and what a store makes of it.

/// How many copies of a segment's entries there are to be. What is not said the store decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentCopies {
    /// Places that the segment is spread over: at least the write quorum.
    pub ensemble: Option<u32>,
    /// Copies of each entry. If it alone is said, the ensemble is as large, and more than half of the copies
    /// acknowledge.
    pub write_quorum: Option<u32>,
    /// Copies that are durable before an entry is acknowledged: at most the write quorum.
    pub ack_quorum: Option<u32>,
    /// Regions that the copies which acknowledge an entry are in, whichever they are: at most the ack quorum.
    pub min_regions: Option<u32>,
}

/// The same with everything said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecidedCopies {
    /// See [`SegmentCopies::ensemble`].
    pub ensemble: u32,
    /// See [`SegmentCopies::write_quorum`].
    pub write_quorum: u32,
    /// See [`SegmentCopies::ack_quorum`].
    pub ack_quorum: u32,
    /// See [`SegmentCopies::min_regions`]; at least 1.
    pub min_regions: u32,
}

impl DecidedCopies {
    /// Of a store that has one copy.
    pub const ONE: Self = Self { ensemble: 1, write_quorum: 1, ack_quorum: 1, min_regions: 1 };

    /// What is said, and for the rest these.
    #[must_use]
    pub fn unless(self, said: SegmentCopies) -> Self {
        let (mut ensemble, mut ack_quorum) = (self.ensemble, self.ack_quorum);
        if let Some(write_quorum) = said.write_quorum {
            (ensemble, ack_quorum) = (write_quorum, write_quorum / 2 + 1);
        }
        // What is not said is enough for what is, and no more than that: the store's own may have changed since.
        let ensemble_max = said.ensemble.unwrap_or(u32::MAX);
        let least = said.ack_quorum.unwrap_or(1).max(said.min_regions.unwrap_or(1));
        let min_regions = said.min_regions.unwrap_or(self.min_regions);
        let write_quorum = said.write_quorum.unwrap_or(self.write_quorum.min(ensemble_max).max(least));
        Self {
            ensemble: said.ensemble.unwrap_or(ensemble.max(write_quorum)),
            write_quorum,
            ack_quorum: said.ack_quorum.unwrap_or(ack_quorum.max(min_regions).min(write_quorum)),
            min_regions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_the_store_s_or_follows_from_the_write_quorum() {
        let store = DecidedCopies { ensemble: 5, write_quorum: 3, ack_quorum: 3, min_regions: 1 };
        let decided = |ensemble, write_quorum, ack_quorum| {
            let of = store.unless(SegmentCopies { ensemble, write_quorum, ack_quorum, min_regions: None });
            (of.ensemble, of.write_quorum, of.ack_quorum)
        };
        assert_eq!(decided(None, None, None), (5, 3, 3));
        assert_eq!(decided(None, Some(4), None), (4, 4, 3));
        assert_eq!(decided(None, Some(1), None), (1, 1, 1));
        assert_eq!(decided(None, None, Some(2)), (5, 3, 2));
        assert_eq!(decided(Some(7), Some(2), Some(1)), (7, 2, 1));
        assert_eq!(decided(None, None, Some(6)), (6, 6, 6), "enough copies for so many to acknowledge");
        assert_eq!(decided(Some(2), None, None), (2, 2, 2), "no more copies than there are places");
    }

    #[test]
    fn so_many_copies_acknowledge_as_regions_are_wanted_unless_a_stream_says_how_many_do() {
        let store = DecidedCopies { ensemble: 3, write_quorum: 3, ack_quorum: 2, min_regions: 2 };
        let decided = |write_quorum, ack_quorum, min_regions| {
            let of = store.unless(SegmentCopies {
                write_quorum,
                ack_quorum,
                min_regions,
                ..SegmentCopies::default()
            });
            (of.ensemble, of.write_quorum, of.ack_quorum, of.min_regions)
        };
        assert_eq!(decided(None, None, None), (3, 3, 2, 2), "older metadata say nothing: the store's");
        assert_eq!(decided(None, None, Some(1)), (3, 3, 2, 1));
        assert_eq!(decided(None, None, Some(3)), (3, 3, 3, 3));
        assert_eq!(decided(None, None, Some(4)), (4, 4, 4, 4));
        assert_eq!(decided(Some(2), None, None), (2, 2, 2, 2));
        assert_eq!(decided(Some(1), None, None), (1, 1, 1, 2), "which the store refuses");
        assert_eq!(decided(None, Some(2), Some(3)), (3, 3, 2, 3), "likewise");
    }
}
