//! Sums, products and maxima of whole slices in vectors.

use super::lanes::Lanes;
use crate::kernel::random::LANES;
use crate::kernel::scalar;
use crate::kernel::work::Work;

#[inline(always)]
pub(in crate::kernel) unsafe fn add<L: Lanes>(values: &mut [f32], other: &[f32]) {
    assert_eq!(values.len(), other.len());
    let whole = values.len() / LANES * LANES;
    let (to, from) = (values.as_mut_ptr(), other.as_ptr());
    for at in (0..whole).step_by(LANES) {
        L::store(to.add(at), L::add(L::load(to.add(at)), L::load(from.add(at))))
    }
    scalar::add(&mut values[whole..], &other[whole..]);
}

#[inline(always)]
pub(in crate::kernel) unsafe fn scale_copy<L: Lanes>(
    destination: &mut [f32],
    source: &[f32],
    factor: f32,
) {
    assert_eq!(destination.len(), source.len());
    let whole = destination.len() / LANES * LANES;
    let (to, from) = (destination.as_mut_ptr(), source.as_ptr());
    let scale = L::splat(factor);
    for at in (0..whole).step_by(LANES) {
        L::store(to.add(at), L::mul(L::load(from.add(at)), scale));
    }
    scalar::scale_copy(&mut destination[whole..], &source[whole..], factor);
}

#[inline(always)]
pub(in crate::kernel) unsafe fn add_scaled<L: Lanes>(
    values: &mut [f32],
    other: &[f32],
    factor: f32,
) {
    assert_eq!(values.len(), other.len());
    let whole = values.len() / LANES * LANES;
    let (to, from) = (values.as_mut_ptr(), other.as_ptr());
    let scale = L::splat(factor);
    for at in (0..whole).step_by(LANES) {
        let product = L::mul(L::load(from.add(at)), scale);
        L::store(to.add(at), L::add(L::load(to.add(at)), product));
    }
    scalar::add_scaled(&mut values[whole..], &other[whole..], factor);
}

#[inline(always)]
pub(in crate::kernel) unsafe fn dot<L: Lanes>(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let whole = a.len() / scalar::SUMS * scalar::SUMS;
    let (left, right) = (a.as_ptr(), b.as_ptr());
    let mut vectors = [L::splat(0.0); 2];
    for at in (0..whole).step_by(scalar::SUMS) {
        for (half, sum) in vectors.iter_mut().enumerate() {
            let at = at + half * LANES;
            *sum = L::add(*sum, L::mul(L::load(left.add(at)), L::load(right.add(at))));
        }
    }
    let mut sums = [0.0; scalar::SUMS];
    L::store(sums.as_mut_ptr(), vectors[0]);
    L::store(sums.as_mut_ptr().add(LANES), vectors[1]);
    scalar::finish_dot(sums, &a[whole..], &b[whole..])
}

#[inline(always)]
pub(in crate::kernel) unsafe fn max_magnitude<L: Lanes>(values: &[f32]) -> u32 {
    let whole = values.len() / LANES * LANES;
    let mut max = L::splat_int(0);
    for at in (0..whole).step_by(LANES) {
        max = L::max(max, L::magnitude(L::load(values.as_ptr().add(at))));
    }
    L::max_lane(max).max(scalar::max_magnitude(&values[whole..]))
}

#[inline(always)]
pub(in crate::kernel) unsafe fn run<L: Lanes, W: Work>(work: W) -> W::Output {
    work.run()
}
