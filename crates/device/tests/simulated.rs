//! The simulated driver does what is asked for, late, and shows what was forgotten.
#![cfg(all(feature = "cuda", target_os = "linux"))]

use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use thinwire_codec::{Choice, Input};
use thinwire_device::cuda::arguments::{self, Address};
use thinwire_device::cuda::driver::{Driver, Function, Stream};
use thinwire_device::cuda::kernel::{Kernels, kernels};
use thinwire_device::cuda::nvrtc::Image;
use thinwire_device::cuda::simulated::{
    break_down, cuda, device, driver, foreign, host, image, mistakes, queue_copy, stream,
};
use thinwire_device::{Change, Device, Operand, Source, Work, submit};
use thinwire_wire::random::Key;

const LENGTH: usize = 1000;
const KEY: Key = Key { seed: 1, step: 2, tensor: 3 };

/// Mistake that a user of the driver may make.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    NoWaitForTheValues,
    CallbackBeforeTheCopy,
    FreedBeforeTheEvent,
    CallInsideOfTheCallback,
}

extern "C" fn is_done(flag: *mut c_void) {
    // SAFETY: the flag outlives the wait for it.
    unsafe { (*flag.cast::<AtomicBool>()).store(true, Ordering::Release) };
}

extern "C" fn is_done_and_calls(flag: *mut c_void) {
    let mut event = null_mut();
    // SAFETY: there is a place for the event.
    unsafe { (driver().cuEventCreate)(&mut event, 0) };
    is_done(flag);
}

/// Driver with a current context, whose failures end the test.
struct Test(Driver);

impl Test {
    fn start(number: i32) -> Test {
        let driver = driver();
        let mut context = null_mut();
        // SAFETY: there is a place for the context.
        unsafe {
            driver.check((driver.cuDevicePrimaryCtxRetain)(&mut context, number)).unwrap();
            driver.check((driver.cuCtxPushCurrent_v2)(context)).unwrap();
        }
        Test(driver)
    }

    fn made<T>(&self, start: T, make: impl FnOnce(&Driver, &mut T) -> i32) -> T {
        let mut place = start;
        self.0.check(make(&self.0, &mut place)).unwrap();
        place
    }

    fn stream(&self) -> Stream {
        // SAFETY: there is a place for the stream.
        self.made(null_mut(), |d, place| unsafe { (d.cuStreamCreateWithPriority)(place, 1, 0) })
    }

    fn memory(&self, bytes: usize) -> Address {
        // SAFETY: there is a place for the address.
        self.made(0, |d, place| unsafe { (d.cuMemAlloc_v2)(place, bytes) })
    }

    fn pinned(&self, bytes: usize) -> *mut c_void {
        // SAFETY: there is a place for the address.
        self.made(null_mut(), |d, place| unsafe { (d.cuMemHostAlloc)(place, bytes, 3) })
    }

    fn after(&self, later: Stream, earlier: Stream) {
        // SAFETY: streams and event are of this context.
        self.made(null_mut(), |d, event| unsafe {
            (d.cuEventCreate)(event, 2)
                | (d.cuEventRecord)(*event, earlier)
                | (d.cuStreamWaitEvent)(later, *event, 0)
        });
    }

    fn function(&self, kernel: thinwire_device::cuda::kernel::Kernel) -> Function {
        let Image::Ptx(image) = image(kernel.source) else { panic!("an image of text") };
        let name = CString::new(kernel.name).unwrap();
        self.made(null_mut(), |d, function| {
            let mut module = null_mut();
            // SAFETY: image and name end in zeros.
            unsafe {
                (d.cuModuleLoadData)(&mut module, image.as_ptr().cast())
                    | (d.cuModuleGetFunction)(function, module, name.as_ptr())
            }
        })
    }
}

/// Encodes on a device: values from the stream of a framework, bytes to pinned memory.
fn encode(number: i32, values: &[f32], mistake: Mistake) -> Option<Vec<u8>> {
    let Ok(Choice::Bytes(codec)) = Choice::parse("int4:stochastic") else { panic!("a codec") };
    let Some(Kernels::Code(code)) = kernels(&*codec) else { panic!("a code") };
    let (test, length) = (Test::start(number), codec.encoded_len(LENGTH));
    let (theirs, ours, calls) = (test.stream(), test.stream(), test.stream());
    let (device, bytes) = (test.memory(4 * LENGTH), test.memory(length.next_multiple_of(4) + 4));
    let (from, to) = (test.pinned(4 * LENGTH), test.pinned(length));
    let flag = bytes + length.next_multiple_of(4) as u64;
    let function = test.function(code.encode);
    let done = AtomicBool::new(false);
    // SAFETY: memory stays until the flag is set, but where a mistake says otherwise.
    unsafe {
        from.cast::<f32>().copy_from(values.as_ptr(), LENGTH);
        let d = &test.0;
        let check = |status| d.check(status).unwrap();
        check((d.cuMemcpyHtoDAsync_v2)(device, from, 4 * LENGTH, theirs));
        if mistake != Mistake::NoWaitForTheValues {
            test.after(ours, theirs);
        }
        check((d.cuMemsetD32Async)(flag, 0, 1, ours));
        let arguments = arguments::Code {
            values: device,
            bytes,
            infinite: flag,
            length: LENGTH as u64,
            key: KEY.into(),
            parameters: code.parameters,
            ..arguments::Code::default()
        };
        d.launch(function, code.grid(LENGTH), &arguments, ours).unwrap();
        if mistake == Mistake::FreedBeforeTheEvent {
            check((d.cuMemFree_v2)(bytes));
            return None;
        }
        check((d.cuMemcpyDtoHAsync_v2)(to, bytes, length, ours));
        if mistake != Mistake::CallbackBeforeTheCopy {
            test.after(calls, ours);
        }
        let function =
            if mistake == Mistake::CallInsideOfTheCallback { is_done_and_calls } else { is_done };
        check((d.cuLaunchHostFunc)(calls, function, (&raw const done).cast_mut().cast()));
        let start = Instant::now();
        while !done.load(Ordering::Acquire) {
            assert!(start.elapsed() < Duration::from_secs(60), "no callback");
            std::thread::yield_now();
        }
        Some(std::slice::from_raw_parts(to.cast(), length).to_vec())
    }
}

/// Encodes with and without a mistake over seeds; returns how often the bytes are right.
fn right(mistake: Mistake, seeds: u64) -> u64 {
    let Ok(Choice::Bytes(codec)) = Choice::parse("int4:stochastic") else { panic!("a codec") };
    let values: Vec<f32> = (0..LENGTH).map(|i| KEY.normal(i as u64)).collect();
    let mut expected = vec![0; codec.encoded_len(LENGTH)];
    let _ = codec.encode(Input::Plain(&values), KEY, &mut expected);
    let is_right = |seed| encode(device(seed), &values, mistake) == Some(expected.clone());
    (0..seeds).filter(|seed| is_right(*seed)).count() as u64
}

#[test]
fn work_in_order_gives_the_bytes_in_every_seed() {
    if host::is_there() {
        assert_eq!(right(Mistake::None, 40), 40);
    }
}

#[test]
fn a_missing_wait_is_seen() {
    if host::is_there() {
        assert!(right(Mistake::NoWaitForTheValues, 20) < 20);
        assert!(right(Mistake::CallbackBeforeTheCopy, 20) < 20);
    }
}

#[test]
fn a_call_inside_of_a_callback_is_a_mistake() {
    if host::is_there() {
        let number = device(1);
        encode(number, &[1.0; LENGTH], Mistake::CallInsideOfTheCallback);
        assert_eq!(mistakes(number), ["cuEventCreate inside of a host function"]);
    }
}

#[test]
fn what_was_freed_is_no_place_for_a_copy() {
    if !host::is_there() {
        return;
    }
    encode(device(1), &[1.0; LENGTH], Mistake::FreedBeforeTheEvent);
    let test = Test::start(device(1));
    let (stream, memory, to) = (test.stream(), test.memory(8), test.pinned(8));
    let d = &test.0;
    // SAFETY: refused or inside of the allocations.
    unsafe {
        assert_eq!((d.cuMemcpyDtoHAsync_v2)(to, memory, 8, stream), 0);
        assert_eq!((d.cuMemcpyDtoHAsync_v2)(to, memory, 9, stream), 1);
        assert_eq!((d.cuMemFree_v2)(memory), 0);
        assert_eq!((d.cuMemcpyDtoHAsync_v2)(to, memory, 8, stream), 1);
        assert_eq!((d.cuStreamSynchronize)(stream), 0);
        assert!((*to.cast::<f32>()).is_nan());
    }
}

/// A wait is for the record before it, whatever becomes of the event.
#[test]
fn an_event_may_be_recorded_again_before_it_is_reached() {
    for seed in 0..20 {
        let test = Test::start(device(seed));
        let (first, second, later) = (test.stream(), test.stream(), test.stream());
        let (from, on_device, to) = (test.pinned(4), test.memory(4), test.pinned(4));
        let d = &test.0;
        // SAFETY: all handles are of this context, and copies are inside of the allocations.
        unsafe {
            *from.cast() = 1.0f32;
            let event = test.made(null_mut(), |d, place| (d.cuEventCreate)(place, 2));
            let check = |status| d.check(status).unwrap();
            check((d.cuMemcpyHtoDAsync_v2)(on_device, from, 4, first));
            check((d.cuEventRecord)(event, first));
            check((d.cuStreamWaitEvent)(later, event, 0));
            check((d.cuEventRecord)(event, second));
            check((d.cuMemcpyDtoHAsync_v2)(to, on_device, 4, later));
            for stream in [first, second, later] {
                check((d.cuStreamSynchronize)(stream));
            }
            check((d.cuEventQuery)(event));
            assert_eq!(*to.cast::<f32>(), 1.0);
        }
    }
}

#[test]
fn copies_of_foreign_memory_wait_for_the_framework() {
    for seed in 0..20 {
        let (cuda, _) = cuda(seed).unwrap();
        let framework = stream(&cuda).unwrap();
        let [computed, expected] = [1.0, 2.0].map(|value| vec![value; LENGTH]);
        let (source, region) = (cuda.upload(&computed), cuda.upload(&vec![0.0; LENGTH]));
        let region = foreign(&cuda, region);
        let [from, to] = [&source, &region].map(|region| cuda.address(region));
        let compute = || {
            // SAFETY: the stream is of this device, and both regions have as many elements.
            unsafe {
                queue_copy(&cuda, from, to, LENGTH, framework).unwrap();
                cuda.after(framework).unwrap();
            }
        };
        compute();
        assert_eq!(region.fetch(), computed, "seed {seed}");
        compute();
        cuda.write(&expected, &region);
        assert_eq!(region.fetch(), expected, "seed {seed}");
    }
}

/// Changes of foreign memory come after what a framework's stream was given before, and before the rest.
#[test]
fn changes_of_foreign_memory_are_in_the_framework_s_order() {
    for seed in 0..20 {
        let (cuda, _) = cuda(seed).unwrap();
        let framework = stream(&cuda).unwrap();
        let regions = [0.0, 1.0, 2.0].map(|value| cuda.upload(&[value; LENGTH]));
        let [before, average, seen] = &regions;
        let memory = foreign(&cuda, cuda.allocate(LENGTH));
        let copy = |from, to| {
            let [from, to] = [from, to].map(|region| cuda.address(region));
            // SAFETY: the stream is of this device, and both regions have as many elements.
            unsafe { queue_copy(&cuda, from, to, LENGTH, framework) }.unwrap();
        };
        for (change, expected) in
            [(Change::Copy(Source::Device(average.clone())), 1.0), (Change::Fill(3.0), 3.0)]
        {
            (0..50).for_each(|_| copy(before, &memory));
            // SAFETY: the stream is of this device.
            unsafe { cuda.after(framework) }.unwrap();
            let _ = submit(Work::Change(Operand::Device(memory.clone()), change), Waker::noop());
            // SAFETY: as above.
            unsafe { cuda.before(framework) }.unwrap();
            copy(&memory, seen);
            // SAFETY: as above; the device's streams then have waited for the framework's.
            unsafe { cuda.after(framework) }.unwrap();
            cuda.synchronize().unwrap();
            assert_eq!(seen.fetch(), [expected; LENGTH], "seed {seed}");
        }
    }
}

#[test]
fn a_broken_context_calls_nobody() {
    let number = device(1);
    let test = Test::start(number);
    let (stream, d) = (test.stream(), &test.0);
    let done = AtomicBool::new(false);
    break_down(number);
    // SAFETY: the flag outlives the test.
    let status =
        unsafe { (d.cuLaunchHostFunc)(stream, is_done, (&raw const done).cast_mut().cast()) };
    assert_eq!(d.check(status).unwrap_err().name, "CUDA_ERROR_ILLEGAL_ADDRESS");
    std::thread::sleep(Duration::from_millis(5));
    assert!(!done.load(Ordering::Acquire));
}

#[test]
fn without_a_context_there_is_no_memory() {
    std::thread::spawn(|| {
        let mut place = 0;
        // SAFETY: there is a place for the address.
        assert_eq!(unsafe { (driver().cuMemAlloc_v2)(&mut place, 8) }, 201);
    })
    .join()
    .unwrap();
}
