//! Cells: what backends are asked, what they answer, what is read from their memory; memcached's protocol before them.

use bytes::{Bytes, BytesMut};
use prost::Message;
use tailwater_cache::layout::{
    BUCKET_BYTES, BucketView, HEADER_USED_BYTES, IndexHeader, Item, KeyHash, head_bytes, parse_apart,
    scan_bucket,
};
use tailwater_cache::protocol::{
    ConfigReply, ConfigRequest, ConfigureRequest, InfoReply, JoinReply, JoinRequest, LoadReply, LoadRequest,
    LookupReply, LookupRequest, MutateReply, MutateRequest, Outcome, PromiseReply, PromiseRequest, ScanReply,
    ScanRequest, encode_mutate,
};
use tailwater_cache::{Configuration, Mode, Version, layout::encode_item};
use tailwater_memcached::request::{Decoded, RequestDecoder};
use xxhash_rust::xxh3::xxh3_64;

/// The bytes of a client of memcached's protocol, in pieces of so many as the first one says: they are the same
/// requests as in one piece.
pub(super) fn memcached(data: &[u8]) {
    let Some((piece, data)) = data.split_first() else { return };
    let whole = decoded(data, usize::MAX);
    assert_eq!(decoded(data, usize::from(*piece) + 1), whole);
}

fn decoded(data: &[u8], piece: usize) -> Vec<Decoded> {
    let (mut decoder, mut buffer, mut all) = (RequestDecoder::default(), BytesMut::new(), Vec::new());
    for bytes in data.chunks(piece) {
        buffer.extend_from_slice(bytes);
        loop {
            match decoder.next(&mut buffer) {
                Decoded::More { .. } => break,
                Decoded::Closed(why) => {
                    assert!(!why.is_empty());
                    all.push(Decoded::Closed(why));
                    return all;
                }
                one => all.push(one),
            }
        }
    }
    all
}

pub(super) fn memcached_seeds() -> Vec<Vec<u8>> {
    let lines: [&[u8]; 6] = [
        b"get k a\r\ngats -1 k \nset k 4294967295 -5 4 noreply\r\na\r\nb\r\ncas k 0 0 1 7\r\nx\r\n",
        b"delete k 0 noreply\r\ndecr k 7\r\ntouch k 9\r\nflush_all 10\r\nstats settings\r\nmn\r\n",
        b"ms Zm9v 2 b T90 F7 c Oabc Lx\r\nhi\r\nmg k t f v s\r\nmd k q\r\nma k MI D2 J1\r\nme k\r\n",
        b"set k 0 0 1048577\r\nverbosity 1\r\nversion\r\nquit\r\n",
        b"append k 1 2 3\r\nabcd\r\nnothing\r\n\r\n",
        b"\x80\x00\x00\x00",
    ];
    lines.iter().map(|line| [&[3][..], line].concat()).collect()
}

/// The payload of a CALL to a backend, or of its answer.
pub(super) fn calls(data: &[u8]) {
    macro_rules! decode {
        ($message:ident) => {
            $message::decode(data).ok().inspect(|message| {
                let again = message.encode_to_vec();
                assert_eq!($message::decode(&again[..]).as_ref(), Ok(message));
            })
        };
    }
    let _ = (decode!(ConfigRequest), decode!(ConfigureRequest), decode!(ConfigReply), decode!(InfoReply));
    let _ = (decode!(LoadRequest), decode!(LoadReply), decode!(JoinRequest), decode!(ScanRequest));
    if let Some(floor) = decode!(JoinReply).and_then(|answer| answer.floor()) {
        assert_eq!(JoinReply::of(floor).floor(), Some(floor));
    }
    if let Some(answer) = decode!(ScanReply) {
        for pairs in [&answer.held, &answer.erased] {
            if let Some(read) = ScanReply::pairs_of(pairs) {
                assert_eq!(ScanReply::pairs(&read.collect::<Vec<_>>()), pairs);
            }
        }
    }
    if let Some(asked) = decode!(MutateRequest) {
        let mut items = &asked.items[..];
        while let Ok(item) = Item::parse(items) {
            items = &items[item.bytes.len()..];
        }
    }
    if let Some(answer) = decode!(MutateReply)
        && let Some(outcomes) = answer.outcomes(answer.codes.len())
    {
        assert_eq!(MutateReply::of(&outcomes).outcomes(outcomes.len()), Some(outcomes));
    }
    if let Some(asked) = decode!(PromiseRequest)
        && let Some((hash, version)) = asked.parts()
    {
        assert_eq!(PromiseRequest::of(asked.config_id, hash, version), asked);
    }
    if let Some(answer) = decode!(PromiseReply)
        && let Some(promised) = answer.promised()
    {
        assert_eq!(PromiseReply::of(promised.clone()).promised(), Some(promised));
    }
    if let Some(asked) = decode!(LookupRequest)
        && let Some(hashes) = asked.decode_hashes()
    {
        let LookupRequest { may_be_unknown, with_ages, .. } = asked;
        let of = LookupRequest::of(asked.config_id, hashes);
        assert_eq!(LookupRequest { may_be_unknown, with_ages, ..of }, asked);
    }
    if let Some(answer) = decode!(LookupReply)
        && let Some(parts) = answer.parts(answer.lengths.len())
    {
        assert_eq!(parts.len(), answer.lengths.len());
    }
}

pub(super) fn call_seeds() -> Vec<Vec<u8>> {
    let version = Version { timestamp_us: 1, client_id: 2, sequence: 3 };
    let items = [encode_item(b"a", version, Some(b"x")), encode_item(b"b", version, None)];
    let outcomes = [Outcome::Applied, Outcome::Superseded(version), Outcome::BelowSummary(version)];
    vec![
        encode_mutate(7, items.iter()).concat(),
        MutateReply::of(&outcomes).encode_to_vec(),
        PromiseRequest::of(7, KeyHash::of(b"a"), version).encode_to_vec(),
        PromiseReply::of(Err(version)).encode_to_vec(),
        LookupRequest::of(7, [KeyHash::of(b"a"), KeyHash::of(b"b")].into_iter()).encode_to_vec(),
        LookupReply {
            lengths: vec![0, 3, u32::MAX],
            ages_ms: vec![0, 5, 0],
            items: Bytes::from_static(b"abc"),
        }
        .encode_to_vec(),
        ConfigureRequest { configuration: configuration().encode(), number: 1 }.encode_to_vec(),
        InfoReply { config_id: 7, buckets: 8, ..Default::default() }.encode_to_vec(),
        LoadRequest { config_id: 7, generation: 5, is_complete: true }.encode_to_vec(),
        JoinRequest { config_id: 7, number: 1, instance: 9 }.encode_to_vec(),
        JoinReply::of(version).encode_to_vec(),
        ScanRequest { config_id: 7, number: 1, from: 9 }.encode_to_vec(),
        ScanReply {
            held: ScanReply::pairs(&[(KeyHash::of(b"a"), version)]),
            erased: ScanReply::pairs(&[(KeyHash::of(b"b"), version)]),
            forgotten: Bytes::copy_from_slice(&version.to_bytes()),
            next: 9,
            is_known: true,
        }
        .encode_to_vec(),
    ]
}

/// What was copied from a backend's memory, torn anywhere: an item, under a checksum that fits and as it is; a bucket;
/// a header.
pub(super) fn items(data: &[u8]) {
    let mut mended = data.to_vec();
    if let Some(length) = item_length(data).filter(|length| (8..=data.len()).contains(length)) {
        let checksum = xxh3_64(&mended[8..length]);
        mended[..8].copy_from_slice(&checksum.to_le_bytes());
    }
    for bytes in [data, &mended] {
        let Ok(item) = Item::parse(bytes) else { continue };
        assert!(item.bytes.len() <= bytes.len());
        let (head, rest) = item.bytes.split_at(head_bytes(item.key));
        let apart = parse_apart(item.key, head, rest, usize::MAX);
        assert_eq!(apart.is_none(), item.tombstone);
        if let Some(apart) = apart {
            assert_eq!((apart.version, apart.value_len), (item.version, item.value.len()));
            assert_eq!(apart.extras, item.extras);
        }
    }
    let _ = parse_apart(b"key", data, data, 0);
    if let Some((hash, bucket)) = data.split_first_chunk()
        && let BucketView::Found { pointer, .. } = scan_bucket(bucket, KeyHash(u128::from_le_bytes(*hash)), 7)
    {
        assert!(pointer.len > 0);
    }
    if let Some(header) = data.first_chunk::<HEADER_USED_BYTES>() {
        let mut header = *header;
        let checksum = xxh3_64(&header[..40]);
        header[40..].copy_from_slice(&checksum.to_le_bytes());
        if let Some(read) = IndexHeader::decode(&header, 1 << 20) {
            assert!(read.buckets * BUCKET_BYTES as u64 <= 1 << 20);
        }
    }
}

/// The length of an item, as its header has it.
pub(super) fn item_length(data: &[u8]) -> Option<usize> {
    let header = data.first_chunk::<16>()?;
    let value = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
    let key = usize::from(u16::from_le_bytes([header[12], header[13]]));
    let extras = match header[14] & 6 {
        2 => 16,
        // With a token, which there is with extras only.
        6 => 24,
        _ => 0,
    };
    Some(32 + key + value + extras)
}

pub(super) fn item_seeds() -> Vec<Vec<u8>> {
    let version = Version { timestamp_us: 1, client_id: 2, sequence: 3 };
    let mut with_extras = encode_item(b"key", version, Some(b"0123456789abcdefvalue")).to_vec();
    // Its value's last 16 bytes are extras then.
    (with_extras[8], with_extras[14]) = (5, 2);
    let mut bucket = vec![0; 16 + BUCKET_BYTES];
    bucket[16] = 7;
    bucket[..16].copy_from_slice(&9_u128.to_le_bytes());
    bucket[16 + 24..16 + 40].copy_from_slice(&9_u128.to_le_bytes());
    bucket[16 + 24 + 32] = 64;
    let header =
        IndexHeader { config_id: 7, buckets: 8, data_generation: 9, is_filled: false, has_moved: true };
    vec![
        encode_item(b"key", version, Some(b"value")).to_vec(),
        encode_item(b"key", version, None).to_vec(),
        with_extras,
        bucket,
        header.encode().to_vec(),
    ]
}

/// A cell's configuration, under a checksum that fits.
pub(super) fn configurations(data: &[u8]) {
    let bytes = [data, &xxh3_64(data).to_le_bytes()[..]].concat();
    match Configuration::decode(&bytes) {
        Ok(configuration) => {
            configuration.placement();
            assert_eq!(Configuration::decode(&configuration.encode()), Ok(configuration));
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

fn configuration() -> Configuration {
    let addresses = ["tcp:10.0.0.1:7430", "unix:/run/cell", "tls:[::1]:7430"];
    let addresses = addresses.map(|address| vec![address.to_owned(), "tcp:127.0.0.1:1".to_owned()]);
    Configuration::first(1 << 32 | 1, "data", Mode::R32, addresses.to_vec()).expect("a configuration")
}

pub(super) fn configuration_seeds() -> Vec<Vec<u8>> {
    let small = Configuration::first(9, "a", Mode::R1, vec![vec![]]).expect("a configuration");
    let said = |configuration: Configuration| {
        let bytes = configuration.encode();
        bytes[..bytes.len() - 8].to_vec()
    };
    vec![said(configuration()), said(small)]
}
