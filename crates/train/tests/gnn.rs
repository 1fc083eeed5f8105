//! Graph neural networks over ranks as threads.

use std::sync::Arc;

use thinwire_checkpoint::Saved;
use thinwire_collective::Group;
use thinwire_graph::{Adjacency, Batches, Draw, FanOut};
use thinwire_loader::Features;
use thinwire_rows::{Format, Frozen};
use thinwire_testkit::{Network, spawn};
use thinwire_train::checkpoint::{Checkpoint, Draft};
use thinwire_train::gnn::{Figures, Model, Rows, Settings, Task, Trainer};
use thinwire_wire::random::Key;

const VERTICES: u32 = 8;
const FEATURES: usize = 3;
const CLASSES: u32 = 3;

fn settings(model: Model) -> Settings {
    Settings {
        model,
        hidden: 4,
        heads: 2,
        fan_outs: vec![FanOut::All; 2],
        draw: Draw::Distinct,
        passes: 3,
        learning_rate: 0.05,
        weight_decay: 0.01,
        dropout: 0.0,
        seed: 7,
        threads: 1,
    }
}

fn read(rows: Vec<u8>) -> Rows {
    let source = Features::direct(Frozen::in_memory(rows, 4 * FEATURES).unwrap());
    Rows::Read { source, format: Format::F32, columns: FEATURES as u32 }
}

fn task() -> Task {
    let ring = (0..VERTICES).flat_map(|v| [(v, (v + 1) % VERTICES), (v, (v + 3) % VERTICES)]);
    let graph = Adjacency::from_edges(VERTICES, &ring.collect::<Vec<_>>()).unwrap().symmetrized();
    let key = Key { seed: 9, step: 0, tensor: 1 };
    let values = (0..u64::from(VERTICES) * FEATURES as u64).map(|element| key.normal(element));
    let rows = values.flat_map(f32::to_le_bytes).collect();
    Task {
        graph: Arc::new(graph),
        rows: read(rows),
        labels: (0..VERTICES).map(|vertex| vertex % CLASSES).collect(),
        classes: CLASSES,
    }
}

/// Trains three passes on as many ranks as batches have; returns the values of every rank, trained rows last,
/// and the figures.
fn trained(task: &Task, batches: &Batches, model: Model) -> Vec<(Vec<Vec<f32>>, Figures)> {
    let ranks = batches.ranks();
    spawn(Network::Mem, ranks as usize, |link| {
        let (task, batches, group) = (task.clone(), batches.clone(), Group::new(link));
        let exchange = Default::default();
        let settings = settings(model);
        let mut trainer = Trainer::start(group, task, batches, settings, exchange).unwrap();
        let figures: Vec<Figures> = (0..3).map(|_| trainer.pass().unwrap()).collect();
        let all = Batches::global((0..VERTICES).collect(), ranks, 2, 0).unwrap();
        let evaluated = trainer.evaluate(&all.in_order()).unwrap();
        assert_eq!((figures[2].seeds, evaluated.seeds), (6, u64::from(VERTICES)));
        assert!(figures[2].mean_loss() < figures[0].mean_loss());
        let learned = trainer.learned().map(<[f32]>::to_vec);
        (trainer.values().iter().cloned().chain(learned).collect(), evaluated)
    })
}

/// Checks that ranks with parts of any sizes learn what one rank does, up to `tolerance` of a value.
fn assert_alike(task: &Task, tolerance: f32) {
    for model in Model::ALL {
        let seeds = vec![6, 1, 2, 3, 0, 5];
        let one = Batches::global(seeds.clone(), 1, 6, 5).unwrap();
        let one = trained(task, &one, model).remove(0);
        let (two, three) = (vec![6, 1, 2, 3], vec![0, 5]);
        for batches in [
            Batches::global(seeds.clone(), 4, 2, 5),
            Batches::local(vec![two, three], 4, 5),
            Batches::local(vec![vec![], seeds.clone()], 6, 5),
        ] {
            let ranks = trained(task, &batches.unwrap(), model);
            assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{model}: ranks are bit-equal");
            assert_eq!(ranks[0].0.len(), one.0.len());
            let pairs = ranks[0].0.iter().flatten().zip(one.0.iter().flatten());
            for (found, expected) in pairs {
                assert!((found - expected).abs() < tolerance, "{model}: {found} {expected}");
            }
        }
    }
}

#[test]
fn ranks_with_uneven_parts_learn_what_one_rank_does() {
    assert_alike(&task(), 1e-3);
}

#[test]
fn rows_that_are_learned_are_those_of_one_rank() {
    let task = Task { rows: Rows::Learned { columns: FEATURES as u32 }, ..task() };
    assert_alike(&task, 1e-3);
    let batches = Batches::global(vec![0], 1, 1, 5).unwrap();
    let learn = |fan_outs: Vec<FanOut>| {
        let group = Group::new(thinwire_link::mem::alone());
        let settings = Settings { fan_outs, ..settings(Model::Sage) };
        let (task, batches) = (task.clone(), batches.clone());
        let exchange = Default::default();
        let mut trainer = Trainer::start(group, task, batches, settings, exchange).unwrap();
        let before = trainer.learned().unwrap().to_vec();
        trainer.pass().unwrap();
        (before, trainer.learned().unwrap().to_vec())
    };
    // Without in-neighbours, the row of the seed alone is trained.
    let (before, after) = learn(vec![FanOut::Limit(0)]);
    assert_ne!(before[..FEATURES], after[..FEATURES]);
    assert_eq!(before[FEATURES..], after[FEATURES..]);
    let (before, after) = learn(vec![FanOut::All]);
    assert_ne!(before[FEATURES..], after[FEATURES..]);
}

#[test]
fn a_training_that_goes_on_is_the_uninterrupted_one() {
    let folder = std::env::temp_dir().join(format!("thinwire-gnn-{}", std::process::id()));
    let batches = Batches::global(vec![6, 1, 2, 3, 0, 5, 7], 2, 2, 5).unwrap();
    let learned = Rows::Learned { columns: FEATURES as u32 };
    for task in [task(), Task { rows: learned, ..task() }] {
        let bits = |trainer: &Trainer| {
            let values = trainer.values().iter().flatten().chain(trainer.learned().unwrap_or(&[]));
            values.map(|value| value.to_bits()).collect::<Vec<_>>()
        };
        spawn(Network::Mem, 2, |link| {
            let policy = "int8".parse().unwrap();
            let exchange = thinwire_sync::Options { policy, ..Default::default() };
            let settings = Settings { dropout: 0.2, ..settings(Model::Sage) };
            let fan_outs = vec![FanOut::Limit(2); 2];
            let settings = Settings { fan_outs, ..settings };
            let (task, batches, group) = (task.clone(), batches.clone(), Group::new(link));
            let mut whole = Trainer::start(group, task, batches, settings, exchange).unwrap();
            whole.pass().unwrap();
            if whole.world().rank().0 == 0 {
                Draft::create(&folder, whole.steps()).unwrap();
            }
            whole.gather(&[0.0]).unwrap();
            let draft = Draft::open(&folder, whole.steps(), "").unwrap();
            let plan = whole.write(&draft).unwrap();
            whole.gather(&[0.0]).unwrap();
            let kept = (whole.world().rank().0 == 0)
                .then(|| whole.seal(&draft, plan).and_then(|it| draft.publish(2, it)).unwrap());
            let kept = kept.flatten().unwrap_or_else(|| folder.join("step-000002"));
            whole.gather(&[0.0]).unwrap();
            let checkpoint = Checkpoint::open(&kept).unwrap();
            let first = bits(&whole);
            let figures = (0..2).map(|_| whole.pass().unwrap()).collect::<Vec<_>>();
            let uninterrupted = bits(&whole);
            whole.restore(&checkpoint).unwrap();
            assert_eq!(bits(&whole), first);
            let again = (0..2).map(|_| whole.pass().unwrap()).collect::<Vec<_>>();
            assert_eq!((bits(&whole), again), (uninterrupted, figures));
        });
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn ranks_that_differ_are_told_what_about() {
    type Change = fn(&mut Task, &mut Settings);
    let changes: [(Change, &str); 3] = [
        (
            |_, settings| settings.dropout = 0.25,
            "the recipe: this rank has rate 0.05, decay 0.01, dropout 0, seed 7",
        ),
        (|_, settings| settings.passes = 4, "passes: this rank has 3, rank 1 has 4"),
        (
            |task, _| {
                let graph = &task.graph;
                let moved: Vec<_> =
                    graph.pairs().map(|(from, to)| ((from + 1) % VERTICES, to)).collect();
                task.graph = Arc::new(Adjacency::from_edges(VERTICES, &moved).unwrap());
            },
            "the graph: this rank has ",
        ),
    ];
    for (change, about) in changes {
        let errors = spawn(Network::Mem, 2, |link| {
            let (mut task, mut settings) = (task(), settings(Model::Sage));
            if link.world().rank().0 == 1 {
                change(&mut task, &mut settings);
            }
            let batches = Batches::global(vec![0, 1], 2, 1, 5).unwrap();
            let group = Group::new(link);
            let started = Trainer::start(group, task, batches, settings, Default::default());
            started.map(drop).unwrap_err().to_string()
        });
        let said = format!("ranks disagree on {about}");
        assert!(errors[0].starts_with(&said), "{}", errors[0]);
    }
}

#[test]
fn a_step_that_is_not_finite_changes_nothing() {
    let task = task();
    let rows = vec![0xff; 4 * FEATURES * VERTICES as usize];
    let batches = Batches::global(vec![0, 1], 1, 2, 5).unwrap();
    let group = Group::new(thinwire_link::mem::alone());
    let (task, settings) = (Task { rows: read(rows), ..task }, settings(Model::Gcn));
    let mut trainer = Trainer::start(group, task, batches, settings, Default::default()).unwrap();
    let before = trainer.values().to_vec();
    assert!(trainer.pass().unwrap().loss.is_nan());
    assert_eq!(trainer.values(), before);
}
