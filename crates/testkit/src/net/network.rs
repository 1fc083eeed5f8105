//! The network: nodes, links and clock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use super::{Action, Birth, Event, Fault, Node, Random, Weather};

/// Largest number of nodes of a network.
const NODES_MAX: usize = 64;
/// Largest number of events at one instant; with more, a node is waking itself forever.
const EVENTS_AT_ONCE_MAX: u32 = 100_000;
/// Lines of the trace that a network keeps.
const TRACE_LINES_MAX: usize = 200;

enum Entry<M> {
    Node { node: usize, life: u32, event: Event<M> },
    Wake { node: usize, life: u32, wish: u64 },
    Fault(Fault),
}

struct JobAddress<N: Node> {
    node: Option<N>,
    life: u32,
    saved: Option<Vec<u8>>,
    /// Number of the last request to be woken.
    wish: u64,
    /// Number of actions of the next event after which the node is killed.
    falters: Option<usize>,
    is_paused: bool,
    held: Vec<Event<N::Message>>,
    /// A bit for every node whose messages do not arrive here.
    cut: u64,
}

/// Network of up to 64 nodes.
pub struct Net<N: Node> {
    seats: Vec<JobAddress<N>>,
    make: Box<dyn FnMut(Birth) -> N>,
    queue: Queue<Entry<N::Message>>,
    random: Random,
    weather: Weather,
    now: u64,
    /// Number of events at this instant.
    at_once: u32,
    digest: u64,
    trace: Option<VecDeque<String>>,
}

impl<N: Node> Net<N> {
    /// Creates a network of `nodes` nodes that start at time zero.
    ///
    /// # Panics
    /// If there are more than 64 nodes.
    pub fn new(
        seed: u64,
        nodes: usize,
        weather: Weather,
        make: impl FnMut(Birth) -> N + 'static,
    ) -> Net<N> {
        assert!(nodes <= NODES_MAX, "{nodes} nodes, expected at most {NODES_MAX}");
        let job_address = || JobAddress {
            node: None,
            life: 0,
            saved: None,
            wish: 0,
            falters: None,
            is_paused: false,
            held: Vec::new(),
            cut: 0,
        };
        let mut net = Net {
            seats: (0..nodes).map(|_| job_address()).collect(),
            make: Box::new(make),
            queue: Queue::new(),
            random: Random::new(seed),
            weather,
            now: 0,
            at_once: 0,
            digest: 0,
            trace: None,
        };
        (0..nodes).for_each(|node| net.fault(Duration::ZERO, Fault::Boot(node)));
        net
    }

    /// Keeps a trace from now on, for [`Net::trace`].
    pub fn record(&mut self) {
        self.trace = Some(VecDeque::new());
    }

    /// Returns the last 200 events and faults that were recorded, one per line.
    pub fn trace(&self) -> String {
        self.trace.iter().flatten().fold(String::new(), |text, line| text + line + "\n")
    }

    /// Returns a hash of all events so far: times, nodes and kinds.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Returns the time.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.now)
    }

    /// Returns a node, unless it is down.
    pub fn node(&self, node: usize) -> Option<&N> {
        self.seats[node].node.as_ref()
    }

    /// Returns a node, unless it is down.
    pub fn node_mut(&mut self, node: usize) -> Option<&mut N> {
        self.seats[node].node.as_mut()
    }

    /// Returns whether a node is stopped.
    pub fn is_paused(&self, node: usize) -> bool {
        self.seats[node].is_paused
    }

    /// Schedules a fault.
    pub fn fault(&mut self, at: Duration, fault: Fault) {
        self.queue.push(at.as_nanos() as u64, Entry::Fault(fault));
    }

    /// Schedules an order to a node; it also reaches the node after a restart.
    pub fn order(&mut self, at: Duration, node: usize, message: N::Message) {
        let event = Event::Order(message);
        self.queue.push(at.as_nanos() as u64, Entry::Node { node, life: u32::MAX, event });
    }

    /// Processes everything that is due by `end`, up to the next event of a node, and returns that node. If
    /// there is none, sets the clock to `end` and returns `None`.
    ///
    /// # Panics
    /// If nodes wake themselves again and again at one instant.
    pub fn step(&mut self, end: Duration) -> Option<usize> {
        let end = end.as_nanos() as u64;
        loop {
            let Some((at, entry)) = self.queue.pop(end) else {
                self.now = self.now.max(end);
                return None;
            };
            self.proceed(at);
            let node = match entry {
                Entry::Fault(fault) => self.befall(fault),
                Entry::Wake { node, life, wish } => {
                    let is_due = self.seats[node].wish == wish;
                    is_due.then(|| self.reach(node, life, Event::Wake)).flatten()
                }
                Entry::Node { node, life, event } => self.reach(node, life, event),
            };
            if node.is_some() {
                return node;
            }
        }
    }

    fn proceed(&mut self, at: u64) {
        self.at_once = if at > self.now { 0 } else { self.at_once + 1 };
        self.now = self.now.max(at);
        assert!(
            self.at_once < EVENTS_AT_ONCE_MAX,
            "time stands still at {} ns:\n{}",
            self.now,
            self.trace()
        );
    }

    /// Delivers an event to a node, if the node has not restarted since; keeps it while the node is
    /// stopped.
    fn reach(&mut self, node: usize, life: u32, event: Event<N::Message>) -> Option<usize> {
        let job_address = &mut self.seats[node];
        let is_blocked = matches!(event, Event::Message { from, .. } | Event::Closed { peer: from }
            if job_address.cut >> from & 1 == 1);
        if job_address.node.is_none()
            || (life != u32::MAX && life != job_address.life)
            || is_blocked
        {
            return None;
        }
        if job_address.is_paused {
            job_address.held.push(event);
            return None;
        }
        self.note(node, &event);
        let now = self.now();
        let actions = self.seats[node].node.as_mut().expect("it is up").on(event, now);
        self.perform(node, actions);
        Some(node)
    }

    fn perform(&mut self, node: usize, mut actions: Vec<Action<N::Message>>) {
        let falters = self.seats[node].falters.take();
        if let Some(after) = falters {
            actions.truncate(after);
        }
        for action in actions {
            match action {
                Action::Send { to, message } => self.send(node, to, message),
                Action::Wake(at) => self.wake(node, at),
                Action::Save(bytes) => self.seats[node].saved = Some(bytes),
                Action::Exit => self.kill(node),
            }
        }
        if falters.is_some() {
            self.kill(node);
        }
    }

    fn send(&mut self, from: usize, to: usize, message: N::Message) {
        let life = self.seats[to].life;
        // Messages of a node to itself are as safe as its memory.
        let (loss, duplication) =
            if from == to { (0.0, 0.0) } else { (self.weather.loss, self.weather.duplication) };
        if self.seats[to].cut >> from & 1 == 1 || self.random.chance(loss) {
            return;
        }
        if self.random.chance(duplication) {
            let event = Event::Message { from, message: message.clone() };
            self.later(Entry::Node { node: to, life, event });
        }
        self.later(Entry::Node { node: to, life, event: Event::Message { from, message } });
    }

    fn later(&mut self, entry: Entry<N::Message>) {
        let mut delay = self.random.time(&self.weather.delay);
        if self.random.chance(self.weather.lateness) {
            delay += self.random.time(&(Duration::ZERO..self.weather.late));
        }
        self.queue.push(self.now + delay.as_nanos() as u64, entry);
    }

    fn wake(&mut self, node: usize, at: Duration) {
        let job_address = &mut self.seats[node];
        job_address.wish += 1;
        let entry = Entry::Wake { node, life: job_address.life, wish: job_address.wish };
        self.queue.push((at.as_nanos() as u64).max(self.now), entry);
    }

    fn befall(&mut self, fault: Fault) -> Option<usize> {
        if let Some(trace) = &mut self.trace {
            push_line(trace, format!("{:>12} ns  {fault:?}", self.now));
        }
        match fault {
            Fault::Kill(node) => self.kill(node),
            Fault::PowerOff(node) => self.power_off(node),
            Fault::Falter { node, after } => self.seats[node].falters = Some(after),
            Fault::Boot(node) => return self.boot(node),
            Fault::Pause(node) => self.seats[node].is_paused = true,
            Fault::Resume(node) => self.resume(node),
            Fault::Cut { from, to } => self.seats[to].cut |= 1 << from,
            Fault::Split { side } => self.split(side),
            Fault::Heal => self.seats.iter_mut().for_each(|job_address| job_address.cut = 0),
            Fault::Weather(weather) => self.weather = weather,
        }
        None
    }

    fn kill(&mut self, node: usize) {
        if self.seats[node].node.is_none() {
            return;
        }
        self.power_off(node);
        // A connection closes after its last bytes.
        let late = if self.weather.lateness > 0.0 { self.weather.late } else { Duration::ZERO };
        let at = self.now + (self.weather.delay.end + late).as_nanos() as u64;
        for other in (0..self.seats.len()).filter(|other| *other != node) {
            let life = self.seats[other].life;
            let event = Event::Closed { peer: node };
            self.queue.push(at, Entry::Node { node: other, life, event });
        }
    }

    fn power_off(&mut self, node: usize) {
        let job_address = &mut self.seats[node];
        (job_address.node, job_address.falters, job_address.is_paused) = (None, None, false);
        job_address.held.clear();
        job_address.life += 1;
    }

    fn boot(&mut self, node: usize) -> Option<usize> {
        let job_address = &mut self.seats[node];
        if job_address.node.is_some() {
            return None;
        }
        let (life, now) = (job_address.life, Duration::from_nanos(self.now));
        let birth = Birth { node, life, now, saved: job_address.saved.clone() };
        job_address.node = Some((self.make)(birth));
        self.reach(node, life, Event::Boot)
    }

    fn resume(&mut self, node: usize) {
        let job_address = &mut self.seats[node];
        job_address.is_paused = false;
        let life = job_address.life;
        for event in std::mem::take(&mut job_address.held) {
            self.queue.push(self.now, Entry::Node { node, life, event });
        }
    }

    fn split(&mut self, side: u64) {
        for (node, job_address) in self.seats.iter_mut().enumerate() {
            let is_set = side >> node & 1 == 1;
            job_address.cut |= if is_set { !side } else { side };
        }
    }

    fn note(&mut self, node: usize, event: &Event<N::Message>) {
        let (kind, from) = match event {
            Event::Boot => (0, 0),
            Event::Message { from, .. } => (1, *from),
            Event::Order(_) => (2, 0),
            Event::Closed { peer } => (3, *peer),
            Event::Wake => (4, 0),
        };
        let word = self.now ^ (node as u64) << 48 ^ (from as u64) << 54 ^ kind << 60;
        self.digest = (self.digest.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        if let Some(trace) = &mut self.trace {
            push_line(trace, format!("{:>12} ns  node {node}  {event:?}", self.now));
        }
    }
}

fn push_line(trace: &mut VecDeque<String>, line: String) {
    if trace.len() == TRACE_LINES_MAX {
        trace.pop_front();
    }
    trace.push_back(line);
}

/// Queue of values with times in nanoseconds; equal times keep the order of pushing.
struct Queue<T> {
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
    // Values lie beside the heap, which moves small keys only.
    values: Vec<Option<T>>,
    free: Vec<usize>,
    pushed: u64,
}

impl<T> Queue<T> {
    fn new() -> Queue<T> {
        Queue { heap: BinaryHeap::new(), values: Vec::new(), free: Vec::new(), pushed: 0 }
    }

    fn push(&mut self, at: u64, value: T) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.values.push(None);
            self.values.len() - 1
        });
        self.values[slot] = Some(value);
        self.heap.push(Reverse((at, self.pushed, slot)));
        self.pushed += 1;
    }

    /// Removes and returns the next value with its time, if it is due by `end`.
    fn pop(&mut self, end: u64) -> Option<(u64, T)> {
        let Reverse((at, _, slot)) = *self.heap.peek()?;
        if at > end {
            return None;
        }
        self.heap.pop();
        self.free.push(slot);
        Some((at, self.values[slot].take().expect("a slot in the heap has a value")))
    }
}
