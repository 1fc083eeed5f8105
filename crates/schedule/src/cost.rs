//! The cost of a collective operation, by simulation on a clock.
//!
//! All ranks' schedules are simulated as `collective` would run them. Every rank has three resources
//! that serve one task at a time: its processor (ready tasks in the order of the list), its outgoing
//! side of the network and its incoming side (messages in the order in which they come). A message
//! leaves at its sender's bandwidth, its first bit arrives after the latency, and it takes the
//! receiver's incoming side for as long again. If pairs of ranks differ, the messages of a pair also
//! pass one after the other at the pair's rate. Headers take time, but do not count as bytes.
//!
//! If work takes no time, the total time falls as the bandwidth grows, except for anomalies of less
//! than a percent. If processors are busy, it may rise, as it may in reality: tasks that are ready in
//! another order can delay each other (Graham, "Bounds on multiprocessing timing anomalies"). Of
//! 120,000 random cases, mostly of small messages, 50 were slower on a faster link, by at most 16 %.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use thinwire_wire::{HEADER_BYTES, World};

use crate::{Algorithm, Operation, Rates, Schedule, Shape, Trees, all_reduce};

/// Speeds of ranks and of the links between them, the same for all. Work at an infinite rate takes
/// no time.
#[derive(Clone, Debug, PartialEq)]
pub struct Speeds {
    /// Seconds from a bit's departure to its arrival.
    pub latency_s: f64,
    /// Bytes per second that a rank can send, and receive at the same time.
    pub bytes_per_s: f64,
    /// Bytes of f32 values per second that a rank can encode.
    pub encode_per_s: f64,
    /// Bytes of f32 values per second that a rank can decode.
    pub decode_per_s: f64,
    /// Bytes of f32 values per second that a rank can decode and add.
    pub merge_per_s: f64,
    /// Seconds of processor time that every task takes in addition.
    pub task_overhead_s: f64,
}

/// Time, work and traffic of a collective operation. Each field except `seconds` is the largest figure
/// that any rank has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cost {
    /// Seconds from the start until the last rank is done.
    pub seconds: f64,
    /// Seconds from the start until the first message leaves.
    pub lead_seconds: f64,
    /// Seconds that the processor is busy.
    pub cpu_seconds: f64,
    /// Seconds that the outgoing side of the network is busy.
    pub egress_seconds: f64,
    /// Seconds that the incoming side of the network is busy.
    pub ingress_seconds: f64,
    /// Payload bytes sent.
    pub sent_bytes: u64,
    /// Payload bytes received.
    pub received_bytes: u64,
    /// Messages sent.
    pub messages: u64,
}

/// Returns the cost of an all-reduce among `world_size` ranks. `encoded_len` returns the bytes in which
/// a number of elements is encoded.
///
/// Computing it takes time in proportion to the number of all ranks' tasks.
///
/// # Panics
/// If `world_size` is 0 or above [`WORLD_SIZE_MAX`](thinwire_wire::WORLD_SIZE_MAX), or
/// `shape.block` or `shape.partitions` is 0.
pub fn cost(
    algorithm: Algorithm,
    world_size: usize,
    shape: &Shape,
    encoded_len: &dyn Fn(usize) -> usize,
    speeds: &Speeds,
) -> Cost {
    let schedules = everyone(world_size, |world| all_reduce(algorithm, world, shape));
    cost_of(&schedules, encoded_len, speeds)
}

/// Returns the schedules of all ranks, in order of ranks.
pub(crate) fn everyone(size: usize, schedule: impl Fn(World) -> Schedule) -> Vec<Schedule> {
    let world = |rank| World::new(rank, size as u32).expect("a rank below the number of ranks");
    (0..size as u32).map(|rank| schedule(world(rank))).collect()
}

/// Returns the cost of the schedules of all ranks, in order of ranks.
///
/// # Panics
/// If the schedules break their laws; see [`verify`](crate::verify()).
pub fn cost_of(
    schedules: &[Schedule],
    encoded_len: &dyn Fn(usize) -> usize,
    speeds: &Speeds,
) -> Cost {
    cost_in_units(schedules, encoded_len, &Levels::flat(speeds))
}

/// Returns the cost of an all-reduce over `trees`, with the rates of links from `rates`, and everything
/// else from `speeds`.
pub fn cost_of_trees(
    trees: &Trees,
    shape: &Shape,
    encoded_len: &dyn Fn(usize) -> usize,
    speeds: &Speeds,
    rates: &Rates,
) -> Cost {
    let schedules = everyone(trees.ranks(), |world| trees.all_reduce(world, shape));
    let levels = Levels { rates: Some(rates), ..Levels::flat(speeds) };
    cost_in_units(&schedules, encoded_len, &levels)
}

/// Units of neighbouring ranks, and the speeds within a unit and between units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Levels<'a> {
    /// The number of ranks in a unit, at least 1.
    pub unit: usize,
    /// Links between ranks of one unit, and work on values that are raw.
    pub within: &'a Speeds,
    /// Links between ranks of different units, and work on encodings.
    pub between: &'a Speeds,
    /// Rates of messages that replace those of `within` and `between`, if ranks or pairs differ.
    pub rates: Option<&'a Rates>,
}

impl<'a> Levels<'a> {
    /// Returns levels without units: all links and all ranks are alike.
    pub const fn flat(speeds: &'a Speeds) -> Levels<'a> {
        Levels { unit: 1, within: speeds, between: speeds, rates: None }
    }

    /// Gives a message the rates of its ranks and of its pair.
    fn set_rates(&self, item: &mut Item, peer: usize, speeds: &Speeds) {
        let Some(rates) = self.rates else { return };
        let wire_bytes = item.wire_s * speeds.bytes_per_s;
        item.wire_s = wire_bytes / rates.rank(item.host);
        item.pair = item.host * rates.ranks() + peer;
        item.pair_s = wire_bytes / rates.pair(item.host, peer);
    }

    /// Returns the level of a task, 1 between units, and its speeds.
    fn of(&self, schedule: &Schedule, operation: &Operation, host: usize) -> (usize, &'a Speeds) {
        let within = match operation {
            Operation::Send { to: peer, .. } | Operation::Recv { from: peer, .. } => {
                peer.index() / self.unit == host / self.unit
            }
            _ => schedule.is_raw(operation.slot()),
        };
        if within { (0, self.within) } else { (1, self.between) }
    }
}

/// Returns the cost of the schedules of all ranks, in order of ranks, if links within a unit and links
/// between units have different speeds. Each rank sends and receives on both kinds of links at the same
/// time.
///
/// # Panics
/// If the schedules break their laws; see [`verify`](crate::verify()).
pub fn cost_in_units(
    schedules: &[Schedule],
    encoded_len: &dyn Fn(usize) -> usize,
    levels: &Levels<'_>,
) -> Cost {
    let mut timeline = Timeline::new(schedules, encoded_len, levels);
    timeline.start();
    while let Some(Reverse((time, event))) = timeline.events.pop() {
        timeline.happen(f64::from_bits(time), event);
    }
    assert!(
        timeline.waits.iter().all(|waits| *waits == 0),
        "a task of the schedules waits for ever"
    );
    let mut total = Cost::default();
    for host in timeline.hosts {
        let cost = host.cost;
        total.seconds = total.seconds.max(cost.seconds);
        total.lead_seconds = total.lead_seconds.max(cost.lead_seconds);
        total.cpu_seconds = total.cpu_seconds.max(cost.cpu_seconds);
        total.egress_seconds = total.egress_seconds.max(cost.egress_seconds);
        total.ingress_seconds = total.ingress_seconds.max(cost.ingress_seconds);
        total.sent_bytes = total.sent_bytes.max(cost.sent_bytes);
        total.received_bytes = total.received_bytes.max(cost.received_bytes);
        total.messages = total.messages.max(cost.messages);
    }
    total
}

/// An event of a task; tasks are numbered over all ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The processor is done with the task.
    Worked(u32),
    /// The message of the task has left.
    Left(u32),
    /// The first bit of the message arrives.
    Arrives(u32),
    /// The last bit of the message has arrived.
    Arrived(u32),
}

/// One task of any rank.
pub(crate) struct Item {
    host: usize,
    /// Seconds on the processor.
    pub(crate) work_s: f64,
    /// For a message, seconds on either side of the network, and its payload.
    pub(crate) wire_s: f64,
    pub(crate) bytes: u64,
    /// Of a message: 0 within a unit, 1 between units.
    level: usize,
    latency_s: f64,
    /// For a message, if pairs differ: the pair, and the seconds that the message takes between its two
    /// ranks.
    pair: usize,
    pair_s: f64,
    /// For a recv, if pairs differ: the earliest time at which the last bit arrives.
    passed_s: f64,
    /// For a send, its recv.
    recv: Option<u32>,
}

impl Item {
    pub(crate) fn new(
        operation: &Operation,
        host: usize,
        elements: usize,
        bytes: usize,
        speeds: &Speeds,
    ) -> Item {
        let f32_bytes = (elements * size_of::<f32>()) as f64;
        let (work_s, wire_bytes) = match operation {
            Operation::Encode { .. } => (f32_bytes / speeds.encode_per_s, 0),
            Operation::Merge { .. } => (f32_bytes / speeds.merge_per_s, 0),
            Operation::Decode { .. } => (f32_bytes / speeds.decode_per_s, 0),
            Operation::Send { .. } | Operation::Recv { .. } => (0.0, bytes + HEADER_BYTES),
        };
        let wire_s = wire_bytes as f64 / speeds.bytes_per_s;
        let work_s = work_s + speeds.task_overhead_s;
        let latency_s = speeds.latency_s;
        let bytes = bytes as u64;
        let (pair, pair_s, passed_s) = (0, 0.0, 0.0);
        Item {
            host,
            work_s,
            wire_s,
            bytes,
            level: 0,
            latency_s,
            pair,
            pair_s,
            passed_s,
            recv: None,
        }
    }
}

/// One rank's resources.
#[derive(Default)]
struct Host {
    busy: bool,
    ready: BinaryHeap<Reverse<u32>>,
    /// By level.
    egress_free_s: [f64; 2],
    ingress_free_s: [f64; 2],
    cost: Cost,
}

struct Timeline {
    items: Vec<Item>,
    /// For every task, the number of tasks for which it still waits; if it is a recv, its message
    /// counts too.
    waits: Vec<u32>,
    /// The tasks that wait for the first task, for the second, and so on.
    followers: Vec<u32>,
    /// For every task, where its followers begin.
    first_followers: Vec<u32>,
    hosts: Vec<Host>,
    /// For every pair of ranks, the time at which all its messages have passed; empty if pairs are
    /// alike.
    pairs_free_s: Vec<f64>,
    /// Times and events. The bits of a number that is not negative have the order of the numbers.
    events: BinaryHeap<Reverse<(u64, Event)>>,
}

impl Timeline {
    fn new(
        schedules: &[Schedule],
        encoded_len: &dyn Fn(usize) -> usize,
        levels: &Levels<'_>,
    ) -> Timeline {
        let (mut items, mut waits, mut edges) = (Vec::new(), Vec::new(), Vec::new());
        let (mut sends, mut recvs) = (Vec::new(), Vec::new());
        for (host, schedule) in schedules.iter().enumerate() {
            let first = items.len() as u32;
            let lengths = schedule.bytes(encoded_len);
            for task in &schedule.tasks {
                let (id, operation) = (items.len() as u32, &task.operation);
                let slot = operation.slot().index();
                let is_recv = match operation {
                    Operation::Send { to, message, .. } => {
                        sends.push(((host as u32, to.0, *message), id));
                        false
                    }
                    Operation::Recv { from, message, .. } => {
                        recvs.push(((from.0, host as u32, *message), id));
                        true
                    }
                    _ => false,
                };
                let (level, speeds) = levels.of(schedule, operation, host);
                let mut item =
                    Item::new(operation, host, schedule.slots[slot], lengths[slot], speeds);
                if let Operation::Send { to: peer, .. } | Operation::Recv { from: peer, .. } =
                    operation
                {
                    levels.set_rates(&mut item, peer.index(), speeds);
                }
                items.push(Item { level, ..item });
                waits.push(task.after.len() as u32 + u32::from(is_recv));
                edges.extend(task.after.iter().map(|after| (first + after, id)));
            }
        }
        link(&mut items, sends, recvs);
        let (followers, first_followers) = group(&edges, items.len());
        let hosts = schedules.iter().map(|_| Host::default()).collect();
        let events = BinaryHeap::new();
        let pairs = levels.rates.map_or(0, |rates| rates.ranks() * rates.ranks());
        let pairs_free_s = vec![0.0; pairs];
        Timeline { items, waits, followers, first_followers, hosts, pairs_free_s, events }
    }

    fn start(&mut self) {
        for task in (0..self.items.len()).filter(|task| self.waits[*task] == 0) {
            self.hosts[self.items[task].host].ready.push(Reverse(task as u32));
        }
        (0..self.hosts.len()).for_each(|host| self.dispatch(0.0, host));
    }

    fn happen(&mut self, now: f64, event: Event) {
        let host = match event {
            Event::Worked(task) => {
                let host = self.items[task as usize].host;
                self.hosts[host].busy = false;
                self.worked(now, task);
                host
            }
            Event::Left(task) => {
                self.done(now, task);
                self.items[task as usize].host
            }
            Event::Arrives(task) => return self.arrives(now, task),
            Event::Arrived(task) => {
                self.release(task);
                self.items[task as usize].host
            }
        };
        self.dispatch(now, host);
    }

    fn schedule(&mut self, time: f64, event: Event) {
        self.events.push(Reverse((time.to_bits(), event)));
    }

    /// Gives an idle processor the first ready task in the order of the list.
    fn dispatch(&mut self, now: f64, host: usize) {
        while !self.hosts[host].busy {
            let Some(Reverse(task)) = self.hosts[host].ready.pop() else { return };
            let work_s = self.items[task as usize].work_s;
            if work_s == 0.0 {
                self.worked(now, task);
                continue;
            }
            self.hosts[host].busy = true;
            self.hosts[host].cost.cpu_seconds += work_s;
            self.schedule(now + work_s, Event::Worked(task));
        }
    }

    /// Ends the processor's part of a task: messages continue to the network.
    fn worked(&mut self, now: f64, task: u32) {
        let Item { host, wire_s, bytes, level, latency_s, pair, pair_s, recv, .. } =
            self.items[task as usize];
        let Some(recv) = recv else { return self.done(now, task) };
        let host = &mut self.hosts[host];
        let start = host.egress_free_s[level].max(now);
        if host.cost.messages == 0 {
            host.cost.lead_seconds = start;
        }
        host.egress_free_s[level] = start + wire_s;
        host.cost.egress_seconds += wire_s;
        host.cost.sent_bytes += bytes;
        host.cost.messages += 1;
        if let Some(free_s) = self.pairs_free_s.get_mut(pair) {
            *free_s = free_s.max(start) + pair_s;
            self.items[recv as usize].passed_s = *free_s + latency_s;
        }
        self.schedule(start + wire_s, Event::Left(task));
        self.schedule(start + latency_s, Event::Arrives(recv));
    }

    fn arrives(&mut self, now: f64, task: u32) {
        let Item { host, wire_s, bytes, level, passed_s, .. } = self.items[task as usize];
        let host = &mut self.hosts[host];
        let end = host.ingress_free_s[level].max(now) + wire_s;
        host.ingress_free_s[level] = end;
        host.cost.ingress_seconds += wire_s;
        host.cost.received_bytes += bytes;
        self.schedule(end.max(passed_s), Event::Arrived(task));
    }

    fn done(&mut self, now: f64, task: u32) {
        let cost = &mut self.hosts[self.items[task as usize].host].cost;
        cost.seconds = cost.seconds.max(now);
        let first = self.first_followers[task as usize] as usize;
        let last = self.first_followers[task as usize + 1] as usize;
        (first..last).for_each(|place| self.release(self.followers[place]));
    }

    /// Counts one thing less to wait for.
    fn release(&mut self, task: u32) {
        self.waits[task as usize] -= 1;
        if self.waits[task as usize] == 0 {
            self.hosts[self.items[task as usize].host].ready.push(Reverse(task));
        }
    }
}

/// A message's sender, receiver and number, and the task at one end.
type End = ((u32, u32, u32), u32);

/// Tells every send its recv.
fn link(items: &mut [Item], mut sends: Vec<End>, mut recvs: Vec<End>) {
    sends.sort_unstable();
    recvs.sort_unstable();
    assert_eq!(sends.len(), recvs.len(), "sends and recvs of the schedules");
    for ((send_key, send), (recv_key, recv)) in sends.into_iter().zip(recvs) {
        assert_eq!(send_key, recv_key, "sender, receiver and number of a message");
        items[send as usize].recv = Some(recv);
    }
}

/// Groups pairs of a task and one that waits for it by the former (counting sort).
fn group(edges: &[(u32, u32)], tasks: usize) -> (Vec<u32>, Vec<u32>) {
    let mut first = vec![0; tasks + 2];
    edges.iter().for_each(|(task, _)| first[*task as usize + 2] += 1);
    (0..tasks).for_each(|task| first[task + 2] += first[task + 1]);
    let mut followers = vec![0; edges.len()];
    for (task, follower) in edges {
        let place = &mut first[*task as usize + 1];
        followers[*place as usize] = *follower;
        *place += 1;
    }
    (followers, first)
}
