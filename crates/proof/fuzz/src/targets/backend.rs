//! A backend of a cell under CALLs of whoever reaches it.

use std::cell::RefCell;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use tailwater_cache::layout::{
    BUCKET_HEADER_BYTES, INDEX_ENTRY_BYTES, Item, KeyHash, POINTER_OFFSET, Pointer, WAYS, bucket_offset,
    encode_item,
};
use tailwater_cache::protocol::{
    ConfigureRequest, JoinRequest, LoadRequest, LookupRequest, METHOD_ACCEPT, METHOD_CHANGES, METHOD_CLEAR,
    METHOD_CONFIGURE, METHOD_JOIN, METHOD_LOAD, METHOD_LOOKUP, METHOD_MUTATE, METHOD_PROMISE, METHOD_SCAN,
    PromiseRequest, ScanRequest, encode_mutate,
};
use tailwater_cache::{Backend, BackendConfig, Configuration, Mode, Version};
use tailwater_env::Env;
use tailwater_rma::{Backing, Peer, Reply, Service};
use xxhash_rust::xxh3::xxh3_64;

/// Buckets of a backend: few, so that they overflow.
const BUCKETS: u64 = 2;
/// Methods that there are, and one below and one above them that are none.
const METHODS: u16 = METHOD_CHANGES - METHOD_MUTATE + 3;
/// CALLs of one input.
const CALLS_MAX: usize = 64;
/// Where the first item begins in a MUTATE with items below 128 bytes, or of more: behind the configuration's
/// id, a tag, and a length of a byte or two.
const ENTRIES_AT: usize = 11;

thread_local! {
    /// What drives a backend's own task, which has nothing to do.
    static RUNTIME: RefCell<Option<tokio::runtime::Runtime>> = const { RefCell::new(None) };
}

/// CALLs, each a byte of its method, two of its payload's length, and the payload. Afterwards whatever the index names
/// is a whole item of that key, in that version.
pub(super) fn run(data: &[u8]) {
    RUNTIME.with_borrow_mut(|runtime| {
        let runtime = runtime.get_or_insert_with(|| {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_time().build().expect("a runtime")
        });
        runtime.block_on(async {
            calls(data);
            // So that what a dropped backend leaves is gone.
            tokio::task::yield_now().await;
        });
    });
}

fn calls(mut data: &[u8]) {
    // 0 is a cell whose configuration comes by a CALL.
    let Some((config_id, rest)) = data.split_first() else { return };
    data = rest;
    let config = BackendConfig {
        buckets: BUCKETS,
        ..BackendConfig::data(0, 1, u64::from(*config_id % 8), Backing::Private)
    };
    let backend = Backend::start(&Env::real(), config).expect("there is memory");
    let peer = Peer::anonymous("fuzz".to_owned());
    for _ in 0..CALLS_MAX {
        let Some(([method, low, high], rest)) = data.split_first_chunk() else { break };
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (payload, rest) = rest.split_at(length);
        data = rest;
        let method = METHOD_MUTATE - 1 + u16::from(*method) % METHODS;
        let mut payload = payload.to_vec();
        if method == METHOD_MUTATE || method == METHOD_ACCEPT {
            mend(&mut payload);
        }
        let told = Reply::new(|answer| {
            if let Err(refusal) = answer {
                assert!(!refusal.message.is_empty());
            }
        });
        backend.call(&peer, method, Bytes::from(payload), told);
    }
    check_index(&backend);
}

/// Gives each item of a MUTATE the checksum that fits.
fn mend(payload: &mut [u8]) {
    let from = ENTRIES_AT + usize::from(payload.get(10).is_some_and(|length| length & 0x80 != 0));
    let mut rest = payload.get_mut(from..).unwrap_or_default();
    while let Some(length) = super::cells::item_length(rest).filter(|length| *length <= rest.len()) {
        let (item, behind) = std::mem::take(&mut rest).split_at_mut(length);
        let checksum = xxh3_64(&item[8..]);
        item[..8].copy_from_slice(&checksum.to_le_bytes());
        rest = behind;
    }
}

fn check_index(backend: &Arc<Backend>) {
    let regions = backend.regions();
    let [index, data] = &regions[..] else { unreachable!("a backend has two regions") };
    let mut items = 0;
    for bucket in 0..BUCKETS {
        let mut bytes = [0; BUCKET_HEADER_BYTES + WAYS * INDEX_ENTRY_BYTES];
        index.read(bucket_offset(bucket), &mut bytes);
        for entry in bytes[BUCKET_HEADER_BYTES..].chunks_exact(INDEX_ENTRY_BYTES) {
            let word = u64::from_le_bytes(*entry[POINTER_OFFSET..].first_chunk().expect("a word"));
            let Some(pointer) = Pointer::from_word(word) else { continue };
            let mut item = vec![0; pointer.len as usize];
            data.read(pointer.offset, &mut item);
            let item = Item::parse(&item).expect("a whole item");
            assert_eq!(KeyHash::of(item.key).0.to_le_bytes(), entry[..16]);
            assert_eq!(item.version.to_bytes(), entry[16..POINTER_OFFSET]);
            assert!(!item.tombstone && item.bytes.len() == pointer.len as usize);
            items += 1;
        }
    }
    assert!(items <= backend.stats().items, "those in chains come to these");
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let version = |timestamp_us| Version { timestamp_us, client_id: 2, sequence: 3 };
    let call = |method: u16, payload: &[u8]| {
        let number = (method - (METHOD_MUTATE - 1)) as u8;
        [&[number][..], &(payload.len() as u16).to_le_bytes(), payload].concat()
    };
    let set = |key: &[u8], at| encode_item(key, version(at), Some(b"value"));
    let mutate = |items: &[Bytes]| encode_mutate(7, items.iter()).concat();
    let many: Vec<Bytes> = (0..40).map(|number| set(&[number], 1)).collect();
    let promise = PromiseRequest::of(7, KeyHash::of(b"a"), version(9)).encode_to_vec();
    let lookup = LookupRequest::of(7, [KeyHash::of(b"a"), KeyHash::of(&[1])].into_iter()).encode_to_vec();
    let all = [
        call(METHOD_MUTATE, &mutate(&[set(b"a", 1), encode_item(b"b", version(2), None)])),
        call(METHOD_PROMISE, &promise),
        call(METHOD_ACCEPT, &mutate(&[set(b"a", 9)])),
        call(METHOD_MUTATE, &mutate(&many)),
        call(METHOD_LOOKUP, &lookup),
        call(METHOD_MUTATE, &mutate(&[encode_item(b"a", version(20), None)])),
    ];
    let place = |number: u16| vec![format!("tcp:127.0.0.1:{number}")];
    let told = |configuration: &Configuration| {
        ConfigureRequest { configuration: configuration.encode(), number: 0 }.encode_to_vec()
    };
    let first = Configuration::first(7, "a", Mode::R1, vec![place(1)]).expect("a configuration");
    let three = Configuration::first(7, "a", Mode::R32, (1..4).map(place).collect()).expect("three backends");
    let of_others = [
        call(METHOD_JOIN, &JoinRequest { config_id: 7, number: 1, instance: 9 }.encode_to_vec()),
        call(METHOD_SCAN, &ScanRequest { config_id: 7, number: 1, from: 0 }.encode_to_vec()),
    ];
    let pair =
        Configuration::first(7, "a", Mode::R2Immutable, vec![place(1), place(2)]).expect("two backends");
    let loaded = pair.loaded(5).expect("a later load");
    let load = |is_complete| LoadRequest { config_id: 7, generation: 5, is_complete }.encode_to_vec();
    let of_load = [5_u64.to_be_bytes().to_vec(), b"a".to_vec()].concat();
    let loads = [
        call(METHOD_CONFIGURE, &told(&pair)),
        call(METHOD_JOIN, &JoinRequest { config_id: 7, number: 1, instance: 9 }.encode_to_vec()),
        call(METHOD_LOAD, &load(false)),
        call(METHOD_MUTATE, &mutate(&[set(&of_load, 1)])),
        call(METHOD_LOAD, &load(true)),
        call(METHOD_CONFIGURE, &told(&loaded)),
    ];
    vec![
        [&[7][..], &all.concat()].concat(),
        [&[0][..], &call(METHOD_CONFIGURE, &told(&first)), &all.concat(), &call(METHOD_CLEAR, &[])].concat(),
        [&[0][..], &call(METHOD_CONFIGURE, &told(&three)), &of_others.concat(), &all.concat()].concat(),
        [&[0][..], &loads.concat()].concat(),
    ]
}
