//! Kernels compile for every architecture, without a device, and hold no fused operation.
//!
//! `THINWIRE_TEST_NVRTC` names the folder of the library if the system does not know it.
#![cfg(all(feature = "cuda", target_os = "linux"))]

mod texts;

use std::collections::BTreeMap;

use thinwire_device::cuda::kernel::SOURCES;
use thinwire_device::cuda::nvrtc::{Compiled, Error, Image, Nvrtc};

const ARCHITECTURES: [u32; 4] = [75, 80, 90, 100];

fn nvrtc() -> Option<Nvrtc> {
    let folder = std::env::var_os("THINWIRE_TEST_NVRTC").map(Into::into);
    match Nvrtc::load(folder.as_slice()) {
        Ok(nvrtc) => Some(nvrtc),
        Err(Error::Missing(_)) => {
            eprintln!("skipped, no NVRTC: see THINWIRE_TEST_NVRTC");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Registers and bytes of spills by kernel, from lines of the assembler's messages.
fn resources(log: &str) -> BTreeMap<String, String> {
    let mut resources = BTreeMap::<String, String>::new();
    let mut name = String::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            name = rest.split('\'').next().unwrap_or_default().to_owned();
        }
        if line.contains("spill") || line.contains("Used ") {
            let text = line.trim().trim_start_matches("ptxas info    : ");
            let entry = resources.entry(name.clone()).or_default();
            *entry += &format!("{text}; ");
        }
    }
    resources
}

#[test]
fn kernels_compile_for_every_architecture_without_spills() {
    let Some(nvrtc) = nvrtc() else { return };
    let own = SOURCES.map(|source| (source, &ARCHITECTURES[..]));
    // All programs for all architectures would take minutes.
    let texts = (texts::joined(&texts::with_kernels()), &[90][..]);
    for (source, architectures) in own.into_iter().chain([texts]) {
        for architecture in architectures.iter().copied() {
            let Compiled { image, log } = nvrtc.compile(source, architecture).unwrap();
            assert!(matches!(image, Image::Cubin(_)));
            assert!(!log.contains("warning"), "{} sm_{architecture}: {log}", source.name);
            for (kernel, used) in resources(&log) {
                println!("sm_{architecture} {kernel}: {used}");
                assert!(
                    used.contains(" 0 bytes spill stores"),
                    "{kernel} sm_{architecture}: {used}"
                );
            }
        }
    }
}

#[test]
fn nothing_is_fused_or_approximate() {
    let Some(nvrtc) = nvrtc() else { return };
    for source in SOURCES.into_iter().chain([texts::joined(&texts::with_kernels())]) {
        let Image::Ptx(ptx) = nvrtc.ptx(source, 90).unwrap().image else { panic!("PTX") };
        for line in String::from_utf8_lossy(&ptx).lines().map(str::trim) {
            let name = line.split_whitespace().find(|word| !word.starts_with('@')).unwrap_or("");
            let refused = ["fma.", "mad.f", "mad.rn", ".approx", ".ftz"];
            let is_refused = refused.iter().any(|part| name.contains(part));
            assert!(!is_refused, "{}: {line}", source.name);
        }
    }
}

#[test]
fn an_unknown_device_gets_ptx_and_a_folder_keeps_images() {
    let Some(nvrtc) = nvrtc() else { return };
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("nvrtc");
    let _ = std::fs::remove_dir_all(&folder);
    let newer = nvrtc.architectures().last().unwrap() + 1;
    for device in [90, newer] {
        let first = nvrtc.compile_once(SOURCES[0], device, &folder).unwrap();
        let second = nvrtc.compile_once(SOURCES[0], device, &folder).unwrap();
        assert_eq!(first.image, second.image);
        assert_eq!(matches!(first.image, Image::Ptx(_)), device == newer);
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);
    let error = nvrtc.compile(SOURCES[0], 20).unwrap_err().to_string();
    assert!(error.contains("sm_20 is older"), "{error}");
}
