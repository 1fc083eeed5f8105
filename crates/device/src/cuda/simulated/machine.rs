//! Simulated device: streams whose work is done late, and in any order that the streams permit.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::c_void;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{cell, thread};

use thinwire_wire::random::Key;

use super::host::Function;
use crate::cuda::driver::{HostFunction, Status};
use crate::cuda::kernel::{Grid, Source};

/// `CUDA_ERROR_ILLEGAL_ADDRESS`, which breaks a context for good.
pub(super) const BROKEN: Status = 700;

/// Number of a stream or event of a machine.
pub(super) type Number = usize;

/// Address of memory, on the device or pinned.
pub(super) type Place = usize;

/// Operation of a stream.
#[derive(Debug)]
pub(super) enum Operation {
    Copy { from: Place, to: Place, length: usize },
    Fill { at: Place, word: u32, count: usize },
    Launch { function: Function, grid: Grid, arguments: Vec<u64> },
    Record { event: Number, turn: u64 },
    Wait { event: Number, turn: u64 },
    Call { function: HostFunction, argument: Place },
}

/// Event: how often it was recorded, and which of these records no stream has reached yet.
#[derive(Debug, Default)]
pub(super) struct Event {
    pub recorded: u64,
    /// Records that no stream has reached yet. They may be on several streams, which reach them in any
    /// order.
    pub pending: BTreeSet<u64>,
    pub at: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct State {
    key: Key,
    drawn: u64,
    pub streams: Vec<VecDeque<Operation>>,
    /// Stream of which an operation is under way.
    running: Option<Number>,
    pub events: Vec<Event>,
    /// Lengths in bytes of allocations, by their first address.
    pub memory: BTreeMap<Place, usize>,
    pub modules: Vec<Source>,
    pub functions: Vec<Function>,
    pub is_broken: bool,
    /// Mistakes that no status reports.
    pub mistakes: Vec<String>,
}

/// Device and the thread that works for it; both stay until the process ends.
#[derive(Debug)]
pub(super) struct Machine {
    state: Mutex<State>,
    changed: Condvar,
}

/// All machines, by the number of the device.
static MACHINES: LazyLock<Mutex<Vec<&'static Machine>>> = LazyLock::new(Mutex::default);

thread_local! {
    /// Machine whose host function this thread runs.
    static CALLING: cell::Cell<Option<&'static Machine>> = const { cell::Cell::new(None) };
}

/// Returns the machine whose host function the calling thread is in.
pub(super) fn calling() -> Option<&'static Machine> {
    CALLING.get()
}

impl Machine {
    /// Starts a machine; returns the number of its device.
    pub fn start(seed: u64) -> usize {
        let state = State {
            key: Key { seed, step: 0, tensor: 0 },
            drawn: 0,
            streams: vec![VecDeque::new()],
            running: None,
            events: Vec::new(),
            memory: BTreeMap::new(),
            modules: Vec::new(),
            functions: Vec::new(),
            is_broken: false,
            mistakes: Vec::new(),
        };
        let machine = Machine { state: Mutex::new(state), changed: Condvar::new() };
        let machine: &'static Machine = Box::leak(Box::new(machine));
        thread::spawn(|| machine.work());
        let mut machines = MACHINES.lock().unwrap_or_else(PoisonError::into_inner);
        machines.push(machine);
        machines.len() - 1
    }

    /// Returns the machine of a device.
    pub fn of(device: usize) -> Option<&'static Machine> {
        MACHINES.lock().unwrap_or_else(PoisonError::into_inner).get(device).copied()
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an operation.
    pub fn queue(&self, stream: Number, operation: Operation) {
        self.state().streams[stream].push_back(operation);
        self.changed.notify_all();
    }

    /// Breaks the context: nothing that is queued will happen.
    pub fn break_down(&self) {
        self.state().is_broken = true;
        self.changed.notify_all();
    }

    /// Waits until a stream has done everything, or the context is broken.
    pub fn drain(&self, stream: Number) {
        let mut state = self.state();
        while !(state.is_broken || state.is_idle(stream)) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until all streams have done everything, or the context is broken.
    pub fn drain_all(&self) {
        let streams = self.state().streams.len();
        (0..streams).for_each(|stream| self.drain(stream));
    }

    fn work(&'static self) {
        let mut state = self.state();
        loop {
            let Some(stream) = state.choose() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let operation = state.streams[stream].pop_front().expect("a stream with work");
            state.running = Some(stream);
            let (delay, seed) = (state.draw(), state.draw());
            drop(state);
            // Mostly at once, sometimes so late that a caller who forgot to wait has gone on.
            if delay % 4 == 0 {
                thread::sleep(Duration::from_micros(u64::from(delay >> 8) % 300));
            }
            self.run(operation, seed.into());
            state = self.state();
            state.running = None;
            self.changed.notify_all();
        }
    }

    fn run(&'static self, operation: Operation, seed: u64) {
        let pointer = |place: Place| place as *mut u8;
        match operation {
            // SAFETY: both ranges were allocated when the copy was queued, and are never unmapped.
            Operation::Copy { from, to, length } => unsafe {
                pointer(from).copy_to(pointer(to), length);
            },
            Operation::Fill { at, word, count } => (0..count).for_each(|i| {
                // SAFETY: the range was allocated when this was queued, and is never unmapped.
                unsafe { pointer(at).cast::<u32>().add(i).write_unaligned(word) }
            }),
            // SAFETY: who launches answers for arguments and memory, as with a real device.
            Operation::Launch { function, grid, arguments } => unsafe {
                function.run(grid, arguments.as_ptr().cast(), seed);
            },
            Operation::Record { event, turn } => {
                let event = &mut self.state().events[event];
                event.pending.remove(&turn);
                event.at = Some(Instant::now());
            }
            Operation::Wait { .. } => {}
            Operation::Call { function, argument } => {
                CALLING.set(Some(self));
                // SAFETY: who queues a host function answers for its argument.
                unsafe { function(argument as *mut c_void) };
                CALLING.set(None);
            }
        }
    }
}

impl State {
    fn draw(&mut self) -> u32 {
        self.drawn += 1;
        self.key.word(self.drawn)
    }

    /// Returns whether a stream has nothing left, not even under way.
    fn is_idle(&self, stream: Number) -> bool {
        self.streams[stream].is_empty() && self.running != Some(stream)
    }

    /// Chooses a stream that can continue.
    fn choose(&mut self) -> Option<Number> {
        let can_go_on = |stream: &VecDeque<Operation>| match stream.front() {
            Some(Operation::Wait { event, turn }) => !self.events[*event].pending.contains(turn),
            first => first.is_some(),
        };
        let streams = self.streams.iter().enumerate().filter(|(_, stream)| can_go_on(stream));
        let streams: Vec<_> = streams.map(|(number, _)| number).collect();
        if self.is_broken || streams.is_empty() {
            return None;
        }
        Some(streams[self.draw() as usize % streams.len()])
    }

    /// Returns whether a range is inside of one allocation.
    pub fn holds(&self, at: Place, length: usize) -> bool {
        let before = self.memory.range(..=at).next_back();
        before.is_some_and(|(first, size)| at - first + length <= *size)
    }
}
