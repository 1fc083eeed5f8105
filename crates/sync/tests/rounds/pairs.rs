//! Pairs: ranks never wait for each other, keep the mean, and settle together.

use std::sync::{Barrier, Condvar, Mutex};
use std::time::Duration;

use thinwire_collective::Group;
use thinwire_sync::{Channel, Replica};
use thinwire_testkit::{Network, spawn};
use thinwire_wire::Rank;

use super::{Trained, Values, assert_close, mean_apart, mean_of, options};

#[test]
fn pairs_of_any_speed_keep_the_mean() {
    let steps = [25, 3, 14, 9];
    let all = spawn(Network::Mem, 4, |link| {
        let mut trained = Trained::start(Channel::new(Group::new(link)), "pair", &options("none"));
        trained.steps(steps[trained.world.rank().index()]);
        // Who has taken all its steps waits for the others here, and answers them meanwhile.
        trained.averager.settle(&mut trained.values).unwrap();
        let settled = trained.values.clone();
        trained.averager.finish(&mut trained.values).unwrap();
        (settled, trained.values)
    });
    let (settled, ended): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    assert_close(&mean_of(&settled), &mean_apart(&steps), "after exchanges");
    assert!(ended.iter().all(|values| *values == ended[0]));
    assert_close(&mean_of(&ended), &mean_apart(&steps), "in the end");
}

#[test]
fn a_rank_does_not_wait_for_its_partner() {
    let stopped = Barrier::new(2);
    let all = spawn(Network::Mem, 2, |link| {
        let mut trained = Trained::start(Channel::new(Group::new(link)), "pair", &options("none"));
        let mut ended = 0;
        // The other rank takes no step before this one has averaged with it three times.
        while trained.world.rank() == Rank(0) && ended < 3 {
            ended += trained.steps(1)[0].ended;
            std::thread::yield_now();
        }
        stopped.wait();
        trained.steps(2);
        trained.averager.settle(&mut trained.values).unwrap();
        (trained.averager.steps(), trained.values)
    });
    let (steps, values): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    assert_close(&mean_of(&values), &mean_apart(&steps), "one rank stood still");
}

/// Whether a rank has gone on.
#[derive(Default)]
struct GoneOn(Mutex<bool>, Condvar);

/// Parameters that are read once another rank has gone on, or is taken to wait for this one.
struct Late<'a> {
    values: &'a mut Values,
    other: &'a GoneOn,
}

impl Replica for Late<'_> {
    fn read(&self, parameter: usize, start: usize, values: &mut [f32]) {
        let GoneOn(has, told) = self.other;
        if parameter == 0 {
            let patience = Duration::from_millis(200);
            drop(told.wait_timeout_while(has.lock().unwrap(), patience, |has| !*has).unwrap());
        }
        self.values.read(parameter, start, values);
    }

    fn write(&mut self, parameter: usize, start: usize, values: &[f32]) {
        self.values.write(parameter, start, values);
    }
}

#[test]
fn a_settled_rank_has_both_halves_of_an_exchange_or_none() {
    let first = GoneOn::default();
    let settled = spawn(Network::Mem, 2, |link| {
        let mut trained = Trained::start(Channel::new(Group::new(link)), "pair", &options("none"));
        trained.steps(1);
        let settled = if trained.world.rank() == Rank(0) {
            trained.averager.settle(&mut trained.values).unwrap();
            let settled = trained.values.clone();
            // It goes on until it has averaged with the other rank again.
            while trained.steps(1)[0].ended == 0 {
                std::thread::yield_now();
            }
            *first.0.lock().unwrap() = true;
            first.1.notify_all();
            settled
        } else {
            let mut late = Late { values: &mut trained.values, other: &first };
            trained.averager.settle(&mut late).unwrap();
            trained.values.clone()
        };
        trained.averager.settle(&mut trained.values).unwrap();
        settled
    });
    assert_close(&mean_of(&settled), &mean_apart(&[1, 1]), "settled ranks");
}

#[test]
fn partners_that_learn_nothing_have_the_same_bits_after_a_round() {
    for size in [2, 4] {
        let all = spawn(Network::Mem, size, |link| {
            let mut trained =
                Trained::start(Channel::new(Group::new(link)), "pair", &options("none"));
            trained.steps(5);
            // All have published what they have.
            trained.averager.settle(&mut trained.values).unwrap();
            trained.averager.step(&mut trained.values).unwrap();
            trained.averager.settle(&mut trained.values).unwrap();
            trained.values
        });
        let equal = |values: &Values| all.iter().filter(|other| *other == values).count();
        assert!(all.iter().all(|values| equal(values) == 2));
    }
}

#[test]
fn a_rank_without_finite_parameters_does_not_spoil_the_end_of_pairs() {
    let all = spawn(Network::Mem, 3, |link| {
        let mut trained = Trained::start(Channel::new(Group::new(link)), "pair", &options("none"));
        if trained.world.rank() == Rank(1) {
            trained.values[0][5] = f32::NAN;
        }
        trained.steps(5);
        trained.averager.finish(&mut trained.values).unwrap();
        trained.values
    });
    assert!(all[0].concat().iter().all(|value| value.is_finite()));
    assert!(all.iter().all(|values| *values == all[0]));
}
