//! One rank of a training.

use std::borrow::Cow;
use std::ops::Sub;
use std::time::Instant;

use safetensors::tensor::{Dtype, TensorView};
use thinwire_collective::Group;
use thinwire_graph::{Batches, Draw, FanOut, Frontier, Position, Sampling};
use thinwire_loader::{Batch, Loader, Options};
use thinwire_sync::{Channel, Outcome, Synchronizer};

use super::loss::Figures;
use super::matrix::Matrix;
use super::network::{Dropout, Input, Network, Shape};
use super::table::{self, RowGradients, Table};
use super::task::{Rows, Task, facts};
use super::{Model, Wanted};
use crate::error::{Error, Kind};
use crate::{AdamW, AdamWOptions, Pace, Parameter};

/// Options of Adam, as in its paper; weight decay is added to the gradient.
const ADAM: AdamWOptions =
    AdamWOptions { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };

/// Settings of a training; all but the threads are the same on all ranks.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Kind of layers.
    pub model: Model,
    /// Outputs of all layers but the last.
    pub hidden: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Fan-out of each layer's hop, beginning with the hop of the seeds.
    pub fan_outs: Vec<FanOut>,
    /// Way to draw in-neighbours.
    pub draw: Draw,
    /// Number of passes that the caller will make. It must be equal on all ranks, since a rank with fewer
    /// would leave the others waiting.
    pub passes: u64,
    /// Learning rate of Adam.
    pub learning_rate: f32,
    /// Weight decay: this factor times a matrix is added to the matrix's gradient.
    pub weight_decay: f32,
    /// Fraction of each layer's inputs that is dropped; below 1.
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
            features: task.rows.columns() as usize,
            hidden: self.hidden,
            classes: task.classes as usize,
            layers: self.fan_outs.len(),
            heads: self.heads,
        }
    }
}

/// Time that a rank's steps have taken.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Seconds of waiting for batches and their rows.
    pub loading_s: f64,
    /// Seconds of waiting for gradients of other ranks.
    pub wait_s: f64,
    /// Bytes of gradients that were sent, including the gradients of rows.
    pub sent_bytes: u64,
}

impl Sub for Totals {
    type Output = Totals;

    fn sub(self, before: Totals) -> Totals {
        Totals {
            loading_s: self.loading_s - before.loading_s,
            wait_s: self.wait_s - before.wait_s,
            sent_bytes: self.sent_bytes - before.sent_bytes,
        }
    }
}

/// One rank of a training.
#[derive(Debug)]
pub struct Trainer {
    pub(super) network: Network,
    pub(super) values: Vec<Vec<f32>>,
    pub(super) adam: AdamW,
    /// Trained rows of features.
    pub(super) table: Option<Table>,
    pub(super) sync: Synchronizer,
    pub(super) task: Task,
    pub(super) settings: Settings,
    /// Facts that a checkpoint keeps.
    pub(super) facts: Vec<(String, String)>,
    /// Codec of gradients.
    pub(super) codec: String,
    pub(super) batches: Batches,
    pub(super) loader: Loader,
    pub(super) position: Position,
    pub(super) step: u64,
    totals: Totals,
}

impl Trainer {
    /// Creates a rank before its first step. `batches` must be divided among as many ranks as the group
    /// has.
    ///
    /// # Errors
    /// If sizes do not fit each other, ranks disagree, or a thread cannot be started.
    pub fn start(
        group: Group,
        task: Task,
        batches: Batches,
        settings: Settings,
        exchange: thinwire_sync::Options,
    ) -> Result<Trainer, Error> {
        let network = Network::new(settings.shape(&task))?;
        let named = |it: &Parameter| thinwire_sync::Parameter::new(&it.name, &it.shape);
        let parameters = network.parameters().iter().map(named).collect();
        let channel = Channel::new(group);
        let codec = exchange.policy.to_string();
        let sync = Synchronizer::over(channel, parameters, exchange)?;
        let facts = facts(&task, &batches, &settings)?;
        // Not among those of a checkpoint: a resumed training may make more passes.
        let passes = ("passes".to_owned(), settings.passes.to_string());
        sync.agree(&[&facts[..], &[passes]].concat())?;
        let rank = sync.world().rank().0;
        let loader = load(&task, &settings, batches.clone(), rank, Position::default())?;
        let (vertices, rate, seed) = (task.graph.vertices(), settings.learning_rate, settings.seed);
        let table = match task.rows {
            Rows::Read { .. } | Rows::Served { .. } => None,
            Rows::Learned { columns } => Some(Table::new(vertices, columns as usize, rate, seed)),
        };
        Ok(Trainer {
            facts,
            codec,
            table,
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
            totals: Totals::default(),
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

    /// Returns the rows of features that were trained, one after the other, if every rank has them. They are
    /// the same on all ranks.
    pub fn learned(&self) -> Option<&[f32]> {
        self.table.as_ref().map(Table::values)
    }

    /// Returns the number of trained values, including the values of trained rows.
    pub fn elements(&self) -> u64 {
        let rows = u64::from(self.task.graph.vertices()) * u64::from(self.task.rows.columns());
        let of_rows = if let Rows::Read { .. } = self.task.rows { 0 } else { rows };
        of_rows + self.network.elements()
    }

    /// Returns the values as a file of safetensors, by the names of parameters; trained rows are `features`.
    ///
    /// # Errors
    /// If the format cannot hold them, or rows are on servers that do not answer.
    pub fn to_safetensors(&self) -> Result<Vec<u8>, Error> {
        let invalid = |error| Error::new(Kind::Invalid, format!("cannot write values: {error}"));
        let parameters = self.network.parameters().iter().zip(&self.values);
        let named = parameters.map(|(it, values)| (&it.name[..], it.shape.clone(), &values[..]));
        let (vertices, columns) = (self.task.graph.vertices(), self.task.rows.columns());
        let rows = match (&self.table, &self.task.rows) {
            (Some(table), _) => Some(Cow::Borrowed(table.values())),
            (None, Rows::Served { rows, .. }) => Some(Cow::Owned(rows.all()?)),
            (None, _) => None,
        };
        let shape = vec![vertices as usize, columns as usize];
        let table = rows.iter().map(|rows| (table::NAME, shape.clone(), &rows[..]));
        let views = named.chain(table).map(|(name, shape, values)| {
            let view = TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(values));
            view.map(|view| (name, view))
        });
        let views = views.collect::<Result<Vec<_>, _>>().map_err(invalid)?;
        safetensors::serialize(views, None).map_err(invalid)
    }

    /// Returns the totals of all steps so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Trains one pass over the training vertices, or the rest of one. Returns the figures of all ranks'
    /// seeds; each step's figures are computed before its update.
    ///
    /// # Errors
    /// If a batch cannot be loaded, or a peer is lost.
    pub fn pass(&mut self) -> Result<Figures, Error> {
        let pass = self.batches.shuffle(self.position.pass);
        let mut figures = Figures::default();
        for step in self.position.step..self.batches.steps() {
            let own = pass.seeds(step, self.sync.world().rank().0).len();
            let ranks = 0..self.batches.ranks();
            let all: usize = ranks.map(|rank| pass.seeds(step, rank).len()).sum();
            figures += self.step(own as f32 / all.max(1) as f32)?;
        }
        self.gathered(figures)
    }

    /// Computes the figures of vertices that are not trained on, such as those for validation. It uses the
    /// first pass of `batches`.
    ///
    /// # Errors
    /// As [`Trainer::pass`].
    pub fn evaluate(&mut self, batches: &Batches) -> Result<Figures, Error> {
        let rank = self.sync.world().rank().0;
        let start = Position::default();
        let mut loader = load(&self.task, &self.settings, batches.clone(), rank, start)?;
        let mut figures = Figures::default();
        for _ in 0..batches.steps() {
            let batch = loader.next().map_err(unloaded)?;
            let input = input(&self.task, self.table.as_ref(), &batch)?;
            let mut outputs = self.network.outputs(&self.values, input);
            figures += super::loss::cross_entropy(&mut outputs, &self.task.labels(&batch));
        }
        self.gathered(figures)
    }

    /// Takes a step, in which this rank has the fraction `share` of the seeds.
    fn step(&mut self, share: f32) -> Result<Figures, Error> {
        let begun = Instant::now();
        let batch = self.loader.next().map_err(unloaded)?;
        let key = self.batches.key(self.position, self.sync.world().rank().0);
        let dropout = Dropout { share: self.settings.dropout, key };
        self.sync.set_share(share)?;
        self.sync.begin(self.step)?;
        let (input, labels) =
            (input(&self.task, self.table.as_ref(), &batch)?, self.task.labels(&batch));
        self.totals.loading_s += begun.elapsed().as_secs_f64();
        let (sync, values) = (&mut self.sync, &self.values);
        let (parameters, decay) = (self.network.parameters(), self.settings.weight_decay);
        let ready = |index: usize, mut gradient: Vec<f32>| {
            if parameters[index].is_matrix() {
                super::matrix::add(&mut gradient, &values[index], decay);
            }
            sync.ready(index, &gradient)
        };
        let computed = self.network.gradients(values, input, &labels, dropout, ready);
        let (figures, of_rows) = computed?;
        let outcome = self.sync.finish()?;
        if outcome == Outcome::Averaged {
            let pace = Pace { learning_rate: self.settings.learning_rate, gradient_scale: 1.0 };
            let gradient = |index| self.sync.gradient(index);
            self.adam.update(parameters, &mut self.values, gradient, pace, &ADAM);
        }
        if let Some(mut gradient) = of_rows {
            gradient.values_mut().iter_mut().for_each(|value| *value *= share);
            self.learn(outcome, &batch.sample().vertices, &gradient)?;
        }
        let record = self.sync.record();
        self.totals.sent_bytes += record.total(|bucket| bucket.sent_bytes);
        self.totals.wait_s += record.wait_s;
        (self.step, self.position) = (self.step + 1, self.batches.after(self.position));
        Ok(figures)
    }

    /// Updates the rows that the batches of all ranks used, unless the step is skipped. If rows are on
    /// servers, a rank whose gradients are not finite pushes none.
    fn learn(
        &mut self,
        outcome: Outcome,
        vertices: &[u32],
        gradient: &Matrix,
    ) -> Result<(), Error> {
        if let Rows::Served { rows, .. } = &self.task.rows {
            let is_used = outcome == Outcome::Averaged
                && gradient.values().iter().all(|value| value.is_finite());
            // With sync, servers wait for a push of every rank, even one without rows.
            self.totals.sent_bytes += match is_used {
                true => rows.push(vertices, gradient.values())?,
                false => rows.push(&[], &[])?,
            };
        }
        let Some(table) = &mut self.table else { return Ok(()) };
        let (gradients, sent) = RowGradients::gather(&self.sync, table, vertices, gradient)?;
        self.totals.sent_bytes += sent;
        if outcome == Outcome::Averaged {
            table.update(&gradients);
        }
        Ok(())
    }

    /// Returns the sum of the figures of all ranks.
    fn gathered(&self, own: Figures) -> Result<Figures, Error> {
        let all = self.sync.gather(&own.to_row())?;
        let mut figures = Figures::default();
        all.as_chunks().0.iter().for_each(|row| figures += Figures::from_row(*row));
        Ok(figures)
    }
}

/// Returns a batch with its features: those with which it was loaded, or trained ones.
///
/// # Errors
/// If rows are on servers that do not answer.
fn input<'a>(task: &'a Task, table: Option<&Table>, batch: &'a Batch) -> Result<Input<'a>, Error> {
    let (sample, graph) = (batch.sample(), &*task.graph);
    let (features, wanted) = match (&task.rows, table) {
        (Rows::Served { columns, rows }, _) => {
            let mut values = vec![0.0; sample.vertices.len() * *columns as usize];
            rows.pull(&sample.vertices, &mut values)?;
            (Matrix::new(*columns as usize, values), Wanted::All)
        }
        (_, Some(table)) => (table.read(&sample.vertices), Wanted::All),
        (Rows::Read { format, columns, .. }, None) => {
            let mut values = vec![0.0; sample.vertices.len() * *columns as usize];
            format.decode(batch.rows(), *columns as usize, &mut values);
            (Matrix::new(*columns as usize, values), Wanted::Weights)
        }
        (Rows::Learned { .. }, None) => unreachable!("learned rows have a table"),
    };
    Ok(Input { sample, graph, features, wanted })
}

/// Starts to load the batches of a rank, beginning at a position.
pub(super) fn load(
    task: &Task,
    settings: &Settings,
    batches: Batches,
    rank: u32,
    start: Position,
) -> Result<Loader, Error> {
    let fan_outs = settings.fan_outs.clone();
    let sampling = Sampling { fan_outs, frontier: Frontier::All, draw: settings.draw.clone() };
    let options = Options { start, threads: settings.threads, ..Options::new(sampling, rank) };
    let rows = task.rows.source(task.graph.vertices())?;
    Loader::start(task.graph.clone(), batches, rows, options).map_err(unloaded)
}

fn unloaded(error: thinwire_loader::Error) -> Error {
    Error::new(Kind::Data, error.to_string())
}
