//! Laws of published parameters, by ranks of any speed in the simulated network.
//!
//! A rank trains on its own clock, and asks a partner after each step. What both give travels in messages that are
//! late, lost, or go to a rank that is gone. To answer takes time as well.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;
use thinwire_testkit::net::{Action, Birth, Event, Fault, Net, Node, Random, Weather};

use super::*;

const ELEMENTS: usize = 6;
const MS: Duration = Duration::from_millis(1);

/// An exchange, and what the sender of the message and its receiver have given in it.
#[derive(Clone, Debug)]
enum Message {
    /// To the partner; nothing is given by it yet.
    Ask { number: u64, mine: Vec<f32> },
    /// To the rank that has asked.
    Answer { number: u64, mine: Vec<f32>, theirs: Vec<f32> },
    /// To the answering rank itself, when its answer has left.
    Over { asking: usize, number: u64, mine: Vec<f32>, theirs: Vec<f32> },
}

/// The half of an exchange that has moved one of both ranks.
#[derive(Clone, Debug)]
struct Half {
    asking: usize,
    number: u64,
    moved: Vec<f64>,
}

/// A training's modes and speeds of ranks.
#[derive(Clone, Copy, Debug)]
struct Course {
    seed: u64,
    nodes: usize,
    steps: u64,
    rate: f32,
}

/// A rank, which asks nobody any more after its last step.
struct Trained {
    node: usize,
    course: Course,
    steps: u64,
    published: Published,
    values: Vec<f32>,
    /// The changes that it has added by training.
    learnt: Vec<f64>,
    halves: Vec<Half>,
    asked: u64,
    random: Random,
    /// Exchanges for which it was asked while it answered.
    waiting: VecDeque<(usize, u64, Vec<f32>)>,
    most_waiting: usize,
}

/// The parameters with which a rank begins.
fn initial(node: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed ^ (node as u64 + 1) << 32);
    (0..ELEMENTS).map(|_| number(&mut random)).collect()
}

/// A number around zero.
fn number(random: &mut Random) -> f32 {
    random.below(2001) as f32 / 1000.0 - 1.0
}

impl Trained {
    fn new(birth: &Birth, course: Course) -> Trained {
        let values = initial(birth.node, course.seed);
        Trained {
            node: birth.node,
            course,
            steps: 0,
            published: Published::new(values.clone()),
            values,
            learnt: vec![0.0; ELEMENTS],
            halves: Vec::new(),
            asked: 0,
            random: Random::new(course.seed ^ (birth.node as u64) << 16),
            waiting: VecDeque::new(),
            most_waiting: 0,
        }
    }

    /// The time of a step: one rank has half the speed of the others.
    fn period(&self) -> Duration {
        if self.node == 0 { 20 * MS } else { 10 * MS }
    }

    fn step(&mut self, now: Duration) -> Vec<Action<Message>> {
        let mut actions = vec![Action::Wake(now + self.period())];
        let is_over = self.steps == self.course.steps;
        if !is_over {
            self.steps += 1;
            for (value, learnt) in self.values.iter_mut().zip(&mut self.learnt) {
                let before = *value;
                *value += self.course.rate * number(&mut self.random);
                *learnt += f64::from(*value) - f64::from(before);
            }
        }
        self.published.take_up(&mut self.values);
        let asks = !is_over && self.node + 1 < self.course.nodes;
        let begun = if asks { self.published.begin(Side::Asking) } else { None };
        if let Some(mine) = begun {
            let to = self.node
                + 1
                + self.random.below((self.course.nodes - self.node - 1) as u64) as usize;
            self.asked += 1;
            actions.push(Action::Send { to, message: Message::Ask { number: self.asked, mine } });
        }
        actions
    }

    fn answer(&mut self, asking: usize, number: u64, theirs: Vec<f32>) -> Vec<Action<Message>> {
        let Some(mine) = self.published.begin(Side::Answering) else {
            self.waiting.push_back((asking, number, theirs));
            self.most_waiting = self.most_waiting.max(self.waiting.len());
            return Vec::new();
        };
        let answer = Message::Answer { number, mine: mine.clone(), theirs: theirs.clone() };
        let over = Message::Over { asking, number, mine, theirs };
        let send = |to, message| Action::Send { to, message };
        vec![send(asking, answer), send(self.node, over)]
    }

    /// Answers the next rank that waits.
    fn go_on(&mut self) -> Vec<Action<Message>> {
        let next = self.waiting.pop_front();
        next.map_or(Vec::new(), |(asking, number, theirs)| self.answer(asking, number, theirs))
    }

    fn end(&mut self, asking: usize, number: u64, mine: &[f32], theirs: &[f32]) {
        let before = self.published.current.clone();
        let sum: Vec<f32> = mine.iter().zip(theirs).map(|(mine, theirs)| mine + theirs).collect();
        self.published.end(mine, &sum);
        let moved = before.iter().zip(&self.published.current);
        let moved = moved.map(|(before, after)| f64::from(*after) - f64::from(*before)).collect();
        self.halves.push(Half { asking, number, moved });
    }
}

impl Node for Trained {
    type Message = Message;

    fn on(&mut self, event: Event<Message>, now: Duration) -> Vec<Action<Message>> {
        match event {
            Event::Boot | Event::Wake => self.step(now),
            Event::Message { from, message: Message::Ask { number, mine } } => {
                self.answer(from, number, mine)
            }
            Event::Message { message: Message::Answer { number, mine, theirs }, .. } => {
                self.end(self.node, number, &theirs, &mine);
                self.go_on()
            }
            Event::Message { message: Message::Over { asking, number, mine, theirs }, .. } => {
                self.end(asking, number, &mine, &theirs);
                self.go_on()
            }
            Event::Closed { .. } | Event::Order(_) => Vec::new(),
        }
    }
}

fn weather(loss: f64, delay_ms: u32) -> Weather {
    Weather { delay: MS..delay_ms * MS, loss, lateness: 0.05, late: 100 * MS, ..Weather::calm() }
}

fn net(course: Course, weather: Weather) -> Net<Trained> {
    Net::new(course.seed, course.nodes, weather, move |birth| Trained::new(&birth, course))
}

fn run(net: &mut Net<Trained>, until: Duration) {
    while net.step(until).is_some() {}
}

fn ranks(net: &Net<Trained>, nodes: usize) -> Vec<&Trained> {
    (0..nodes).filter_map(|node| net.node(node)).collect()
}

/// Adds rows.
fn sum(rows: impl IntoIterator<Item = Vec<f64>>) -> Vec<f64> {
    let add = |sum: Vec<f64>, row: Vec<f64>| sum.iter().zip(row).map(|(a, b)| a + b).collect();
    rows.into_iter().fold(vec![0.0; ELEMENTS], add)
}

fn floats(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

/// The sum of the parameters with which ranks have begun, and of what they have learnt.
fn apart_sum(all: &[&Trained]) -> Vec<f64> {
    let begun = all.iter().map(|rank| floats(&initial(rank.node, rank.course.seed)));
    sum(begun.chain(all.iter().map(|rank| rank.learnt.clone())))
}

fn is_close(found: &[f64], expected: &[f64]) -> bool {
    found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-4)
}

/// The largest distance between two ranks.
fn distance(all: &[&Trained]) -> f32 {
    let at = |element: usize| all.iter().map(move |rank| rank.values[element]);
    let between =
        |element| at(element).fold(f32::MIN, f32::max) - at(element).fold(f32::MAX, f32::min);
    (0..ELEMENTS).map(between).fold(0.0, f32::max)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_mean_is_kept_at_any_speed_and_delay(
        seed: u64,
        nodes in 2_usize..7,
        delay_ms in 2_u32..80,
    ) {
        let mut net = net(Course { seed, nodes, steps: 40, rate: 0.01 }, weather(0.0, delay_ms));
        // The fast ranks have taken all their steps when the slow one has taken half of them.
        run(&mut net, 400 * MS);
        for rank in ranks(&net, nodes) {
            prop_assert_eq!(rank.steps, if rank.node == 0 { 21 } else { 40 });
        }
        run(&mut net, Duration::from_secs(4));
        let all = ranks(&net, nodes);
        prop_assert!(is_close(&sum(all.iter().map(|it| floats(&it.values))), &apart_sum(&all)));
        for rank in all {
            prop_assert!(rank.steps == 40 && rank.published.underway.is_none());
            prop_assert!(!rank.halves.is_empty());
            // At most one exchange of each other rank.
            prop_assert!(rank.most_waiting < nodes);
        }
    }

    #[test]
    fn what_is_lost_on_one_side_is_all_that_the_mean_moves(
        seed: u64,
        nodes in 3_usize..7,
        loss in 0.0..0.3_f64,
        killed_ms in 0_u32..500,
    ) {
        let mut net = net(Course { seed, nodes, steps: 40, rate: 0.01 }, weather(loss, 30));
        net.fault(killed_ms * MS, Fault::PowerOff(nodes - 1));
        run(&mut net, Duration::from_secs(4));
        let all = ranks(&net, nodes);
        prop_assert_eq!(all.len(), nodes - 1);
        // Nobody waits for what is lost.
        prop_assert!(all.iter().all(|rank| rank.steps == 40));
        let halves: Vec<&Half> = all.iter().flat_map(|rank| &rank.halves).collect();
        let is_alone = |half: &&&Half| {
            let same = |it: &&&Half| (it.asking, it.number) == (half.asking, half.number);
            halves.iter().filter(same).count() == 1
        };
        let alone = halves.iter().filter(is_alone).map(|half| half.moved.clone());
        let expected = sum(alone.chain([apart_sum(&all)]));
        prop_assert!(is_close(&sum(all.iter().map(|it| floats(&it.values))), &expected));
    }

    #[test]
    fn ranks_that_learn_nothing_come_together(
        seed: u64,
        nodes in 2_usize..7,
        delay_ms in 2_u32..60,
    ) {
        let mut net = net(Course { seed, nodes, steps: u64::MAX, rate: 0.0 }, weather(0.0, delay_ms));
        run(&mut net, Duration::ZERO);
        let before = distance(&ranks(&net, nodes));
        run(&mut net, Duration::from_secs(4));
        let after = distance(&ranks(&net, nodes));
        prop_assert!(after < 0.01 * before, "{after} after {before}");
    }
}
