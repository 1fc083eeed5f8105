//! Loops without vector code of their own, which the compiler vectorises for the machine.

/// A loop that is compiled for the machine, as far as it is inlined into [`Work::run`].
pub(crate) trait Work {
    /// Result of the loop.
    type Output;

    /// Runs the loop; implementations are marked `#[inline(always)]`.
    fn run(self) -> Self::Output;
}

/// Runs `work` without vector instructions.
#[inline(always)]
pub(super) fn run<W: Work>(work: W) -> W::Output {
    work.run()
}
