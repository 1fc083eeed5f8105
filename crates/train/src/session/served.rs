//! Parameters on servers, one table each, and the client with which a rank trains them.

use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_job::elastic::JobAddress;
use thinwire_model::{Initial, Role, Tensor, TensorId};
use thinwire_server::{
    Client, Consistency, Definition, Error, Format, Gradient, Origin, TableDefinition,
};
use thinwire_update::{AdamWOptions, Optimizer, Rule};

use super::engine::Engine;
use crate::spmd::{Executor, Handover, Remote};

/// Values per row of a one-dimensional parameter.
const VECTOR_WIDTH: usize = 1024;
/// Name of the table with the loss.
const LOSS: &str = "thinwire.loss";
/// Shards per server, enough to divide them evenly over other numbers of servers.
const SHARDS_PER_SERVER: u32 = 8;

/// Function that is called after each push of a rank, with the number of its pushes.
pub type AfterPush = Box<dyn FnMut(u64)>;

/// Settings of servers that have parameters of a training.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSettings {
    /// Number of servers with which the job begins.
    pub servers: u32,
    /// Rule for the number of steps by which a rank may be ahead of the slowest.
    pub consistency: Consistency,
    /// Optimiser of the servers.
    pub optimizer: Optimizer,
    /// Number of backups of each value: servers that have the value in addition to the primary.
    pub backups: u32,
    /// Whether ranks average the gradients of some parameters among themselves.
    pub is_hybrid: bool,
    /// Format in which values and gradients travel.
    pub values: Format,
}

/// Parameter as a table on servers.
pub struct Tabled {
    /// Name of the parameter.
    pub name: String,
    /// Number of rows.
    pub rows: usize,
    /// Values per row; the last row may be padded.
    pub width: usize,
    /// Number of values.
    pub length: usize,
    /// Whether the parameter has two dimensions or more; weight decay applies only to these.
    pub is_matrix: bool,
    /// Initial values, in the syntax of a definition.
    pub initial: String,
    /// Random stream of the initial values.
    pub stream: u32,
}

impl ServerSettings {
    /// Returns whether faster ranks wait for slower ones.
    pub fn waits(&self) -> bool {
        self.consistency != Consistency::Async
    }

    fn optimizer_of(&self, parameter: &Tabled) -> Optimizer {
        let rule = match self.optimizer.rule {
            Rule::AdamW(options) if !parameter.is_matrix => {
                Rule::AdamW(AdamWOptions { weight_decay: 0.0, ..options })
            }
            rule => rule,
        };
        Optimizer { rule, ..self.optimizer }
    }

    /// Returns the tables of a model's parameters.
    pub fn definition(&self, parameters: &[Tabled], seed: u64) -> Definition {
        let table = |parameter: &Tabled| TableDefinition {
            name: parameter.name.clone(),
            rows: parameter.rows as u64,
            width: parameter.width as u32,
            optimizer: self.optimizer_of(parameter).to_string(),
            initial: parameter.initial.clone(),
            seed,
            stream: parameter.stream,
            values: self.values.to_string(),
        };
        Definition {
            tables: parameters.iter().map(table).collect(),
            consistency: self.consistency.to_string(),
            shards: SHARDS_PER_SERVER * self.servers,
            backups: self.backups,
            servers: self.servers,
            restore: None,
        }
    }
}

/// Parameters on servers, with the client of this rank.
#[derive(Clone)]
pub(super) struct Served(Rc<RefCell<Link>>);

/// Client of one rank, and the tables that it pushes and pulls in each step.
struct Link {
    client: Client,
    tables: Vec<Tabled>,
    /// Format in which values and gradients travel.
    format: Format,
    /// Numbers of all rows, by table.
    rows: Vec<Vec<u64>>,
    /// Values of all rows, table after table.
    pulled: Vec<f32>,
    /// Number of the table with the loss; `None` if ranks average it among themselves.
    loss: Option<u32>,
    /// Called after each push; set only on rank 0.
    after_push: Option<AfterPush>,
}

impl Served {
    /// Defines a table for each parameter of an engine that is on servers, and waits for the servers.
    ///
    /// # Errors
    /// If the job has other tables, or its servers are not ready in time.
    pub fn open(
        settings: &ServerSettings,
        origin: Option<&Origin>,
        seed: u64,
        engine: &Engine<'_>,
        address: &JobAddress,
        timeout: Duration,
    ) -> Result<Served, Error> {
        let computation = engine.computation;
        let (graph, served) = (&computation.training.graph, &computation.served);
        let ids = engine.executor.program().parameters.iter().map(|parameter| parameter.tensor);
        let tensors = ids.map(|id| (id, &graph.tensors[id]));
        let tables = tensors.filter(|(_, tensor)| served.contains(&tensor.name));
        let tables: Vec<Tabled> = tables.map(|(id, tensor)| table(id, tensor)).collect();
        let (mut definition, has_loss) = (settings.definition(&tables, seed), !settings.is_hybrid);
        // A snapshot of an earlier version has no loss.
        let snapshot = origin.and_then(|origin| match origin {
            Origin::Snapshot(snapshot) => Some(snapshot),
            Origin::Checkpoint(_) => None,
        });
        let names = snapshot.map(|it| it.definition().tables.iter().map(|table| &table.name[..]));
        let has_loss = has_loss && names.is_none_or(|mut names| names.any(|name| name == LOSS));
        let loss = has_loss.then_some(definition.tables.len() as u32);
        if snapshot.is_some() {
            definition.tables.extend(loss.map(|_| loss_table()));
        }
        let mut definition = begin(origin, definition)?;
        if snapshot.is_none() {
            definition.tables.extend(loss.map(|_| loss_table()));
        }
        let client = Client::open(address, &definition, timeout)?;
        let rows = tables.iter().map(|table| (0..table.rows as u64).collect());
        let rows = rows.chain(loss.map(|_| vec![0])).collect();
        let values = tables.iter().map(|table| table.rows * table.width).sum::<usize>();
        let pulled = vec![0.0; values + usize::from(loss.is_some())];
        let format = settings.values;
        Ok(Served(Rc::new(RefCell::new(Link {
            client,
            tables,
            format,
            rows,
            pulled,
            loss,
            after_push: None,
        }))))
    }

    /// Returns the number of bytes that a rank pushes in a step, counting values as f32. The rank pulls
    /// the same number.
    pub fn raw_bytes(&self) -> u64 {
        let link = self.0.borrow();
        4 * (link.pulled.len() - usize::from(link.loss.is_some())) as u64
    }

    /// Returns the number of bytes that a rank pushes in a step, in the format in which values are sent.
    /// The rank pulls the same number.
    pub fn step_bytes(&self) -> u64 {
        self.0.borrow().step_bytes()
    }

    /// Sets the function that this rank calls after each push.
    pub fn set_after_push(&self, after_push: Option<AfterPush>) {
        let mut link = self.0.borrow_mut();
        // Dropping a requester of snapshots waits for its snapshot, so an existing one is kept.
        if link.after_push.is_some() != after_push.is_some() {
            link.after_push = after_push;
        }
    }

    /// Connects an executor to the servers, which update their parameters from its gradients, weighted by
    /// `share`, its share of the batch. The executor begins with the servers' current values.
    ///
    /// # Errors
    /// If a shard is lost or the servers do not answer.
    pub fn attach<'a>(
        &self,
        executor: Executor<'a>,
        share: f32,
    ) -> Result<Executor<'a>, crate::Error> {
        let link = Rc::clone(&self.0);
        let values = {
            let mut link = link.borrow_mut();
            link.pull()?;
            link.values().map(<[f32]>::to_vec).collect()
        };
        let remote = Remote::new(move |step| {
            let mut link = link.borrow_mut();
            link.exchange(&step, share)?;
            // A skipped step shows its own loss, which the table does not have.
            let told = link.loss.filter(|_| step.gradients.is_some());
            if let Some(loss) = told.and_then(|_| link.pulled.last()) {
                *step.loss = f64::from(*loss);
            }
            let values = step.values.iter_mut().zip(link.values());
            values.for_each(|(to, from)| to.copy_from_slice(from));
            Ok(link.step_bytes())
        });
        executor.with_remote(remote, values)
    }
}

impl Link {
    fn step_bytes(&self) -> u64 {
        let bytes = |table: &Tabled| table.rows * self.format.width(table.width);
        self.tables.iter().map(bytes).sum::<usize>() as u64
    }

    /// Pushes gradients, and pulls the values after the push without waiting for its acknowledgement.
    fn exchange(&mut self, step: &Handover<'_>, share: f32) -> Result<(), Error> {
        match step.gradients {
            // The step counts on servers, too.
            None => self.client.begin_push(&[])?,
            Some(gradients) => self.begin_push(gradients, step.scale, share, *step.loss)?,
        }
        let pulling = self.client.begin_pull(&groups(&self.rows))?;
        self.client.finish_push()?;
        let pushes = self.client.pushes();
        self.after_push.iter_mut().for_each(|after| after(pushes));
        self.client.finish_pull(pulling, &mut self.pulled)
    }

    fn begin_push(
        &mut self,
        gradients: &[Cow<'_, [f32]>],
        scale: f32,
        share: f32,
        loss: f64,
    ) -> Result<(), Error> {
        let scale = scale * share;
        let scaled = |(gradient, table): (&Cow<'_, [f32]>, &Tabled)| {
            let mut values: Vec<f32> = gradient.iter().map(|value| value * scale).collect();
            values.resize(table.rows * table.width, 0.0);
            values
        };
        let scaled: Vec<Vec<f32>> = gradients.iter().zip(&self.tables).map(scaled).collect();
        let pushed = scaled.iter().zip(&self.rows).zip(0..);
        let pushed = pushed.map(|((values, rows), table)| Gradient { table, rows, values });
        // SGD with rate 1 moves the value from its last to the mean of the ranks' losses.
        let before = self.pulled.last().copied().unwrap_or(0.0);
        let moved = [share * (before - loss as f32)];
        let loss = self.loss.map(|table| Gradient { table, rows: &[0], values: &moved });
        self.client.begin_push(&pushed.chain(loss).collect::<Vec<_>>())
    }

    fn pull(&mut self) -> Result<(), Error> {
        self.client.pull(&groups(&self.rows), &mut self.pulled)
    }

    /// Returns the pulled values of each table, without padding.
    fn values(&self) -> impl Iterator<Item = &[f32]> {
        let mut rest = &self.pulled[..];
        self.tables.iter().map(move |table| {
            let (mine, after) = rest.split_at(table.rows * table.width);
            rest = after;
            &mine[..table.length]
        })
    }
}

/// Returns the definition of a job that begins with these files, if there are any.
///
/// # Errors
/// If they belong to another model.
fn begin(origin: Option<&Origin>, mut definition: Definition) -> Result<Definition, Error> {
    let Some(origin) = origin else { return Ok(definition) };
    if matches!(origin, Origin::Checkpoint(_)) {
        let initial = thinwire_server::Initial::Checkpoint.to_string();
        definition.tables.iter_mut().for_each(|table| table.initial.clone_from(&initial));
    }
    origin.begin(definition)
}

/// Returns the table with the mean loss of all ranks in the last step.
fn loss_table() -> TableDefinition {
    TableDefinition {
        name: LOSS.to_owned(),
        rows: 1,
        width: 1,
        optimizer: "sgd:lr=1".to_owned(),
        initial: "zeros".to_owned(),
        seed: 0,
        stream: 0,
        values: "f32".to_owned(),
    }
}

/// Returns the rows of each table in the form of a pull request.
fn groups(rows: &[Vec<u64>]) -> Vec<(u32, &[u64])> {
    (0..).zip(rows).map(|(table, rows)| (table, &rows[..])).collect()
}

/// Returns a parameter as a table.
fn table(id: TensorId, tensor: &Tensor) -> Tabled {
    let length = tensor.elements();
    // The values of a vector are cut into rows, so that a long one is spread over shards.
    let width = match tensor.shape.len() {
        0 | 1 => length.min(VECTOR_WIDTH),
        _ => length / tensor.shape[0],
    };
    let initial = match tensor.role {
        Role::Parameter(Initial::Normal(deviation)) => format!("normal:{}", deviation as f32),
        Role::Parameter(Initial::Ones) => "constant:1".to_owned(),
        _ => "zeros".to_owned(),
    };
    Tabled {
        name: tensor.name.clone(),
        rows: length.div_ceil(width),
        width,
        length,
        is_matrix: tensor.shape.len() > 1,
        initial,
        stream: id as u32,
    }
}
