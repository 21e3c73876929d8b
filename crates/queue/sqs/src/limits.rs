//! All limits of the front: unit, reason. Where Amazon's documentation has one, it is that.

use std::ops::RangeInclusive;

/// Messages of one batch.
pub const BATCH_MAX: usize = 10;

/// Characters of a batch entry's id, and of a queue's name.
pub const NAME_CHARS_MAX: usize = 80;

/// Characters of a group's name, of a deduplication id, of an attempt's id.
pub const ID_CHARS_MAX: usize = 128;

/// Attributes of one message.
pub const ATTRIBUTES_MAX: usize = 10;

/// Characters of an attribute's name, and of its type.
pub const ATTRIBUTE_NAME_CHARS_MAX: usize = 256;

/// Digits of an attribute's number that count.
pub const NUMBER_DIGITS_MAX: usize = 38;

/// Powers of ten of the first digit that counts of such a number. It may be 10 to the next one, and not more.
pub const NUMBER_POWERS: RangeInclusive<i64> = -128..=125;

/// Bytes of a message, or of a batch, attributes included.
pub const MESSAGE_BYTES: RangeInclusive<u32> = 1_024..=1_048_576;

/// Seconds that a receive waits.
pub const WAIT_S: RangeInclusive<u32> = 0..=20;

/// Seconds that a message is invisible.
pub const VISIBILITY_S: RangeInclusive<u32> = 0..=43_200;

/// Seconds of delay.
pub const DELAY_S: RangeInclusive<u32> = 0..=900;

/// Seconds that a message is kept.
pub const RETENTION_S: RangeInclusive<u32> = 60..=1_209_600;

/// Receives before a message goes to the dead-letter queue.
pub const RECEIVES: RangeInclusive<u32> = 1..=1_000;

/// Tags of a queue.
pub const TAGS_MAX: usize = 50;

/// Characters of a tag's key.
pub const TAG_KEY_CHARS_MAX: usize = 128;

/// Characters of a tag's value.
pub const TAG_VALUE_CHARS_MAX: usize = 256;

/// Results of one page.
pub const PAGE_MAX: usize = 1_000;

/// Messages of one look at a queue.
pub const PEEK_MAX: usize = 100;

/// Messages of one look that are read at once: as many as a receive has.
pub const PEEK_STEP: usize = 10;

/// Bytes of the messages of one look, but for the first one: as many as a message may have.
pub const PEEK_BYTES_MAX: usize = 1_048_576;

/// How long an answer whose messages were received, or a body of which some has come, waits for room at most, in
/// milliseconds; a body up to a half longer, or shorter.
pub const ROOM_WAIT_MS: u64 = 1_000;

/// Bytes that are taken at once of what all large bodies share, as a body comes.
pub const BODY_STEP_BYTES: usize = 256 << 10;

/// Bytes of a policy.
pub const POLICY_BYTES_MAX: usize = 20_480;

/// Bytes of a policy about who may have a queue for its dead letters: ten ARNs, and what is around them.
pub const ALLOW_POLICY_BYTES_MAX: usize = 4_096;

/// Queues that such a policy names.
pub const ALLOWED_MAX: usize = 10;

/// Characters of an encryption key's name.
pub const KEY_ID_CHARS_MAX: usize = 2_048;

/// Bytes of all that is kept of a queue, as JSON. More than the limits of each part come to, and little beside the 8
/// MiB that a record of the journal has, in which the operations of many clients are.
pub const RECORD_BYTES_MAX: usize = 256 << 10;

/// Nesting in a request's body: deeper ones are refused by the parser, which has a limit of 128.
pub const PARAMETERS_MAX: usize = 1_000;

/// How far a signature's time may be from ours, in seconds.
pub const SKEW_S: u64 = 15 * 60;

/// Longest time for which a request can be signed in advance, in seconds: a week.
pub const PRESIGNED_S_MAX: u64 = 7 * 24 * 3_600;

/// Bodies and answers up to this size take nothing of what all large ones share, in bytes. Receives, which may wait,
/// have no longer bodies.
pub const SMALL_BYTES: usize = 64 << 10;

const _: () = {
    assert!(BATCH_MAX == tailwater_queue::limits::BATCH_MAX, "a batch is one request");
    assert!(
        *MESSAGE_BYTES.end() as usize <= tailwater_queue::limits::CONTENT_BYTES_MAX,
        "any message is a content"
    );
    assert!(
        *VISIBILITY_S.end() as u64 * 1_000 == tailwater_queue::limits::INVISIBLE_MS_MAX,
        "both say 12 hours"
    );
    assert!(
        PEEK_STEP <= PEEK_MAX && PEEK_BYTES_MAX >= *MESSAGE_BYTES.end() as usize,
        "a look shows any message"
    );
    assert!(ALLOW_POLICY_BYTES_MAX <= POLICY_BYTES_MAX, "one policy is part of all");
    assert!(
        POLICY_BYTES_MAX + ALLOW_POLICY_BYTES_MAX + TAGS_MAX * 4 * (TAG_KEY_CHARS_MAX + TAG_VALUE_CHARS_MAX)
            < RECORD_BYTES_MAX,
        "a queue's record has its parts"
    );
    assert!(SMALL_BYTES <= BODY_STEP_BYTES, "what is large takes whole steps");
};
/// Accounts of a node at most: all are in memory.
pub const ACCOUNTS_MAX: usize = 10_000;
/// Keys of an account that is kept in the metadata: two serve while one takes the place of the other.
pub const ACCOUNT_KEYS_MAX: usize = 8;
/// How often a change is tried again when another node has changed the same account meanwhile.
pub const CONFLICTS_MAX: usize = 16;
