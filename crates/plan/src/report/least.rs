//! The fewest bytes that devices must send: for a product, and for the conversion of a tensor from one
//! layout to another.
//!
//! A product of m × n × k (m ≥ n ≥ k) on p devices that start with one copy of the operands and end
//! with one of the result: Al Daas, Ballard, Grigori, Kumar and Rouse, "Tight Memory-Independent
//! Parallel Matrix Multiplication Communication Lower Bounds" (SPAA'22):
//!
//! | p | elements per device |
//! |---|---|
//! | up to m/n | (1 − 1/p) nk |
//! | up to mn/k² | 2 √(mnk²/p) − (m + n) k/p |
//! | beyond | 3 (mnk/p)^(2/3) − (mn + mk + nk)/p |
//!
//! A tensor of n elements on p devices, mean over these:
//!
//! | from | elements sent |
//! |---|---|
//! | values | what each device needs and does not have |
//! | q partial values, needed by c devices | (q − 1 + c − 1) n/p |
//!
//! Of q partial values, q − 1 must have left their devices before any device has the whole, and each other
//! device that needs it receives once more after that. So an all-reduce sends at least 2 (p−1)/p · n, and
//! a reduce-scatter or an all-gather (p−1)/p · n.

use thinwire_model::{Layout, Placement};

/// Returns the fewest elements that each of `devices` devices must send or receive for a product.
pub(super) fn product(mut sizes: [f64; 3], devices: f64) -> f64 {
    sizes.sort_by(|a, b| b.total_cmp(a));
    let ([m, n, k], p) = (sizes, devices);
    if p <= m / n {
        (1.0 - 1.0 / p) * n * k
    } else if p <= m * n / (k * k) {
        2.0 * (m * n * k * k / p).sqrt() - (m + n) * k / p
    } else {
        3.0 * (m * n * k / p).powf(2.0 / 3.0) - (m * n + m * k + n * k) / p
    }
}

/// Returns the fewest elements that a device of the mesh must send on average to convert a tensor from one
/// layout to another.
pub(super) fn relayout(shape: &[usize], mesh: &[usize], from: &Layout, to: &Layout) -> f64 {
    let partial = |placement: &Placement| matches!(placement, Placement::Partial(_));
    let pairs = || from.0.iter().zip(&to.0).zip(mesh);
    // Of what becomes partial it does not matter who has which part.
    if from == to || pairs().any(|((from, to), _)| partial(to) && from != to) {
        return 0.0;
    }
    let changing = || pairs().filter(|((from, _), _)| !partial(from));
    let values = pairs().filter(|((from, to), _)| partial(from) && !partial(to));
    let values: usize = values.map(|(_, size)| size).product();
    if values == 1 {
        let (from, to) = changing().map(|((from, to), _)| (*from, *to)).unzip();
        let mesh: Vec<usize> = changing().map(|(_, size)| *size).collect();
        return missing(shape, &mesh, &Layout(from), &Layout(to));
    }
    // Dimensions along which values stay partial are as many tensors side by side.
    let moved = || pairs().filter(|((_, to), _)| !partial(to));
    let devices: usize = moved().map(|(_, size)| size).product();
    let cut = |placement: &Placement| matches!(placement, Placement::Sharded(_));
    let wanting: usize = moved().filter(|((_, to), _)| !cut(to)).map(|(_, size)| size).product();
    let elements: usize = shape.iter().product();
    elements as f64 * (values + wanting - 2) as f64 / devices as f64
}

/// Returns the number of elements that a device needs and does not have, mean over all devices.
fn missing(shape: &[usize], mesh: &[usize], from: &Layout, to: &Layout) -> f64 {
    let devices: usize = mesh.iter().product();
    let mut coordinates = vec![0; mesh.len()];
    let mut sum = 0.0;
    for device in 0..devices {
        let mut rest = device;
        for (at, size) in coordinates.iter_mut().zip(mesh).rev() {
            (*at, rest) = (rest % size, rest / size);
        }
        let part = |layout: &Layout| {
            let starts = layout.start(shape, mesh, &coordinates);
            starts.into_iter().zip(layout.local_shape(shape, mesh))
        };
        let both = part(from).zip(part(to)).map(|((had, a), (wanted, b))| {
            (had + a).min(wanted + b).saturating_sub(had.max(wanted))
        });
        sum += to.local_elements(shape, mesh) as f64 - both.product::<usize>() as f64;
    }
    sum / devices as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use thinwire_model::{Reduction, conversion};

    #[test]
    fn the_bound_is_the_published_one() {
        // Two square products of 8192 on 8, 64 and 512 devices, three products of each in a step.
        for (devices, million) in [(8.0, 150.99), (64.0, 56.62), (512.0, 16.52)] {
            let found = 2.0 * 3.0 * product([8192.0; 3], devices) / 1e6;
            assert!((found / million - 1.0).abs() < 1e-3, "{devices}: {found}, expected {million}");
        }
    }

    #[test]
    fn the_bound_has_no_jumps() {
        for edge in [4.0, 64.0] {
            let at = |p| product([1024.0, 256.0, 64.0], p);
            assert!((at(edge * (1.0 - 1e-9)) / at(edge * (1.0 + 1e-9)) - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn no_conversion_sends_less() {
        use Placement::{Partial, Replicated, Sharded};
        let all = [Replicated, Sharded(0), Sharded(1), Partial(Reduction::Sum)];
        let pairs = || all.into_iter().flat_map(|a| all.into_iter().map(move |b| [a, b]));
        let (shape, mesh) = ([24, 24], [2, 3]);
        for (from, to) in pairs().flat_map(|from| pairs().map(move |to| (from, to))) {
            let (from, to) = (Layout(from.to_vec()), Layout(to.to_vec()));
            let steps = conversion(&shape, &mesh, &from, &to).unwrap();
            let sent: f64 = steps.iter().map(|step| step.sent(mesh[step.mesh_dim])).sum();
            let least = relayout(&shape, &mesh, &from, &to);
            assert!(sent >= least - 1e-9, "{from} to {to}: {sent}, expected {least} or more");
        }
    }

    #[test]
    fn one_collective_sends_the_least() {
        use Placement::{Partial, Replicated, Sharded};
        for p in [2, 3, 5] {
            let least = |from, to| relayout(&[30, 4], &[p], &Layout(vec![from]), &Layout(vec![to]));
            let n = 120.0 * (p - 1) as f64 / p as f64;
            let sum = Partial(Reduction::Sum);
            for (from, to, expected) in [
                (sum, Replicated, 2.0 * n),
                (sum, Sharded(0), n),
                (Sharded(0), Replicated, n),
                (Replicated, Sharded(0), 0.0),
                (Replicated, sum, 0.0),
            ] {
                let found = least(from, to);
                assert!((found - expected).abs() < 1e-9, "{from} to {to}: {found}");
            }
        }
    }
}
