//! Kernels that are made of codecs as text give the bits of the interpreter.
#![cfg(all(feature = "cuda", target_os = "linux"))]

mod alike;
mod inputs;
mod texts;

use texts::{joined, shipped, with_kernels};
use thinwire_device::cuda::simulated::host;

#[test]
fn texts_equal_the_interpreter() {
    if !host::is_there() {
        return;
    }
    let all = with_kernels();
    alike::TEXTS.get_or_init(|| joined(&all));
    for codec in all {
        // Beyond a warp, what is done in one is known already.
        let step = if codec.block() <= 256 { 1 } else { 23 };
        let all = (0..=300).step_by(step).chain([511, 513, 1025, 4095, 4097, 6000]);
        alike::check(&*codec, all);
    }
}

#[test]
#[ignore = "takes minutes"]
fn texts_equal_the_interpreter_at_great_length() {
    if host::is_there() {
        let all = with_kernels();
        alike::TEXTS.get_or_init(|| joined(&all));
        all.iter().for_each(|codec| alike::check(&**codec, [40_001, 100_003]));
    }
}

#[test]
fn every_shipped_codec_with_blocks_has_kernels() {
    let reasons = shipped().into_iter().filter_map(|codec| {
        let reason = codec.cuda().expect("a text").err()?.to_owned();
        Some((codec.to_string(), reason))
    });
    let reasons: Vec<_> = reasons.collect();
    let names: Vec<_> = reasons.iter().map(|(name, _)| name.split('#').next().unwrap()).collect();
    assert_eq!(names, ["dgc", "graddrop"]);
    assert!(reasons.iter().all(|(_, why)| why.starts_with("a codec without a line 'block'")));
    assert!(shipped().len() == 13);
}
