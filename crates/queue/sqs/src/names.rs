//! Names of queues: in their account, in addresses, and as ARNs.

use crate::error::{Code, ErrorRefusal};
use crate::limits::NAME_CHARS_MAX;

/// What the name of a FIFO queue ends with.
pub(crate) const FIFO_SUFFIX: &str = ".fifo";

/// Whether these are the characters that names and ids may have, and as many.
pub(crate) fn is_simple(text: &str) -> bool {
    (1..=NAME_CHARS_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

/// Whether a queue may have that name.
pub(crate) fn check(name: &str, is_fifo: bool) -> Result<(), ErrorRefusal> {
    let bare = name.strip_suffix(FIFO_SUFFIX);
    let is_good = match bare {
        Some(bare) if is_fifo => is_simple(bare) && name.len() <= NAME_CHARS_MAX,
        _ => !is_fifo && is_simple(name),
    };
    if is_good {
        return Ok(());
    }
    Err(match is_fifo {
        true => ErrorRefusal::new(
            Code::InvalidParameterValue,
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with \
             .fifo suffix and be 1 to 80 in length.",
        ),
        false => ErrorRefusal::new(
            Code::InvalidParameterValue,
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
        ),
    })
}

/// A queue in an address, `http://host/account/name`; or its name alone, as no account.
pub(crate) fn of_url(url: &str) -> Option<(Option<&str>, &str)> {
    let path = match url.split_once("://") {
        Some((_, rest)) => rest.split_once('/')?.1,
        None => url.strip_prefix('/').unwrap_or(url),
    };
    let path = path.split(['?', '#']).next()?;
    let mut parts = path.trim_end_matches('/').rsplit('/');
    let name = parts.next().filter(|name| !name.is_empty())?;
    Some((parts.next().filter(|account| !account.is_empty()), name))
}

/// A queue's ARN.
pub(crate) fn arn(region: &str, account: &str, name: &str) -> String {
    format!("arn:aws:sqs:{region}:{account}:{name}")
}

/// Account and name of an ARN, of any region.
pub(crate) fn of_arn(arn: &str) -> Option<(&str, &str)> {
    let mut parts = arn.split(':');
    let is_arn = parts.next() == Some("arn") && parts.next().is_some() && parts.next() == Some("sqs");
    let (_region, account, name) = (parts.next()?, parts.next()?, parts.next()?);
    (is_arn && parts.next().is_none() && !name.is_empty()).then_some((account, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_found_in_its_address_however_that_is_written() {
        for url in ["http://localhost:9324/000000000000/q", "/000000000000/q", "https://h/x/000000000000/q/"]
        {
            assert_eq!(of_url(url), Some((Some("000000000000"), "q")), "{url}");
        }
        assert_eq!(of_url("q.fifo"), Some((None, "q.fifo")));
        for nothing in ["", "/", "http://localhost:9324", "http://localhost:9324/"] {
            assert_eq!(of_url(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn an_arn_is_read_as_it_was_written() {
        assert_eq!(of_arn(&arn("eu-west-1", "123456789012", "q.fifo")), Some(("123456789012", "q.fifo")));
        for none in ["", "arn:aws:sns:r:1:q", "arn:aws:sqs:r:1", "arn:aws:sqs:r:1:q:x"] {
            assert_eq!(of_arn(none), None, "{none}");
        }
    }

    #[test]
    fn names_have_amazon_s_characters_and_fifo_queues_their_suffix() {
        for (name, is_fifo, is_good) in [
            ("a-b_C9", false, true),
            ("q.fifo", true, true),
            ("q.fifo", false, false),
            ("q", true, false),
            (".fifo", true, false),
            ("", false, false),
            ("a b", false, false),
        ] {
            assert_eq!(check(name, is_fifo).is_ok(), is_good, "{name}");
        }
        assert!(check(&"x".repeat(80), false).is_ok() && check(&"x".repeat(81), false).is_err());
    }
}
