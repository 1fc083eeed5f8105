// Formats of numbers: f32, f16 and bf16.
//
// Equal to codec::kernel::format. LIMIT has the bits of the smallest magnitude that a format does not hold.
#pragma once

#include "device.hpp"

struct F32 {
    using Element = u32;
    static constexpr u32 LIMIT = 0x7f800000;
    static u32 put(float x) { return bits_of(x); }
    static float get(u32 element) { return float_of(element); }
};

// Rounded to nearest, ties to even; half::f16::{from_f32_const, to_f32_const}.
struct F16 {
    using Element = u16;
    static constexpr u32 LIMIT = 0x477ff000;
    static u16 put(float x) {
        u32 sign = bits_of(x) >> 16 & 0x8000, bits = magnitude_bits(x);
        if (bits > INFINITE) return sign | 0x7e00 | (bits >> 13 & 0x3ff);
        if (bits >= 0x477ff000) return sign | 0x7c00;
        // Adding 1/2, whose last digit is worth 2^-24, rounds to a multiple of the smallest f16.
        if (bits < 0x38800000) return sign | (bits_of(float_of(bits) + 0.5f) - bits_of(0.5f));
        return sign | (((bits + 0xfff + (bits >> 13 & 1)) >> 13) - (112 << 10));
    }
    static float get(u16 element) {
        u32 sign = (u32)(element & 0x8000) << 16, bits = element & 0x7fff;
        if (bits > 0x7c00) return float_of(sign | 0x7fc00000 | bits << 13);
        if (bits == 0x7c00) return float_of(sign | INFINITE);
        u32 small = bits_of((float)bits * float_of((127 - 24) << 23));
        return float_of(sign | (bits < 0x400 ? small : (bits << 13) + (112 << 23)));
    }
};

// Rounded to nearest, ties to even; codec::kernel::format::bf16_bits.
struct BF16 {
    using Element = u16;
    static constexpr u32 LIMIT = 0x7f7f8000;
    static u16 put(float x) {
        u32 bits = bits_of(x);
        if ((bits & ~SIGN) > INFINITE) return bits >> 16 | 0x40;
        return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
    static float get(u16 element) { return float_of((u32)element << 16); }
};
