//! Laws of the simulated network.

use std::time::Duration;

use thinwire_testkit::net::{Action, Birth, Event, Fault, Net, Node, Random, Weather};

const MS: Duration = Duration::from_millis(1);

/// Node that counts what it receives, saves the number, and sends a number to each peer every 10 ms.
struct Gossip {
    node: usize,
    nodes: usize,
    life: u32,
    received: Vec<(usize, u64)>,
    sent: u64,
    saved: u64,
    closed: Vec<usize>,
}

impl Gossip {
    fn new(birth: Birth, nodes: usize) -> Gossip {
        let saved = birth.saved.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
        Gossip {
            node: birth.node,
            nodes,
            life: birth.life,
            received: Vec::new(),
            sent: 0,
            saved,
            closed: Vec::new(),
        }
    }
}

impl Node for Gossip {
    type Message = u64;

    fn on(&mut self, event: Event<u64>, now: Duration) -> Vec<Action<u64>> {
        match event {
            Event::Message { from, message } => self.received.push((from, message)),
            Event::Closed { peer } => self.closed.push(peer),
            Event::Order(_) => return vec![Action::Exit],
            Event::Boot | Event::Wake => {
                self.sent += 1;
                self.saved += 1;
                let me = self.node;
                let sends = (0..self.nodes).filter(|to| *to != me);
                let mut actions: Vec<_> =
                    sends.map(|to| Action::Send { to, message: self.sent }).collect();
                actions.push(Action::Save(self.saved.to_le_bytes().to_vec()));
                actions.push(Action::Wake(now + 10 * MS));
                return actions;
            }
        }
        Vec::new()
    }
}

fn net(seed: u64, nodes: usize, weather: Weather) -> Net<Gossip> {
    Net::new(seed, nodes, weather, move |birth| Gossip::new(birth, nodes))
}

fn run(net: &mut Net<Gossip>, until: Duration) {
    while net.step(until).is_some() {}
}

fn storm() -> Weather {
    Weather { loss: 0.1, duplication: 0.1, lateness: 0.2, late: 50 * MS, ..Weather::calm() }
}

/// Runs a schedule of random faults.
fn stormy(seed: u64) -> Net<Gossip> {
    let mut random = Random::new(seed);
    let mut net = net(seed, 4, storm());
    net.record();
    for round in 0..20 {
        let node = random.below(4) as usize;
        let fault = match random.below(7) {
            0 => Fault::Kill(node),
            1 => Fault::PowerOff(node),
            2 => Fault::Falter { node, after: random.below(4) as usize },
            3 => Fault::Pause(node),
            4 => Fault::Resume(node),
            5 => Fault::Split { side: random.bits() },
            _ => Fault::Heal,
        };
        net.fault(round * 20 * MS, fault);
        net.fault(round * 20 * MS + 10 * MS, Fault::Boot(node));
    }
    run(&mut net, 500 * MS);
    net
}

#[test]
fn equal_seeds_give_equal_traces_and_other_seeds_others() {
    for seed in 0..20 {
        let (one, two) = (stormy(seed), stormy(seed));
        assert_eq!((one.digest(), one.trace()), (two.digest(), two.trace()));
        assert_ne!(one.digest(), stormy(seed + 100).digest());
    }
}

#[test]
fn calm_networks_deliver_everything_once_within_the_delay() {
    let mut net = net(1, 3, Weather::calm());
    run(&mut net, 105 * MS);
    for node in 0..3 {
        let mut received = net.node(node).unwrap().received.clone();
        assert_eq!(received.len(), 2 * 11);
        received.sort_unstable();
        received.dedup();
        assert_eq!(received.len(), 2 * 11);
    }
    assert_eq!(net.now(), 105 * MS);
}

#[test]
fn storms_lose_repeat_and_reorder() {
    let mut net = net(1, 2, storm());
    run(&mut net, Duration::from_secs(10));
    let received: Vec<u64> = net.node(0).unwrap().received.iter().map(|(_, n)| *n).collect();
    assert!(received.windows(2).any(|pair| pair[0] > pair[1]), "nothing was reordered");
    let mut distinct = received.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert!((850..950).contains(&distinct.len()), "{} of 1000 arrived", distinct.len());
    assert!(received.len() > distinct.len() + 50, "{} came twice", received.len());
}

#[test]
fn a_node_starts_again_with_what_it_saved_and_nothing_else() {
    let mut net = net(1, 2, Weather::calm());
    net.fault(35 * MS, Fault::Kill(0));
    net.fault(65 * MS, Fault::Boot(0));
    run(&mut net, 66 * MS);
    let node = net.node(0).unwrap();
    assert_eq!((node.life, node.sent, node.saved), (1, 1, 5));
    assert_eq!(net.node(1).unwrap().closed, [0]);
}

#[test]
fn a_machine_without_power_tells_nobody() {
    let mut net = net(1, 2, Weather::calm());
    net.fault(35 * MS, Fault::PowerOff(0));
    run(&mut net, 66 * MS);
    assert!(net.node(0).is_none());
    assert_eq!(net.node(1).unwrap().closed, []);
}

#[test]
fn messages_to_an_earlier_life_are_lost() {
    let weather = Weather { delay: 20 * MS..21 * MS, ..Weather::calm() };
    let mut net = net(1, 2, weather);
    net.fault(15 * MS, Fault::PowerOff(1));
    net.fault(16 * MS, Fault::Boot(1));
    run(&mut net, 39 * MS);
    assert_eq!(net.node(1).unwrap().received, []);
    run(&mut net, 45 * MS);
    assert_eq!(net.node(1).unwrap().received, [(0, 3)]);
}

#[test]
fn a_faltering_node_does_some_of_its_actions() {
    let mut net = net(1, 4, Weather::calm());
    net.fault(5 * MS, Fault::Falter { node: 0, after: 2 });
    run(&mut net, 19 * MS);
    assert!(net.node(0).is_none());
    let second = |node: usize| net.node(node).unwrap().received.contains(&(0, 2));
    let reached = (1..4).filter(|node| second(*node)).count();
    assert!(reached <= 2, "{reached} of three messages were sent");
}

#[test]
fn a_stopped_node_gets_its_events_later() {
    let mut net = net(1, 2, Weather::calm());
    net.fault(5 * MS, Fault::Pause(0));
    run(&mut net, 45 * MS);
    assert!(net.is_paused(0));
    assert_eq!((net.node(0).unwrap().received.len(), net.node(0).unwrap().sent), (1, 1));
    net.fault(50 * MS, Fault::Resume(0));
    run(&mut net, 50 * MS);
    assert_eq!((net.node(0).unwrap().received.len(), net.node(0).unwrap().sent), (5, 2));
}

#[test]
fn links_are_cut_in_one_direction_or_between_sides_until_they_heal() {
    let mut net = net(1, 3, Weather::calm());
    net.fault(5 * MS, Fault::Cut { from: 0, to: 1 });
    net.fault(25 * MS, Fault::Split { side: 0b100 });
    net.fault(45 * MS, Fault::Heal);
    run(&mut net, 59 * MS);
    let from = |node: usize, from: usize| {
        let received = &net.node(node).unwrap().received;
        received.iter().filter(|(sender, _)| *sender == from).map(|(_, n)| *n).collect::<Vec<_>>()
    };
    assert_eq!(from(1, 0), [1, 6]);
    assert_eq!(from(0, 1), [1, 2, 3, 4, 5, 6]);
    assert_eq!(from(2, 1), [1, 2, 3, 6]);
}

#[test]
fn a_node_that_exits_is_down() {
    let mut net = net(1, 2, Weather::calm());
    net.order(5 * MS, 0, 0);
    run(&mut net, 9 * MS);
    assert!(net.node(0).is_none());
    assert_eq!(net.node(1).unwrap().closed, [0]);
}
