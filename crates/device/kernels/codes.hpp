// Blocks of codes of a fixed width: a warp per block, element 32 k + lane of it in lane `lane`.
//
// Equal to codec::kernel::{codes, group, bits}. A Code is a struct like those of codec::kernel::codes::Code.
#pragma once

#include "random.hpp"

struct CodeArgs {
    float* values;
    const float* residual;  // null without feedback
    float* error;           // what encoding leaves, with a residual
    u8* bytes;
    u32* infinite;  // becomes 1 where a block cannot be held
    u64 length;
    Key key;
    float parameter;  // tau of tbq, clip of terngrad
    u32 bits;         // of a code of qsgd
    u32 norm;         // of qsgd
    u32 add;          // decoding adds to the values
};

constexpr u32 GROUP = 128, LANES = 16, PER_LANE = GROUP / WARP;
constexpr u32 WARPS = 4;         // of a block of threads
constexpr u32 SHARED_WORDS = 68;  // of a warp: scale and codes of the longest block, int8's
constexpr u32 SCALE_BYTES = 4;

constexpr float SMALLEST = 7.888609e-31f;  // 2^-100
constexpr u32 UNUSED = 0x7f, RANDOM_BITS = 15;

struct Scale {
    float scale, inverse;
    bool finite;
};
constexpr Scale NO_SCALE = {1, 1, true}, ZEROS = {0, 0, true};
inline Scale refused() { return {float_of(0x7fc00000), 0, false}; }

// To the nearest integer, ties to even; bits::round.
inline i32 round_even(float x) { return (i32)(bits_of(x + 12582912.0f) - bits_of(12582912.0f)); }

// Number in the lowest bits in two's complement; bits::signed.
inline float signed_code(u32 code, u32 bits) { return (float)((i32)(code << (32 - bits)) >> (32 - bits)); }

// bits::Scale::of: max / max_code with 17 digits, rounded down, or up for random rounding.
inline Scale scale_of(u32 max, i32 max_code, bool stochastic) {
    if (max >= INFINITE) return refused();
    if (float_of(max) < SMALLEST) return ZEROS;
    u32 bits = bits_of(float_of(max) / (float)max_code);
    float scale = float_of(bits & ~UNUSED), above = float_of((bits + UNUSED) & ~UNUSED);
    if (stochastic && bits_of(above * (float)max_code) < INFINITE) scale = above;
    return {scale, 1.0f / scale, true};
}

// group::Layout, as functions of one byte and of one code.
struct Planes {
    static u32 length(u32 elements, u32 bits) {
        return elements * (bits / 8) + smaller(elements, LANES) * (bits % 8);
    }
    static u32 byte(const u8* codes, u32 elements, u32 bits, u32 at) {
        if (bits == 8) return codes[at];
        u32 width = smaller(elements, LANES), plane = at / width, byte = 0;
        for (u32 i = 0; i < 8; i++) byte |= (codes[LANES * i + at % width] >> plane & 1) << i;
        return byte;
    }
    static u32 code(const u8* bytes, u32 elements, u32 bits, u32 at) {
        if (bits == 8) return bytes[at];
        u32 width = smaller(elements, LANES), code = 0;
        for (u32 plane = 0; plane < bits; plane++)
            code |= (bytes[plane * width + at % LANES] >> at / LANES & 1) << plane;
        return code;
    }
};

struct Lanes {
    static u32 share(u32 bits) { return LANES * (8 / bits); }
    static u32 length(u32 elements, u32 bits) {
        return elements / share(bits) * LANES + smaller(elements % share(bits), LANES);
    }
    static u32 byte(const u8* codes, u32, u32 bits, u32 at) {
        u32 byte = 0, first = at / LANES * share(bits) + at % LANES;
        for (u32 i = 0; i < 8 / bits; i++) byte |= (u32)codes[first + LANES * i] << (i * bits);
        return byte;
    }
    static u32 code(const u8* bytes, u32, u32 bits, u32 at) {
        u32 byte = bytes[at / share(bits) * LANES + at % LANES];
        return byte >> (at % share(bits) / LANES * bits) & ((1 << bits) - 1);
    }
};

struct Three {
    static u32 length(u32 elements, u32) { return Lanes::length(smaller(elements, 96), 3); }
    static u32 byte(const u8* codes, u32, u32, u32 at) {
        u32 six = codes[96 + at % LANES] | codes[112 + at % LANES] << 3;
        return Lanes::byte(codes, 96, 3, at) | (six >> (2 * (at / LANES)) << 6 & 0xff);
    }
    static u32 code(const u8* bytes, u32, u32, u32 at) {
        if (at < 96) return Lanes::code(bytes, 96, 3, at);
        u32 six = 0;
        for (u32 plane = 0; plane < 3; plane++)
            six |= (u32)(bytes[LANES * plane + at % LANES] >> 6) << (2 * plane);
        return at < 112 ? six & 7 : six >> 3;
    }
};

// What the codes of all codecs share unless they say otherwise.
struct Code {
    static constexpr bool SCALED = false, RANDOM = false;
    static constexpr u32 GROUPS = 1;
    using Layout = Planes;

    explicit Code(const CodeArgs&) {}
    // Scale of `count` elements, x[k] in this lane, 0 where there is none.
    template <u32 N>
    Scale scale(const float (&)[N], u32, u32 max) const {
        return max < INFINITE ? NO_SCALE : refused();
    }
};

template <class Code>
struct Block {
    static constexpr u32 ELEMENTS = Code::GROUPS * GROUP, HEAD = Code::SCALED ? SCALE_BYTES : 0;
    const Code& code;

    u32 group_length(u32 elements) const { return Code::Layout::length(elements, code.bits()); }
    // codes::block_len
    u32 length(u32 elements) const {
        return HEAD + elements / GROUP * group_length(GROUP) + group_length(elements % GROUP);
    }
    u32 byte(const u8* codes, u32 elements, u32 at) const {
        u32 group = at / group_length(GROUP);
        u32 own = smaller(elements - group * GROUP, GROUP);
        return Code::Layout::byte(codes + group * GROUP, own, code.bits(), at % group_length(GROUP));
    }
    u32 element(const u8* bytes, u32 elements, u32 at) const {
        u32 group = at / GROUP, own = smaller(elements - group * GROUP, GROUP);
        return Code::Layout::code(bytes + group * group_length(GROUP), own, code.bits(), at % GROUP);
    }
};

// Bytes that may be read and written as words.
inline u32 words_of(const void* place, u32 length) { return (u64)place % 4 == 0 ? length & ~3u : 0; }

// codes::encode_block: bytes of a block, and x + r - value(code), the new residual.
template <class Code>
inline void encode(const CodeArgs& args, u32* shared) {
    constexpr u32 ELEMENTS = Block<Code>::ELEMENTS, EACH = ELEMENTS / WARP;
    const Code code(args);
    const Block<Code> block{code};
    u64 number = warp_of_launch(), first = number * ELEMENTS;
    if (first >= args.length) return;
    u32 lane = lane_of_warp(), count = smaller(args.length - first, ELEMENTS), max = 0;
    float x[EACH];
    for (u32 k = 0; k < EACH; k++) {
        u32 at = WARP * k + lane;
        x[k] = at < count ? args.values[first + at] : 0;
        if (at < count && args.residual) x[k] += args.residual[first + at];
        max = larger(max, magnitude_bits(x[k]));
    }
    max = largest_of_warp(max);
    const Scale scale = code.scale(x, count, max);
    if (!scale.finite && lane == 0) atomicOr(args.infinite, 1);

    u8* codes = (u8*)(shared + threadIdx.x / WARP * SHARED_WORDS);
    Random random;
    for (u32 k = 0; k < EACH; k++) {
        u32 at = WARP * k + lane, group = k / PER_LANE;
        if (Code::RANDOM && k % PER_LANE == 0) random.draw(args.key, number * Code::GROUPS + group);
        u32 digits = Code::RANDOM ? random.of(k % PER_LANE) : 0;
        u32 own = code.code(x[k], scale, digits) & ((1 << code.bits()) - 1);
        if (at >= count || !scale.finite) own = 0;
        codes[at] = (u8)own;
        if (args.residual && at < count)
            args.error[first + at] = scale.finite ? x[k] - code.value(own, scale.scale) : x[k];
    }
    __syncwarp();

    u8* to = args.bytes + number * block.length(ELEMENTS);
    u32 length = block.length(count), words = words_of(to, length);
    auto byte = [&](u32 at) {
        if (at < block.HEAD) return bits_of(scale.scale) >> (8 * at) & 0xff;
        return block.byte(codes, count, at - block.HEAD);
    };
    for (u32 at = 4 * lane; at < words; at += 4 * WARP)
        *(u32*)(to + at) = byte(at) | byte(at + 1) << 8 | byte(at + 2) << 16 | byte(at + 3) << 24;
    for (u32 at = words + lane; at < length; at += WARP) to[at] = (u8)byte(at);
}

// codes::decode: x = value(code), or x += value(code).
template <class Code>
inline void decode(const CodeArgs& args, u32* shared) {
    constexpr u32 ELEMENTS = Block<Code>::ELEMENTS;
    const Code code(args);
    const Block<Code> block{code};
    u64 number = warp_of_launch(), first = number * ELEMENTS;
    if (first >= args.length) return;
    u32 lane = lane_of_warp(), count = smaller(args.length - first, ELEMENTS);

    const u8* from = args.bytes + number * block.length(ELEMENTS);
    u32* staged = shared + threadIdx.x / WARP * SHARED_WORDS;
    u8* bytes = (u8*)staged;
    u32 length = block.length(count), words = words_of(from, length);
    for (u32 at = 4 * lane; at < words; at += 4 * WARP) staged[at / 4] = *(const u32*)(from + at);
    for (u32 at = words + lane; at < length; at += WARP) bytes[at] = from[at];
    __syncwarp();

    float scale = Code::SCALED ? float_of(staged[0]) : 1;
    for (u32 at = lane; at < count; at += WARP) {
        float x = code.value(block.element(bytes + block.HEAD, count, at), scale);
        args.values[first + at] = args.add ? args.values[first + at] + x : x;
    }
}

#define ENCODE(name, ...)                       \
    KERNEL(encode_##name, CodeArgs) {           \
        __shared__ u32 shared[WARPS * SHARED_WORDS]; \
        encode<__VA_ARGS__>(args, shared);      \
    }
#define DECODE(name, ...)                       \
    KERNEL(decode_##name, CodeArgs) {           \
        __shared__ u32 shared[WARPS * SHARED_WORDS]; \
        decode<__VA_ARGS__>(args, shared);      \
    }
