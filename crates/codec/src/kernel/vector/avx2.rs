//! AVX2 and F16C: sixteen lanes in two registers.

use std::arch::x86_64::*;

use super::lanes::Lanes;

/// AVX2 and F16C, with sixteen lanes in two registers.
pub(crate) struct Avx2;

/// Applies an instruction to both registers.
macro_rules! both {
    ($function:ident, $a:expr) => {
        [$function($a[0]), $function($a[1])]
    };
    ($function:expr, $a:expr, $b:expr) => {
        [$function($a[0], $b[0]), $function($a[1], $b[1])]
    };
}

/// Packs lanes that hold 0..=65535 to sixteen 16-bit numbers.
#[inline(always)]
unsafe fn narrow(x: [__m256i; 2]) -> __m256i {
    // Packing works within 128 bits; the permutation brings the quarters into order.
    _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(x[0], x[1]))
}

/// Rounds to bf16 in the lower half of every lane, and keeps NaN from being rounded to infinity.
#[inline(always)]
unsafe fn bf16_bits(x: __m256) -> __m256i {
    let bits = _mm256_castps_si256(x);
    let cut = _mm256_srli_epi32::<16>(bits);
    let even = _mm256_and_si256(cut, _mm256_set1_epi32(1));
    let up = _mm256_add_epi32(bits, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff)));
    let quiet = _mm256_or_si256(cut, _mm256_set1_epi32(0x40));
    let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
    _mm256_blendv_epi8(_mm256_srli_epi32::<16>(up), quiet, nan)
}

/// Implements operations that are one instruction, applied to both registers.
macro_rules! instructions {
    ($($name:ident($($x:ident: $type:ident),+) -> $result:ident = $instruction:ident;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($x: Self::$type),+) -> Self::$result {
            [$instruction($($x[0]),+), $instruction($($x[1]),+)]
        }
    )*};
}

/// For every mask of eight lanes the shuffle that brings the words of its lanes to the end.
static TO_END: [[u8; 16]; 256] = shuffles(Words::ToEnd);
/// For every mask of eight lanes the shuffle that brings the first words to its lanes, and zeros to others.
static TO_LANES: [[u8; 16]; 256] = shuffles(Words::ToLanes);

/// Way of the words of some lanes.
enum Words {
    ToEnd,
    ToLanes,
}

const fn shuffles(words: Words) -> [[u8; 16]; 256] {
    let mut shuffles = [[0x80; 16]; 256];
    let mut mask = 0_usize;
    while mask < 256 {
        let (mut lane, mut word) = (0, 0);
        while lane < 8 {
            if mask >> lane & 1 == 1 {
                let (to, from) = match words {
                    Words::ToEnd => (8 - mask.count_ones() as usize + word, lane),
                    Words::ToLanes => (lane, word),
                };
                shuffles[mask][2 * to] = 2 * from as u8;
                shuffles[mask][2 * to + 1] = 2 * from as u8 + 1;
                word += 1;
            }
            lane += 1;
        }
        mask += 1;
    }
    shuffles
}

/// Does [`Lanes::put_words`] for eight lanes; overwrites 16 bytes before `end`.
#[inline(always)]
unsafe fn put_words(x: __m256i, most: __m256i, end: *mut u8) -> (__m256i, usize) {
    let over = _mm256_cmpgt_epi32(x, most);
    let mask = _mm256_movemask_ps(_mm256_castsi256_ps(over)) as usize;
    let words = narrow([_mm256_and_si256(x, _mm256_set1_epi32(0xffff)), x]);
    let shuffle = _mm_loadu_si128(TO_END[mask].as_ptr().cast());
    let words = _mm_shuffle_epi8(_mm256_castsi256_si128(words), shuffle);
    _mm_storeu_si128(end.sub(16).cast(), words);
    let shifted = _mm256_srli_epi32::<16>(x);
    (_mm256_blendv_epi8(x, shifted, over), mask.count_ones() as usize)
}

/// Does [`Lanes::take_words`] for eight lanes; reads 16 bytes.
#[inline(always)]
unsafe fn take_words(x: __m256i, least: __m256i, from: *const u8) -> (__m256i, usize) {
    let short = _mm256_cmpgt_epi32(least, x);
    let mask = _mm256_movemask_ps(_mm256_castsi256_ps(short)) as usize;
    let shuffle = _mm_loadu_si128(TO_LANES[mask].as_ptr().cast());
    let words = _mm_shuffle_epi8(_mm_loadu_si128(from.cast()), shuffle);
    let filled = _mm256_or_si256(_mm256_slli_epi32::<16>(x), _mm256_cvtepu16_epi32(words));
    (_mm256_blendv_epi8(x, filled, short), mask.count_ones() as usize)
}

// SAFETY: here as in `Lanes`, the caller answers for the instructions and the pointers.
impl Lanes for Avx2 {
    type F = [__m256; 2];
    type I = [__m256i; 2];

    instructions! {
        add(a: F, b: F) -> F = _mm256_add_ps;
        sub(a: F, b: F) -> F = _mm256_sub_ps;
        mul(a: F, b: F) -> F = _mm256_mul_ps;
        round(x: F) -> I = _mm256_cvtps_epi32;
        float(x: I) -> F = _mm256_cvtepi32_ps;
        bits(x: F) -> I = _mm256_castps_si256;
        from_bits(x: I) -> F = _mm256_castsi256_ps;
        add_int(a: I, b: I) -> I = _mm256_add_epi32;
        sub_int(a: I, b: I) -> I = _mm256_sub_epi32;
        shift_right_by(x: I, counts: I) -> I = _mm256_srlv_epi32;
        and(a: I, b: I) -> I = _mm256_and_si256;
        or(a: I, b: I) -> I = _mm256_or_si256;
        xor(a: I, b: I) -> I = _mm256_xor_si256;
        min(a: I, b: I) -> I = _mm256_min_epi32;
        max(a: I, b: I) -> I = _mm256_max_epi32;
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::F {
        [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))]
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: Self::F) {
        _mm256_storeu_ps(to, x[0]);
        _mm256_storeu_ps(to.add(8), x[1]);
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self::F {
        let halves = [_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(16).cast())];
        both!(_mm256_cvtph_ps, halves)
    }
    #[inline(always)]
    unsafe fn store_f16(to: *mut u8, x: Self::F) {
        let low = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[0]);
        let high = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[1]);
        _mm_storeu_si128(to.cast(), low);
        _mm_storeu_si128(to.add(16).cast(), high);
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self::F {
        let halves = [_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(16).cast())];
        let words = both!(_mm256_cvtepu16_epi32, halves);
        both!(_mm256_castsi256_ps, Self::shift_left::<16>(words))
    }
    #[inline(always)]
    unsafe fn store_bf16(to: *mut u8, x: Self::F) {
        _mm256_storeu_si256(to.cast(), narrow(both!(bf16_bits, x)))
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self::I {
        let bytes = [_mm_loadl_epi64(from.cast()), _mm_loadl_epi64(from.add(8).cast())];
        both!(_mm256_cvtepi8_epi32, bytes)
    }
    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, x: Self::I) {
        let words = narrow(Self::and(x, Self::splat_int(0xff)));
        let (low, high) = (_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
        _mm_storeu_si128(to.cast(), _mm_packus_epi16(low, high));
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        [_mm256_set1_ps(x); 2]
    }
    #[inline(always)]
    unsafe fn magnitude(x: Self::F) -> Self::I {
        Self::and(both!(_mm256_castps_si256, x), Self::splat_int(i32::MAX as u32))
    }
    #[inline(always)]
    unsafe fn splat_int(x: u32) -> Self::I {
        [_mm256_set1_epi32(x as i32); 2]
    }
    #[inline(always)]
    unsafe fn iota() -> Self::I {
        let low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        [low, _mm256_add_epi32(low, _mm256_set1_epi32(8))]
    }
    #[inline(always)]
    unsafe fn shift_left<const N: u32>(x: Self::I) -> Self::I {
        let count = _mm_cvtsi32_si128(N as i32);
        both!(_mm256_sll_epi32, x, [count; 2])
    }
    #[inline(always)]
    unsafe fn shift_right<const N: u32>(x: Self::I) -> Self::I {
        let count = _mm_cvtsi32_si128(N as i32);
        both!(_mm256_srl_epi32, x, [count; 2])
    }
    #[inline(always)]
    unsafe fn shift_right_signed<const N: u32>(x: Self::I) -> Self::I {
        let count = _mm_cvtsi32_si128(N as i32);
        both!(_mm256_sra_epi32, x, [count; 2])
    }
    #[inline(always)]
    unsafe fn max_lane(x: Self::I) -> u32 {
        let x = _mm256_max_epi32(x[0], x[1]);
        let x = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
        let x = _mm_max_epi32(x, _mm_shuffle_epi32::<0b01_00_11_10>(x));
        let x = _mm_max_epi32(x, _mm_shuffle_epi32::<0b10_11_00_01>(x));
        _mm_cvtsi128_si32(x) as u32
    }
    #[inline(always)]
    unsafe fn mul_wide(a: Self::I, b: Self::I) -> (Self::I, Self::I) {
        const ODD: i32 = 0b1010_1010;
        let (mut upper, mut lower) = (a, a);
        for half in 0..2 {
            let (a, b) = (a[half], b[half]);
            let even = _mm256_mul_epu32(a, b);
            let odd = _mm256_mul_epu32(_mm256_srli_epi64::<32>(a), _mm256_srli_epi64::<32>(b));
            upper[half] = _mm256_blend_epi32::<ODD>(_mm256_srli_epi64::<32>(even), odd);
            lower[half] = _mm256_blend_epi32::<ODD>(even, _mm256_slli_epi64::<32>(odd));
        }
        (upper, lower)
    }
    #[inline(always)]
    unsafe fn gather(table: &[f32; 128], index: Self::I) -> Self::F {
        let table = [table.as_ptr(); 2];
        both!(_mm256_i32gather_ps::<4>, table, index)
    }
    #[inline(always)]
    unsafe fn gather_int(table: *const u32, index: Self::I) -> Self::I {
        let table = [table.cast(); 2];
        both!(_mm256_i32gather_epi32::<4>, table, index)
    }
    #[inline(always)]
    unsafe fn put_words(x: Self::I, most: Self::I, end: *mut u8) -> (Self::I, usize) {
        let [low, high] = x;
        let (high, upper) = put_words(high, most[1], end);
        let (low, lower) = put_words(low, most[0], end.sub(2 * upper));
        ([low, high], lower + upper)
    }
    #[inline(always)]
    unsafe fn take_words(x: Self::I, least: u32, from: *const u8) -> (Self::I, usize) {
        let least = _mm256_set1_epi32(least as i32);
        let (low, lower) = take_words(x[0], least, from);
        let (high, upper) = take_words(x[1], least, from.add(2 * lower));
        ([low, high], lower + upper)
    }
    #[inline(always)]
    unsafe fn above(a: Self::I, b: Self::I) -> u16 {
        let mask = both!(_mm256_cmpgt_epi32, a, b);
        let [low, high] = both!(_mm256_castsi256_ps, mask);
        _mm256_movemask_ps(low) as u16 | (_mm256_movemask_ps(high) as u16) << 8
    }
}
