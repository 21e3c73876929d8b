//! Lines of a file or of standard input, each of which becomes a record or an event. A line ends with LF or CR LF,
//! which do not belong to it, or with the input; its bytes are taken as they are, in whatever encoding.

use std::path::Path;

use anyhow::Context;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, BufReader};

/// An input, line by line.
pub struct Lines {
    input: Box<dyn AsyncBufRead + Unpin>,
    /// What errors call it.
    name: String,
    /// Longest line, in bytes, without its end.
    bytes_max: usize,
    /// The line that is being read, or was answered last.
    line: Vec<u8>,
    /// Whether `line` was answered.
    taken: bool,
    /// Lines that were answered.
    count: u64,
    /// Whether the line behind those is too long.
    is_refused: bool,
}

impl Lines {
    /// Those of `file`; of standard input if there is none, or it is called `-`. A line has `bytes_max` bytes at most,
    /// without its end.
    pub async fn open(file: Option<&Path>, bytes_max: usize) -> anyhow::Result<Self> {
        let file = file.filter(|path| path.as_os_str() != "-");
        let (input, name): (Box<dyn AsyncBufRead + Unpin>, String) = match file {
            Some(path) => {
                let name = path.display().to_string();
                let file = tokio::fs::File::open(path).await;
                (Box::new(BufReader::new(file.with_context(|| format!("can't read {name}"))?)), name)
            }
            None => (Box::new(BufReader::new(tokio::io::stdin())), "standard input".to_owned()),
        };
        Ok(Self { input, name, bytes_max, line: Vec::new(), taken: true, count: 0, is_refused: false })
    }

    /// The next line, without its end; `None` behind the last one, which needs no end.
    ///
    /// Cancel safe: what was read of a line before this was dropped is the beginning of the next answer.
    ///
    /// # Errors
    /// If the input can't be read, or a line is too long.
    pub async fn next(&mut self) -> anyhow::Result<Option<&[u8]>> {
        if std::mem::take(&mut self.taken) {
            self.line.clear();
        }
        let room = (self.bytes_max + 3).saturating_sub(self.line.len());
        let mut limited = (&mut self.input).take(room as u64);
        let read = limited.read_until(b'\n', &mut self.line).await;
        read.with_context(|| format!("can't read {}", self.name))?;
        // Nothing was read at the end of the input, but a line without an end may have been before.
        if self.line.is_empty() {
            return Ok(None);
        }
        let bytes = without_end(&self.line).len();
        self.is_refused = bytes > self.bytes_max;
        anyhow::ensure!(
            !self.is_refused,
            "line {} of {} is longer than {} bytes",
            self.count + 1,
            self.name,
            self.bytes_max
        );
        self.taken = true;
        self.count += 1;
        Ok(Some(&self.line[..bytes]))
    }

    /// The number of the line to go on with if of those that were answered the first `used` were of use, from 1. A line
    /// that is too long is left out: it would be refused again.
    pub fn next_behind(&self, used: u64) -> u64 {
        used + 1 + u64::from(self.is_refused && used == self.count)
    }
}

/// What a shell is told to go on with the line `next` of a file: by the command `words`, which are as they were given,
/// with the `options` that are not left out.
pub fn rest(next: u64, words: &[&str], options: &[(&str, Option<&str>)]) -> String {
    let words = words.iter().map(|word| format!(" {}", quoted(word)));
    let options = options.iter().filter_map(|(name, value)| Some(format!(" {name}={}", quoted((*value)?))));
    format!("the rest: tail -n +{next} FILE | tailwater{}", words.chain(options).collect::<String>())
}

/// A word as a shell takes it for one.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,@%+".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

fn without_end(line: &[u8]) -> &[u8] {
    match line.strip_suffix(b"\n") {
        Some(line) => line.strip_suffix(b"\r").unwrap_or(line),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::io::AsyncWriteExt;

    use super::*;

    const LINE_BYTES_MAX: usize = 1 << 20;

    fn lines(input: impl tokio::io::AsyncRead + Unpin + 'static) -> Lines {
        let input = Box::new(BufReader::new(input));
        Lines {
            input,
            name: "input".to_owned(),
            bytes_max: LINE_BYTES_MAX,
            line: Vec::new(),
            taken: true,
            count: 0,
            is_refused: false,
        }
    }

    #[tokio::test]
    async fn a_line_whose_reading_was_interrupted_is_answered_whole() {
        let (mut end, input) = tokio::io::duplex(64);
        let mut lines = lines(input);
        end.write_all(b"a\nbeg").await.expect("written");
        assert_eq!(lines.next().await.expect("read"), Some(&b"a"[..]));
        assert!(lines.next().now_or_never().is_none(), "there is no more yet");
        end.write_all(b"in\nlast").await.expect("written");
        assert_eq!(lines.next().await.expect("read"), Some(&b"begin"[..]));
        assert!(lines.next().now_or_never().is_none(), "it may go on");
        drop(end);
        assert_eq!(lines.next().await.expect("read"), Some(&b"last"[..]));
        assert_eq!(lines.next().await.expect("read"), None);
        assert_eq!(lines.next().await.expect("read"), None);
    }

    #[tokio::test]
    async fn a_line_is_too_long_with_its_first_byte_too_many_however_it_comes() {
        let longest = vec![b'x'; LINE_BYTES_MAX];
        let mut fits = lines(std::io::Cursor::new([&longest[..], b"\r\n", &longest[..]].concat()));
        assert_eq!(fits.next().await.expect("fits").map(<[u8]>::len), Some(LINE_BYTES_MAX));
        assert_eq!(fits.next().await.expect("fits").map(<[u8]>::len), Some(LINE_BYTES_MAX));
        let mut longer = lines(std::io::Cursor::new([b"one\n", &longest[..], b"x\n"].concat()));
        assert!(longer.next().await.expect("fits").is_some());
        let error = longer.next().await.expect_err("too long").to_string();
        assert!(error.starts_with("line 2 of input is longer"), "{error}");
        assert_eq!((longer.next_behind(1), longer.next_behind(0)), (3, 1));
    }

    #[test]
    fn what_goes_on_is_told_with_its_options_as_a_shell_takes_them() {
        let options = [("--key-delimiter", Some("it's\t")), ("--shard", None), ("--codec", Some("zstd"))];
        assert_eq!(
            rest(7, &["produce", "a b"], &options),
            "the rest: tail -n +7 FILE | tailwater produce 'a b' --key-delimiter='it'\\''s\t' --codec=zstd"
        );
    }

    #[tokio::test]
    async fn a_line_ends_with_lf_or_cr_lf_and_keeps_every_other_byte() {
        let mut lines = lines(std::io::Cursor::new(b"a\r\nb\rc\n\r\n\n\xff\r\r\nlast\r"));
        for expected in [&b"a"[..], b"b\rc", b"", b"", b"\xff\r", b"last\r"] {
            assert_eq!(lines.next().await.expect("read"), Some(expected));
        }
        assert_eq!(lines.next().await.expect("read"), None);
        assert_eq!(lines.count, 6);
    }
}
