//! Kernels that are made of codecs as text give the bits of the interpreter.
#![cfg(all(feature = "cuda", target_os = "linux"))]

mod alike;
mod inputs;

use std::path::Path;
use std::sync::Arc;

use thinwire_codec::Codec;
use thinwire_device::cuda::kernel::Source;
use thinwire_device::cuda::simulated::host;

/// Codecs of the files in a folder.
fn texts(folder: &str) -> Vec<Arc<dyn Codec>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut files: Vec<_> =
        folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|path| alike::codec(path.to_str().unwrap())).collect()
}

fn shipped() -> Vec<Arc<dyn Codec>> {
    texts("../../examples/codecs")
}

/// Compiles all texts as one file, since a compiler takes longer to start than to go on.
fn with_kernels() -> Vec<Arc<dyn Codec>> {
    // Those of this test have every operator and type, with what the shipped ones do not have.
    let all = shipped().into_iter().chain(texts("tests/texts"));
    let all: Vec<_> = all.filter(|codec| matches!(codec.cuda(), Some(Ok(_)))).collect();
    let texts = all.iter().filter_map(|codec| codec.cuda()?.ok()).map(|cuda| cuda.text);
    let text = texts.collect::<Vec<_>>().join("\n");
    alike::TEXTS.get_or_init(|| Source { name: "texts.cu", text: text.leak() });
    all
}

#[test]
fn texts_equal_the_interpreter() {
    if !host::is_there() {
        return;
    }
    for codec in with_kernels() {
        let all = (0..=300).chain([511, 513, 1025, 4095, 4097, 6000]);
        alike::check(&*codec, all);
    }
}

#[test]
#[ignore = "takes minutes"]
fn texts_equal_the_interpreter_at_great_length() {
    if host::is_there() {
        with_kernels().iter().for_each(|codec| alike::check(&**codec, [40_001, 100_003]));
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
