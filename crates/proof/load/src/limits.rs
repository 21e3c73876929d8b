//! Every bound of this crate, with its unit and its reason.

use std::time::Duration;

/// Most consumers in one process: the benches' own rule, so that "many consumers" means many processes too.
pub const CONSUMERS_PER_PROCESS: usize = 500;

/// How long children may take until they are ready. Starting thousands of consumers asks the node where each of
/// them begins.
pub const READY_DEADLINE: Duration = Duration::from_secs(120);

/// How long consumers are waited for after the last append; who is not at the end by then has lost records.
pub const FINISH_DEADLINE: Duration = Duration::from_secs(20);

/// A consumer that ends so long after the last append has kept up.
pub const KEPT_UP_WITHIN: Duration = Duration::from_secs(1);

/// How far below the rate that was asked for a producer may stay and still hold it.
pub const RATE_TOLERANCE: f64 = 0.01;

/// Consumers of one process that are being started at the same time.
pub const STARTS_IN_FLIGHT: usize = 32;

/// Lines of a child's standard error that are shown when it fails.
pub const ERROR_LINES: usize = 20;

/// Longest line of text that is sent as one record, in bytes; a longer one is cut in two.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// Text that is kept in memory for the demo, in bytes.
pub const TEXT_BYTES_MAX: usize = 32 << 20;

/// Gaps in one consumer's sequence that are remembered in order to tell late records from repeated ones.
pub const GAPS_MAX: usize = 1_024;

const _: () = {
    assert!(
        KEPT_UP_WITHIN.as_nanos() < FINISH_DEADLINE.as_nanos(),
        "who does not keep up is told from who does not end"
    );
    assert!(LINE_BYTES_MAX < TEXT_BYTES_MAX, "an answer has lines");
};
