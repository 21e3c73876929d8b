//! How far something reaches, as types that say what is so up to there: appended, durable, cached. Each counts bytes
//! of a segment (`Position`) or records of a shard (`Offset`), and is an exclusive end.
//!
//! At a stream's source `cached <= durable <= appended`, and each goes forward: whoever advances one shows the one
//! that bounds it, and both are asserted. Only a loss or a refusal takes back what was appended
//! ([`AppendedTo::take_back`]), and only a loss what an `interval` stream called durable.
//!
//! Outside of the source's cluster the order does not hold, and a cell may have bytes of a copy before its disk. Two
//! things there are of these types all the same: the copy's own disk, whose order is that of any disk, and how far its
//! cells' writer has bytes, for which `durable` is what is durable at the source. Their fields say so.
//!
//! A [`crate::Tail`] has plain positions: it is what was told of a shard, nobody advances it, and with duelling writers
//! what is told goes back. Whoever shows or hears one asserts what he knows of its order.

use std::fmt::Display;

macro_rules! watermark {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name<Unit>(Unit);

        impl<Unit: Copy + Ord + Display> $name<Unit> {
            /// One that begins there.
            pub const fn new(at: Unit) -> Self {
                Self(at)
            }

            /// Where it is.
            pub const fn get(self) -> Unit {
                self.0
            }

            /// Goes back to there.
            ///
            /// # Panics
            /// If that is not back.
            #[track_caller]
            pub fn take_back(&mut self, to: Unit) {
                assert!(to <= self.0, "what is taken back ends at {}, it can't end at {to}", self.0);
                self.0 = to;
            }

            #[track_caller]
            fn go_forward(&mut self, to: Unit) {
                assert!(to >= self.0, "a watermark goes forward only: from {} to {to}", self.0);
                self.0 = to;
            }
        }
    };
}

watermark!(
    /// Up to here it was taken, and may still be lost.
    AppendedTo
);
watermark!(
    /// Up to here it is as safe as its stream promises.
    DurableTo
);
watermark!(
    /// Up to here it is in the data cell, or was given up.
    CachedTo
);

impl<Unit: Copy + Ord + Display> AppendedTo<Unit> {
    /// More was appended, up to `to`.
    ///
    /// # Panics
    /// If that is not forward.
    #[track_caller]
    pub fn advance(&mut self, to: Unit) {
        self.go_forward(to);
    }
}

impl<Unit: Copy + Ord + Display> DurableTo<Unit> {
    /// What was appended is durable up to `to`.
    ///
    /// # Panics
    /// If that is not forward, or so much was not appended.
    #[track_caller]
    pub fn advance(&mut self, to: Unit, appended: AppendedTo<Unit>) {
        assert!(to <= appended.0, "{to} can't be durable: {} is appended", appended.0);
        self.go_forward(to);
    }
}

impl<Unit: Copy + Ord + Display> CachedTo<Unit> {
    /// What is durable is cached up to `to`.
    ///
    /// # Panics
    /// If that is not forward, or so much is not durable.
    #[track_caller]
    pub fn advance(&mut self, to: Unit, durable: DurableTo<Unit>) {
        assert!(to <= durable.0, "{to} can't be cached: {} is durable", durable.0);
        self.go_forward(to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Offset, Position};

    fn marks() -> (AppendedTo<Position>, DurableTo<Position>, CachedTo<Position>) {
        (AppendedTo::new(Position(30)), DurableTo::new(Position(20)), CachedTo::new(Position(10)))
    }

    #[test]
    fn each_advances_up_to_the_one_that_bounds_it() {
        let (mut appended, mut durable, mut cached) = marks();
        appended.advance(Position(31));
        durable.advance(Position(31), appended);
        cached.advance(Position(31), durable);
        assert_eq!((appended.get(), durable.get(), cached.get()), (Position(31), Position(31), Position(31)));
        let mut records = AppendedTo::new(Offset(7));
        records.take_back(Offset(5));
        assert_eq!(records, AppendedTo::new(Offset(5)));
    }

    #[test]
    #[should_panic(expected = "31 can't be durable: 30 is appended")]
    fn what_was_not_appended_is_not_durable() {
        let (appended, mut durable, _) = marks();
        durable.advance(Position(31), appended);
    }

    #[test]
    #[should_panic(expected = "21 can't be cached: 20 is durable")]
    fn what_is_not_durable_is_not_cached() {
        let (_, durable, mut cached) = marks();
        cached.advance(Position(21), durable);
    }

    #[test]
    #[should_panic(expected = "goes forward only: from 20 to 19")]
    fn none_goes_back_by_advancing() {
        let (appended, mut durable, _) = marks();
        durable.advance(Position(19), appended);
    }

    #[test]
    #[should_panic(expected = "ends at 30, it can't end at 31")]
    fn what_is_taken_back_does_not_grow() {
        let (mut appended, ..) = marks();
        appended.take_back(Position(31));
    }
}
