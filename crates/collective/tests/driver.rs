//! The laws of a group with a thread of its own: order, errors, stops, idleness, the end.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use thinwire_collective::{
    Address, Asked, Driver, Error, FailedRun, Group, Kind, Next, Options, Program, Run, barrier,
    broadcast, start,
};
use thinwire_link::{Link, Token, mem, store, tcp};
use thinwire_schedule::{Algorithm, Shape, all_reduce};
use thinwire_testkit::{self as testkit, Network, ramp, ramp_sum};
use thinwire_wire::{Rank, World};

/// What no test should ever take.
const LONG: Duration = Duration::from_secs(300);

type Values = Vec<f32>;
type Answer = Receiver<Result<Values, Error>>;

fn driver(link: Link) -> Driver<Values> {
    Driver::start(Group::new(link))
}

/// Runs `body` on every rank's driver; the results in rank order.
fn spawn<T: Send>(
    network: Network,
    size: usize,
    body: impl Fn(Driver<Values>) -> T + Sync,
) -> Vec<T> {
    testkit::spawn(network, size, |link| body(driver(link)))
}

/// Begins a run; its values, or the error of whatever it came to.
fn launch(
    driver: &Driver<Values>,
    begin: impl FnOnce(&mut Group) -> Result<Run<Values>, Error> + Send + 'static,
) -> Answer {
    let (reply, answer) = channel();
    tell(driver, begin, reply);
    answer
}

/// As [`launch`], for many answers in one channel.
fn tell(
    driver: &Driver<Values>,
    begin: impl FnOnce(&mut Group) -> Result<Run<Values>, Error> + Send + 'static,
    reply: Sender<Result<Values, Error>>,
) {
    driver.run(move |group| match group.and_then(begin) {
        Ok(run) => Next::Run(
            run,
            Box::new(move |run| {
                let _ =
                    reply.send(run.map(|run| run.into_parts().0).map_err(|broken| broken.error));
                Next::End
            }),
        ),
        Err(error) => {
            let _ = reply.send(Err(error));
            Next::End
        }
    });
}

fn recv(driver: &Driver<Values>, length: usize, from: Rank) -> Answer {
    launch(driver, move |group| start::recv(group, vec![0.0; length], from, 0))
}

fn send(driver: &Driver<Values>, values: Values, to: Rank) -> Answer {
    launch(driver, move |group| start::send(group, values, to, 0))
}

#[test]
fn requests_begin_in_their_order() {
    let driver = driver(mem::alone());
    let begun = Arc::new(Mutex::new(Vec::new()));
    for number in 0..50 {
        let begun = Arc::clone(&begun);
        let note = move || begun.lock().unwrap().push(number);
        if number % 3 == 0 {
            let call = move |_: &mut Group| {
                note();
                Ok(())
            };
            driver.call(call).unwrap();
        } else {
            driver.run(move |_| {
                note();
                Next::End
            });
        }
    }
    drop(driver);
    assert_eq!(*begun.lock().unwrap(), (0..50).collect::<Vec<_>>());
}

#[test]
fn runs_beside_each_other_keep_to_themselves() {
    for network in Network::ALL {
        spawn(network, 3, |driver| {
            let me = driver.world().rank();
            let lengths = [100_003, 0, 1, 70_000, 12];
            let all_reduce = |length: usize| {
                let values = ramp(me, length);
                launch(&driver, move |group| start::all_reduce(group, values, &Options::default()))
            };
            let answers: Vec<Answer> = lengths.into_iter().map(all_reduce).collect();
            for (answer, length) in answers.into_iter().zip(lengths) {
                let sums: Vec<f64> =
                    answer.recv().unwrap().unwrap().into_iter().map(f64::from).collect();
                assert_eq!(sums, ramp_sum(3, length));
            }
        });
    }
}

/// A sum of two ranks that is counted by itself.
fn counted(world: World, count: u64, values: Values, reply: Sender<Values>) -> Next<Values> {
    let shape = Shape { length: values.len(), block: 1, partitions: 1 };
    let schedule = all_reduce(Algorithm::TwoShot, world, &shape);
    let program = Arc::new(Program::new(schedule, values.len(), thinwire_codec::raw()));
    let run = Run::new(program, Address::counted(count, 7, "a sum"), world, values, None);
    let then = move |done: Result<Run<Values>, FailedRun<Values>>| {
        reply.send(done.unwrap().into_parts().0).unwrap();
        Next::End
    };
    Next::Run(run, Box::new(then))
}

#[test]
fn a_rank_takes_part_in_an_exchange_when_another_one_begins_it() {
    for network in Network::ALL {
        spawn(network, 2, |driver| {
            let (world, (reply, answer)) = (driver.world(), channel());
            let (answering, mut patience) = (reply.clone(), 0);
            driver.answer(7, move |Asked { from, count }| {
                assert_eq!(from, Rank(0));
                // It may let the other rank wait, and is asked again.
                patience += 1;
                let sum = || counted(world, count, vec![2.0; 40_000], answering.clone());
                (patience > 1).then(sum)
            });
            // Calls wake the thread, too.
            let meet = || driver.call(barrier).unwrap();
            meet();
            for count in 0..3 {
                if world.rank() == Rank(0) {
                    let reply = reply.clone();
                    driver.run(move |_| counted(world, count, vec![1.0; 40_000], reply));
                }
                assert_eq!(answer.recv().unwrap(), vec![3.0; 40_000], "{network:?}");
            }
            meet();
        });
    }
}

#[test]
fn a_rank_that_asks_waits_for_a_busy_one_beyond_the_timeout() {
    let (timeout, met) = (Duration::from_millis(20), Barrier::new(2));
    testkit::spawn(Network::Mem, 2, |link| {
        let driver = Driver::start(Group::new(link).with_timeout(timeout));
        let (world, (reply, answer)) = (driver.world(), channel());
        let (answering, begun) = (reply.clone(), Instant::now());
        driver.answer(7, move |Asked { count, .. }| {
            let is_free = begun.elapsed() > 10 * timeout;
            is_free.then(|| counted(world, count, vec![2.0; 9], answering.clone()))
        });
        driver.call(|_| Ok(())).unwrap();
        met.wait();
        if world.rank() == Rank(0) {
            driver.run(move |_| counted(world, 0, vec![1.0; 9], reply));
            assert_eq!(answer.recv().unwrap(), vec![3.0; 9]);
        }
        // Rank 1 answers until both are done.
        (driver, answer)
    });
}

#[test]
fn a_run_may_follow_a_run() {
    let sums = spawn(Network::Mem, 2, |driver| {
        let (reply, answer) = channel();
        let world = driver.world();
        let shape = Shape { length: 5, block: 1, partitions: 1 };
        let schedule = all_reduce(Algorithm::Ring, world, &shape);
        let program = Arc::new(Program::new(schedule, 5, thinwire_codec::raw()));
        let run = move |tensor, values| {
            let address = Address { step: 3, tensor, seed: 0, operation: "all_reduce" };
            Run::new(Arc::clone(&program), address, world, values, None)
        };
        driver.run(move |_| {
            let first = run(0, vec![1.0; 5]);
            let end = move |done: Result<Run<Values>, FailedRun<Values>>| {
                reply.send(done.unwrap().into_parts().0).unwrap();
                Next::End
            };
            let again = move |done: Result<Run<Values>, FailedRun<Values>>| {
                Next::Run(run(1, done.unwrap().into_parts().0), Box::new(end))
            };
            Next::Run(first, Box::new(again))
        });
        answer.recv().unwrap()
    });
    assert_eq!(sums, [[4.0; 5], [4.0; 5]]);
}

#[test]
fn large_messages_pass_each_other() {
    const LENGTH: usize = 5_000_011;
    for network in [Network::Mem, Network::Tcp] {
        spawn(network, 2, |driver| {
            let (me, peer) = (driver.world().rank(), driver.world().after(1));
            let sent = send(&driver, ramp(me, LENGTH), peer);
            let received = recv(&driver, LENGTH, peer);
            assert!(received.recv().unwrap().unwrap() == ramp(peer, LENGTH));
            assert!(sent.recv().unwrap().unwrap() == ramp(me, LENGTH));
        });
    }
}

#[test]
fn an_error_reaches_every_follower_once() {
    spawn(Network::Mem, 2, |driver| {
        let (reply, answers) = channel();
        let listen = |reply: &Sender<_>| {
            let begin = |group: &mut Group| start::recv(group, vec![0.0; 4], Rank(1), 0);
            tell(&driver, begin, reply.clone());
        };
        if driver.world().rank() == Rank(1) {
            driver.stop().stop("out of memory");
            return;
        }
        (0..20).for_each(|_| listen(&reply));
        let first = answers.recv().unwrap().unwrap_err();
        assert!(first.to_string().contains("rank 1 reports: out of memory"), "{first}");
        assert_eq!(driver.failure().unwrap().to_string(), first.to_string());
        (0..20).for_each(|_| listen(&reply));
        let late = driver.call(barrier).unwrap_err();
        assert_eq!(late.to_string(), first.to_string());
        drop((driver, reply));
        let rest: Vec<String> =
            answers.iter().map(|answer| answer.unwrap_err().to_string()).collect();
        assert_eq!(rest, vec![first.to_string(); 39]);
    });
}

#[test]
fn a_mistake_is_the_callers_alone() {
    spawn(Network::Mem, 2, |driver| {
        let error = driver.call(|group| broadcast(group, &mut [1.0], Rank(7))).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        let error = send(&driver, vec![1.0], driver.world().rank()).recv().unwrap().unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        driver.call(barrier).unwrap();
        assert!(driver.failure().is_none());
    });
}

#[test]
fn a_stop_ends_what_waits_and_every_peer_hears_why() {
    for network in Network::ALL {
        let results = spawn(network, 3, |driver| {
            let begin = Instant::now();
            let waiting = match driver.world().rank().0 {
                0 => recv(&driver, 10, Rank(1)),
                1 => recv(&driver, 10, Rank(2)),
                // An idle rank hears it too, and says so to whoever asks later.
                _ => loop {
                    if driver.failure().is_some() {
                        break recv(&driver, 10, Rank(0));
                    }
                    assert!(begin.elapsed() < LONG, "nobody told rank 2");
                    std::thread::yield_now();
                },
            };
            if driver.world().rank() == Rank(0) {
                driver.stop().stop("disk full");
                driver.stop().stop("too late");
            }
            waiting.recv().unwrap().unwrap_err()
        });
        let stopped = &results[0];
        assert_eq!((stopped.kind(), stopped.to_string()), (Kind::Stopped, "disk full".to_owned()));
        for error in &results[1..] {
            assert!(error.to_string().contains("reports: disk full"), "{network:?}: {error}");
        }
    }
}

#[test]
fn a_stop_ends_a_call_that_waits() {
    spawn(Network::Tcp, 2, |driver| {
        if driver.world().rank() == Rank(0) {
            let (begun, waiting) = channel();
            let stop = driver.stop();
            std::thread::scope(|scope| {
                let call = scope.spawn(|| {
                    driver.call(move |group| {
                        begun.send(()).unwrap();
                        barrier(group)
                    })
                });
                waiting.recv().unwrap();
                stop.stop("enough");
                assert_eq!(call.join().unwrap().unwrap_err().to_string(), "enough");
            });
        } else {
            let error = recv(&driver, 1, Rank(0)).recv().unwrap().unwrap_err();
            assert!(error.to_string().contains("rank 0 reports: enough"), "{error}");
        }
    });
}

#[test]
fn a_stop_wakes_whoever_sleeps() {
    testkit::spawn(Network::Mem, 2, |link| {
        let mut group = Group::new(link);
        let peer = group.world().after(1);
        let mut runs = [start::recv(&mut group, vec![0.0; 4], peer, 0).unwrap()];
        if group.world().rank() == Rank(1) {
            // It sends nothing, which would be another reason to wake.
            let error = group.complete(&mut runs).unwrap_err().to_string();
            assert!(error.contains("rank 0 reports: enough"), "{error}");
            return;
        }
        let stop = group.stop();
        let (asleep, waiting) = channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                waiting.recv().unwrap();
                stop.stop("enough");
            });
            // Until it sleeps at once instead of looking again.
            (0..64).for_each(|_| group.wait(&runs, Duration::ZERO).unwrap());
            let begin = Instant::now();
            asleep.send(()).unwrap();
            // Sleeps before it looks: a reason that is there already wakes it, too.
            group.wait(&runs, 2 * LONG).unwrap();
            while group.advance(&mut runs).is_ok() {
                group.wait(&runs, 2 * LONG).unwrap();
            }
            assert!(begin.elapsed() < LONG);
        });
    });
}

#[test]
fn a_driver_dropped_in_the_middle_tells_peers_and_followers() {
    for network in Network::ALL {
        let errors = spawn(network, 3, |driver| {
            let answer = match driver.world().rank().0 {
                0 => recv(&driver, 10, Rank(1)),
                1 => recv(&driver, 10, Rank(2)),
                _ => recv(&driver, 10, Rank(0)),
            };
            let kept = (driver.world().rank() != Rank(0)).then_some(driver);
            let error = answer.recv().expect("a follower is always called").unwrap_err();
            drop(kept);
            error.to_string()
        });
        assert_eq!(errors[0], "a rank stopped in the middle of a step");
        for error in &errors[1..] {
            let reason = "reports: a rank stopped in the middle of a step";
            assert!(error.contains(reason), "{network:?}: {error}");
        }
    }
}

#[test]
fn a_driver_dropped_when_idle_says_goodbye() {
    for network in Network::ALL {
        let errors = spawn(network, 2, |driver| {
            if driver.world().rank() == Rank(0) {
                driver.call(barrier).unwrap();
                return None;
            }
            driver.call(barrier).unwrap();
            Some(recv(&driver, 10, Rank(0)).recv().unwrap().unwrap_err().to_string())
        });
        let error = errors[1].as_ref().unwrap();
        assert!(error.contains("lost rank 0: it left before this was done"), "{error}");
    }
}

#[test]
fn idle_drivers_outlive_the_silence_that_ends_a_link() {
    let store = store::mem::Mem::new();
    let heartbeat_timeout = Some(Duration::from_secs(4));
    let options = tcp::Options { heartbeat_timeout, ..tcp::Options::new(Token::new("test")) };
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (store, options) = (&store, &options);
            scope.spawn(move || {
                let link = tcp::connect(World::new(rank, 2).unwrap(), store, options).unwrap();
                let driver = driver(link);
                driver.call(barrier).unwrap();
                // The one wait that a clock must end: longer than the 4 s of silence.
                std::thread::sleep(Duration::from_millis(5500));
                driver.call(barrier).unwrap();
            });
        }
    });
}

/// Looks until there is a reason not to wait for these ranks.
fn reason(driver: &Driver<Values>, awaited: &[Rank]) -> thinwire_link::Error {
    let (watch, deadline) = (driver.watch(), Instant::now() + LONG);
    loop {
        match watch.look(awaited) {
            Err(error) => return error,
            Ok(()) => assert!(Instant::now() < deadline, "there is no reason"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_watch_knows_of_awaited_ranks_that_left_and_of_the_end_of_the_group() {
    let mut drivers: Vec<_> = mem::mesh(3).into_iter().map(driver).collect();
    drop(drivers.remove(1));
    assert_eq!(
        reason(&drivers[0], &[Rank(1)]).to_string(),
        "lost rank 1: it left before this was done"
    );
    drivers[0].watch().look(&[Rank(2)]).unwrap();
    drivers[1].stop().stop("rank 2 raised an error");
    let error = reason(&drivers[0], &[]).to_string();
    assert!(error.starts_with("rank 2 reports: rank 2 raised an error"), "{error}");
}

#[test]
fn a_watch_ends_with_its_own_group() {
    let driver = driver(mem::alone());
    let watch = driver.watch();
    watch.look(&[]).unwrap();
    drop(driver);
    assert_eq!(watch.look(&[]).unwrap_err().to_string(), "the group is closed");
}

#[test]
fn a_call_that_another_rank_has_begun_is_found_by_its_words_until_this_rank_begins_it() {
    let called = |words: &'static str| {
        move |group: &mut Group| Ok(start::all_gather(group, vec![0.0; 2]).called(words.to_owned()))
    };
    let drivers: Vec<_> = mem::mesh(2).into_iter().map(driver).collect();
    let caller = |words: &'static str| {
        drivers[0].call(move |group| Ok(group.caller("all_gather", words))).unwrap()
    };
    let theirs = launch(&drivers[1], called("a state"));
    let deadline = Instant::now() + LONG;
    while caller("a state") != Some(Rank(1)) {
        assert!(Instant::now() < deadline, "nothing came from rank 1");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(caller("another state"), None);
    let mine = launch(&drivers[0], called("a state"));
    for answer in [theirs, mine] {
        answer.recv_timeout(LONG).unwrap().unwrap();
    }
    assert_eq!(caller("a state"), None);
}
