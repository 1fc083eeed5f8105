//! Metrics of this process for Prometheus, at the address in `THINWIRE_METRICS`.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use thinwire_cli::metrics::{Exchanged, RankMetrics, Taken, VARIABLE, export_by_variable};
use thinwire_job::{Place, local_rank, process};

use crate::background::Background;
use crate::error::Failure;

/// Metrics that this process exports. Process-global, as a rank and its port are.
static EXPORTED: Mutex<Option<Exported>> = Mutex::new(None);

/// Metrics of a process.
struct Exported {
    /// Process that answers; a fork has none of its threads.
    process: u32,
    metrics: RankMetrics,
    /// End of the last step that was counted.
    counted: Option<Instant>,
}

/// Exports the metrics of this process, if the environment asks for it and that has not been done. The
/// port is that of the variable plus the number of this process on its host.
///
/// # Errors
/// If the variable has no address, or the port is taken.
pub(crate) fn export(place: &Place) -> Result<(), Failure> {
    let mut exported = EXPORTED.lock().expect("no holder panics");
    let process_id = std::process::id();
    if exported.as_ref().is_some_and(|it| it.process == process_id) {
        return Ok(());
    }
    let Some(address) = process(VARIABLE) else { return Ok(()) };
    let metrics = RankMetrics::default();
    // Without a launcher nobody has numbered the processes of a host, but all of the job may be on this one.
    let unsaid = || if place.local_world == place.world { place.rank } else { 0 };
    let offset = local_rank(&process).unwrap_or_else(unsaid);
    let (shown, offset) = (metrics.clone(), u16::try_from(offset).unwrap_or(u16::MAX));
    let line = export_by_variable(&address, offset, move || shown.page());
    if let Some(line) = line.map_err(Failure::Invalid)? {
        Background::start().log(line);
    }
    *exported = Some(Exported { process: process_id, metrics, counted: None });
    Ok(())
}

/// Returns whether this process exports metrics.
pub(crate) fn are_exported() -> bool {
    EXPORTED.lock().expect("no holder panics").is_some()
}

/// Adds to the metrics of this process, if it exports any.
fn add(add: impl FnOnce(&mut Exported)) {
    let mut exported = EXPORTED.lock().expect("no holder panics");
    if let Some(exported) = exported.as_mut().filter(|it| it.process == std::process::id()) {
        add(exported);
    }
}

/// Counter of the bytes of collective calls.
#[derive(Debug, Default)]
pub(crate) struct Sent(AtomicU64);

impl Sent {
    /// Records the number of bytes that calls have sent so far.
    pub(crate) fn note(&self, bytes: u64) {
        let sent_bytes = bytes.saturating_sub(self.0.swap(bytes, Relaxed));
        if sent_bytes > 0 {
            let exchanged = Exchanged { sent_bytes, ..Exchanged::default() };
            add(|exported| exported.metrics.exchange(exchanged));
        }
    }
}

/// Counter of the steps of one exchange.
#[derive(Debug)]
pub(crate) struct Meter {
    /// End of its last step.
    ended: Instant,
}

impl Meter {
    /// Returns the counter of an exchange that begins now.
    pub(crate) fn start() -> Meter {
        Meter { ended: Instant::now() }
    }

    /// Records that a step has ended: the number of steps so far, and the bytes and times of this one.
    ///
    /// A rank may have several exchanges that step in turn, such as those of two models. The steps of
    /// the first exchange count as the rank's steps. If the first exchange has ended no step between
    /// two steps of another one, the steps of that other one count from then on.
    pub(crate) fn step(&mut self, step: u64, exchanged: Exchanged) {
        let (begun, now) = (self.ended, Instant::now());
        self.ended = now;
        add(|exported| {
            exported.metrics.exchange(exchanged);
            if exported.counted.is_none_or(|counted| counted <= begun) {
                exported.counted = Some(now);
                let step_s = now.duration_since(begun).as_secs_f64();
                exported.metrics.step(Taken { step, step_s, ..Taken::default() });
            }
        });
    }
}
