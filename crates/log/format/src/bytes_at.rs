//! Fixed-width fields at fixed places. Every caller has checked the length of its bytes before.

macro_rules! little_endian {
    ($($get:ident, $put:ident: $type:ty;)*) => {$(
        pub(crate) fn $get(bytes: &[u8], at: usize) -> $type {
            const WIDTH: usize = size_of::<$type>();
            <$type>::from_le_bytes(bytes[at..at + WIDTH].try_into().expect("the slice is as long as the type"))
        }

        pub(crate) fn $put(bytes: &mut [u8], at: usize, value: $type) {
            bytes[at..at + size_of::<$type>()].copy_from_slice(&value.to_le_bytes());
        }
    )*};
}

little_endian! {
    u16_le, put_u16_le: u16;
    u32_le, put_u32_le: u32;
    u64_le, put_u64_le: u64;
    i64_le, put_i64_le: i64;
}

macro_rules! big_endian {
    ($($get:ident, $put:ident: $type:ty;)*) => {$(
        pub(crate) fn $get(bytes: &[u8], at: usize) -> $type {
            const WIDTH: usize = size_of::<$type>();
            <$type>::from_be_bytes(bytes[at..at + WIDTH].try_into().expect("the slice is as long as the type"))
        }

        pub(crate) fn $put(bytes: &mut [u8], at: usize, value: $type) {
            bytes[at..at + size_of::<$type>()].copy_from_slice(&value.to_be_bytes());
        }
    )*};
}

big_endian! {
    i16_be, put_i16_be: i16;
    i32_be, put_i32_be: i32;
    u32_be, put_u32_be: u32;
    i64_be, put_i64_be: i64;
}

/// 16 bytes as they are.
pub(crate) fn bytes16(bytes: &[u8], at: usize) -> [u8; 16] {
    bytes[at..at + 16].try_into().expect("the slice is 16 bytes long")
}
