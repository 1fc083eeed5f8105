// Casts whose exponents are entropy-coded: signs and mantissas in planes of bytes, and exponents as symbols.
//
// Equal to codec::lossless. Launches:
//   rans_clear, lossless_split, lossless_table, rans_encode, rans_layout, rans_gather, lossless_finish,
//   rans_deliver: encoding
//   rans_stage, lossless_open, rans_decode, lossless_join: decoding
#pragma once

#include "rans.hpp"

constexpr u32 HEAD = 8, F32_PLANES = 3, SYMBOLS = 256;

// codec::kernel::round_to_bf16
inline u32 rounded(const RansArgs& args, float x) {
    u32 bits = bits_of(x);
    if (args.planes == F32_PLANES) return bits;
    if ((bits & ~SIGN) > INFINITE) return (bits >> 16 | 0x40) << 16;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16 << 16;
}

inline u64 coded_place(const RansArgs& args) { return HEAD + args.planes * args.length; }

// lossless::Split, and how often each exponent occurs.
KERNEL(lossless_split, RansArgs) {
    __shared__ u32 histogram[SYMBOLS];
    for (u32 i = threadIdx.x; i < SYMBOLS; i += blockDim.x) histogram[i] = 0;
    __syncthreads();
    Scratch scratch(args);
    for (u64 i = thread_of_launch(); i < args.length; i += threads_of_launch()) {
        float x = args.values[i];
        if (args.residual) args.error[i] = x += args.residual[i];
        u32 bits = rounded(args, x), exponent = bits >> 23 & 0xff;
        u8* plane = scratch.bytes + HEAD + i;
        for (u32 k = 0; k + 1 < args.planes; k++) plane[k * args.length] = (u8)(bits >> (8 * k));
        plane[(args.planes - 1) * args.length] = (u8)((bits >> 16 & 0x7f) | (bits >> 24 & 0x80));
        scratch.symbols[i] = (u8)exponent;
        atomicAdd(&histogram[exponent], 1);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < SYMBOLS; i += blockDim.x)
        if (histogram[i] > 0) atomicAdd(&scratch.histogram[i], histogram[i]);
}

// The table, by a block of 256 threads.
KERNEL(lossless_table, RansArgs) {
    Scratch scratch(args);
    if (threadIdx.x == 0) scratch.message->kind = CODED, scratch.message->coded_at = (u32)coded_place(args);
    build_encode_table(scratch);
}

// The head, exponents as they are if they did not fit, and the residual.
KERNEL(lossless_finish, RansArgs) {
    Scratch scratch(args);
    bool coded = scratch.message->kind == CODED;
    if (thread_of_launch() == 0) {
        put_word(scratch.bytes, scratch.message->length), put_word(scratch.bytes + 4, coded);
        if (scratch.histogram[SYMBOLS - 1] > 0) atomicOr(args.infinite, 1);
    }
    for (u64 i = thread_of_launch(); i < args.length; i += threads_of_launch()) {
        if (!coded) scratch.bytes[coded_place(args) + i] = scratch.symbols[i];
        if (args.residual) args.error[i] = args.error[i] - float_of(rounded(args, args.error[i]));
    }
}

// lossless::restore up to the symbols, by a block of 256 threads.
KERNEL(lossless_open, RansArgs) {
    Scratch scratch(args);
    Message& message = *scratch.message;
    if (threadIdx.x == 0) {
        u32 length = word_at(args.bytes), flag = 2;
        u64 place = coded_place(args);
        if (length <= args.room && length >= place) flag = word_at(scratch.bytes + 4);
        bool raw = flag == 0 && length == place + args.length;
        message.kind = flag == 1 ? CODED : raw ? SHORT : CORRUPT;
        message.length = length, message.coded_at = (u32)place;
        if (message.kind == CORRUPT) atomicOr(args.infinite, 2);
    }
    __syncthreads();
    if (message.kind == CODED) open_streams(args, scratch);
}

// lossless::Join
KERNEL(lossless_join, RansArgs) {
    Scratch scratch(args);
    const Message& message = *scratch.message;
    if (message.kind == CORRUPT) return;
    const u8* exponents = message.kind == CODED ? scratch.symbols : scratch.bytes + message.coded_at;
    for (u64 i = thread_of_launch(); i < args.length; i += threads_of_launch()) {
        const u8* plane = scratch.bytes + HEAD + i;
        u32 upper = plane[(args.planes - 1) * args.length], bits = 0;
        for (u32 k = 0; k + 1 < args.planes; k++) bits |= (u32)plane[k * args.length] << (8 * k);
        bits |= (upper & 0x7f) << 16 | (u32)exponents[i] << 23 | upper >> 7 << 31;
        args.values[i] = args.add ? args.values[i] + float_of(bits) : float_of(bits);
    }
}
