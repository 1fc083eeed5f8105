//! Driver without a device, for tests of code that uses the table of the driver's functions.
//!
//! Streams are late and interleaved by a seed, memory is filled with NaN before and after its use, and
//! kernels are those of [`host`]. Calls without a context or from a host function, and copies that
//! exceed an allocation, are refused as by the driver. Freed memory stays mapped, and late work finds
//! NaN there.

pub mod host;
mod machine;

use std::alloc::{Layout, alloc};
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use self::machine::{BROKEN, Event as EventState, Machine, Number, Operation, calling};
use super::Cuda;
use super::arguments::Address;
use super::context::made;
use super::driver::{
    ATTRIBUTE_MAJOR, Context, DeviceNumber, Driver, Event, Fault, Function, HostFunction, Module,
    NOT_PERMITTED, NOT_READY, Status, Stream,
};
use super::kernel::{Grid, Kernel, Source};
use super::nvrtc::Image;
use crate::Region;

const INVALID_VALUE: Status = 1;
const OUT_OF_MEMORY: Status = 2;
const INVALID_DEVICE: Status = 101;
const INVALID_CONTEXT: Status = 201;
const NOT_FOUND: Status = 500;

/// Byte of memory that was never written: four of them make a NaN.
const POISON: u8 = 0xff;

thread_local! {
    static CONTEXTS: RefCell<Vec<&'static Machine>> = const { RefCell::new(Vec::new()) };
}

/// Stream or event; leaked, since a handle may be used after its end by mistake.
struct Handle {
    machine: &'static Machine,
    number: Number,
}

/// Starts a simulated device whose delays are drawn from `seed`. Returns the number of the device.
pub fn device(seed: u64) -> DeviceNumber {
    Machine::start(seed) as DeviceNumber
}

/// Starts a simulated device whose delays are drawn from `seed`, and opens it. Returns the open device
/// and its number.
///
/// # Errors
/// If the driver returns an error.
pub fn cuda(seed: u64) -> Result<(Cuda, DeviceNumber), Fault> {
    let number = device(seed);
    // SAFETY: the functions below are the simulated ones, and images are theirs.
    let cuda = unsafe { Cuda::new(driver(), number, |source| Ok(image(source))) };
    cuda.map(|cuda| (cuda, number))
}

/// Returns a region as if its memory belonged to a framework.
pub fn foreign(cuda: &Cuda, region: Region) -> Region {
    let (address, elements) = (cuda.address(&region), region.len());
    // SAFETY: the region has so many f32, and is kept.
    unsafe { cuda.foreign(address, elements, region) }
}

/// Returns a new stream, like a framework's own.
///
/// # Errors
/// If the driver refuses it.
pub fn stream(cuda: &Cuda) -> Result<Stream, Fault> {
    let owner = &cuda.0;
    let _current = owner.enter();
    made(&owner.driver, null_mut(), |place| {
        // SAFETY: there is a place for the stream.
        unsafe { (owner.driver.cuStreamCreateWithPriority)(place, 0, 0) }
    })
}

/// Queues a copy of f32 within the device's memory on a stream, in place of a framework's computation.
///
/// # Errors
/// If the driver refuses it.
///
/// # Safety
/// The stream is one of this device's.
pub unsafe fn queue_copy(
    cuda: &Cuda,
    from: Address,
    to: Address,
    elements: usize,
    stream: Stream,
) -> Result<(), Fault> {
    let owner = &cuda.0;
    let _current = owner.enter();
    // SAFETY: the caller's promise; the driver refuses copies that leave an allocation.
    let status = unsafe { (owner.driver.cuMemcpyDtoDAsync_v2)(to, from, 4 * elements, stream) };
    owner.driver.check(status)
}

/// Breaks the context of a device, as an illegal address does: no work continues, and no host function
/// is called.
pub fn break_down(device: DeviceNumber) {
    if let Some(machine) = Machine::of(device as usize) {
        machine.break_down();
    }
}

/// Returns the mistakes that the driver has noticed but no status has reported: calls from a host
/// function.
pub fn mistakes(device: DeviceNumber) -> Vec<String> {
    Machine::of(device as usize).map_or(Vec::new(), |machine| machine.state().mistakes.clone())
}

/// Files of kernels for which there is an image.
static SOURCES: Mutex<Vec<Source>> = Mutex::new(Vec::new());

fn sources() -> MutexGuard<'static, Vec<Source>> {
    SOURCES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the image of a file of kernels for `cuModuleLoadData`.
pub fn image(source: Source) -> Image {
    let mut sources = sources();
    if !sources.contains(&source) {
        sources.push(source);
    }
    Image::Ptx([source.name.as_bytes(), &[0]].concat())
}

/// Returns the table.
pub fn driver() -> Driver {
    Driver {
        cuInit: init,
        cuGetErrorName: get_error_name,
        cuDeviceGet: device_get,
        cuDeviceGetAttribute: device_get_attribute,
        cuDevicePrimaryCtxRetain: context_retain,
        cuDevicePrimaryCtxRelease_v2: context_release,
        cuCtxPushCurrent_v2: context_push,
        cuCtxPopCurrent_v2: context_pop,
        cuCtxGetStreamPriorityRange: priority_range,
        cuStreamCreateWithPriority: stream_create,
        cuStreamDestroy_v2: stream_destroy,
        cuStreamWaitEvent: stream_wait_event,
        cuStreamSynchronize: stream_synchronize,
        cuEventCreate: event_create,
        cuEventDestroy_v2: event_destroy,
        cuEventRecord: event_record,
        cuEventQuery: event_query,
        cuEventElapsedTime: event_elapsed_time,
        cuMemAlloc_v2: mem_alloc,
        cuMemFree_v2: mem_free,
        cuMemHostAlloc: host_alloc,
        cuMemFreeHost: host_free,
        cuMemHostGetDevicePointer_v2: host_get_device_pointer,
        cuMemcpyHtoDAsync_v2: copy_to_device,
        cuMemcpyDtoHAsync_v2: copy_to_host,
        cuMemcpyDtoDAsync_v2: copy_on_device,
        cuMemsetD32Async: fill,
        cuModuleLoadData: module_load,
        cuModuleUnload: module_unload,
        cuModuleGetFunction: module_get_function,
        cuLaunchKernel: launch_kernel,
        cuLaunchHostFunc: launch_host_function,
    }
}

/// Runs the body of a function, unless the calling thread may not call it.
fn call(name: &str, run: impl FnOnce(&'static Machine) -> Result<(), Status>) -> Status {
    if let Some(machine) = calling() {
        machine.state().mistakes.push(format!("{name} inside of a host function"));
        return NOT_PERMITTED;
    }
    let current = CONTEXTS.with_borrow(|contexts| contexts.last().copied());
    match current.ok_or(INVALID_CONTEXT) {
        Ok(machine) if machine.state().is_broken => BROKEN,
        Ok(machine) => run(machine).err().unwrap_or(0),
        Err(status) => status,
    }
}

/// Writes a result to the place that the caller has given.
fn put<T>(place: *mut T, value: T) -> Status {
    // SAFETY: callers of the driver pass places for results.
    unsafe { place.write(value) };
    0
}

/// Result of a call that is refused with a status unless a condition holds.
macro_rules! require {
    ($condition:expr, $status:expr) => {
        if $condition { Ok(()) } else { Err($status) }
    };
}

/// Returns the number of a stream or event of this machine; the null stream is the first.
fn number(machine: &'static Machine, handle: *mut c_void) -> Result<Number, Status> {
    if handle.is_null() {
        return Ok(0);
    }
    // SAFETY: handles are made below and never freed.
    let handle = unsafe { &*handle.cast::<Handle>() };
    require!(std::ptr::eq(handle.machine, machine), INVALID_CONTEXT).map(|()| handle.number)
}

fn handle(machine: &'static Machine, number: Number) -> *mut c_void {
    Box::into_raw(Box::new(Handle { machine, number })).cast()
}

fn allocate(machine: &'static Machine, bytes: usize) -> Result<usize, Status> {
    let layout = Layout::from_size_align(bytes.max(1), 256).map_err(|_| INVALID_VALUE)?;
    // SAFETY: the layout is not empty, and the memory is as long.
    let place = unsafe {
        let place = alloc(layout);
        require!(!place.is_null(), OUT_OF_MEMORY)?;
        place.write_bytes(POISON, bytes);
        place as usize
    };
    machine.state().memory.insert(place, bytes);
    Ok(place)
}

fn free(machine: &'static Machine, place: usize) -> Result<(), Status> {
    let bytes = machine.state().memory.remove(&place).ok_or(INVALID_VALUE)?;
    // SAFETY: the memory was allocated with this length, and is never unmapped.
    unsafe { (place as *mut u8).write_bytes(POISON, bytes) };
    Ok(())
}

fn copy(name: &str, from: usize, to: usize, length: usize, stream: Stream) -> Status {
    call(name, |machine| {
        let state = machine.state();
        let inside = state.holds(from, length) && state.holds(to, length);
        drop(state);
        require!(inside, INVALID_VALUE)?;
        machine.queue(number(machine, stream)?, Operation::Copy { from, to, length });
        Ok(())
    })
}

unsafe extern "C" fn init(_flags: c_uint) -> Status {
    0
}

unsafe extern "C" fn get_error_name(status: Status, name: *mut *const c_char) -> Status {
    put(name, if status == BROKEN { c"CUDA_ERROR_ILLEGAL_ADDRESS" } else { c"SIMULATED" }.as_ptr())
}

unsafe extern "C" fn device_get(device: *mut DeviceNumber, ordinal: c_int) -> Status {
    put(device, ordinal)
}

unsafe extern "C" fn device_get_attribute(
    value: *mut c_int,
    attribute: c_int,
    _device: DeviceNumber,
) -> Status {
    put(value, if attribute == ATTRIBUTE_MAJOR { 9 } else { 0 })
}

unsafe extern "C" fn context_retain(context: *mut Context, device: DeviceNumber) -> Status {
    match Machine::of(device as usize) {
        Some(machine) => put(context, std::ptr::from_ref(machine).cast_mut().cast()),
        None => INVALID_DEVICE,
    }
}

unsafe extern "C" fn context_release(_device: DeviceNumber) -> Status {
    0
}

unsafe extern "C" fn context_push(context: Context) -> Status {
    // SAFETY: contexts are machines, which stay until the process ends.
    let machine = unsafe { &*context.cast::<Machine>() };
    CONTEXTS.with_borrow_mut(|contexts| contexts.push(machine));
    0
}

unsafe extern "C" fn context_pop(context: *mut Context) -> Status {
    match CONTEXTS.with_borrow_mut(Vec::pop) {
        Some(machine) => put(context, std::ptr::from_ref(machine).cast_mut().cast()),
        None => INVALID_CONTEXT,
    }
}

unsafe extern "C" fn priority_range(least: *mut c_int, greatest: *mut c_int) -> Status {
    put(least, 0) + put(greatest, -5)
}

unsafe extern "C" fn stream_create(
    stream: *mut Stream,
    _flags: c_uint,
    _priority: c_int,
) -> Status {
    call("cuStreamCreateWithPriority", |machine| {
        let mut state = machine.state();
        state.streams.push(Default::default());
        put(stream, handle(machine, state.streams.len() - 1));
        Ok(())
    })
}

/// Operations that are queued still happen, as with the driver.
unsafe extern "C" fn stream_destroy(stream: Stream) -> Status {
    call("cuStreamDestroy", |machine| number(machine, stream).map(drop))
}

unsafe extern "C" fn stream_wait_event(stream: Stream, event: Event, _flags: c_uint) -> Status {
    call("cuStreamWaitEvent", |machine| {
        let (stream, event) = (number(machine, stream)?, number(machine, event)?);
        let turn = machine.state().events[event].recorded;
        machine.queue(stream, Operation::Wait { event, turn });
        Ok(())
    })
}

unsafe extern "C" fn stream_synchronize(stream: Stream) -> Status {
    call("cuStreamSynchronize", |machine| {
        machine.drain(number(machine, stream)?);
        require!(!machine.state().is_broken, BROKEN)
    })
}

unsafe extern "C" fn event_create(event: *mut Event, _flags: c_uint) -> Status {
    call("cuEventCreate", |machine| {
        let mut state = machine.state();
        state.events.push(EventState::default());
        put(event, handle(machine, state.events.len() - 1));
        Ok(())
    })
}

unsafe extern "C" fn event_destroy(event: Event) -> Status {
    call("cuEventDestroy", |machine| number(machine, event).map(drop))
}

unsafe extern "C" fn event_record(event: Event, stream: Stream) -> Status {
    call("cuEventRecord", |machine| {
        let (stream, event) = (number(machine, stream)?, number(machine, event)?);
        let mut state = machine.state();
        let recorded = &mut state.events[event];
        recorded.recorded += 1;
        let turn = recorded.recorded;
        recorded.pending.insert(turn);
        drop(state);
        machine.queue(stream, Operation::Record { event, turn });
        Ok(())
    })
}

unsafe extern "C" fn event_query(event: Event) -> Status {
    call("cuEventQuery", |machine| {
        let event = number(machine, event)?;
        let event = &machine.state().events[event];
        require!(!event.pending.contains(&event.recorded), NOT_READY)
    })
}

unsafe extern "C" fn event_elapsed_time(ms: *mut f32, start: Event, end: Event) -> Status {
    call("cuEventElapsedTime", |machine| {
        let at = |event| {
            let event = number(machine, event)?;
            machine.state().events[event].at.ok_or(NOT_READY)
        };
        let elapsed = at(end)?.saturating_duration_since(at(start)?);
        put(ms, elapsed.as_secs_f32() * 1e3);
        Ok(())
    })
}

unsafe extern "C" fn mem_alloc(place: *mut Address, bytes: usize) -> Status {
    call("cuMemAlloc", |machine| {
        put(place, allocate(machine, bytes)? as Address);
        Ok(())
    })
}

/// Waits for all work, as the driver does. Work that is under way finds NaN all the same, since memory may
/// come from an allocator that does not wait.
unsafe extern "C" fn mem_free(place: Address) -> Status {
    call("cuMemFree", |machine| {
        let freed = free(machine, place as usize);
        machine.drain_all();
        freed
    })
}

unsafe extern "C" fn host_alloc(place: *mut *mut c_void, bytes: usize, _flags: c_uint) -> Status {
    call("cuMemHostAlloc", |machine| {
        put(place, allocate(machine, bytes)? as *mut c_void);
        Ok(())
    })
}

unsafe extern "C" fn host_free(place: *mut c_void) -> Status {
    call("cuMemFreeHost", |machine| {
        let freed = free(machine, place as usize);
        machine.drain_all();
        freed
    })
}

unsafe extern "C" fn host_get_device_pointer(
    device: *mut Address,
    host: *mut c_void,
    _flags: c_uint,
) -> Status {
    call("cuMemHostGetDevicePointer", |machine| {
        require!(machine.state().holds(host as usize, 0), INVALID_VALUE)?;
        put(device, host as Address);
        Ok(())
    })
}

unsafe extern "C" fn copy_to_device(
    to: Address,
    from: *const c_void,
    length: usize,
    stream: Stream,
) -> Status {
    copy("cuMemcpyHtoDAsync", from as usize, to as usize, length, stream)
}

unsafe extern "C" fn copy_to_host(
    to: *mut c_void,
    from: Address,
    length: usize,
    stream: Stream,
) -> Status {
    copy("cuMemcpyDtoHAsync", from as usize, to as usize, length, stream)
}

unsafe extern "C" fn copy_on_device(
    to: Address,
    from: Address,
    length: usize,
    stream: Stream,
) -> Status {
    copy("cuMemcpyDtoDAsync", from as usize, to as usize, length, stream)
}

unsafe extern "C" fn fill(at: Address, word: c_uint, count: usize, stream: Stream) -> Status {
    call("cuMemsetD32Async", |machine| {
        let at = at as usize;
        require!(machine.state().holds(at, 4 * count), INVALID_VALUE)?;
        machine.queue(number(machine, stream)?, Operation::Fill { at, word, count });
        Ok(())
    })
}

/// Modules and functions are numbers from 1 on.
unsafe extern "C" fn module_load(module: *mut Module, image: *const c_void) -> Status {
    call("cuModuleLoadData", |machine| {
        // SAFETY: images come from `image` and end in a zero.
        let name = unsafe { CStr::from_ptr(image.cast()) };
        let is_named = |source: &&Source| source.name.as_bytes() == name.to_bytes();
        let source = sources().iter().find(is_named).copied();
        let mut state = machine.state();
        state.modules.push(source.ok_or(INVALID_VALUE)?);
        put(module, state.modules.len() as Module);
        Ok(())
    })
}

unsafe extern "C" fn module_unload(_module: Module) -> Status {
    call("cuModuleUnload", |_| Ok(()))
}

unsafe extern "C" fn module_get_function(
    function: *mut Function,
    module: Module,
    name: *const c_char,
) -> Status {
    call("cuModuleGetFunction", |machine| {
        let state = machine.state();
        let source = (module as usize).checked_sub(1).and_then(|at| state.modules.get(at));
        let source = *source.ok_or(INVALID_VALUE)?;
        // SAFETY: names end in a zero; the text is looked at in this call alone.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| NOT_FOUND)?;
        let kernel = Kernel { source, name };
        drop(state);
        // Without the lock: the compiler may have to run.
        let found = host::Function::find(kernel);
        let mut state = machine.state();
        let found = found.map_err(|why| {
            state.mistakes.push(why);
            NOT_FOUND
        })?;
        state.functions.push(found);
        put(function, state.functions.len() as Function);
        Ok(())
    })
}

unsafe extern "C" fn launch_kernel(
    function: Function,
    blocks: c_uint,
    _blocks_y: c_uint,
    _blocks_z: c_uint,
    threads: c_uint,
    _threads_y: c_uint,
    _threads_z: c_uint,
    _shared: c_uint,
    stream: Stream,
    arguments: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Status {
    call("cuLaunchKernel", |machine| {
        let number = number(machine, stream)?;
        let function = (function as usize).checked_sub(1);
        let function = function.and_then(|at| machine.state().functions.get(at).copied());
        let function = function.ok_or(INVALID_VALUE)?;
        require!(blocks > 0 && threads > 0 && threads.is_multiple_of(32), INVALID_VALUE)?;
        let mut copied = vec![0u64; function.arguments.div_ceil(8)];
        // SAFETY: the only argument of a kernel is a struct of this length.
        unsafe {
            (*arguments).cast::<u8>().copy_to(copied.as_mut_ptr().cast(), function.arguments);
        }
        let grid = Grid { blocks, threads };
        machine.queue(number, Operation::Launch { function, grid, arguments: copied });
        Ok(())
    })
}

unsafe extern "C" fn launch_host_function(
    stream: Stream,
    function: HostFunction,
    argument: *mut c_void,
) -> Status {
    call("cuLaunchHostFunc", |machine| {
        let operation = Operation::Call { function, argument: argument as usize };
        machine.queue(number(machine, stream)?, operation);
        Ok(())
    })
}
