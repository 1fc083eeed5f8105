// Casts: one number format for every element, and the packing of tensors into a bucket.
//
// Equal to codec::kernel::scalar::{cast_encode, cast_decode, scale_copy, max_magnitude} and
// codec::kernel::format. Places of elements are aligned as their format.
#include "device.hpp"

struct CastArgs {
    float* values;
    const float* residual;  // null without feedback
    float* error;           // what encoding leaves, with a residual
    void* elements;         // in the format
    u32* largest;           // becomes the bits of the largest magnitude that was encoded
    u64 length;
    float scale;
    u32 add;  // decoding adds to the values
};

struct F32 {
    using Element = u32;
    static u32 put(float x) { return bits_of(x); }
    static float get(u32 element) { return float_of(element); }
};

// Rounded to nearest, ties to even; half::f16::{from_f32_const, to_f32_const}.
struct F16 {
    using Element = u16;
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
    static u16 put(float x) {
        u32 bits = bits_of(x);
        if ((bits & ~SIGN) > INFINITE) return bits >> 16 | 0x40;
        return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
    static float get(u16 element) { return float_of((u32)element << 16); }
};

inline void report(u32* largest, u32 own) {
    own = largest_of_warp(own);
    if (lane_of_warp() == 0) atomicMax(largest, own);
}

// y = put(x + r), and the new residual x + r - get(y).
template <class Format>
inline void encode(const CastArgs& args) {
    auto to = (typename Format::Element*)args.elements;
    u32 largest = 0;
    for (u64 i = thread_of_launch(); i < args.length; i += threads_of_launch()) {
        float x = args.values[i];
        if (args.residual) x += args.residual[i];
        largest = larger(largest, magnitude_bits(x));
        typename Format::Element element = Format::put(x);
        to[i] = element;
        if (args.residual) args.error[i] = x - Format::get(element);
    }
    report(args.largest, largest);
}

// x = get(y), or x += get(y).
template <class Format>
inline void decode(const CastArgs& args) {
    auto from = (const typename Format::Element*)args.elements;
    for (u64 i = thread_of_launch(); i < args.length; i += threads_of_launch()) {
        float x = Format::get(from[i]);
        args.values[i] = args.add ? args.values[i] + x : x;
    }
}

// x = scale get(y), and the largest magnitude of x.
template <class Format>
inline void pack(const CastArgs& args) {
    auto from = (const typename Format::Element*)args.elements;
    u32 largest = 0;
    for (u64 i = thread_of_launch(); i < args.length; i += threads_of_launch()) {
        float x = Format::get(from[i]) * args.scale;
        largest = larger(largest, magnitude_bits(x));
        args.values[i] = x;
    }
    report(args.largest, largest);
}

#define FORMAT(name, Format)                                    \
    KERNEL(encode_##name, CastArgs) { encode<Format>(args); }   \
    KERNEL(decode_##name, CastArgs) { decode<Format>(args); }   \
    KERNEL(pack_##name, CastArgs) { pack<Format>(args); }

FORMAT(none, F32)
FORMAT(f16, F16)
FORMAT(bf16, BF16)
