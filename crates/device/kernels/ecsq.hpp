// Entropy-coded scalar quantisation: a step for each section of 65,536 values, levels, and their centroids.
//
// Equal to codec::{ecsq, kernel::uniform}. Sums of squares and of levels: 16 lanes of every 4,096 values, the
// lanes in order, the chunks of a section in order, the sections in order. Launches:
//   rans_clear, ecsq_squares, ecsq_steps, ecsq_quantise, ecsq_levels, rans_encode, rans_layout, rans_gather,
//   ecsq_finish, rans_deliver: encoding
//   rans_stage, ecsq_open, rans_decode, ecsq_places, ecsq_restore: decoding
#pragma once

#include "rans.hpp"

constexpr u32 LANES = 16, THREADS = 256;
constexpr u32 ZERO = 128, ESCAPE = 0, SHORT_BYTES = 8;
constexpr float DEAD_ZONE = 0.1f, BEYOND = 128.0f, SHIFT = 12582912.0f, LARGEST = 3.40282347e38f;

inline u64 head_length(u64 length) { return SHORT_BYTES + 12 + 4 * parts(length, SECTION); }

// Sums of a chunk of values, by a block of threads.
KERNEL(ecsq_squares, RansArgs) {
    __shared__ float values[CHUNK];
    __shared__ double lanes[LANES];
    Scratch scratch(args);
    u64 chunk = blockIdx.x, first = chunk * CHUNK;
    u32 count = smaller(args.length - first, CHUNK), lane = threadIdx.x;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        float x = args.values[first + i];
        if (args.residual) args.error[first + i] = x += args.residual[first + i];
        values[i] = x;
    }
    __syncthreads();
    double sum = 0;
    if (lane < LANES) {
        for (u32 i = lane; i < count; i += LANES) sum += (double)values[i] * (double)values[i];
        lanes[lane] = sum;
    }
    __syncthreads();
    if (lane > 0) return;
    sum = 0;
    for (u32 i = 0; i < LANES; i++) sum += lanes[i];
    scratch.squares[chunk] = sum;
}

// Ecsq::step: a thread for each section.
KERNEL(ecsq_steps, RansArgs) {
    Scratch scratch(args);
    u64 section = thread_of_launch(), first = section * SECTION;
    if (first >= args.length) return;
    u32 count = smaller(args.length - first, SECTION);
    double squares = 0;
    for (u32 i = 0; i < count; i += CHUNK) squares += scratch.squares[(first + i) / CHUNK];
    double rms = sqrt(squares / (double)count), step = rms * (double)args.step;
    step = rms < 1e-30 ? 0 : step < (double)LARGEST ? step : (double)LARGEST;
    bool finite = squares - squares == 0;
    scratch.steps[section] = finite ? (float)step : 0;
    if (!finite) atomicOr(args.infinite, 1);
    if (finite && (float)step > 0) atomicOr(&scratch.message->any, 1);
}

// Magnitude in steps, with one level beyond all others; the level is what adding SHIFT leaves.
inline float steps_of(float x, float inverse) {
    float steps = float_of(magnitude_bits(x)) * inverse;
    return steps < BEYOND ? steps : BEYOND;
}
inline float shifted(float steps) { return steps - DEAD_ZONE + SHIFT; }

// uniform::quantise: symbols of a chunk, and the sums and counts of its levels, by a block of threads.
KERNEL(ecsq_quantise, RansArgs) {
    __shared__ float magnitudes[CHUNK], lanes[3 * LANES];
    __shared__ u32 histogram[256];
    Scratch scratch(args);
    u64 chunk = blockIdx.x, first = chunk * CHUNK, section = first / SECTION;
    u32 count = smaller(args.length - first, CHUNK), own = threadIdx.x, zeros = 0;
    float step = scratch.steps[section], inverse = step > 0 ? 1.0f / step : 0;
    histogram[own] = 0;
    __syncthreads();
    for (u32 i = own; i < count; i += blockDim.x) {
        float x = sums(args)[first + i], steps = steps_of(x, inverse);
        u32 level = bits_of(shifted(steps)) - bits_of(SHIFT);
        u32 symbol = (bits_of(x) & SIGN ? ZERO - level : ZERO + level) & 0xff;
        magnitudes[i] = steps;
        scratch.symbols[first + i] = (u8)symbol;
        // Most symbols may be this one, and additions to one place follow each other.
        if (symbol == ZERO) zeros++;
        else atomicAdd(&histogram[symbol], 1);
    }
    if (zeros > 0) atomicAdd(&histogram[ZERO], zeros);
    __syncthreads();
    if (own < 3 * LANES) {
        u32 kind = own / LANES;
        float sum = 0;
        for (u32 i = own % LANES; i < count; i += LANES) {
            float steps = magnitudes[i], level = shifted(steps) - SHIFT;
            if (kind < 2) sum += level == (float)(kind + 1) ? steps : 0;
            else sum += level > 2 && level < BEYOND ? steps - level : 0;
        }
        lanes[own] = sum;
    }
    if (histogram[own] > 0) atomicAdd(&scratch.histogram[own], histogram[own]);
    __syncthreads();
    if (own >= 3) return;
    float sum = 0;
    for (u32 i = 0; i < LANES; i++) sum += lanes[own * LANES + i];
    scratch.sums[3 * chunk + own] = (double)sum;
    u32 one = histogram[ZERO + 1] + histogram[ZERO - 1], two = histogram[ZERO + 2] + histogram[ZERO - 2];
    u32 further = count - histogram[ZERO] - histogram[ESCAPE] - one - two;
    atomicAdd(&scratch.counts[3 * section + own], own == 0 ? one : own == 1 ? two : further);
    if (own == 0) scratch.escapes[chunk] = histogram[ESCAPE];
}

// Numbers of escapes of chunks become sums of those of earlier chunks, by one warp; returns the sum of all.
inline u32 scan_escapes(const RansArgs& args, Scratch& scratch) {
    u64 chunks = parts(args.length, CHUNK);
    u32 all = 0;
    for (u64 first = 0; first < chunks; first += WARP) {
        u64 chunk = first + lane_of_warp();
        u32 own = chunk < chunks ? scratch.escapes[chunk] : 0, before = all + sum_before(own);
        if (chunk < chunks) scratch.escapes[chunk] = before;
        all = __shfl_sync(ALL_LANES, before + own, WARP - 1);
    }
    return all;
}

// Quantised::levels, and the table; by a block of 256 threads.
KERNEL(ecsq_levels, RansArgs) {
    __shared__ double added[WARP * 6], totals[6];
    Scratch scratch(args);
    Message& message = *scratch.message;
    u64 sections = parts(args.length, SECTION);
    u32 own = threadIdx.x;
    if (own < 6) totals[own] = 0;
    for (u64 first = 0; own < WARP && first < sections; first += WARP) {
        u64 section = first + own;
        __syncwarp();
        if (section < sections) {
            u64 chunk = section * (SECTION / CHUNK), end = chunk + SECTION / CHUNK;
            double weight = (double)scratch.steps[section] * (double)scratch.steps[section], sum[3] = {0, 0, 0};
            for (; chunk < end && chunk * CHUNK < args.length; chunk++)
                for (u32 kind = 0; kind < 3; kind++) sum[kind] += scratch.sums[3 * chunk + kind];
            for (u32 kind = 0; kind < 3; kind++) {
                added[6 * own + kind] = sum[kind] * weight;
                added[6 * own + 3 + kind] = (double)scratch.counts[3 * section + kind] * weight;
            }
        }
        __syncwarp();
        for (u32 i = 0; own < 6 && i < WARP && first + i < sections; i++) totals[own] += added[6 * i + own];
    }
    if (own < WARP) {
        u32 escapes = scan_escapes(args, scratch);
        if (own == 0) message.escapes = escapes;
    }
    __syncthreads();
    if (own == 0) {
        for (u32 kind = 0; kind < 3; kind++) {
            float other = kind < 2 ? (float)(kind + 1) : 0;
            message.levels[kind] = totals[3 + kind] > 0 ? (float)(totals[kind] / totals[3 + kind]) : other;
        }
        message.kind = message.any ? CODED : SHORT;
        message.coded_at = (u32)(head_length(args.length) + 4ull * message.escapes);
    }
    build_encode_table(scratch);
}

// uniform::Levels::value
inline float value_of(const Message& message, u32 symbol, float step) {
    float level = (float)((i32)symbol - (i32)ZERO), number = level < 0 ? -level : level;
    float upper = number == 2 ? message.levels[1] : number + message.levels[2];
    float magnitude = (number <= 1 ? message.levels[0] * number : upper) * step;
    magnitude = magnitude < LARGEST ? magnitude : LARGEST;
    return level < 0 ? -magnitude : magnitude;
}

// The residual and the head, with the values of escapes; a warp for each chunk.
KERNEL(ecsq_finish, RansArgs) {
    Scratch scratch(args);
    const Message& message = *scratch.message;
    if (thread_of_launch() == 0) put_word(scratch.bytes, message.length), put_word(scratch.bytes + 4, 0);
    u64 chunk = warp_of_launch(), first = chunk * CHUNK, sections = parts(args.length, SECTION);
    if (message.kind != CODED || first >= args.length) return;
    u32 lane = lane_of_warp(), count = smaller(args.length - first, CHUNK), before = scratch.escapes[chunk];
    float step = scratch.steps[first / SECTION];
    u8* beyond = scratch.bytes + head_length(args.length);
    if (chunk == 0 && lane == 0) put_word(scratch.bytes + 4, message.escapes);
    if (chunk == 0 && lane < 3) put_word(scratch.bytes + SHORT_BYTES + 4 * lane, bits_of(message.levels[lane]));
    for (u64 i = lane; chunk == 0 && i < sections; i += WARP)
        put_word(scratch.bytes + SHORT_BYTES + 12 + 4 * i, bits_of(scratch.steps[i]));
    for (u32 start = 0; start < count; start += WARP) {
        u32 i = start + lane, symbol = i < count ? scratch.symbols[first + i] : ZERO;
        float x = i < count ? sums(args)[first + i] : 0;
        u32 all = __ballot_sync(ALL_LANES, symbol == ESCAPE);
        if (symbol == ESCAPE) put_word(beyond + 4ull * (before + __popc(all & lower_lanes())), bits_of(x));
        if (i < count && args.residual)
            args.error[first + i] = symbol == ESCAPE ? 0 : x - value_of(message, symbol, step);
        before += __popc(all);
    }
}

// ecsq::restore up to the symbols, by a block of 256 threads.
KERNEL(ecsq_open, RansArgs) {
    Scratch scratch(args);
    Message& message = *scratch.message;
    if (threadIdx.x == 0) {
        u64 head = head_length(args.length);
        const u8* bytes = scratch.bytes;
        u32 length = word_at(args.bytes);
        bool fits = length >= SHORT_BYTES && length <= args.room, coded = fits && length >= head;
        message.escapes = coded ? word_at(bytes + 4) : 0;
        coded = coded && head + 4ull * message.escapes <= length;
        message.kind = coded ? CODED : fits && length == SHORT_BYTES ? SHORT : CORRUPT;
        message.length = length, message.coded_at = (u32)(head + 4ull * message.escapes);
        for (u32 kind = 0; coded && kind < 3; kind++)
            message.levels[kind] = float_of(word_at(bytes + SHORT_BYTES + 4 * kind));
        if (message.kind == CORRUPT) atomicOr(args.infinite, 2);
    }
    __syncthreads();
    if (message.kind == CODED) open_streams(args, scratch);
}

// Places of escapes, by one warp.
KERNEL(ecsq_places, RansArgs) {
    Scratch scratch(args);
    Message& message = *scratch.message;
    if (message.kind != CODED) return;
    u32 escapes = scan_escapes(args, scratch);
    __syncwarp();
    if (escapes == message.escapes || lane_of_warp() > 0) return;
    message.kind = CORRUPT;
    atomicOr(args.infinite, 2);
}

// Values of symbols and of escapes; a warp for each chunk.
KERNEL(ecsq_restore, RansArgs) {
    Scratch scratch(args);
    const Message& message = *scratch.message;
    u64 chunk = warp_of_launch(), first = chunk * CHUNK;
    bool coded = message.kind == CODED, clears = message.kind == SHORT && !args.add;
    if (first >= args.length || !(coded || clears)) return;
    u32 lane = lane_of_warp(), count = smaller(args.length - first, CHUNK);
    u32 before = coded ? scratch.escapes[chunk] : 0;
    const u8* beyond = scratch.bytes + head_length(args.length);
    float step = coded ? float_of(word_at(scratch.bytes + SHORT_BYTES + 12 + 4 * (first / SECTION))) : 0;
    for (u32 start = 0; start < count; start += WARP) {
        u32 i = start + lane, symbol = coded && i < count ? scratch.symbols[first + i] : ZERO;
        u32 all = __ballot_sync(ALL_LANES, symbol == ESCAPE);
        float x = coded ? value_of(message, symbol, step) : 0;
        if (symbol == ESCAPE) x = float_of(word_at(beyond + 4ull * (before + __popc(all & lower_lanes()))));
        if (i < count) args.values[first + i] = args.add ? args.values[first + i] + x : x;
        before += __popc(all);
    }
}
