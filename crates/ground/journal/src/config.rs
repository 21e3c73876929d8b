//! What can be configured.

use std::time::Duration;

use crate::limits::{FILE_BYTES_MIN, FILES_MIN, FRAME_BYTES, HEADER_BYTES, PAGE_BYTES, RECORD_BYTES_MAX};

/// Sizes and times of one journal. They may differ from start to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalConfig {
    /// Bytes of one file, header included; a multiple of 4096. Files are preallocated whole.
    pub file_bytes: u64,
    /// Most files, spare ones included; at least 3. A failing disk may add one for a while.
    pub files_max: u32,
    /// Bytes at the end of the last file that only [`crate::Priority::Reserved`] appends may use.
    pub reserve_bytes: u64,
    /// Most bytes that wait for the disk while one group is being written; memory is at most twice that.
    pub backlog_bytes: usize,
    /// Most bytes of one record.
    pub record_bytes_max: usize,
    /// Longest time that records appended without `sync` stay unsynced.
    pub sync_interval: Duration,
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self {
            file_bytes: 64 << 20,
            files_max: 32,
            reserve_bytes: 1 << 20,
            backlog_bytes: 16 << 20,
            record_bytes_max: 8 << 20,
            sync_interval: Duration::from_secs(1),
        }
    }
}

/// A configuration that can't work, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalConfigError {
    /// `file_bytes` is too small or not whole pages.
    #[error("file_bytes is {file_bytes}: it has to be a multiple of {PAGE_BYTES}, at least {FILE_BYTES_MIN}")]
    FileBytes {
        /// As configured.
        file_bytes: u64,
    },
    /// `files_max` is too small.
    #[error("files_max is {files_max}: it has to be at least {FILES_MIN}")]
    FilesMax {
        /// As configured.
        files_max: u32,
    },
    /// `record_bytes_max` is 0 or above the limit.
    #[error("record_bytes_max is {record_bytes_max}: it has to be in 1..={RECORD_BYTES_MAX}")]
    RecordBytesMax {
        /// As configured.
        record_bytes_max: usize,
    },
    /// The largest record and the reserve do not fit in one file together.
    #[error(
        "a file of {file_bytes} bytes can't hold a record of {record_bytes_max} bytes beside a reserve of {reserve_bytes}"
    )]
    NoRoom {
        /// As configured.
        file_bytes: u64,
        /// As configured.
        record_bytes_max: usize,
        /// As configured.
        reserve_bytes: u64,
    },
}

impl JournalConfig {
    /// Checks the relations between the numbers.
    pub fn check(&self) -> Result<(), JournalConfigError> {
        let Self { file_bytes, files_max, reserve_bytes, record_bytes_max, .. } = *self;
        if file_bytes < FILE_BYTES_MIN || !file_bytes.is_multiple_of(PAGE_BYTES) {
            return Err(JournalConfigError::FileBytes { file_bytes });
        }
        if files_max < FILES_MIN {
            return Err(JournalConfigError::FilesMax { files_max });
        }
        if record_bytes_max == 0 || record_bytes_max > RECORD_BYTES_MAX {
            return Err(JournalConfigError::RecordBytesMax { record_bytes_max });
        }
        let largest = (record_bytes_max + FRAME_BYTES) as u64;
        if largest.saturating_add(reserve_bytes) > self.file_capacity() {
            return Err(JournalConfigError::NoRoom { file_bytes, record_bytes_max, reserve_bytes });
        }
        Ok(())
    }

    /// Bytes of framed records that one file holds.
    pub(crate) fn file_capacity(&self) -> u64 {
        self.file_bytes - HEADER_BYTES
    }
}
