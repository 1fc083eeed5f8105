//! Kernels on the host: the same files, compiled as C++ behind `kernels/host.hpp`.

use std::ffi::{OsString, c_void};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::cuda::arguments::Arguments;
use crate::cuda::kernel::{Grid, HEADERS, Kernel, SOURCES, Source};
use crate::cuda::library::Library;

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
    // Beside the test that runs, whose folder is of this build; a test in Python names a folder.
    let named = std::env::var_os("THINWIRE_KERNELS").map(|folder| Path::new(&folder).join(&name));
    let program = std::env::current_exe().expect("the path of this program");
    let path = named.unwrap_or_else(|| program.with_file_name(name));
    if path.exists() {
        return Compiled::There(path);
    }
    path.parent().map_or(Ok(()), fs::create_dir_all).expect("a folder of kernels");
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
///
/// # Panics
/// If there are no kernels for the host.
///
/// # Safety
/// The addresses in `arguments` are of buffers of the lengths that the kernel uses.
pub unsafe fn launch<A: Arguments>(kernel: Kernel, grid: Grid, arguments: &A, seed: u64) {
    let function = Function::find(kernel).expect("kernels for the host");
    assert_eq!(size_of::<A>(), function.arguments, "arguments of {}", kernel.name);
    // SAFETY: the caller's promise.
    unsafe { function.run(grid, std::ptr::from_ref(arguments).cast(), seed) }
}

type Run = unsafe extern "C" fn(*const c_void, u32, u32, u64);

/// Kernel for the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function {
    run: Run,
    /// Bytes of its arguments.
    pub arguments: usize,
}

impl Function {
    /// Returns the kernel, if there is a compiler and the file has it.
    pub fn find(kernel: Kernel) -> Option<Function> {
        let libraries = LIBRARIES.as_ref().ok()?;
        let (_, library) = libraries.iter().find(|(source, _)| *source == kernel.source)?;
        let run = library.symbol(&format!("{}_on_host", kernel.name)).ok()?;
        let length = library.symbol(&format!("{}_arguments", kernel.name)).ok()?;
        // SAFETY: host.hpp defines a function of this type and a u32 for each kernel.
        let (run, arguments) = unsafe {
            (std::mem::transmute::<*mut c_void, Run>(run.as_ptr()), *length.cast::<u32>().as_ref())
        };
        Some(Function { run, arguments: arguments as usize })
    }

    /// Runs the kernel; of one file only one kernel runs at a time.
    ///
    /// # Safety
    /// The arguments are the kernel's, and name buffers of the lengths that it uses.
    pub unsafe fn run(&self, grid: Grid, arguments: *const c_void, seed: u64) {
        // SAFETY: the caller's promise.
        unsafe { (self.run)(arguments, grid.blocks, grid.threads, seed) }
    }
}
