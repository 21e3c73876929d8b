//! Batches whose records are compressed anew, by another codec. Records are the same bytes in all of them, so nothing
//! of a record is looked at.

use super::compression::Compressor;
use super::{
    AT_ATTRIBUTES, AT_CRC, AT_LENGTH, BATCH_HEADER_BYTES, Batch, BatchError, CODEC_MASK, Codec, Decompressor,
    LENGTH_PREFIX_BYTES, crc_of,
};
use crate::bytes_at::{i16_be, put_i16_be, put_i32_be, put_u32_be};

/// What that needs again and again. Keep one for each thread; it holds on to as much memory as its largest batch took.
#[derive(Debug, Default)]
pub struct Recompressor {
    decompressor: Decompressor,
    compressor: Compressor,
}

impl Recompressor {
    /// Appends a batch to `out` with its records compressed by `codec`, and everything else as it was. At most
    /// `bytes_max` bytes are decompressed.
    ///
    /// # Errors
    /// What is wrong with the compressed bytes; nothing is appended then.
    pub fn recompress(
        &mut self,
        batch: &Batch<'_>,
        codec: Codec,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), BatchError> {
        if batch.header().codec == codec {
            out.extend_from_slice(batch.bytes());
            return Ok(());
        }
        let (header, stored) = batch.bytes().split_at(BATCH_HEADER_BYTES);
        let records = self.decompressor.decompress(batch.header().codec, stored, bytes_max)?;
        let start = out.len();
        out.extend_from_slice(header);
        self.compressor.compress(codec, records, out);
        let batch = &mut out[start..];
        let length = i32::try_from(batch.len() - LENGTH_PREFIX_BYTES);
        put_i32_be(batch, AT_LENGTH, length.expect("what is compressed is far shorter than 2 GiB"));
        let attributes = i16_be(batch, AT_ATTRIBUTES) & !CODEC_MASK;
        put_i16_be(batch, AT_ATTRIBUTES, attributes | codec as i16);
        let crc = crc_of(batch);
        put_u32_be(batch, AT_CRC, crc);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{BatchBuilder, Producer, set_append_time};
    use crate::limits::RECORDS_DECOMPRESSED_BYTES_MAX;

    #[test]
    fn a_batch_goes_from_each_codec_to_each_with_everything_else_as_it_was() {
        let mut recompressor = Recompressor::default();
        let batch = |codec| {
            let mut builder = BatchBuilder::new();
            for number in 0..200 {
                let value = format!("value {number}").repeat(5);
                builder.append(Some(b"key"), Some(value.as_bytes()), &[], 1_000 + number).expect("small");
            }
            builder.set_producer(Producer { id: 7, epoch: 2, base_sequence: 40 });
            let mut batch = builder.finish(codec).to_vec();
            set_append_time(&mut batch, 9_000);
            batch
        };
        for from in Codec::ALL {
            for to in Codec::ALL {
                let given = batch(from);
                let given = Batch::validate(&given, usize::MAX).expect("right");
                // Behind something else, which stays.
                let mut out = vec![1, 2, 3];
                let limit = RECORDS_DECOMPRESSED_BYTES_MAX;
                recompressor.recompress(&given, to, limit, &mut out).expect("compressed anew");
                assert_eq!(out[..3], [1, 2, 3]);
                assert_eq!(&out[3..], batch(to), "{from} to {to}: as its producer would have made it");
                let same = Batch::validate(&out[3..], usize::MAX).expect("right");
                same.check_records(&mut Decompressor::new(), limit).expect("all records");
            }
        }
    }

    #[test]
    fn what_is_larger_than_the_limit_or_corrupt_leaves_nothing_behind() {
        let mut builder = BatchBuilder::new();
        builder.append(None, Some(&[7; 10_000]), &[], 1).expect("small");
        let right = builder.finish(Codec::Zstd);
        let mut out = Vec::new();
        let mut recompressor = Recompressor::default();
        let batch = Batch::parse(&right).expect("a batch");
        assert!(recompressor.recompress(&batch, Codec::Gzip, 9_000, &mut out).is_err());
        let mut wrong = right.to_vec();
        wrong[BATCH_HEADER_BYTES] ^= 1;
        let batch = Batch::parse(&wrong).expect("a batch");
        assert!(recompressor.recompress(&batch, Codec::Gzip, 20_000, &mut out).is_err());
        assert_eq!(out, [0; 0]);
    }
}
