//! MNIST on Burn, trained by all ranks of a job.
//!
//!     thinwire run --ranks 2 -- target/release/examples/mnist --data FOLDER --codec int8

mod data;
mod model;

use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process::ExitCode;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Tensor};
use clap::Parser;
use thinwire::codec::Key;
use thinwire::job::{Form, Meeting, Overrides, Place, Settings, find, process, token};
use thinwire::link::Link;
use thinwire::{Options, Policy};
use thinwire_burn::Averager;

use crate::data::Mnist;
use crate::model::Model;

type Failure = Box<dyn Error + Send + Sync>;

const RATE: f64 = 1e-3;
const SEED: u64 = 42;

/// Trains a small network on MNIST, as one rank of a job
#[derive(Parser)]
struct Arguments {
    /// Folder of MNIST's IDX files; the test images suffice
    #[arg(long, value_name = "FOLDER")]
    data: PathBuf,
    /// Codec of the gradients, `auto` included
    #[arg(long, default_value = "int8")]
    codec: Policy,
    /// Passes over the data
    #[arg(long, default_value_t = 8)]
    epochs: u64,
    /// Images per rank and step
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// Share of activations set to zero in training
    #[arg(long, default_value_t = 0.5)]
    dropout: f64,
}

fn main() -> ExitCode {
    let Err(error) = run(&Arguments::parse()) else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    ExitCode::from(2)
}

/// Meets the other ranks, or trains alone where no launcher started this process.
fn run(arguments: &Arguments) -> Result<(), Failure> {
    let data = Mnist::load(&arguments.data)?;
    let given = Overrides::default();
    let place = find(&given, &process)?.unwrap_or_else(|| Place::alone(Form::Arguments));
    let token = token(&given, &place.coordinator, &process)?;
    let meeting = Meeting::new(&place, &token, &Settings::default())?;
    let local_ranks = Some(place.local_world as usize);
    let options = Options { policy: arguments.codec.clone(), local_ranks, ..Options::default() };
    train(arguments, data, meeting.link()?, options)
}

fn train(
    arguments: &Arguments,
    (data, held_out): (Mnist, Mnist),
    link: Link,
    options: Options,
) -> Result<(), Failure> {
    let device = Device::flex().autodiff();
    // Parameters start equal on all ranks; masks of dropout differ.
    device.seed(SEED);
    let mut model = Model::new(arguments.dropout, &device);
    let mut averager = Averager::start(link, &model, options)?;
    let world = averager.synchronizer().world();
    let (rank, ranks, batch) = (world.rank().index(), world.size(), arguments.batch);
    device.seed(SEED + 1 + rank as u64);

    let mut optimizer = AdamConfig::new().init();
    let cross_entropy = CrossEntropyLossConfig::new().init(&device);
    let mut step = 0;
    for epoch in 1..=arguments.epochs {
        let mut losses = Vec::new();
        for indices in shuffled(data.len(), epoch).chunks_exact(batch * ranks) {
            let (images, labels) = data.batch(&indices[rank * batch..][..batch], &device);
            let loss = cross_entropy.forward(model.forward(images), labels);
            losses.push(loss.clone().into_scalar::<f32>());
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            if let Some(averages) = averager.average(step, &model, gradients)? {
                model = optimizer.step(RATE, model, averages);
            }
            step += 1;
        }
        let losses = averager.synchronizer().gather(&losses)?;
        if rank == 0 {
            let accuracy = 100.0 * accuracy(&model, &held_out);
            println!("epoch {epoch}: loss {:.4}, accuracy {accuracy:.1} %", mean(&losses));
        }
    }
    finish(&mut averager, &model)
}

/// Checks that all ranks have the same parameters, and reports the traffic of the last step.
fn finish(averager: &mut Averager, model: &Model) -> Result<(), Failure> {
    let sync = averager.synchronizer();
    let parameters = format!("{:016x}", fingerprint(model));
    sync.agree(&[("parameters".to_owned(), parameters.clone())])?;
    if sync.world().rank().index() == 0 {
        let [sent, raw] = [
            sync.record().total(|bucket| bucket.sent_bytes),
            sync.record().total(|bucket| bucket.raw_bytes),
        ];
        println!("parameters {parameters}, equal on all of {} ranks", sync.world().size());
        println!("sent {sent} bytes per rank and step, raw gradients take {raw}");
    }
    Ok(())
}

/// Returns the share of images that the model labels right.
fn accuracy(model: &Model, data: &Mnist) -> f32 {
    let (model, device) = (model.valid(), Device::flex());
    let right = |indices: &[usize]| {
        let (images, labels) = data.batch(indices, &device);
        let found = model.forward(images).argmax(1).flatten::<1>(0, 1);
        found.equal(labels).int().sum().into_scalar::<i64>()
    };
    let indices: Vec<usize> = (0..data.len()).collect();
    indices.chunks(100).map(right).sum::<i64>() as f32 / data.len() as f32
}

fn mean(values: &[f32]) -> f32 {
    values.iter().sum::<f32>() / values.len() as f32
}

/// Returns `0..count` in an order that depends on the epoch alone.
fn shuffled(count: usize, epoch: u64) -> Vec<usize> {
    let key = Key { seed: SEED, step: epoch, tensor: 0 };
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&a, &b| key.normal(a as u64).total_cmp(&key.normal(b as u64)));
    order
}

/// Returns a hash of the bits of all parameters.
fn fingerprint(model: &Model) -> u64 {
    struct Bits(DefaultHasher);
    impl ModuleVisitor for Bits {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let data = param.val().into_data();
            data.iter::<f32>().for_each(|value| value.to_bits().hash(&mut self.0));
        }
    }
    let mut bits = Bits(DefaultHasher::new());
    model.visit(&mut bits);
    bits.0.finish()
}
