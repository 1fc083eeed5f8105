//! One rank of a training.

use std::sync::Arc;

use safetensors::tensor::{Dtype, TensorView};
use thinwire_graph::{Adjacency, Batches, Draw, FanOut, Frontier, Position, Sampling, Weights};
use thinwire_link::Link;
use thinwire_loader::{Batch, Features, Loader, Options};
use thinwire_rows::Format;
use thinwire_sync::{Outcome, Synchronizer};

use super::Model;
use super::dropout::Dropout;
use super::loss::Figures;
use super::matrix::Matrix;
use super::network::{Input, Network, Shape};
use crate::error::{Error, Kind};
use crate::{AdamW, AdamWOptions, Pace, Parameter};

/// Adam as its paper has it; the weight decay is part of the gradient.
const ADAM: AdamWOptions =
    AdamWOptions { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };

/// Graph with features and labels to learn from, the same on all ranks.
#[derive(Clone, Debug)]
pub struct Task {
    /// Topology.
    pub graph: Arc<Adjacency>,
    /// Source of the rows of all vertices.
    pub features: Features,
    /// Format of a row.
    pub format: Format,
    /// Numbers of a row.
    pub columns: u32,
    /// Labels of all vertices, below `classes` for those that are trained on.
    pub labels: Arc<[u32]>,
    /// Number of classes.
    pub classes: u32,
}

/// Settings of a training, the same on all ranks but for the threads.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Sort of layers.
    pub model: Model,
    /// Outputs of all layers but the last.
    pub hidden: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Fan-out of each layer's hop, that of the seeds first.
    pub fan_outs: Vec<FanOut>,
    /// Way to draw in-neighbours.
    pub draw: Draw,
    /// Learning rate of Adam.
    pub learning_rate: f32,
    /// Times the values of matrices, added to their gradients.
    pub weight_decay: f32,
    /// Share of the inputs of every layer that is dropped, below 1.
    pub dropout: f32,
    /// Seed of everything random.
    pub seed: u64,
    /// Sampling threads.
    pub threads: usize,
}

impl Settings {
    /// Returns the sizes of the network that learns a task.
    pub fn shape(&self, task: &Task) -> Shape {
        Shape {
            model: self.model,
            features: task.columns as usize,
            hidden: self.hidden,
            classes: task.classes as usize,
            layers: self.fan_outs.len(),
            heads: self.heads,
        }
    }
}

/// One rank of a training.
#[derive(Debug)]
pub struct Trainer {
    network: Network,
    values: Vec<Vec<f32>>,
    adam: AdamW,
    sync: Synchronizer,
    task: Task,
    settings: Settings,
    batches: Batches,
    loader: Loader,
    position: Position,
    step: u64,
    sent_bytes: u64,
}

impl Trainer {
    /// Creates a rank before its first step; `batches` has a rank for each of the link.
    ///
    /// # Errors
    /// If sizes do not fit each other, ranks disagree, or a thread cannot be started.
    pub fn start(
        link: Link,
        (task, batches): (Task, Batches),
        settings: Settings,
        exchange: thinwire_sync::Options,
    ) -> Result<Trainer, Error> {
        let network = Network::new(settings.shape(&task))?;
        let named = |it: &Parameter| thinwire_sync::Parameter::new(&it.name, &it.shape);
        let parameters = network.parameters().iter().map(named).collect();
        let sync = Synchronizer::start(link, parameters, exchange).map_err(Error::exchange)?;
        sync.agree(&facts(&task, &batches, &settings)).map_err(Error::exchange)?;
        let loader = load(&task, &settings, (batches.clone(), sync.world().rank().0))?;
        Ok(Trainer {
            values: network.initial(settings.seed),
            adam: AdamW::new(network.parameters()),
            network,
            sync,
            task,
            settings,
            batches,
            loader,
            position: Position::default(),
            step: 0,
            sent_bytes: 0,
        })
    }

    /// Returns the network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Returns the values of all parameters, the same on all ranks.
    pub fn values(&self) -> &[Vec<f32>] {
        &self.values
    }

    /// Returns the values as a file of safetensors, by the names of parameters.
    ///
    /// # Errors
    /// If the format cannot hold them.
    pub fn to_safetensors(&self) -> Result<Vec<u8>, Error> {
        let invalid = |error| Error::new(Kind::Invalid, format!("cannot write values: {error}"));
        let parameters = self.network.parameters().iter().zip(&self.values);
        let views = parameters.map(|(parameter, values)| {
            let bytes = bytemuck::cast_slice(values);
            let view = TensorView::new(Dtype::F32, parameter.shape.clone(), bytes);
            view.map(|view| (&parameter.name, view))
        });
        let views = views.collect::<Result<Vec<_>, _>>().map_err(invalid)?;
        safetensors::serialize(views, None).map_err(invalid)
    }

    /// Returns the bytes of gradients that this rank has sent.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Trains one pass over the training vertices. Returns the figures of all ranks' seeds, each as it was
    /// before its step.
    ///
    /// # Errors
    /// If a batch cannot be loaded, or a peer is lost.
    pub fn pass(&mut self) -> Result<Figures, Error> {
        let pass = self.batches.shuffle(self.position.pass);
        let mut figures = Figures::default();
        for step in 0..self.batches.steps() {
            let own = pass.seeds(step, self.sync.world().rank().0).len();
            let ranks = 0..self.batches.ranks();
            let all: usize = ranks.map(|rank| pass.seeds(step, rank).len()).sum();
            figures += self.step(own as f32 / all.max(1) as f32)?;
        }
        self.gathered(figures)
    }

    /// Computes the figures of vertices that are not trained on, such as those for validation. The batches of
    /// their first pass are used.
    ///
    /// # Errors
    /// As [`Trainer::pass`].
    pub fn evaluate(&mut self, batches: &Batches) -> Result<Figures, Error> {
        let rank = self.sync.world().rank().0;
        let mut loader = load(&self.task, &self.settings, (batches.clone(), rank))?;
        let mut figures = Figures::default();
        for _ in 0..batches.steps() {
            let batch = loader.next().map_err(unloaded)?;
            let mut outputs = self.network.outputs(&self.values, self.task.input(&batch));
            figures += super::loss::cross_entropy(&mut outputs, &self.task.labels(&batch));
        }
        self.gathered(figures)
    }

    /// Takes a step, of whose seeds this rank has a share.
    fn step(&mut self, share: f32) -> Result<Figures, Error> {
        let batch = self.loader.next().map_err(unloaded)?;
        let key = self.batches.key(self.position, self.sync.world().rank().0);
        let dropout = Dropout { share: self.settings.dropout, key };
        self.sync.set_share(share).map_err(Error::exchange)?;
        self.sync.begin(self.step).map_err(Error::exchange)?;
        let (input, labels) = (self.task.input(&batch), self.task.labels(&batch));
        let (sync, values) = (&mut self.sync, &self.values);
        let (parameters, decay) = (self.network.parameters(), self.settings.weight_decay);
        let ready = |index: usize, mut gradient: Vec<f32>| {
            if parameters[index].is_matrix() {
                super::matrix::add(&mut gradient, &values[index], decay);
            }
            sync.ready(index, &gradient)
        };
        let figures = self.network.gradients(values, input, (&labels, dropout), ready);
        let figures = figures.map_err(Error::exchange)?;
        if self.sync.finish().map_err(Error::exchange)? == Outcome::Averaged {
            let pace = Pace { learning_rate: self.settings.learning_rate, gradient_scale: 1.0 };
            let gradient = |index| self.sync.gradient(index);
            self.adam.update(parameters, &mut self.values, gradient, pace, &ADAM);
        }
        let buckets = &self.sync.record().buckets;
        self.sent_bytes += buckets.iter().map(|bucket| bucket.sent_bytes).sum::<u64>();
        (self.step, self.position) = (self.step + 1, self.batches.after(self.position));
        Ok(figures)
    }

    /// Returns the sum of the figures of all ranks.
    fn gathered(&self, own: Figures) -> Result<Figures, Error> {
        let all = self.sync.gather(&own.to_row()).map_err(Error::exchange)?;
        let mut figures = Figures::default();
        all.as_chunks().0.iter().for_each(|row| figures += Figures::from_row(*row));
        Ok(figures)
    }
}

impl Task {
    fn input<'a>(&'a self, batch: &'a Batch) -> Input<'a> {
        let columns = self.columns as usize;
        let mut values = vec![0.0; batch.sample().vertices.len() * columns];
        self.format.decode(batch.rows(), columns, &mut values);
        let features = Matrix::new(columns, values);
        Input { sample: batch.sample(), graph: &self.graph, features }
    }

    fn labels(&self, batch: &Batch) -> Vec<u32> {
        let sample = batch.sample();
        let seeds = sample.vertices[..sample.seeds as usize].iter();
        seeds.map(|vertex| self.labels[*vertex as usize]).collect()
    }
}

/// Starts to load the batches of a rank.
fn load(
    task: &Task,
    settings: &Settings,
    (batches, rank): (Batches, u32),
) -> Result<Loader, Error> {
    let fan_outs = settings.fan_outs.clone();
    let sampling = Sampling { fan_outs, frontier: Frontier::All, draw: settings.draw.clone() };
    let options = Options { threads: settings.threads, ..Options::new(sampling, rank) };
    let loader = Loader::start(task.graph.clone(), batches, task.features.clone(), options);
    loader.map_err(unloaded)
}

fn unloaded(error: thinwire_loader::Error) -> Error {
    Error::new(Kind::Data, error.to_string())
}

/// Returns what all ranks must have in common.
fn facts(task: &Task, batches: &Batches, settings: &Settings) -> Vec<(String, String)> {
    let Settings {
        model, hidden, heads, fan_outs, learning_rate, weight_decay, dropout, seed, ..
    } = settings;
    let (vertices, edges) = (task.graph.vertices(), task.graph.edges());
    let labels: &[u8] = bytemuck::cast_slice(&task.labels);
    let hash = thinwire_wire::checksum(labels);
    let hops: Vec<String> = fan_outs.iter().map(fan_out).collect();
    let trained: Vec<String> =
        (0..batches.ranks()).map(|rank| batches.training(rank).to_string()).collect();
    let fact = |name: &str, value: String| (name.to_owned(), value);
    vec![
        fact("the graph", format!("{vertices} vertices, {edges} edges, labels {hash:08x}")),
        fact("features", format!("{} {}", task.columns, task.format)),
        fact("the model", format!("{model} of {hidden} hidden outputs, {heads} heads")),
        fact("fan-outs", hops.join(",")),
        fact("draws", draw(&settings.draw)),
        fact("training vertices", format!("{} in {} steps", trained.join(","), batches.steps())),
        fact(
            "the recipe",
            format!("rate {learning_rate}, decay {weight_decay}, dropout {dropout}, seed {seed}"),
        ),
    ]
}

fn draw(draw: &Draw) -> String {
    let by = |how: &str, weights: &Weights| {
        let hash = thinwire_wire::checksum(bytemuck::cast_slice(weights.values()));
        format!("{how} by weights {hash:08x}")
    };
    match draw {
        Draw::Distinct => "distinct".to_owned(),
        Draw::Repeated => "repeated".to_owned(),
        Draw::Weighted(weights) => by("distinct", weights),
        Draw::WeightedRepeated(weights) => by("repeated", weights),
    }
}

fn fan_out(fan_out: &FanOut) -> String {
    match fan_out {
        FanOut::All => "all".to_owned(),
        FanOut::Limit(limit) => limit.to_string(),
    }
}
