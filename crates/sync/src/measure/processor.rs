//! Processor time of threads.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the processor time that this thread has used.
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
