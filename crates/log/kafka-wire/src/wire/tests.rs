//! Every message of every version, there and back; and bytes that are none.

use bytes::Bytes;
use proptest::prelude::*;

use super::{ITEMS_MAX, Malformed, Reader, TooLong, Wire, Writer};
use crate::api::{Api, ApiRequest, for_each_request};
use crate::messages::cluster::{ApiVersionsResponse, MetadataRequest, MetadataResponse};
use crate::messages::fetch::{FetchResponse, FetchableTopicResponse, PartitionData};
use crate::messages::header::{RequestHeader, read_response, request, response};
use crate::messages::replicas::{
    DescribeQuorumListener, DescribeQuorumNode, DescribeQuorumPartitionData, DescribeQuorumResponse,
    DescribeQuorumTopicData, ElectLeadersRequest, QuorumReplicaState,
};
use crate::wire::RecordsBytes;

/// The body of a message as it is on the wire.
fn body<M: Wire>(message: &M, api: Api, version: i16) -> Bytes {
    let mut writer = Writer::new(version, api.is_flexible(version));
    message.write(&mut writer);
    writer.finish().expect("short").concat().slice(4..)
}

fn read<M: Wire>(bytes: Bytes, api: Api, version: i16) -> Result<(M, usize), Malformed> {
    let mut reader = Reader::new(bytes, version, api.is_flexible(version));
    let message = M::read(&mut reader)?;
    Ok((message, reader.left()))
}

/// Whatever is read is written as something that reads the same.
fn there_and_back<M: Wire + PartialEq + std::fmt::Debug>(bytes: &Bytes, api: Api, version: i16) -> bool {
    let Ok((message, _)) = read::<M>(bytes.clone(), api, version) else { return false };
    let written = body(&message, api, version);
    assert_eq!(read(written, api, version), Ok((message, 0)), "{} {version}", api.name());
    true
}

/// Reads `bytes` as every request and response of every version; how many of these they are.
fn read_as_everything(bytes: &Bytes) -> usize {
    let mut read = 0;
    macro_rules! both {
        ($request:ident) => {
            for version in <$request as ApiRequest>::API.versions() {
                let api = <$request as ApiRequest>::API;
                read += usize::from(there_and_back::<$request>(bytes, api, version));
                read +=
                    usize::from(there_and_back::<<$request as ApiRequest>::Response>(bytes, api, version));
            }
        };
    }
    use crate::messages::cluster::*;
    use crate::messages::configs::*;
    use crate::messages::fetch::*;
    use crate::messages::groups::*;
    use crate::messages::membership::*;
    use crate::messages::offsets::*;
    use crate::messages::produce::*;
    use crate::messages::replicas::*;
    use crate::messages::security::*;
    use crate::messages::topics::*;
    for_each_request!(both);
    read
}

#[test]
fn every_message_with_its_defaults_goes_there_and_back_in_every_version() {
    use crate::messages::cluster::*;
    use crate::messages::configs::*;
    use crate::messages::fetch::*;
    use crate::messages::groups::*;
    use crate::messages::membership::*;
    use crate::messages::offsets::*;
    use crate::messages::produce::*;
    use crate::messages::replicas::*;
    use crate::messages::security::*;
    use crate::messages::topics::*;
    macro_rules! both {
        ($request:ident) => {
            let api = <$request as ApiRequest>::API;
            for version in api.versions() {
                let asked = body(&$request::default(), api, version);
                assert_eq!(read(asked, api, version), Ok(($request::default(), 0)), "{api:?} {version}");
                let answer = <$request as ApiRequest>::Response::default();
                assert!(there_and_back::<<$request as ApiRequest>::Response>(
                    &body(&answer, api, version),
                    api,
                    version
                ));
            }
        };
    }
    for_each_request!(both);
}

proptest! {
    #[test]
    fn no_bytes_make_a_reader_panic_and_what_is_read_is_written_the_same(
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            // Small numbers are counts and lengths that fit, so that more is read.
            prop::collection::vec(prop_oneof![4 => Just(0_u8), 3 => 1..4_u8, 1 => any::<u8>()], 0..400),
        ]
    ) {
        read_as_everything(&bytes.into());
    }

    #[test]
    fn no_bytes_make_the_reader_of_headers_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let _ = RequestHeader::read(bytes.into(), ITEMS_MAX);
    }
}

#[test]
fn zeros_are_many_messages() {
    // That the property above is not an empty one. In flexible versions a zero is null, which not all fields may be.
    let read = read_as_everything(&vec![0; 400].into());
    assert!(read > 40, "{read}");
}

#[test]
fn a_count_without_bytes_behind_it_is_refused_before_anything_is_allocated() {
    // From kafka-protocol-rs#161: some 54 million topics in eight bytes.
    let bytes = Bytes::from_static(&[0x03, 0x3c, 0x0c, 0x00, 0xb6]);
    let refused = read::<MetadataRequest>(bytes, Api::Metadata, 0).unwrap_err();
    assert_eq!(refused, Malformed::Ends { what: "an array", wanted: 0x033c_0c00, left: 1 });
    let many = ITEMS_MAX + 1;
    let mut bytes = (many as i32).to_be_bytes().to_vec();
    bytes.resize(4 + many * 2, 0);
    assert_eq!(
        read::<MetadataRequest>(bytes.into(), Api::Metadata, 0).unwrap_err(),
        Malformed::Items { max: ITEMS_MAX }
    );
}

#[test]
fn unknown_tagged_fields_are_skipped() {
    let mut bytes = body(&ApiVersionsResponse::default(), Api::ApiVersions, 3).to_vec();
    assert_eq!(bytes.pop(), Some(0), "no tagged field");
    bytes.extend([2, 77, 3, 1, 2, 3, 1, 8, 0, 0, 0, 0, 0, 0, 0, 5]);
    let (answer, left) = read::<ApiVersionsResponse>(bytes.into(), Api::ApiVersions, 3).expect("a message");
    assert_eq!((answer.finalized_features_epoch, left), (5, 0));
}

#[test]
fn the_bytes_of_a_request_and_of_its_answer_never_change() {
    let asked = MetadataRequest { topics: Some(vec![]), ..Default::default() };
    let frame = request(&asked, 9, 7, "me").concat();
    let expected = [0, 0, 0, 18, 0, 3, 0, 9, 0, 0, 0, 7, 0, 2, b'm', b'e', 0, 1, 1, 0, 0, 0];
    assert_eq!(frame[..], expected);
    let (header, mut reader) = RequestHeader::read(frame.slice(4..), ITEMS_MAX).expect("a header");
    assert_eq!((header.api, header.version, header.correlation_id), (3, 9, 7));
    assert_eq!(header.client_id.as_deref(), Some("me"));
    assert_eq!(MetadataRequest::read(&mut reader), Ok(asked));

    let answer = MetadataResponse { cluster_id: Some("c".to_owned()), ..Default::default() };
    let frame = response(Api::Metadata, 2, 7, &answer).expect("short").concat();
    let expected = [0, 0, 0, 19, 0, 0, 0, 7, 0, 0, 0, 0, 0, 1, b'c', 255, 255, 255, 255, 0, 0, 0, 0];
    assert_eq!(frame[..], expected);
    assert_eq!(read_response(Api::Metadata, 2, frame.slice(4..)), Ok((7, answer)));
}

#[test]
fn the_bytes_of_what_a_quorum_is_told_to_be_are_those_of_the_protocol() {
    let answer = DescribeQuorumResponse {
        topics: vec![DescribeQuorumTopicData {
            topic_name: "m".to_owned(),
            partitions: vec![DescribeQuorumPartitionData {
                leader_id: 1,
                leader_epoch: 2,
                high_watermark: 3,
                current_voters: vec![QuorumReplicaState {
                    replica_id: 1,
                    log_end_offset: 3,
                    ..Default::default()
                }],
                ..Default::default()
            }],
        }],
        nodes: vec![DescribeQuorumNode {
            node_id: 1,
            listeners: vec![DescribeQuorumListener {
                name: "P".to_owned(),
                host: "h".to_owned(),
                port: 9_092,
            }],
        }],
        ..Default::default()
    };
    let none = [255; 8];
    let voter = [&[2, 0, 0, 0, 1][..], &[0; 16], &[0, 0, 0, 0, 0, 0, 0, 3], &none, &none, &[0]].concat();
    let before =
        [&[0, 0, 0, 2, 2, b'm', 2][..], &[0; 6], &[0, 0, 0, 0, 1, 0, 0, 0, 2], &[0, 0, 0, 0, 0, 0, 0, 3]];
    let nodes = [2, 0, 0, 0, 1, 2, 2, b'P', 2, b'h', 0x23, 0x84, 0, 0];
    let expected = [&before.concat()[..], &voter, &[1, 0, 0], &nodes, &[0]].concat();
    assert_eq!(body(&answer, Api::DescribeQuorum, 2)[..], expected);
    let asked = ElectLeadersRequest { election_type: 1, topic_partitions: None, timeout_ms: 1 };
    assert_eq!(body(&asked, Api::ElectLeaders, 0)[..], [255, 255, 255, 255, 0, 0, 0, 1]);
    assert_eq!(body(&asked, Api::ElectLeaders, 2)[..], [1, 0, 0, 0, 0, 1, 0]);
}

#[test]
fn an_answer_that_no_frame_holds_is_an_error() {
    let piece = Bytes::from(vec![0; 1 << 20]);
    let records = |mib: usize| RecordsBytes(vec![piece.clone(); mib]);
    for (mib, version) in [([1_024, 1_024], 11), ([1_024, 1_024], 12), ([2_048, 0], 11), ([0, 4_096], 12)] {
        let partitions =
            mib.map(|mib| PartitionData { records: records(mib), ..Default::default() }).to_vec();
        let topic = FetchableTopicResponse { partitions, ..Default::default() };
        let answer = FetchResponse { responses: vec![topic], ..Default::default() };
        let written = response(Api::Fetch, version, 9, &answer);
        assert!(written.is_err_and(|TooLong(len)| len > mib.iter().sum::<usize>() << 20));
    }
}

#[test]
fn records_go_out_from_where_they_lie_whatever_is_around_them() {
    for sizes in [vec![], vec![10], vec![5_000], vec![5_000, 100, 70_000]] {
        let records = RecordsBytes(sizes.iter().map(|size| Bytes::from(vec![7_u8; *size])).collect());
        let partitions = vec![PartitionData { records: records.clone(), ..Default::default() }; 2];
        let topic = FetchableTopicResponse { topic: "t".to_owned(), partitions, ..Default::default() };
        let answer = FetchResponse { responses: vec![topic], ..Default::default() };
        for version in [4, 11, 12, 18] {
            let frame = response(Api::Fetch, version, 9, &answer).expect("short");
            for piece in records.0.iter().filter(|piece| piece.len() >= 5_000) {
                assert!(frame.pieces.iter().any(|sent| sent.as_ptr() == piece.as_ptr()), "not copied");
            }
            let bytes = frame.concat();
            assert_eq!(bytes.len() as i32 - 4, i32::from_be_bytes(*bytes.first_chunk().expect("a length")));
            let (id, read) =
                read_response::<FetchResponse>(Api::Fetch, version, bytes.slice(4..)).expect("whole");
            let read = &read.responses[0].partitions[1].records;
            assert_eq!((id, read.clone().into_bytes()), (9, records.clone().into_bytes()), "{version}");
        }
    }
}
