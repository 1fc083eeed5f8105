//! A session of one rank: what it observes, and that it continues from its checkpoints.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::sync::Barrier;

use serde_json::json;
use thinwire_checkpoint::{FolderLock, Policy, latest};
use thinwire_collective::Group;
use thinwire_job::{Form, Interrupt, Place};
use thinwire_link::{Link, mem};
use thinwire_model::{backward, named};
use thinwire_sync::{Channel, Mode};
use thinwire_testkit::{Network, spawn};
use thinwire_train::checkpoint::Checkpoint;
use thinwire_train::session::{
    Computation, Ended, Event, Observer, Outcome, Ranks, Session, Settings, TrainedModel,
};
use thinwire_train::spmd::{ExchangeOptions, GraphModel};
use thinwire_train::{AdamWOptions, Config, Corpus, Error, LearningRate};
use thinwire_wire::Rank;

const STEPS: u64 = 6;
/// Steps after which ranks of rounds know each other's wishes.
const LAG: u64 = 16;

/// Numbers of the steps that were observed, and the number of validations.
#[derive(Default)]
struct Heard {
    steps: RefCell<Vec<u64>>,
    validations: RefCell<usize>,
}

impl Observer for Heard {
    fn on(&self, event: Event<'_>) -> Result<(), Error> {
        match event {
            Event::Step { step, .. } => self.steps.borrow_mut().push(step.number),
            Event::Reached { validation: Some(_), .. } => *self.validations.borrow_mut() += 1,
            _ => {}
        }
        Ok(())
    }
}

/// How a rank trains.
struct Training<'a> {
    link: Link,
    mode: Mode,
    steps: u64,
    interrupt: Interrupt,
    resume: Option<&'a Checkpoint>,
    policy: Option<&'a Policy>,
}

fn train(
    observer: &dyn Observer,
    resume: Option<&Checkpoint>,
    policy: Option<&Policy>,
) -> Box<Outcome> {
    let (link, interrupt) = (mem::alone(), Interrupt::listen().unwrap());
    let training = Training { link, mode: Mode::Step, steps: STEPS, interrupt, resume, policy };
    run(observer, training).unwrap()
}

fn run(observer: &dyn Observer, training: Training<'_>) -> Result<Box<Outcome>, Error> {
    let Training { link, mode, steps, interrupt, resume, policy } = training;
    let config = Config { context: 16, width: 16, layers: 1, heads: 2 };
    let graph = named(&config.name(), 8 / link.world().size(), 16).unwrap();
    let model = GraphModel::new(&graph, None).unwrap();
    let computation = Computation {
        file: None,
        training: backward(&graph).unwrap(),
        plan: model.plan(1),
        modality: model.modality().clone(),
        context: config.context,
        description: "a test".to_owned(),
        unit: 1,
        served: Vec::new(),
    };
    let text = b"she sells sea shells by the sea shore. ".repeat(50);
    let rate = LearningRate { peak: 0.02, floor: 0.002, warmup_steps: 2, steps };
    let settings = Settings {
        dataset: &Corpus::from_text(&text).unwrap().into(),
        batch: 8,
        steps,
        seed: 1,
        rate,
        adamw: AdamWOptions::default(),
        gradient_norm_max: Some(1.0),
        exchange: ExchangeOptions::default(),
        mode,
        advises: false,
        policies: &[],
        validation_batches: 1,
        link_bytes_per_s: None,
        weights: None,
        resume,
        policy,
        config: json!({}),
    };
    let (settings, place, interrupt) = (&settings, &Place::alone(Form::Flags), &interrupt);
    let session = Session { settings, place, interrupt, observer, resizer: None };
    let channel = Channel::new(Group::new(link));
    let lock = &FolderLock::default();
    let ranks = Ranks::Fixed { channel, computation: &computation, replicas: None, lock };
    let ended = session.run(ranks)?;
    let Ended::Over(_, outcome) = ended else { panic!("{ended:?}") };
    Ok(outcome)
}

#[test]
fn every_step_is_observed_and_observers_change_nothing() {
    let heard = Heard::default();
    let outcome = train(&heard, None, None);
    assert_eq!(*heard.steps.borrow(), (0..STEPS).collect::<Vec<_>>());
    assert_eq!((outcome.run.losses.len(), outcome.run.validation.len()), (6, 6));
    assert_eq!(*heard.validations.borrow(), 6);
    let TrainedModel::Whole(_) = outcome.model else { panic!("rank 0 has no model") };
    assert_eq!(train(&(), None, None).model, outcome.model);
}

#[test]
fn a_resumed_session_ends_with_the_same_model() {
    let folder = std::env::temp_dir().join(format!("thinwire-session-{}", std::process::id()));
    let go_on = |path: &Path| path.display().to_string();
    let policy = Policy { folder: folder.clone(), every: Some(2), say: |_| {}, go_on };
    let whole = train(&(), None, Some(&policy));
    assert!(latest(&folder).unwrap().unwrap().ends_with("step-000006"));
    let early = Checkpoint::open(&folder.join("step-000004")).unwrap();
    let heard = Heard::default();
    let resumed = train(&heard, Some(&early), None);
    assert_eq!(*heard.steps.borrow(), [4, 5]);
    assert_eq!(resumed.model, whole.model);
    fs::remove_dir_all(folder).unwrap();
}

/// Lets a rank wait for the other one in a step.
struct Waits<'a> {
    heard: Heard,
    step: u64,
    met: &'a Barrier,
}

impl Observer for Waits<'_> {
    fn on(&self, event: Event<'_>) -> Result<(), Error> {
        if matches!(&event, Event::Step { step, .. } if step.number == self.step) {
            self.met.wait();
        }
        self.heard.on(event)
    }
}

#[test]
fn a_signal_ends_ranks_after_the_same_step_however_far_one_is_ahead() {
    let met = Barrier::new(2);
    let steps = spawn(Network::Mem, 2, |link| {
        let interrupt = Interrupt::listen().unwrap();
        // Rank 1 takes its second step when rank 0 has taken the last one.
        let step = match link.world().rank() {
            Rank(0) => {
                interrupt.follow(15);
                LAG
            }
            _ => 0,
        };
        let waits = Waits { heard: Heard::default(), step, met: &met };
        let (mode, resume, policy) = (Mode::Pair { every: 1 }, None, None);
        let training = Training { link, mode, steps: 1000, interrupt, resume, policy };
        run(&waits, training).unwrap();
        waits.heard.steps.into_inner()
    });
    assert!(steps.iter().all(|steps| *steps == (0..=LAG).collect::<Vec<_>>()), "{steps:?}");
}
