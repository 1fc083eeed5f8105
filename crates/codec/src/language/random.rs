//! Random numbers of many elements at once, equal to those of the codecs in Rust.

use thinwire_wire::random::Key;

use crate::kernel::{GROUP, Group, imp};

/// Writes 15 random bits for each of the elements from `first` on.
#[inline(always)]
pub(crate) fn fill(key: Key, first: u64, to: &mut [i32]) {
    let mut at = 0;
    while at < to.len() {
        let element = first + at as u64;
        let Group(numbers) = imp().random(key, element / GROUP as u64);
        let numbers = &numbers[(element % GROUP as u64) as usize..];
        to[at..].iter_mut().zip(numbers).for_each(|(to, bits)| *to = *bits);
        at += numbers.len();
    }
}

/// Returns 15 random bits for each of [`GROUP`] elements from `first` on.
#[inline(always)]
pub(crate) fn group(key: Key, first: u64) -> Group {
    if first.is_multiple_of(GROUP as u64) {
        return imp().random(key, first / GROUP as u64);
    }
    let mut numbers = Group([0; GROUP]);
    fill(key, first, &mut numbers.0);
    numbers
}

/// Writes uniform multiples of 2^-15 in `0.0..1.0` for each of the elements from `first` on.
#[inline(always)]
pub(crate) fn uniform(key: Key, first: u64, to: &mut [f32]) {
    let mut bits = [0; GROUP];
    let starts = (first..).step_by(GROUP);
    for (to, first) in to.chunks_mut(GROUP).zip(starts) {
        fill(key, first, &mut bits);
        to.iter_mut().zip(bits).for_each(|(to, bits)| *to = bits as f32 / 32768.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_block_codecs_wherever_one_begins() {
        let key = Key { seed: 0x1234_5678_9abc, step: 1 << 40, tensor: 9 };
        let group = |at| imp().random(key, at).0;
        let expected: Vec<i32> = (0..5).flat_map(group).collect();
        for first in [0, 1, 100, 128, 300] {
            let mut found = vec![0; 640 - first];
            fill(key, first as u64, &mut found);
            assert_eq!(found, expected[first..]);
        }
    }
}
