//! Packing of integers of 1, 2 or 4 bits.
//!
//! The layout is that of `kernel::layout`, planes, group by group of 128 elements.

/// Elements that share planes.
pub(crate) const GROUP: usize = 128;

/// Bytes of a plane, and elements side by side in a vector.
const LANES: usize = 16;

/// Returns the bytes of `count` numbers of `width` bits, at most 7.
pub(crate) fn bytes(count: usize, width: usize) -> usize {
    width * (count / GROUP * LANES + (count % GROUP).min(LANES))
}

/// Packs integers of `W` bits, which `fit` makes of those of a block.
#[inline(always)]
pub(crate) fn pack<const W: usize>(codes: &[i32], bytes: &mut [u8], fit: impl Fn(i32) -> i32) {
    let (groups, rest) = codes.as_chunks::<GROUP>();
    let (places, last) = bytes.split_at_mut(groups.len() * LANES * W);
    for (codes, bytes) in groups.iter().zip(places.chunks_exact_mut(LANES * W)) {
        let mut together = [0; LANES];
        // From the last vector on, so that every shift is by the same constant.
        for codes in codes.as_chunks::<LANES>().0.iter().rev() {
            for lane in 0..LANES {
                let code = fit(codes[lane]) as u32 & ((1 << W) - 1);
                together[lane] = together[lane] << W | code;
            }
        }
        for together in &mut together {
            *together = unzip::<W>(*together);
        }
        for (plane, bytes) in bytes.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            for lane in 0..LANES {
                bytes[lane] = (together[lane] >> (8 * plane)) as u8;
            }
        }
    }
    if rest.is_empty() {
        return;
    }
    last.fill(0);
    let lanes = rest.len().clamp(1, LANES);
    for (plane, bytes) in last.chunks_exact_mut(lanes).enumerate() {
        for (vector, codes) in rest.chunks(LANES).enumerate() {
            let bytes = bytes.iter_mut().zip(codes);
            bytes.for_each(|(byte, code)| *byte |= ((fit(*code) >> plane & 1) << vector) as u8);
        }
    }
}

/// Gathers bit `i` of eight codes of `W` bits, 1, 2 or 4, in byte `i`.
#[inline(always)]
fn unzip<const W: usize>(x: u32) -> u32 {
    let swap = |x: u32, shift: u32, mask: u32| {
        let different = (x ^ x >> shift) & mask;
        x ^ different ^ different << shift
    };
    // Moves even bits to the lower half, of 16 bits or of 32.
    let half = |x| swap(swap(swap(x, 1, 0x2222_2222), 2, 0x0c0c_0c0c), 4, 0x00f0_00f0);
    match W {
        1 => x,
        2 => half(x),
        _ => swap(half(swap(half(x), 8, 0xff00)), 8, 0xff00),
    }
}

/// Unpacks the numbers of a block, each to a place with `put`.
#[inline(always)]
pub(crate) fn unpack<const W: usize, const SIGNED: bool, T: Copy>(
    bytes: &[u8],
    codes: &mut [T],
    put: impl Fn(&mut T, i32),
) {
    let extend = if SIGNED { 32 - W } else { 0 };
    let put = |to: &mut T, code: i32| put(to, code << extend >> extend);
    let (groups, rest) = codes.as_chunks_mut::<GROUP>();
    let (places, last) = bytes.split_at(groups.len() * LANES * W);
    for (codes, bytes) in groups.iter_mut().zip(places.chunks_exact(LANES * W)) {
        let mut planes = [[0; LANES]; W];
        for (plane, bytes) in planes.iter_mut().zip(bytes.as_chunks::<LANES>().0) {
            for lane in 0..LANES {
                plane[lane] = i32::from(bytes[lane]);
            }
        }
        for codes in codes.as_chunks_mut::<LANES>().0 {
            let mut together = [0; LANES];
            for (at, plane) in planes.iter_mut().enumerate() {
                for lane in 0..LANES {
                    together[lane] |= (plane[lane] & 1) << at;
                    plane[lane] >>= 1;
                }
            }
            for lane in 0..LANES {
                put(&mut codes[lane], together[lane]);
            }
        }
    }
    if rest.is_empty() {
        return;
    }
    let lanes = rest.len().clamp(1, LANES);
    for (vector, codes) in rest.chunks_mut(LANES).enumerate() {
        for (lane, to) in codes.iter_mut().enumerate() {
            let bit = |plane: usize| i32::from(last[plane * lanes + lane]) >> vector & 1;
            put(to, (0..W).fold(0, |code, plane| code | bit(plane) << plane));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::wire::Wire;
    use super::*;
    use crate::kernel::group::Layout;

    fn there_and_back<const W: usize, const SIGNED: bool>(codes: &[i32]) {
        let wire = Wire::Bits { width: W as u32, signed: SIGNED };
        let (least, most) = wire.range();
        let mut bytes = vec![0xff; wire.bytes(codes.len())];
        pack::<W>(codes, &mut bytes, |code| code.clamp(least, most));
        let mut back = vec![-77; codes.len()];
        unpack::<W, SIGNED, _>(&bytes, &mut back, |to, code| *to = code);
        let expected: Vec<i32> = codes.iter().map(|code| (*code).clamp(least, most)).collect();
        assert_eq!(back, expected);
        for (block, group) in expected.chunks(GROUP).enumerate() {
            let mut own = [0; GROUP];
            own.iter_mut().zip(group).for_each(|(own, code)| *own = *code as u32);
            let mut planes = vec![0xaa; Layout::Planes.len(group.len(), W)];
            Layout::Planes.pack(&own, group.len(), W, &mut planes);
            assert_eq!(bytes[block * LANES * W..][..planes.len()], planes);
        }
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
