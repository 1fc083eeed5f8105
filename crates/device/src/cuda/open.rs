//! Devices of this machine, each taken into use once per process.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{env, fmt, io, thread};

use super::Cuda;
use super::context::made;
use super::driver::{ATTRIBUTE_MAJOR, ATTRIBUTE_MINOR, DeviceNumber, Driver, Fault, Status};
use super::kernel::{SOURCES, Source};
use super::nvrtc::{self, Architecture, Image, Nvrtc};

/// Devices in use, by their ordinals.
static OPEN: Mutex<Option<HashMap<i32, Cuda>>> = Mutex::new(None);

/// `CUDA_ERROR_INVALID_PTX`, the driver's error for kernels that it cannot compile.
const INVALID_PTX: Status = 218;

/// Reason why a device cannot encode.
#[derive(Debug)]
pub enum Unavailable {
    /// There is no driver.
    Driver(io::Error),
    /// The kernels cannot be compiled.
    Compiler(nvrtc::Error),
    /// The driver refuses the device, or the kernels.
    Device(Fault),
}

impl Cuda {
    /// Takes a device into use, or returns it if it is in use already. `ordinal` is the driver's number
    /// of the device, which `CUDA_VISIBLE_DEVICES` changes. NVRTC compiles the kernels; it is loaded
    /// from the first of `folders` that has it, or from the system's folders for libraries. Compiled
    /// kernels are kept in the folder `$THINWIRE_KERNELS`, or `thinwire/kernels` in the user's cache.
    ///
    /// # Errors
    /// If there is no driver, no NVRTC or no such device.
    pub fn open(ordinal: i32, folders: &[PathBuf]) -> Result<Cuda, Unavailable> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let open = open.get_or_insert_default();
        if let Some(cuda) = open.get(&ordinal) {
            return Ok(cuda.clone());
        }
        let driver = Driver::load().map_err(Unavailable::Driver)?;
        let device = made(&driver, 0, |place| {
            // SAFETY: there is a place for the number.
            unsafe { (driver.cuDeviceGet)(place, ordinal) }
        })?;
        let architecture = architecture(&driver, device)?;
        let nvrtc = Nvrtc::load(folders).map_err(Unavailable::Compiler)?;
        let folder = folder();
        let mut images = compile(&nvrtc, architecture, &folder).map_err(Unavailable::Compiler)?;
        let image = move |source| match images.remove(&source) {
            Some(image) => Ok(image),
            // Kernels of a codec as text, which are first asked for when it is used.
            None => match nvrtc.compile_once(source, architecture, &folder) {
                Ok(compiled) => Ok(compiled.image),
                Err(error) => Err(Fault { status: INVALID_PTX, name: error.to_string() }),
            },
        };
        // SAFETY: the driver's library has the functions of these names, and the images are compiled from the
        // files.
        let cuda = unsafe { Cuda::new(driver, device, image) }?;
        open.insert(ordinal, cuda.clone());
        Ok(cuda)
    }
}

/// Returns the architecture of a device.
fn architecture(driver: &Driver, device: DeviceNumber) -> Result<Architecture, Fault> {
    let attribute = |attribute| {
        made(driver, 0, |place| {
            // SAFETY: there is a place for the number.
            unsafe { (driver.cuDeviceGetAttribute)(place, attribute, device) }
        })
    };
    let (major, minor) = (attribute(ATTRIBUTE_MAJOR)?, attribute(ATTRIBUTE_MINOR)?);
    Ok(10 * major.unsigned_abs() + minor.unsigned_abs())
}

/// Compiles all files at once, or finds them in `folder`.
fn compile(
    nvrtc: &Nvrtc,
    architecture: Architecture,
    folder: &Path,
) -> Result<HashMap<Source, Image>, nvrtc::Error> {
    thread::scope(|scope| {
        let started = SOURCES.map(|source| {
            scope.spawn(move || {
                Ok((source, nvrtc.compile_once(source, architecture, folder)?.image))
            })
        });
        let ended = started.into_iter().map(|thread| thread.join().expect("NVRTC does not panic"));
        ended.collect()
    })
}

/// Returns the folder of compiled kernels: `$THINWIRE_KERNELS`, else one in the user's cache.
fn folder() -> PathBuf {
    let named = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    let in_cache = || cache().unwrap_or_else(env::temp_dir).join("thinwire").join("kernels");
    named("THINWIRE_KERNELS").unwrap_or_else(in_cache)
}

impl From<Fault> for Unavailable {
    fn from(fault: Fault) -> Unavailable {
        Unavailable::Device(fault)
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unavailable::Driver(error) => write!(f, "no driver of CUDA: {error}"),
            Unavailable::Compiler(error) => error.fmt(f),
            Unavailable::Device(fault) => fault.fmt(f),
        }
    }
}

impl std::error::Error for Unavailable {}
