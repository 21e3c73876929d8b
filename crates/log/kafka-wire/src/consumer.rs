//! What consumers say of themselves when they join a group, and what their leader assigns to them. To the coordinator
//! these are bytes; all of Kafka's clients have them in this form.
//!
//! ```text
//! subscription                              assignment
//! 0  2  version                             0  2  version
//! 2     topics: count i32, then a string    2     topics: count i32, then a string and
//!       each                                      partitions (count i32, then i32 each) each
//!       user data: length i32, -1 null            user data: length i32, -1 null
//!       from version 1 on: owned partitions,
//!       as an assignment's
//! ```
//! Later versions have more at the end, which is not looked at here.
#![allow(missing_docs)] // drawn above

use bytes::Bytes;

use crate::wire::{Reader, Wire, Writer};

/// The last version that there is.
const VERSION_MAX: i16 = 3;

/// What the members of such groups are, as they say when they join.
pub const PROTOCOL_TYPE: &str = "consumer";

messages! {
    Subscription {
        topics: Vec<String>,
        user_data: Option<Bytes>,
        owned_partitions: Vec<Assigned> [1..],
    }
    Assignment {
        topics: Vec<Assigned>,
        user_data: Option<Bytes>,
    }
    Assigned {
        topic: String,
        partitions: Vec<i32>,
    }
}

/// The version in which a subscription, or an assignment, is written, but none that is not known here.
pub fn version(bytes: &[u8]) -> i16 {
    bytes.first_chunk().map_or(0, |version| i16::from_be_bytes(*version)).clamp(0, VERSION_MAX)
}

/// Writes one of the two, of later versions than 1 so much of it as is drawn above.
pub fn encode<M: Wire>(message: &M, version: i16) -> Bytes {
    let mut writer = Writer::new(version, false);
    version.write(&mut writer);
    message.write(&mut writer);
    // Without the length of a frame.
    writer.finish().expect("it fits into a frame with those of all others").concat().slice(4..)
}

/// The topics that a consumer subscribes to; `None` if it says it in a form that is not known.
pub fn topics(subscription: Bytes) -> Option<Vec<String>> {
    Vec::read(&mut body(subscription)?).ok()
}

/// What a consumer says of itself; `None` if it says it in a form that is not known. Some clients name a version that
/// has owned partitions, and end before them: they own none.
pub fn subscription(subscription: Bytes) -> Option<Subscription> {
    let mut body = body(subscription)?;
    let mut before_owned = body.clone().at_version(0);
    Subscription::read(&mut body).ok().or_else(|| {
        let said = Subscription::read(&mut before_owned).ok()?;
        (before_owned.left() == 0).then_some(said)
    })
}

/// The partitions that are assigned to a consumer; `None` if that is in a form that is not known.
pub fn assigned(assignment: Bytes) -> Option<Vec<Assigned>> {
    Vec::read(&mut body(assignment)?).ok()
}

fn body(bytes: Bytes) -> Option<Reader> {
    let version = i16::from_be_bytes(*bytes.first_chunk()?);
    (version >= 0).then(|| Reader::new(bytes.slice(2..), version, false))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_make_the_readers_panic(bytes: Vec<u8>, count in 0..4_u8) {
            let _ = (subscription(bytes.clone().into()), assigned(bytes.clone().into()));
            let bytes = [&[0, 0, 0, 0, 0, count, 0, 1, b't'], bytes.as_slice()].concat();
            let _ = (topics(bytes.clone().into()), assigned(bytes.clone().into()));
            let _ = subscription(bytes.into());
        }
    }

    #[test]
    fn topics_and_partitions_are_found_and_what_is_in_no_known_form_is_none() {
        let bytes = Bytes::from_static(&[0, 3, 0, 0, 0, 2, 0, 1, b'a', 0, 2, b'b', b'c', 9, 9]);
        assert_eq!(topics(bytes), Some(vec!["a".to_owned(), "bc".to_owned()]));
        let bytes = Bytes::from_static(&[0, 0, 0, 0, 0, 1, 0, 1, b'a', 0, 0, 0, 1, 0, 0, 0, 7, 255]);
        assert_eq!(assigned(bytes), Some(vec![Assigned { topic: "a".to_owned(), partitions: vec![7] }]));
        for bad in [&[0, 1, 0, 0, 0, 9][..], &[], &[255, 255, 0, 0, 0, 0]] {
            assert_eq!(topics(Bytes::copy_from_slice(bad)), None);
            assert_eq!(assigned(Bytes::copy_from_slice(bad)), None);
        }
    }

    #[test]
    fn what_is_written_is_as_kafka_s_clients_have_it() {
        let topics = vec!["t".to_owned()];
        let subscription = Subscription { topics, ..Default::default() };
        let owned = [0, 1, 0, 0, 0, 1, 0, 1, b't', 255, 255, 255, 255, 0, 0, 0, 0];
        assert_eq!(encode(&subscription, 1)[..], owned);
        let topics = vec![Assigned { topic: "t".to_owned(), partitions: vec![2] }];
        let assignment = Assignment { topics: topics.clone(), ..Default::default() };
        let bytes = encode(&assignment, 0);
        assert_eq!(bytes[..], [0, 0, 0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1, 0, 0, 0, 2, 255, 255, 255, 255]);
        assert_eq!(assigned(bytes), Some(topics.clone()));
        let said = Subscription { owned_partitions: topics, ..subscription };
        assert_eq!(super::subscription(encode(&said, 3)), Some(said.clone()));
        let ends_before_them =
            super::subscription(Bytes::copy_from_slice(&owned[..13])).expect("a subscription");
        assert_eq!(
            (&ends_before_them.topics, &ends_before_them.owned_partitions),
            (&said.topics, &Vec::new())
        );
        assert_eq!(super::subscription(Bytes::copy_from_slice(&owned[..15])), None, "cut within them");
        let before_there_were_owned_ones = super::subscription(encode(&said, 0)).expect("a subscription");
        assert_eq!(before_there_were_owned_ones.owned_partitions, []);
    }
}
