//! Input of a loop as pointers.

use super::lanes::Lanes;
use crate::Input;
use crate::kernel::group::LANES;

/// Pointers of an input: without feedback, `residual` is null and `values` is only read.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    pub(super) values: *mut f32,
    residual: *const f32,
}

impl Source {
    pub(super) fn of(input: &mut Input<'_>) -> Source {
        match input {
            Input::Plain(values) => {
                Source { values: values.as_ptr().cast_mut(), residual: std::ptr::null() }
            }
            Input::Feedback { values, residual } => {
                Source { values: values.as_mut_ptr(), residual: residual.as_ptr() }
            }
        }
    }

    /// Loads values, plus residual with feedback.
    #[inline(always)]
    pub(super) unsafe fn load<L: Lanes, const FEEDBACK: bool>(self, at: usize) -> L::F {
        let values = L::load(self.values.add(at));
        if FEEDBACK { L::add(values, L::load(self.residual.add(at))) } else { values }
    }
}

/// Returns the input without the first `length` elements.
pub(super) fn rest<'a>(input: Input<'a>, length: usize) -> Input<'a> {
    match input {
        Input::Plain(values) => Input::Plain(&values[length..]),
        Input::Feedback { values, residual } => {
            Input::Feedback { values: &mut values[length..], residual: &residual[length..] }
        }
    }
}

/// Adds the residual to a block; returns the largest magnitude.
#[inline(always)]
pub(super) unsafe fn sum_block<L: Lanes, const FEEDBACK: bool>(
    source: Source,
    first: usize,
    length: usize,
) -> u32 {
    let mut max = [L::splat_int(0); 2];
    for at in (first..first + length).step_by(2 * LANES) {
        for (half, max) in max.iter_mut().enumerate() {
            let at = at + half * LANES;
            let x = source.load::<L, FEEDBACK>(at);
            if FEEDBACK {
                L::store(source.values.add(at), x);
            }
            *max = L::max(*max, L::magnitude(x));
        }
    }
    L::max_lane(L::max(max[0], max[1]))
}
