//! Numbers in as few bytes as they need: seven bits a byte, the lowest first, the top bit set on all but the
//! last byte; at most ten bytes.

use bytes::BufMut;

/// Appends `value`.
pub(crate) fn put(out: &mut impl BufMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// How many bytes `value` takes.
pub(crate) fn size(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Takes one from the front of `bytes`; `None` if it is cut off, has more than ten bytes or does not fit.
#[inline]
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let (&first, rest) = bytes.split_first()?;
    if first < 0x80 {
        *bytes = rest;
        return Some(u64::from(first));
    }
    let mut value = u64::from(first & 0x7f);
    for (at, &byte) in rest.iter().enumerate().take(9) {
        let shift = 7 * (at as u32 + 1);
        if shift == 63 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            *bytes = &rest[at + 1..];
            return Some(value);
        }
    }
    None
}

/// A signed number as an unsigned one that is small when it is near zero.
pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_cut_ones_do_not() {
        for value in [0, 1, 127, 128, 300, 1 << 35, u64::MAX] {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            assert_eq!(bytes.len(), size(value));
            for cut in 0..bytes.len() {
                assert_eq!(take(&mut &bytes[..cut]), None);
            }
            let mut rest = bytes.as_slice();
            assert_eq!(take(&mut rest), Some(value));
            assert!(rest.is_empty());
            assert_eq!(unzigzag(zigzag(value as i64)), value as i64);
        }
        assert_eq!(take(&mut [0xff; 10].as_slice()), None);
    }
}
