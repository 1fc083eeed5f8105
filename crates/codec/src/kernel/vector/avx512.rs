//! AVX-512: sixteen lanes in one register.

use std::arch::x86_64::*;

use super::lanes::Lanes;

/// AVX-512, with sixteen lanes in one register.
pub(crate) struct Avx512;

/// Implements operations that are one instruction.
macro_rules! instructions {
    ($($name:ident($($x:ident: $type:ident),+) -> $result:ident = $instruction:ident;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($x: Self::$type),+) -> Self::$result {
            $instruction($($x),+)
        }
    )*};
}

// SAFETY: here as in `Lanes`, the caller answers for the instructions and the pointers.
impl Lanes for Avx512 {
    type F = __m512;
    type I = __m512i;

    instructions! {
        add(a: F, b: F) -> F = _mm512_add_ps;
        sub(a: F, b: F) -> F = _mm512_sub_ps;
        mul(a: F, b: F) -> F = _mm512_mul_ps;
        round(x: F) -> I = _mm512_cvtps_epi32;
        float(x: I) -> F = _mm512_cvtepi32_ps;
        bits(x: F) -> I = _mm512_castps_si512;
        from_bits(x: I) -> F = _mm512_castsi512_ps;
        add_int(a: I, b: I) -> I = _mm512_add_epi32;
        sub_int(a: I, b: I) -> I = _mm512_sub_epi32;
        shift_right_by(x: I, counts: I) -> I = _mm512_srlv_epi32;
        and(a: I, b: I) -> I = _mm512_and_si512;
        or(a: I, b: I) -> I = _mm512_or_si512;
        xor(a: I, b: I) -> I = _mm512_xor_si512;
        min(a: I, b: I) -> I = _mm512_min_epi32;
        max(a: I, b: I) -> I = _mm512_max_epi32;
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        _mm512_loadu_ps(from)
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m512) {
        _mm512_storeu_ps(to, x)
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> __m512 {
        _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))
    }
    #[inline(always)]
    unsafe fn store_f16(to: *mut u8, x: __m512) {
        _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x))
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> __m512 {
        let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
    }
    #[inline(always)]
    unsafe fn store_bf16(to: *mut u8, x: __m512) {
        // Not the machine's own conversion: that one loses subnormals.
        let bits = _mm512_castps_si512(x);
        let cut = _mm512_srli_epi32::<16>(bits);
        let even = _mm512_and_si512(cut, _mm512_set1_epi32(1));
        let up = _mm512_add_epi32(bits, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff)));
        let quiet = _mm512_or_si512(cut, _mm512_set1_epi32(0x40));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
        let halves = _mm512_mask_mov_epi32(_mm512_srli_epi32::<16>(up), nan, quiet);
        _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(halves));
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> __m512i {
        _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))
    }
    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, x: __m512i) {
        _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(x))
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        _mm512_set1_ps(x)
    }
    #[inline(always)]
    unsafe fn magnitude(x: __m512) -> __m512i {
        _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(i32::MAX))
    }
    #[inline(always)]
    unsafe fn splat_int(x: u32) -> __m512i {
        _mm512_set1_epi32(x as i32)
    }
    #[inline(always)]
    unsafe fn iota() -> __m512i {
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
    }
    #[inline(always)]
    unsafe fn shift_left<const N: u32>(x: __m512i) -> __m512i {
        _mm512_slli_epi32::<N>(x)
    }
    #[inline(always)]
    unsafe fn shift_right<const N: u32>(x: __m512i) -> __m512i {
        _mm512_srli_epi32::<N>(x)
    }
    #[inline(always)]
    unsafe fn shift_right_signed<const N: u32>(x: __m512i) -> __m512i {
        _mm512_srai_epi32::<N>(x)
    }
    #[inline(always)]
    unsafe fn max_lane(x: __m512i) -> u32 {
        _mm512_reduce_max_epi32(x) as u32
    }
    #[inline(always)]
    unsafe fn mul_wide(a: __m512i, b: __m512i) -> (__m512i, __m512i) {
        const EVEN: u16 = 0x5555;
        let even = _mm512_mul_epu32(a, b);
        let odd = _mm512_mul_epu32(_mm512_srli_epi64::<32>(a), _mm512_srli_epi64::<32>(b));
        let upper = _mm512_mask_shuffle_epi32::<0b11_11_01_01>(odd, EVEN, even);
        let lower = _mm512_mullo_epi32(a, b);
        (upper, lower)
    }
    #[inline(always)]
    unsafe fn gather(table: &[f32; 128], index: __m512i) -> __m512 {
        _mm512_i32gather_ps::<4>(index, table.as_ptr())
    }
    #[inline(always)]
    unsafe fn gather_int(table: *const u32, index: __m512i) -> __m512i {
        _mm512_i32gather_epi32::<4>(index, table.cast())
    }
    #[inline(always)]
    unsafe fn put_words(x: __m512i, most: __m512i, end: *mut u8) -> (__m512i, usize) {
        let over = _mm512_cmpgt_epi32_mask(x, most);
        let count = over.count_ones() as usize;
        let words = _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(over, x));
        // What was written before begins at `end`.
        let first = ((1_u32 << count) - 1) as u16;
        _mm256_mask_storeu_epi16(end.sub(2 * count).cast(), first, words);
        (_mm512_mask_srli_epi32::<16>(x, over, x), count)
    }
    #[inline(always)]
    unsafe fn take_words(x: __m512i, least: u32, from: *const u8) -> (__m512i, usize) {
        let short = _mm512_cmplt_epi32_mask(x, _mm512_set1_epi32(least as i32));
        let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
        let words = _mm512_maskz_expand_epi32(short, words);
        let shifted = _mm512_mask_slli_epi32::<16>(x, short, x);
        (_mm512_or_si512(shifted, words), short.count_ones() as usize)
    }
    #[inline(always)]
    unsafe fn above(a: __m512i, b: __m512i) -> u16 {
        _mm512_cmpgt_epi32_mask(a, b)
    }
}
