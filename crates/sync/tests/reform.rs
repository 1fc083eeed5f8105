//! The laws of synchronisers that continue among other ranks.

mod made;

use std::sync::{Barrier, Mutex, mpsc};

use made::{averages, give, gradient, options, parameters, spawn, spawn_with};
use thinwire_link::{Link, mem};
use thinwire_sync::{Error, Feedback, Momentum, Options, Outcome, State, Synchronizer};
use thinwire_testkit::{self as testkit, Network};

/// One codec for each kind of exchange, with and without feedback.
const CODECS: [&str; 10] = [
    "none",
    "bf16",
    "int8",
    "ecsq:0.5",
    "topk:0.05",
    "onebit",
    "powersgd:2",
    "powersgd:2:alternate",
    "intsgd",
    "vote",
];

/// Links of a later epoch, to be taken once each.
fn links(epoch: u32, size: u32) -> Vec<Mutex<Option<Link>>> {
    mem::mesh_of_epoch(epoch, size).into_iter().map(|link| Mutex::new(Some(link))).collect()
}

fn take(links: &[Mutex<Option<Link>>], rank: usize) -> Link {
    links[rank].lock().unwrap().take().unwrap()
}

/// Gives some gradients of a step, and all if there are no more.
fn give_some(sync: &mut Synchronizer, step: u64, most: usize) -> Result<Outcome, Error> {
    let rank = sync.world().rank().0;
    sync.begin(step)?;
    for (index, parameter) in parameters().iter().enumerate().take(most) {
        sync.ready(index, &gradient(rank, step, index, parameter.elements()))?;
    }
    sync.finish()
}

/// The averages of one more step of ranks that begin with these states.
fn from_states(codec: &str, states: &[State], step: u64) -> Vec<(Vec<Vec<f32>>, State)> {
    spawn(states.len(), codec, |mut sync| {
        sync.load(&states[sync.world().rank().index()]).unwrap();
        assert_eq!(give(&mut sync, step, false), Outcome::Averaged);
        (averages(&sync), sync.state())
    })
}

/// The step after a loss is that of a job of the ranks that are left, which resumes from their states.
#[test]
fn a_lost_step_leaves_no_trace_and_is_done_again_by_those_who_are_left() {
    for codec in CODECS {
        // With a tensor missing, nobody can finish the step.
        for given in 0..parameters().len() {
            let (later, calm) = (links(1, 2), Barrier::new(3));
            let ranks = spawn(3, codec, |mut sync| {
                let rank = sync.world().rank().index();
                for step in 0..2 {
                    assert_eq!(give(&mut sync, step, false), Outcome::Averaged);
                }
                let before = sync.state();
                calm.wait();
                if rank == 2 {
                    // Its part of the step is on its way, then it is gone.
                    sync.begin(2).unwrap();
                    for (index, parameter) in parameters().iter().enumerate().take(given) {
                        let gradient = gradient(2, 2, index, parameter.elements());
                        // The others may not have begun.
                        let _ = sync.ready(index, &gradient);
                    }
                    sync.stop().stop("killed");
                    return None;
                }
                give_some(&mut sync, 2, parameters().len()).unwrap_err();
                sync.reform(take(&later, rank)).unwrap();
                assert_eq!(sync.world().size(), 2);
                assert_eq!(give(&mut sync, 2, false), Outcome::Averaged, "{codec}");
                Some((before, averages(&sync), sync.state()))
            });
            let ranks: Vec<_> = ranks.into_iter().flatten().collect();
            let states: Vec<State> = ranks.iter().map(|(before, ..)| before.clone()).collect();
            for (expected, (_, averages, after)) in
                from_states(codec, &states, 2).iter().zip(&ranks)
            {
                assert_eq!(expected.0, *averages, "{codec}, {given} tensors given");
                assert_eq!(expected.1.tensors, after.tensors, "{codec}, {given} tensors given");
            }
        }
    }
}

/// Two ranks, and a third one from step 2 on; the averages of all steps by rank.
fn grown(options: &Options) -> Vec<Vec<Vec<Vec<f32>>>> {
    let later = links(1, 3);
    let (hand, handed) = mpsc::channel();
    let handed = Mutex::new(handed);
    let step = |sync: &mut Synchronizer, step| {
        assert_eq!(give(sync, step, false), Outcome::Averaged);
        averages(sync)
    };
    std::thread::scope(|scope| {
        let joiner = scope.spawn(|| {
            let link = take(&later, 2);
            let mut sync = Synchronizer::start(link, parameters(), options.clone()).unwrap();
            sync.load_tensors(&handed.lock().unwrap().recv().unwrap()).unwrap();
            (2..5).map(|number| step(&mut sync, number)).collect::<Vec<_>>()
        });
        let mut ranks = spawn_with(2, &parameters(), options, |mut sync| {
            let mut history: Vec<_> = (0..2).map(|number| step(&mut sync, number)).collect();
            let rank = sync.world().rank().index();
            sync.release();
            sync.reform(take(&later, rank)).unwrap();
            if sync.world().rank().0 == 0 {
                hand.send(sync.state().shared()).unwrap();
            }
            history.extend((2..5).map(|number| step(&mut sync, number)));
            history
        });
        ranks.push(joiner.join().unwrap());
        ranks
    })
}

#[test]
fn a_rank_that_joins_has_the_averages_of_the_others() {
    for codec in CODECS.into_iter().chain(["auto"]) {
        let ranks = grown(&options(codec));
        assert_eq!(ranks[0], ranks[1], "{codec}");
        assert_eq!(ranks[0][2..], ranks[2], "{codec}");
    }
    let momentum = Some(Momentum { warm_up_steps: 4, ..Momentum::default() });
    for options in [
        Options { feedback: Feedback::Ef21, ..options("int4") },
        Options { momentum, ..options("topk:0.01") },
    ] {
        let ranks = grown(&options);
        assert_eq!(ranks[0], ranks[1]);
        assert_eq!(ranks[0][2..], ranks[2]);
    }
}

/// One rank has applied a step, and is lost before it hands its state over: the others repeat the step.
#[test]
fn a_step_of_the_warm_up_that_all_repeat_is_counted_once() {
    let (later, calm) = (links(1, 2), Barrier::new(3));
    let options = Options { warm_up_steps: 1, ..options("int8") };
    let ranks = spawn_with(3, &parameters(), &options, |mut sync| {
        let rank = sync.world().rank().index();
        sync.begin(0).unwrap();
        for (index, parameter) in parameters().iter().enumerate() {
            sync.ready(index, &gradient(rank as u32, 0, index, parameter.elements())).unwrap();
        }
        assert_eq!(sync.wait().unwrap(), Outcome::Averaged);
        calm.wait();
        match rank {
            0 => {
                sync.commit(Outcome::Averaged).unwrap();
                return None;
            }
            // This one was told, the other one was not there yet.
            1 => sync.keep_lost().unwrap(),
            _ => {}
        }
        sync.reform(take(&later, rank - 1)).unwrap();
        assert!(sync.is_in_warm_up());
        assert_eq!(give(&mut sync, 0, false), Outcome::Averaged);
        assert!(!sync.is_in_warm_up());
        Some(averages(&sync))
    });
    assert_eq!(ranks[1], ranks[2]);
}

#[test]
fn ranks_with_unequal_parts_are_weighed_by_them() {
    // Parts of a global batch of 510 rows over 4 ranks.
    let shares = [128, 128, 127, 127].map(|rows| rows as f32 / 510.0);
    let ranks = spawn(4, "none", |mut sync| {
        let share = shares[sync.world().rank().index()];
        sync.set_share(share).unwrap();
        assert_eq!(give(&mut sync, 0, false), Outcome::Averaged);
        averages(&sync)
    });
    for (index, parameter) in parameters().iter().enumerate() {
        let mut expected = vec![0.0; parameter.elements()];
        for (rank, share) in (0..).zip(shares) {
            let gradient = gradient(rank, 0, index, parameter.elements());
            expected.iter_mut().zip(gradient).for_each(|(sum, x)| *sum += share * x);
        }
        for (expected, found) in expected.iter().zip(&ranks[3][index]) {
            assert!((expected - found).abs() < 1e-6, "{expected}, found {found}");
        }
    }
}

#[test]
fn shares_are_parts_of_one() {
    spawn(1, "none", |mut sync| {
        for share in [-0.1, 1.1, f32::NAN] {
            let error = sync.set_share(share).unwrap_err().to_string();
            assert_eq!(error, format!("a share of {share}, expected 0 to 1"));
        }
    });
}

/// A peer that is lost while the group is formed anew costs another attempt, and nothing else.
#[test]
fn forming_can_be_tried_again() {
    let (broken, later, calm) = (links(1, 3), links(2, 2), Barrier::new(3));
    let states = spawn(3, "ecsq:0.5", |mut sync| {
        let rank = sync.world().rank().index();
        for step in 0..2 {
            assert_eq!(give(&mut sync, step, false), Outcome::Averaged);
        }
        let before = sync.state();
        calm.wait();
        if rank == 2 {
            drop(take(&broken, 2));
            return None;
        }
        sync.reform(take(&broken, rank)).unwrap_err();
        sync.reform(take(&later, rank)).unwrap();
        assert_eq!(sync.state().tensors, before.tensors);
        assert_eq!(give(&mut sync, 2, false), Outcome::Averaged);
        Some(averages(&sync))
    });
    assert_eq!(states[0], states[1]);
}

/// Frames of an old epoch are refused: a rank that was left behind disturbs nobody.
#[test]
fn links_know_their_epoch() {
    let epochs = testkit::spawn(Network::Mem, 2, |link| link.epoch());
    assert_eq!(epochs, [0, 0]);
    assert!(mem::mesh_of_epoch(7, 2).iter().all(|link| link.epoch() == 7));
}

/// What a rank owes that leaves in good order is not lost.
#[test]
fn what_a_leaver_owes_is_taken_on_by_a_rank_that_stays() {
    for codec in ["int8", "topk:0.05", "powersgd:2"] {
        let ranks = spawn(2, codec, |mut sync| {
            for step in 0..3 {
                assert_eq!(give(&mut sync, step, false), Outcome::Averaged);
            }
            let (state, owed) = (sync.state(), sync.owed().unwrap());
            sync.take_on(&owed).unwrap();
            (state, sync.state())
        });
        for (before, after) in ranks {
            let mut owes = false;
            for (name, (_, after)) in &after.tensors {
                let before = &before.tensors[name].1;
                // A rank that takes on its own residual owes it twice; factors are not owed.
                let times = if name.starts_with("residual.") { 2.0 } else { 1.0 };
                owes |= times == 2.0 && before.iter().any(|value| *value != 0.0);
                assert!(before.iter().zip(after).all(|(a, b)| times * a == *b), "{codec}: {name}");
            }
            assert!(owes, "{codec} owes something");
        }
        let error = spawn(1, codec, |mut sync| sync.take_on(b"nothing").unwrap_err().to_string());
        assert!(error[0].contains("no state"), "{error:?}");
    }
}
