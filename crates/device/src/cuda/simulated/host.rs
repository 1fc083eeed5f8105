//! Kernels on the host: the same files, compiled as C++ behind `kernels/host.hpp`.

use std::collections::BTreeMap;
use std::ffi::{OsString, c_void};
use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

use crate::cuda::arguments::Arguments;
use crate::cuda::kernel::{Grid, HEADERS, Kernel, Source};
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

/// Header that replaces CUDA's on the host.
const HOST: Source = Source { name: "host.hpp", text: include_str!("../../../kernels/host.hpp") };

/// Compiler of C++, or why there is none.
static COMPILER: LazyLock<Result<OsString, String>> = LazyLock::new(|| {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let output = Command::new(&compiler).arg("--version").output();
    output.map(|_| compiler).map_err(|error| error.to_string())
});

type Compiled = OnceLock<Result<Library, String>>;

/// Returns the library of a file, which is compiled once. Several files are compiled at the same time.
fn library(source: Source) -> Result<Library, String> {
    static LIBRARIES: Mutex<BTreeMap<&str, Arc<Compiled>>> = Mutex::new(BTreeMap::new());
    let mut libraries = LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner);
    let library = Arc::clone(libraries.entry(source.text).or_default());
    drop(libraries);
    library.get_or_init(|| compile(source)).clone()
}

fn compile(source: Source) -> Result<Library, String> {
    let compiler = COMPILER.as_ref().map_err(String::clone)?;
    let mut hasher = DefaultHasher::new();
    (compiler, FLAGS, HEADERS, HOST, source).hash(&mut hasher);
    let name = format!("{}-{:016x}", source.name, hasher.finish());
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let own = format!("thinwire-{}-{name}", std::process::id());
    // Beside a test that runs, whose folder is of this build; a test in Python names a folder; elsewhere
    // nothing is kept.
    let named = std::env::var_os("THINWIRE_KERNELS").map(PathBuf::from);
    let beside = program.parent().filter(|folder| folder.ends_with("deps")).map(Path::to_owned);
    let Some(place) = named.or(beside) else {
        let folder = std::env::temp_dir().join(own);
        let opened = build(compiler, source, &folder).and_then(|path| open(&path));
        let _ = fs::remove_dir_all(&folder);
        return opened;
    };
    let kept = place.join(format!("{name}.so"));
    if !kept.exists() {
        fs::create_dir_all(&place).map_err(|error| error.to_string())?;
        let folder = place.join(own);
        let moved = build(compiler, source, &folder)
            .and_then(|path| fs::rename(path, &kept).map_err(|error| error.to_string()));
        let _ = fs::remove_dir_all(&folder);
        moved?;
    }
    open(&kept)
}

fn open(path: &Path) -> Result<Library, String> {
    Library::open(path).map_err(|error| error.to_string())
}

/// Compiles in a folder of its own; returns the path of the library.
fn build(compiler: &OsString, source: Source, folder: &Path) -> Result<PathBuf, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    DirBuilder::new().mode(0o700).create(folder).map_err(failed)?;
    for file in HEADERS.into_iter().chain([HOST, source]) {
        fs::write(folder.join(file.name), file.text).map_err(failed)?;
    }
    let path = folder.join("kernels.so");
    let mut command = Command::new(compiler);
    command.args(FLAGS).arg(folder.join(source.name)).arg("-o").arg(&path);
    let output = command.output().map_err(failed)?;
    match output.status.success() {
        true => Ok(path),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Returns whether there is a C++ compiler.
pub fn has_compiler() -> bool {
    COMPILER.is_ok()
}

/// Returns whether there are kernels for the host; prints a message if there are none.
pub fn is_there() -> bool {
    if let Err(error) = &*COMPILER {
        eprintln!("skipped, no C++ compiler: {error}");
    }
    has_compiler()
}

/// Runs a kernel, with lanes and warps in an order drawn from `seed`.
///
/// # Panics
/// If there is no such kernel for the host.
///
/// # Safety
/// The addresses in `arguments` are of buffers of the lengths that the kernel uses.
pub unsafe fn launch<A: Arguments>(kernel: Kernel, grid: Grid, arguments: &A, seed: u64) {
    let function = Function::find(kernel).unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
    assert_eq!(size_of::<A>(), function.arguments, "arguments of {}", kernel.name);
    // SAFETY: the caller's promise.
    unsafe { function.run(grid, std::ptr::from_ref(arguments).cast(), seed) }
}

type Run = unsafe extern "C" fn(*const c_void, u32, u32, u64);

/// Kernel for the host.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    run: Run,
    /// Bytes of its arguments.
    pub arguments: usize,
}

impl Function {
    /// Returns the kernel.
    ///
    /// # Errors
    /// If there is no compiler, the compiler refuses the file, or the file does not have the kernel.
    pub fn find(kernel: Kernel) -> Result<Function, String> {
        let library = library(kernel.source)?;
        let symbol = |name: &str| library.symbol(name).map_err(|error| error.to_string());
        let run = symbol(&format!("{}_on_host", kernel.name))?;
        let length = symbol(&format!("{}_arguments", kernel.name))?;
        // SAFETY: host.hpp defines a function of this type and a u32 for each kernel.
        let (run, arguments) = unsafe {
            (std::mem::transmute::<*mut c_void, Run>(run.as_ptr()), *length.cast::<u32>().as_ref())
        };
        Ok(Function { run, arguments: arguments as usize })
    }

    /// Runs the kernel; only one kernel of a file runs at a time.
    ///
    /// # Safety
    /// The arguments are the kernel's, and name buffers of the lengths that it uses.
    pub unsafe fn run(&self, grid: Grid, arguments: *const c_void, seed: u64) {
        // SAFETY: the caller's promise.
        unsafe { (self.run)(arguments, grid.blocks, grid.threads, seed) }
    }
}
