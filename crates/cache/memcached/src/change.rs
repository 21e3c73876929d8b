//! What a command makes of an item: a decision about what the key holds, without clock or network.
//!
//! It may be made more than once, of other values, until one comes about: it is a function of what it is given.

use bytes::{Bytes, BytesMut};
use tailwater_cache::{CellValue, ItemExtras, UpdateTo};

use crate::limits::{RELATIVE_EXPIRY_S_MAX, VALUE_BYTES_MAX};
use crate::request::StoreVerb;

/// In the tag: the value is stale, and who reads it is told.
const STALE: u64 = 1 << 32;
/// In the tag: somebody was told to make the value anew.
const SENT: u64 = 1 << 33;

/// The decimal digits of the greatest number that is counted with.
const DIGITS_MAX: usize = 20;

/// What an item has beside its value, as the tag of the cell's item has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ItemTag {
    /// What the client keeps beside the value.
    pub flags: u32,
    /// The value is to be made anew.
    pub is_stale: bool,
    /// Somebody was told to.
    pub is_sent: bool,
}

impl ItemTag {
    pub fn of(flags: u32) -> Self {
        Self { flags, ..Self::default() }
    }

    pub fn from_tag(tag: u64) -> Self {
        Self { flags: tag as u32, is_stale: tag & STALE != 0, is_sent: tag & SENT != 0 }
    }

    pub fn to_tag(self) -> u64 {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        u64::from(self.flags) | bit(self.is_stale, STALE) | bit(self.is_sent, SENT)
    }
}

/// When an item expires that was given `exptime` at `wall_ms`, in milliseconds since the Unix epoch; 0: never.
pub(crate) fn expires_ms(exptime: i64, wall_ms: i64) -> u64 {
    let at_ms = match exptime {
        0 => return 0,
        // At once, and ever since.
        ..0 => 1,
        1..=RELATIVE_EXPIRY_S_MAX => wall_ms.saturating_add(exptime * 1_000),
        _ => exptime.saturating_mul(1_000),
    };
    u64::try_from(at_ms).unwrap_or(1).max(1)
}

/// The seconds that an item has left at `wall_ms`; `None` if it does not expire.
pub(crate) fn left_s(expires_ms: u64, wall_ms: i64) -> Option<u64> {
    let now_ms = u64::try_from(wall_ms).unwrap_or(0);
    (expires_ms != 0).then(|| expires_ms.saturating_sub(now_ms).div_ceil(1_000))
}

/// A change of one key.
#[derive(Clone, Debug)]
pub(crate) enum KeyChange {
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`, `ms`.
    Store {
        verb: StoreVerb,
        data: Bytes,
        flags: u32,
        expires_ms: u64,
        /// Only if the item has this CAS unique.
        cas: Option<u64>,
        /// If it has another one, the value is stored all the same, and stale.
        may_be_stale: bool,
        /// Of `append` and `prepend`: an item is made if there is none, which expires then.
        vivify: Option<u64>,
        /// The item's CAS unique from now on; 0: that of its version.
        token: u64,
    },
    /// `delete`, `md`.
    Delete { cas: Option<u64> },
    /// `md` with `I`: the item stays, and is stale. It expires then, if that is given.
    Invalidate { cas: Option<u64>, expires_ms: Option<u64>, token: u64 },
    /// `incr`, `decr`, `ma`.
    Arithmetic {
        delta: u64,
        is_decr: bool,
        cas: Option<u64>,
        /// When the item expires from now on, if that changes.
        expires_ms: Option<u64>,
        /// The number of an item that is made if there is none, and when that expires.
        vivify: Option<(u64, u64)>,
        /// As of `Store`.
        token: u64,
    },
    /// `touch`, `gat`, `mg` with flags that change the item.
    Fetch {
        /// When the item expires from now on, if that changes.
        touch: Option<u64>,
        /// When an item expires that is made if there is none.
        vivify: Option<u64>,
        /// Who asks first is told to make the value anew, if it expires before.
        recache_before_ms: Option<u64>,
        /// The CAS unique of an item that is made; 0: that of its version.
        token: u64,
    },
}

/// What a change came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyChanged {
    Stored,
    NotStored,
    /// The CAS unique is another one.
    Exists,
    NotFound,
    Deleted,
    /// The number that the item is now.
    Number(u64),
    NotANumber,
    TooLarge,
    /// The item as it was, or the one that was made.
    Fetched {
        is_new: bool,
        /// Who asked is to make the value anew.
        is_won: bool,
    },
}

impl KeyChange {
    /// What becomes of a key that holds `held`, and what the client is told of it.
    pub fn decide(&self, held: Option<&CellValue>) -> (UpdateTo, KeyChanged) {
        let keep = |changed| (UpdateTo::Keep, changed);
        match self {
            Self::Store { verb, data, flags, expires_ms, cas, may_be_stale, vivify, token } => {
                let (expires_ms, token) = (*expires_ms, *token);
                let fresh = ItemExtras { expires_ms, tag: ItemTag::of(*flags).to_tag(), token };
                let more = |held: &CellValue| ItemExtras { token, ..held.extras };
                let stored = |extras| (UpdateTo::Set(data.clone(), extras), KeyChanged::Stored);
                match (held, cas) {
                    (None, Some(_)) => return keep(KeyChanged::NotFound),
                    (Some(held), Some(cas)) if is_other(held, Some(*cas)) => {
                        // Those that clients gave have an order, others have none.
                        let is_later = held.extras.token != 0 && *cas > held.extras.token;
                        if !may_be_stale || is_later {
                            return keep(KeyChanged::Exists);
                        }
                        // Whoever was told to make it anew is still about it.
                        let is_sent = ItemTag::from_tag(held.extras.tag).is_sent;
                        let tag = ItemTag { flags: *flags, is_stale: true, is_sent };
                        return stored(ItemExtras { tag: tag.to_tag(), ..fresh });
                    }
                    _ => {}
                }
                match (verb, held) {
                    (StoreVerb::Add, Some(_)) | (StoreVerb::Replace, None) => keep(KeyChanged::NotStored),
                    (StoreVerb::Set | StoreVerb::Add | StoreVerb::Replace, _) => stored(fresh),
                    (StoreVerb::Append | StoreVerb::Prepend, None) => match vivify {
                        None => keep(KeyChanged::NotStored),
                        Some(expires_ms) => stored(ItemExtras { expires_ms: *expires_ms, ..fresh }),
                    },
                    (StoreVerb::Append, Some(held)) => join(&held.value, data, more(held)),
                    (StoreVerb::Prepend, Some(held)) => join(data, &held.value, more(held)),
                }
            }
            Self::Delete { cas } => match held {
                None => keep(KeyChanged::NotFound),
                Some(held) if is_other(held, *cas) => keep(KeyChanged::Exists),
                Some(_) => (UpdateTo::Erase, KeyChanged::Deleted),
            },
            Self::Invalidate { cas, expires_ms, token } => match held {
                None => keep(KeyChanged::NotFound),
                Some(held) if is_other(held, *cas) => keep(KeyChanged::Exists),
                Some(held) => {
                    let tag =
                        ItemTag { is_stale: true, is_sent: false, ..ItemTag::from_tag(held.extras.tag) };
                    let expires_ms = expires_ms.unwrap_or(held.extras.expires_ms);
                    let extras = ItemExtras { expires_ms, tag: tag.to_tag(), token: *token };
                    (UpdateTo::Set(held.value.clone(), extras), KeyChanged::Deleted)
                }
            },
            Self::Arithmetic { delta, is_decr, cas, expires_ms, vivify, token } => {
                let set = |number: u64, extras| {
                    (UpdateTo::Set(number.to_string().into(), extras), KeyChanged::Number(number))
                };
                let Some(held) = held else {
                    return match vivify {
                        None => keep(KeyChanged::NotFound),
                        Some((number, expires_ms)) => {
                            set(*number, ItemExtras { expires_ms: *expires_ms, tag: 0, token: *token })
                        }
                    };
                };
                if is_other(held, *cas) {
                    return keep(KeyChanged::Exists);
                }
                let Some(number) = number_of(&held.value) else { return keep(KeyChanged::NotANumber) };
                let number =
                    if *is_decr { number.saturating_sub(*delta) } else { number.wrapping_add(*delta) };
                set(
                    number,
                    ItemExtras {
                        expires_ms: expires_ms.unwrap_or(held.extras.expires_ms),
                        token: *token,
                        ..held.extras
                    },
                )
            }
            Self::Fetch { touch, vivify, recache_before_ms, token } => {
                fetch(held, *touch, vivify.map(|expires_ms| (expires_ms, *token)), *recache_before_ms)
            }
        }
    }
}

fn is_other(held: &CellValue, cas: Option<u64>) -> bool {
    cas.is_some_and(|cas| cas != held.extras.token_at(held.version))
}

fn join(first: &[u8], second: &[u8], extras: ItemExtras) -> (UpdateTo, KeyChanged) {
    if first.len() + second.len() > VALUE_BYTES_MAX {
        return (UpdateTo::Keep, KeyChanged::TooLarge);
    }
    let mut value = BytesMut::with_capacity(first.len() + second.len());
    value.extend_from_slice(first);
    value.extend_from_slice(second);
    (UpdateTo::Set(value.freeze(), extras), KeyChanged::Stored)
}

/// A value as a number; spaces may be behind it, as old versions of memcached left them there.
fn number_of(value: &[u8]) -> Option<u64> {
    let digits = value.trim_ascii_end();
    let are_digits =
        !digits.is_empty() && digits.len() <= DIGITS_MAX && digits.iter().all(u8::is_ascii_digit);
    if !are_digits {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn fetch(
    held: Option<&CellValue>,
    touch: Option<u64>,
    vivify: Option<(u64, u64)>,
    recache_before_ms: Option<u64>,
) -> (UpdateTo, KeyChanged) {
    let Some(held) = held else {
        let Some((expires_ms, token)) = vivify else { return (UpdateTo::Keep, KeyChanged::NotFound) };
        let tag = ItemTag { is_sent: true, ..ItemTag::default() }.to_tag();
        let made = UpdateTo::Set(Bytes::new(), ItemExtras { expires_ms, tag, token });
        return (made, KeyChanged::Fetched { is_new: true, is_won: true });
    };
    let tag = ItemTag::from_tag(held.extras.tag);
    let expires_ms = touch.unwrap_or(held.extras.expires_ms);
    let expires_soon = recache_before_ms
        .is_some_and(|before| held.extras.expires_ms != 0 && held.extras.expires_ms < before);
    let is_won = (tag.is_stale || expires_soon) && !tag.is_sent;
    let changed = KeyChanged::Fetched { is_new: false, is_won };
    let tag = ItemTag { is_sent: tag.is_sent || is_won, ..tag }.to_tag();
    let extras = ItemExtras { expires_ms, tag, token: held.extras.token };
    match extras == held.extras && touch.is_none() {
        true => (UpdateTo::Keep, changed),
        false => (UpdateTo::Set(held.value.clone(), extras), changed),
    }
}

#[cfg(test)]
mod tests {
    use tailwater_cache::Version;

    use super::*;

    fn held(value: &'static str, extras: ItemExtras) -> CellValue {
        let version = Version { timestamp_us: 5, client_id: 1, sequence: 0 };
        CellValue { version, value: value.into(), extras }
    }

    fn store(verb: StoreVerb, cas: Option<u64>, may_be_stale: bool) -> KeyChange {
        let data = Bytes::from_static(b"new");
        KeyChange::Store { verb, data, flags: 7, expires_ms: 9, cas, may_be_stale, vivify: None, token: 0 }
    }

    #[test]
    fn an_expiry_counts_from_now_up_to_thirty_days_and_is_a_time_beyond() {
        let now_ms = 1_800_000_000_000;
        for (exptime, expected) in [
            (0, 0),
            (-1, 1),
            (i64::MIN, 1),
            (1, 1_800_000_001_000),
            (RELATIVE_EXPIRY_S_MAX, 1_802_592_000_000),
            (RELATIVE_EXPIRY_S_MAX + 1, 2_592_001_000),
            (1_900_000_000, 1_900_000_000_000),
            (i64::MAX, i64::MAX as u64),
        ] {
            assert_eq!(expires_ms(exptime, now_ms), expected, "{exptime}");
        }
        assert_eq!((left_s(0, now_ms), left_s(1, now_ms)), (None, Some(0)));
        assert_eq!(left_s(1_800_000_000_001, now_ms), Some(1));
    }

    #[test]
    fn each_way_to_store_goes_by_what_is_there() {
        let there = held("old", ItemExtras { expires_ms: 3, tag: 1, token: 0 });
        let token = there.version.token();
        let (set, both) = (UpdateTo::Set, ItemExtras { expires_ms: 9, tag: 7, token: 0 });
        let fresh = || (set("new".into(), both), KeyChanged::Stored);
        let kept = |changed| (UpdateTo::Keep, changed);
        for (change, of_none, of_some) in [
            (store(StoreVerb::Set, None, false), fresh(), fresh()),
            (store(StoreVerb::Add, None, false), fresh(), kept(KeyChanged::NotStored)),
            (store(StoreVerb::Replace, None, false), kept(KeyChanged::NotStored), fresh()),
            (
                store(StoreVerb::Append, None, false),
                kept(KeyChanged::NotStored),
                (set("oldnew".into(), there.extras), KeyChanged::Stored),
            ),
            (
                store(StoreVerb::Prepend, None, false),
                kept(KeyChanged::NotStored),
                (set("newold".into(), there.extras), KeyChanged::Stored),
            ),
            (store(StoreVerb::Set, Some(token), false), kept(KeyChanged::NotFound), fresh()),
            (store(StoreVerb::Set, Some(1), false), kept(KeyChanged::NotFound), kept(KeyChanged::Exists)),
            (
                store(StoreVerb::Set, Some(1), true),
                kept(KeyChanged::NotFound),
                (set("new".into(), ItemExtras { tag: 7 | STALE, ..both }), KeyChanged::Stored),
            ),
        ] {
            assert_eq!(change.decide(None), of_none, "{change:?}");
            assert_eq!(change.decide(Some(&there)), of_some, "{change:?}");
        }
        let long = CellValue { value: vec![0; VALUE_BYTES_MAX - 2].into(), ..there };
        assert_eq!(store(StoreVerb::Append, None, false).decide(Some(&long)), kept(KeyChanged::TooLarge));
    }

    #[test]
    fn numbers_wrap_upwards_and_stop_at_zero_and_what_is_none_stays() {
        let change = |delta, is_decr| KeyChange::Arithmetic {
            delta,
            is_decr,
            cas: None,
            expires_ms: None,
            token: 0,
            vivify: None,
        };
        let of = |value, change: KeyChange| change.decide(Some(&held(value, ItemExtras::default()))).1;
        assert_eq!(of("10", change(5, false)), KeyChanged::Number(15));
        assert_eq!(of("10  ", change(11, true)), KeyChanged::Number(0));
        assert_eq!(of("18446744073709551615", change(2, false)), KeyChanged::Number(1));
        for value in ["", "x", "-1", "+1", "1.5", "18446744073709551616", "999999999999999999999"] {
            assert_eq!(of(value, change(1, false)), KeyChanged::NotANumber, "{value}");
        }
        assert_eq!(change(1, false).decide(None), (UpdateTo::Keep, KeyChanged::NotFound));
    }

    #[test]
    fn of_those_who_ask_for_a_stale_or_missing_item_one_is_told_to_make_it_anew() {
        let ask = KeyChange::Fetch { touch: None, vivify: Some(50), recache_before_ms: Some(30), token: 0 };
        let (to, changed) = ask.decide(None);
        assert_eq!(changed, KeyChanged::Fetched { is_new: true, is_won: true });
        let UpdateTo::Set(value, extras) = to else { panic!("it is made") };
        assert!(value.is_empty() && extras.expires_ms == 50);
        let second = CellValue { extras, ..held("", extras) };
        let not_won = KeyChanged::Fetched { is_new: false, is_won: false };
        assert_eq!(ask.decide(Some(&second)), (UpdateTo::Keep, not_won));

        let stale = KeyChange::Invalidate { cas: None, expires_ms: Some(99), token: 0 };
        let fresh = held("x", ItemExtras { expires_ms: 80, tag: 5, token: 0 });
        let (UpdateTo::Set(_, extras), KeyChanged::Deleted) = stale.decide(Some(&fresh)) else {
            panic!("stale")
        };
        assert_eq!((extras.expires_ms, extras.tag), (99, 5 | STALE));
        let (UpdateTo::Set(_, won), changed) = ask.decide(Some(&held("x", extras))) else { panic!("won") };
        assert_eq!(changed, KeyChanged::Fetched { is_new: false, is_won: true });
        assert_eq!(ask.decide(Some(&held("x", won))), (UpdateTo::Keep, not_won));

        let soon = held("x", ItemExtras { expires_ms: 29, tag: 0, token: 0 });
        assert_eq!(ask.decide(Some(&soon)).1, KeyChanged::Fetched { is_new: false, is_won: true });
        assert_eq!(ask.decide(Some(&fresh)), (UpdateTo::Keep, not_won));
    }
}
