use proptest::prelude::*;

use super::*;

fn compressed(codec: Codec, input: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Compressor::default().compress(codec, input, &mut out);
    out
}

const COMPRESSING: [Codec; 4] = [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

#[test]
fn exactly_the_limit_is_allowed_and_one_byte_more_is_not() {
    let input = vec![7; 300_000];
    let mut decompressor = Decompressor::new();
    for codec in Codec::ALL {
        let bytes = compressed(codec, &input);
        assert_eq!(decompressor.decompress(codec, &bytes, input.len()), Ok(&input[..]), "{codec}");
        let bytes_max = input.len() - 1;
        let error = Err(DecompressError::TooLarge { codec, bytes_max });
        assert_eq!(decompressor.decompress(codec, &bytes, bytes_max), error, "{codec}");
        // A refusal leaves nothing behind that the next one trips over.
        assert_eq!(decompressor.decompress(codec, &bytes, input.len()), Ok(&input[..]), "{codec}");
    }
}

#[test]
fn a_bomb_takes_no_more_memory_than_the_limit() {
    let bomb = vec![0; 64 << 20];
    for codec in COMPRESSING {
        let bytes = compressed(codec, &bomb);
        let mut decompressor = Decompressor::new();
        let bytes_max = 100_000;
        let error = Err(DecompressError::TooLarge { codec, bytes_max });
        assert_eq!(decompressor.decompress(codec, &bytes, bytes_max), error);
        assert!(decompressor.out.capacity() <= bytes_max, "{codec}: {}", decompressor.out.capacity());
    }
}

#[test]
fn a_buffer_that_was_larger_before_keeps_to_the_smaller_limit() {
    let mut decompressor = Decompressor::new();
    for codec in COMPRESSING {
        let large = vec![1; 1 << 20];
        decompressor.decompress(codec, &compressed(codec, &large), 2 << 20).expect("within the limit");
        let bytes = compressed(codec, &[1; 1001]);
        let error = Err(DecompressError::TooLarge { codec, bytes_max: 1000 });
        assert_eq!(decompressor.decompress(codec, &bytes, 1000), error);
    }
}

#[test]
fn a_claimed_length_alone_takes_no_memory() {
    let mut decompressor = Decompressor::new();
    // Snappy: 2^30 bytes claimed, one byte there.
    let snappy = [0x80, 0x80, 0x80, 0x80, 0x04, 0x00];
    assert!(decompressor.decompress(Codec::Snappy, &snappy, usize::MAX).is_err());
    // zstd: a single segment of 2^40 bytes, and no block.
    let zstd = [0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 1, 0, 0];
    assert!(decompressor.decompress(Codec::Zstd, &zstd, usize::MAX).is_err());
    assert!(decompressor.out.capacity() < 4 << 20, "{}", decompressor.out.capacity());
}

#[test]
fn what_other_programs_write_is_read() {
    let input = b"another way to write the same bytes, another way to write the same bytes".repeat(3000);
    let mut decompressor = Decompressor::new();

    let raw_snappy = snap::raw::Encoder::new().compress_vec(&input).expect("short");
    assert_eq!(decompressor.decompress(Codec::Snappy, &raw_snappy, 1 << 20), Ok(&input[..]), "raw snappy");

    let two_members = [compressed(Codec::Gzip, &input[..10]), compressed(Codec::Gzip, &input[10..])].concat();
    assert_eq!(decompressor.decompress(Codec::Gzip, &two_members, 1 << 20), Ok(&input[..]), "gzip members");

    // A streaming encoder does not know how much will come, and its frame does not say.
    let mut encoder = zstd::Encoder::new(Vec::new(), 19).expect("level 19 exists");
    encoder.write_all(&input).expect("a vector takes it");
    let streamed = encoder.finish().expect("a vector takes it");
    assert!(matches!(zstd_safe::get_frame_content_size(&streamed), Ok(None)));
    assert_eq!(decompressor.decompress(Codec::Zstd, &streamed, 1 << 20), Ok(&input[..]), "streamed zstd");

    let mut encoder = zstd::Encoder::new(Vec::new(), 19).expect("level 19 exists");
    encoder.write_all(&input[10..]).expect("a vector takes it");
    let behind = encoder.finish().expect("a vector takes it");
    let two_frames = [compressed(Codec::Zstd, &input[..10]), behind].concat();
    assert_eq!(decompressor.decompress(Codec::Zstd, &two_frames, 1 << 20), Ok(&input[..]), "zstd frames");

    let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3][..], &two_frames].concat();
    assert_eq!(decompressor.decompress(Codec::Zstd, &skippable, 1 << 20), Ok(&input[..]), "skippable frame");

    let linked = FrameInfo::new()
        .block_size(BlockSize::Max4MB)
        .block_mode(BlockMode::Linked)
        .block_checksums(true)
        .content_checksum(true);
    let mut encoder = FrameEncoder::with_frame_info(linked, Vec::new());
    encoder.write_all(&input).expect("a vector takes it");
    let linked = encoder.finish().expect("a vector takes it");
    assert_eq!(decompressor.decompress(Codec::Lz4, &linked, 1 << 20), Ok(&input[..]), "linked lz4");
}

#[test]
fn a_codec_is_found_by_its_name_and_number() {
    for codec in Codec::ALL {
        assert_eq!(codec.name().parse(), Ok(codec));
        assert_eq!(Codec::from_number(codec as u8), Some(codec));
    }
    assert!("brotli".parse::<Codec>().is_err());
    assert_eq!(Codec::from_number(5), None);
}

proptest! {
    #[test]
    fn every_codec_gives_back_what_it_took(
        input in proptest::collection::vec(prop_oneof![Just(7u8), any::<u8>()], 0..3000), times in 1usize..40,
    ) {
        let input = input.repeat(times);
        let mut decompressor = Decompressor::new();
        for codec in Codec::ALL {
            let bytes = compressed(codec, &input);
            prop_assert_eq!(decompressor.decompress(codec, &bytes, 1 << 20), Ok(&input[..]));
        }
    }

    #[test]
    fn damage_is_an_error_or_other_bytes_within_the_limit(
        input in proptest::collection::vec(prop_oneof![Just(7u8), any::<u8>()], 0..2000),
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
        cut in 0usize..20,
    ) {
        let mut decompressor = Decompressor::new();
        for codec in COMPRESSING {
            let mut bytes = compressed(codec, &input);
            for (index, byte) in &damage {
                let at = index.index(bytes.len());
                bytes[at] = *byte;
            }
            bytes.truncate(bytes.len().saturating_sub(cut));
            if let Ok(output) = decompressor.decompress(codec, &bytes, 10_000) {
                prop_assert!(output.len() <= 10_000);
            }
            prop_assert!(decompressor.out.capacity() <= 10_000);
        }
    }

    #[test]
    fn garbage_is_an_error_or_bytes_within_the_limit(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut decompressor = Decompressor::new();
        let magics: [(Codec, &[u8]); 7] = [
            (Codec::Gzip, &[]),
            (Codec::Gzip, &[0x1f, 0x8b, 8]),
            (Codec::Snappy, &[]),
            (Codec::Snappy, &XERIAL_MAGIC),
            (Codec::Lz4, &[0x04, 0x22, 0x4d, 0x18]),
            (Codec::Zstd, &[0x28, 0xb5, 0x2f, 0xfd]),
            (Codec::Zstd, &[]),
        ];
        for (codec, magic) in magics {
            let input = [magic, &bytes].concat();
            if let Ok(output) = decompressor.decompress(codec, &input, 10_000) {
                prop_assert!(output.len() <= 10_000);
            }
        }
        prop_assert!(decompressor.out.capacity() <= 10_000);
    }
}
