//! Which bookies a ledger is on: copies of an entry are in different regions first, and in different racks then.
//!
//! What holds:
//! - **Every ack quorum covers the regions that are wanted.** Whichever copies of an entry acknowledge it, they are in
//!   so many regions at least. An ensemble that can't promise that is not chosen, and no bookie is replaced by one with
//!   which it would not hold any more.
//! - **As far apart as can be.** A bookie is chosen whose region, and then whose rack, has the fewest copies of the
//!   same entries. Among equal ones chance decides, so load spreads.
//! - **Near ones first.** Readers ask bookies of their own region before others.
//!
//! Where nothing is said about bookies all of them are alike, and none is replaced if regions are wanted. A bookie
//! whose place is not known is no region of its own: it counts as if it were where most of the other copies are.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;

use crate::ids::{BookieId, Quorums};
use crate::step::Choice;

/// How many choices are tried before it is taken for impossible: more than small clusters have, and some milliseconds.
const TRIES_MAX: usize = 2_000;

/// What a ledger's custom metadata call the number of regions that every ack quorum of it is to cover, in decimal
/// digits. A ledger that does not say it has what its client wants.
pub const MIN_REGIONS_KEY: &str = "tailwater.min_regions";

/// Where a bookie is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BookiePlace {
    region: Arc<str>,
    rack: Arc<str>,
}

/// A place that is written otherwise than `/REGION/RACK`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no place of a bookie: write /REGION/RACK")]
pub struct BookiePlaceFault(String);

impl FromStr for BookiePlace {
    type Err = BookiePlaceFault;

    /// `/REGION/RACK`, as Hadoop and Apache's client write it.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.strip_prefix('/').and_then(|text| text.split_once('/'));
        match parts {
            Some((region, rack)) if !region.is_empty() && !rack.is_empty() && !rack.contains('/') => {
                Ok(Self { region: region.into(), rack: rack.into() })
            }
            _ => Err(BookiePlaceFault(text.to_owned())),
        }
    }
}

/// Where bookies are, and what is wanted of it. The default knows nothing, and wants nothing.
#[derive(Clone, Debug, Default)]
pub struct BookiePlaces {
    /// Those that are not here are together in one place, which may be that of any other.
    pub places: Arc<BTreeMap<BookieId, BookiePlace>>,
    /// The region of this client.
    pub own_region: Option<Arc<str>>,
    /// Regions that every ack quorum of a ledger is to cover that does not say it itself ([`MIN_REGIONS_KEY`]); 0 and 1
    /// say nothing.
    pub min_regions: usize,
}

/// What is bad about a bookie beside others that have the same entries: how many are in its region, and in its rack.
type Crowding = (usize, usize);

impl BookiePlaces {
    /// Empty if it is not known.
    fn region(&self, bookie: &BookieId) -> &str {
        self.places.get(bookie).map_or("", |place| &place.region)
    }

    /// The same for a ledger with this custom metadata, which may say itself how many regions it wants.
    #[must_use]
    pub fn of_ledger(&self, custom: &BTreeMap<String, Bytes>) -> Self {
        let said =
            custom.get(MIN_REGIONS_KEY).and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
        Self { min_regions: said.unwrap_or(self.min_regions), ..self.clone() }
    }

    /// The same with so many regions wanted.
    #[must_use]
    pub fn wanting(&self, min_regions: usize) -> Self {
        Self { min_regions, ..self.clone() }
    }

    /// Those of these bookies whose place is not known, although regions are wanted or other places are known.
    pub fn unknown<'a>(&'a self, bookies: &'a [BookieId]) -> impl Iterator<Item = &'a BookieId> {
        let matters = self.min_regions > 1 || !self.places.is_empty();
        bookies.iter().filter(move |bookie| matters && !self.places.contains_key(bookie))
    }

    /// In how many regions these bookies are, as far as is known.
    pub fn regions(&self, bookies: &[BookieId]) -> usize {
        let regions: BTreeSet<&str> = bookies.iter().map(|bookie| self.region(bookie)).collect();
        regions.iter().filter(|region| !region.is_empty()).count()
    }

    fn crowding(&self, bookie: &BookieId, others: &[&BookieId]) -> Crowding {
        let place = self.places.get(bookie);
        let region = others.iter().filter(|other| self.region(other) == self.region(bookie)).count();
        (region, others.iter().filter(|other| self.places.get(other) == place).count())
    }

    /// Whether a bookie is in this client's region.
    pub(crate) fn is_near(&self, bookie: &BookieId) -> bool {
        self.own_region.as_deref().is_some_and(|own| own == self.region(bookie))
    }

    /// Whether so many copies, whichever they are of these, are in so many regions as are wanted.
    fn covers(&self, copies: &[&BookieId], ack: usize) -> bool {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for bookie in copies {
            *counts.entry(self.region(bookie)).or_default() += 1;
        }
        // The worst of them are all in the regions that have most, and those that may be anywhere are there, too.
        let unknown = counts.remove("").unwrap_or(0);
        let mut counts: Vec<usize> = counts.into_values().collect();
        counts.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
        match counts.first_mut() {
            Some(most) => *most += unknown,
            None => counts.push(unknown),
        }
        counts.iter().take(self.min_regions.saturating_sub(1)).sum::<usize>() < ack
    }

    /// Whether every ack quorum of a ledger on this ensemble covers the regions that are wanted.
    pub fn is_covered(&self, quorums: Quorums, ensemble: &[BookieId]) -> bool {
        let count = ensemble.len();
        (0..count).all(|first| {
            let copies: Vec<&BookieId> =
                (first..first + quorums.write()).map(|at| &ensemble[at % count]).collect();
            self.covers(&copies, quorums.ack())
        })
    }

    /// An ensemble of these bookies; `None` if there is none that covers what is wanted.
    pub(crate) fn choose(
        &self,
        quorums: Quorums,
        mut bookies: Vec<BookieId>,
        choice: &mut Choice,
    ) -> Option<Vec<BookieId>> {
        bookies.sort();
        if !self.may_cover(quorums, &bookies) {
            return None;
        }
        let mut chosen = Vec::new();
        let mut tries = TRIES_MAX;
        self.extend(quorums, &mut chosen, &mut bookies, choice, &mut tries).then_some(chosen)
    }

    /// Whether an ack quorum could be in so many regions, however the bookies are chosen: if not, nothing has to be
    /// tried.
    fn may_cover(&self, quorums: Quorums, bookies: &[BookieId]) -> bool {
        self.min_regions <= 1 || self.min_regions <= self.regions(bookies).min(quorums.ack())
    }

    /// Chooses the bookies that are missing; whether that could be done. What was chosen is taken from `free`.
    fn extend(
        &self,
        quorums: Quorums,
        chosen: &mut Vec<BookieId>,
        free: &mut Vec<BookieId>,
        choice: &mut Choice,
        tries: &mut usize,
    ) -> bool {
        let at = chosen.len();
        if at == quorums.ensemble() {
            return self.is_covered(quorums, chosen);
        }
        let sharing: Vec<&BookieId> =
            (0..at).filter(|other| quorums.share(at, *other)).map(|at| &chosen[at]).collect();
        let mut candidates: Vec<(Crowding, usize, BookieId)> = free
            .iter()
            .map(|bookie| (self.crowding(bookie, &sharing), choice.below(usize::MAX), bookie.clone()))
            .collect();
        candidates.sort();
        for (_, _, bookie) in candidates {
            if *tries == 0 {
                return false;
            }
            *tries -= 1;
            free.retain(|other| *other != bookie);
            chosen.push(bookie);
            let from = chosen.len().saturating_sub(quorums.write());
            let is_whole = chosen.len() >= quorums.write();
            let copies: Vec<&BookieId> = chosen[from..].iter().collect();
            if (!is_whole || self.covers(&copies, quorums.ack()))
                && self.extend(quorums, chosen, free, choice, tries)
            {
                return true;
            }
            free.extend(chosen.pop());
        }
        false
    }

    /// Takes another bookie for a place of an ensemble out of `free`; `None` if none of them may be there.
    pub(crate) fn replace(
        &self,
        quorums: Quorums,
        ensemble: &[BookieId],
        position: usize,
        free: &mut Vec<BookieId>,
        choice: &mut Choice,
    ) -> Option<BookieId> {
        let sharing: Vec<&BookieId> = (0..ensemble.len())
            .filter(|other| *other != position && quorums.share(position, *other))
            .map(|at| &ensemble[at])
            .collect();
        // Who knows no place of any bookie can't keep what the ledger wants. It goes on with those that are left.
        if self.min_regions > 1 && self.places.is_empty() {
            return None;
        }
        // A ledger of somebody who wanted less goes on as it is.
        let is_covered = self.is_covered(quorums, ensemble);
        let may_be_there = |bookie: &BookieId| {
            let mut with = ensemble.to_vec();
            with[position] = bookie.clone();
            !is_covered || self.is_covered(quorums, &with)
        };
        let candidates = free.iter().enumerate().filter(|(_, bookie)| may_be_there(bookie));
        let candidates: Vec<(Crowding, usize)> =
            candidates.map(|(index, bookie)| (self.crowding(bookie, &sharing), index)).collect();
        let least = candidates.iter().map(|(crowding, _)| *crowding).min()?;
        let best: Vec<usize> =
            candidates.iter().filter(|(crowding, _)| *crowding == least).map(|(_, index)| *index).collect();
        Some(free.swap_remove(best[choice.below(best.len())]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many bookies in each region, each in a rack of its own, and so many regions wanted.
    fn places(counts: &[usize], min_regions: usize) -> (BookiePlaces, Vec<BookieId>) {
        let mut places = BTreeMap::new();
        for (region, count) in counts.iter().enumerate() {
            for rack in 0..*count {
                let place = format!("/{region}/{rack}").parse().expect("a place");
                places.insert(BookieId::new(&format!("{region}.{rack}")), place);
            }
        }
        let bookies = places.keys().cloned().collect();
        (BookiePlaces { places: Arc::new(places), own_region: None, min_regions }, bookies)
    }

    /// Whether every ack quorum is in so many regions, by trying all of them.
    fn holds(places: &BookiePlaces, quorums: Quorums, ensemble: &[BookieId]) -> bool {
        (0..ensemble.len()).all(|first| {
            let copies: Vec<usize> = (first..first + quorums.write()).map(|at| at % ensemble.len()).collect();
            (0..1_u32 << copies.len()).filter(|set| set.count_ones() as usize == quorums.ack()).all(|set| {
                let regions: BTreeSet<&str> = (0..copies.len())
                    .filter(|copy| set & (1 << copy) != 0)
                    .map(|copy| places.region(&ensemble[copies[copy]]))
                    .collect();
                regions.len() >= places.min_regions
            })
        })
    }

    /// Whether any ensemble holds, by trying all of them.
    fn is_possible(
        places: &BookiePlaces,
        quorums: Quorums,
        bookies: &[BookieId],
        chosen: &mut Vec<BookieId>,
    ) -> bool {
        if chosen.len() == quorums.ensemble() {
            return holds(places, quorums, chosen);
        }
        for bookie in bookies {
            if chosen.contains(bookie) {
                continue;
            }
            chosen.push(bookie.clone());
            let is_possible = is_possible(places, quorums, bookies, chosen);
            chosen.pop();
            if is_possible {
                return true;
            }
        }
        false
    }

    #[test]
    fn every_ack_quorum_covers_the_regions_wherever_that_can_be_had_on_all_small_topologies() {
        let (mut possible, mut impossible) = (0, 0);
        let topologies: [&[usize]; 9] =
            [&[3], &[5], &[1, 1], &[2, 1], &[2, 2], &[3, 2], &[1, 1, 1], &[2, 2, 1], &[3, 1, 1]];
        for counts in topologies {
            for min_regions in 1..=3 {
                let (places, bookies) = places(counts, min_regions);
                for (ensemble, write, ack) in quorums_up_to(bookies.len().min(5)) {
                    let quorums = Quorums::new(ensemble, write, ack).expect("in order");
                    let mut choice = Choice::new(7);
                    match places.choose(quorums, bookies.clone(), &mut choice) {
                        Some(chosen) => {
                            let each: BTreeSet<&BookieId> = chosen.iter().collect();
                            assert_eq!(each.len(), ensemble, "each bookie once");
                            assert!(holds(&places, quorums, &chosen), "{counts:?} {quorums} {chosen:?}");
                            assert!(places.is_covered(quorums, &chosen));
                            possible += 1;
                        }
                        None => {
                            let found = is_possible(&places, quorums, &bookies, &mut Vec::new());
                            assert!(!found, "{counts:?} {quorums} in {min_regions} regions");
                            impossible += 1;
                        }
                    }
                }
            }
        }
        assert!(possible > 100 && impossible > 100, "{possible} and {impossible}");
    }

    fn quorums_up_to(bookies: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        (1..=bookies).flat_map(|ensemble| {
            (1..=ensemble).flat_map(move |write| (1..=write).map(move |ack| (ensemble, write, ack)))
        })
    }

    #[test]
    fn copies_are_in_different_racks_where_there_are_some_and_chance_decides_among_equal_bookies() {
        let mut of = BTreeMap::new();
        for (name, place) in [("a", "/r/1"), ("b", "/r/1"), ("c", "/r/2"), ("d", "/r/2"), ("e", "/r/3")] {
            of.insert(BookieId::new(name), place.parse().expect("a place"));
        }
        let bookies: Vec<BookieId> = of.keys().cloned().collect();
        let places = BookiePlaces { places: Arc::new(of), ..BookiePlaces::default() };
        let quorums = Quorums::new(3, 3, 2).expect("in order");
        let mut seen = BTreeSet::new();
        for seed in 0..50 {
            let chosen =
                places.choose(quorums, bookies.clone(), &mut Choice::new(seed)).expect("there are some");
            let racks: BTreeSet<_> = chosen.iter().map(|bookie| places.places.get(bookie)).collect();
            assert_eq!(racks.len(), 3, "{chosen:?}");
            seen.extend(chosen);
        }
        assert_eq!(seen.len(), 5, "all of them are used");
    }

    #[test]
    fn a_bookie_is_replaced_by_one_with_which_the_regions_are_still_covered_or_by_none() {
        let (places, _) = places(&[2, 2], 2);
        let quorums = Quorums::new(2, 2, 2).expect("in order");
        let [here, here_too, there, there_too] = ["0.0", "0.1", "1.0", "1.1"].map(BookieId::new);
        let ensemble = [here.clone(), there];
        let mut choice = Choice::new(1);
        let mut free = vec![here_too.clone(), there_too.clone()];
        assert_eq!(places.replace(quorums, &ensemble, 1, &mut free, &mut choice), Some(there_too));
        assert_eq!(places.replace(quorums, &ensemble, 1, &mut free, &mut choice), None, "{free:?}");
        assert_eq!(free, std::slice::from_ref(&here_too));
        let together = [here.clone(), here_too];
        let mut free = vec![BookieId::new("elsewhere")];
        assert!(
            places.replace(quorums, &together, 1, &mut free, &mut choice).is_some(),
            "it covered nothing"
        );
        let mut free = vec![BookieId::new("elsewhere")];
        let [nowhere, unsaid] = [2, 1].map(|regions| BookiePlaces::default().wanting(regions));
        assert_eq!(nowhere.replace(quorums, &ensemble, 1, &mut free, &mut choice), None);
        assert!(unsaid.replace(quorums, &ensemble, 1, &mut free, &mut choice).is_some());
    }

    #[test]
    fn a_ledger_says_itself_how_many_regions_it_wants_and_one_that_does_not_has_its_client_s() {
        let (places, bookies) = places(&[2, 1], 2);
        let said = |value: &'static [u8]| {
            let custom = [(MIN_REGIONS_KEY.to_owned(), Bytes::from_static(value))];
            places.of_ledger(&custom.into()).min_regions
        };
        assert_eq!((said(b"1"), said(b"3")), (1, 3));
        assert_eq!((said(b""), said(b"-1"), said(b"\xff")), (2, 2, 2), "that is no number");
        assert_eq!(places.of_ledger(&BTreeMap::new()).min_regions, 2);
        assert_eq!(places.regions(&bookies), 2);
        assert_eq!(places.regions(&[BookieId::new("elsewhere")]), 0);
    }

    #[test]
    fn a_bookie_whose_place_is_not_known_is_no_region_of_its_own() {
        let (mut places, mut bookies) = places(&[2], 2);
        let stranger = BookieId::new("stranger");
        bookies.push(stranger.clone());
        let quorums = Quorums::new(2, 2, 2).expect("in order");
        assert!(!places.is_covered(quorums, &[bookies[0].clone(), stranger.clone()]));
        assert_eq!(places.choose(quorums, bookies.clone(), &mut Choice::new(1)), None);
        assert_eq!(places.unknown(&bookies).collect::<Vec<_>>(), [&stranger]);
        places.min_regions = 1;
        assert!(places.choose(quorums, bookies.clone(), &mut Choice::new(1)).is_some());
        assert_eq!(places.unknown(&bookies).count(), 1, "a stream may want regions");
        assert_eq!(BookiePlaces::default().unknown(&bookies).count(), 0, "nothing is known of any");
    }

    #[test]
    fn a_place_is_a_region_and_a_rack() {
        let place = |text: &str| text.parse::<BookiePlace>();
        assert!(place("/eu/r1").is_ok());
        for wrong in ["", "/", "/eu", "/eu/", "eu/r1", "//r1", "/eu/r1/u3"] {
            assert_eq!(place(wrong), Err(BookiePlaceFault(wrong.to_owned())));
        }
    }
}
