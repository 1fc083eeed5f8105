//! The floor of an all-reduce: the least time that it takes over links of different rates.
//!
//! For S bytes on n ranks, in any order of summation, every rank must send its values and receive
//! the sum, S bytes each way. All ranks together must send 2(n−1)·S, since each of the n−1
//! additions of a byte takes a message, and so does each of the n−1 copies of its sum. No
//! all-reduce is therefore faster than the larger of
//!
//! S / slowest rate, and 2(n−1)·S / sum of all rates.
//!
//! Two-shot reaches this floor, but for latency, if rank i owns the part
//! (rate of i · time / S − 1) / (n−2) of the tensor: rank i then sends and receives
//! (1 + (n−2) · part) · S. With equal rates the floor is 2(n−1)/n · S / rate.

/// The least seconds of an all-reduce of `bytes` over ranks that send and receive at `rates`, in bytes
/// per second each way.
pub fn floor_s(bytes: usize, rates: &[f64]) -> f64 {
    let bytes = bytes as f64;
    let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let messages = 2.0 * (rates.len() as f64 - 1.0);
    (bytes / slowest).max(messages * bytes / rates.iter().sum::<f64>())
}

/// The pairs of ranks between which a plain stream is measured: all pairs while that takes seconds,
/// beyond that neighbours. With all pairs, every rank meets the fastest other one.
pub fn pairs(world: u32) -> Vec<(u32, u32)> {
    const ALL_MAX: u32 = 8;
    let all = (0..world).flat_map(|a| (a + 1..world).map(move |b| (a, b)));
    all.filter(|(a, b)| world <= ALL_MAX || b - a == 1 || b - a == world - 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 1_000_000;

    #[test]
    fn equal_links_take_what_a_ring_sends() {
        for world in 2..9 {
            let expected = 2.0 * (world as f64 - 1.0) / world as f64 * BYTES as f64 / 5e6;
            assert!((floor_s(BYTES, &vec![5e6; world]) / expected - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn a_rank_at_a_quarter_sends_its_values_and_receives_the_sum() {
        let found = floor_s(BYTES, &[1e6, 1e6, 1e6, 0.25e6]);
        assert_eq!(found, 4.0);
        // A ring takes 6 s over these links, as if all were slow; a floor of the first pair says 1.5.
        assert!((1.5..6.0).contains(&found));
    }

    #[test]
    fn two_shot_with_parts_of_its_own_reaches_the_floor() {
        let cases: [&[f64]; 5] = [
            &[1.0; 4],
            &[1.0, 1.0, 1.0, 0.25],
            &[3.0, 1.0, 1.0],
            &[9.0, 1.0, 2.0, 2.0, 5.0],
            &[4.0, 3.0, 2.0],
        ];
        for rates in cases {
            let others = rates.len() as f64 - 2.0;
            let time = floor_s(1, rates);
            let most: Vec<f64> =
                rates.iter().map(|rate| ((rate * time - 1.0) / others).clamp(0.0, 1.0)).collect();
            let sum: f64 = most.iter().sum();
            assert!(sum > 1.0 - 1e-9, "{rates:?}: parts of {sum} fit into {time} s");
        }
    }

    #[test]
    fn every_rank_is_measured_and_every_pair_of_few() {
        assert_eq!(pairs(2), [(0, 1)]);
        assert_eq!(pairs(4), [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]);
        let many = pairs(64);
        assert_eq!(many.len(), 64);
        assert!(
            (0..64).all(|rank| many.iter().filter(|(a, b)| *a == rank || *b == rank).count() == 2)
        );
    }
}
