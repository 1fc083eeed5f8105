//! Plain loops, compiled for the machine's vectors.
//!
//! Where the compiler finds the vectors by itself, a loop is written once as [`Work`], and this
//! compiles it with the instructions of every implementation in this folder. It may not contract
//! or reorder arithmetic on f32, so all give the same bits.

/// Loops over slices. Everything that [`Work::run`] calls must be inlined into it.
pub(crate) trait Work {
    /// What the loops return.
    type Output;

    /// Runs them; marked `#[inline(always)]`.
    fn run(self) -> Self::Output;
}

/// Runs `work` with the best instructions that this machine has.
pub(crate) fn widely<W: Work>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    match super::imp().name {
        // SAFETY: these implementations are chosen only where their features were detected.
        "avx512" => return unsafe { avx512(work) },
        // SAFETY: as above.
        "avx2" => return unsafe { avx2(work) },
        _ => {}
    }
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
fn avx512<W: Work>(work: W) -> W::Output {
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn avx2<W: Work>(work: W) -> W::Output {
    work.run()
}
