//! Whole numbers to few bits and back, in the planes that `wire` says.

use super::wire::PLANE;

/// Numbers side by side.
type Vector = [i32; PLANE];

/// Packs the numbers of a block, cut off at the ends of what `W` bits hold.
#[inline(always)]
pub(crate) fn pack<const W: u32>(codes: &[i32], bytes: &mut [u8], (least, most): (i32, i32)) {
    let elements = PLANE * 8 / W as usize;
    let fit = |code: i32| code.max(least).min(most) & ((1 << W) - 1);
    let (planes, last) = bytes.split_at_mut(codes.len() / elements * PLANE);
    let (whole, rest) = codes.split_at(codes.len() / elements * elements);
    let places = planes.as_chunks_mut::<PLANE>().0;
    for (codes, bytes) in whole.chunks_exact(elements).zip(places) {
        let mut together: Vector = [0; PLANE];
        // From the highest bits down, so that every shift is by the same constant.
        for codes in codes.as_chunks::<PLANE>().0.iter().rev() {
            for lane in 0..PLANE {
                together[lane] = together[lane] << W | fit(codes[lane]);
            }
        }
        *bytes = together.map(|x| x as u8);
    }
    last.fill(0);
    for (vector, codes) in rest.chunks(PLANE).enumerate() {
        let bytes = last.iter_mut().zip(codes);
        bytes.for_each(|(byte, code)| *byte |= (fit(*code) << (vector as u32 * W)) as u8);
    }
}

/// Unpacks the numbers of a block.
#[inline(always)]
pub(crate) fn unpack<const W: u32, const SIGNED: bool>(bytes: &[u8], codes: &mut [i32]) {
    let elements = PLANE * 8 / W as usize;
    let upper = |x: i32| {
        if SIGNED { x >> (32 - W) } else { ((x as u32) >> (32 - W)) as i32 }
    };
    let (whole, rest) = codes.split_at_mut(codes.len() / elements * elements);
    let (planes, last) = bytes.split_at(whole.len() / elements * PLANE);
    for (codes, bytes) in whole.chunks_exact_mut(elements).zip(planes.as_chunks::<PLANE>().0) {
        let mut together: Vector = bytes.map(|byte| i32::from(byte) << 24);
        for codes in codes.as_chunks_mut::<PLANE>().0.iter_mut().rev() {
            *codes = together.map(upper);
            together = together.map(|x| x << W);
        }
    }
    for (vector, codes) in rest.chunks_mut(PLANE).enumerate() {
        let shift = 32 - W - vector as u32 * W;
        codes.iter_mut().zip(last).for_each(|(to, byte)| *to = upper(i32::from(*byte) << shift));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::wire::Wire;
    use super::*;

    fn there_and_back<const W: u32, const SIGNED: bool>(codes: &[i32]) {
        let wire = Wire::Bits { width: W, signed: SIGNED };
        let (least, most) = wire.range();
        let mut bytes = vec![0xff; wire.bytes(codes.len())];
        pack::<W>(codes, &mut bytes, (least, most));
        let mut back = vec![-77; codes.len()];
        unpack::<W, SIGNED>(&bytes, &mut back);
        let expected: Vec<i32> = codes.iter().map(|code| (*code).clamp(least, most)).collect();
        assert_eq!(back, expected);
    }

    proptest! {
        #[test]
        fn numbers_that_fit_come_back_and_others_are_cut_off(codes in prop::collection::vec(-20..20i32, 0..400)) {
            there_and_back::<1, false>(&codes);
            there_and_back::<2, false>(&codes);
            there_and_back::<2, true>(&codes);
            there_and_back::<4, false>(&codes);
            there_and_back::<4, true>(&codes);
        }
    }
}
