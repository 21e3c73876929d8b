//! A cell's configuration: what its backends, its clients and whoever owns it have to agree on.
//!
//! There is one for a cell at a time, and it has an id. Every bucket has the id of the configuration that its backend
//! goes by, and every mutation that of its client's. So whoever goes by another one than the other side notices, and
//! the two exchange what they know ([`crate::protocol::METHOD_CONFIG`], [`crate::protocol::METHOD_CONFIGURE`]): the
//! greater id stands. The bytes below are the same in metadata, in CALLs and in a node's greeting.
//!
//! # Bytes
//! All numbers are little endian.
//! ```text
//!    0  8  magic "TWCELLCF"
//!    8  2  layout               1; 2 while a change of backends is under way; 3 while some stand for others. Who knows
//!                               lower ones alone takes no part
//!   10  1  mode                 1: R=1, 2: R=3.2, 3: R=2/Immutable. Who does not know a mode takes no part
//!   11  1  length of the name   1 to NAME_BYTES_MAX
//!   12  2  backends             as many as the mode has replicas, or more
//!   14  2  spares               backends that hold nothing yet
//!   16  8  id                   not 0
//!   24  4  rows of the ring     a power of two
//!   28  2  points of a backend
//!   30  2  backends after       in layouts 2 and 3: those that hold keys after the change; bit 15: all is copied to
//!                               them. In layout 1, and without a change in layout 3: zero
//!   32  8  generation           in mode 3 alone: of what is loaded, 0 if nothing is
//!       n  name                 letters, digits and . _ -
//!          backends, spares, then backends after the change, each:
//!             4  number         unique in the cell, and never another backend's
//!             4  whose points   in layout 3 alone: the number whose points on the ring it has
//!             1  addresses      at most ADDRESSES_MAX, nearest first
//!                each:  2  length,  n  text as `rma` writes addresses
//!       8  XXH3-64 of all before it
//! ```
//!
//! # A change of backends
//! goes through phases, each of which is a configuration with the next id:
//! 1. **Copying.** Mutations need a quorum of the replicas before and one of those after. Reads go by those before.
//!    Backends copy what they are to hold from a quorum of the replicas before.
//! 2. **Leaving**, when all of that is copied. Mutations as before. Reads need a quorum of the replicas before and one
//!    of those after, which agree. Backends copy once more, from quorums of both.
//! 3. Nobody goes by the backends before any more, when that is done.
//!
//! Of two phases that follow each other, whatever a mutation under one of them counts has a replica in common with
//! whatever a read under the other one counts. So clients and backends may learn of them one after the other.
//!
//! A mutation that comes to a quorum of the replicas before, and to none of those after, is not acknowledged. But reads
//! by copying answer it. So it has to come to the replicas after before reads go by those alone: that is what leaving
//! is for.
//!
//! # Spares
//! A spare holds nothing. It *stands for* a backend when it has that one's points on the ring, and so the keys that the
//! other one had. A backend that leaves, and whose points another one has after that, is a spare from then on. So it
//! can come back.

use std::collections::BTreeSet;

use bytes::{BufMut, Bytes, BytesMut};

use crate::cell::{HashRing, Mode, Placement};
use crate::layout::{u64_at, xxh3_64};
use crate::limits::{
    ADDRESS_BYTES_MAX, ADDRESSES_MAX, BACKENDS_MAX, CONFIGURATION_BYTES_MAX, NAME_BYTES_MAX, SPARES_MAX,
};

const MAGIC: u64 = u64::from_le_bytes(*b"TWCELLCF");
const LAYOUT: u16 = 1;
/// With a change under way.
const LAYOUT_CHANGING: u16 = 2;
/// With backends that stand for others.
const LAYOUT_STANDING: u16 = 3;
/// All is copied.
const COPIED: u16 = 1 << 15;
const HEAD_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 8;

/// A backend as a configuration has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendPlace {
    /// Its number in the cell. It is never another backend's.
    pub number: u32,
    /// Ways to reach it, nearest first, as `rma` writes addresses. None where whoever connects knows the way.
    pub addresses: Vec<String>,
    /// The number of the backend that it stands for: it has that one's points on the ring, and not its own.
    pub stands_for: Option<u32>,
}

impl BackendPlace {
    /// A backend that stands for none.
    pub fn new(number: u32, addresses: Vec<String>) -> Self {
        Self { number, addresses, stands_for: None }
    }

    /// The number from which its points on the ring follow.
    pub fn points_of(&self) -> u32 {
        self.stands_for.unwrap_or(self.number)
    }
}

/// A change of a cell's backends that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellChange {
    /// Those that hold keys afterwards. Their order means nothing.
    pub backends: Vec<BackendPlace>,
    /// All that they hold then was copied to them: reads go by them.
    pub is_copied: bool,
}

/// A cell's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Which one it is. It grows with every change: see [`Configuration::first_id`].
    pub id: u64,
    /// The cell's name. Empty in a configuration that is never exchanged and never changes.
    pub name: String,
    /// How many replicas a key has.
    pub mode: Mode,
    /// Those that hold keys; while a change is under way, those that did before. Their order means nothing.
    pub backends: Vec<BackendPlace>,
    /// Who holds them next, while that changes.
    pub change: Option<CellChange>,
    /// Those that hold none: they may stand for one that holds some, or are out while another one stands for them.
    pub spares: Vec<BackendPlace>,
    /// How keys are spread over the backends.
    pub ring: HashRing,
    /// In [`Mode::R2Immutable`], which load is read. It grows; 0: nothing was loaded yet. Otherwise 0.
    pub generation: u64,
}

/// Why bytes or parts are no configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigurationError {
    /// Bytes that end too early, are too many, or are no configuration's.
    #[error("these bytes are no cell's configuration")]
    Malformed,
    /// Written by a later version.
    #[error(
        "a cell's configuration in layout {0}, and this program knows up to layout {LAYOUT_STANDING}: a later version wrote it"
    )]
    Layout(u16),
    /// The checksum does not match.
    #[error("a cell's configuration whose checksum does not match")]
    Checksum,
    /// A name that is none.
    #[error("{0:?} is no cell's name: 1 to {NAME_BYTES_MAX} of a-z A-Z 0-9 . _ -")]
    Name(String),
    /// Too few or too many backends.
    #[error("a cell of {backends} backends: {mode:?} needs at least {} and at most {BACKENDS_MAX}", mode.replicas())]
    Backends {
        /// Backends given.
        backends: usize,
        /// The mode they are for.
        mode: Mode,
    },
    /// Too many spares.
    #[error("{0} spares, at most {SPARES_MAX}")]
    Spares(usize),
    /// Two backends with one number.
    #[error("two backends of a cell have number {0}")]
    SameNumber(u32),
    /// Two backends with the points of one.
    #[error("two backends of a cell have the points of backend {0} on the ring")]
    SamePoints(u32),
    /// A spare that has points.
    #[error("spare {0} stands for a backend, and is none of those that hold keys")]
    SpareStands(u32),
    /// Too many or too long addresses.
    #[error(
        "backend {0} has too many addresses ({ADDRESSES_MAX} at most), or one of more than {ADDRESS_BYTES_MAX} bytes"
    )]
    Addresses(u32),
    /// A ring that is none, or the id 0.
    #[error("a configuration without an id, or with a ring that can't be")]
    Ring,
    /// A change while another one is under way.
    #[error("another change of the cell's backends is under way: wait until it is done")]
    Changing,
    /// A generation of what can't be loaded, or that is not greater than the one before.
    #[error("generation {0} can't be read next in this cell")]
    Generation(u64),
}

impl Configuration {
    /// A new cell's first configuration: backends with the numbers 0 and up, one for each of `addresses`.
    pub fn first(
        id: u64,
        name: &str,
        mode: Mode,
        addresses: Vec<Vec<String>>,
    ) -> Result<Self, ConfigurationError> {
        let ring = HashRing::for_backends(addresses.len());
        let place = |(number, addresses)| BackendPlace::new(number, addresses);
        let backends = (0..).zip(addresses).map(place).collect();
        let name = name.to_owned();
        let configuration =
            Self { id, name, mode, backends, change: None, spares: Vec::new(), ring, generation: 0 };
        configuration.check()?;
        Ok(configuration)
    }

    /// The first id of a cell that is created when a wall clock shows `wall_ms`, after all that exist up to `above`:
    /// the seconds in its upper half, and 1 in the lower one, which counts changes. So a cell that is created anew
    /// under a name has greater ids than the one before it had, and two cells have no id in common.
    pub fn first_id(wall_ms: i64, above: u64) -> u64 {
        let second = u64::try_from(wall_ms / 1_000).unwrap_or(0).clamp(1, u64::from(u32::MAX));
        second.max((above >> 32) + 1) << 32 | 1
    }

    /// Whether `id` and `other` are of one cell: what a backend holds under the one is of use under the other.
    pub fn is_same_cell(id: u64, other: u64) -> bool {
        id >> 32 == other >> 32
    }

    /// Whether it is never exchanged: its parties were started with its id.
    pub fn is_fixed(&self) -> bool {
        self.name.is_empty()
    }

    /// Whether it says the same as `other` but for the id, the ring and the order of backends.
    pub fn says_the_same(&self, other: &Self) -> bool {
        let sorted = |places: &[BackendPlace]| {
            let mut places: Vec<_> = places.iter().map(|place| place.addresses.clone()).collect();
            places.sort();
            places
        };
        self.name == other.name
            && self.mode == other.mode
            && sorted(&self.backends) == sorted(&other.backends)
            && sorted(&self.spares) == sorted(&other.spares)
    }

    /// The same with spares, one for each of `addresses`, before anybody is told of it. Their numbers follow those of
    /// the backends.
    pub fn with_spares(mut self, addresses: Vec<Vec<String>>) -> Result<Self, ConfigurationError> {
        let first = self.members().map(|place| place.number).max().map_or(0, |number| number.wrapping_add(1));
        self.spares = (first..).zip(addresses).map(|(number, of)| BackendPlace::new(number, of)).collect();
        self.check()?;
        Ok(self)
    }

    /// The next configuration, with these backends at these addresses. One that has an address in common with one of
    /// this configuration keeps its number, and what is new gets a number that none had.
    pub fn changed(
        &self,
        id: u64,
        mode: Mode,
        addresses: Vec<Vec<String>>,
    ) -> Result<Self, ConfigurationError> {
        let known = || self.backends.iter().chain(&self.spares);
        let mut unused = known().map(|place| place.number).max().map_or(0, |number| number.wrapping_add(1));
        let mut taken = BTreeSet::new();
        let mut backends = Vec::with_capacity(addresses.len());
        for addresses in addresses {
            let same = known().find(|place| {
                !taken.contains(&place.number)
                    && place.addresses.iter().any(|known| addresses.contains(known))
            });
            let number = same.map_or(unused, |place| place.number);
            let stands_for = same.and_then(|place| place.stands_for);
            if same.is_none() {
                unused = unused.wrapping_add(1);
            }
            taken.insert(number);
            backends.push(BackendPlace { number, addresses, stands_for });
        }
        let configuration = Self { id, mode, backends, change: None, spares: Vec::new(), ..self.clone() };
        configuration.check()?;
        Ok(configuration)
    }

    /// The next configuration, which begins a change to these backends. Those of them that were spares are none from
    /// then on.
    pub fn changing_to(&self, backends: Vec<BackendPlace>) -> Result<Self, ConfigurationError> {
        if self.change.is_some() {
            return Err(ConfigurationError::Changing);
        }
        let mut configuration = Self { id: self.id + 1, ..self.clone() };
        configuration.spares.retain(|spare| backends.iter().all(|place| place.number != spare.number));
        configuration.change = Some(CellChange { backends, is_copied: false });
        configuration.check()?;
        Ok(configuration)
    }

    /// The next configuration, which has other spares, and changes nothing else.
    pub fn with_other_spares(&self, spares: Vec<BackendPlace>) -> Result<Self, ConfigurationError> {
        if self.change.is_some() {
            return Err(ConfigurationError::Changing);
        }
        let configuration = Self { id: self.id + 1, spares, ..self.clone() };
        configuration.check()?;
        Ok(configuration)
    }

    /// The next configuration, by which what was loaded as `generation` is read.
    pub fn loaded(&self, generation: u64) -> Result<Self, ConfigurationError> {
        if self.change.is_some() {
            return Err(ConfigurationError::Changing);
        }
        if generation <= self.generation || !self.mode.is_immutable() {
            return Err(ConfigurationError::Generation(generation));
        }
        Ok(Self { id: self.id + 1, generation, ..self.clone() })
    }

    /// The spares that may stand for a backend: nobody stands for them.
    pub fn free_spares(&self) -> impl Iterator<Item = &BackendPlace> {
        self.spares.iter().filter(|spare| self.stand_in_of(spare.number).is_none())
    }

    /// Who stands for the backend with that number, if somebody does; while that changes, before or after it.
    pub fn stand_in_of(&self, number: u32) -> Option<&BackendPlace> {
        let after = self.change.iter().flat_map(|change| &change.backends);
        self.backends.iter().chain(after).find(|place| place.stands_for == Some(number))
    }

    /// The backends after a drain of the one with that number: `spare` stands for it, or for whom it stands itself.
    /// `None` if there is no such backend.
    pub fn drained_onto(&self, number: u32, spare: &BackendPlace) -> Option<Vec<BackendPlace>> {
        let mut after = self.backends.clone();
        let place = after.iter_mut().find(|place| place.number == number)?;
        let points = place.points_of();
        *place = BackendPlace { stands_for: (points != spare.number).then_some(points), ..spare.clone() };
        Some(after)
    }

    /// The backends after the one at `place` has come back for who stands for it. `None` if nobody does.
    pub fn restored(&self, place: &BackendPlace) -> Option<Vec<BackendPlace>> {
        let mut after = self.backends.clone();
        let stand_in = after.iter_mut().find(|of| of.stands_for == Some(place.number))?;
        *stand_in = BackendPlace { stands_for: None, ..place.clone() };
        Some(after)
    }

    /// The next phase of the change that is under way, if one is. See [`crate::Cell::next_phase`] for when it begins.
    pub fn next_phase(&self) -> Option<Self> {
        let change = self.change.clone()?;
        let id = self.id + 1;
        Some(match change.is_copied {
            false => Self { id, change: Some(CellChange { is_copied: true, ..change }), ..self.clone() },
            true => {
                let is_taken_over = |place: &&BackendPlace| {
                    let after = &change.backends;
                    after.iter().all(|of| of.number != place.number)
                        && after.iter().any(|of| of.points_of() == place.points_of())
                };
                let left = self.backends.iter().filter(is_taken_over);
                let left = left.map(|place| BackendPlace::new(place.number, place.addresses.clone()));
                let spares = self.spares.iter().cloned().chain(left).take(SPARES_MAX).collect();
                Self { id, backends: change.backends, spares, change: None, ..self.clone() }
            }
        })
    }

    /// The same backends at other addresses: those of `addresses` that have one in common with them.
    pub fn moved(&self, addresses: &[Vec<String>]) -> Self {
        let mut moved = self.clone();
        let after = moved.change.iter_mut().flat_map(|change| &mut change.backends);
        for place in moved.backends.iter_mut().chain(after).chain(&mut moved.spares) {
            let known = |of: &&Vec<String>| of.iter().any(|address| place.addresses.contains(address));
            if let Some(now) = addresses.iter().find(known) {
                place.addresses.clone_from(now);
            }
        }
        moved
    }

    /// All that hold keys: before a change that is under way, and then the others that do after it.
    pub fn members(&self) -> impl Iterator<Item = &BackendPlace> + Clone {
        let after = self.change.iter().flat_map(|change| &change.backends);
        let is_new = |place: &&BackendPlace| self.backends.iter().all(|of| of.number != place.number);
        self.backends.iter().chain(after.filter(is_new))
    }

    /// Where the backend with that number is among [`Configuration::members`].
    pub fn place_of(&self, number: u32) -> Option<usize> {
        self.members().position(|place| place.number == number)
    }

    /// The table of who is read, by their places among [`Configuration::members`]. Where
    /// [`Configuration::reads_both`], lookups by quorum go by the other table, too.
    ///
    /// # Panics
    /// If it was not checked.
    pub fn placement(&self) -> Placement {
        match &self.change {
            Some(change) if change.is_copied => self.placement_of(&change.backends),
            _ => self.placement_of(&self.backends),
        }
    }

    /// The table of who else has to acknowledge mutations, while a change is under way.
    ///
    /// # Panics
    /// If it was not checked.
    pub fn other_placement(&self) -> Option<Placement> {
        let change = self.change.as_ref()?;
        Some(self.placement_of(if change.is_copied { &self.backends } else { &change.backends }))
    }

    /// Whether a lookup by quorum needs an answer by both tables. What does not change is the same by both.
    pub fn reads_both(&self) -> bool {
        !self.mode.is_immutable() && self.change.as_ref().is_some_and(|change| change.is_copied)
    }

    fn placement_of(&self, backends: &[BackendPlace]) -> Placement {
        let points: Vec<u32> = backends.iter().map(BackendPlace::points_of).collect();
        let placement = Placement::new(self.mode, self.ring, &points);
        match self.change {
            None => placement,
            Some(_) => placement
                .among(|place| self.place_of(backends[place].number).expect("all backends are members")),
        }
    }

    /// Whether a cell may have that name.
    pub fn check_name(name: &str) -> Result<(), ConfigurationError> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_name = (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits);
        is_name.then_some(()).ok_or_else(|| ConfigurationError::Name(name.to_owned()))
    }

    /// Whether everything in it is within its bounds.
    pub fn check(&self) -> Result<(), ConfigurationError> {
        Self::check_name(&self.name)?;
        self.check_unnamed()
    }

    /// The same for one that may be without a name.
    pub(crate) fn check_unnamed(&self) -> Result<(), ConfigurationError> {
        let after = self.change.iter().map(|change| &change.backends);
        for backends in std::iter::once(&self.backends).chain(after.clone()) {
            let backends = backends.len();
            if backends < self.mode.replicas() || backends > BACKENDS_MAX {
                return Err(ConfigurationError::Backends { backends, mode: self.mode });
            }
        }
        if self.spares.len() > SPARES_MAX {
            return Err(ConfigurationError::Spares(self.spares.len()));
        }
        let mut numbers = BTreeSet::new();
        let mut numbers_after = BTreeSet::new();
        for place in after.clone().flatten() {
            if !numbers_after.insert(place.number) {
                return Err(ConfigurationError::SameNumber(place.number));
            }
        }
        for place in self.members().chain(&self.spares) {
            if !numbers.insert(place.number) {
                return Err(ConfigurationError::SameNumber(place.number));
            }
            let too_long = place.addresses.iter().any(|address| address.len() > ADDRESS_BYTES_MAX);
            if place.addresses.len() > ADDRESSES_MAX || too_long {
                return Err(ConfigurationError::Addresses(place.number));
            }
        }
        if self.id == 0 || !self.ring.is_valid() {
            return Err(ConfigurationError::Ring);
        }
        if self.generation != 0 && !self.mode.is_immutable() {
            return Err(ConfigurationError::Generation(self.generation));
        }
        for backends in std::iter::once(&self.backends).chain(after) {
            let mut points = BTreeSet::new();
            if let Some(place) = backends.iter().find(|place| !points.insert(place.points_of())) {
                return Err(ConfigurationError::SamePoints(place.points_of()));
            }
        }
        match self.spares.iter().find(|spare| spare.stands_for.is_some()) {
            Some(spare) => Err(ConfigurationError::SpareStands(spare.number)),
            None => Ok(()),
        }
    }

    /// Its bytes.
    ///
    /// # Panics
    /// If it was not checked.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::new();
        bytes.put_u64_le(MAGIC);
        let after = self.change.iter().flat_map(|change| &change.backends);
        let all = self.backends.iter().chain(&self.spares).chain(after);
        let layout = match all.clone().any(|place| place.stands_for.is_some()) {
            true => LAYOUT_STANDING,
            false if self.change.is_some() => LAYOUT_CHANGING,
            false => LAYOUT,
        };
        bytes.put_u16_le(layout);
        bytes.put_u8(match self.mode {
            Mode::R1 => 1,
            Mode::R32 => 2,
            Mode::R2Immutable => 3,
        });
        bytes.put_u8(u8::try_from(self.name.len()).expect("a name is short"));
        bytes.put_u16_le(u16::try_from(self.backends.len()).expect("backends are counted in 16 bits"));
        bytes.put_u16_le(u16::try_from(self.spares.len()).expect("so are spares"));
        bytes.put_u64_le(self.id);
        bytes.put_u32_le(self.ring.rows);
        bytes.put_u16_le(self.ring.points);
        bytes.put_u16_le(self.change.as_ref().map_or(0, |change| {
            let count = u16::try_from(change.backends.len()).expect("backends are counted in 15 bits");
            if change.is_copied { count | COPIED } else { count }
        }));
        if self.mode.is_immutable() {
            bytes.put_u64_le(self.generation);
        }
        bytes.put_slice(self.name.as_bytes());
        for place in all {
            bytes.put_u32_le(place.number);
            if layout == LAYOUT_STANDING {
                bytes.put_u32_le(place.points_of());
            }
            bytes.put_u8(u8::try_from(place.addresses.len()).expect("a backend has few addresses"));
            for address in &place.addresses {
                bytes.put_u16_le(u16::try_from(address.len()).expect("an address is short"));
                bytes.put_slice(address.as_bytes());
            }
        }
        let checksum = xxh3_64(&bytes);
        bytes.put_u64_le(checksum);
        bytes.freeze()
    }

    /// A configuration out of foreign bytes, with everything within its bounds.
    pub fn decode(bytes: &[u8]) -> Result<Self, ConfigurationError> {
        if bytes.len() > CONFIGURATION_BYTES_MAX || bytes.len() < HEAD_BYTES + CHECKSUM_BYTES {
            return Err(ConfigurationError::Malformed);
        }
        let (said, checksum) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
        let mut rest = ConfigurationUnread(said);
        if rest.word() != Some(MAGIC) {
            return Err(ConfigurationError::Malformed);
        }
        // First of all: what is behind it may be anything.
        let layout = rest.short().unwrap_or_default();
        if !(LAYOUT..=LAYOUT_STANDING).contains(&layout) {
            return Err(ConfigurationError::Layout(layout));
        }
        if u64_at(checksum, 0) != Some(xxh3_64(said)) {
            return Err(ConfigurationError::Checksum);
        }
        let configuration = Self::decode_said(rest, layout).ok_or(ConfigurationError::Malformed)?;
        configuration.check()?;
        Ok(configuration)
    }

    fn decode_said(mut rest: ConfigurationUnread<'_>, layout: u16) -> Option<Self> {
        let mode = match rest.byte()? {
            1 => Mode::R1,
            2 => Mode::R32,
            3 => Mode::R2Immutable,
            _ => return None,
        };
        let name_len = usize::from(rest.byte()?);
        let (backends, spares) = (usize::from(rest.short()?), usize::from(rest.short()?));
        let id = rest.word()?;
        let ring =
            HashRing { rows: u32::from_le_bytes(*rest.take(4)?.first_chunk()?), points: rest.short()? };
        let after = rest.short()?;
        let generation = if mode.is_immutable() { rest.word()? } else { 0 };
        let name = String::from_utf8(rest.take(name_len)?.to_vec()).ok()?;
        let with_points = layout == LAYOUT_STANDING;
        let backends = rest.places(backends, with_points)?;
        let spares = rest.places(spares, with_points)?;
        let change = match layout == LAYOUT_CHANGING || (with_points && after != 0) {
            true => {
                let backends = rest.places(usize::from(after & !COPIED), with_points)?;
                Some(CellChange { backends, is_copied: after & COPIED != 0 })
            }
            false => None,
        };
        rest.0.is_empty().then_some(Self { id, name, mode, backends, change, spares, ring, generation })
    }
}

/// What is left of foreign bytes.
struct ConfigurationUnread<'a>(&'a [u8]);

impl<'a> ConfigurationUnread<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    fn short(&mut self) -> Option<u16> {
        self.take(2)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
    }

    fn word(&mut self) -> Option<u64> {
        u64_at(self.take(8)?, 0)
    }

    /// So many backends. A backend is five bytes at least, so memory is in proportion to what is there.
    fn places(&mut self, count: usize, with_points: bool) -> Option<Vec<BackendPlace>> {
        let mut places = Vec::with_capacity(count.min(self.0.len() / 5));
        for _ in 0..count {
            let number = u32::from_le_bytes(*self.take(4)?.first_chunk()?);
            let stands_for = match with_points {
                true => Some(u32::from_le_bytes(*self.take(4)?.first_chunk()?)).filter(|of| *of != number),
                false => None,
            };
            let mut addresses = Vec::new();
            for _ in 0..self.byte()? {
                let len = usize::from(self.short()?);
                addresses.push(String::from_utf8(self.take(len)?.to_vec()).ok()?);
            }
            places.push(BackendPlace { number, addresses, stands_for });
        }
        Some(places)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn three() -> Configuration {
        let addresses =
            (0..3).map(|n| vec![format!("unix:/cell/{n}"), format!("tcp:10.0.0.{n}:7")]).collect();
        Configuration::first(5 << 32 | 1, "tiles", Mode::R32, addresses).expect("a cell")
    }

    #[test]
    fn bytes_keep_a_configuration_and_are_as_they_are_drawn() {
        let mut configuration = three();
        configuration.spares.push(BackendPlace::new(9, Vec::new()));
        let bytes = configuration.encode();
        assert_eq!(Configuration::decode(&bytes), Ok(configuration));
        assert_eq!(&bytes[..16], b"TWCELLCF\x01\x00\x02\x05\x03\x00\x01\x00");
        assert_eq!(&bytes[16..37], b"\x01\0\0\0\x05\0\0\0\x00\x10\0\0\x00\x01\0\0tiles");
        assert_eq!(&bytes[37..44], b"\0\0\0\0\x02\x0c\0");
    }

    #[test]
    fn a_change_goes_through_its_phases_and_no_other_one_begins_meanwhile() {
        let before = three();
        let mut after = before.backends.clone();
        after.remove(1);
        after.push(BackendPlace::new(3, vec!["unix:/cell/3".to_owned()]));
        let copying = before.changing_to(after.clone()).expect("a change");
        assert_eq!(copying.changing_to(after.clone()), Err(ConfigurationError::Changing));
        assert_eq!(copying.encode()[8], 2, "who knows no changes takes no part");
        let numbers = |of: &Configuration| of.members().map(|place| place.number).collect::<Vec<_>>();
        assert_eq!((numbers(&copying), copying.place_of(3)), (vec![0, 1, 2, 3], Some(3)));
        let leaving = copying.next_phase().expect("the next one");
        for phase in [&copying, &leaving] {
            assert_eq!(Configuration::decode(&phase.encode()).as_ref(), Ok(phase));
        }
        // Who is read, and who else acknowledges.
        let hash = crate::layout::KeyHash(7);
        let numbers_of = |of: &Configuration, placement: Placement| {
            let members = numbers(of);
            placement.of(hash).iter().map(|place| members[usize::from(*place)]).collect::<Vec<_>>()
        };
        let done = leaving.next_phase().expect("the last one");
        assert_eq!((done.change.is_none(), numbers(&done)), (true, vec![0, 2, 3]));
        assert_eq!(done.next_phase(), None);
        let (old, new) = (numbers_of(&before, before.placement()), numbers_of(&done, done.placement()));
        let other = |of: &Configuration| numbers_of(of, of.other_placement().expect("a change"));
        assert_eq!((numbers_of(&copying, copying.placement()), other(&copying)), (old.clone(), new.clone()));
        assert_eq!((numbers_of(&leaving, leaving.placement()), other(&leaving)), (new, old));
        assert_eq!(done.id, before.id + 3);
    }

    #[test]
    fn a_spare_has_the_keys_of_the_backend_that_it_stands_for_and_gives_them_back() {
        let before = three().with_spares(vec![vec!["unix:/cell/spare".to_owned()]]).expect("a cell");
        let numbers = |places: &[BackendPlace]| places.iter().map(|place| place.number).collect::<Vec<_>>();
        let done = |of: Configuration| of.next_phase().and_then(|of| of.next_phase()).expect("phases");
        let spare = before.free_spares().next().expect("a spare").clone();
        let copying =
            before.changing_to(before.drained_onto(1, &spare).expect("there is one")).expect("a change");
        assert_eq!((copying.encode()[8], copying.spares.len()), (3, 0));
        assert_eq!(Configuration::decode(&copying.encode()).as_ref(), Ok(&copying));
        let drained = done(copying);
        assert_eq!(Configuration::decode(&drained.encode()).as_ref(), Ok(&drained));
        assert_eq!((numbers(&drained.backends), numbers(&drained.spares)), (vec![0, 3, 2], vec![1]));
        assert_eq!((drained.free_spares().count(), drained.stand_in_of(1).map(|of| of.number)), (0, Some(3)));
        assert_eq!(drained.placement(), before.placement(), "no key moves but from the one to the other");
        // Who stands for another one is drained as any other.
        let other = BackendPlace::new(4, Vec::new());
        let again = drained.drained_onto(3, &other).expect("there is one");
        assert_eq!((again[1].number, again[1].stands_for), (4, Some(1)));

        let back = drained.restored(&drained.spares[0]).expect("it is drained");
        let restored = done(drained.changing_to(back).expect("a change"));
        assert_eq!((restored.placement(), &restored.backends), (before.placement(), &before.backends));
        assert_eq!((&restored.spares, restored.encode()[8]), (&before.spares, 1));
        assert_eq!(restored.restored(&restored.backends[1]), None, "nobody stands for it");
        assert_eq!(restored.drained_onto(7, &spare), None);

        let mut twice = drained.clone();
        twice.backends[0].stands_for = Some(1);
        assert_eq!(twice.check(), Err(ConfigurationError::SamePoints(1)));
        let mut standing = before;
        standing.spares[0].stands_for = Some(1);
        assert_eq!(standing.check(), Err(ConfigurationError::SpareStands(3)));
    }

    #[test]
    fn bytes_of_a_later_layout_say_so_and_damaged_ones_are_refused() {
        let bytes = three().encode();
        let mut later = bytes.to_vec();
        later[8] = 4;
        assert_eq!(Configuration::decode(&later), Err(ConfigurationError::Layout(4)));
        for at in 10..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 0x10;
            assert_eq!(Configuration::decode(&damaged), Err(ConfigurationError::Checksum), "byte {at}");
        }
        for len in 0..bytes.len() {
            assert!(Configuration::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_refused_whoever_encoded_it() {
        let refused = |change: fn(&mut Configuration)| {
            let mut configuration = three();
            change(&mut configuration);
            Configuration::decode(&configuration.encode()).expect_err("refused")
        };
        assert_eq!(refused(|it| it.id = 0), ConfigurationError::Ring);
        assert_eq!(refused(|it| it.ring.rows = 3_000), ConfigurationError::Ring);
        assert_eq!(refused(|it| it.ring.points = 0), ConfigurationError::Ring);
        assert_eq!(refused(|it| it.name = "a b".to_owned()), ConfigurationError::Name("a b".to_owned()));
        assert_eq!(refused(|it| it.backends[1].number = 0), ConfigurationError::SameNumber(0));
        let few = ConfigurationError::Backends { backends: 2, mode: Mode::R32 };
        assert_eq!(refused(|it| drop(it.backends.pop())), few);
        let long =
            |it: &mut Configuration| it.backends[2].addresses = vec!["x".repeat(ADDRESS_BYTES_MAX + 1)];
        assert_eq!(refused(long), ConfigurationError::Addresses(2));
    }

    #[test]
    fn ids_grow_with_every_cell_whatever_the_clock_does() {
        let first = Configuration::first_id(1_800_000_000_500, 0);
        assert_eq!(first, 1_800_000_000 << 32 | 1);
        let next = Configuration::first_id(1_800_000_000_999, first + 7);
        assert!(next > first + 7 && !Configuration::is_same_cell(first, next));
        let back = Configuration::first_id(-5, next);
        assert!(back > next);
        assert!(Configuration::is_same_cell(first, first + 7));
        assert_ne!(Configuration::first_id(-5, 0), 0);
    }

    #[test]
    fn a_backend_keeps_its_number_as_long_as_one_of_its_addresses_stays() {
        let before = three();
        let addresses = [&["tcp:10.0.0.2:7"][..], &["unix:/cell/new"], &["tcp:10.0.0.9:7", "unix:/cell/0"]];
        let addresses: Vec<Vec<String>> =
            addresses.iter().map(|of| of.iter().map(|address| (*address).to_owned()).collect()).collect();
        let after = before.changed(before.id + 1, Mode::R32, addresses).expect("a cell");
        let numbers: Vec<u32> = after.backends.iter().map(|place| place.number).collect();
        assert_eq!(numbers, [2, 3, 0]);
        assert!(!after.says_the_same(&before));
        let mut listed_otherwise = before.clone();
        listed_otherwise.backends.rotate_left(1);
        listed_otherwise.id += 1;
        assert!(listed_otherwise.says_the_same(&before));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), is_framed in any::<bool>()) {
            if is_framed && bytes.len() >= 18 {
                bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
                bytes[8..10].copy_from_slice(&LAYOUT.to_le_bytes());
                let end = bytes.len() - 8;
                let checksum = xxh3_64(&bytes[..end]);
                bytes[end..].copy_from_slice(&checksum.to_le_bytes());
            }
            let _ = Configuration::decode(&bytes);
        }
    }

    #[test]
    fn what_was_loaded_is_read_by_the_next_configuration_and_generations_only_grow() {
        let addresses = vec![Vec::new(); 2];
        let cell = Configuration::first(5 << 32 | 1, "tiles", Mode::R2Immutable, addresses).expect("a cell");
        assert_eq!(Configuration::decode(&cell.encode()), Ok(cell.clone()));
        let loaded = cell.loaded(7).expect("the first load");
        assert_eq!((loaded.id, loaded.generation), (cell.id + 1, 7));
        assert_eq!(Configuration::decode(&loaded.encode()), Ok(loaded.clone()));
        assert_eq!(loaded.loaded(7), Err(ConfigurationError::Generation(7)));
        let changing = loaded.changing_to(loaded.backends.clone()).expect("a change");
        assert_eq!(changing.generation, 7, "it stays while backends change");
        assert_eq!(changing.loaded(8), Err(ConfigurationError::Changing));
        let one = Configuration::first(5 << 32 | 1, "tiles", Mode::R1, vec![Vec::new()]).expect("a cell");
        assert_eq!(one.loaded(1), Err(ConfigurationError::Generation(1)));
        assert_eq!(Configuration { generation: 1, ..one }.check(), Err(ConfigurationError::Generation(1)));
    }
}
