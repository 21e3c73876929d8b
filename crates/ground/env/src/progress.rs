//! How far a long piece of work is, for whoever waits for it.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

/// Told by whoever works, asked by whoever waits. Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Mutex<Stage>>);

/// What is being done, and how much of it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stage {
    /// What is counted, a word of the program's.
    pub what: &'static str,
    /// So much of it is done.
    pub done: u64,
    /// So much is to be done; 0 if that is not known.
    pub whole: u64,
}

impl Progress {
    /// Something else is being done from now on.
    pub fn begin(&self, what: &'static str, whole: u64) {
        *self.0.lock() = Stage { what, done: 0, whole };
    }

    /// So much more is done.
    pub fn advance(&self, by: u64) {
        self.0.lock().done += by;
    }

    /// What is being done now.
    pub fn stage(&self) -> Stage {
        *self.0.lock()
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, done, whole } = self;
        match (done, whole) {
            (0, 0) => f.write_str(what),
            (_, 0) => write!(f, "{done} {what}"),
            _ => write!(f, "{done} of {whole} {what}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_by_one_handle_is_told_to_all_and_in_words() {
        let progress = Progress::default();
        let told = progress.clone();
        progress.begin("files", 0);
        assert_eq!(told.stage().to_string(), "files");
        progress.advance(3);
        assert_eq!(told.stage().to_string(), "3 files");
        progress.begin("bytes", 10);
        progress.advance(3);
        progress.advance(4);
        assert_eq!(told.stage(), Stage { what: "bytes", done: 7, whole: 10 });
        assert_eq!(told.stage().to_string(), "7 of 10 bytes");
    }
}
