//! CUDA devices for Python, and gradients in their memory.
//!
//! As with host memory, the caller that gives an address keeps the memory until the device has used it;
//! a framework learns this from the device's stream.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Waker;

use pyo3::prelude::*;
use thinwire_device::cuda::arguments::Address;
use thinwire_device::cuda::{Allocator, Cuda as Core};
use thinwire_device::{Change, Device, Operand, Region, Source, Submission, Values, Work, submit};
use thinwire_sync::Gradient;
use thinwire_wire::DType;

use crate::error::Failure;
use crate::memory::Memory;

/// A CUDA device on which gradients are encoded.
#[pyclass(frozen, module = "thinwire._core")]
pub(crate) struct Cuda(Core);

#[pymethods]
impl Cuda {
    /// Takes the device with this number into use, once in a process; `libraries` is the folder of a framework's
    /// libraries.
    #[staticmethod]
    fn open(py: Python<'_>, ordinal: i32, libraries: PathBuf) -> PyResult<Cuda> {
        let folders = thinwire_device::cuda::nvrtc::folders(&libraries);
        let opened = py.detach(|| Core::open(ordinal, &folders));
        Ok(Cuda(opened.map_err(|error| Failure::invalid(error.to_string()))?))
    }

    /// Returns a simulated device for tests, whose delays are drawn from `seed`; `None` without a C++
    /// compiler.
    #[cfg(feature = "simulated")]
    #[staticmethod]
    fn simulated(py: Python<'_>, seed: u64) -> PyResult<Option<Cuda>> {
        use thinwire_device::cuda::simulated::{cuda, host};
        let made = py.detach(|| host::is_there().then(|| cuda(seed)).transpose());
        let (cuda, _) = match made.map_err(|fault| Failure::invalid(fault.to_string()))? {
            Some(made) => made,
            None => return Ok(None),
        };
        Ok(Some(Cuda(cuda)))
    }

    /// Returns the address of new memory for this many f32, which is never freed.
    #[cfg(feature = "simulated")]
    fn allocate(&self, elements: usize) -> u64 {
        let region = self.0.allocate(elements);
        let address = self.0.address(&region);
        std::mem::forget(region);
        address
    }

    /// The address of a new stream, as a framework has one.
    #[cfg(feature = "simulated")]
    fn new_stream(&self) -> PyResult<usize> {
        let made = thinwire_device::cuda::simulated::stream(&self.0);
        Ok(made.map_err(|fault| Failure::invalid(fault.to_string()))?.addr())
    }

    /// Queues a copy of f32 between addresses of the device on such a stream.
    #[cfg(feature = "simulated")]
    fn queue_copy(&self, source: u64, target: u64, elements: usize, stream: usize) -> PyResult<()> {
        use thinwire_device::cuda::simulated::queue_copy;
        let stream = stream as *mut c_void;
        // SAFETY: the caller gives a stream of this device.
        let queued = unsafe { queue_copy(&self.0, source, target, elements, stream) };
        Ok(queued.map_err(|fault| Failure::invalid(fault.to_string()))?)
    }

    /// Takes memory from a framework's allocator from now on, if none is set yet: `allocate` is called with a number
    /// of bytes and returns an address, or raises; `free` is called with that address.
    fn allocate_by(&self, allocate: Py<PyAny>, free: Py<PyAny>) {
        self.0.allocate_by(Arc::new(OfPython { allocate, free }));
    }

    /// Returns the stream of all work.
    #[getter]
    fn stream(&self) -> usize {
        self.0.stream().addr()
    }

    /// Lets work from now on wait for everything that is queued on one of the framework's streams.
    fn after(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        // SAFETY: the caller gives a stream of this device's primary context.
        let ordered = py.detach(|| unsafe { self.0.after(stream as *mut c_void) });
        Ok(ordered.map_err(|fault| Failure::invalid(fault.to_string()))?)
    }

    /// Waits until all work is done.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        let ended = py.detach(|| self.0.synchronize());
        Ok(ended.map_err(|fault| Failure::invalid(fault.to_string()))?)
    }
}

/// Allocator of a framework in Python.
#[derive(Debug)]
struct OfPython {
    allocate: Py<PyAny>,
    free: Py<PyAny>,
}

impl Allocator for OfPython {
    fn allocate(&self, bytes: usize) -> Option<Address> {
        let allocated = Python::try_attach(|py| self.allocate.call1(py, (bytes,))?.extract(py));
        allocated.and_then(PyResult::ok)
    }

    /// Frees memory; after the end of Python, leaves it allocated.
    fn free(&self, address: Address) {
        Python::try_attach(|py| {
            if let Err(error) = self.free.call1(py, (address,)) {
                error.write_unraisable(py, None);
            }
        });
    }
}

impl Cuda {
    /// Returns the core's device.
    pub(crate) fn core(&self) -> Arc<dyn Device> {
        Arc::new(self.0.clone())
    }

    /// Returns it as a device of CUDA, which has streams.
    pub(crate) fn cuda(&self) -> &Core {
        &self.0
    }
}

/// A gradient as Python describes it: the number of its parameter or bucket, its address and number of
/// elements, and the device, if it is f32 in the memory of one.
#[derive(FromPyObject)]
pub(crate) enum Target {
    Host(usize, usize, usize),
    Device(usize, usize, usize, Py<Cuda>),
}

impl Target {
    pub(crate) fn new(
        number: usize,
        address: usize,
        elements: usize,
        device: Option<Py<Cuda>>,
    ) -> Target {
        match device {
            Some(device) => Target::Device(number, address, elements, device),
            None => Target::Host(number, address, elements),
        }
    }

    /// Returns the number of the parameter or bucket.
    pub(crate) fn number(&self) -> usize {
        match self {
            Target::Host(number, ..) | Target::Device(number, ..) => *number,
        }
    }

    /// Returns the number of elements.
    pub(crate) fn elements(&self) -> usize {
        match self {
            Target::Host(_, _, elements) | Target::Device(_, _, elements, _) => *elements,
        }
    }

    /// Returns the memory; in host memory its elements have `dtype`.
    pub(crate) fn memory(&self, dtype: DType) -> Result<Gradients, Failure> {
        self.part(0, self.elements(), dtype)
    }

    /// Returns `elements` of the memory, beginning `bytes` after its start.
    pub(crate) fn part(
        &self,
        bytes: usize,
        elements: usize,
        dtype: DType,
    ) -> Result<Gradients, Failure> {
        let (address, device) = match self {
            Target::Host(_, address, _) => (address, None),
            Target::Device(_, address, _, device) => (address, Some(&device.get().0)),
        };
        memory(address.saturating_add(bytes), elements, dtype, device)
    }

    /// Returns the bytes of an element of a gradient of `dtype`.
    pub(crate) fn width(&self, dtype: DType) -> usize {
        match self {
            Target::Host(..) => dtype.size(),
            Target::Device(..) => DType::F32.size(),
        }
    }
}

/// Memory of a gradient: host memory in the gradient's dtype, or a device's memory as f32.
pub(crate) type Gradients = Values<Memory>;

/// Returns the memory at an address: of elements of `dtype` in host memory, of f32 in that of a device.
pub(crate) fn memory(
    address: usize,
    elements: usize,
    dtype: DType,
    device: Option<&Core>,
) -> Result<Gradients, Failure> {
    let Some(device) = device else {
        return Ok(Values::Host(Memory::of(address, elements, dtype)?));
    };
    Memory::of(address, elements, DType::F32)?;
    // SAFETY: the framework gave memory of that many f32 on this device, and keeps it until the device's
    // stream has used it.
    Ok(Values::Device(unsafe { device.foreign(address as u64, elements, ()) }))
}

/// Returns gradients as the core takes them.
pub(crate) fn gradient(gradients: &Gradients, dtype: DType) -> Gradient<'_> {
    match gradients {
        Values::Host(memory) => memory.gradient(dtype),
        Values::Device(region) => Gradient::Device(region),
    }
}

/// Writes averages over gradients.
pub(crate) fn write(
    gradients: &mut Gradients,
    dtype: DType,
    averages: Source<'_>,
) -> Result<(), Failure> {
    match (gradients, averages) {
        (Values::Host(memory), Values::Host(values)) => memory.write(dtype, values),
        (Values::Host(memory), Values::Device(region)) => memory.write(dtype, &region.fetch()),
        (Values::Device(to), Values::Device(from)) if to.device().id() == from.device().id() => {
            change(to, Change::Copy(Source::Device(from)))?;
        }
        (Values::Device(to), Values::Device(from)) => to.device().write(&from.fetch(), to),
        (Values::Device(to), Values::Host(values)) => to.device().write(values, to),
    }
    Ok(())
}

/// Writes NaN over gradients.
pub(crate) fn spoil(gradients: &mut Gradients, dtype: DType) -> Result<(), Failure> {
    match gradients {
        Values::Host(memory) => memory.spoil(dtype),
        Values::Device(region) => change(region, Change::Fill(f32::NAN))?,
    }
    Ok(())
}

/// Queues a change of values in a device's memory; the framework waits for it by the device's stream.
fn change(region: &Region, change: Change<Source<'_>>) -> Result<(), Failure> {
    let work = Work::Change(Operand::Device(region.clone()), change);
    match submit(work, Waker::noop()) {
        Submission::Done(done) => done.failure.map_or(Ok(()), |failure| {
            Err(Failure::invalid(format!("a device cannot write an average: {failure:?}")))
        }),
        Submission::Pending(_) => Ok(()),
    }
}
