//! What a fuzzer runs: what bookies send, and what ZooKeeper keeps of ledgers.

use bytes::{Bytes, BytesMut};
use prost::Message;

use crate::batches::take_batch_response;
use crate::digest::{DigestKind, EntryCodec};
use crate::ids::{BookieId, EntryId, LedgerId, Quorums};
use crate::metadata::LedgerMetadata;
use crate::wire::messages::{
    AddResponse, HeaderPacket, OPERATION_ADD, OPERATION_READ, OPERATION_READ_LAC, ReadLacResponse,
    ReadResponse, ResponsePacket, VERSION,
};
use crate::wire::take_response;
use crate::zookeeper::{LedgersUri, leads_to_ledgers, ledger_at, path_below, registered_address};

const KINDS: [DigestKind; 4] =
    [DigestKind::Crc32, DigestKind::Crc32c, DigestKind::Hmac, DigestKind::Unchecked];

/// The bytes of a bookie: frames, until one is none.
pub fn answers(data: &[u8]) {
    let mut buffer = BytesMut::from(data);
    let mut batches = buffer.clone();
    while let Ok(Some(_)) = take_batch_response(&mut batches) {}
    loop {
        match take_response(&mut buffer) {
            Ok(Some(_)) => {}
            Ok(None) => return,
            Err(why) => return assert!(!why.to_string().is_empty()),
        }
    }
}

/// An entry, or an explicit LAC, as a bookie has it: what is opened was packed so.
pub fn entries(data: &[u8]) {
    let ledger = LedgerId::new(7).expect("a number");
    for kind in KINDS {
        let codec = EntryCodec::new(ledger, kind, b"secret");
        if let Ok(entry) = codec.open(None, Bytes::copy_from_slice(data)) {
            let packed = codec.pack(entry.entry, entry.lac, entry.length, &entry.payload);
            assert_eq!(codec.open(Some(entry.entry), packed), Ok(entry));
        }
        if let Ok(lac) = codec.open_lac(data) {
            assert_eq!(codec.open_lac(&codec.pack_lac(lac)), Ok(lac));
        }
    }
}

/// What ZooKeeper has of a ledger or of a bookie, and the names below which it has it.
pub fn metadata(data: &[u8]) {
    match LedgerMetadata::decode(data) {
        Ok(metadata) => {
            for entry in [0, 1, i64::MAX] {
                assert!(!metadata.ensemble_of(EntryId::new(entry)).is_empty());
            }
            assert_eq!(LedgerMetadata::decode(&metadata.encode()), Ok(metadata));
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
    let _ = registered_address(data);
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = leads_to_ledgers(text);
    if let Some(ledger) = ledger_at(text) {
        assert_eq!(format!("/{}", path_below(ledger)), text);
    }
    if let Ok(uri) = text.parse::<LedgersUri>() {
        assert_eq!(uri.to_string().parse(), Ok(uri));
    }
}

/// Bytes for [`answers`], [`entries`] and [`metadata`].
pub fn seeds() -> [Vec<Vec<u8>>; 3] {
    let header = |operation| HeaderPacket { version: VERSION, operation, number: 9 };
    let body = Some(Bytes::from_static(b"entry"));
    let read = ReadResponse { status: 0, entry: 3, body: body.clone(), max_lac: Some(2) };
    let lac = ReadLacResponse { status: 0, explicit: body, last: None };
    let packets = [
        ResponsePacket { header: header(OPERATION_READ), read: Some(read), ..Default::default() },
        ResponsePacket { header: header(OPERATION_READ_LAC), read_lac: Some(lac), ..Default::default() },
        ResponsePacket {
            header: header(OPERATION_ADD),
            add: Some(AddResponse { status: 504 }),
            ..Default::default()
        },
    ];
    let framed = |packet: &ResponsePacket| {
        let bytes = packet.encode_to_vec();
        [&(bytes.len() as u32).to_be_bytes()[..], &bytes].concat()
    };
    let frames: Vec<Vec<u8>> = packets.iter().map(framed).collect();
    let entries = KINDS.iter().flat_map(|kind| {
        let codec = EntryCodec::new(LedgerId::new(7).expect("a number"), *kind, b"secret");
        let entry = codec.pack(EntryId::new(3), EntryId::new(2), 40, b"payload");
        [entry.to_vec(), codec.pack_lac(EntryId::new(3)).to_vec()]
    });
    let quorums = Quorums::new(3, 2, 2).expect("in order");
    let ensemble = ["a:3181", "b:3181", "c:3181"].map(BookieId::new).to_vec();
    let metadata = LedgerMetadata::new(quorums, ensemble, DigestKind::Crc32c, b"secret");
    let names =
        ["/00/0000/L0007", "/000/0000/0030/0000/L0001", "bookkeeper://a:2181,b/ledgers", "zk+flat://h/l"];
    let names = names.map(|name| name.as_bytes().to_vec());
    [
        frames.iter().cloned().chain([frames.concat()]).collect(),
        entries.collect(),
        [metadata.encode(), metadata.closed(EntryId::new(3), 40).encode()].into_iter().chain(names).collect(),
    ]
}
