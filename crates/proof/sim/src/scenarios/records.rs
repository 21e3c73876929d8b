//! Records of scenarios of a log: what is in them, batches of them, and what a consumer makes of those that it fetched.

use tailwater_env::Env;
use tailwater_format::limits::RECORDS_DECOMPRESSED_BYTES_MAX;
use tailwater_format::{BatchBuilder, Decompressor, ShardId, ShardNumber, StreamId, batches};
use tailwater_log::Fetched;

use crate::checkers::{ShardChecker, Violation};

pub(super) fn shard_id(stream: StreamId, shard: u32) -> ShardId {
    ShardId { stream, shard: ShardNumber(shard) }
}

/// A record's value: its identity, then bytes that follow from it.
pub(super) fn encode(identity: u64, length: usize) -> Vec<u8> {
    let mut bytes = identity.to_le_bytes().to_vec();
    bytes.extend((0..length).map(|at| (identity as u8).wrapping_add(at as u8)));
    bytes
}

/// The identity of a value that is whole.
pub(super) fn decode(value: &[u8]) -> Option<u64> {
    let identity = u64::from_le_bytes(*value.first_chunk::<8>()?);
    (encode(identity, value.len() - 8) == value).then_some(identity)
}

/// A batch of records with these identities, each with as many bytes behind it as `length` says.
pub(super) fn batch_of(env: &Env, identities: &[u64], mut length: impl FnMut() -> u64) -> BatchBuilder {
    let mut builder = BatchBuilder::new();
    for &identity in identities {
        let value = encode(identity, length() as usize);
        builder.append(None, Some(&value), &[], env.wall_ms()).expect("a small record");
    }
    builder
}

/// Takes in what a reader fetched, from where that is; how many records it was. `also` checks the offset and the term
/// of each.
pub(super) fn take_in(
    checker: &mut ShardChecker,
    reader: u64,
    fetched: &Fetched,
    mut also: impl FnMut(u64, u32) -> Result<(), Violation>,
) -> Result<u64, Violation> {
    let damaged = |error: &dyn std::fmt::Display| Violation::new(error.to_string());
    let mut decompressor = Decompressor::new();
    let mut count = 0;
    for batch in fetched.pieces.iter().flat_map(|piece| batches(piece)) {
        let batch = batch.map_err(|error| damaged(&error))?;
        let term = batch.header().leader_epoch as u32;
        let records = batch.records(&mut decompressor, RECORDS_DECOMPRESSED_BYTES_MAX);
        for record in records.map_err(|error| damaged(&error))? {
            let record = record.map_err(|error| damaged(&error))?;
            let offset = record.offset.0;
            // The first batch may begin earlier.
            if offset < checker.reader_next(reader) {
                continue;
            }
            let identity = record.value.and_then(decode);
            let identity = identity.ok_or_else(|| damaged(&format!("a damaged record at {offset}")))?;
            checker.read(reader, offset, identity, term)?;
            also(offset, term)?;
            count += 1;
        }
    }
    Ok(count)
}
