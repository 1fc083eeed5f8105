//! Replicas that go from one epoch of an elastic job to the next.

use std::cell::RefCell;
use std::sync::{Barrier, Mutex};
use std::thread;

use thinwire_collective::Group;
use thinwire_link::{Link, mem};
use thinwire_sync::Channel;
use thinwire_train::spmd::{
    DetachedReplica, ExchangeOptions, Executor, GraphModel, Snapshot, initial,
};
use thinwire_train::{Adam, AdamWOptions, Config, Corpus, Pace, Position, Sampler, Sampling};
use thinwire_wire::World;

const CONTEXT: usize = 16;
/// Divides among no number of ranks of these tests.
const GLOBAL_BATCH: usize = 13;
const CODECS: [&str; 5] = ["none", "int8", "powersgd:2", "auto", ONEBIT_ADAM];
/// 1-bit Adam in the place of a codec.
const ONEBIT_ADAM: &str = "onebit-adam";
/// Step in which a rank is lost.
const LOST: u64 = 3;
const STEPS: u64 = 6;

/// Rank of an epoch: its rows of every batch, and the model for them.
struct Rank {
    model: GraphModel,
    sampler: RefCell<Sampler>,
    share: Option<f32>,
}

impl Rank {
    fn new(world: World, position: Position) -> Rank {
        let text =
            b"the quick brown fox jumps over the lazy dog; pack my box with five dozen jugs. ";
        let corpus = Corpus::from_text(&text.repeat(60)).unwrap();
        let sampling =
            Sampling { context: CONTEXT, global_batch: GLOBAL_BATCH, unit: 1, world, seed: 5 };
        let config = Config { context: CONTEXT, width: 32, layers: 1, heads: 2 };
        let rows = sampling.rows().len();
        let graph = thinwire_model::named(&config.name(), rows, CONTEXT).unwrap();
        let mut sampler = Sampler::new(corpus, sampling).unwrap();
        sampler.seek(position);
        let share = sampling.share();
        Rank {
            model: GraphModel::new(&graph, None).unwrap(),
            sampler: RefCell::new(sampler),
            share,
        }
    }

    /// A rank of the first epoch, or one that joins a later one.
    fn start(&self, link: Link, codec: &str) -> Executor<'_> {
        let training = self.model.training();
        let start = initial(&training.graph, 9);
        let (plan, group) = (self.model.plan(1), Group::new(link));
        let executor = Executor::new(training, &plan, group, &start, options(codec)).unwrap();
        let mut executor = executor.with_gradient_norm_max(Some(1.0));
        executor.set_share(self.share).unwrap();
        executor
    }

    /// A rank that continues.
    fn resume(&self, link: Link, mut detached: DetachedReplica, codec: &str) -> Executor<'_> {
        let channel = Channel::new(Group::new(link));
        detached.reform(&channel).unwrap();
        let plan = self.model.plan(1);
        let executor =
            Executor::resume(self.model.training(), &plan, channel, detached, options(codec))
                .unwrap();
        let mut executor = executor.with_gradient_norm_max(Some(1.0));
        executor.set_share(self.share).unwrap();
        executor
    }

    fn step(&self, executor: &mut Executor<'_>) -> Result<(), thinwire_train::Error> {
        let inputs = self.model.micro_batches(&self.sampler.borrow_mut().next_batch());
        let pace = Pace { learning_rate: 5e-3, gradient_scale: 1.0 };
        executor.step(&inputs, pace, &AdamWOptions::default()).map(|_| ())
    }

    /// Takes the steps up to a number; returns what each has led to.
    fn steps(&self, executor: &mut Executor<'_>, until: u64) -> Vec<(f64, u32)> {
        let mut history = Vec::new();
        while executor.next_step() < until {
            self.step(executor).unwrap();
            history.push((executor.agreed().loss, bits(executor)));
        }
        history
    }
}

fn options(codec: &str) -> ExchangeOptions {
    let usual = thinwire_sync::Options { bucket_bytes: 8 << 10, ..Default::default() };
    if codec == ONEBIT_ADAM {
        let policy = "onebit".parse().unwrap();
        let sync = thinwire_sync::Options { policy, warm_up_steps: LOST - 1, ..usual };
        return ExchangeOptions { sync, adam: Adam::OneBit, ..ExchangeOptions::default() };
    }
    let sync = thinwire_sync::Options { policy: codec.parse().unwrap(), ..usual };
    ExchangeOptions { sync, ..ExchangeOptions::default() }
}

fn bits(executor: &mut Executor<'_>) -> u32 {
    let parameters = executor.whole().unwrap().unwrap();
    let bytes: Vec<u8> = parameters.values().flatten().flat_map(|x| x.to_le_bytes()).collect();
    thinwire_wire::checksum(&bytes)
}

/// Three ranks, of which the last goes after [`LOST`] steps; the history of the two others after that.
/// `killed` tells whether it goes in the middle of a step.
fn shrunk(codec: &str, killed: bool) -> Vec<Vec<(f64, u32)>> {
    let later: Vec<_> = mem::mesh_of_epoch(1, 2).into_iter().map(|l| Mutex::new(Some(l))).collect();
    let calm = Barrier::new(3);
    thread::scope(|scope| {
        let ranks = mem::mesh(3).into_iter().map(|link| {
            let (later, calm) = (&later, &calm);
            scope.spawn(move || {
                let world = link.world();
                let rank = Rank::new(world, Position::default());
                let mut executor = rank.start(link, codec);
                rank.steps(&mut executor, LOST);
                let position = rank.sampler.borrow().position();
                calm.wait();
                if world.rank().0 == 2 {
                    executor.sync().stop().stop("killed");
                    return None;
                }
                if killed {
                    rank.step(&mut executor).unwrap_err();
                }
                let detached = executor.into_detached();
                assert_eq!(detached.step(), LOST);
                let link = later[world.rank().index()].lock().unwrap().take().unwrap();
                let rank = Rank::new(link.world(), position);
                let mut executor = rank.resume(link, detached, codec);
                Some(rank.steps(&mut executor, STEPS))
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().filter_map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn the_step_after_a_loss_is_that_of_a_job_of_those_who_are_left() {
    for codec in CODECS {
        let (calm, killed) = (shrunk(codec, false), shrunk(codec, true));
        assert_eq!((killed.len(), killed[0].len()), (2, (STEPS - LOST) as usize));
        assert_eq!(killed[0], killed[1], "{codec}");
        // Trials of `auto` follow the clock.
        if codec != "auto" {
            assert_eq!(calm, killed, "{codec}");
        }
    }
}

#[test]
fn who_joins_has_the_parameters_of_the_others() {
    for codec in CODECS {
        let later: Vec<_> =
            mem::mesh_of_epoch(1, 3).into_iter().map(|l| Mutex::new(Some(l))).collect();
        let handed = Mutex::new(Vec::new());
        let ready = Barrier::new(3);
        let take = |rank: usize| later[rank].lock().unwrap().take().unwrap();
        let histories: Vec<_> = thread::scope(|scope| {
            let (take, handed, ready) = (&take, &handed, &ready);
            let stay = mem::mesh(2).into_iter().map(|link| {
                scope.spawn(move || {
                    let world = link.world();
                    let rank = Rank::new(world, Position::default());
                    let mut executor = rank.start(link, codec);
                    rank.steps(&mut executor, LOST);
                    let detached = executor.into_detached();
                    let position =
                        serde_json::to_string(&rank.sampler.borrow().position()).unwrap();
                    handed.lock().unwrap().push(detached.snapshot(&position).unwrap());
                    ready.wait();
                    let link = take(world.rank().index());
                    let rank = Rank::new(link.world(), rank.sampler.borrow().position());
                    let mut executor = rank.resume(link, detached, codec);
                    rank.steps(&mut executor, STEPS)
                })
            });
            let mut ranks: Vec<_> = stay.collect();
            ranks.push(scope.spawn(move || {
                ready.wait();
                let handed = handed.lock().unwrap().clone();
                assert_eq!(handed[0], handed[1], "{codec}: holders have the same state");
                let snapshot = Snapshot::parse(&handed[0]).unwrap();
                let position = serde_json::from_str(&snapshot.about).unwrap();
                let link = take(2);
                let rank = Rank::new(link.world(), position);
                let mut executor = rank.start(link, codec);
                executor.take_over(snapshot).unwrap();
                rank.steps(&mut executor, STEPS)
            }));
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_eq!(histories[0].len(), (STEPS - LOST) as usize);
        assert!(histories.iter().all(|history| *history == histories[0]), "{codec}: {histories:?}");
    }
}

/// Ranks with the same state hand over the same bytes, whether they had begun the step in which a peer was lost or not.
#[test]
fn a_lost_step_leaves_no_trace_in_what_joiners_take_over() {
    for codec in ["int8", ONEBIT_ADAM] {
        let later: Vec<_> =
            mem::mesh_of_epoch(1, 2).into_iter().map(|l| Mutex::new(Some(l))).collect();
        let calm = Barrier::new(3);
        let snapshots = thinwire_testkit::spawn(thinwire_testkit::Network::Mem, 3, |link| {
            let world = link.world();
            let rank = Rank::new(world, Position::default());
            let mut executor = rank.start(link, codec);
            // The first momenta of 1-bit Adam would travel in the step that is lost.
            rank.steps(&mut executor, LOST - 1);
            calm.wait();
            match world.rank().0 {
                0 => drop(rank.step(&mut executor).unwrap_err()),
                1 => {}
                _ => {
                    executor.sync().stop().stop("killed");
                    return None;
                }
            }
            let mut detached = executor.into_detached();
            let link = later[world.rank().index()].lock().unwrap().take().unwrap();
            detached.reform(&Channel::new(Group::new(link))).unwrap();
            Some(detached.snapshot("").unwrap())
        });
        assert_eq!(snapshots[0], snapshots[1], "{codec}");
    }
}
