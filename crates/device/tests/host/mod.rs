//! Kernels on the host: the same files, compiled as C++ behind `kernels/host.hpp`.

use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex};

use thinwire_device::cuda::arguments::Arguments;
use thinwire_device::cuda::kernel::{Grid, HEADERS, Kernel, SOURCES, Source};
use thinwire_device::cuda::library::Library;

/// Alignment and shifts are checked; a violation ends the process.
const FLAGS: [&str; 12] = [
    "-std=c++20",
    "-O1",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-Wall",
    "-Werror",
    "-fsanitize=alignment,bounds,shift",
    "-fsanitize-undefined-trap-on-error",
    "-xc++",
];

/// Compiled kernels, or why there are none.
static LIBRARIES: LazyLock<Result<Vec<(Source, Library)>, String>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    Command::new(&compiler).arg("--version").output().map_err(|error| error.to_string())?;
    let started: Vec<_> =
        SOURCES.map(|source| (source, compile(&compiler, &folder, source))).into();
    let finished = started.into_iter().map(|(source, compiled)| {
        let path = compiled.finish();
        (source, Library::open(path).expect("a library that was just compiled"))
    });
    Ok(finished.collect())
});

/// Library that is there, or its compiler.
enum Compiled {
    There(PathBuf),
    Running(PathBuf, PathBuf, std::process::Child),
}

impl Compiled {
    fn finish(self) -> PathBuf {
        match self {
            Compiled::There(path) => path,
            Compiled::Running(path, partial, child) => {
                let output = child.wait_with_output().expect("the compiler's output");
                let text = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{}: {text}", path.display());
                fs::rename(partial, &path).expect("a library's final name");
                path
            }
        }
    }
}

/// Starts the compiler unless these very kernels were compiled before.
fn compile(compiler: &OsString, folder: &Path, source: Source) -> Compiled {
    let mut hasher = DefaultHasher::new();
    (compiler, FLAGS).hash(&mut hasher);
    for name in HEADERS.map(|header| header.name).into_iter().chain(["host.hpp", source.name]) {
        fs::read(folder.join(name)).expect("a file of kernels").hash(&mut hasher);
    }
    let name = format!("{}-{:016x}.so", source.name, hasher.finish());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if path.exists() {
        return Compiled::There(path);
    }
    let partial = path.with_extension(std::process::id().to_string());
    let mut command = Command::new(compiler);
    command.args(FLAGS).arg(folder.join(source.name)).arg("-o").arg(&partial);
    let child = command.stderr(std::process::Stdio::piped()).spawn().expect("the compiler");
    Compiled::Running(path, partial, child)
}

/// Returns whether there are kernels for the host; says so where there are not.
pub fn is_there() -> bool {
    if let Err(error) = &*LIBRARIES {
        eprintln!("skipped, no C++ compiler: {error}");
    }
    LIBRARIES.is_ok()
}

/// Runs a kernel, with lanes and warps in an order that `seed` gives.
pub fn launch<A: Arguments>(kernel: Kernel, grid: Grid, arguments: &A, seed: u64) {
    type Function<A> = unsafe extern "C" fn(*const A, u32, u32, u64);
    // The shared memory of a library is one.
    static ONE: Mutex<()> = Mutex::new(());
    let libraries = LIBRARIES.as_ref().expect("kernels for the host");
    let (_, library) = libraries.iter().find(|(source, _)| *source == kernel.source).unwrap();
    let symbol = library.symbol(&format!("{}_on_host", kernel.name)).unwrap();
    // SAFETY: host.hpp defines functions of this type, and `Arguments` have the kernel's layout.
    let function: Function<A> = unsafe { std::mem::transmute(symbol.as_ptr()) };
    let _one = ONE.lock();
    // SAFETY: the test's arguments name buffers of the lengths that the kernel uses.
    unsafe { function(arguments, grid.blocks, grid.threads, seed) };
}
