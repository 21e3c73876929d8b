//! What a consumer says of itself when it joins, in its own format, as far as it matters here.
//!
//! ```text
//! 0  2  version
//! 2     topics: count i32, then a string each
//!       more that is not looked at
//! ```

use bytes::Bytes;

use crate::wire::{Reader, Wire};

/// The topics that a consumer subscribes to; `None` if it says it in a form that is not known.
pub(crate) fn topics(metadata: Bytes) -> Option<Vec<String>> {
    let mut reader = Reader::new(metadata, 0, false);
    i16::read(&mut reader).ok().filter(|version| *version >= 0)?;
    Vec::<String>::read(&mut reader).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_found_and_what_is_no_subscription_is_none() {
        let bytes = Bytes::from_static(&[0, 3, 0, 0, 0, 2, 0, 1, b'a', 0, 2, b'b', b'c', 9, 9]);
        assert_eq!(topics(bytes), Some(vec!["a".to_owned(), "bc".to_owned()]));
        assert_eq!(topics(Bytes::from_static(&[0, 1, 0, 0, 0, 9])), None);
        assert_eq!(topics(Bytes::new()), None);
    }
}
