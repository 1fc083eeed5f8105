//! Every codec takes any values, NaN and infinities too, and decodes what it has encoded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thinwire_codec::{Choice, Finite, Input, Write, all};
use thinwire_wire::random::Key;

fuzz_target!(|input: (u8, u64, Vec<u32>)| {
    let (index, seed, bits) = input;
    let choices = all();
    let Choice::Bytes(codec) = &choices[usize::from(index) % choices.len()] else { return };
    let values: Vec<f32> = bits.iter().copied().map(f32::from_bits).collect();
    let mut bytes = vec![0; codec.encoded_len(values.len())];
    let key = Key { seed, step: 0, tensor: 0 };
    let plain = codec.encode(Input::Plain(&values), key, &mut bytes);

    let mut decoded = vec![0.0f32; values.len()];
    codec.decode(&bytes, Write::Set, &mut decoded).expect("its own encoding decodes");
    if plain == Finite::Yes {
        assert!(decoded.iter().all(|value| value.is_finite()), "{codec} said finite");
    }

    // With nothing left over from before (-0.0, which changes no bit of any sum), feedback encodes
    // the same bytes.
    let (mut kept, residual) = (values.clone(), vec![-0.0; values.len()]);
    let mut again = vec![0; bytes.len()];
    let feedback = Input::Feedback { values: &mut kept, residual: &residual };
    if codec.encode(feedback, key, &mut again) == Finite::Yes && plain == Finite::Yes {
        assert_eq!(bytes, again, "{codec} with feedback");
    }
});
