//! How far the journal is appended, written and durable: `durable <= written <= appended`, and each goes forward, but
//! for what a failure cuts off.

use crate::position::JournalPosition;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalReach {
    appended: JournalPosition,
    written: JournalPosition,
    durable: JournalPosition,
}

impl JournalReach {
    /// All of them end there.
    pub fn at(end: JournalPosition) -> Self {
        Self { appended: end, written: end, durable: end }
    }

    /// The end of what was taken.
    pub fn appended(&self) -> JournalPosition {
        self.appended
    }

    /// The end of what the operating system has.
    pub fn written(&self) -> JournalPosition {
        self.written
    }

    /// The end of what the disk has.
    pub fn durable(&self) -> JournalPosition {
        self.durable
    }

    /// So many bytes more were appended.
    pub fn append(&mut self, bytes: u64) {
        self.appended = self.appended.plus(bytes);
    }

    /// Everything up to `to` was written.
    ///
    /// # Panics
    /// If that is nothing more, or was not appended.
    pub fn write(&mut self, to: JournalPosition) {
        assert!(self.written < to && to <= self.appended, "{to} written of {self:?}");
        self.written = to;
    }

    /// Everything that was written was synced.
    pub fn sync(&mut self) {
        assert!(self.durable <= self.written, "{self:?}");
        self.durable = self.written;
    }

    /// What is not durable is given up: a further file goes on behind everything that was appended.
    ///
    /// # Panics
    /// If it does not.
    pub fn go_on_at(&mut self, base: JournalPosition) {
        assert!(base == self.appended, "a file goes on at {base} of {self:?}");
        (self.written, self.durable) = (base, base);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach() -> JournalReach {
        let mut reach = JournalReach::at(JournalPosition(10));
        reach.append(20);
        reach.write(JournalPosition(20));
        reach
    }

    #[test]
    fn what_is_appended_is_written_and_then_durable_and_a_file_goes_on_behind_it() {
        let mut reach = reach();
        assert_eq!(reach.durable(), JournalPosition(10));
        reach.sync();
        assert_eq!((reach.durable(), reach.appended()), (JournalPosition(20), JournalPosition(30)));
        reach.go_on_at(JournalPosition(30));
        assert_eq!((reach.written(), reach.durable()), (JournalPosition(30), JournalPosition(30)));
    }

    #[test]
    #[should_panic(expected = "written of")]
    fn what_was_not_appended_is_not_written() {
        reach().write(JournalPosition(31));
    }

    #[test]
    #[should_panic(expected = "a file goes on at 20")]
    fn a_file_does_not_go_on_within_what_was_appended() {
        reach().go_on_at(JournalPosition(20));
    }
}
