use proptest::prelude::*;

use super::*;

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

fn whole_call(out: &mut Vec<u8>, request: u64, method: u16, payload: &[u8]) {
    encode_call(out, request, method, payload.len());
    out.extend_from_slice(payload);
}

/// All frames in `bytes`, fed in pieces of the given sizes, over and over.
fn decode(side: Side, bytes: &[u8], pieces: &[usize]) -> Result<Vec<(Header, Bytes)>, FrameError> {
    let mut decoder = Decoder::new(side);
    let mut frames = Vec::new();
    let mut rest = bytes;
    let mut pieces = pieces.iter().cycle();
    while !rest.is_empty() {
        let piece = (*pieces.next().expect("it cycles")).clamp(1, rest.len());
        decoder.feed(&rest[..piece]);
        rest = &rest[piece..];
        while let Some(frame) = decoder.next()? {
            frames.push(frame);
        }
        assert!(decoder.held() <= HEADER_BYTES + FRAME_BODY_MAX + bytes.len());
    }
    Ok(frames)
}

fn one(side: Side, bytes: &[u8]) -> (Header, Bytes) {
    let mut frames = decode(side, bytes, &[usize::MAX]).expect("it is well-formed");
    assert_eq!(frames.len(), 1);
    frames.remove(0)
}

fn read_op() -> impl Strategy<Value = ReadOp> {
    (any::<u32>(), any::<u64>(), any::<u64>(), any::<u32>()).prop_map(|(region, generation, offset, len)| {
        ReadOp { region: RegionId(region), generation, offset, len }
    })
}

fn scar_op() -> impl Strategy<Value = ScarOp> {
    (any::<u64>(), any::<u128>(), any::<u32>()).prop_map(|(bucket, key_hash, apart)| ScarOp {
        bucket,
        key_hash,
        apart,
    })
}

/// A request as a test knows it, to compare what was decoded with.
#[derive(Clone, Debug)]
enum Asked {
    Hello,
    Read(Vec<ReadOp>),
    Scar(Vec<ScarOp>),
    Watch(u32, u16),
    Call(u16, Vec<u8>),
    Fabric,
}

impl Asked {
    fn encode(&self, out: &mut Vec<u8>, id: u64) {
        match self {
            Self::Hello => encode_hello(out, id),
            Self::Read(ops) => encode_read(out, id, ops),
            Self::Scar(ops) => encode_scar(out, id, ops),
            Self::Watch(last_seen, ms) => {
                encode_watch(out, id, *last_seen, Duration::from_millis((*ms).into()));
            }
            Self::Call(method, payload) => whole_call(out, id, *method, payload),
            Self::Fabric => encode_fabric(out, id),
        }
    }

    fn assert_is(&self, request: &Request) {
        match (self, request) {
            (Self::Hello, Request::Hello { lowest, highest, logs_in: false }) => {
                assert_eq!((*lowest, *highest), (VERSION, VERSION));
            }
            (Self::Read(ops), Request::Read(read)) => {
                assert!(read.iter().eq(ops.iter().copied()));
            }
            (Self::Scar(ops), Request::Scar(scar)) => {
                assert!(scar.iter().eq(ops.iter().copied()));
            }
            (Self::Watch(seen, ms), Request::Watch { last_seen, deadline }) => {
                let asked = Duration::from_millis((*ms).into());
                assert_eq!((seen, asked.min(WATCH_DEADLINE_MAX)), (last_seen, *deadline));
            }
            (Self::Call(number, bytes), Request::Call { method, payload }) => {
                assert_eq!((number, &bytes[..]), (method, &payload[..]));
            }
            (Self::Fabric, Request::Fabric) => {}
            (asked, request) => panic!("{asked:?} became {request:?}"),
        }
    }
}

fn asked() -> impl Strategy<Value = Asked> {
    prop_oneof![
        Just(Asked::Hello),
        prop::collection::vec(read_op(), 1..40).prop_map(Asked::Read),
        prop::collection::vec(scar_op(), 1..40).prop_map(Asked::Scar),
        any::<(u32, u16)>().prop_map(|(last_seen, ms)| Asked::Watch(last_seen, ms)),
        (any::<u16>(), prop::collection::vec(any::<u8>(), 0..500))
            .prop_map(|(method, payload)| Asked::Call(method, payload)),
        Just(Asked::Fabric),
    ]
}

proptest! {
    #[test]
    fn requests_survive_the_wire_however_they_are_cut(
        requests in prop::collection::vec((asked(), any::<u64>()), 1..8),
        pieces in prop::collection::vec(1usize..200, 1..8),
    ) {
        let bytes = encoded(|out| requests.iter().for_each(|(asked, id)| asked.encode(out, *id)));
        let frames = decode(Side::Requests, &bytes, &pieces).expect("they are well-formed");
        prop_assert_eq!(frames.len(), requests.len());
        for ((asked, id), (header, body)) in requests.iter().zip(frames) {
            prop_assert_eq!(header.request, *id);
            asked.assert_is(&Request::parse(&header, body).expect("it is well-formed"));
        }
    }

    #[test]
    fn garbage_is_refused_or_waited_for_and_never_panics(
        bytes in prop::collection::vec(any::<u8>(), 0..2_000),
        pieces in prop::collection::vec(1usize..300, 1..4),
    ) {
        for side in [Side::Requests, Side::Responses] {
            for (header, body) in decode(side, &bytes, &pieces).unwrap_or_default() {
                unpack_as_everything(&header, &body);
            }
        }
    }

    #[test]
    fn a_plausible_header_before_garbage_never_panics(
        kind in prop::sample::select(vec![1u8, 2, 3, 4, 5, 0x81, 0x82, 0x83, 0x84, 0x85]),
        argument in 0u16..6,
        body in prop::collection::vec(any::<u8>(), 0..400),
        extra in 0u32..3,
    ) {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&(body.len() as u32 + extra).to_le_bytes());
        bytes.extend_from_slice(&[VERSION, kind]);
        bytes.extend_from_slice(&argument.to_le_bytes());
        bytes.extend_from_slice(&7u64.to_le_bytes());
        bytes.extend_from_slice(&body);
        let side = if kind & 0x80 == 0 { Side::Requests } else { Side::Responses };
        for (header, body) in decode(side, &bytes, &[17]).unwrap_or_default() {
            unpack_as_everything(&header, &body);
        }
    }

    #[test]
    fn flipping_a_byte_of_good_frames_never_panics(
        requests in prop::collection::vec(asked(), 1..4),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
    ) {
        let mut bytes = encoded(|out| requests.iter().for_each(|asked| asked.encode(out, 1)));
        let at = at.index(bytes.len());
        bytes[at] = value;
        for (header, body) in decode(Side::Requests, &bytes, &[64]).unwrap_or_default() {
            let _ = Request::parse(&header, body);
        }
    }

    #[test]
    fn read_answers_fill_the_places_of_what_succeeded(
        ops in prop::collection::vec((0u32..50, any::<bool>()), 1..30),
    ) {
        let reads: Vec<_> = ops
            .iter()
            .map(|(len, _)| ReadOp { region: RegionId(0), generation: 0, offset: 0, len: *len })
            .collect();
        let bytes = encoded(|out| frame(out, FrameKind::ReadReply, ops.len() as u16, 3, |out| {
            out.extend(ops.iter().map(|(_, done)| if *done { 0 } else { Status::StaleRegion as u8 }));
            for (i, (len, done)) in ops.iter().enumerate() {
                if *done {
                    out.extend(std::iter::repeat_n(i as u8 + 1, *len as usize));
                }
            }
        }));
        let (header, body) = one(Side::Responses, &bytes);
        let mut out = vec![0; reads.iter().map(|op| op.len as usize).sum()];
        let mut results = Vec::new();
        unpack_read(&header, &body, &reads, &mut out, &mut results).expect("it is well-formed");
        let mut at = 0;
        for (i, (len, done)) in ops.iter().enumerate() {
            let expected = if *done { Ok(()) } else { Err(OpError::StaleRegion) };
            prop_assert_eq!(results[i], expected);
            let bytes = &out[at..at + *len as usize];
            let filled_with = if *done { i as u8 + 1 } else { 0 };
            prop_assert!(bytes.iter().all(|byte| *byte == filled_with));
            at += *len as usize;
        }
    }
}

/// Whatever the kind says, every function that takes a body apart must stand it.
fn unpack_as_everything(header: &Header, body: &Bytes) {
    if header.kind.is_response() {
        let count = usize::from(header.argument);
        match header.kind {
            FrameKind::HelloReply => drop(HelloReply::parse(body.clone())),
            FrameKind::ReadReply => {
                for len in [0, 1, 100, READ_LEN_ODD] {
                    let op = ReadOp { region: RegionId(0), generation: 0, offset: 0, len };
                    let ops = vec![op; count];
                    let mut out = vec![0; count * len as usize];
                    let _ = unpack_read(header, body, &ops, &mut out, &mut Vec::new());
                    let _ = unpack_read(header, body, &ops[1..], &mut out[len as usize..], &mut Vec::new());
                }
            }
            FrameKind::ScarReply => {
                for apart in [0, 1, READ_LEN_ODD, u32::MAX] {
                    let ops = vec![ScarOp { bucket: 0, key_hash: 0, apart }; count + 1];
                    let _ = unpack_scar(header, body, &ops[1..]);
                    let _ = unpack_scar(header, body, &ops);
                }
            }
            FrameKind::WatchReply => {
                parse_watch_reply(body.clone());
            }
            FrameKind::CallReply => drop(CallAnswer::parse(header, body.clone())),
            _ => unreachable!("it is a response"),
        }
    } else {
        match Request::parse(header, body.clone()) {
            Ok(Request::Read(ops)) => drop(ops.iter().collect::<Vec<_>>()),
            Ok(Request::Scar(ops)) => drop(ops.iter().collect::<Vec<_>>()),
            _ => {}
        }
    }
}

const READ_LEN_ODD: u32 = 333;

#[test]
fn the_bytes_of_each_frame_are_what_they_always_were() {
    let op = ReadOp { region: RegionId(1), generation: 0x1122_3344_5566_7788, offset: 0x10, len: 0x20 };
    let scar = ScarOp { bucket: 9, key_hash: 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100, apart: 0x50 };
    let region = RegionInfo { id: RegionId(0), generation: 5, len: 0x1000, kind: 2 };
    let hello = HelloReply {
        version: VERSION,
        scar: true,
        files: true,
        fabric: false,
        login: false,
        doorbell: 0x0a0b_0c0d,
        regions: vec![region],
    };
    let refusal = CallAnswer::Refused(Refusal { code: 0x0203, message: "no".to_owned() });
    let fabric = FabricReply {
        provider: "shm".to_owned(),
        format: 0x0102,
        name: vec![0xee; 2],
        keys: vec![Some(RegionKey { key: 0x11, base: 0x22 }), None],
    };
    let golden: [(Vec<u8>, &str); 13] = [
        (encoded(|out| encode_hello(out, 1)), "08000000 02 01 0000 0100000000000000 726d6100 02 02 0000"),
        (
            encoded(|out| encode_hello_to_log_in(out, 1)),
            "08000000 02 01 0000 0100000000000000 726d6100 02 02 0100",
        ),
        (
            encoded(|out| {
                HelloReply { version: VERSION, login: true, ..HelloReply::default() }.encode(out, 1)
            }),
            "08000000 02 81 0000 0100000000000000 02 08 0000 00000000",
        ),
        (
            encoded(|out| encode_read(out, 2, &[op])),
            "18000000 02 02 0100 0200000000000000 01000000 20000000 8877665544332211 1000000000000000",
        ),
        (
            encoded(|out| encode_scar(out, 3, &[scar])),
            "1c000000 02 03 0100 0300000000000000 0900000000000000 000102030405060708090a0b0c0d0e0f 50000000",
        ),
        (
            encoded(|out| encode_watch(out, 4, 7, Duration::from_millis(50))),
            "08000000 02 04 0000 0400000000000000 07000000 32000000",
        ),
        (encoded(|out| whole_call(out, 5, 0x0102, b"hi")), "02000000 02 05 0201 0500000000000000 6869"),
        (
            encoded(|out| hello.encode(out, 1)),
            "20000000 02 81 0100 0100000000000000 02 03 0000 0d0c0b0a \
             00000000 0200 0000 0500000000000000 0010000000000000",
        ),
        (encoded(|out| encode_watch_reply(out, 4, 8)), "04000000 02 84 0000 0400000000000000 08000000"),
        (encoded(|out| refusal.encode(out, 5)), "04000000 02 85 0100 0500000000000000 0302 6e6f"),
        (
            encoded(|out| HelloReply { fabric: true, regions: Vec::new(), ..hello.clone() }.encode(out, 1)),
            "08000000 02 81 0000 0100000000000000 02 07 0000 0d0c0b0a",
        ),
        (encoded(|out| encode_fabric(out, 6)), "00000000 02 06 0000 0600000000000000"),
        (
            encoded(|out| fabric.encode(out, 6)),
            "3d000000 02 86 0200 0600000000000000 0300 0200 02010000 \
             01000000 00000000 1100000000000000 2200000000000000 \
             00000000 00000000 0000000000000000 0000000000000000 73686d eeee",
        ),
    ];
    for (bytes, hex) in golden {
        let hex: String = hex.split_whitespace().collect();
        let is: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(is, hex);
    }
}

#[test]
fn a_header_is_judged_before_its_body_is_waited_for() {
    let header = |len: u32, version: u8, kind: u8, argument: u16| {
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.extend_from_slice(&[version, kind]);
        bytes.extend_from_slice(&argument.to_le_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes
    };
    let refused = [
        (Side::Requests, header(8, 1, 1, 0)),
        (Side::Requests, header(8, 2, 0x81, 0)),
        (Side::Responses, header(8, 2, 1, 0)),
        (Side::Requests, header(0, 2, 77, 0)),
        (Side::Requests, header(u32::MAX, 2, 5, 0)),
        (Side::Requests, header(CALL_BYTES_MAX as u32 + 1, 2, 5, 0)),
        (Side::Requests, header(0, 2, 2, 0)),
        (Side::Requests, header(24, 2, 2, 2)),
        (Side::Requests, header(24 * 1025, 2, 2, 1025)),
        (Side::Requests, header(u32::MAX, 2, 3, u16::MAX)),
        (Side::Responses, header(8 + 24 * 65, 2, 0x81, 65)),
        (Side::Responses, header(8 + 24, 2, 0x81, 2)),
        (Side::Responses, header(u32::MAX, 2, 0x82, 1)),
        (Side::Responses, header(11, 2, 0x83, 1)),
        (Side::Responses, header(5, 2, 0x84, 0)),
        (Side::Responses, header(1, 2, 0x85, 1)),
        (Side::Responses, header(1, 2, 0x85, 2)),
        (Side::Responses, header(0, 2, 0x85, 3)),
    ];
    for (side, bytes) in refused {
        let mut decoder = Decoder::new(side);
        decoder.feed(&bytes);
        decoder.next().expect_err("only the header is there, and it is wrong");
    }
}

#[test]
fn a_large_body_that_is_announced_and_not_sent_takes_no_memory() {
    let mut bytes = encoded(|out| whole_call(out, 1, 0, &[]));
    bytes[..4].copy_from_slice(&(CALL_BYTES_MAX as u32).to_le_bytes());
    let mut decoder = Decoder::new(Side::Requests);
    decoder.feed(&bytes);
    assert_eq!(decoder.next(), Ok(None));
    assert_eq!(decoder.missing(), CALL_BYTES_MAX);
    assert!(decoder.capacity() < 1_000, "{} bytes", decoder.capacity());
}

#[test]
fn answers_that_contradict_themselves_are_refused() {
    let op = ReadOp { region: RegionId(0), generation: 0, offset: 0, len: 4 };
    let read = |argument: u16, body: &[u8], ops: &[ReadOp]| {
        let bytes = encoded(|out| {
            frame(out, FrameKind::ReadReply, argument, 0, |out| out.extend_from_slice(body));
        });
        let (header, body) = one(Side::Responses, &bytes);
        let mut out = vec![0; ops.len() * 4];
        unpack_read(&header, &body, ops, &mut out, &mut Vec::new())
    };
    read(1, b"\0data", &[op]).expect("this one is right");
    read(1, b"\0dat", &[op]).expect_err("too short");
    read(1, b"\0data!", &[op]).expect_err("too long");
    read(1, b"\x01data", &[op]).expect_err("data for what failed");
    read(1, b"\x04", &[op]).expect_err("reads always fit");
    read(1, b"\x63data", &[op]).expect_err("an unknown status");
    read(1, b"\0data", &[op, op]).expect_err("a result is missing");

    let scar = |results: &[(u8, u32, u32)], data: &[u8]| {
        let bytes = encoded(|out| {
            frame(out, FrameKind::ScarReply, results.len() as u16, 0, |out| {
                for (status, bucket, data) in results {
                    out.extend_from_slice(&[*status, 0, 0, 0]);
                    out.extend_from_slice(&bucket.to_le_bytes());
                    out.extend_from_slice(&data.to_le_bytes());
                }
                out.extend_from_slice(data);
            });
        });
        let (header, body) = one(Side::Responses, &bytes);
        let op = ScarOp { bucket: 0, key_hash: 0, apart: 1 };
        unpack_scar(&header, &body, &vec![op; results.len()])
    };
    scar(&[(0, 2, 1), (4, 0, 0)], b"abc").expect("this one is right");
    scar(&[(0, 2, 2)], b"abc").expect_err("too short");
    scar(&[(0, 1, 1)], b"abc").expect_err("too long");
    scar(&[(0, u32::MAX, u32::MAX)], b"abc").expect_err("far too short");
    scar(&[(4, 0, 0)], b"").expect_err("no progress");
    scar(&[(5, 0, 0)], b"").expect_err("an unknown status");
}

#[test]
fn how_libfabric_reads_the_regions_survives_the_wire_and_lengths_that_lie_are_refused() {
    let keys = vec![None, Some(RegionKey { key: u64::MAX, base: 7 })];
    let reply = FabricReply { provider: "tcp;ofi_rxm".to_owned(), format: 1, name: vec![3; 16], keys };
    let bytes = encoded(|out| reply.encode(out, 9));
    let (header, body) = one(Side::Responses, &bytes);
    assert_eq!(FabricReply::parse(&header, body.clone()), Ok(reply));
    for (place, byte) in [(0, 200), (2, 17), (3, 1), (8 + 2 * REGION_KEY_BYTES, 0xff)] {
        let mut broken = body.to_vec();
        broken[place] = byte;
        assert!(FabricReply::parse(&header, broken.into()).is_err(), "byte {place} is {byte}");
    }
}
