//! Random numbers of many elements at once: those of the block codecs.

use thinwire_wire::random::Key;

use crate::kernel::GROUP;

/// Elements side by side in a vector.
const LANES: usize = 16;

/// 15 random bits for each of the elements from `first` on.
#[inline(always)]
pub(crate) fn fill(key: Key, first: u64, to: &mut [i32]) {
    let mut numbers = [0; GROUP];
    let mut at = 0;
    while at < to.len() {
        let element = first + at as u64;
        group(key, element / GROUP as u64, &mut numbers);
        let skip = (element % GROUP as u64) as usize;
        let count = (GROUP - skip).min(to.len() - at);
        to[at..at + count].copy_from_slice(&numbers[skip..skip + count]);
        at += count;
    }
}

/// Uniform in `0.0..1.0`, a multiple of 2^-15, for each of the elements from `first` on.
#[inline(always)]
pub(crate) fn uniform(key: Key, first: u64, to: &mut [f32]) {
    let mut bits = [0; GROUP];
    let starts = (first..).step_by(GROUP);
    for (to, first) in to.chunks_mut(GROUP).zip(starts) {
        fill(key, first, &mut bits);
        to.iter_mut().zip(bits).for_each(|(to, bits)| *to = bits as f32 / 32768.0);
    }
}

/// The numbers of `kernel::levels::random_group`, lane by lane.
#[inline(always)]
fn group(key: Key, group: u64, to: &mut [i32; GROUP]) {
    let (counter, mut keys) = key.philox_input(group * LANES as u64);
    let mut words = counter.map(|word| [word; LANES]);
    for lane in 0..LANES {
        // A group's counters differ in four bits: nothing is carried.
        words[0][lane] += lane as u32;
    }
    for _ in 0..10 {
        let (mut low, mut high) = ([[0; LANES]; 2], [[0; LANES]; 2]);
        for lane in 0..LANES {
            let product = u64::from(words[0][lane]) * 0xD251_1F53;
            (low[0][lane], high[0][lane]) = (product as u32, (product >> 32) as u32);
            let product = u64::from(words[2][lane]) * 0xCD9E_8D57;
            (low[1][lane], high[1][lane]) = (product as u32, (product >> 32) as u32);
        }
        for lane in 0..LANES {
            words[0][lane] = high[1][lane] ^ words[1][lane] ^ keys[0];
            words[2][lane] = high[0][lane] ^ words[3][lane] ^ keys[1];
        }
        (words[1], words[3]) = (low[1], low[0]);
        keys = [keys[0].wrapping_add(0x9E37_79B9), keys[1].wrapping_add(0xBB67_AE85)];
    }
    for (word, words) in words.iter().enumerate() {
        for lane in 0..LANES {
            to[2 * word * LANES + lane] = (words[lane] >> 1 & 0x7fff) as i32;
            to[(2 * word + 1) * LANES + lane] = (words[lane] >> 17) as i32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_block_codecs_wherever_one_begins() {
        let key = Key { seed: 0x1234_5678_9abc, step: 1 << 40, tensor: 9 };
        let expected: Vec<i32> =
            (0..5).flat_map(|at| crate::kernel::random_group(key, at)).map(i32::from).collect();
        for first in [0, 1, 100, 128, 300] {
            let mut found = vec![0; 640 - first];
            fill(key, first as u64, &mut found);
            assert_eq!(found, expected[first..]);
        }
    }
}
