//! Kernels give the bits of the Rust codecs: on the host, where no device is needed.
#![cfg(all(feature = "cuda", target_os = "linux"))]

mod alike;
mod inputs;

use alike::{address, bits, check, codec, expected, launch};
use thinwire_codec::{Choice, Write};
use thinwire_device::cuda::arguments;
use thinwire_device::cuda::kernel::{Kernels, kernels};
use thinwire_device::cuda::simulated::host;
use thinwire_wire::random::Key;

/// Names of codecs with kernels, of one file each.
const CASTS: [&str; 3] = ["none", "f16", "bf16"];
const INTS: [&str; 10] = [
    "int8",
    "int4",
    "int3",
    "int8:stochastic",
    "int4:stochastic",
    "int3:stochastic",
    "int4:least-squares",
    "int3:least-squares",
    "intsgd",
    "intsgd:16",
];
const SIGNS: [&str; 5] = ["int2", "onebit", "vote", "tbq:0.5", "tbq:0.001"];
const LEVELS: [&str; 10] = [
    "terngrad",
    "terngrad:2.5",
    "natural",
    "qsgd:3",
    "qsgd:4",
    "qsgd:5",
    "qsgd:6",
    "qsgd:7",
    "qsgd:8",
    "qsgd:4:l2",
];
const FLOATS: [&str; 3] = ["e4m3", "e5m2", "dynamic8"];

const SPARSE: [&str; 8] = [
    "topk:0.01",
    "topk:0.25",
    "topk:0.6",
    "topk:1",
    "graddrop:0.01",
    "graddrop:0.25",
    "dgc:0.01",
    "dgc:0.25",
];

const RANS: [&str; 5] = ["ecsq:1.4", "ecsq:0.5", "ecsq:0.02", "lossless", "lossless:bf16"];

/// Lengths around every group, block and byte, and some between.
fn some_lengths() -> impl Iterator<Item = usize> {
    let around = [0usize, 8, 16, 32, 48, 64, 96, 112, 128, 256, 384, 512, 640, 1000];
    let around = around.into_iter().flat_map(|n| n.saturating_sub(1)..=n + 1);
    around.chain((0..1000).step_by(61)).chain([6000, 40_001])
}

fn check_some(names: &[&str]) {
    if host::is_there() {
        names.iter().for_each(|name| check(&*codec(name), some_lengths()));
    }
}

#[test]
fn casts_equal_the_codecs() {
    check_some(&CASTS);
}

#[test]
fn small_integers_equal_the_codecs() {
    check_some(&INTS);
}

#[test]
fn signs_equal_the_codecs() {
    check_some(&SIGNS);
}

#[test]
fn levels_equal_the_codecs() {
    check_some(&LEVELS);
}

#[test]
fn numbers_of_one_byte_equal_the_codecs() {
    check_some(&FLOATS);
}

#[test]
fn sparse_elements_equal_the_codecs() {
    // Launches are many here: all kinds of values at one length alone.
    if host::is_there() {
        let lengths = || some_lengths().filter(|length| ![129, 6000].contains(length)).step_by(3);
        SPARSE.iter().for_each(|name| check(&*codec(name), lengths().chain([257, 5001, 40_001])));
    }
}

#[test]
fn entropy_coded_symbols_equal_the_codecs() {
    if host::is_there() {
        let lengths = [0, 1, 33, 257, 4095, 5001, 16_383, 16_385, 70_001];
        RANS.iter().for_each(|name| check(&*codec(name), lengths));
    }
}

#[test]
#[ignore = "takes minutes"]
fn every_length_and_a_million_equal_the_codecs() {
    if host::is_there() {
        for name in [&CASTS[..], &INTS, &SIGNS, &LEVELS, &FLOATS, &SPARSE, &RANS].concat() {
            check(&*codec(name), (0..=1000).chain([6000, 100_003, 1_000_000]));
        }
    }
}

#[test]
fn packing_equals_decoding_and_scaling() {
    if !host::is_there() {
        return;
    }
    for (name, length) in CASTS.into_iter().flat_map(|name| [0, 1, 255, 5000].map(|n| (name, n))) {
        let codec = codec(name);
        let mut encoding = expected(
            &*codec,
            &inputs::exponents(length, 1),
            None,
            Key { seed: 0, step: 0, tensor: 0 },
        )
        .bytes;
        let mut values = vec![0.0; length];
        codec.decode(&encoding, Write::Set, &mut values).unwrap();
        let mut scaled = vec![0.0; length];
        thinwire_codec::kernel::scale_copy(&mut scaled, &values, 0.3);
        let Some(Kernels::Cast(cast)) = kernels(&*codec) else { panic!("{name} is a cast") };
        let mut largest = [0u32];
        // Elements of any alignment: the allocator's is more.
        let arguments = arguments::Cast {
            values: address(&mut values),
            elements: address(&mut encoding),
            largest: address(&mut largest),
            length: length as u64,
            scale: 0.3,
            ..arguments::Cast::default()
        };
        launch(cast.pack, cast.grid(length), &arguments, 5);
        assert_eq!(bits(&values), bits(&scaled), "{name}");
        assert_eq!(largest[0], thinwire_codec::kernel::max_magnitude(&scaled), "{name}");
    }
}

#[test]
fn a_vote_is_canonicalised_alike() {
    if !host::is_there() {
        return;
    }
    let codec = codec("vote");
    let Some(Kernels::Code(code)) = kernels(&*codec) else { panic!("a code") };
    for (_, make) in inputs::kinds() {
        let mut expected = make(1000, 1);
        let mut found = expected.clone();
        codec.canonicalise(&mut expected);
        let arguments = arguments::Code {
            values: address(&mut found),
            length: 1000,
            ..arguments::Code::default()
        };
        launch(code.canonicalise.unwrap(), code.grid(1000), &arguments, 5);
        assert_eq!(bits(&found), bits(&expected));
    }
}

#[test]
fn all_codecs_of_the_table_are_known_or_listed_here() {
    let without = ["randomk", "dct", "lloyd", "blocktopk"];
    for choice in thinwire_codec::all() {
        let Choice::Bytes(codec) = choice else { continue };
        let name = codec.to_string();
        let listed = without.iter().any(|head| name.starts_with(head));
        assert_eq!(kernels(&*codec).is_none(), listed, "{name}");
    }
}
