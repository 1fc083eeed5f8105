//! Findings about software: this command, Python with its frameworks, and CUDA.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Deserialize;
use thinwire_device::cuda::driver::Driver;
use thinwire_device::cuda::nvrtc::{Nvrtc, folders};

use super::finding::Finding;
use crate::invocation;

/// Program that reads versions without importing the packages, which would take seconds.
const VERSIONS: &str = r#"
import importlib.metadata, importlib.util, json, platform
found = {}
for name in ("thinwire", "torch", "jax", "tensorflow", "keras", "mindspore"):
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
place = importlib.util.find_spec("torch")
torch = list(place.submodule_search_locations or [""])[0] if place else None
print(json.dumps({"python": platform.python_version(), "packages": found, "torch": torch}))
"#;

/// Versions of a Python and its packages.
#[derive(Deserialize)]
struct Versions {
    python: String,
    packages: serde_json::Map<String, serde_json::Value>,
    torch: Option<PathBuf>,
}

/// Returns the findings.
pub fn findings() -> Vec<Finding> {
    let command = Finding::ok("thinwire", env!("THINWIRE_VERSION"));
    let (program, versions) = python();
    let torch = versions.as_ref().and_then(|found| found.torch.clone());
    let [driver, compiler] = cuda(torch);
    [command, of_python(&program, versions), driver, compiler].into()
}

/// Returns the Python that runs this command, otherwise the one in the search path, and its versions.
fn python() -> (OsString, Option<Versions>) {
    let named = std::env::var_os("THINWIRE_PYTHON");
    let program = invocation::interpreter().or(named).unwrap_or_else(|| "python3".into());
    let mut command = Command::new(&program);
    command.args(["-c", VERSIONS]).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success());
    let versions = output.and_then(|output| serde_json::from_slice(&output.stdout).ok());
    (program, versions)
}

fn of_python(program: &OsString, versions: Option<Versions>) -> Finding {
    let program = program.to_string_lossy();
    let Some(versions) = versions else {
        let hint = "this command needs none; for PyTorch and others: THINWIRE_PYTHON=…/bin/python";
        return Finding::note("python", format!("{program} does not run"), hint);
    };
    let text = |(name, version): (&String, &serde_json::Value)| {
        format!("{name} {}", version.as_str().unwrap_or_default())
    };
    let packages: Vec<String> = versions.packages.iter().map(text).collect();
    let found = format!("{program} {}", versions.python);
    match packages.is_empty() {
        true => {
            Finding::note("python", format!("{found}, without a framework"), "pip install torch")
        }
        false => Finding::ok("python", format!("{found} with {}", packages.join(", "))),
    }
}

/// Returns findings about NVIDIA's driver and the compiler of kernels.
fn cuda(torch: Option<PathBuf>) -> [Finding; 2] {
    let driver = Driver::load();
    let has_driver = driver.is_ok();
    let driver = match driver {
        Ok(_) => Finding::ok(
            "cuda",
            "a driver and a device: gradients on the device are encoded \
            there",
        ),
        Err(error) => {
            let hint = "gradients are encoded by the processor's cores";
            Finding::note("cuda", format!("no device: {error}"), hint)
        }
    };
    let folders = torch.map_or_else(Vec::new, |torch| folders(&torch.join("lib")));
    let compiler = match Nvrtc::load(&folders) {
        Ok(found) => {
            let (first, last) = (found.architectures().first(), found.architectures().last());
            let [first, last] = [first, last].map(|it| it.copied().unwrap_or_default());
            Finding::ok("nvrtc", format!("compiles kernels for sm_{first} to sm_{last}"))
        }
        // Without a device nothing is compiled.
        Err(_) if !has_driver => Finding::ok("nvrtc", "none, and no device that needs it"),
        Err(error) => {
            Finding::note("nvrtc", error.to_string(), "pip install nvidia-cuda-nvrtc-cu12")
        }
    };
    [driver, compiler]
}
