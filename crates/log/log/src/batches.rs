//! Record batches on their way into an entry, in stages that are types: [`Checked`] may be offered to a shard,
//! [`Accepted`] has its offsets. The batches themselves stay opaque bytes.
//!
//! Checking costs the caller's time (checksums over all bytes), so that the owner, who serves many, does none of it.

use std::cell::RefCell;

use bytes::{Bytes, BytesMut};
use tailwater_env::Instant;
use tailwater_format::batch::{DecompressError, Recompressor, assign, batches, set_append_time};
use tailwater_format::limits::{APPEND_BYTES_MAX, RECORDS_DECOMPRESSED_BYTES_MAX};
use tailwater_format::{
    Batch, BatchError, Codec, Decompressor, EntryFields, EntryHeader, Offset, Term, TransactionId,
    encode_entry_with,
};

use crate::error::AppendError;
use crate::limits::{APPEND_BATCHES_MAX, APPEND_RECORDS_MAX};
use crate::producer::Claim;
use crate::shard::Waiter;

/// Where the transaction ids of an append come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransactionIds {
    /// The running maximum of the shard's timestamps: any timestamps are taken.
    #[default]
    RunningMaximum,
    /// The records' timestamps are the transaction ids: an append in which one is smaller than the one before
    /// it, or than the shard's last, is refused.
    Explicit,
}

/// The batches of one append, whose headers, checksums and records are right.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The batches, one after the other.
    pub bytes: Bytes,
    /// Records in all of them.
    pub records: u32,
    /// Bytes of all records when decompressed.
    pub decompressed_bytes: usize,
    /// Timestamp of the first record.
    pub first_timestamp: TransactionId,
    /// Smallest timestamp of the records that have one.
    pub min_timestamp: TransactionId,
    /// Largest timestamp.
    pub max_timestamp: TransactionId,
    /// The time that the records were given, wall time in ms, if they have that of their append.
    pub append_time_ms: Option<i64>,
    /// The first record's transaction id, if they are explicit.
    pub explicit: Option<TransactionId>,
    /// The producer, if it is idempotent.
    pub claim: Option<Claim>,
    /// Record counts of the batches, in order.
    counts: BatchCounts,
}

/// Nearly every append is one batch; it needs no allocation.
#[derive(Clone, Debug)]
enum BatchCounts {
    One,
    Many(Vec<(u32, u32)>),
}

thread_local! {
    /// The same for what is compressed anew.
    static RECOMPRESSOR: RefCell<Recompressor> = RefCell::default();
    /// Its buffers are used again by every check of a thread.
    static DECOMPRESSOR: RefCell<Decompressor> = RefCell::new(Decompressor::new());
}

impl Checked {
    /// Checks the batches of one append, down to their records, which may have `decompressed_bytes_max` bytes together
    /// when decompressed. An idempotent one has to be one batch, as in Kafka.
    pub fn check(
        bytes: Bytes,
        transaction_ids: TransactionIds,
        decompressed_bytes_max: usize,
    ) -> Result<Self, AppendError> {
        debug_assert!(decompressed_bytes_max <= RECORDS_DECOMPRESSED_BYTES_MAX, "readers take no more");
        if bytes.len() > APPEND_BYTES_MAX {
            return Err(AppendError::TooLarge { given: bytes.len(), max: APPEND_BYTES_MAX });
        }
        let invalid = |why: String| AppendError::Invalid(why.into());
        let mut checked = Self {
            bytes: Bytes::new(),
            records: 0,
            decompressed_bytes: 0,
            first_timestamp: TransactionId(0),
            min_timestamp: TransactionId(i64::MAX),
            max_timestamp: TransactionId(i64::MIN),
            append_time_ms: None,
            explicit: None,
            claim: None,
            counts: BatchCounts::One,
        };
        let mut counts = Vec::new();
        let mut rest: &[u8] = &bytes;
        let mut count = 0;
        while !rest.is_empty() {
            let batch = Batch::validate(rest, APPEND_BYTES_MAX).map_err(|error| match error {
                BatchError::Crc { .. } => AppendError::Corrupt(error.to_string().into()),
                error => invalid(error.to_string()),
            })?;
            let header = batch.header();
            count += 1;
            if count > APPEND_BATCHES_MAX {
                return Err(invalid(format!("more than {APPEND_BATCHES_MAX} batches in one append")));
            }
            if count == 1 {
                checked.first_timestamp = TransactionId(if header.is_append_time() {
                    header.max_timestamp_ms
                } else {
                    header.base_timestamp_ms
                });
            }
            checked.records = checked.records.saturating_add(header.record_count);
            if checked.records > APPEND_RECORDS_MAX {
                return Err(invalid(format!("more than {APPEND_RECORDS_MAX} records in one append")));
            }
            // A batch whose records nobody can read would stop every reader of the shard. Their largest timestamp
            // is what positioning goes by, whatever the header says it is.
            // Readers keep an entry decompressed, and an entry holds the whole append.
            let left = decompressed_bytes_max - checked.decompressed_bytes;
            let found = DECOMPRESSOR.with_borrow_mut(|codecs| batch.check_records(codecs, left)).map_err(
                |error| match error {
                    BatchError::Decompress(DecompressError::TooLarge { .. }) => {
                        AppendError::TooLargeDecompressed { max: decompressed_bytes_max }
                    }
                    error => invalid(error.to_string()),
                },
            )?;
            checked.decompressed_bytes += found.bytes;
            checked.min_timestamp = checked.min_timestamp.min(TransactionId(found.min_timestamp_ms));
            checked.max_timestamp = checked.max_timestamp.max(TransactionId(found.max_timestamp_ms));
            checked.claim = Claim::of(header);
            if checked.claim.is_some() && count + usize::from(header.len < rest.len()) > 1 {
                return Err(invalid("an idempotent append has to be a single batch".to_owned()));
            }
            if header.len < bytes.len() {
                let len = u32::try_from(header.len).expect("at most APPEND_BYTES_MAX");
                counts.push((len, header.record_count));
            }
            rest = &rest[header.len..];
        }
        if count == 0 {
            return Err(invalid("no record batch".to_owned()));
        }
        if count > 1 {
            checked.counts = BatchCounts::Many(counts);
        }
        if transaction_ids == TransactionIds::Explicit {
            checked.explicit = Some(check_explicit(&bytes)?);
        }
        checked.bytes = bytes;
        Ok(checked)
    }

    /// The batches of an entry of the source, `header`, which stay as they are: checksums, offsets and terms have to be
    /// right. What the records are, the source has checked.
    pub fn copied(body: Bytes, header: &EntryHeader) -> Result<Self, AppendError> {
        let invalid = |why: String| AppendError::Invalid(why.into());
        let (mut next, mut counts, mut first_timestamp) = (header.base_offset, Vec::new(), None);
        for batch in batches(&body) {
            let batch = batch.map_err(|error| invalid(error.to_string()))?;
            batch.check_crc().map_err(|error| AppendError::Corrupt(error.to_string().into()))?;
            let of = batch.header();
            if of.base_offset != next || of.leader_epoch != i64::from(header.term.0) as i32 {
                let (offset, epoch, term) = (of.base_offset, of.leader_epoch, header.term);
                return Err(invalid(format!(
                    "a batch at offset {offset} of term {epoch}, where one at {next} of {term} has to be"
                )));
            }
            next = of.next_offset();
            first_timestamp.get_or_insert(if of.is_append_time() {
                of.max_timestamp_ms
            } else {
                of.base_timestamp_ms
            });
            let len = u32::try_from(of.len).map_err(|error| invalid(error.to_string()))?;
            counts.push((len, of.record_count));
        }
        if next != header.next_offset() || header.is_control() {
            return Err(invalid(format!("an entry up to {} has batches up to {next}", header.next_offset())));
        }
        let last = header.transaction_id;
        Ok(Self {
            bytes: body,
            records: header.record_count,
            decompressed_bytes: 0,
            first_timestamp: TransactionId(first_timestamp.unwrap_or(last.0)).min(last),
            min_timestamp: last,
            max_timestamp: last,
            append_time_ms: None,
            explicit: None,
            claim: None,
            counts: if counts.len() > 1 { BatchCounts::Many(counts) } else { BatchCounts::One },
        })
    }

    /// Compresses the records of all batches by `codec`, where they are not already. An append that has more than
    /// `bytes_max` bytes then is `TooLarge`.
    pub fn recompress(&mut self, codec: Codec, bytes_max: usize) -> Result<(), AppendError> {
        let invalid = |error: BatchError| AppendError::Invalid(error.to_string().into());
        let (mut out, mut counts, mut is_as_it_was) = (Vec::new(), Vec::new(), true);
        for batch in batches(&self.bytes) {
            let batch = batch.map_err(invalid)?;
            is_as_it_was &= batch.header().codec == codec;
        }
        if is_as_it_was {
            return Ok(());
        }
        if codec == Codec::None && self.decompressed_bytes > bytes_max {
            return Err(AppendError::TooLarge { given: self.decompressed_bytes, max: bytes_max });
        }
        for batch in batches(&self.bytes) {
            let (batch, start) = (batch.map_err(invalid)?, out.len());
            RECOMPRESSOR
                .with_borrow_mut(|codecs| {
                    codecs.recompress(&batch, codec, RECORDS_DECOMPRESSED_BYTES_MAX, &mut out)
                })
                .map_err(invalid)?;
            let len = u32::try_from(out.len() - start).expect("records are bounded");
            counts.push((len, batch.header().record_count));
        }
        if out.len() > bytes_max {
            return Err(AppendError::TooLarge { given: out.len(), max: bytes_max });
        }
        if counts.len() > 1 {
            self.counts = BatchCounts::Many(counts);
        }
        self.bytes = out.into();
        Ok(())
    }

    /// Whether no timestamp is further ahead of the wall's clock, or behind it, than allowed. Explicit ids need not be
    /// times.
    pub fn check_time(
        &self,
        now: i64,
        before_max_ms: Option<u64>,
        after_max_ms: u64,
    ) -> Result<(), AppendError> {
        if self.explicit.is_some() {
            return Ok(());
        }
        let (TransactionId(oldest), TransactionId(newest)) = (self.min_timestamp, self.max_timestamp);
        if newest > now.saturating_add_unsigned(after_max_ms) {
            return Err(AppendError::Timestamp { given: newest, now, max_ms: after_max_ms });
        }
        match before_max_ms {
            Some(max_ms) if oldest < now.saturating_sub_unsigned(max_ms) => {
                Err(AppendError::TimestampOld { given: oldest, now, max_ms })
            }
            _ => Ok(()),
        }
    }

    /// Gives all records the time `now_ms`, and the batches checksums that fit.
    pub fn set_append_time(&mut self, now_ms: i64) -> Result<(), AppendError> {
        if self.explicit.is_some() {
            let why = "the stream's records have the time of their append: they can't have explicit transaction ids";
            return Err(AppendError::Invalid(why.into()));
        }
        self.write_append_time(now_ms);
        Ok(())
    }

    /// Gives records that have the time of their append a later one, if that is before `time_ms`: time does not go back
    /// from one offset to the next. Of two appends that were given theirs at about the same moment the earlier one may
    /// come second; few do, so this costs their shard's owner little.
    pub fn raise_append_time(&mut self, time_ms: i64) {
        if self.append_time_ms.is_some_and(|given| given < time_ms) {
            self.write_append_time(time_ms);
        }
    }

    fn write_append_time(&mut self, now_ms: i64) {
        let mut bytes =
            std::mem::take(&mut self.bytes).try_into_mut().unwrap_or_else(|bytes| BytesMut::from(&bytes[..]));
        match &self.counts {
            BatchCounts::One => set_append_time(&mut bytes, now_ms),
            BatchCounts::Many(counts) => {
                let mut at = 0;
                for &(len, _) in counts {
                    set_append_time(&mut bytes[at..at + len as usize], now_ms);
                    at += len as usize;
                }
            }
        }
        self.bytes = bytes.freeze();
        self.append_time_ms = Some(now_ms);
        let now = TransactionId(now_ms);
        (self.first_timestamp, self.min_timestamp, self.max_timestamp) = (now, now, now);
    }

    /// Gives the batches in `body`, a copy of [`Checked::bytes`], their offsets and term.
    fn assign(&self, body: &mut [u8], base_offset: Offset, term: Term) {
        match &self.counts {
            BatchCounts::One => assign(body, base_offset, term),
            BatchCounts::Many(counts) => {
                let (mut at, mut offset) = (0, base_offset);
                for &(len, records) in counts {
                    assign(&mut body[at..at + len as usize], offset, term);
                    at += len as usize;
                    offset = Offset(offset.0 + u64::from(records));
                }
            }
        }
    }
}

/// The first timestamp, if no later one is smaller than one before it.
fn check_explicit(bytes: &[u8]) -> Result<TransactionId, AppendError> {
    let invalid = |error: &dyn std::fmt::Display| AppendError::Invalid(error.to_string().into());
    let mut decompressor = Decompressor::new();
    let (mut first, mut last) = (None, TransactionId(i64::MIN));
    for batch in tailwater_format::batches(bytes) {
        let batch = batch.map_err(|error| invalid(&error))?;
        let mut max = TransactionId(i64::MIN);
        let records = batch.records(&mut decompressor, RECORDS_DECOMPRESSED_BYTES_MAX);
        for record in records.map_err(|error| invalid(&error))? {
            let given = TransactionId(record.map_err(|error| invalid(&error))?.timestamp_ms);
            if given < last {
                return Err(AppendError::TransactionId { given, last });
            }
            first = first.or(Some(given));
            (last, max) = (given, given);
        }
        // The running maximum is made from the header, so it has to say the same.
        if max.0 != batch.header().max_timestamp_ms {
            return Err(invalid(&"a batch's max timestamp is not that of its last record"));
        }
    }
    first.ok_or_else(|| invalid(&"no record"))
}

/// An append that has its place.
#[derive(Debug)]
pub struct Accepted {
    /// The batches.
    pub batches: Checked,
    /// Offset of the first record.
    pub base_offset: Offset,
    /// Transaction id of the first record.
    pub first_transaction_id: TransactionId,
    /// Transaction id of the last record.
    pub transaction_id: TransactionId,
    /// When it was accepted, wall time in ms.
    pub append_time_ms: i64,
    /// When that was on the clock that never goes back.
    pub accepted_at: Instant,
    /// The term that it has at its source, if it is copied.
    pub copied: Option<Term>,
    /// Who waits for it.
    pub waiter: Waiter,
}

impl Accepted {
    /// Offset after the last record.
    pub fn next_offset(&self) -> Offset {
        Offset(self.base_offset.0 + u64::from(self.batches.records))
    }
}

/// The entry with these appends, their batches in their places.
pub fn encode(fields: &EntryFields, appends: &[Accepted]) -> Bytes {
    encode_entry_with(fields, appends.iter().map(|accepted| &accepted.batches.bytes), |body| {
        let mut rest = body;
        for accepted in appends {
            let (own, after) = rest.split_at_mut(accepted.batches.bytes.len());
            accepted.batches.assign(own, accepted.base_offset, fields.segment.term);
            rest = after;
        }
    })
}

#[cfg(test)]
mod tests {
    use tailwater_format::batch::BATCH_HEADER_BYTES;
    use tailwater_format::{
        BatchBuilder, Codec, EntryId, Producer, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId,
        batches, parse_entry,
    };

    use super::*;

    fn batch(timestamps: &[i64], codec: Codec, producer: Option<Producer>) -> Bytes {
        let mut builder = BatchBuilder::new();
        for &timestamp in timestamps {
            builder.append(None, Some(b"value"), &[], timestamp).expect("small");
        }
        if let Some(producer) = producer {
            builder.set_producer(producer);
        }
        builder.finish(codec)
    }

    fn check(bytes: impl Into<Bytes>) -> Result<Checked, AppendError> {
        Checked::check(bytes.into(), TransactionIds::RunningMaximum, RECORDS_DECOMPRESSED_BYTES_MAX)
    }

    #[test]
    fn what_the_batches_say_is_summed_up() {
        let one = batch(&[30, 10], Codec::None, None);
        let two = batch(&[20, 50, 40], Codec::Lz4, None);
        let checked = check([&one[..], &two[..]].concat()).expect("good");
        assert_eq!((checked.records, checked.first_timestamp.0, checked.max_timestamp.0), (5, 30, 50));
        assert_eq!(checked.claim, None);
    }

    #[test]
    fn an_append_that_is_compressed_anew_says_the_same_of_itself_and_is_bounded_afterwards() {
        let producer = Producer { id: 5, epoch: 0, base_sequence: 3 };
        let one = batch(&[30, 10], Codec::Gzip, Some(producer));
        let mut checked = check(one.clone()).expect("good");
        let before = checked.clone();
        checked.recompress(Codec::Gzip, 1_000).expect("nothing to do");
        assert_eq!(checked.bytes, one);
        checked.recompress(Codec::Zstd, 1_000).expect("small");
        assert_eq!(checked.bytes, batch(&[30, 10], Codec::Zstd, Some(producer)));
        assert_eq!((checked.claim, checked.records), (before.claim, before.records));

        let two = [one_of(Codec::None), one_of(Codec::Lz4), one_of(Codec::Snappy)].concat();
        let mut checked = check(two).expect("good");
        checked.recompress(Codec::Snappy, 10_000).expect("small");
        let codecs: Vec<Codec> =
            batches(&checked.bytes).map(|batch| batch.expect("whole").header().codec).collect();
        assert_eq!(codecs, [Codec::Snappy; 3]);
        let mut accepted = checked.clone();
        accepted.set_append_time(77).expect("times are not explicit");
        for batch in batches(&accepted.bytes) {
            let batch = batch.expect("the lengths of the batches are the new ones");
            batch.check_crc().expect("right");
            assert_eq!(batch.header().max_timestamp_ms, 77);
        }

        let mut long = BatchBuilder::new();
        long.append(None, Some(&[b'x'; 50_000]), &[], 1).expect("small");
        let mut checked = check(long.finish(Codec::Zstd)).expect("good");
        for codec in [Codec::None, Codec::Gzip] {
            let refused = checked.recompress(codec, 30).expect_err("too long");
            assert!(matches!(refused, AppendError::TooLarge { max: 30, .. }), "{refused:?}");
        }
    }

    fn one_of(codec: Codec) -> Bytes {
        batch(&[1, 2, 3], codec, None)
    }

    #[test]
    fn what_an_append_comes_to_when_decompressed_is_bounded_over_all_its_batches() {
        let mut builder = BatchBuilder::new();
        let value = vec![b'x'; 2 << 20];
        for timestamp in 0..3 {
            builder.append(None, Some(&value), &[], timestamp).expect("small enough");
        }
        let small_until_decompressed = builder.finish(Codec::Zstd);
        assert!(small_until_decompressed.len() < 100_000);
        let one = check(small_until_decompressed.clone()).expect("6 MiB");
        assert!((6 << 20..7 << 20).contains(&one.decompressed_bytes));
        let ten = check(small_until_decompressed.repeat(10)).expect("60 MiB");
        assert_eq!(ten.decompressed_bytes, 10 * one.decompressed_bytes);
        let refused = check(small_until_decompressed.repeat(11));
        assert_eq!(refused.unwrap_err(), AppendError::TooLargeDecompressed { max: 64 << 20 });
        let less = Checked::check(small_until_decompressed, TransactionIds::default(), 5 << 20);
        assert_eq!(less.unwrap_err(), AppendError::TooLargeDecompressed { max: 5 << 20 });
    }

    #[test]
    fn garbage_damage_and_nothing_are_refused() {
        let good = batch(&[1], Codec::None, None);
        assert!(matches!(check(Bytes::new()), Err(AppendError::Invalid(_))));
        assert!(matches!(check(vec![0; 100]), Err(AppendError::Invalid(_))));
        assert!(matches!(check(good.slice(..good.len() - 1)), Err(AppendError::Invalid(_))));
        let mut damaged = good.to_vec();
        *damaged.last_mut().expect("not empty") ^= 1;
        assert!(matches!(check(damaged), Err(AppendError::Corrupt(_))));
        assert!(matches!(check(vec![0; APPEND_BYTES_MAX + 1]), Err(AppendError::TooLarge { .. })));
    }

    #[test]
    fn a_batch_that_claims_too_many_records_is_refused() {
        let good = batch(&[1, 2], Codec::Gzip, None);
        let mut claims = good.to_vec();
        claims[23..27].copy_from_slice(&(5_000_000_i32 - 1).to_be_bytes());
        claims[57..61].copy_from_slice(&5_000_000_i32.to_be_bytes());
        let claims = with_right_checksum(claims);
        let refused = check(claims).unwrap_err().to_string();
        assert!(refused.contains("more than 1048576 records"), "{refused}");
    }

    fn with_right_checksum(mut batch: Vec<u8>) -> Vec<u8> {
        let Err(error) = tailwater_format::Batch::validate(&batch, usize::MAX) else { return batch };
        let tailwater_format::BatchError::Crc { computed, .. } = error else { panic!("{error}") };
        batch[17..21].copy_from_slice(&computed.to_be_bytes());
        batch
    }

    #[test]
    fn an_idempotent_append_is_a_single_batch() {
        let producer = Producer { id: 5, epoch: 1, base_sequence: 10 };
        let numbered = batch(&[1, 2], Codec::None, Some(producer));
        let plain = batch(&[1], Codec::None, None);
        let checked = check(numbered.clone()).expect("good");
        assert_eq!(checked.claim, Some(Claim { producer: 5, epoch: 1, first: 10, count: 2 }));
        for both in [[&numbered[..], &plain[..]], [&plain[..], &numbered[..]]] {
            assert!(matches!(check(both.concat()), Err(AppendError::Invalid(_))));
        }
    }

    #[test]
    fn explicit_transaction_ids_must_not_decrease_within_an_append() {
        let explicit =
            |bytes: Bytes| Checked::check(bytes, TransactionIds::Explicit, RECORDS_DECOMPRESSED_BYTES_MAX);
        let rising = batch(&[3, 3, 9], Codec::Zstd, None);
        assert_eq!(explicit(rising.clone()).expect("good").explicit, Some(TransactionId(3)));
        let refused = AppendError::TransactionId { given: TransactionId(8), last: TransactionId(9) };
        assert_eq!(explicit(batch(&[9, 8], Codec::None, None)).unwrap_err(), refused);
        let two = [&rising[..], &batch(&[8], Codec::None, None)[..]].concat();
        assert_eq!(explicit(two.into()).unwrap_err(), refused);
    }

    #[test]
    fn a_timestamp_is_at_most_so_far_ahead_of_the_clock_unless_it_is_an_explicit_id() {
        let hour = 3_600_000;
        let given = |timestamp| check(batch(&[5, timestamp, 7], Codec::None, None)).expect("good");
        assert_eq!(given(3_601_000).check_time(1_000, None, hour), Ok(()));
        let refused = AppendError::Timestamp { given: 3_601_001, now: 1_000, max_ms: 3_600_000 };
        assert_eq!(given(3_601_001).check_time(1_000, None, hour), Err(refused));
        assert_eq!(given(i64::MAX).check_time(1_000, None, u64::MAX), Ok(()));
        let explicit = Checked::check(
            batch(&[i64::MAX], Codec::None, None),
            TransactionIds::Explicit,
            RECORDS_DECOMPRESSED_BYTES_MAX,
        );
        assert_eq!(explicit.expect("good").check_time(1_000, None, hour), Ok(()));
        assert_eq!(given(1_000).check_time(1_000, Some(995), hour), Ok(()));
        let old = AppendError::TimestampOld { given: 5, now: 1_000, max_ms: 994 };
        assert_eq!(given(1_000).check_time(1_000, Some(994), hour), Err(old));
        // A record without a time is never too old.
        assert_eq!(given(-1).check_time(1_000, Some(995), hour), Ok(()));
        let old = AppendError::TimestampOld { given: -2, now: 1_000, max_ms: 995 };
        assert_eq!(given(-2).check_time(1_000, Some(995), hour), Err(old));
    }

    #[test]
    fn records_that_get_the_time_of_their_append_are_whole_afterwards() {
        let batches_of =
            |count| (0..count).map(|_| batch(&[30, 10], Codec::Lz4, None)).collect::<Vec<_>>().concat();
        for count in [1, 3] {
            let mut checked = check(batches_of(count)).expect("good");
            checked.set_append_time(777).expect("no explicit ids");
            let again = check(checked.bytes.clone()).expect("checksums fit");
            assert_eq!(
                (again.first_timestamp.0, again.min_timestamp.0, again.max_timestamp.0),
                (777, 777, 777)
            );
            assert_eq!((checked.first_timestamp.0, checked.max_timestamp.0), (777, 777));
        }
        let mut explicit = check(batches_of(1)).expect("good");
        explicit.explicit = Some(TransactionId(30));
        assert!(matches!(explicit.set_append_time(777), Err(AppendError::Invalid(_))));
    }

    #[test]
    fn an_entry_holds_the_batches_with_offsets_and_term_and_their_checksums_stay_right() {
        let shard = ShardId { stream: StreamId(uuid::Uuid::from_u128(1)), shard: ShardNumber(0) };
        let segment = SegmentId { shard, number: SegmentNumber(1), term: Term(7) };
        let accepted = |bytes: Vec<u8>, base: u64| Accepted {
            batches: check(bytes).expect("good"),
            base_offset: Offset(base),
            first_transaction_id: TransactionId(0),
            transaction_id: TransactionId(0),
            append_time_ms: 0,
            accepted_at: Instant::default(),
            copied: None,
            waiter: Waiter::new(None, |_| {}),
        };
        let two = [&batch(&[1, 2], Codec::None, None)[..], &batch(&[3], Codec::None, None)[..]].concat();
        let appends = [accepted(two, 100), accepted(batch(&[4], Codec::None, None).to_vec(), 103)];
        let fields = EntryFields {
            segment,
            entry_id: EntryId(0),
            base_offset: Offset(100),
            record_count: 4,
            transaction_id: TransactionId(4),
        };
        let bytes = encode(&fields, &appends);
        let entry = parse_entry(&bytes).expect("an entry");
        let mut bases = Vec::new();
        for batch in batches(entry.batches) {
            let batch = batch.expect("a batch");
            batch.check_crc().expect("right");
            assert_eq!(batch.header().leader_epoch, 7);
            bases.push(batch.header().base_offset.0);
        }
        assert_eq!(bases, [100, 102, 103]);
    }

    #[test]
    fn a_batch_with_a_right_checksum_over_unreadable_records_is_refused() {
        let mut builder = BatchBuilder::new();
        builder.append(None, Some(b"value"), &[], 5).expect("short");
        let sound = builder.finish(Codec::None);
        assert!(check(sound.clone()).is_ok());

        let mut poisoned = sound.to_vec();
        poisoned[BATCH_HEADER_BYTES] = 0x7e;
        // It leaves a right checksum behind.
        set_append_time(&mut poisoned, 5);
        let refused = check(poisoned);
        assert!(matches!(refused, Err(AppendError::Invalid(_))), "{refused:?}");
    }
}
