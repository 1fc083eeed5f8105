//! Speed of this machine with the executor's kernels, in the form of a device in a cluster file.
//!
//! Products are timed size by size, each with the products of its gradients. Operators that are limited by
//! memory are timed together. The smallest operator measures the overhead. Nothing is fitted to trainings.
//! Before an operator is measured, its inputs have been evicted from the cache, as in a training, where
//! whole layers are computed in between.

use std::collections::BTreeMap;
use std::mem::take;
use std::time::{Duration, Instant};

use thinwire_model::{
    Activation, ActivationBackward, Arithmetic, LayerNorm, LayerNormBackward, Linear, MatMul,
    Operator, Region,
};
use thinwire_program::Rearrange;

use super::kernel;
use super::value::Value;
use crate::{AdamW, AdamWOptions, Pace, global_norm};

/// Numbers of tokens, input features and output features of the products that are timed.
const PRODUCTS: [[usize; 3]; 7] = [
    [16, 32, 32],
    [64, 64, 64],
    [128, 128, 128],
    [256, 128, 256],
    [512, 128, 512],
    [1024, 256, 512],
    [1024, 512, 1024],
];
/// Numbers of tokens, input features and output features of the product that serves as a workload.
const CHORE: [usize; 3] = [128, 128, 128];
/// Tokens and features of the operators that are limited by memory.
const TOKENS: [usize; 2] = [512, 256];
/// Duration of a measurement, and the number of rounds.
const PATIENCE: Duration = Duration::from_millis(120);
const ROUNDS: usize = 3;
/// The model whose other operators are timed, with its number of sequences and their length.
const BLOCK: &str = "gpt:layers=1,width=128,heads=4,vocabulary=256,positions=128";
const ROWS: usize = 4;
const SEQUENCE: usize = 128;
/// Operators on fewer elements count as pure overhead.
const FEW: usize = 1024;
/// Elements of a parameter with which the optimiser is timed, and the number of such parameters.
const WEIGHTS: usize = 1 << 17;
const PARAMETERS: usize = 16;
/// Rearrangements of a few sequences, of which each of two ranks has half: to the order in which they are
/// sent, and back.
const AS_SENT: Rearrange = Rearrange::Split { outer: ROWS, parts: 2 };
const AS_GATHERED: Rearrange = Rearrange::Join { outer: ROWS, parts: 2 };
/// Bytes of an element.
const ELEMENT: f64 = 4.0;
/// Number of bytes that exceeds a core's own cache.
const CACHE_BYTES: f64 = (16 << 20) as f64;
/// Largest number of sets of inputs for the same operators.
const SETS_MAX: f64 = 64.0;

/// Measured speeds of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Speed {
    /// For products of several sizes, the number of floating-point operations and the speed in
    /// operations per second.
    pub products: Vec<(f64, f64)>,
    /// Bytes per second that operators limited by memory read and write.
    pub memory_bytes_per_s: f64,
    /// Seconds of an operator on very few elements.
    pub overhead_s: f64,
    /// Times of the operators of a block.
    pub operators: Vec<Timed>,
}

/// An operator, or all operators of one kind in a block of a transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    /// Name of the operator.
    pub name: &'static str,
    /// Whether the operator is a matrix product.
    pub multiplies: bool,
    /// Floating-point operations of one execution.
    pub flops: f64,
    /// Bytes that one execution reads and writes.
    pub bytes: f64,
    /// Seconds of one execution.
    pub seconds: f64,
}

impl Speed {
    /// Times everything several times, and takes the medians. `meet` is called before each measurement, so
    /// that ranks that share cores compute at the same time.
    ///
    /// # Errors
    /// Errors of `meet`.
    pub fn measure<E>(mut meet: impl FnMut() -> Result<(), E>) -> Result<Speed, E> {
        let rounds: Result<Vec<Speed>, E> = (0..ROUNDS).map(|_| Speed::once(&mut meet)).collect();
        let rounds = rounds?;
        let middle = |figure: &dyn Fn(&Speed) -> f64| {
            thinwire_sync::median(&mut rounds.iter().map(figure).collect::<Vec<_>>())
        };
        let products = rounds[0].products.iter().enumerate();
        let operators = rounds[0].operators.iter().enumerate();
        Ok(Speed {
            products: products
                .map(|(at, (flops, _))| (*flops, middle(&|speed| speed.products[at].1)))
                .collect(),
            memory_bytes_per_s: middle(&|speed| speed.memory_bytes_per_s),
            overhead_s: middle(&|speed| speed.overhead_s),
            operators: operators
                .map(|(at, timed)| Timed {
                    seconds: middle(&|speed| speed.operators[at].seconds),
                    ..timed.clone()
                })
                .collect(),
        })
    }

    fn once<E>(mut meet: impl FnMut() -> Result<(), E>) -> Result<Speed, E> {
        let mut least = vec![Job::new(Operator::Arithmetic(Arithmetic::Add), &[&[4], &[4]])];
        meet()?;
        let overhead_s = seconds(&mut least);
        let mut products = Vec::new();
        for sizes in PRODUCTS {
            let mut jobs = apart(product(sizes));
            let flops: f64 = jobs.iter().map(|job| job.flops).sum();
            meet()?;
            let spent = (seconds(&mut jobs) - jobs.len() as f64 * overhead_s).max(1e-9);
            products.push((jobs[0].flops, flops / spent));
        }
        let mut jobs = apart(on_memory(TOKENS));
        let bytes: f64 = jobs.iter().map(|job| job.bytes).sum();
        meet()?;
        let spent = (seconds(&mut jobs) - jobs.len() as f64 * overhead_s).max(1e-9);
        let mut operators = Vec::new();
        for (name, jobs) in of_block() {
            let mut jobs = apart(jobs);
            meet()?;
            operators.push(timed(name, &mut jobs, overhead_s));
        }
        meet()?;
        operators.extend(keeping());
        Ok(Speed { products, memory_bytes_per_s: bytes / spent, overhead_s, operators })
    }
}

/// A small workload, computed as trainings do it.
pub struct Chore(Vec<Job>);

impl Chore {
    /// Returns a workload of a linear layer with its gradients.
    #[expect(clippy::new_without_default, reason = "it is no empty value")]
    pub fn new() -> Chore {
        Chore(product(CHORE))
    }

    /// Runs the workload once.
    pub fn run(&self) {
        self.0.iter().for_each(|job| job.compute(job.inputs[0].clone()));
    }
}

/// An operator with its inputs.
struct Job {
    operator: Operator,
    /// Inputs of every set.
    inputs: Vec<Vec<Value>>,
    flops: f64,
    bytes: f64,
}

impl Job {
    fn new(operator: impl Into<Operator>, shapes: &[&[usize]]) -> Job {
        let operator = operator.into();
        let declaration = operator.declare(shapes).expect("the shapes are the operator's");
        let operands = declaration.inputs.iter().chain(&declaration.outputs);
        let elements = operands.map(|operand| declaration.shape(operand).iter().product::<usize>());
        let bytes = ELEMENT * elements.sum::<usize>() as f64;
        let inputs = vec![shapes.iter().map(|shape| value(shape)).collect()];
        Job { inputs, flops: declaration.flops, bytes, operator }
    }

    /// Returns the job with this many sets of inputs.
    fn with_sets(mut self, sets: usize) -> Job {
        let shapes: Vec<Vec<usize>> =
            self.inputs[0].iter().map(|one| one.shape().to_vec()).collect();
        let more = (1..sets).map(|_| shapes.iter().map(|shape| value(shape)).collect());
        self.inputs.extend(more);
        self
    }

    /// Returns whether a training runs the operator on inputs that nothing reads afterwards, so that the
    /// operator may change them in place.
    fn is_last_reader(&self) -> bool {
        matches!(self.operator, Operator::Arithmetic(_))
            || self.operator.name().ends_with("_backward")
    }

    /// Runs the operator with the inputs of a set, and returns the duration. Creates the inputs again if
    /// the operator may have changed them.
    fn run(&mut self, set: usize) -> Duration {
        let (set, last) = (set % self.inputs.len(), self.is_last_reader());
        let shapes: Vec<Vec<usize>> =
            self.inputs[set].iter().map(|one| one.shape().to_vec()).collect();
        let inputs = if last { take(&mut self.inputs[set]) } else { self.inputs[set].clone() };
        let started = Instant::now();
        self.compute(inputs);
        let spent = started.elapsed();
        if last {
            self.inputs[set] = shapes.iter().map(|shape| value(shape)).collect();
        }
        spent
    }

    fn compute(&self, inputs: Vec<Value>) {
        let shapes: Vec<&[usize]> = inputs.iter().map(Value::shape).collect();
        let declaration = self.operator.declare(&shapes).expect("it was declared before");
        let region = Region::whole(&declaration);
        std::hint::black_box(kernel::compute(&self.operator, inputs, &region));
    }
}

/// Returns a tensor of numbers between -0.4 and 0.6.
fn value(shape: &[usize]) -> Value {
    let length: usize = shape.iter().product();
    let values = (0..length).map(|at| (at % 17) as f32 / 17.0 - 0.4).collect();
    Value::new(shape, values)
}

/// Returns jobs with enough sets of inputs that none is still in the cache when it is used again.
fn apart(jobs: Vec<Job>) -> Vec<Job> {
    let bytes: f64 = jobs.iter().map(|job| job.bytes).sum();
    let sets = (CACHE_BYTES / bytes).ceil().min(SETS_MAX) as usize;
    jobs.into_iter().map(|job| job.with_sets(sets)).collect()
}

/// Returns a linear layer and its gradients.
fn product([tokens, k, n]: [usize; 3]) -> Vec<Job> {
    let (x, weight, y) = ([1, tokens, k], [k, n], [1, tokens, n]);
    vec![
        Job::new(Linear::biased(), &[&x, &weight, &[n]]),
        Job::new(MatMul::new("bsn", "kn", "bsk"), &[&y, &weight]),
        Job::new(MatMul::new("bsk", "bsn", "kn"), &[&x, &y]),
    ]
}

/// Returns the memory-bound operators of a transformer's block, forward and backward.
fn on_memory([tokens, n]: [usize; 2]) -> Vec<Job> {
    let (x, wide) = ([1, tokens, n], [1, tokens, 4 * n]);
    vec![
        Job::new(LayerNorm::default(), &[&x, &[n], &[n]]),
        Job::new(Activation::Gelu, &[&wide]),
        Job::new(Arithmetic::Add, &[&x, &x]),
        Job::new(LayerNormBackward::default(), &[&x, &[n], &x]),
        Job::new(ActivationBackward(Activation::Gelu), &[&wide, &wide]),
        Job::new(Arithmetic::Add, &[&x, &x]),
    ]
}

/// Returns the operators of a small model and of its gradients, by name, except products with a weight.
fn of_block() -> BTreeMap<&'static str, Vec<Job>> {
    let graph = thinwire_model::named(BLOCK, ROWS, SEQUENCE).expect("a model of these sizes");
    let training = thinwire_model::backward(&graph).expect("a model with a loss");
    let mut all: BTreeMap<&'static str, Vec<Job>> = BTreeMap::new();
    for node in &training.graph.nodes {
        let shapes: Vec<&[usize]> =
            node.inputs.iter().map(|id| &training.graph.tensors[*id].shape[..]).collect();
        let elements: usize = shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
        let product = matches!(node.operator, Operator::Linear(_) | Operator::MatMul(_));
        if !product && elements > FEW {
            let job = Job::new(node.operator.clone(), &shapes);
            all.entry(node.operator.name()).or_default().push(job);
        }
    }
    all
}

fn timed(name: &'static str, jobs: &mut [Job], overhead_s: f64) -> Timed {
    let spent_s = seconds(jobs);
    let each = |figure: fn(&Job) -> f64| jobs.iter().map(figure).sum::<f64>() / jobs.len() as f64;
    let seconds = (spent_s / jobs.len() as f64 - overhead_s).max(1e-9);
    let operator = &jobs[0].operator;
    let multiplies = matches!(operator, Operator::Attention(_) | Operator::AttentionBackward(_));
    Timed { name, multiplies, flops: each(|job| job.flops), bytes: each(|job| job.bytes), seconds }
}

/// Times the work on parameters, gradients and messages that is not part of operators.
fn keeping() -> [Timed; 3] {
    let shape = vec![WEIGHTS];
    let of = crate::Parameter { name: String::new(), shape };
    let of = vec![of; PARAMETERS];
    let mut state = AdamW::new(&of);
    let (mut values, gradient) = (vec![vec![0.5; WEIGHTS]; PARAMETERS], vec![1e-3; WEIGHTS]);
    let mut gradients = vec![gradient; PARAMETERS];
    let pace = Pace { learning_rate: 1e-3, gradient_scale: 1.0 };
    let update = mean_s(|| {
        std::hint::black_box(global_norm(gradients.iter().map(|gradient| &gradient[..])));
        let options = AdamWOptions::default();
        state.update(&of, &mut values, |at| &gradients[at], pace, &options);
        for values in &values {
            std::hint::black_box(Value::new(&[WEIGHTS], values.clone()));
        }
    });
    let shares: Vec<Value> = gradients.iter().map(|_| value(&[WEIGHTS])).collect();
    let add = mean_s(|| {
        for (sum, share) in gradients.iter_mut().zip(&shares) {
            sum.iter_mut().zip(share.floats()).for_each(|(a, b)| *a += b);
        }
    });
    let layout = mean_s(|| {
        for values in &mut gradients {
            *values = AS_GATHERED.apply(AS_SENT.apply(take(values)));
        }
    });
    let timed = |name, words: f64, seconds| {
        let bytes = words * ELEMENT * (PARAMETERS * WEIGHTS) as f64;
        Timed { name, multiplies: false, flops: 0.0, bytes, seconds }
    };
    [timed("update", 8.0, update), timed("add", 3.0, add), timed("layout", 4.0, layout)]
}

/// Returns the mean seconds of all jobs in sequence. If ranks share a core, waiting for it is included.
fn seconds(jobs: &mut [Job]) -> f64 {
    let mut round = |set| jobs.iter_mut().map(|job| job.run(set)).sum::<Duration>();
    round(0);
    let (started, mut spent, mut rounds) = (Instant::now(), Duration::ZERO, 0);
    while started.elapsed() < PATIENCE || rounds < 3 {
        rounds += 1;
        spent += round(rounds);
    }
    spent.as_secs_f64() / rounds as f64
}

/// Returns the mean seconds of some work.
fn mean_s(mut work: impl FnMut()) -> f64 {
    work();
    let started = Instant::now();
    let mut rounds = 0;
    while started.elapsed() < PATIENCE || rounds < 3 {
        work();
        rounds += 1;
    }
    started.elapsed().as_secs_f64() / f64::from(rounds)
}
