//! Number of threads of the arithmetic.
//!
//! Kernels run on the rayon pool of the thread that calls them.
//! A pool of our own caps it without touching the process-wide one; with one thread everything
//! runs in place. Local ranks share a machine's cores, so each should take its part of them.

use crate::error::{Error, Kind};

/// Runs `work` with `count` threads for its arithmetic, itself on one of them. 0 is one per core.
///
/// # Errors
/// If the threads cannot be started.
pub fn run<T: Send>(count: usize, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(count).build().map_err(|error| {
        Error::new(Kind::Invalid, format!("cannot start {count} threads: {error}"))
    })?;
    Ok(pool.install(work))
}

#[cfg(test)]
mod tests {
    #[test]
    fn work_runs_with_as_many_threads_as_asked() {
        for count in [1, 3] {
            assert_eq!(super::run(count, rayon::current_num_threads).unwrap(), count);
        }
    }
}
