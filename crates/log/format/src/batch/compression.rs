//! The five codecs of a record batch, with a hard limit on what decompression may produce.
//!
//! What holds for [`Decompressor::decompress`]: the output buffer never has more than the limit's bytes reserved.
//! Beside it a codec may take a fixed amount of memory of its own: gzip and zstd some 200 KiB, lz4 up to 16 MiB
//! if a frame asks for the largest blocks there are. No input makes it panic.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};
use zstd::zstd_safe;

/// How the records of a batch are compressed; the number is what the batch's attributes say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Codec {
    /// Not at all.
    #[default]
    None = 0,
    /// gzip (RFC 1952).
    Gzip = 1,
    /// Snappy, raw or framed as the Java library does.
    Snappy = 2,
    /// LZ4 frames.
    Lz4 = 3,
    /// Zstandard (RFC 8878).
    Zstd = 4,
}

impl Codec {
    /// All of them.
    pub const ALL: [Codec; 5] = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

    /// The codec with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|codec| *codec as u8 == number)
    }

    /// Its name in configurations, as Kafka has it.
    pub const fn name(self) -> &'static str {
        match self {
            Codec::None => "none",
            Codec::Gzip => "gzip",
            Codec::Snappy => "snappy",
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
        }
    }
}

impl std::fmt::Display for Codec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Codec {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<Self, UnknownCodec> {
        let known = Self::ALL.into_iter().find(|codec| codec.name() == name);
        known.ok_or_else(|| UnknownCodec { name: name.to_owned() })
    }
}

/// No codec has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no codec is called {name:?}: it is one of none, gzip, snappy, lz4, zstd")]
pub struct UnknownCodec {
    /// The name.
    pub name: String,
}

/// Why bytes were not decompressed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecompressError {
    /// There is more in them than allowed.
    #[error("{codec}: more than {bytes_max} bytes when decompressed")]
    TooLarge {
        /// The codec.
        codec: Codec,
        /// The limit.
        bytes_max: usize,
    },
    /// They are not what the codec produces.
    #[error("{codec}: {reason}")]
    Corrupt {
        /// The codec.
        codec: Codec,
        /// In the codec's words.
        reason: String,
    },
}

/// What decompression needs again and again: the buffer for its output, and zstd's tables. Keep one for each
/// thread that decodes; it holds on to as much memory as its largest output took.
#[derive(Default)]
pub struct Decompressor {
    out: Vec<u8>,
    zstd: Option<zstd_safe::DCtx<'static>>,
}

impl Decompressor {
    /// One without any buffers yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// What `input` holds, at most `bytes_max` bytes. With [`Codec::None`] that is `input` itself.
    pub fn decompress<'a>(
        &'a mut self,
        codec: Codec,
        input: &'a [u8],
        bytes_max: usize,
    ) -> Result<&'a [u8], DecompressError> {
        let mut output = CompressedOutput { bytes: &mut self.out, codec, bytes_max };
        output.bytes.clear();
        match codec {
            Codec::None => {
                return if input.len() <= bytes_max { Ok(input) } else { Err(output.too_large()) };
            }
            Codec::Gzip => output.read_all(MultiGzDecoder::new(input), input.len())?,
            Codec::Lz4 => output.read_all(FrameDecoder::new(input), input.len())?,
            Codec::Snappy => output.unsnap(input)?,
            Codec::Zstd => output.unzstd(self.zstd.get_or_insert_with(zstd_safe::DCtx::create), input)?,
        }
        Ok(&self.out)
    }

    /// The output of the last decompression, taken out of here.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }
}

impl std::fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decompressor").field("bytes_reserved", &self.out.capacity()).finish_non_exhaustive()
    }
}

/// Where decompressed bytes go, up to the limit.
struct CompressedOutput<'a> {
    bytes: &'a mut Vec<u8>,
    codec: Codec,
    bytes_max: usize,
}

impl CompressedOutput<'_> {
    fn too_large(&self) -> DecompressError {
        DecompressError::TooLarge { codec: self.codec, bytes_max: self.bytes_max }
    }

    fn corrupt(&self, reason: impl std::fmt::Display) -> DecompressError {
        DecompressError::Corrupt { codec: self.codec, reason: reason.to_string() }
    }

    /// Reads a stream to its end. The buffer grows in steps that double, never past the limit. It begins small even
    /// where a larger output left more: all of its room is written first, and small batches are to cost little.
    fn read_all(&mut self, mut stream: impl Read, input_len: usize) -> Result<(), DecompressError> {
        let mut room = input_len.saturating_mul(4).max(4096).min(self.bytes_max);
        let mut filled = 0;
        loop {
            self.bytes.reserve_exact(room - self.bytes.len());
            self.bytes.resize(room, 0);
            while filled < room {
                match stream.read(&mut self.bytes[filled..]) {
                    Ok(0) => {
                        self.bytes.truncate(filled);
                        return Ok(());
                    }
                    Ok(read) => filled += read,
                    Err(error) => return Err(self.corrupt(error)),
                }
            }
            if room == self.bytes_max {
                // Full to the limit: legal only if the stream ends here.
                return match stream.read(&mut [0]) {
                    Ok(0) => Ok(()),
                    Ok(_) => Err(self.too_large()),
                    Err(error) => Err(self.corrupt(error)),
                };
            }
            room = room.saturating_mul(2).min(self.bytes_max);
        }
    }

    /// Snappy, raw or in the Java library's framing.
    ///
    /// ```text
    /// offset size field            (big-endian)
    ///      0    8 magic            82 "SNAPPY" 00
    ///      8    4 version          1
    ///     12    4 compatible with  1
    ///     16      blocks, each: length (4 bytes), raw snappy
    /// ```
    fn unsnap(&mut self, input: &[u8]) -> Result<(), DecompressError> {
        let Some(mut rest) = input.strip_prefix(&XERIAL_MAGIC) else {
            return self.unsnap_block(input);
        };
        rest = rest.get(8..).ok_or_else(|| self.corrupt("the framing's header is cut"))?;
        while !rest.is_empty() {
            let (len, behind) =
                rest.split_first_chunk().ok_or_else(|| self.corrupt("a block's length is cut"))?;
            let len = u32::from_be_bytes(*len) as usize;
            let (block, behind) =
                behind.split_at_checked(len).ok_or_else(|| self.corrupt("a block is cut"))?;
            self.unsnap_block(block)?;
            rest = behind;
        }
        Ok(())
    }

    fn unsnap_block(&mut self, block: &[u8]) -> Result<(), DecompressError> {
        let block_len = snap::raw::decompress_len(block).map_err(|error| self.corrupt(error))?;
        let start = self.bytes.len();
        let len = start.checked_add(block_len).filter(|len| *len <= self.bytes_max);
        let len = len.ok_or_else(|| self.too_large())?;
        // An element of two bytes makes at most 64: a length that the block can't fill is a lie, and
        // reserving memory for it is what whoever made it is after.
        if block_len > block.len().saturating_mul(SNAPPY_EXPANSION_MAX) {
            return Err(self.corrupt("a block's length is more than it can hold"));
        }
        if len > self.bytes.capacity() {
            let room = self.bytes.capacity().saturating_mul(2).max(len).min(self.bytes_max);
            self.bytes.reserve_exact(room - start);
        }
        self.bytes.resize(len, 0);
        let written = snap::raw::Decoder::new().decompress(block, &mut self.bytes[start..]);
        let written = written.map_err(|error| self.corrupt(error))?;
        self.bytes.truncate(start + written);
        Ok(())
    }

    /// In one go into the output, so that no window has to be kept however large the frame says it is. A frame
    /// that does not say how much it holds, as those of streaming producers, is tried with more and more room.
    fn unzstd(&mut self, context: &mut zstd_safe::DCtx<'_>, input: &[u8]) -> Result<(), DecompressError> {
        let claimed = zstd_safe::get_frame_content_size(input).map_err(|_| self.corrupt("not a frame"))?;
        let mut room = match claimed {
            Some(claimed) if claimed > self.bytes_max as u64 => return Err(self.too_large()),
            // At most 128 KiB for each block, and a block takes at least three bytes.
            Some(claimed) => (claimed as usize).min(input.len().saturating_mul(ZSTD_BLOCK_BYTES_MAX)),
            None => input.len().saturating_mul(4).max(ZSTD_BLOCK_BYTES_MAX),
        };
        loop {
            room = room.max(self.bytes.capacity()).min(self.bytes_max);
            self.bytes.clear();
            self.bytes.reserve_exact(room);
            match context.decompress(self.bytes, input) {
                // The buffer may have been larger than the limit already.
                Ok(len) if len > self.bytes_max => return Err(self.too_large()),
                Ok(_) => return Ok(()),
                Err(ZSTD_TOO_SMALL) if room >= self.bytes_max => return Err(self.too_large()),
                Err(ZSTD_TOO_SMALL) => room = room.saturating_mul(4).max(ZSTD_BLOCK_BYTES_MAX),
                Err(code) => return Err(self.corrupt(zstd_safe::get_error_name(code))),
            }
        }
    }
}

const XERIAL_MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
/// Size of the blocks that the Java library cuts its input into, in bytes.
const XERIAL_BLOCK_BYTES: usize = 32 << 10;
/// A copy of three bytes makes 64; nothing in Snappy makes more of less.
const SNAPPY_EXPANSION_MAX: usize = 22;
/// A block of a zstd frame never holds more (RFC 8878, 3.1.1.2.4).
const ZSTD_BLOCK_BYTES_MAX: usize = 128 << 10;
const ZSTD_TOO_SMALL: usize =
    (zstd_safe::zstd_sys::ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall as usize).wrapping_neg();
/// zstd's own default, and Kafka's.
const ZSTD_LEVEL: i32 = 3;

/// What compression needs again and again.
#[derive(Default)]
pub(super) struct Compressor {
    zstd: Option<zstd_safe::CCtx<'static>>,
}

impl Compressor {
    /// Appends `input`, compressed, to `out`.
    pub(super) fn compress(&mut self, codec: Codec, input: &[u8], out: &mut Vec<u8>) {
        const NEVER: &str = "a vector takes whatever is written to it";
        match codec {
            Codec::None => out.extend_from_slice(input),
            Codec::Gzip => {
                let mut encoder = GzEncoder::new(out, Compression::default());
                encoder.write_all(input).expect(NEVER);
                encoder.finish().expect(NEVER);
            }
            Codec::Lz4 => {
                // As Kafka's own producer frames it.
                let frame =
                    FrameInfo::new().block_size(BlockSize::Max64KB).block_mode(BlockMode::Independent);
                let mut encoder = FrameEncoder::with_frame_info(frame, out);
                encoder.write_all(input).expect(NEVER);
                encoder.finish().expect(NEVER);
            }
            Codec::Snappy => {
                out.extend_from_slice(&XERIAL_MAGIC);
                out.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1]);
                let mut encoder = snap::raw::Encoder::new();
                for block in input.chunks(XERIAL_BLOCK_BYTES) {
                    let block = encoder.compress_vec(block).expect("a block is far shorter than 4 GiB");
                    out.extend_from_slice(&(block.len() as u32).to_be_bytes());
                    out.extend_from_slice(&block);
                }
            }
            Codec::Zstd => {
                let context = self.zstd.get_or_insert_with(zstd_safe::CCtx::create);
                let mut frame = Vec::with_capacity(zstd_safe::compress_bound(input.len()));
                context
                    .compress(&mut frame, input, ZSTD_LEVEL)
                    .unwrap_or_else(|code| panic!("zstd: {}", zstd_safe::get_error_name(code)));
                out.extend_from_slice(&frame);
            }
        }
    }
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Compressor")
    }
}

#[cfg(test)]
mod tests;
