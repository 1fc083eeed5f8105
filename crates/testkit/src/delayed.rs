//! A device with separate memory that finishes its work late, in an order drawn from a seed.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use thinwire_codec::Codec;
use thinwire_device::{
    Allocation, Decoding, Device, Done, Encoding, Factoring, Operand, Pending, Region, Source,
    Submission, Work, compute,
};
use thinwire_wire::random::Key;

use crate::lock;

/// Device that computes on the CPU, but only when its work is polled, and then only sometimes.
///
/// Work on overlapping ranges of an allocation keeps its order; all other work is done in any order. The
/// thread that polls does the work, so one seed with one thread gives one order.
#[derive(Clone, Debug)]
pub struct Delayed(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    seed: u64,
    /// Number of random numbers drawn so far.
    draws: u64,
    /// Numbers of allocations and of items of work so far.
    numbers: u64,
    queue: Vec<Queued>,
    done: HashMap<u64, Done>,
}

/// Memory of a [`Delayed`].
#[derive(Debug)]
struct Memory {
    device: Delayed,
    number: u64,
    values: Arc<Mutex<Vec<f32>>>,
}

/// Work that waits, and the ranges of allocations that it uses.
struct Queued {
    number: u64,
    touches: Vec<Touch>,
    work: Box<dyn FnOnce() -> Done + Send>,
    waker: Waker,
}

/// Range of an allocation, which is given by its number.
#[derive(Clone, Debug)]
struct Touch {
    allocation: u64,
    elements: Range<usize>,
}

impl Delayed {
    /// Returns a device whose order of work depends on `seed`.
    pub fn new(seed: u64) -> Delayed {
        let (queue, done) = (Vec::new(), HashMap::new());
        Delayed(Arc::new(Mutex::new(State { seed, draws: 0, numbers: 0, queue, done })))
    }

    /// Allocates memory and copies `values` to it.
    pub fn region(&self, values: &[f32]) -> Region {
        let number = self.state().number();
        let values = Arc::new(Mutex::new(values.to_vec()));
        Region::new(Arc::new(Memory { device: self.clone(), number, values }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// Queues `work` on `values`, which reads `source`.
    fn queue(
        &self,
        values: Region,
        source: Option<Region>,
        waker: &Waker,
        work: impl FnOnce(&mut [f32], Option<&[f32]>) -> Done + Send + 'static,
    ) -> Submission {
        let touched: Vec<Region> =
            [Some(values.clone()), source.clone()].into_iter().flatten().collect();
        self.queue_on(&touched, waker, move || {
            let source = source.map(|source| read(&source));
            write(&values, |values| work(values, source.as_deref()))
        })
    }

    /// Queues `work` that uses some memory.
    fn queue_on(
        &self,
        touched: &[Region],
        waker: &Waker,
        work: impl FnOnce() -> Done + Send + 'static,
    ) -> Submission {
        let touches = touched.iter().map(touch).collect();
        let mut state = self.state();
        let number = state.number();
        let queued = Queued { number, touches, work: Box::new(work), waker: waker.clone() };
        state.queue.push(queued);
        // Nobody else would poll it.
        waker.wake_by_ref();
        let (device, waker) = (self.clone(), waker.clone());
        Submission::Pending(Pending::new(move || {
            let done = device.state().poll(number);
            if done.is_none() {
                waker.wake_by_ref();
            }
            done
        }))
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn draw(&mut self, below: usize) -> usize {
        self.draws += 1;
        let key = Key { seed: self.seed, step: 0, tensor: 0 };
        key.below(self.draws, below as u32) as usize
    }

    /// At random, does some of the work that may be done now, or nothing. Returns the result of work
    /// `number`, if that is done.
    fn poll(&mut self, number: u64) -> Option<Done> {
        if self.draw(2) == 0 {
            self.step();
        }
        self.done.remove(&number)
    }

    /// Does an item of work that need not wait for earlier work; returns false if there is no such item.
    fn step(&mut self) -> bool {
        let may_run: Vec<usize> = (0..self.queue.len())
            .filter(|&at| {
                let (before, queued) = (&self.queue[..at], &self.queue[at]);
                !before.iter().any(|earlier| earlier.overlaps(queued))
            })
            .collect();
        if may_run.is_empty() {
            return false;
        }
        let at = may_run[self.draw(may_run.len())];
        let Queued { number, work, waker, .. } = self.queue.remove(at);
        self.done.insert(number, work());
        waker.wake();
        true
    }
}

impl Queued {
    fn overlaps(&self, other: &Queued) -> bool {
        let overlap = |a: &Touch, b: &Touch| {
            let (mine, theirs) = (&a.elements, &b.elements);
            a.allocation == b.allocation && mine.start < theirs.end && theirs.start < mine.end
        };
        self.touches.iter().any(|mine| other.touches.iter().any(|theirs| overlap(mine, theirs)))
    }
}

impl std::fmt::Debug for Queued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "work {} on {:?}", self.number, self.touches)
    }
}

impl Allocation for Memory {
    fn device(&self) -> &dyn Device {
        &self.device
    }

    fn elements(&self) -> usize {
        lock(&self.values).len()
    }
}

impl Device for Delayed {
    fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    fn allocate(&self, elements: usize) -> Region {
        self.region(&vec![0.0; elements])
    }

    fn encodes_with(&self, _codec: &dyn Codec) -> bool {
        true
    }

    fn factors(&self) -> bool {
        true
    }

    fn submit(&self, work: Work<'_>, waker: &Waker) -> Submission {
        match work {
            Work::Encode(Encoding { codec, values, residual, key, to }) => {
                let (codec, values) = (Arc::clone(codec), values.region());
                let residual = residual.map(Source::region);
                self.queue(values, residual, waker, move |values, residual| {
                    let (values, residual) = (Operand::Host(values), residual.map(Source::Host));
                    compute(Work::Encode(Encoding { codec: &codec, values, residual, key, to }))
                })
            }
            Work::Decode(Decoding { codec, from, to, write, canonicalise }) => {
                let (codec, to) = (Arc::clone(codec), to.region());
                self.queue(to, None, waker, move |to, _| {
                    let to = Operand::Host(to);
                    let decoding = Decoding { codec: &codec, from, to, write, canonicalise };
                    compute(Work::Decode(decoding))
                })
            }
            Work::Factor(Factoring { matrix, p, q, rows, step }) => {
                let (matrix, p, q) = (matrix.region(), p.region(), q.region());
                let mut residual = None;
                let step = step.map(|source| residual.insert(source.region()).clone());
                let touched: Vec<Region> =
                    [&matrix, &p, &q].into_iter().chain(&residual).cloned().collect();
                self.queue_on(&touched, waker, move || {
                    let ([mut thin, mut wide], mut residual) = ([&p, &q].map(read), Vec::new());
                    let step = step.map(|region| {
                        residual = read(&region);
                        Source::Host(&*residual)
                    });
                    let done = write(&matrix, |matrix| {
                        let matrix = Operand::Host(matrix);
                        let (p, q) = (Operand::Host(&mut thin), Operand::Host(&mut wide));
                        compute(Work::Factor(Factoring { matrix, p, q, rows, step }))
                    });
                    write(&p, |p| p.copy_from_slice(&thin));
                    write(&q, |q| q.copy_from_slice(&wide));
                    done
                })
            }
            Work::Change(values, change) => {
                let change = change.map(Source::region);
                let source = change.source().cloned();
                self.queue(values.region(), source, waker, move |values, source| {
                    let source = Source::Host(source.unwrap_or_default());
                    compute(Work::Change(Operand::Host(values), change.map(|_| source)))
                })
            }
        }
    }

    fn read(&self, from: &Region, to: &mut [f32]) {
        while self.state().step() {}
        to.copy_from_slice(&read(from));
    }

    fn write(&self, from: &[f32], to: &Region) {
        while self.state().step() {}
        write(to, |values| values.copy_from_slice(from));
    }
}

fn memory(region: &Region) -> &Memory {
    region.allocation().expect("work of a device is on its own memory")
}

fn touch(region: &Region) -> Touch {
    Touch { allocation: memory(region).number, elements: region.elements() }
}

fn read(region: &Region) -> Vec<f32> {
    lock(&memory(region).values)[region.elements()].to_vec()
}

fn write<T>(region: &Region, change: impl FnOnce(&mut [f32]) -> T) -> T {
    change(&mut lock(&memory(region).values)[region.elements()])
}
