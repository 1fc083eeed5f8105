//! Slots at run time: their contents, which may still be under way, and the messages between them.
//!
//! A reader of a slot waits for its content, so every exchange overlaps with the computation between its
//! start and its first reader.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use thinwire_collective::{Address, Program as Bound};
use thinwire_program::{Convert, Program, Rearrange, Slot};
use thinwire_schedule as schedule;
use thinwire_sync::{Channel, Outcome};
use thinwire_wire::Rank;

use super::async_exchanges::{AsyncExchanges, BoundPhase, Exchange, Priority, Ticket, finish};
use super::value::Value;
use crate::error::Error;

/// Name of messages of slots in errors.
const MESSAGE: &str = "a message between stages";

/// Content of a slot.
#[derive(Debug)]
pub enum Content {
    /// A value.
    Here(Value),
    /// A value that is under way.
    Coming(Ticket),
}

/// This rank's end of a message between stages.
#[derive(Clone, Copy, Debug)]
pub struct MessageEnd {
    /// The slot that is sent, or into which the message is received.
    pub slot: Slot,
    /// The rank at the other end.
    pub peer: Rank,
    /// The message's number in the program.
    pub number: u32,
}

/// Micro-batch and priority of an exchange.
#[derive(Clone, Copy, Debug)]
pub struct When {
    /// A number for the exchange's micro-batch, equal on all ranks.
    pub micro_batch_number: u64,
    /// Priority of the exchange.
    pub priority: Priority,
}

impl When {
    /// Returns the values for an exchange whose result is needed next.
    pub fn next(micro_batch_number: u64) -> When {
        When { micro_batch_number, priority: Priority::Next }
    }

    /// Returns the values for an exchange whose result is needed at the end of the step, or in the next one.
    pub fn later(micro_batch_number: u64) -> When {
        When { micro_batch_number, priority: Priority::Later }
    }
}

/// All slots of a rank, and its exchanges.
#[derive(Debug)]
pub struct Slots {
    /// The exchanges.
    pub exchanges: AsyncExchanges,
    /// Contents of micro-batches.
    held: HashMap<(usize, Slot), Content>,
    /// Contents that remain from step to step.
    lasting: HashMap<Slot, Content>,
    /// Residuals of codecs.
    pub residuals: Residuals,
    /// Messages that may not have been sent yet.
    outgoing: Vec<Ticket>,
    /// Number of gathers of all ranks so far.
    gathers: u64,
    /// Seconds so far of waiting for exchanges.
    pub waited_s: Cell<f64>,
}

impl Slots {
    /// Returns slots that are all empty.
    pub fn new(channel: Channel) -> Slots {
        Slots {
            exchanges: AsyncExchanges::new(channel),
            held: HashMap::new(),
            lasting: HashMap::new(),
            residuals: Residuals::default(),
            outgoing: Vec::new(),
            gathers: 0,
            waited_s: Cell::default(),
        }
    }

    /// Gathers the numbers of all ranks, and counts the time of waiting for them.
    ///
    /// # Errors
    /// If a peer is lost or disagrees.
    pub fn gather_waiting(&mut self, mine: &[f32]) -> Result<Vec<f32>, Error> {
        let started = Instant::now();
        let all = self.gather(mine);
        self.waited_s.update(|waited_s| waited_s + started.elapsed().as_secs_f64());
        all
    }

    /// Gathers the numbers of all ranks, in the order of ranks.
    ///
    /// # Errors
    /// If a peer is lost or disagrees.
    pub fn gather(&mut self, mine: &[f32]) -> Result<Vec<f32>, Error> {
        self.gathers += 1;
        finish(&self.exchanges.gather(mine, self.gathers))
    }

    /// Stores a content in a slot of a micro-batch.
    pub fn put(&mut self, micro_batch: usize, slot: Slot, content: Content) {
        self.held.insert((micro_batch, slot), content);
    }

    /// Returns whether a slot of a micro-batch has a content.
    pub fn is_filled(&self, micro_batch: usize, slot: Slot) -> bool {
        self.held.contains_key(&(micro_batch, slot))
    }

    /// Fills a lasting slot.
    pub fn put_lasting(&mut self, slot: Slot, content: Content) {
        self.lasting.insert(slot, content);
    }

    /// Empties a slot of a micro-batch.
    pub fn free(&mut self, micro_batch: usize, slot: Slot) {
        self.held.remove(&(micro_batch, slot));
    }

    /// Empties all slots of all micro-batches.
    pub fn clear(&mut self) {
        self.held.clear();
    }

    /// Returns the number of elements that micro-batches hold.
    pub fn elements(&self, program: &Program) -> usize {
        let sizes =
            self.held.keys().map(|(_, slot)| program.slots[*slot].shape.iter().product::<usize>());
        sizes.sum()
    }

    /// Returns the value of a slot, waiting for it if necessary.
    ///
    /// # Errors
    /// If a peer is lost or disagrees.
    pub fn value(
        &mut self,
        program: &Program,
        micro_batch: usize,
        slot: Slot,
    ) -> Result<Value, Error> {
        let content = match self.lasting.get_mut(&slot) {
            Some(content) => content,
            None => self.held.get_mut(&(micro_batch, slot)).expect("filled before it is read"),
        };
        arrived(content, &program.slots[slot].shape, &self.waited_s)
    }

    /// Returns the value of a content, waiting for it if necessary.
    ///
    /// # Errors
    /// If a peer is lost or disagrees.
    pub fn arrived(&self, mut content: Content, shape: &[usize]) -> Result<Value, Error> {
        arrived(&mut content, shape, &self.waited_s)
    }

    /// Starts a collective. A gradient is sent with the codec and algorithm that were chosen for it, and
    /// with the residual that its codec has left.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn convert(
        &mut self,
        program: &Program,
        convert: &Convert,
        value: &Value,
        when: When,
    ) -> Result<Content, Error> {
        if program.mesh.sizes[convert.step.mesh_dim] == 1 {
            return Ok(Content::Here(value.reshaped(&program.slots[convert.to].shape)));
        }
        let transfer = program.transfer(convert);
        let owed = transfer.owed();
        let before = transfer.before.iter();
        let values = before.fold(value.floats().to_vec(), |values, reform| reform.apply(values));
        if transfer.phases.is_empty() {
            let shape = &program.slots[convert.to].shape;
            return Ok(Content::Here(Value::new(shape, values)));
        }
        let members = program.mesh.group(convert.step.mesh_dim);
        let residual = owed.map(|elements| self.residuals.take(convert.number, elements));
        let exchange = Exchange {
            address: Address::counted(
                when.micro_batch_number,
                convert.number,
                "a change of layout",
            ),
            random_group: program.mesh.random_group(&program.slots[convert.from].layout),
            phases: transfer
                .phases
                .into_iter()
                .map(|phase| BoundPhase::of_phase(phase, &members))
                .collect(),
            residual: residual.transpose()?,
            priority: when.priority,
        };
        let (values, residual) = self.exchanges.start(values, exchange);
        if owed.is_some() {
            self.residuals.put(convert.number, residual);
        }
        Ok(Content::Coming(values))
    }

    /// Runs one collective after the other, without waiting for the last one.
    ///
    /// # Errors
    /// If a peer is lost or disagrees.
    pub fn chain(
        &mut self,
        program: &Program,
        converts: &[Convert],
        mut content: Content,
        when: When,
    ) -> Result<Content, Error> {
        for convert in converts {
            let value = self.arrived(content, &program.slots[convert.from].shape)?;
            content = self.convert(program, convert, &value, when)?;
        }
        Ok(content)
    }

    /// Starts a message to another rank with the content of a slot.
    pub fn send(
        &mut self,
        program: &Program,
        MessageEnd { slot, peer, number }: MessageEnd,
        values: Vec<f32>,
        when: When,
    ) {
        let schedule = schedule::send(peer, values.len());
        let bound = Bound::plain(schedule, values.len(), program.message_codec(slot, peer));
        // Nobody wants them back, and many messages may be under way.
        let phase =
            BoundPhase { program: Arc::new(bound), own: None, after: vec![Rearrange::Take(0..0)] };
        let exchange = Exchange {
            address: Address::counted(when.micro_batch_number, number, MESSAGE),
            random_group: program.mesh.random_group(&program.slots[slot].layout),
            phases: vec![phase],
            residual: None,
            priority: when.priority,
        };
        self.outgoing.push(self.exchanges.start(values, exchange).0);
    }

    /// Waits until all messages have been sent.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.outgoing.drain(..).try_for_each(|ticket| finish(&ticket).map(drop))
    }

    /// Begins to receive a message from another rank, into a slot.
    pub fn recv(
        &self,
        program: &Program,
        MessageEnd { slot, peer, number }: MessageEnd,
        micro_batch_number: u64,
    ) -> Content {
        let elements = program.slots[slot].shape.iter().product();
        let schedule = schedule::recv(peer, elements);
        let bound = Bound::plain(schedule, elements, program.message_codec(slot, peer));
        let phase = BoundPhase { program: Arc::new(bound), own: None, after: Vec::new() };
        let exchange = Exchange {
            address: Address::counted(micro_batch_number, number, MESSAGE),
            random_group: program.mesh.random_group(&program.slots[slot].layout),
            phases: vec![phase],
            residual: None,
            priority: Priority::Next,
        };
        Content::Coming(self.exchanges.start(vec![0.0; elements], exchange).0)
    }
}

/// Residuals of gradients' codecs, by the number of the exchange.
///
/// In a step, residuals are added to the gradients that are sent, and the exchange returns new
/// residuals. Law: results plus the residuals after the exchange equal gradients plus the residuals
/// before it. A skipped step changes nothing: earlier residuals are kept until the outcome of the step
/// is known.
#[derive(Debug, Default)]
pub struct Residuals {
    /// All residuals between two steps.
    pub here: BTreeMap<u32, Vec<f32>>,
    coming: HashMap<u32, Ticket>,
    /// Residuals before the step, if the step has changed them.
    before: BTreeMap<u32, Vec<f32>>,
}

impl Residuals {
    /// Returns the residual of an exchange of `elements` elements, to be sent with the next one.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn take(&mut self, number: u32, elements: usize) -> Result<Vec<f32>, Error> {
        self.arrive(number)?;
        let owed = self.here.remove(&number).unwrap_or_else(|| vec![0.0; elements]);
        self.before.entry(number).or_insert_with(|| owed.clone());
        Ok(owed)
    }

    /// Stores a residual that is under way.
    pub fn put(&mut self, number: u32, ticket: Ticket) {
        self.coming.insert(number, ticket);
    }

    /// Ends a step.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn settle(&mut self, outcome: Outcome) -> Result<(), Error> {
        let numbers: Vec<u32> = self.coming.keys().copied().collect();
        numbers.into_iter().try_for_each(|number| self.arrive(number))?;
        let before = std::mem::take(&mut self.before);
        if outcome == Outcome::Skipped {
            self.here.extend(before);
        }
        Ok(())
    }

    fn arrive(&mut self, number: u32) -> Result<(), Error> {
        if let Some(ticket) = self.coming.remove(&number) {
            self.here.insert(number, finish(&ticket)?);
        }
        Ok(())
    }
}

/// Returns the value of a content, waiting for it if it is under way.
fn arrived(content: &mut Content, shape: &[usize], waited_s: &Cell<f64>) -> Result<Value, Error> {
    if let Content::Coming(ticket) = content {
        let started = Instant::now();
        let values = finish(ticket)?;
        waited_s.update(|waited_s| waited_s + started.elapsed().as_secs_f64());
        *content = Content::Here(Value::new(shape, values));
    }
    match content {
        Content::Here(value) => Ok(value.clone()),
        Content::Coming(_) => unreachable!("it has just come"),
    }
}
