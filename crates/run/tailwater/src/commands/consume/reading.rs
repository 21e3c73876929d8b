//! How `tailwater consume` reads: the client library's settings as flags.

use std::time::Duration;

use tailwater_client::ReaderConfig;

use crate::values;

const HOUR_MS: u64 = 3_600_000;

/// What is not given is as the client library has it.
#[derive(clap::Args)]
#[command(next_help_heading = "Reading")]
pub(super) struct Reading {
    /// How many milliseconds the cell may be behind the durable layer before the durable layer is read [default: 1000].
    #[arg(long, value_name = "MS", value_parser = values::number::<u64>(0..=HOUR_MS))]
    delay_max_ms: Option<u64>,
    /// How many milliseconds the metadata cell may be silent before the node is asked for the shards' lengths [default:
    /// 850].
    #[arg(long, value_name = "MS", value_parser = values::number::<u64>(8..=HOUR_MS))]
    silent_after_ms: Option<u64>,
    /// While the metadata cell is silent, ask the node again every MS milliseconds [default: 250].
    #[arg(long, value_name = "MS", value_parser = values::number::<u64>(1..=HOUR_MS))]
    silence_check_ms: Option<u64>,
    /// Read the shards' lengths after MS milliseconds even if the cell tells of no change. It has to be less than
    /// --silent-after-ms [default: 750, or seven eighths of --silent-after-ms if that is less].
    #[arg(long, value_name = "MS", value_parser = values::number::<u64>(1..=HOUR_MS))]
    watch_deadline_ms: Option<u64>,
    /// While the metadata cell answers, ask the node too every MS milliseconds, for the lengths of 64 shards of a
    /// stream each time [default: 2000].
    #[arg(long, value_name = "MS", value_parser = values::number::<u64>(1..=HOUR_MS))]
    durable_lengths_ms: Option<u64>,
    /// Most bytes a second of all shards together, from either layer [default: 536870912].
    #[arg(long, value_name = "BYTES", value_parser = values::number::<u64>(1..=u64::MAX))]
    bytes_per_s: Option<u64>,
    /// How fast backlogs shrink: most bytes a second of all shards together beyond those written meanwhile [default:
    /// 67108864].
    #[arg(long, value_name = "BYTES", value_parser = values::number::<u64>(1..=u64::MAX))]
    catch_up_bytes_per_s: Option<u64>,
    /// Bytes of each shard that are kept in memory near its end [default: 4194304].
    #[arg(long, value_name = "BYTES", value_parser = values::number::<u64>(4_096..=1 << 30))]
    window_bytes: Option<u64>,
    /// Bytes that are read ahead for a shard that is further behind [default: 1048576].
    #[arg(long, value_name = "BYTES", value_parser = values::number::<u64>(4_096..=1 << 30))]
    catch_up_window_bytes: Option<u64>,
}

impl Reading {
    /// How the process reads.
    pub(super) fn config(&self) -> ReaderConfig {
        let defaults = ReaderConfig::default();
        let ms = |given: Option<u64>, default| given.map_or(default, Duration::from_millis);
        let bytes = |given: Option<u64>, default| given.map_or(default, |bytes| bytes as usize);
        let silent_after = ms(self.silent_after_ms, defaults.silent_after);
        // Lengths are looked at before a cell that was not looked at counts as silent.
        let watch_deadline = defaults.watch_deadline.min(silent_after / 8 * 7);
        ReaderConfig {
            delay_max: ms(self.delay_max_ms, defaults.delay_max),
            silent_after,
            silence_check_every: ms(self.silence_check_ms, defaults.silence_check_every),
            watch_deadline: ms(self.watch_deadline_ms, watch_deadline),
            durable_lengths_every: ms(self.durable_lengths_ms, defaults.durable_lengths_every),
            bytes_per_s: self.bytes_per_s.unwrap_or(defaults.bytes_per_s),
            catch_up_bytes_per_s: self.catch_up_bytes_per_s.unwrap_or(defaults.catch_up_bytes_per_s),
            window_bytes: bytes(self.window_bytes, defaults.window_bytes),
            catch_up_window_bytes: bytes(self.catch_up_window_bytes, defaults.catch_up_window_bytes),
            ..defaults
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        reading: Reading,
    }

    #[test]
    fn the_defaults_that_the_help_names_are_the_library_s() {
        use clap::CommandFactory;
        let help = Line::command().render_long_help().to_string();
        let defaults = ReaderConfig::default();
        for named in [
            defaults.delay_max.as_millis() as u64,
            defaults.silent_after.as_millis() as u64,
            defaults.durable_lengths_every.as_millis() as u64,
            defaults.bytes_per_s,
            defaults.catch_up_bytes_per_s,
            defaults.window_bytes as u64,
            defaults.catch_up_window_bytes as u64,
            defaults.silence_check_every.as_millis() as u64,
        ] {
            assert!(help.contains(&format!("[default: {named}]")), "{named} in {help}");
        }
    }

    #[test]
    fn a_cell_is_looked_at_before_it_counts_as_silent_however_soon_that_is() {
        for silent_after in ["8", "100", "850", "60000"] {
            let line = Line::parse_from(["consume", "--silent-after-ms", silent_after]);
            assert_eq!(line.reading.config().check(), Ok(()), "{silent_after}");
        }
        let line = Line::parse_from(["consume", "--watch-deadline-ms", "850"]);
        assert!(line.reading.config().check().is_err(), "it is what was asked for, and can't work");
    }

    #[test]
    fn what_is_given_is_what_is_read_with() {
        let line = "consume --silence-check-ms 20 --watch-deadline-ms 30 --catch-up-window-bytes 8192";
        let config = Line::parse_from(line.split(' ')).reading.config();
        let given = (config.silence_check_every, config.watch_deadline, config.catch_up_window_bytes);
        assert_eq!(given, (Duration::from_millis(20), Duration::from_millis(30), 8_192));
    }
}
