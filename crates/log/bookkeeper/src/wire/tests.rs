use proptest::prelude::*;

use super::messages::{AddResponse, ReadLacResponse, ReadResponse};
use super::*;
use crate::digest::MasterKey;
use crate::ids::LedgerId;

fn ledger() -> LedgerId {
    LedgerId::new(3).expect("not negative")
}

fn framed(packet: &ResponsePacket) -> BytesMut {
    let mut frame = BytesMut::new();
    frame.put_u32(packet.encoded_len() as u32);
    packet.encode(&mut frame).expect("a buffer grows");
    frame
}

fn response(operation: i32) -> ResponsePacket {
    ResponsePacket {
        header: HeaderPacket { version: VERSION, operation, number: 8 },
        ..ResponsePacket::default()
    }
}

#[test]
fn an_add_is_the_bytes_that_the_protocol_says() {
    let mut frame = BytesMut::new();
    let add = BookieRequest::Add {
        ledger: ledger(),
        entry: EntryId::new(5),
        packet: Bytes::from_static(b"body"),
        key: MasterKey::of(b""),
        recovery: true,
    };
    put_request(9, &add, &mut frame);
    assert_eq!(frame[..4], (frame.len() as u32 - 4).to_be_bytes());
    // Field 1, six bytes: version 3, operation 2, number 9; field 101, with ledger 3, entry 5, a key of 20 bytes, ...
    assert_eq!(frame[4..16], [0x0a, 6, 8, 3, 16, 2, 24, 9, 0xaa, 6, 35, 8]);
    // ... and flag 1 as field 100.
    assert_eq!(frame[frame.len() - 3..], [0xa0, 6, 1]);
}

#[test]
fn an_answer_is_taken_when_it_is_whole_and_with_its_number() {
    let mut packet = response(OPERATION_ADD);
    packet.add = Some(AddResponse { status: 504 });
    let whole = framed(&packet);
    let mut buffer = BytesMut::new();
    for byte in &whole[..whole.len() - 1] {
        buffer.put_u8(*byte);
        assert_eq!(take_response(&mut buffer), Ok(None));
    }
    buffer.put_u8(whole[whole.len() - 1]);
    let fenced = NumberedAnswer { number: 8, result: Err(BookieError::Fenced) };
    assert_eq!(take_response(&mut buffer), Ok(Some(fenced)));
    assert!(buffer.is_empty());
}

#[test]
fn reads_polls_and_lacs_are_told_apart() {
    let mut read = response(OPERATION_READ);
    let body = Some(Bytes::from_static(b"x"));
    read.read = Some(ReadResponse { status: 0, entry: 1, body: body.clone(), max_lac: None });
    let answer =
        |packet: &ResponsePacket| take_response(&mut framed(packet)).expect("a frame").expect("whole").result;
    assert_eq!(answer(&read), Ok(BookieAnswer::Entry { packet: body.clone(), lac: None }));
    read.read = Some(ReadResponse { status: 0, entry: 1, body: body.clone(), max_lac: Some(4) });
    assert_eq!(answer(&read), Ok(BookieAnswer::Entry { packet: body.clone(), lac: Some(EntryId::new(4)) }));
    read.read = Some(ReadResponse { status: 403, ..ReadResponse::default() });
    assert_eq!(answer(&read), Err(BookieError::NoEntry));
    let mut lac = response(OPERATION_READ_LAC);
    lac.read_lac = Some(ReadLacResponse { status: 0, explicit: Some(Bytes::new()), last: body.clone() });
    assert_eq!(answer(&lac), Ok(BookieAnswer::Lac { explicit: None, last: body }));
    lac.read_lac = None;
    assert_eq!(answer(&lac), Err(BookieError::Malformed("a part is missing")));
    lac.status = 404;
    assert_eq!(answer(&lac), Err(BookieError::Refused(404)));
}

#[test]
fn a_frame_that_is_too_long_ends_the_connection_before_it_is_waited_for() {
    let mut buffer = BytesMut::new();
    buffer.put_u32(FRAME_BYTES_MAX as u32 + 1);
    assert_eq!(take_response(&mut buffer), Err(FrameFault::Length(FRAME_BYTES_MAX + 1)));
}

proptest! {
    #[test]
    fn bytes_of_any_kind_are_an_answer_a_fault_or_too_few(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut framed = BytesMut::new();
        framed.put_u32(bytes.len() as u32);
        framed.put_slice(&bytes);
        let _ = take_response(&mut framed);
        let _ = take_response(&mut BytesMut::from(&bytes[..]));
    }
}
