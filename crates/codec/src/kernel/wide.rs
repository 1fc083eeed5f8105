//! Plain loops, compiled for the machine's vectors.
//!
//! What has no kernel of its own is a loop that the compiler turns into vector instructions, if it
//! may use them. The bits are the same with and without: no operation is reordered or fused.

/// A loop. Everything in [`Work::run`] must be inlined to be compiled for the machine.
pub(crate) trait Work {
    /// What comes out.
    type Output;

    /// Runs it; to be marked `#[inline(always)]`.
    fn run(self) -> Self::Output;
}

/// Runs `work` with the best instructions that this machine has.
pub(crate) fn wide<W: Work>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    match super::name() {
        // SAFETY: the table of this name is handed out only where its features were detected.
        "avx512" => return unsafe { avx512(work) },
        // SAFETY: as above.
        "avx2" => return unsafe { avx2(work) },
        _ => {}
    }
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn avx512<W: Work>(work: W) -> W::Output {
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn avx2<W: Work>(work: W) -> W::Output {
    work.run()
}
