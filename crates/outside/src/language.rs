//! Law of codecs as text.

use thinwire_codec::language::{Text, compile};
use thinwire_codec::{Choice, Finite, Input, Write};
use thinwire_wire::random::Key;

const ELEMENTS: usize = 200;

/// Checks that any text is either compiled to a codec that decodes its own encodings, or refused with an
/// error of one line that names a place.
pub fn language(bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    let text = Text { path: "fuzz.codec", source, parameters: &[] };
    match compile(&text) {
        Ok(Choice::Bytes(codec)) => {
            let values: Vec<f32> = (0..ELEMENTS).map(|at| (at as f32).sin()).collect();
            let mut encoded = vec![0; codec.encoded_len(ELEMENTS)];
            let key = Key { seed: 1, step: 2, tensor: 3 };
            let finite = codec.encode(Input::Plain(&values), key, &mut encoded);
            let mut decoded = vec![0.0; ELEMENTS];
            let read = codec.decode(&encoded, Write::Set, &mut decoded);
            read.expect("its own encoding decodes");
            let all_finite = decoded.iter().all(|value: &f32| value.is_finite());
            assert!(finite == Finite::No || all_finite, "finite numbers became {decoded:?}");
        }
        Ok(_) => {}
        Err(error) => {
            let line = error.to_string();
            assert!(line.starts_with("fuzz.codec") && !line.contains('\n'), "{line}");
        }
    }
}
