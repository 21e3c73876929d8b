//! What the codecs cost: `cargo bench -p tailwater-format`.
//!
//! Each line is the best of several rounds, so that what else the machine does shows as little as possible.
//! *hot* walks one batch of 64 KiB again and again; *cold* walks 256 MiB of them.

#![allow(clippy::disallowed_methods, reason = "a measurement reads the real clock")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tailwater_format::{
    Batch, BatchBuilder, Codec, Decompressor, EntryFields, EntryId, Offset, SegmentId, SegmentNumber,
    ShardId, ShardNumber, StreamId, Term, TransactionId, batches, encode_entry, parse_entry,
};

const ROUNDS: usize = 7;
const BATCH_BYTES: usize = 64 << 10;
const COLD_BYTES: usize = 256 << 20;

/// Best time of one call in ns, each round calling `repeats` times.
fn best_ns(repeats: usize, mut work: impl FnMut()) -> f64 {
    let round = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        for _ in 0..repeats {
            work();
        }
        start.elapsed()
    };
    let best = (0..ROUNDS).map(|_| round(&mut work)).min().unwrap_or(Duration::ZERO);
    best.as_nanos() as f64 / repeats as f64
}

fn filler(len: usize, mut seed: u64) -> Vec<u8> {
    // Compresses to about a half, as text does.
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        b'a' + ((seed >> 33) % 16) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn batch(record_bytes: usize, codec: Codec) -> Bytes {
    let mut builder = BatchBuilder::new();
    let mut number = 0;
    while builder.is_empty() || builder.len() + record_bytes <= BATCH_BYTES {
        let value = filler(record_bytes - 16, number);
        builder
            .append(Some(b"12345678"), Some(&value), &[], 1_700_000_000_000 + number as i64)
            .expect("short");
        number += 1;
    }
    builder.finish(codec)
}

/// Reads keys, values and times, so that nothing can be left out.
fn walk(bytes: &[u8], decompressor: &mut Decompressor) -> (u64, u64) {
    let (mut count, mut sum) = (0, 0);
    for batch in batches(bytes) {
        let records = batch.expect("whole").records(decompressor, 64 << 20).expect("whole");
        for record in records {
            let record = record.expect("whole");
            count += 1;
            sum += record.offset.0 ^ record.timestamp_ms as u64;
            sum += record.value.map_or(0, |value| value.len() as u64 + u64::from(value[0]));
            sum += record.key.map_or(0, |key| key.len() as u64);
        }
    }
    (count, sum)
}

fn iteration() {
    println!("iterate records, uncompressed            hot         cold");
    let mut decompressor = Decompressor::new();
    for record_bytes in [128, 1024, 16 << 10] {
        let one = batch(record_bytes, Codec::None);
        let (records, _) = walk(&one, &mut decompressor);
        let hot = best_ns(2000, || {
            black_box(walk(black_box(&one), &mut decompressor));
        });
        let many = one.repeat(COLD_BYTES / one.len());
        let (cold_records, _) = walk(&many, &mut decompressor);
        let cold = best_ns(1, || {
            black_box(walk(black_box(&many), &mut decompressor));
        });
        let (hot, cold) = (hot / records as f64, cold / cold_records as f64);
        println!("  {record_bytes:>6} B records              {hot:>6.1} ns    {cold:>6.1} ns per record");
    }
}

fn checksums() {
    println!(
        "checksums   XXH3-64 (xxhash-rust)  (twox-hash)            CRC32C (crc-fast)    CRC-64/NVME (crc-fast)"
    );
    for len in [80, 256, 1 << 10, 4 << 10, 64 << 10, 1 << 20] {
        let bytes = filler(len, 1);
        let repeats = (64 << 20) / (len + 1000);
        let xxh3 = best_ns(repeats, || {
            black_box(xxhash_rust::xxh3::xxh3_64(black_box(&bytes)));
        });
        let twox = best_ns(repeats, || {
            black_box(twox_hash::XxHash3_64::oneshot(black_box(&bytes)));
        });
        let crc32 = best_ns(repeats, || {
            black_box(crc_fast::crc32_iscsi(black_box(&bytes)));
        });
        let crc64 = best_ns(repeats, || {
            black_box(crc_fast::crc64_nvme(black_box(&bytes)));
        });
        print!("  {len:>8} B");
        for ns in [xxh3, twox, crc32, crc64] {
            print!("  {ns:>8.0} ns {:>5.1} GB/s", len as f64 / ns);
        }
        println!();
    }
}

fn batch_work() {
    let one = batch(1024, Codec::None);
    let ns = best_ns(2000, || {
        black_box(Batch::validate(black_box(&one), 1 << 20).is_ok());
    });
    println!("validate a 64 KiB batch            {ns:>8.0} ns  {:>5.1} GB/s", one.len() as f64 / ns);

    let value = filler(1008, 1);
    let mut builder = BatchBuilder::new();
    let ns = best_ns(500, || {
        for number in 0..63 {
            builder.append(Some(b"12345678"), Some(&value), &[], number).expect("short");
        }
        black_box(builder.finish(Codec::None));
    });
    println!("build a batch of 63 records of 1 KiB {ns:>6.0} ns  {:>5.1} ns per record", ns / 63.0);

    let segment = SegmentId {
        shard: ShardId { stream: StreamId(Default::default()), shard: ShardNumber(0) },
        number: SegmentNumber(0),
        term: Term(0),
    };
    let fields = EntryFields {
        segment,
        entry_id: EntryId(0),
        base_offset: Offset(0),
        record_count: 63,
        transaction_id: TransactionId(0),
    };
    let ns = best_ns(2000, || {
        black_box(encode_entry(&fields, std::slice::from_ref(&one)));
    });
    println!("encode an entry of 64 KiB          {ns:>8.0} ns");
    let entry = encode_entry(&fields, std::slice::from_ref(&one));
    let ns = best_ns(2000, || {
        black_box(parse_entry(black_box(&entry)).is_ok());
    });
    println!("parse an entry of 64 KiB           {ns:>8.0} ns  {:>5.1} GB/s", entry.len() as f64 / ns);
}

fn codecs() {
    println!("codecs, 64 KiB of 1 KiB records    ratio   compress    decompress and walk");
    let plain = batch(1024, Codec::None);
    let mut decompressor = Decompressor::new();
    for codec in Codec::ALL {
        let one = batch(1024, codec);
        let mut builder = BatchBuilder::new();
        let value = filler(1008, 3);
        let build = best_ns(20, || {
            for number in 0..63 {
                builder.append(Some(b"12345678"), Some(&value), &[], number).expect("short");
            }
            black_box(builder.finish(codec));
        });
        let read = best_ns(50, || {
            black_box(walk(black_box(&one), &mut decompressor));
        });
        let rate = |ns: f64| plain.len() as f64 / ns * 1000.0;
        println!(
            "  {:<8}                         {:>5.2}  {:>7.0} MB/s  {:>9.0} MB/s",
            codec.name(),
            one.len() as f64 / plain.len() as f64,
            rate(build),
            rate(read)
        );
    }
}

fn main() {
    iteration();
    checksums();
    batch_work();
    codecs();
}
