// Some elements with their indices: topk, graddrop and dgc.
//
// Equal to codec::{sparse, select, crowd, indices}. Encoding is a sequence of launches, and so is decoding:
//   find: sparse_clear, then for three digits of a magnitude sparse_histogram and sparse_digit
//   sparse_sample, find, sparse_pass of graddrop and dgc: what reaches the threshold of a sample
//   find of topk and dgc: the cut, below which nothing is among the largest
//   sparse_count, sparse_scan, sparse_start, sparse_gather: the chosen elements; sparse_write: their encoding
//   sparse_zero unless it adds, sparse_ones, sparse_scan, sparse_scatter: decoding
#include "device.hpp"

struct SparseArgs {
    float* values;
    const float* residual;  // null without feedback
    float* error;           // sums and then what is left of them, with a residual
    u8* bytes;
    u32* infinite;  // becomes 1 where a chosen element is not finite, 2 where indices are corrupt
    u32* scratch;
    u64 length;
    u32 count;     // of chosen elements
    u32 low_bits;  // of an index
    u32 digit;     // of the cut: 0 to 2
    u32 add;       // decoding adds to the values
    u32 in_sample;  // the cut is that of the sample
    u32 samples, stride, rank;  // size of the sample, elements between two, and rank of the threshold
    u32 crowd;  // choice among those that reach the threshold
    u32 start;  // element from which on some are taken
};

// codec::crowd::Crowd; without it the threshold is the cut.
enum Crowd : u32 { NONE, FIRST, LARGEST };

constexpr u32 TILE = 4096;
constexpr u32 BINS = 2048, DIGITS = 3, SAMPLES_MAX = 8192;

// select::DIGITS: shift and number of bits of a digit, the highest first.
inline u32 shift_of(u32 digit) { return digit == 0 ? 20 : digit == 1 ? 10 : 0; }
inline u32 width_of(u32 digit) { return digit == 0 ? 11 : 10; }

// Scratch: a histogram per digit, the sample, the cut and what belongs to it, two numbers per tile, and the
// chosen elements.
struct Scratch {
    u32 *histograms, *sample, *cut, *equal, *threshold, *passed, *total, *before_start;
    u32 *above, *at_cut, *indices, *bits;

    Scratch(const SparseArgs& args, u32 tiles) {
        histograms = args.scratch;
        sample = histograms + DIGITS * BINS;
        cut = sample + SAMPLES_MAX, equal = cut + 1;
        threshold = cut + 2, passed = cut + 3, total = cut + 4, before_start = cut + 5;
        above = cut + 6;
        at_cut = above + tiles;
        indices = at_cut + tiles;
        bits = indices + args.count;
    }
};

inline u32 tiles_of(u64 length) { return (u32)((length + TILE - 1) / TILE); }

// indices::Indices: lengths in bytes of the lower bits, and of the upper bits in unary.
inline u64 low_length(const SparseArgs& args) { return ((u64)args.count * args.low_bits + 7) / 8; }
inline u64 high_length(const SparseArgs& args) {
    return args.count == 0 ? 0 : (((args.length - 1) >> args.low_bits) + args.count + 7) / 8;
}
// Both kinds of encoding need as many tiles as the longer of values and upper bits.
inline u32 tiles(const SparseArgs& args) {
    u32 values = tiles_of(args.length), upper = tiles_of(high_length(args));
    return values < upper ? upper : values;
}


// Values plus residual, where the first histogram has left the sums.
inline const float* sums(const SparseArgs& args) { return args.residual ? args.error : args.values; }

// Zeros in the histograms, and the whole count to find.
KERNEL(sparse_clear, SparseArgs) {
    Scratch scratch(args, tiles(args));
    for (u64 i = thread_of_launch(); i < DIGITS * BINS; i += threads_of_launch()) scratch.histograms[i] = 0;
    if (thread_of_launch() > 0) return;
    *scratch.cut = 0, *scratch.equal = args.in_sample ? args.rank : args.count;
    if (args.in_sample) *scratch.passed = 0;
}

// select::sampled_threshold: every stride-th element, with a fixed jitter.
KERNEL(sparse_sample, SparseArgs) {
    Scratch scratch(args, tiles(args));
    for (u64 k = thread_of_launch(); k < args.samples; k += threads_of_launch()) {
        u64 i = k * args.stride + ((u32)k * 0x9e3779b9 >> 8) % args.stride;
        scratch.sample[k] = bits_of(args.residual ? args.values[i] + args.residual[i] : args.values[i]);
    }
}

// select::Cut::find, one histogram: magnitudes that begin with the digits of the cut so far.
KERNEL(sparse_histogram, SparseArgs) {
    __shared__ u32 histogram[BINS];
    for (u32 i = threadIdx.x; i < BINS; i += blockDim.x) histogram[i] = 0;
    __syncthreads();
    Scratch scratch(args, tiles(args));
    u32 shift = shift_of(args.digit), width = width_of(args.digit), prefix = *scratch.cut;
    bool add = args.digit == 0 && args.residual && args.crowd == NONE;
    u64 length = args.in_sample ? args.samples : args.length;
    for (u64 i = thread_of_launch(); i < length; i += threads_of_launch()) {
        float x = 0;
        if (args.in_sample) x = float_of(scratch.sample[i]);
        else if (add) args.error[i] = x = args.values[i] + args.residual[i];
        else x = sums(args)[i];
        u32 magnitude = magnitude_bits(x);
        if (magnitude >> shift >> width == prefix)
            atomicAdd(&histogram[magnitude >> shift & ((1 << width) - 1)], 1);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < BINS; i += blockDim.x)
        if (histogram[i] > 0) atomicAdd(&scratch.histograms[args.digit * BINS + i], histogram[i]);
}

// The next digit of the cut, by one warp: the bin in which the count ends, from the highest bin on.
KERNEL(sparse_digit, SparseArgs) {
    Scratch scratch(args, tiles(args));
    const u32* histogram = scratch.histograms + args.digit * BINS;
    u32 width = width_of(args.digit), share = (1u << width) / WARP, own = 0;
    u32 first = (1u << width) - 1 - lane_of_warp() * share;
    for (u32 i = 0; i < share; i++) own += histogram[first - i];
    u32 equal = *scratch.equal, lane = 0;
    for (; lane < WARP - 1; lane++) {
        u32 all = __shfl_sync(ALL_LANES, own, lane);
        if (equal <= all) break;
        equal -= all;
    }
    u32 bin = (1u << width) - 1 - lane * share;
    while (equal > histogram[bin]) equal -= histogram[bin--];
    __syncwarp();
    if (lane_of_warp() == 0) *scratch.cut = *scratch.cut << width | bin, *scratch.equal = equal;
}

// select::reaching: M += residual, and the number of elements that reach the threshold, which is not 0.
KERNEL(sparse_pass, SparseArgs) {
    Scratch scratch(args, tiles(args));
    u32 threshold = larger(*scratch.cut, 1), passed = 0;
    if (thread_of_launch() == 0) *scratch.threshold = threshold;
    for (u64 i = thread_of_launch(); i < args.length; i += threads_of_launch()) {
        float x = args.values[i];
        if (args.residual) args.error[i] = x += args.residual[i];
        if (magnitude_bits(x) < threshold) continue;
        passed++;
        if (magnitude_bits(x) >= INFINITE) atomicOr(args.infinite, 1);
    }
    if (passed > 0) atomicAdd(scratch.passed, passed);
}

// sparse::Sparse::choose and Crowd::choose: all elements are chosen that are `above`, and of those that are
// `at_cut` a number, `some`, from element `start` on, cyclically.
struct Choice {
    u32 low, high, some, start;

    Choice(const SparseArgs& args, const Scratch& scratch) {
        u32 threshold = *scratch.threshold, passed = *scratch.passed;
        start = args.crowd == NONE ? 0 : args.start;
        if (args.crowd != NONE && passed <= args.count) {
            low = 0, high = threshold, some = args.count - passed;
        } else if (args.crowd == FIRST) {
            low = threshold, high = 0xffffffff, some = args.count;
        } else {
            low = *scratch.cut, high = low + 1, some = *scratch.equal, start = 0;
        }
    }
    bool above(u32 magnitude) const { return magnitude >= high; }
    bool at_cut(u32 magnitude) const { return magnitude >= low && magnitude < high; }
};

// Elements of a tile above the cut, and at it; a warp for each tile.
KERNEL(sparse_count, SparseArgs) {
    u64 tile = warp_of_launch();
    if (tile >= tiles(args)) return;
    Scratch scratch(args, tiles(args));
    const Choice choice(args, scratch);
    u32 above = 0, at_cut = 0;
    for (u32 k = 0; k < TILE; k += WARP) {
        u64 i = tile * TILE + k + lane_of_warp();
        u32 magnitude = i < args.length ? magnitude_bits(sums(args)[i]) : 0;
        above += __popc(__ballot_sync(ALL_LANES, i < args.length && choice.above(magnitude)));
        at_cut += __popc(__ballot_sync(ALL_LANES, i < args.length && choice.at_cut(magnitude)));
    }
    if (lane_of_warp() == 0) scratch.above[tile] = above, scratch.at_cut[tile] = at_cut;
}

// Numbers of tiles become sums of those of earlier tiles, by one warp.
KERNEL(sparse_scan, SparseArgs) {
    u32 count = tiles(args), sum_above = 0, sum_at_cut = 0;
    Scratch scratch(args, count);
    for (u32 first = 0; first < count; first += WARP) {
        u32 tile = first + lane_of_warp();
        u32 above = tile < count ? scratch.above[tile] : 0, at_cut = tile < count ? scratch.at_cut[tile] : 0;
        u32 before = sum_above + sum_before(above), before_at_cut = sum_at_cut + sum_before(at_cut);
        if (tile < count) scratch.above[tile] = before, scratch.at_cut[tile] = before_at_cut;
        sum_above = __shfl_sync(ALL_LANES, before + above, WARP - 1);
        sum_at_cut = __shfl_sync(ALL_LANES, before_at_cut + at_cut, WARP - 1);
    }
    if (lane_of_warp() == 0) *scratch.total = sum_at_cut;
}

// Number of elements at the cut before the start, by one warp.
KERNEL(sparse_start, SparseArgs) {
    Scratch scratch(args, tiles(args));
    const Choice choice(args, scratch);
    u32 tile = choice.start / TILE, before = scratch.at_cut[tile];
    for (u32 first = tile * TILE; first < choice.start; first += WARP) {
        u32 i = first + lane_of_warp();
        bool counts = i < choice.start && choice.at_cut(magnitude_bits(sums(args)[i]));
        before += __popc(__ballot_sync(ALL_LANES, counts));
    }
    if (lane_of_warp() == 0) *scratch.before_start = before;
}

// The chosen elements in order; they are no residual any more.
KERNEL(sparse_gather, SparseArgs) {
    u64 tile = warp_of_launch();
    if (tile >= tiles(args)) return;
    Scratch scratch(args, tiles(args));
    const Choice choice(args, scratch);
    // Of those at the cut, in order, the first `around` are chosen, and `some` from number `start` on.
    u32 start = *scratch.before_start, end = start + choice.some, total = *scratch.total;
    u32 around = end > total ? end - total : 0, before = scratch.at_cut[tile];
    u32 behind = before > start ? before - start : 0;
    u32 place = scratch.above[tile] + smaller(before, around) + smaller(behind, choice.some);
    for (u32 k = 0; k < TILE; k += WARP) {
        u64 i = tile * TILE + k + lane_of_warp();
        bool exists = i < args.length;
        float x = exists ? sums(args)[i] : 0;
        bool at_cut = exists && choice.at_cut(magnitude_bits(x));
        u32 all_at_cut = __ballot_sync(ALL_LANES, at_cut);
        u32 number = before + __popc(all_at_cut & lower_lanes());
        bool is_some = at_cut && (number < around || (number >= start && number < end));
        bool keeps = is_some || (exists && choice.above(magnitude_bits(x)));
        u32 kept = __ballot_sync(ALL_LANES, keeps);
        if (keeps) {
            u32 at = place + __popc(kept & lower_lanes());
            scratch.indices[at] = (u32)i, scratch.bits[at] = bits_of(x);
            if (magnitude_bits(x) >= INFINITE) atomicOr(args.infinite, 1);
            if (args.residual) args.error[i] = 0;
        }
        before += __popc(all_at_cut), place += __popc(kept);
    }
}

// indices::Writer and the values, a thread for each byte.
KERNEL(sparse_write, SparseArgs) {
    Scratch scratch(args, tiles(args));
    u64 low = low_length(args), high = high_length(args), at = thread_of_launch();
    if (at >= low + high + 4ull * args.count) return;
    u32 byte = 0;
    if (at < low) {
        for (u32 k = 0; k < 8; k++) {
            u64 bit = 8 * at + k, i = bit / args.low_bits;
            if (i < args.count) byte |= (scratch.indices[i] >> (bit % args.low_bits) & 1) << k;
        }
    } else if (at < low + high) {
        // Bit (index >> low_bits) + i is set for index i: the first i that is not before this byte.
        u64 first = 8 * (at - low);
        u32 i = 0, end = args.count;
        while (i < end) {
            u32 middle = i + (end - i) / 2;
            if ((u64)(scratch.indices[middle] >> args.low_bits) + middle < first) i = middle + 1;
            else end = middle;
        }
        for (; i < args.count; i++) {
            u64 bit = (u64)(scratch.indices[i] >> args.low_bits) + i - first;
            if (bit >= 8) break;
            byte |= 1 << bit;
        }
    } else {
        u64 place = at - low - high;
        byte = scratch.bits[place / 4] >> (8 * (place % 4)) & 0xff;
    }
    args.bytes[at] = (u8)byte;
}

// Values without their elements: Set decodes these to 0.
KERNEL(sparse_zero, SparseArgs) {
    for (u64 i = thread_of_launch(); i < args.length; i += threads_of_launch()) args.values[i] = 0;
}

// Bits that are set in 4,096 bytes of upper bits, a warp for each of these tiles.
KERNEL(sparse_ones, SparseArgs) {
    u64 tile = warp_of_launch(), high = high_length(args);
    if (tile >= tiles(args)) return;
    Scratch scratch(args, tiles(args));
    u32 ones = 0;
    for (u32 k = lane_of_warp(); k < TILE; k += WARP) {
        u64 at = tile * TILE + k;
        if (at < high) ones += __popc(args.bytes[low_length(args) + at]);
    }
    ones += __shfl_xor_sync(ALL_LANES, ones, 16), ones += __shfl_xor_sync(ALL_LANES, ones, 8);
    ones += __shfl_xor_sync(ALL_LANES, ones, 4), ones += __shfl_xor_sync(ALL_LANES, ones, 2);
    ones += __shfl_xor_sync(ALL_LANES, ones, 1);
    if (lane_of_warp() == 0) scratch.above[tile] = ones, scratch.at_cut[tile] = 0;
}

// Lower bits of index i.
inline u32 low_part(const SparseArgs& args, u64 i) {
    u32 part = 0;
    for (u32 k = 0; k < args.low_bits; k++) {
        u64 bit = i * args.low_bits + k;
        part |= (u32)(args.bytes[bit / 8] >> (bit % 8) & 1) << k;
    }
    return part;
}

// Indices::read and the values: bit p, the i-th that is set, is the upper part p - i of index i.
KERNEL(sparse_scatter, SparseArgs) {
    u64 tile = warp_of_launch(), low = low_length(args), high = high_length(args);
    if (tile >= tiles(args)) return;
    Scratch scratch(args, tiles(args));
    const u8* upper = args.bytes + low;
    u32 place = scratch.above[tile];
    for (u32 k = 0; k < TILE; k += WARP) {
        u64 at = tile * TILE + k + lane_of_warp();
        u32 byte = at < high ? upper[at] : 0, own = __popc(byte), before = sum_before(own);
        u64 i = (u64)place + before;
        for (u32 bit = 0; bit < 8; bit++) {
            if (!(byte >> bit & 1) || i >= args.count) continue;
            u64 position = 8 * at + bit, index = (position - i) << args.low_bits | low_part(args, i);
            // Indices grow: where the upper parts are equal, the lower ones must.
            bool follows = position > 0 && (upper[(position - 1) / 8] >> ((position - 1) % 8) & 1);
            if (index >= args.length || (follows && low_part(args, i - 1) >= low_part(args, i))) {
                atomicOr(args.infinite, 2);
            } else {
                u32 bits = 0;
                for (u32 j = 0; j < 4; j++) bits |= (u32)args.bytes[low + high + 4 * i + j] << (8 * j);
                args.values[index] = args.add ? args.values[index] + float_of(bits) : float_of(bits);
            }
            i++;
        }
        place += __shfl_sync(ALL_LANES, before + own, WARP - 1);
    }
    bool last = (tile + 1) * TILE >= high && tile * TILE < high;
    if (last && lane_of_warp() == 0 && place < args.count) atomicOr(args.infinite, 2);
}
