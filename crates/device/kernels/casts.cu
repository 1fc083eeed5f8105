// Casts: one number format for every element, and the packing of tensors into a bucket.
//
// Equal to codec::kernel::scalar::{cast_encode, cast_decode, scale_copy, max_magnitude} and
// codec::kernel::format. Places of elements are aligned as their format.
#include "formats.hpp"

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
