//! Codecs as text, and the kernels that are made of them.
#![allow(dead_code, reason = "each test uses some")]

use std::path::Path;
use std::sync::Arc;

use thinwire_codec::{Choice, Codec};
use thinwire_device::cuda::kernel::Source;

/// Codecs of the files in a folder.
fn texts(folder: &str) -> Vec<Arc<dyn Codec>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut files: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|path| codec(path.to_str().unwrap())).collect()
}

/// Returns the examples.
pub fn shipped() -> Vec<Arc<dyn Codec>> {
    texts("../../examples/codecs")
}

/// Returns all with kernels: the examples, and others that have what is in no example.
pub fn with_kernels() -> Vec<Arc<dyn Codec>> {
    let all = shipped().into_iter().chain(texts("tests/texts/codecs"));
    all.filter(|codec| matches!(codec.cuda(), Some(Ok(_)))).collect()
}

/// Returns the kernels as one file, since a compiler takes longer to start than to go on.
pub fn joined(codecs: &[Arc<dyn Codec>]) -> Source {
    let texts = codecs.iter().filter_map(|codec| codec.cuda()?.ok()).map(|cuda| cuda.text);
    Source { name: "texts.cu", text: texts.collect::<Vec<_>>().join("\n").leak() }
}

fn codec(name: &str) -> Arc<dyn Codec> {
    match Choice::parse(name) {
        Ok(Choice::Bytes(codec)) => codec,
        Ok(_) => panic!("{name} has no bytes"),
        Err(error) => panic!("{error}"),
    }
}
