//! Variable-length integers as Kafka's records have them: zigzag, then seven bits a byte, lowest first.
//!
//! Nearly all of them take one or two bytes; those are decoded in line, longer ones out of line.

/// Most bytes of a 32-bit number.
pub(super) const VARINT_BYTES_MAX: usize = 5;
/// Most bytes of a 64-bit number.
pub(super) const VARLONG_BYTES_MAX: usize = 10;

/// The 32-bit number at the beginning of `bytes`, and what is behind it; `None` if it does not end within five
/// bytes or within `bytes`, or does not fit 32 bits.
#[inline(always)]
pub(super) fn read_i32(bytes: &[u8]) -> Option<(i32, &[u8])> {
    let (raw, rest) = match *bytes {
        [a, ref rest @ ..] if a < 0x80 => (u32::from(a), rest),
        [a, b, ref rest @ ..] if b < 0x80 => (u32::from(a & 0x7f) | u32::from(b) << 7, rest),
        _ => read_i32_long(bytes)?,
    };
    Some(((raw >> 1) as i32 ^ -((raw & 1) as i32), rest))
}

/// The 64-bit number at the beginning of `bytes`, and what is behind it; `None` if it does not end within ten
/// bytes or within `bytes`, or does not fit 64 bits.
#[inline(always)]
pub(super) fn read_i64(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let (raw, rest) = match *bytes {
        [a, ref rest @ ..] if a < 0x80 => (u64::from(a), rest),
        [a, b, ref rest @ ..] if b < 0x80 => (u64::from(a & 0x7f) | u64::from(b) << 7, rest),
        _ => read_long(bytes, VARLONG_BYTES_MAX)?,
    };
    Some(((raw >> 1) as i64 ^ -((raw & 1) as i64), rest))
}

#[inline(never)]
fn read_i32_long(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (raw, rest) = read_long(bytes, VARINT_BYTES_MAX)?;
    Some((u32::try_from(raw).ok()?, rest))
}

fn read_long(bytes: &[u8], bytes_max: usize) -> Option<(u64, &[u8])> {
    let mut raw: u64 = 0;
    for (index, &byte) in bytes.iter().take(bytes_max).enumerate() {
        let bits = u64::from(byte & 0x7f);
        let shift = 7 * index as u32;
        if bits << shift >> shift != bits {
            return None;
        }
        raw |= bits << shift;
        if byte < 0x80 {
            return Some((raw, &bytes[index + 1..]));
        }
    }
    None
}

/// Appends a number of either width: a 32-bit one has the same bytes as a 64-bit one.
#[inline]
pub(super) fn put(out: &mut Vec<u8>, value: i64) {
    let mut raw = (value << 1 ^ value >> 63) as u64;
    while raw >= 0x80 {
        out.push(raw as u8 | 0x80);
        raw >>= 7;
    }
    out.push(raw as u8);
}

/// How many bytes [`put`] appends.
#[inline]
pub(super) fn len(value: i64) -> usize {
    let raw = (value << 1 ^ value >> 63) as u64;
    // One byte for each begun group of seven bits; zero takes one too.
    (64 - (raw | 1).leading_zeros() as usize).div_ceil(7)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bytes_of_a_number_never_change() {
        let cases: [(i64, &[u8]); 9] = [
            (0, &[0]),
            (-1, &[1]),
            (63, &[0x7e]),
            (-64, &[0x7f]),
            (64, &[0x80, 0x01]),
            (8191, &[0xfe, 0x7f]),
            (8192, &[0x80, 0x80, 0x01]),
            (i64::from(i32::MIN), &[0xff, 0xff, 0xff, 0xff, 0x0f]),
            (i64::MAX, &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]),
        ];
        for (value, expected) in cases {
            let mut out = Vec::new();
            put(&mut out, value);
            assert_eq!(out, expected, "{value}");
            assert_eq!(read_i64(&out), Some((value, &[][..])), "{value}");
        }
    }

    #[test]
    fn a_number_that_does_not_end_or_does_not_fit_is_refused() {
        for bytes in [&[][..], &[0x80], &[0xff; 4], &[0xff; 5], &[0xff, 0xff, 0xff, 0xff, 0x1f]] {
            assert_eq!(read_i32(bytes), None, "{bytes:02x?}");
        }
        for bytes in [&[][..], &[0xff; 9], &[0xff; 10], &[0xff; 20]] {
            assert_eq!(read_i64(bytes), None, "{bytes:02x?}");
        }
        let too_wide = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        assert_eq!(read_i64(&too_wide), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(value in any::<i64>(), shift in 0u32..64, behind in any::<[u8; 3]>()) {
            let value = value >> shift;
            let mut out = Vec::new();
            put(&mut out, value);
            prop_assert_eq!(out.len(), len(value));
            out.extend_from_slice(&behind);
            prop_assert_eq!(read_i64(&out), Some((value, &behind[..])));
            let narrow = i32::try_from(value).ok();
            prop_assert_eq!(read_i32(&out).map(|(value, _)| value), narrow);
        }

        #[test]
        fn any_bytes_are_a_number_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..16)) {
            let _ = (read_i32(&bytes), read_i64(&bytes));
        }
    }
}
