//! A complete training over several ranks: gradients averaged, state saved, training resumed.
//!
//! Without a launcher, two ranks run as threads of one process:
//!
//!     cargo run -p thinwire --example train -- state
//!
//! Under a launcher every process is a rank, and ranks meet over TCP:
//!
//!     torchrun --no-python --nproc-per-node 2 target/debug/examples/train state
//!     mpirun -n 2 target/debug/examples/train state
//!     thinwire run -n 2 -- target/debug/examples/train state
//!
//! Started again, the example continues from the folder `state` as if it had never ended; without a
//! folder nothing is saved. The model is a linear map, learnt from examples.

use std::error::Error;
use std::fs;
use std::path::Path;

use thinwire::checkpoint::State;
use thinwire::codec::Key;
use thinwire::job::{Meeting, Overrides, Settings, find, process, token};
use thinwire::link::{Link, mem};
use thinwire::{Options, Outcome, Parameter, Rank, Synchronizer, World};

type Failure = Box<dyn Error + Send + Sync>;

const OUTPUTS: usize = 8;
const INPUTS: usize = 32;
/// Examples per rank and step.
const BATCH: usize = 16;
/// Steps of one run of the program.
const STEPS: u64 = 50;
const RATE: f32 = 0.1;

fn main() -> Result<(), Failure> {
    let folder = std::env::args().nth(1);
    let folder = folder.as_deref().map(Path::new);
    let given = Overrides::default();
    let Some(place) = find(&given, &process)? else {
        return threads(folder);
    };
    let token = token(&given, &place.coordinator, &process)?;
    let meeting = Meeting::new(&place, &token, &Settings::default())?;
    train(meeting.link()?, place.local_world as usize, STEPS, folder).map(drop)
}

/// Two ranks in one process, as in a test of your own program.
fn threads(folder: Option<&Path>) -> Result<(), Failure> {
    std::thread::scope(|scope| {
        let rank = |link| scope.spawn(move || train(link, 2, STEPS, folder));
        let ranks: Vec<_> = mem::mesh(2).into_iter().map(rank).collect();
        ranks.into_iter().try_for_each(|rank| rank.join().expect("no rank panics").map(drop))
    })
}

/// Trains one rank for further steps after those in the folder; returns the loss of every step.
pub fn train(
    link: Link,
    local_ranks: usize,
    steps: u64,
    folder: Option<&Path>,
) -> Result<Vec<f32>, Failure> {
    let parameters =
        vec![Parameter::new("weight", &[OUTPUTS, INPUTS]), Parameter::new("bias", &[OUTPUTS])];
    let mut values: Vec<Vec<f32>> = parameters.iter().map(|p| vec![0.0; p.elements()]).collect();
    let policy = "topk:0.1".parse()?;
    let local_ranks = Some(local_ranks);
    let options = Options { policy, warm_up_steps: 5, local_ranks, ..Options::default() };
    let mut sync = Synchronizer::start(link, parameters, options)?;
    let world = sync.world();
    let first = match folder {
        Some(folder) => resume(folder, &mut sync, &mut values)?,
        None => 0,
    };
    let mut losses = Vec::new();
    for step in first..first + steps {
        sync.begin(step)?;
        let (loss, gradients) = gradients(&values, world.rank(), step);
        // In a real model: as soon as backward has computed each, while it continues with the next.
        for (index, gradient) in gradients.iter().enumerate() {
            sync.ready(index, gradient)?;
        }
        // A step in which any rank had a NaN changes nothing on any rank.
        if sync.finish()? == Outcome::Averaged {
            for (index, values) in values.iter_mut().enumerate() {
                let average = sync.gradient(index);
                values.iter_mut().zip(average).for_each(|(value, slope)| *value -= RATE * slope);
            }
        }
        if world.rank() == Rank(0) && step % 10 == 9 {
            println!("step {step}: loss {loss:.4}");
        }
        losses.push(loss);
    }
    if let Some(folder) = folder {
        save(folder, first + steps, &sync, &values)?;
    }
    if world.rank() == Rank(0) {
        println!("{}\n{}", sync.plan(), sync.record());
    }
    Ok(losses)
}

/// Saves this rank's own state, and on rank 0 the model and the step.
fn save(folder: &Path, step: u64, sync: &Synchronizer, values: &[Vec<f32>]) -> Result<(), Failure> {
    fs::create_dir_all(folder)?;
    sync.state().save(&state_of(folder, sync.world()), sync.world())?;
    if sync.world().rank() == Rank(0) {
        let bytes: Vec<u8> = values.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
        fs::write(folder.join("model"), bytes)?;
        fs::write(folder.join("step"), step.to_string())?;
    }
    // Nobody says that it is saved before all have saved.
    Ok(sync.barrier()?)
}

/// Loads a folder if there is one; returns the step to continue with.
fn resume(folder: &Path, sync: &mut Synchronizer, values: &mut [Vec<f32>]) -> Result<u64, Failure> {
    let Ok(step) = fs::read_to_string(folder.join("step")) else { return Ok(0) };
    let bytes = fs::read(folder.join("model"))?;
    let (words, _) = bytes.as_chunks::<4>();
    let saved = words.iter().map(|word| f32::from_le_bytes(*word));
    values.iter_mut().flatten().zip(saved).for_each(|(value, saved)| *value = saved);
    sync.load(&State::load(&state_of(folder, sync.world()), sync.world())?)?;
    sync.agree(&[("first step".to_owned(), step.clone())])?;
    Ok(step.parse()?)
}

fn state_of(folder: &Path, world: World) -> std::path::PathBuf {
    folder.join(format!("state-{}", world.rank().0))
}

/// The mean squared error on this rank's examples of a step, and its gradients.
fn gradients(values: &[Vec<f32>], rank: Rank, step: u64) -> (f32, [Vec<f32>; 2]) {
    let (truth, examples) = (Key { seed: 1, step: 0, tensor: 0 }, Key { seed: 2, step, tensor: 1 });
    let examples = examples.for_rank(rank.0);
    let mut loss = 0.0;
    let mut slopes = [vec![0.0; OUTPUTS * INPUTS], vec![0.0; OUTPUTS]];
    for example in 0..BATCH {
        let input: Vec<f32> =
            (0..INPUTS).map(|i| examples.normal((example * INPUTS + i) as u64)).collect();
        for output in 0..OUTPUTS {
            let row = output * INPUTS;
            let of = |weight: &dyn Fn(usize) -> f32| -> f32 {
                input.iter().enumerate().map(|(i, x)| weight(row + i) * x).sum()
            };
            let found = of(&|i| values[0][i]) + values[1][output];
            let error = found - of(&|i| truth.normal(i as u64)) - 1.0;
            loss += error * error / (BATCH * OUTPUTS) as f32;
            slopes[1][output] += error / BATCH as f32;
            let slopes = &mut slopes[0][row..row + INPUTS];
            slopes.iter_mut().zip(&input).for_each(|(slope, x)| *slope += error * x / BATCH as f32);
        }
    }
    (loss, slopes)
}
