//! Graph neural networks over ranks as threads.

use std::sync::Arc;

use thinwire_graph::{Adjacency, Batches, Draw, FanOut};
use thinwire_loader::Features;
use thinwire_rows::{Format, Frozen};
use thinwire_testkit::{Network, spawn};
use thinwire_train::gnn::{Figures, Model, Settings, Task, Trainer};
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
        learning_rate: 0.05,
        weight_decay: 0.01,
        dropout: 0.0,
        seed: 7,
        threads: 1,
    }
}

fn task() -> Task {
    let ring = (0..VERTICES).flat_map(|v| [(v, (v + 1) % VERTICES), (v, (v + 3) % VERTICES)]);
    let graph = Adjacency::from_edges(VERTICES, &ring.collect::<Vec<_>>()).unwrap().symmetrized();
    let key = Key { seed: 9, step: 0, tensor: 1 };
    let values = (0..u64::from(VERTICES) * FEATURES as u64).map(|element| key.normal(element));
    let rows = values.flat_map(f32::to_le_bytes).collect();
    Task {
        graph: Arc::new(graph),
        features: Features::direct(Frozen::in_memory(rows, 4 * FEATURES).unwrap()),
        format: Format::F32,
        columns: FEATURES as u32,
        labels: (0..VERTICES).map(|vertex| vertex % CLASSES).collect(),
        classes: CLASSES,
    }
}

/// Trains three passes on as many ranks as batches have; returns the values of every rank and the figures.
fn trained(batches: &Batches, model: Model) -> Vec<(Vec<Vec<f32>>, Figures)> {
    spawn(Network::Mem, batches.ranks() as usize, |link| {
        let (task, settings) = (task(), settings(model));
        let mut trainer =
            Trainer::start(link, (task, batches.clone()), settings, Default::default()).unwrap();
        let figures: Vec<Figures> = (0..3).map(|_| trainer.pass().unwrap()).collect();
        let all = Batches::global((0..VERTICES).collect(), batches.ranks(), 2, 0).unwrap();
        let evaluated = trainer.evaluate(&all.in_order()).unwrap();
        assert_eq!((figures[2].seeds, evaluated.seeds), (6, u64::from(VERTICES)));
        assert!(figures[2].mean_loss() < figures[0].mean_loss());
        (trainer.values().to_vec(), evaluated)
    })
}

#[test]
fn ranks_with_uneven_parts_learn_what_one_rank_does() {
    for model in Model::ALL {
        let seeds = vec![6, 1, 2, 3, 0, 5];
        let one = trained(&Batches::global(seeds.clone(), 1, 6, 5).unwrap(), model).remove(0);
        let (two, three) = (vec![6, 1, 2, 3], vec![0, 5]);
        for batches in [
            Batches::global(seeds.clone(), 4, 2, 5),
            Batches::local(vec![two, three], 4, 5),
            Batches::local(vec![vec![], seeds.clone()], 6, 5),
        ] {
            let ranks = trained(&batches.unwrap(), model);
            assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{model}: ranks are bit-equal");
            let pairs = ranks[0].0.iter().flatten().zip(one.0.iter().flatten());
            for (found, expected) in pairs {
                assert!((found - expected).abs() < 1e-3, "{model}: {found} {expected}");
            }
        }
    }
}

#[test]
fn ranks_that_differ_are_told_what_about() {
    let errors = spawn(Network::Mem, 2, |link| {
        let rank = link.world().rank().0;
        let settings = Settings { dropout: 0.25 * rank as f32, ..settings(Model::Sage) };
        let batches = Batches::global(vec![0, 1], 2, 1, 5).unwrap();
        let started = Trainer::start(link, (task(), batches), settings, Default::default());
        started.map(drop).unwrap_err().to_string()
    });
    let said =
        "ranks disagree on the recipe: this rank has rate 0.05, decay 0.01, dropout 0, seed 7";
    assert!(errors[0].starts_with(said), "{}", errors[0]);
}

#[test]
fn a_step_that_is_not_finite_changes_nothing() {
    let task = task();
    let rows = vec![0xff; 4 * FEATURES * VERTICES as usize];
    let features = Features::direct(Frozen::in_memory(rows, 4 * FEATURES).unwrap());
    let batches = Batches::global(vec![0, 1], 1, 2, 5).unwrap();
    let link = thinwire_link::mem::alone();
    let task = (Task { features, ..task }, batches);
    let mut trainer = Trainer::start(link, task, settings(Model::Gcn), Default::default()).unwrap();
    let before = trainer.values().to_vec();
    assert!(trainer.pass().unwrap().loss.is_nan());
    assert_eq!(trainer.values(), before);
}
