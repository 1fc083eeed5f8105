//! Codecs as text: the five of `examples/codecs` are those in Rust, bit for bit.

use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use thinwire_codec::language::{Text, compile};
use thinwire_codec::{Choice, Codec, Finite, Input, Write};
use thinwire_wire::random::Key;

fn bytes(choice: Choice) -> Arc<dyn Codec> {
    match choice {
        Choice::Bytes(codec) => codec,
        other => panic!("{other} has no bytes"),
    }
}

fn rust(name: &str) -> Arc<dyn Codec> {
    bytes(Choice::parse(name).unwrap())
}

fn example(name: &str) -> Arc<dyn Codec> {
    rust(&format!("{}/../../examples/codecs/{name}", env!("CARGO_MANIFEST_DIR")))
}

/// The codec in Rust and the same as text.
fn pairs() -> Vec<Pair> {
    let names = [
        ("onebit", "onebit.codec"),
        ("tbq:0.5", "tbq.codec:tau=0.5"),
        ("terngrad", "terngrad.codec"),
        ("graddrop:0.01", "graddrop.codec"),
        ("graddrop:0.25", "graddrop.codec:ratio=0.25"),
        ("dgc:0.01", "dgc.codec"),
        ("dgc:0.25", "dgc.codec:ratio=0.25"),
    ];
    names.into_iter().map(|(name, file)| (rust(name), example(file))).collect()
}

fn number() -> impl Strategy<Value = f32> {
    let special =
        [0.0, -0.0, f32::MAX, f32::MIN, 1e-45, -1e-38, 7.888_609e-31, f32::NAN, f32::INFINITY];
    prop_oneof![
        40 => -2.0..2.0f32,
        2 => any::<u32>().prop_map(f32::from_bits),
        4 => (-8..8i8).prop_map(|x| f32::from(x) * 0.5),
        1 => prop::sample::select(special.to_vec()),
    ]
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// A codec in Rust and the same as text.
type Pair = (Arc<dyn Codec>, Arc<dyn Codec>);

static PAIRS: LazyLock<Vec<Pair>> = LazyLock::new(pairs);

proptest! {
    #[test]
    fn text_is_what_rust_is(
        input in prop::collection::vec((number(), number()), 0..3000),
        tame: bool,
        seed: u64,
    ) {
        let key = Key { seed, step: 7, tensor: 3 };
        let keep = |x: f32| if !tame || x.abs() < 1e30 { x } else { 1.0 };
        let (values, residual): (Vec<f32>, Vec<f32>) =
            input.into_iter().map(|(x, e)| (keep(x), keep(e))).unzip();
        agree(&values, &residual, key);
    }
}

/// What both write, leave and read is the same.
fn agree(values: &[f32], residual: &[f32], key: Key) {
    for (rust, text) in PAIRS.iter() {
        let len = rust.encoded_len(values.len());
        assert_eq!(len, text.encoded_len(values.len()));
        let run = |codec: &dyn Codec, feedback: bool| {
            let (mut left, mut bytes) = (values.to_vec(), vec![0x77; len]);
            let input = match feedback {
                false => Input::Plain(values),
                true => Input::Feedback { values: &mut left, residual },
            };
            let finite = codec.encode(input, key, &mut bytes);
            (finite, bytes, left)
        };
        for feedback in [false, true] {
            let (expected, found) = (run(rust.as_ref(), feedback), run(text.as_ref(), feedback));
            assert_eq!(expected.0, found.0, "{} {}", rust, feedback);
            if expected.0 == Finite::Yes {
                assert!(expected.1 == found.1, "{} {}: bytes", rust, feedback);
                assert!(bits(&expected.2) == bits(&found.2), "{} {}: left", rust, feedback);
            }
            for write in [Write::Set, Write::Add] {
                let (mut a, mut b) = (values.to_vec(), values.to_vec());
                rust.decode(&expected.1, write, &mut a).unwrap();
                text.decode(&expected.1, write, &mut b).unwrap();
                let same =
                    |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                assert!(a.iter().zip(&b).all(same), "{}: decoded", rust);
            }
        }
    }
}

/// A codec whose codes are what `codes` says.
fn codes(codes: &str) -> Arc<dyn Codec> {
    let source = format!(
        "codec codes
block 160
encode x:
    unit = mean(abs(x))
    emit f32 unit
    emit i4 {codes}
decode:
    unit = take f32
    yield take i4 * unit
"
    );
    bytes(compile(&Text { path: "codes.codec", source: &source, parameters: &[] }).unwrap())
}

/// Operators that are made one, and the same with one more between them that changes nothing.
static FUSED: LazyLock<Vec<Pair>> = LazyLock::new(|| {
    let all = [
        "select(x > unit, 3, select(x < -unit, -2, 1))",
        "select(unit >= x, 9, select(0.5 > x, -1, 0))",
        "select(x < 0.5, 1, -9)",
        "round_random(x * unit)",
        "round(x)",
    ];
    all.map(|own| (codes(own), codes(&format!("{own} + 0")))).into()
});

proptest! {
    #[test]
    fn operators_that_are_made_one_stay_what_they_are(
        values in prop::collection::vec(number(), 0..700),
        seed: u64,
    ) {
        let key = Key { seed, step: 7, tensor: 3 };
        for (fused, apart) in FUSED.iter() {
            let run = |codec: &dyn Codec| {
                let mut bytes = vec![0x77; codec.encoded_len(values.len())];
                (codec.encode(Input::Plain(&values), key, &mut bytes), bytes)
            };
            prop_assert_eq!(run(fused.as_ref()), run(apart.as_ref()));
        }
    }
}

/// More than the interpreter works on at once, and more than is counted without a sample.
#[test]
fn text_is_what_rust_is_in_long_ranges() {
    let key = Key { seed: 5, step: 1, tensor: 2 };
    for length in [4096, 8192, 20_011, 70_001] {
        let values: Vec<f32> = (0..length).map(|element| key.normal(element)).collect();
        let residual: Vec<f32> = values.iter().rev().map(|x| x * 0.3).collect();
        agree(&values, &residual, key);
    }
}

/// The laws that any codec must keep, for the five as text.
#[test]
fn text_keeps_every_law() {
    for (_, text) in PAIRS.iter() {
        for (_, law) in thinwire_codec::laws::ALL {
            law(text.as_ref());
        }
    }
}

/// A codec that sends what `sent` says, as it is.
fn sends(sent: &str) -> Arc<dyn Codec> {
    let source = format!(
        "codec sends\nblock 100\nencode x:\n    emit f32 {sent}\ndecode:\n    yield take f32\n"
    );
    bytes(compile(&Text { path: "sends.codec", source: &source, parameters: &[] }).unwrap())
}

fn sent(codec: &dyn Codec, values: &[f32]) -> Vec<f32> {
    let key = Key { seed: 1, step: 2, tensor: 3 };
    let mut bytes = vec![0; codec.encoded_len(values.len())];
    assert_eq!(codec.encode(Input::Plain(values), key, &mut bytes), Finite::Yes);
    let mut decoded = vec![0.0; values.len()];
    codec.decode(&bytes, Write::Set, &mut decoded).unwrap();
    decoded
}

proptest! {
    #[test]
    fn a_shift_gives_the_neighbour_and_0_at_the_edge(
        values in prop::collection::vec(-2.0..2.0f32, 0..350),
        places in -120..120isize,
    ) {
        let shifted = |block: &[f32]| -> Vec<f32> {
            let from = |at: usize| at.checked_add_signed(-places).and_then(|at| block.get(at));
            (0..block.len()).map(|at| from(at).copied().unwrap_or(0.0)).collect()
        };
        let expected: Vec<f32> = values.chunks(100).flat_map(shifted).collect();
        let found = sent(sends(&format!("shift(x, {places})")).as_ref(), &values);
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn a_transform_is_that_of_walsh_and_its_own_inverse(
        values in prop::collection::vec(-2.0..2.0f32, 0..350),
    ) {
        // Pieces of 64, 32 and 4 elements of a block of 100, and others of the last block.
        let piece = |rest: &[f32]| 1 << rest.len().ilog2();
        let walsh = |mut rest: &[f32]| {
            let mut all = Vec::new();
            while !rest.is_empty() {
                let (own, others) = rest.split_at(piece(rest));
                let sign = |a: usize, b: usize| if (a & b).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
                let one = |at| own.iter().enumerate().map(|(i, x)| f64::from(*x) * sign(at, i)).sum::<f64>();
                all.extend((0..own.len()).map(|at| one(at) / (own.len() as f64).sqrt()));
                rest = others;
            }
            all
        };
        let expected: Vec<f64> = values.chunks(100).flat_map(walsh).collect();
        let found = sent(sends("transform(x)").as_ref(), &values);
        prop_assert!(found.iter().zip(expected).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-5));
        let back = sent(sends("transform(transform(x))").as_ref(), &values);
        prop_assert!(back.iter().zip(&values).all(|(a, b)| (a - b).abs() < 1e-5));
    }
}

#[test]
fn blocks_are_counted_from_the_first_element_in_encode_and_decode() {
    let codec = sends("x + block_index");
    let found = sent(codec.as_ref(), &[0.5; 1650]);
    assert!(found.iter().enumerate().all(|(at, x)| *x == (at / 100) as f32 + 0.5));
    assert!(!codec.claims().separable);
    for name in ["dither", "delta", "hadamard", "clipped", "centred"] {
        let codec = example(&format!("{name}.codec"));
        let key = Key { seed: 5, step: 1, tensor: 2 };
        let values: Vec<f32> = (0..5000).map(|element| key.normal(element)).collect();
        let decoded = sent(codec.as_ref(), &values);
        let error = decoded.iter().zip(&values).map(|(a, b)| (a - b).abs());
        let most = if name == "clipped" { 4.0 } else { 0.8 };
        assert!(error.fold(0.0, f32::max) < most, "{name}");
    }
}
