//! Memory asked for before it is needed.
//!
//! Whoever works in several passes over a part that fits into the nearest cache leaves memory idle
//! meanwhile, unless the next part is already on its way.

/// Bytes that come together.
const LINE: usize = 64;

/// Asks for memory that will be read, and perhaps written.
#[inline(always)]
pub(crate) fn prefetch(values: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    for line in values.chunks(LINE / size_of::<f32>()) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint reads nothing, and every x86-64 has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (values, LINE);
}
