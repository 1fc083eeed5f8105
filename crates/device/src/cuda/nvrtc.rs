//! NVRTC, the library that compiles CUDA C while a program runs.
//!
//! PyTorch's wheels contain it, under a name with its version; it is not needed to build. Compiled
//! kernels are kept in a folder, by source, architecture and version.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::{fs, io, ptr};

use super::kernel::{HEADERS, Source};
use super::library::{Library, functions};

/// Names under which wheels and distributions install it, the newest first; the plain name is often
/// missing.
const NAMES: [&str; 4] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"];

/// Arithmetic as on the host: nothing fused, subnormals kept, division and root rounded correctly.
const FLAGS: [&CStr; 8] = [
    c"--std=c++17",
    c"--fmad=false",
    c"--ftz=false",
    c"--prec-div=true",
    c"--prec-sqrt=true",
    c"--device-as-default-execution-space",
    c"--no-source-include",
    c"--ptxas-options=-v",
];

/// Architecture of a device: ten times the major number of its compute capability, plus the minor one.
pub type Architecture = u32;

/// Image that a driver loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// Instructions of one architecture.
    Cubin(Vec<u8>),
    /// PTX, which the driver compiles; ends in a zero.
    Ptx(Vec<u8>),
}

impl Image {
    /// Returns the bytes that the driver loads.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Image::Cubin(bytes) | Image::Ptx(bytes) => bytes,
        }
    }
}

/// Compiled kernels, and the messages of the compiler: registers, spills, warnings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The image that a driver loads.
    pub image: Image,
    /// The compiler's messages.
    pub log: String,
}

/// Reason why there are no compiled kernels.
#[derive(Debug)]
pub enum Error {
    /// The library was not found. Contains the loader's message for each name that was tried.
    Missing(Vec<io::Error>),
    /// A function of the library failed, with this code and the compiler's messages.
    Failed {
        /// Name of the function.
        function: &'static str,
        /// NVRTC's code.
        code: i32,
        /// The compiler's messages.
        log: String,
    },
}

type Program = *mut c_void;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Strings = *const *const c_char;

functions! {
    /// Functions of the library.
    struct Functions;
    nvrtcVersion: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    nvrtcGetNumSupportedArchs: unsafe extern "C" fn(*mut c_int) -> c_int;
    nvrtcGetSupportedArchs: unsafe extern "C" fn(*mut c_int) -> c_int;
    nvrtcCreateProgram: unsafe extern "C" fn(
        *mut Program, *const c_char, *const c_char, c_int, Strings, Strings,
    ) -> c_int;
    nvrtcDestroyProgram: unsafe extern "C" fn(*mut Program) -> c_int;
    nvrtcCompileProgram: unsafe extern "C" fn(Program, c_int, Strings) -> c_int;
    nvrtcGetPTXSize: Size;
    nvrtcGetPTX: Get;
    nvrtcGetCUBINSize: Size;
    nvrtcGetCUBIN: Get;
    nvrtcGetProgramLogSize: Size;
    nvrtcGetProgramLog: Get;
}

/// Loaded library.
#[derive(Clone, Debug)]
pub struct Nvrtc {
    functions: Functions,
    version: (c_int, c_int),
    architectures: Vec<Architecture>,
}

impl Nvrtc {
    /// Loads the library from the first of `folders` that has it, or else from the system's folders for
    /// libraries.
    ///
    /// # Errors
    /// If it is not found, or is too old to have all functions.
    pub fn load(folders: &[PathBuf]) -> Result<Nvrtc, Error> {
        let inside = folders.iter().flat_map(|folder| NAMES.map(|name| folder.join(name)));
        let places = inside.filter(|path| path.exists()).chain(NAMES.map(PathBuf::from));
        let mut refusals = Vec::new();
        for place in places {
            match Library::open(&place).and_then(|library| Functions::of(&library)) {
                Ok(functions) => return Nvrtc::of(functions),
                Err(error) => refusals.push(error),
            }
        }
        Err(Error::Missing(refusals))
    }

    fn of(functions: Functions) -> Result<Nvrtc, Error> {
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: the arguments are the places of two numbers.
        check("nvrtcVersion", unsafe { (functions.nvrtcVersion)(&mut major, &mut minor) })?;
        // SAFETY: the argument is the place of a number.
        let code = unsafe { (functions.nvrtcGetNumSupportedArchs)(&mut count) };
        check("nvrtcGetNumSupportedArchs", code)?;
        let mut found = vec![0; count.max(0) as usize];
        // SAFETY: there is a place for each of the architectures that were counted.
        let code = unsafe { (functions.nvrtcGetSupportedArchs)(found.as_mut_ptr()) };
        check("nvrtcGetSupportedArchs", code)?;
        let mut architectures: Vec<_> = found.into_iter().map(|arch| arch as u32).collect();
        architectures.sort_unstable();
        Ok(Nvrtc { functions, version: (major, minor), architectures })
    }

    /// Returns the architectures that it compiles for, in order.
    pub fn architectures(&self) -> &[Architecture] {
        &self.architectures
    }

    /// Compiles for a device: to instructions or, if the library does not know the device, to PTX of
    /// the newest architecture that is not above the device's.
    ///
    /// # Errors
    /// If the source is refused, or the device is older than all architectures.
    pub fn compile(&self, source: Source, device: Architecture) -> Result<Compiled, Error> {
        let place = self.architectures.partition_point(|known| *known <= device);
        match self.architectures[..place].last() {
            Some(known) if *known == device => self.run(source, &format!("sm_{device}")),
            Some(known) => self.run(source, &format!("compute_{known}")),
            None => {
                let log = format!("sm_{device} is older than {:?}", self.architectures);
                Err(Error::Failed { function: "nvrtcGetSupportedArchs", code: 0, log })
            }
        }
    }

    /// Compiles to PTX.
    ///
    /// # Errors
    /// If the source or the architecture is refused.
    pub fn ptx(&self, source: Source, architecture: Architecture) -> Result<Compiled, Error> {
        self.run(source, &format!("compute_{architecture}"))
    }

    /// Returns the earlier result of [`Nvrtc::compile`] from `folder`, or compiles and keeps the image
    /// there. An image from the folder has no messages.
    ///
    /// # Errors
    /// As [`Nvrtc::compile`]. A folder that cannot be read or written only costs time.
    pub fn compile_once(
        &self,
        source: Source,
        device: Architecture,
        folder: &Path,
    ) -> Result<Compiled, Error> {
        let known = self.architectures.contains(&device);
        let path = folder.join(self.file_name(source, device));
        if let Ok(bytes) = fs::read(&path) {
            let image = if known { Image::Cubin(bytes) } else { Image::Ptx(bytes) };
            return Ok(Compiled { image, log: String::new() });
        }
        let compiled = self.compile(source, device)?;
        let (Image::Cubin(bytes) | Image::Ptx(bytes)) = &compiled.image;
        // Renamed when it is complete, since several ranks may start at once.
        let partial = folder.join(format!(
            "{}.{}-{}",
            self.file_name(source, device),
            std::process::id(),
            // Containers that share a folder may have equal numbers of processes.
            std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos()),
        ));
        let written = fs::create_dir_all(folder).and_then(|()| fs::write(&partial, bytes));
        if written.and_then(|()| fs::rename(&partial, &path)).is_err() {
            let _ = fs::remove_file(&partial);
        }
        Ok(compiled)
    }

    fn file_name(&self, source: Source, device: Architecture) -> String {
        let mut hasher = DefaultHasher::new();
        (source, HEADERS, FLAGS).hash(&mut hasher);
        let ((major, minor), hash) = (self.version, hasher.finish());
        format!("{}-{hash:016x}-sm_{device}-nvrtc{major}.{minor}", source.name)
    }

    fn run(&self, source: Source, architecture: &str) -> Result<Compiled, Error> {
        let text = |text: &str| CString::new(text).expect("sources have no zeros");
        let names = HEADERS.map(|header| text(header.name));
        let texts = HEADERS.map(|header| text(header.text));
        let (names, texts) = (names.each_ref(), texts.each_ref());
        let (names, texts) = (names.map(|name| name.as_ptr()), texts.map(|text| text.as_ptr()));
        let (name, own, mut program) = (text(source.name), text(source.text), ptr::null_mut());
        let (count, table) = (HEADERS.len() as c_int, &self.functions);
        // SAFETY: all texts end in zeros and live until the program is there, which copies them.
        let code = unsafe {
            (table.nvrtcCreateProgram)(
                &mut program,
                own.as_ptr(),
                name.as_ptr(),
                count,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        check("nvrtcCreateProgram", code)?;
        let compiled = self.compile_program(program, architecture);
        // SAFETY: the program was created above and is used no more.
        unsafe { (table.nvrtcDestroyProgram)(&mut program) };
        compiled
    }

    fn compile_program(&self, program: Program, architecture: &str) -> Result<Compiled, Error> {
        let target = CString::new(format!("--gpu-architecture={architecture}"));
        let target = target.expect("a number and letters");
        let flags: Vec<_> = FLAGS.into_iter().chain([&*target]).map(CStr::as_ptr).collect();
        let table = &self.functions;
        // SAFETY: the flags end in zeros and outlive the call.
        let code =
            unsafe { (table.nvrtcCompileProgram)(program, flags.len() as c_int, flags.as_ptr()) };
        let log = bytes(program, table.nvrtcGetProgramLogSize, table.nvrtcGetProgramLog)?;
        let log = String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_owned();
        if code != 0 {
            return Err(Error::Failed { function: "nvrtcCompileProgram", code, log });
        }
        let image = if architecture.starts_with("sm_") {
            Image::Cubin(bytes(program, table.nvrtcGetCUBINSize, table.nvrtcGetCUBIN)?)
        } else {
            Image::Ptx(bytes(program, table.nvrtcGetPTXSize, table.nvrtcGetPTX)?)
        };
        Ok(Compiled { image, log })
    }
}

/// Returns the folders in which wheels put the library, from the folder of a framework's own libraries, such
/// as `site-packages/torch/lib`: that one, and `site-packages/nvidia/*/lib`.
pub fn folders(framework: &Path) -> Vec<PathBuf> {
    let packages = framework.ancestors().nth(2).map(|packages| packages.join("nvidia"));
    let found = packages.and_then(|nvidia| fs::read_dir(nvidia).ok()).into_iter().flatten();
    let mut folders: Vec<_> = found.flatten().map(|entry| entry.path().join("lib")).collect();
    folders.sort();
    folders.insert(0, framework.to_owned());
    folders
}

fn bytes(program: Program, size: Size, get: Get) -> Result<Vec<u8>, Error> {
    let mut length = 0;
    // SAFETY: the program is alive, and `length` is the place of a number.
    check("nvrtcGet…Size", unsafe { size(program, &mut length) })?;
    let mut bytes = vec![0; length];
    // SAFETY: there is a place for each byte that was counted.
    check("nvrtcGet…", unsafe { get(program, bytes.as_mut_ptr().cast()) })?;
    Ok(bytes)
}

fn check(function: &'static str, code: c_int) -> Result<(), Error> {
    let log = String::new();
    if code == 0 { Ok(()) } else { Err(Error::Failed { function, code, log }) }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Missing(refusals) => {
                write!(f, "cannot find NVRTC, which compiles kernels")?;
                refusals.iter().try_for_each(|refusal| write!(f, "; {refusal}"))
            }
            Error::Failed { function, code, log } => write!(f, "{function}: error {code} {log}"),
        }
    }
}

impl std::error::Error for Error {}
