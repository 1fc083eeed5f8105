//! Processes of a job as threads, and a view of what all of them do.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use thinwire_job::elastic::{Id, JobAddress, Membership, Next, Options, Run};
use thinwire_job::{Error, Settings};

use crate::training::Training;

/// Longest time that anything here takes.
pub const LONG: Duration = Duration::from_secs(300);
/// Time between two steps.
const PACE: Duration = Duration::from_millis(2);

/// Last news of a process.
#[derive(Clone, Debug, Default)]
pub struct News {
    /// Number of the epoch that it trains in.
    pub epoch: u32,
    /// Ranks of that epoch.
    pub ranks: usize,
    /// Its rank.
    pub rank: usize,
    /// Step with which it began the epoch.
    pub from: u64,
    /// Last step that it has applied.
    pub done: u64,
    /// Reasons why its runs failed.
    pub failures: Vec<String>,
    /// Its end.
    pub end: Option<Result<(), String>>,
}

/// Order to a process.
pub enum Order {
    /// Ends without a word.
    Die,
    Leave,
    /// Does the last step.
    Complete,
    Tell(String),
}

type View = Arc<(Mutex<BTreeMap<usize, News>>, Condvar)>;

/// Processes of one job.
pub struct Processes {
    view: View,
    orders: BTreeMap<usize, Sender<Order>>,
    ids: BTreeMap<usize, Id>,
    options: Options,
    pub settings: Settings,
}

impl Processes {
    pub fn new(options: Options) -> Processes {
        let (view, settings) = (View::default(), Settings::default());
        Processes { view, orders: BTreeMap::new(), ids: BTreeMap::new(), options, settings }
    }

    /// Starts the process `name`.
    pub fn start(&mut self, name: usize, coordinator: &str) {
        let job_address = JobAddress::new(coordinator, "secret").unwrap();
        let (sender, orders) = channel();
        self.orders.insert(name, sender);
        self.ids.insert(name, job_address.id);
        let reporter = Reporter { name, view: Arc::clone(&self.view) };
        let (options, settings) = (self.options, self.settings.clone());
        thread::spawn(move || {
            let ended = train(&job_address, &settings, options, &orders, &reporter);
            reporter.tell(|news| news.end = Some(ended.map_err(|error| error.to_string())));
        });
    }

    pub fn id(&self, name: usize) -> Id {
        self.ids[&name]
    }

    pub fn order(&self, name: usize, order: Order) {
        self.orders[&name].send(order).expect("the process is there");
    }

    /// Waits until `what` holds for these processes.
    pub fn wait(
        &self,
        names: &[usize],
        what: &str,
        has_state: impl Fn(&News) -> bool,
    ) -> Vec<News> {
        let deadline = Instant::now() + LONG;
        let (view, changed) = &*self.view;
        let mut view = view.lock().unwrap();
        loop {
            let news = names.iter().map(|name| view.get(name).cloned().unwrap_or_default());
            let news: Vec<News> = news.collect();
            if news.iter().all(&has_state) {
                return news;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what}: {names:?} of {view:#?}");
            view = changed.wait_timeout(view, left).unwrap().0;
        }
    }

    /// Waits until these processes are the ranks of one epoch after `epoch` and have trained in it.
    pub fn wait_for_epoch(&self, names: &[usize], epoch: u32) -> Vec<News> {
        let what = format!("an epoch after {epoch} of these alone");
        let news = self.wait(names, &what, |news| {
            news.epoch > epoch && news.ranks == names.len() && news.done > news.from
        });
        let mut ranks: Vec<usize> = news.iter().map(|news| news.rank).collect();
        ranks.sort_unstable();
        assert!(ranks.iter().copied().eq(0..names.len()), "{news:?}");
        assert!(news.iter().all(|one| one.epoch == news[0].epoch), "{news:?}");
        news
    }

    /// Waits until these processes have done `steps` more steps.
    pub fn wait_for_steps(&self, names: &[usize], steps: u64) -> Vec<News> {
        let before = self.wait(names, "news", |news| news.epoch > 0);
        let done = before.iter().map(|news| news.done).max().unwrap_or(0) + steps;
        self.wait(names, "steps", |news| news.done >= done)
    }

    /// Waits until these processes have ended well.
    pub fn wait_for_end(&self, names: &[usize]) -> Vec<News> {
        let news = self.wait(names, "the end", |news| news.end.is_some());
        assert!(news.iter().all(|news| news.end == Some(Ok(()))), "{news:?}");
        news
    }
}

struct Reporter {
    name: usize,
    view: View,
}

impl Reporter {
    fn tell(&self, tell: impl FnOnce(&mut News)) {
        let (view, changed) = &*self.view;
        tell(view.lock().unwrap().entry(self.name).or_default());
        changed.notify_all();
    }
}

/// Reason why a run has ended.
enum End {
    Halted,
    Dead,
    Complete,
}

fn train(
    job_address: &JobAddress,
    settings: &Settings,
    options: Options,
    orders: &Receiver<Order>,
    reporter: &Reporter,
) -> Result<(), Error> {
    let spec = vec![("model".to_owned(), "gpt".to_owned())];
    let mut membership = Membership::join(job_address, settings, options, spec)?;
    while let Next::Run(run) = membership.next()? {
        match train_epoch(*run, &membership, orders, reporter) {
            End::Halted => membership.halted(),
            End::Dead => return Ok(()),
            End::Complete => {
                membership.complete()?;
                return Ok(());
            }
        }
    }
    Ok(())
}

fn train_epoch(
    run: Run,
    membership: &Membership,
    orders: &Receiver<Order>,
    reporter: &Reporter,
) -> End {
    let mut done = run.epoch.done;
    let (number, world) = (run.epoch.number, run.world);
    let mut training = Training::new(run, membership);
    membership.synced(done);
    reporter.tell(|news| {
        (news.epoch, news.ranks, news.rank) = (number, world.size(), world.rank().index());
        (news.from, news.done) = (done, done);
    });
    let mut is_last = false;
    loop {
        match orders.recv_timeout(PACE) {
            Ok(Order::Die) => return End::Dead,
            Ok(Order::Leave) => membership.leave(),
            Ok(Order::Complete) => is_last = true,
            Ok(Order::Tell(figures)) => {
                membership.tell(serde_json::from_str(&figures).expect("an object"));
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        let wants_end = membership.finishing().is_some() || is_last;
        match training.step(done + 1, wants_end) {
            Ok(is_over) => {
                done += 1;
                membership.applied(done);
                reporter.tell(|news| news.done = done);
                if is_over {
                    training.finish();
                    return if is_last { End::Complete } else { End::Halted };
                }
            }
            Err(error) => {
                reporter.tell(|news| news.failures.push(format!("epoch {number}: {error}")));
                error.rank.into_iter().for_each(|rank| membership.lost(rank));
                training.fail(&error);
                return End::Halted;
            }
        }
    }
}
