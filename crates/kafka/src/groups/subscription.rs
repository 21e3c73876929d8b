//! What consumers say of themselves when they join, and what their leader assigns to them, in their own format, as far as
//! it matters here.
//!
//! ```text
//! subscription                              assignment
//! 0  2  version                             0  2  version
//! 2     topics: count i32, then a string    2     topics: count i32, then a string and
//!       each; more that is not looked at          partitions (count i32, then i32 each) each; more
//! ```

use bytes::Bytes;

use crate::wire::{Reader, Wire};

messages! {
    Assigned {
        topic: String,
        partitions: Vec<i32>,
    }
}

/// The topics that a consumer subscribes to; `None` if it says it in a form that is not known.
pub(crate) fn topics(subscription: Bytes) -> Option<Vec<String>> {
    let mut reader = Reader::new(subscription, 0, false);
    i16::read(&mut reader).ok().filter(|version| *version >= 0)?;
    Vec::read(&mut reader).ok()
}

/// The partitions that are assigned to a consumer; `None` if that is in a form that is not known.
pub(crate) fn assigned(assignment: Bytes) -> Option<Vec<Assigned>> {
    let mut reader = Reader::new(assignment, 0, false);
    i16::read(&mut reader).ok().filter(|version| *version >= 0)?;
    Vec::read(&mut reader).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
