//! Laws of the encodings of all codecs.

use std::sync::{Arc, LazyLock};

use thinwire_codec::{Choice, Codec, Finite, Input, Write, all};
use thinwire_wire::random::Key;

use crate::draw::Draw;

/// Largest number of elements of most ranges: some blocks of every codec.
const ELEMENTS_MAX: usize = 512;
/// Elements that are added to a few ranges: more than 16-bit indices can reach.
const MANY: usize = 1 << 16;

/// Every example of every codec that writes bytes, made once, since some of them make tables.
static CODECS: LazyLock<Vec<Arc<dyn Codec>>> = LazyLock::new(|| {
    let bytes = |choice| match choice {
        Choice::Bytes(codec) => Some(codec),
        Choice::LowRank(_) | Choice::Integers(_) => None,
    };
    all().into_iter().filter_map(bytes).collect()
});

fn codec(index: u8) -> &'static dyn Codec {
    &*CODECS[usize::from(index) % CODECS.len()]
}

/// Checks that every codec decodes any bytes to any number of values, or refuses them.
pub fn decode(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let (codec, size, how) = (codec(draw.u8()), usize::from(draw.u16()), draw.u8());
    // A large range takes a thousand times as long: two of 256 inputs ask for one.
    let elements = size % ELEMENTS_MAX + if how >= 0xfe { MANY } else { 0 };
    let (fitting, write) = (how & 1 == 0, if how & 2 == 0 { Write::Set } else { Write::Add });
    let expected = codec.encoded_len(elements);
    let mut bytes = draw.rest().to_vec();
    if fitting {
        // Codecs check the length first: repeat the drawn bytes until it fits.
        bytes.extend_from_slice(&[0][..usize::from(bytes.is_empty())]);
        bytes = bytes.repeat(expected.div_ceil(bytes.len()).max(1));
        bytes.truncate(expected);
        if let Some(length) = bytes.first_chunk_mut().filter(|_| codec.is_variable()) {
            *length = (expected as u32).to_le_bytes();
        }
    }
    let mut values = vec![0.0; elements];
    let result = codec.decode(&bytes, write, &mut values);
    if bytes.len() != expected && !codec.is_variable() {
        assert!(result.is_err(), "{codec} took {} bytes for {elements} values", bytes.len());
    }
}

/// Checks that every codec takes any values, NaN and infinities too, and decodes its own encodings.
pub fn encode(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let (codec, seed) = (codec(draw.u8()), draw.u64());
    let (words, _) = draw.rest().as_chunks::<4>();
    let values: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
    let mut bytes = vec![0; codec.encoded_len(values.len())];
    let key = Key { seed, step: 0, tensor: 0 };
    let plain = codec.encode(Input::Plain(&values), key, &mut bytes);

    let mut decoded = vec![0.0f32; values.len()];
    let frame = &bytes[..codec.frame_len(&bytes)];
    codec.decode(frame, Write::Set, &mut decoded).expect("its own encoding decodes");
    if plain == Finite::Yes {
        assert!(decoded.iter().all(|value| value.is_finite()), "{codec} said finite");
    }

    // A residual of -0.0 changes no bit of any sum, so feedback must encode the same bytes.
    let (mut kept, residual) = (values.clone(), vec![-0.0; values.len()]);
    let mut again = vec![0; bytes.len()];
    let feedback = Input::Feedback { values: &mut kept, residual: &residual };
    if codec.encode(feedback, key, &mut again) == Finite::Yes && plain == Finite::Yes {
        let frame = |bytes: &[u8]| bytes[..codec.frame_len(bytes)].to_vec();
        assert_eq!(frame(&bytes), frame(&again), "{codec} with feedback");
    }
}
