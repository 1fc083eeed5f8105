//! A CUDA device: work is queued on one stream, and its end is reported from another one.
//!
//! Kernels write encodings into pinned memory and read them there, so that no gradient crosses the bus.
//! A host function reports that work is done. It is on a second stream, behind an event, because on the
//! stream of the work it would hold up the work that follows. It calls no function of the driver; the
//! objects that it leaves are dropped by the next thread that submits work or asks for its result.
//! After a fault of the context no host function is called, so a long wait checks the event.

use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use thinwire_codec::{Codec, Write};
use thinwire_wire::random::Key;

use super::arguments::{self, Address};
use super::context::{Current, Handle, made};
use super::driver::{DeviceNumber, Driver, Fault, STREAM_NON_BLOCKING, Status, Stream};
use super::flight::Verdict;
use super::kernel::{Cast, Kernels, PowerSgd, SOURCES, Source, kernels};
use super::launch::Launch;
use super::memory::{Kept, Memory, Origin};
use super::nvrtc::Image;
use super::owner::{Allocator, Cuda, Images, Owner, failure};
use super::pinned::Pinned;
use crate::{
    Change, Decoding, Device, Done, Encoding, FactorStep, Factoring, Failure, HostBytes, Pending,
    Region, Submission, Values, Work,
};

/// Time after which a wait checks whether the context has had a fault.
const FAULT_AFTER: Duration = Duration::from_secs(1);

impl Cuda {
    /// Takes a device into use, with its primary context. `image` returns, for a file of kernels, the
    /// image that the driver loads. It is called now for all built-in files, and later for the files of
    /// codecs as text.
    ///
    /// # Errors
    /// If there is no such device, or it takes no image.
    ///
    /// # Safety
    /// The functions of the driver do what their names say, and images are those of the files.
    pub unsafe fn new(
        driver: Driver,
        device: DeviceNumber,
        image: impl FnMut(Source) -> Result<Image, Fault> + Send + 'static,
    ) -> Result<Cuda, Fault> {
        let context = made(&driver, null_mut(), |place| {
            // SAFETY: there is a place for the context.
            unsafe { (driver.cuDevicePrimaryCtxRetain)(place, device) }
        })?;
        let _current = Current::enter(&driver, context);
        let stream = |priority| {
            made(&driver, null_mut(), |place| {
                // SAFETY: there is a place for the stream.
                unsafe { (driver.cuStreamCreateWithPriority)(place, STREAM_NON_BLOCKING, priority) }
            })
        };
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: there are places for both priorities.
        driver.check(unsafe { (driver.cuCtxGetStreamPriorityRange)(&mut least, &mut greatest) })?;
        // The highest priority is the smallest number: encodings are small and are waited for.
        let (work, outer, calls) = (stream(greatest)?, stream(greatest)?, stream(least)?);
        let images = Mutex::new(Images(Box::new(image)));
        let context = Handle(context);
        let [work, outer, calls] = [work, outer, calls].map(Handle);
        let (queue, state, pool, allocator) = Default::default();
        let owner =
            Owner { driver, context, work, outer, calls, images, queue, state, pool, allocator };
        for source in SOURCES {
            owner.module(source)?;
        }
        Ok(Cuda(Arc::new(owner)))
    }

    /// Returns a region of foreign f32 memory on this device. `kept` keeps the memory alive.
    ///
    /// # Safety
    /// The memory has `elements` f32, and no other code reads or writes it while work on the region is
    /// under way.
    pub unsafe fn foreign(&self, address: Address, elements: usize, kept: impl Kept) -> Region {
        let origin = Origin::Kept(Box::new(kept));
        Region::new(Memory::new(self, address, elements, origin))
    }

    /// Allocates all memory from now on with a framework's allocator, unless there is one already.
    pub fn allocate_by(&self, allocator: Arc<dyn Allocator>) {
        let _ = self.0.allocator.set(allocator);
    }

    /// Returns the address of new memory for `elements` f32, and its origin.
    fn memory(&self, elements: usize) -> Result<(Address, Origin), Fault> {
        let (driver, bytes) = (&self.0.driver, 4 * elements.max(1));
        if let Some(allocator) = self.0.allocator.get() {
            let address = allocator.allocate(bytes).ok_or_else(Fault::out_of_memory)?;
            return Ok((address, Origin::Allocator(Arc::clone(allocator))));
        }
        let address = made(driver, 0, |place| {
            // SAFETY: there is a place for the address.
            unsafe { (driver.cuMemAlloc_v2)(place, bytes) }
        })?;
        Ok((address, Origin::Driver))
    }

    /// Makes work wait for a stream of the framework: work on foreign memory that is submitted from
    /// now on begins after everything that is already queued on the stream.
    ///
    /// # Errors
    /// If the driver refuses it.
    ///
    /// # Safety
    /// The stream is one of this device's context.
    pub unsafe fn after(&self, stream: Stream) -> Result<(), Fault> {
        self.0.order(stream, self.0.outer.0)
    }

    /// Makes a stream of the framework wait for work on foreign memory: everything that is queued on the stream from
    /// now on begins after all such work that was submitted.
    ///
    /// # Errors
    /// If the driver refuses it.
    ///
    /// # Safety
    /// The stream is one of this device's context.
    pub unsafe fn before(&self, stream: Stream) -> Result<(), Fault> {
        self.0.order(self.0.outer.0, stream)
    }

    /// Returns the stream of all work on foreign memory, for a framework that keeps its memory until the
    /// stream has used it.
    pub fn stream(&self) -> Stream {
        self.0.outer.0
    }

    /// Waits until all work that was submitted is done.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn synchronize(&self) -> Result<(), Fault> {
        let _current = self.0.enter();
        self.0.drain(self.0.work.0).and_then(|()| self.0.drain(self.0.outer.0))
    }

    /// Queues a copy of all of a region, to or from an address, and waits for it.
    fn copy(
        &self,
        region: &Region,
        queue: impl FnOnce(Address, Stream) -> Status,
    ) -> Result<(), Fault> {
        let (owner, memory) = (&self.0, Memory::of(region));
        let stream = if memory.is_foreign() { owner.outer_in_order()? } else { owner.work.0 };
        memory.wait_for_outer(stream)?;
        owner.driver.check(queue(self.address(region), stream))?;
        owner.drain(stream)
    }

    /// Returns the address of a region's first element.
    ///
    /// # Panics
    /// If the region is not memory of this device.
    pub fn address(&self, region: &Region) -> Address {
        let memory = Memory::of(region);
        assert!(Arc::ptr_eq(&memory.device.0, &self.0), "work of a device is on its own memory");
        memory.address + 4 * region.elements().start as Address
    }

    fn encode(&self, launch: &mut Launch<'_>, encoding: Encoding<'_>) -> Result<Verdict, Fault> {
        let Encoding { codec, values, residual, key, to } = encoding;
        let values = values.region();
        let length = values.len();
        assert_eq!(to.len(), codec.encoded_len(length), "output of {codec}");
        let values = launch.region(self, values);
        let residual = residual.map_or(0, |residual| launch.other(self, residual.region(), length));
        let error = if residual == 0 { 0 } else { values };
        let bytes = launch.bytes(to);
        match kernels(codec.as_ref()) {
            Some(Kernels::Cast(cast)) => {
                let arguments = arguments::Cast {
                    residual,
                    error,
                    elements: bytes,
                    largest: launch.word.device,
                    scale: 1.0,
                    ..launch.cast(values, length)
                };
                launch.run(cast.encode, cast.grid(length), &arguments)?;
                Ok(Verdict { finite_below: cast.limit, ..Verdict::NONE })
            }
            Some(Kernels::Code(code)) => {
                let arguments = arguments::Code {
                    residual,
                    error,
                    bytes,
                    infinite: launch.word.device,
                    key: key.into(),
                    ..launch.code(&code, values, length)
                };
                launch.run(code.encode, code.grid(length), &arguments)?;
                Ok(Verdict { finite_below: 1, ..Verdict::NONE })
            }
            Some(Kernels::Sparse(selection)) => {
                let sparse = selection.of(length).expect("a bucket has fewer than 2^32 elements");
                let arguments = arguments::Sparse {
                    values,
                    residual,
                    error,
                    bytes,
                    infinite: launch.word.device,
                    scratch: launch.scratch(self, sparse.scratch_len()),
                    ..sparse.arguments(key)
                };
                for step in sparse.encoding() {
                    launch.run(step.kernel, step.grid, &step.arguments(&arguments))?;
                }
                Ok(Verdict { finite_below: 1, ..Verdict::NONE })
            }
            Some(Kernels::Rans(symbols)) => {
                let rans = symbols.of(codec.as_ref(), length);
                let arguments = arguments::Rans {
                    values,
                    residual,
                    error,
                    bytes,
                    infinite: launch.word.device,
                    scratch: launch.scratch(self, rans.scratch_len()),
                    ..rans.arguments()
                };
                rans.encoding()
                    .try_for_each(|step| launch.run(step.kernel, step.grid, &arguments))?;
                Ok(Verdict { finite_below: 1, ..Verdict::NONE })
            }
            None => panic!("codec {codec} has no kernels on a device"),
        }
    }

    fn decode(&self, launch: &mut Launch<'_>, decoding: Decoding<'_>) -> Result<Verdict, Fault> {
        let Decoding { codec, from, to, write, canonicalise } = decoding;
        let to = to.region();
        let length = to.len();
        let values = launch.region(self, to);
        let bytes = launch.bytes(from);
        match kernels(codec.as_ref()) {
            Some(Kernels::Cast(cast)) => {
                let cast_arguments = arguments::Cast {
                    elements: bytes,
                    add: write.into(),
                    ..launch.cast(values, length)
                };
                launch.run(cast.decode, cast.grid(length), &cast_arguments)?;
            }
            Some(Kernels::Code(code)) => {
                if canonicalise.before {
                    launch.canonicalise(&code, values, length)?;
                }
                let arguments = arguments::Code {
                    bytes,
                    infinite: launch.word.device,
                    add: write.into(),
                    ..launch.code(&code, values, length)
                };
                launch.run(code.decode, code.grid(length), &arguments)?;
                if canonicalise.after {
                    launch.canonicalise(&code, values, length)?;
                }
                return Ok(Verdict { corrupt_from: 1, ..Verdict::NONE });
            }
            Some(Kernels::Sparse(selection)) => {
                let sparse = selection.of(length).expect("a bucket has fewer than 2^32 elements");
                let arguments = arguments::Sparse {
                    values,
                    bytes,
                    infinite: launch.word.device,
                    scratch: launch.scratch(self, sparse.scratch_len()),
                    add: write.into(),
                    ..sparse.arguments(NO_KEY)
                };
                for step in sparse.decoding(write) {
                    launch.run(step.kernel, step.grid, &step.arguments(&arguments))?;
                }
                return Ok(Verdict { corrupt_from: 1, ..Verdict::NONE });
            }
            Some(Kernels::Rans(symbols)) => {
                let rans = symbols.of(codec.as_ref(), length);
                let arguments = arguments::Rans {
                    values,
                    bytes,
                    infinite: launch.word.device,
                    scratch: launch.scratch(self, rans.scratch_len()),
                    add: write.into(),
                    ..rans.arguments()
                };
                rans.decoding()
                    .try_for_each(|step| launch.run(step.kernel, step.grid, &arguments))?;
                return Ok(Verdict { corrupt_from: 1, ..Verdict::NONE });
            }
            None => panic!("codec {codec} has no kernels on a device"),
        }
        Ok(Verdict::NONE)
    }

    fn change(
        &self,
        launch: &mut Launch<'_>,
        values: Region,
        change: Change<crate::Source<'_>>,
    ) -> Result<Verdict, Fault> {
        let length = values.len();
        let values = launch.region(self, values);
        let (driver, stream) = (&self.0.driver, launch.stream);
        let (raw, cast) = (Cast::RAW, launch.cast(values, length));
        let arguments = match change {
            Change::Fill(value) => {
                // SAFETY: the region has so many words, and the launch keeps it.
                let status =
                    unsafe { (driver.cuMemsetD32Async)(values, value.to_bits(), length, stream) };
                return driver.check(status).map(|()| Verdict::NONE);
            }
            Change::Copy(source) => {
                let source = launch.other(self, source.region(), length);
                // SAFETY: both regions have so many words, and the launch keeps them.
                let status =
                    unsafe { (driver.cuMemcpyDtoDAsync_v2)(values, source, 4 * length, stream) };
                return driver.check(status).map(|()| Verdict::NONE);
            }
            Change::Add(source) => {
                let elements = launch.other(self, source.region(), length);
                let arguments = arguments::Cast { elements, add: Write::Add.into(), ..cast };
                launch.run(raw.decode, raw.grid(length), &arguments)?;
                return Ok(Verdict::NONE);
            }
            Change::Canonicalise(codec) => {
                if let Some(Kernels::Code(code)) = kernels(codec.as_ref()) {
                    launch.canonicalise(&code, values, length)?;
                }
                return Ok(Verdict::NONE);
            }
            Change::Scale(scale) => arguments::Cast { elements: values, scale, ..cast },
            Change::Measure => arguments::Cast { elements: values, scale: 1.0, ..cast },
            Change::Pack(source, scale) => {
                let elements = launch.other(self, source.region(), length);
                arguments::Cast { elements, scale, ..cast }
            }
        };
        let largest = launch.word.device;
        let arguments = arguments::Cast { largest, ..arguments };
        launch.run(raw.pack, raw.grid(length), &arguments)?;
        Ok(Verdict::NONE)
    }

    fn factor(&self, launch: &mut Launch<'_>, factoring: Factoring<'_>) -> Result<Verdict, Fault> {
        let Factoring { matrix, p, q, rows, step } = factoring;
        let (matrix, p, q) = (matrix.region(), p.region(), q.region());
        let (columns, low_rank) = (matrix.len() / rows, p.len() / rows);
        assert!(rows * columns == matrix.len() && rows * low_rank == p.len(), "rows of a matrix");
        assert_eq!(columns * low_rank, q.len(), "vectors of a factor");
        let number =
            |count: usize| u32::try_from(count).expect("a matrix has fewer than 2^32 rows");
        let shape =
            PowerSgd { rows: number(rows), columns: number(columns), low_rank: number(low_rank) };
        let length = matrix.len();
        let scratch = shape.partial_len().max(q.len());
        let arguments = arguments::Power {
            values: launch.region(self, matrix),
            p: launch.region(self, p),
            q: launch.region(self, q),
            partial: launch.scratch(self, scratch),
            infinite: launch.word.device,
            rows: shape.rows,
            columns: shape.columns,
            low_rank: shape.low_rank,
            sign: 1.0,
            length: shape.rows,
            ..arguments::Power::default()
        };
        match step {
            FactorStep::Project(residual) => {
                launch.run(PowerSgd::BALANCE, shape.balance(), &arguments)?;
                let residual = launch.other(self, residual.region(), length);
                let balanced = arguments::Power { residual, q: arguments.partial, ..arguments };
                launch.run(PowerSgd::PROJECT, shape.project(), &balanced)?;
                return Ok(Verdict { finite_below: 1, ..Verdict::NONE });
            }
            FactorStep::ProjectBack => {
                launch.run(PowerSgd::ORTHONORMALISE, PowerSgd::ONE_BLOCK, &arguments)?;
                launch.run(PowerSgd::PROJECT_BACK, shape.project_back(), &arguments)?;
                launch.run(PowerSgd::SUM, shape.sum(), &arguments)?;
            }
            FactorStep::Subtract => {
                let add = Write::Add.into();
                let arguments = arguments::Power { sign: -1.0, add, ..arguments };
                launch.run(PowerSgd::PRODUCT, shape.product(), &arguments)?;
            }
            FactorStep::Reconstruct => {
                launch.run(PowerSgd::PRODUCT, shape.product(), &arguments)?;
            }
        }
        Ok(Verdict::NONE)
    }
}

/// Random numbers of a decoding, which draws none.
const NO_KEY: Key = Key { seed: 0, step: 0, tensor: 0 };

/// Returns whether work reads or writes a framework's memory.
fn is_foreign(work: &Work<'_>) -> bool {
    let is_foreign =
        |values: Option<&Region>| values.is_some_and(|region| Memory::of(region).is_foreign());
    match work {
        Work::Encode(Encoding { values, residual, .. }) => {
            let residual = residual.as_ref().and_then(Values::on_device);
            is_foreign(values.on_device()) || is_foreign(residual)
        }
        Work::Decode(Decoding { to, .. }) => is_foreign(to.on_device()),
        Work::Change(values, change) => {
            let source = change.source().and_then(Values::on_device);
            is_foreign(values.on_device()) || is_foreign(source)
        }
        Work::Factor(Factoring { matrix, p, q, .. }) => {
            [matrix, p, q].into_iter().any(|values| is_foreign(values.on_device()))
        }
    }
}

/// Returns why bytes are no encoding of the values over which they are to be decoded, if their length
/// shows it.
fn refusal(work: &Work<'_>) -> Option<String> {
    let Work::Decode(Decoding { codec, from, to: Values::Device(to), .. }) = work else {
        return None;
    };
    let (found, expected) = (from.len(), codec.encoded_len(to.len()));
    (found != expected).then(|| format!("{codec} has {found} bytes, expected {expected}"))
}

impl Device for Cuda {
    fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Allocates memory. If there is no more, the device has failed, which the next work reports.
    fn allocate(&self, elements: usize) -> Region {
        let _current = self.0.enter();
        self.0.bury();
        let driver = &self.0.driver;
        let made = self.memory(elements).and_then(|(address, origin)| {
            // SAFETY: the memory has so many words.
            let status = unsafe { (driver.cuMemsetD32Async)(address, 0, elements, self.0.work.0) };
            driver.check(status).map(|()| (address, origin))
        });
        let (address, origin) = made.unwrap_or_else(|fault| {
            self.0.fail(fault);
            (0, Origin::Nowhere)
        });
        Region::new(Memory::new(self, address, elements, origin))
    }

    fn host(&self, bytes: usize) -> HostBytes {
        let _current = self.0.enter();
        Pinned::take(&self.0, bytes)
    }

    fn encodes_with(&self, codec: &dyn Codec) -> bool {
        // Kernels of a text are compiled now, before the first step; a refusal leaves the codec to the host.
        let is_there = |kernel| self.0.function(kernel).is_ok();
        let _current = self.0.enter();
        match kernels(codec) {
            Some(Kernels::Code(code)) => is_there(code.encode) && is_there(code.decode),
            Some(Kernels::Cast(_) | Kernels::Sparse(_) | Kernels::Rans(_)) => true,
            None => false,
        }
    }

    fn factors(&self) -> bool {
        true
    }

    fn submit(&self, work: Work<'_>, waker: &Waker) -> Submission {
        let owner = &self.0;
        let _current = owner.enter();
        owner.bury();
        if let Some(fault) = &owner.state().fault {
            return Submission::Done(Done::failed(failure(fault)));
        }
        if let Some(detail) = refusal(&work) {
            return Submission::Done(Done::failed(Failure::Corrupt(detail)));
        }
        let mut queue = owner.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let is_foreign = is_foreign(&work);
        let stream = if is_foreign { owner.outer_in_order() } else { Ok(owner.work.0) };
        let (stream, word) = match stream.and_then(|stream| Ok((stream, owner.word(stream)?))) {
            Ok(found) => found,
            Err(fault) => return Submission::Done(Done::failed(owner.fail(fault))),
        };
        let (regions, bytes, fault) = Default::default();
        let scratch = &mut queue;
        let mut launch = Launch { owner, stream, word, regions, bytes, scratch, fault };
        let uses_scratch = !matches!(work, Work::Change(..));
        let queued = match work {
            Work::Encode(encoding) => self.encode(&mut launch, encoding),
            Work::Decode(decoding) => self.decode(&mut launch, decoding),
            Work::Change(values, change) => self.change(&mut launch, values.region(), change),
            Work::Factor(factoring) => self.factor(&mut launch, factoring),
        };
        let queued = queued.and_then(|verdict| {
            let flight = launch.depart(waker)?;
            if is_foreign && uses_scratch {
                owner.order(stream, owner.work.0)?;
            }
            Ok((verdict, flight))
        });
        let (verdict, flight) = match queued {
            Ok(queued) => queued,
            Err(fault) => {
                // Earlier launches of the work may still use what it has.
                let _ = owner.drain(stream);
                return Submission::Done(Done::failed(owner.fail(fault)));
            }
        };
        let mut asked = Instant::now();
        Submission::Pending(Pending::new(move || {
            if flight.is_done.load(Ordering::Acquire) {
                return flight.result(verdict);
            }
            if asked.elapsed() < FAULT_AFTER {
                return None;
            }
            asked = Instant::now();
            let fault = flight.fault()?;
            Some(Done::failed(flight.owner.fail(fault)))
        }))
    }

    fn read(&self, from: &Region, to: &mut [f32]) {
        assert_eq!(from.len(), to.len(), "values to read");
        let _current = self.0.enter();
        let bytes = 4 * to.len();
        let pinned = Pinned::take(&self.0, bytes);
        let place = pinned.block::<Pinned>().map_or(null_mut(), Pinned::pointer);
        let copied = self.copy(from, |address, stream| {
            // SAFETY: region and place have so many bytes, and stay until the stream has copied them.
            unsafe { (self.0.driver.cuMemcpyDtoHAsync_v2)(place.cast(), address, bytes, stream) }
        });
        if let Err(fault) = copied {
            // What a failed device has is worthless; its next work says why.
            self.0.fail(fault);
            to.fill(f32::NAN);
            return;
        }
        for (value, bytes) in to.iter_mut().zip(pinned.as_slice().chunks_exact(4)) {
            *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        self.0.bury();
    }

    fn write(&self, from: &[f32], to: &Region) {
        assert_eq!(from.len(), to.len(), "values to write");
        let _current = self.0.enter();
        let mut pinned = Pinned::take(&self.0, 4 * from.len());
        for (bytes, value) in pinned.as_mut_slice().chunks_exact_mut(4).zip(from) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        let place = pinned.block::<Pinned>().map_or(null_mut(), Pinned::pointer);
        let bytes = 4 * from.len();
        let copied = self.copy(to, |address, stream| {
            // SAFETY: region and place have so many bytes, and stay until the stream has copied them.
            unsafe { (self.0.driver.cuMemcpyHtoDAsync_v2)(address, place.cast(), bytes, stream) }
        });
        if let Err(fault) = copied {
            self.0.fail(fault);
        }
        self.0.bury();
    }
}
