//! Replicas of which other processes update some parameters: as if each rank updated all of them.

use std::sync::{Barrier, Mutex};

use thinwire_collective::Group;
use thinwire_testkit::{Network, spawn};
use thinwire_train::spmd::{ExchangeOptions, Executor, GraphModel, Remote, initial};
use thinwire_train::{AdamW, AdamWOptions, Config, Corpus, Pace, Parameter, Sampler, Sampling};

const CONTEXT: usize = 16;
/// Divides among no number of ranks of these tests.
const GLOBAL_BATCH: usize = 13;
const STEPS: u64 = 50;
const PACE: Pace = Pace { learning_rate: 5e-3, gradient_scale: 1.0 };

/// Server in this process: it waits for the gradients of all ranks, and updates once.
struct Server {
    barrier: Barrier,
    state: Mutex<State>,
}

struct State {
    parameters: Vec<Parameter>,
    values: Vec<Vec<f32>>,
    sums: Vec<Vec<f32>>,
    adamw: AdamW,
}

impl Server {
    fn new(ranks: usize, model: &GraphModel, names: &[String]) -> Server {
        let (graph, mut values) = (&model.training().graph, Vec::new());
        let start = initial(graph, 9);
        let mut parameters = Vec::new();
        for (id, tensor) in graph.parameters().filter(|(_, tensor)| names.contains(&tensor.name)) {
            let whole = tensor
                .shape
                .iter()
                .map(|length| thinwire_model::Part { start: 0, length: *length });
            values.push(start(id, &whole.collect::<Vec<_>>()));
            parameters.push(Parameter { name: tensor.name.clone(), shape: tensor.shape.clone() });
        }
        let sums = values.iter().map(|values| vec![0.0; values.len()]).collect();
        let adamw = AdamW::new(&parameters);
        let state = Mutex::new(State { parameters, values, sums, adamw });
        Server { barrier: Barrier::new(ranks), state }
    }

    fn values(&self) -> Vec<Vec<f32>> {
        self.state.lock().unwrap().values.clone()
    }

    /// Adds gradients to those of the step; the last rank updates.
    fn step(&self, gradients: &[impl AsRef<[f32]>], scale: f32) -> Vec<Vec<f32>> {
        let mut state = self.state.lock().unwrap();
        for (sum, gradient) in state.sums.iter_mut().zip(gradients) {
            let gradient = gradient.as_ref();
            assert_eq!(sum.len(), gradient.len());
            sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value * scale);
        }
        drop(state);
        if self.barrier.wait().is_leader() {
            let State { parameters, values, sums, adamw } = &mut *self.state.lock().unwrap();
            adamw.update(parameters, values, |index| &sums[index], PACE, &AdamWOptions::default());
            sums.iter_mut().flatten().for_each(|sum| *sum = 0.0);
        }
        self.barrier.wait();
        self.values()
    }
}

/// Losses of each step, and checksums of all parameters after it; parameters of these names are with a server.
fn train(ranks: usize, names: &[String], clip: Option<f32>) -> Vec<Vec<(f64, u32)>> {
    let text = b"the quick brown fox jumps over the lazy dog; pack my box with five dozen jugs. ";
    let corpus = Corpus::from_text(&text.repeat(60)).unwrap();
    let server = Server::new(ranks, &small(1), names);
    spawn(Network::Mem, ranks, |link| {
        let world = link.world();
        let sampling =
            Sampling { context: CONTEXT, global_batch: GLOBAL_BATCH, unit: 1, world, seed: 5 };
        let share = sampling.rows().len() as f32 / GLOBAL_BATCH as f32;
        let model = small(sampling.rows().len());
        let mut sampler = Sampler::new(corpus.clone(), sampling).unwrap();
        let start = initial(&model.training().graph, 9);
        let options = ExchangeOptions { remote: names.to_vec(), ..ExchangeOptions::default() };
        let group = Group::new(link);
        let executor =
            Executor::new(model.training(), &model.plan(1), group, &start, options).unwrap();
        let mut executor = executor.with_gradient_norm_max(clip);
        executor.set_share(sampling.share()).unwrap();
        if !names.is_empty() {
            let remote = Remote::new(|step| {
                let gradients = step.gradients.expect("finite gradients");
                step.values.clone_from_slice(&server.step(gradients, step.scale * share));
                Ok(0)
            });
            executor = executor.with_remote(remote, server.values()).unwrap();
        }
        let step = |_| {
            let inputs = model.micro_batches(&sampler.next_batch());
            executor.step(&inputs, PACE, &AdamWOptions::default()).unwrap();
            let whole = executor.whole().unwrap().unwrap();
            let bytes: Vec<u8> = whole.values().flatten().flat_map(|x| x.to_le_bytes()).collect();
            (executor.agreed().loss, thinwire_wire::checksum(&bytes))
        };
        (0..STEPS).map(step).collect()
    })
}

fn small(rows: usize) -> GraphModel {
    let config = Config { context: CONTEXT, width: 32, layers: 1, heads: 2 };
    GraphModel::new(&thinwire_model::named(&config.name(), rows, CONTEXT).unwrap(), None).unwrap()
}

/// Names of parameters that begin with these letters.
fn names(prefix: &str) -> Vec<String> {
    let model = small(1);
    let names = model.training().graph.parameters().map(|(_, tensor)| tensor.name.clone());
    names.filter(|name| name.starts_with(prefix)).collect()
}

#[test]
fn parameters_of_a_server_are_updated_as_those_of_the_ranks() {
    let (some, all) = (names("embedding"), names(""));
    assert!(!some.is_empty() && some.len() < all.len(), "{all:?}");
    for ranks in [1, 2, 3] {
        let plain = &train(ranks, &[], None)[0];
        assert!(plain[STEPS as usize - 1].0 < plain[0].0 - 0.5, "it learns: {plain:?}");
        for names in [&some, &all] {
            let served = &train(ranks, names, None)[0];
            for (step, (plain, served)) in plain.iter().zip(served).enumerate() {
                let close = (plain.0 - served.0).abs() < 1e-5;
                assert!(close, "{ranks} ranks, step {step}: {plain:?} and {served:?}");
            }
        }
    }
}

#[test]
fn ranks_clip_alike_though_none_knows_the_norm_of_what_is_elsewhere() {
    for served in train(3, &names("embedding"), Some(0.1)).windows(2) {
        assert_eq!(served[0], served[1]);
    }
}

#[test]
fn gradients_that_nobody_takes_and_values_of_other_lengths_are_refused() {
    let (model, names) = (small(2), names("embedding"));
    let executor = || {
        let start = initial(&model.training().graph, 9);
        let options = ExchangeOptions { remote: names.clone(), ..ExchangeOptions::default() };
        let group = Group::new(thinwire_link::mem::alone());
        Executor::new(model.training(), &model.plan(1), group, &start, options).unwrap()
    };
    let batch = thinwire_train::Windows::new(vec![7; 2 * (CONTEXT + 1)], CONTEXT).into();
    let inputs = model.micro_batches(&batch);
    let error = executor().step(&inputs, PACE, &AdamWOptions::default()).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("gradients stay on this rank, but nothing updates their parameters"),
        "{error}"
    );
    let remote = Remote::new(|_| Ok(0));
    let error = executor().with_remote(remote, vec![vec![0.0]]).unwrap_err();
    assert!(error.to_string().contains("lengths [1], expected ["), "{error}");
}
