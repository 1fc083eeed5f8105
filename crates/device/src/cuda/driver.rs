//! Table of the functions of CUDA's driver, filled from `libcuda`, or by a simulated driver.
//!
//! No part of CUDA is needed to build, and a machine without the library has no table. The names and
//! types are NVIDIA's, with the version that a name stands for.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io;

use super::arguments::{Address, Arguments};
use super::kernel::Grid;
use super::library::{Library, functions};

/// `CUresult`: 0, or the number of an error.
pub type Status = c_int;
/// `CUdevice`: number of a device.
pub type DeviceNumber = c_int;
/// `CUcontext`.
pub type Context = *mut c_void;
/// `CUstream`.
pub type Stream = *mut c_void;
/// `CUevent`.
pub type Event = *mut c_void;
/// `CUmodule`.
pub type Module = *mut c_void;
/// `CUfunction`.
pub type Function = *mut c_void;
/// `CUhostFn`: runs on a thread of the driver, behind all earlier work of its stream, and may not call
/// the driver.
pub type HostFunction = unsafe extern "C" fn(*mut c_void);

/// `CUDA_ERROR_NOT_READY`: work before an event is under way.
pub const NOT_READY: Status = 600;
/// `CUDA_ERROR_NOT_PERMITTED`: for example, a call inside of a host function.
pub const NOT_PERMITTED: Status = 800;
/// `CU_STREAM_NON_BLOCKING`: the default stream is not waited for.
pub const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`: events that only order are cheaper.
pub const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for all contexts.
pub const HOST_PORTABLE: c_uint = 1;
/// `CU_MEMHOSTALLOC_DEVICEMAP`: kernels reach it too.
pub const HOST_MAPPED: c_uint = 2;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
pub const ATTRIBUTE_MAJOR: c_int = 75;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`.
pub const ATTRIBUTE_MINOR: c_int = 76;

functions! {
    /// Functions of the driver.
    pub struct Driver;
    cuInit: unsafe extern "C" fn(c_uint) -> Status;
    cuGetErrorName: unsafe extern "C" fn(Status, *mut *const c_char) -> Status;
    cuDeviceGet: unsafe extern "C" fn(*mut DeviceNumber, c_int) -> Status;
    cuDeviceGetAttribute: unsafe extern "C" fn(*mut c_int, c_int, DeviceNumber) -> Status;
    cuDevicePrimaryCtxRetain: unsafe extern "C" fn(*mut Context, DeviceNumber) -> Status;
    cuDevicePrimaryCtxRelease_v2: unsafe extern "C" fn(DeviceNumber) -> Status;
    cuCtxPushCurrent_v2: unsafe extern "C" fn(Context) -> Status;
    cuCtxPopCurrent_v2: unsafe extern "C" fn(*mut Context) -> Status;
    cuCtxGetStreamPriorityRange: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status;
    cuStreamCreateWithPriority: unsafe extern "C" fn(*mut Stream, c_uint, c_int) -> Status;
    cuStreamDestroy_v2: unsafe extern "C" fn(Stream) -> Status;
    cuStreamWaitEvent: unsafe extern "C" fn(Stream, Event, c_uint) -> Status;
    cuStreamSynchronize: unsafe extern "C" fn(Stream) -> Status;
    cuEventCreate: unsafe extern "C" fn(*mut Event, c_uint) -> Status;
    cuEventDestroy_v2: unsafe extern "C" fn(Event) -> Status;
    cuEventRecord: unsafe extern "C" fn(Event, Stream) -> Status;
    cuEventQuery: unsafe extern "C" fn(Event) -> Status;
    cuEventElapsedTime: unsafe extern "C" fn(*mut f32, Event, Event) -> Status;
    cuMemAlloc_v2: unsafe extern "C" fn(*mut Address, usize) -> Status;
    cuMemFree_v2: unsafe extern "C" fn(Address) -> Status;
    cuMemHostAlloc: unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> Status;
    cuMemFreeHost: unsafe extern "C" fn(*mut c_void) -> Status;
    cuMemHostGetDevicePointer_v2: unsafe extern "C" fn(*mut Address, *mut c_void, c_uint) -> Status;
    cuMemcpyHtoDAsync_v2: unsafe extern "C" fn(Address, *const c_void, usize, Stream) -> Status;
    cuMemcpyDtoHAsync_v2: unsafe extern "C" fn(*mut c_void, Address, usize, Stream) -> Status;
    cuMemcpyDtoDAsync_v2: unsafe extern "C" fn(Address, Address, usize, Stream) -> Status;
    cuMemsetD32Async: unsafe extern "C" fn(Address, c_uint, usize, Stream) -> Status;
    cuModuleLoadData: unsafe extern "C" fn(*mut Module, *const c_void) -> Status;
    cuModuleUnload: unsafe extern "C" fn(Module) -> Status;
    cuModuleGetFunction: unsafe extern "C" fn(*mut Function, Module, *const c_char) -> Status;
    cuLaunchKernel: unsafe extern "C" fn(
        Function, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Stream,
        *mut *mut c_void, *mut *mut c_void,
    ) -> Status;
    cuLaunchHostFunc: unsafe extern "C" fn(Stream, HostFunction, *mut c_void) -> Status;
}

/// Error of a function of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Number of the error.
    pub status: Status,
    /// NVIDIA's name for it.
    pub name: String,
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: Status = 2;

impl Fault {
    /// Returns the driver's error for a device that has no more memory.
    pub(super) fn out_of_memory() -> Fault {
        Fault { status: OUT_OF_MEMORY, name: "CUDA_ERROR_OUT_OF_MEMORY".to_owned() }
    }
}

impl Driver {
    /// Loads the driver's library.
    ///
    /// # Errors
    /// If there is no library, it is too old to have all functions, or there is no device.
    pub fn load() -> io::Result<Driver> {
        let driver = Driver::of(&Library::open("libcuda.so.1")?)?;
        // SAFETY: the flags are none, as they have to be; a second call does nothing.
        driver.check(unsafe { (driver.cuInit)(0) }).map_err(io::Error::other)?;
        Ok(driver)
    }

    /// Turns the status that a function returned into a result.
    ///
    /// # Errors
    /// If the status is not 0.
    pub fn check(&self, status: Status) -> Result<(), Fault> {
        if status == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: `name` is the place of a pointer, which comes to a text that is never freed.
        let name = unsafe {
            (self.cuGetErrorName)(status, &mut name);
            name.as_ref().map_or("unknown".into(), |name| CStr::from_ptr(name).to_string_lossy())
        };
        Err(Fault { status, name: name.into_owned() })
    }

    /// Queues a kernel on a stream; nothing if the grid is empty.
    ///
    /// # Errors
    /// If the driver refuses it, or the context had a fault before.
    ///
    /// # Safety
    /// `function` is a kernel with these arguments, and the memory that they name stays until the
    /// stream has run it.
    pub unsafe fn launch<A: Arguments>(
        &self,
        function: Function,
        grid: Grid,
        arguments: &A,
        stream: Stream,
    ) -> Result<(), Fault> {
        if grid.blocks == 0 {
            return Ok(());
        }
        let mut pointers = [std::ptr::from_ref(arguments).cast_mut().cast::<c_void>()];
        let (blocks, threads, none) = (grid.blocks, grid.threads, std::ptr::null_mut());
        // SAFETY: the driver copies the arguments before it returns; the caller answers for the rest.
        let status = unsafe {
            (self.cuLaunchKernel)(
                function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream,
                pointers.as_mut_ptr(),
                none,
            )
        };
        self.check(status)
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CUDA error {} ({})", self.status, self.name)
    }
}

impl std::error::Error for Fault {}
