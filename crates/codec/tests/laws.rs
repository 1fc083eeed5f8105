//! Every codec in the table keeps the laws.

use std::sync::Arc;

use proptest::prelude::*;
use thinwire_codec::{Choice, Codec, Finite, Input, Write, all, codec_laws};
use thinwire_wire::random::Key;

fn codecs() -> Vec<Arc<dyn Codec>> {
    let bytes = |choice| match choice {
        Choice::Bytes(codec) => Some(codec),
        Choice::LowRank(_) | Choice::Integers(_) => None,
    };
    all().into_iter().filter_map(bytes).collect()
}

codec_laws!(each codecs());

proptest! {
    #[test]
    fn any_bits_are_encoded_and_decoded_or_reported(
        raw in prop::collection::vec(prop_oneof![any::<u32>(), any::<f32>().prop_map(f32::to_bits)], 0..600),
        seed: u64,
    ) {
        let values: Vec<f32> = raw.into_iter().map(f32::from_bits).collect();
        for codec in codecs() {
            let mut bytes = vec![0; codec.encoded_len(values.len())];
            let key = Key { seed, step: 1, tensor: 2 };
            let finite = codec.encode(Input::Plain(&values), key, &mut bytes);
            let mut decoded = vec![0.0; values.len()];
            codec.decode(&bytes[..codec.frame_len(&bytes)], Write::Set, &mut decoded).unwrap();
            let all = decoded.iter().all(|x| x.is_finite());
            prop_assert!(all || finite == Finite::No, "{}", codec);
        }
    }

    #[test]
    fn a_damaged_message_decodes_or_is_refused(
        values in prop::collection::vec(-1.0..1.0f32, 1..3000),
        place: prop::sample::Index,
        byte: u8,
    ) {
        for codec in codecs().into_iter().filter(|codec| codec.is_variable()) {
            let mut bytes = vec![0; codec.encoded_len(values.len())];
            let key = Key { seed: 1, step: 1, tensor: 2 };
            let _ = codec.encode(Input::Plain(&values), key, &mut bytes);
            bytes.truncate(codec.frame_len(&bytes));
            let place = place.index(bytes.len());
            bytes[place] = byte;
            let _ = codec.decode(&bytes, Write::Add, &mut vec![0.0; values.len()]);
            // Symbols whose coder did not end as encoding began are never taken.
            bytes.truncate(bytes.len() - 2);
            let length = (bytes.len() as u32).to_le_bytes();
            bytes[..4].copy_from_slice(&length);
            let result = codec.decode(&bytes, Write::Add, &mut vec![0.0; values.len()]);
            prop_assert!(result.is_err(), "{}", codec);
        }
    }

    #[test]
    fn any_bytes_of_any_length_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..3000), length in 0..700usize) {
        for codec in codecs() {
            let mut values = vec![0.0; length];
            let result = codec.decode(&bytes, Write::Set, &mut values);
            let fits = codec.is_variable() || bytes.len() == codec.encoded_len(length);
            prop_assert!(result.is_err() || fits);
        }
    }
}
