use proptest::prelude::*;

use super::*;

/// All requests of some bytes, which come in pieces of `piece`.
fn decoded(bytes: &[u8], piece: usize) -> Vec<Decoded> {
    let (mut decoder, mut buffer, mut all) = (RequestDecoder::default(), BytesMut::new(), Vec::new());
    for some in bytes.chunks(piece.max(1)) {
        buffer.extend_from_slice(some);
        loop {
            match decoder.next(&mut buffer) {
                Decoded::More { .. } => break,
                closed @ Decoded::Closed(_) => {
                    all.push(closed);
                    return all;
                }
                one => all.push(one),
            }
        }
    }
    all
}

fn only(bytes: &[u8]) -> Decoded {
    let mut all = decoded(bytes, 1 << 22);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn text(bytes: &[u8]) -> TextRequest {
    match only(bytes) {
        Decoded::Request(MemcachedRequest::Text(request)) => request,
        other => panic!("{other:?}"),
    }
}

fn refused(bytes: &[u8]) -> RefusalLine {
    match only(bytes) {
        Decoded::Refused(why) | Decoded::Closed(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn text_commands_are_read_as_the_protocol_has_them() {
    let key = || Bytes::from_static(b"k");
    assert_eq!(
        text(b"get k a\r\n"),
        TextRequest::Get { keys: vec![key(), "a".into()], with_cas: false, touch: None }
    );
    assert_eq!(
        text(b"gats -1  k \n"),
        TextRequest::Get { keys: vec![key()], with_cas: true, touch: Some(-1) }
    );
    let store = |verb, cas, noreply| TextRequest::Store {
        verb,
        key: key(),
        flags: 4294967295,
        exptime: -5,
        cas,
        data: "a\r\nb".into(),
        noreply,
    };
    assert_eq!(text(b"set k 4294967295 -5 4\r\na\r\nb\r\n"), store(StoreVerb::Set, None, false));
    assert_eq!(text(b"append k 4294967295 -5 4 noreply\r\na\r\nb\r\n"), store(StoreVerb::Append, None, true));
    assert_eq!(text(b"cas k 4294967295 -5 4 18446744073709551615 noreply\r\na\r\nb\r\n"), {
        store(StoreVerb::Set, Some(u64::MAX), true)
    });
    assert_eq!(text(b"delete k 0 noreply\r\n"), TextRequest::Delete { key: key(), noreply: true });
    assert_eq!(
        text(b"decr k 7\r\n"),
        TextRequest::Arithmetic { key: key(), delta: 7, is_decr: true, noreply: false }
    );
    assert_eq!(text(b"touch k 9\r\n"), TextRequest::Touch { key: key(), exptime: 9, noreply: false });
    assert_eq!(text(b"flush_all noreply\r\n"), TextRequest::FlushAll { delay_s: 0, noreply: true });
    assert_eq!(text(b"flush_all 10\r\n"), TextRequest::FlushAll { delay_s: 10, noreply: false });
    assert_eq!(text(b"stats settings\r\n"), TextRequest::Stats("settings".into()));
    assert_eq!(text(b"mn\r\n"), TextRequest::Noop);
}

#[test]
fn a_meta_command_has_its_flags_and_its_key_from_base64() {
    let Decoded::Request(MemcachedRequest::Meta(request)) = only(b"ms Zm9v 2 b T90 F7 c Oabc Lx\r\nhi\r\n")
    else {
        panic!("a meta set")
    };
    assert_eq!(
        (request.verb, &request.key[..], &request.shown[..]),
        (MetaVerb::Set, &b"foo"[..], &b"Zm9v"[..])
    );
    assert_eq!(&request.data[..], b"hi");
    assert_eq!(request.flags.number(b'T'), Ok(Some(90_i64)));
    assert_eq!(request.flags.token(b'O'), Some(&Bytes::from("abc")));
    assert!(request.flags.has(b'c') && !request.flags.has(b'L') && !request.flags.has(b'v'));
    for (line, why) in [
        (&b"mg k v v\r\n"[..], "CLIENT_ERROR duplicate flag"),
        (b"mg k !\r\n", "CLIENT_ERROR invalid flag"),
        (b"mg k v O123456789012345678901234567890123\r\n", "CLIENT_ERROR opaque token too long"),
        (b"mg ***** b\r\n", "CLIENT_ERROR error decoding key"),
        (b"mg\r\n", UNKNOWN),
    ] {
        assert_eq!(refused(line), why);
    }
}

#[test]
fn what_is_no_request_is_refused_and_the_next_one_is_read() {
    let long = "x".repeat(251);
    for (bytes, why) in [
        (b"gets\r\n".to_vec(), UNKNOWN),
        (b"nothing\r\n".to_vec(), UNKNOWN),
        (b"\r\n".to_vec(), UNKNOWN),
        (format!("get {long}\r\n").into(), BAD_LINE),
        (b"set k a 0 1\r\nx\r\n".to_vec(), BAD_LINE),
        (b"set k 0 0 x\r\n".to_vec(), BAD_LINE),
        (b"set k 0 0 -1\r\n".to_vec(), BAD_LINE),
        (b"verbosity loud\r\n".to_vec(), BAD_LINE),
        (b"set k 0 0 1\r\nxyz".to_vec(), BAD_CHUNK),
        (b"incr k -1\r\n".to_vec(), "CLIENT_ERROR invalid numeric delta argument"),
        (b"touch k soon\r\n".to_vec(), "CLIENT_ERROR invalid exptime argument"),
        ([&b"set k 0 0 1048577\r\n"[..], &[7; 1_048_577], b"\r\n"].concat(), TOO_LARGE),
        ([&b"ms k 1048577\r\n"[..], &[7; 1_048_577], b"\r\n"].concat(), TOO_LARGE),
    ] {
        assert_eq!(refused(&bytes), why);
        // What it announced is skipped.
        if !bytes.ends_with(b"xyz") {
            let more = [&bytes[..], b"version\r\n"].concat();
            let last = decoded(&more, 1_000).pop();
            assert_eq!(last, Some(Decoded::Request(MemcachedRequest::Text(TextRequest::Version))));
        }
    }
    assert!(matches!(only(&vec![b'x'; LINE_BYTES_MAX + 1]), Decoded::Closed(_)));
    assert!(matches!(only(b"\x80\x00\x00\x00"), Decoded::Closed(_)), "the binary protocol");
    assert!(matches!(only(b"\x16\x03\x01"), Decoded::Closed(_)), "TLS");
}

/// Bytes that are nearly requests.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        prop::sample::select(vec![
            "get",
            "gets",
            "set",
            "cas",
            "add",
            "append",
            "delete",
            "incr",
            "touch",
            "gat",
            "flush_all",
            "stats",
            "verbosity",
            "mg",
            "ms",
            "md",
            "ma",
            "me",
            "mn",
            "k",
            "0",
            "-1",
            "3",
            "1048577",
            "noreply",
            "b",
            "v",
            "T",
            "T5",
            "Zm9v",
            "\r\n",
            "\n",
            " ",
            "abc\r\n",
            "99999999999999999999",
        ])
        .prop_map(|word| word.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..6),
    ];
    prop::collection::vec((word, any::<bool>()), 0..60).prop_map(|words| {
        words
            .into_iter()
            .flat_map(|(word, is_last)| {
                [word, if is_last { b"\r\n".to_vec() } else { b" ".to_vec() }].concat()
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn no_bytes_panic_and_requests_are_the_same_however_they_come(bytes in nearly(), piece in 1_usize..40) {
        prop_assert_eq!(decoded(&bytes, piece), decoded(&bytes, 1 << 20));
    }
}
