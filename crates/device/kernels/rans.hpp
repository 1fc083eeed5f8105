// Entropy-coded messages: what rans.cu, ecsq.hpp and lossless.hpp share.
//
// Encoding builds the message in scratch memory, and rans_deliver copies it to where the host reads it; decoding
// begins with rans_stage, which copies it back. In between, kernels see aligned memory of the device.
#pragma once

#include "device.hpp"

struct RansArgs {
    float* values;
    const float* residual;  // null without feedback
    float* error;           // sums and then what is left of them, with a residual
    u8* bytes;
    u32* infinite;  // becomes 1 where a value is not finite, 2 where bytes are no encoding
    u32* scratch;
    u64 length;
    u32 room;    // bytes of the longest encoding
    u32 planes;  // of lossless; 0 is ecsq
    float step;  // of ecsq, over the root mean square
    u32 add;     // decoding adds to the values
};

constexpr u32 STREAM = 1 << 14, STATE_BYTES = 4 * WARP;
constexpr u32 SLOT = STREAM + STATE_BYTES / 2;  // words of a stream's states and most words
constexpr u32 CHUNK = 4096, SECTION = 1 << 16;  // of ecsq
constexpr u32 TOTAL_BITS = 12, TOTAL = 1 << TOTAL_BITS, LOWEST = 1 << 15, WORD_BITS = 16;
constexpr u32 WARPS = 4;  // of a block of threads

// Numbers of a message; `kind` says what follows its head.
enum Kind : u32 { CODED, SHORT, CORRUPT };
struct Message {
    u32 kind;
    u32 length;       // in bytes
    u32 coded_at;     // place of the entropy-coded part
    u32 first, last;  // symbols that occur
    u32 escapes;
    u32 any;  // 1 if a section has a step
    float levels[3];
};

inline u64 parts(u64 length, u32 each) { return (length + each - 1) / each; }

struct Scratch {
    Message* message;
    u32 *histogram, *frequencies, *table;
    u32 *words, *starts;  // of every stream: number of words, and its place among the bytes
    u32* escapes;         // of every chunk, then of those before it
    double *squares, *sums;  // of every chunk; three sums
    float* steps;            // of every section
    u32* counts;             // of every section: of levels 1 and 2, and of further ones
    u8 *bytes, *symbols;
    u16* slots;

    explicit Scratch(const RansArgs& args) {
        u64 streams = parts(args.length, STREAM), chunks = parts(args.length, CHUNK);
        u64 sections = parts(args.length, SECTION);
        squares = (double*)args.scratch;
        sums = squares + chunks;
        message = (Message*)(sums + 3 * chunks);
        histogram = (u32*)message + 16;
        frequencies = histogram + 256;
        table = frequencies + 256;
        words = table + TOTAL;
        starts = words + streams;
        escapes = starts + streams;
        steps = (float*)(escapes + chunks);
        counts = (u32*)steps + sections;
        slots = (u16*)(counts + 3 * sections);
        symbols = (u8*)(slots + streams * SLOT);
        bytes = symbols + parts(args.length, 4) * 4;
    }
};

// Values plus residual, where the first kernel has left the sums.
inline const float* sums(const RansArgs& args) { return args.residual ? args.error : args.values; }

inline u32 word_at(const u8* place) {
    return place[0] | (u32)place[1] << 8 | (u32)place[2] << 16 | (u32)place[3] << 24;
}
inline u32 half_at(const u8* place) {
    return (u64)place % 2 == 0 ? *(const u16*)place : place[0] | (u32)place[1] << 8;
}
inline void put_half(u8* place, u32 half) { place[0] = (u8)half, place[1] = (u8)(half >> 8); }
inline void put_word(u8* place, u32 word) { put_half(place, word), put_half(place + 2, word >> 16); }

inline u32 table_length(const Message& message) { return 2 + 2 * (message.last - message.first + 1); }

// rans::normalise and rans::EncodeTable::new, by a block of 256 threads: a thread for each symbol.
static void build_encode_table(Scratch& scratch) {
    __shared__ u32 counts[256], frequencies[256], starts[256];
    __shared__ u64 all;
    __shared__ u32 used, largest;
    u32 symbol = threadIdx.x;
    counts[symbol] = scratch.histogram[symbol];
    __syncthreads();
    if (symbol == 0) {
        all = 0, used = 0, largest = 0;
        for (u32 i = 0; i < 256; i++) {
            all += counts[i], used += counts[i] > 0;
            if (counts[i] > counts[largest]) largest = i;
        }
        if (all == 0) all = 1;
    }
    __syncthreads();
    frequencies[symbol] = counts[symbol] == 0 ? 0 : 1 + (u32)((u64)counts[symbol] * (TOTAL - used) / all);
    __syncthreads();
    if (symbol == 0) {
        u32 rest = TOTAL;
        for (u32 i = 0; i < 256; i++) rest -= frequencies[i];
        frequencies[largest] += rest;
        // A frequency of all would need a binary digit more.
        if (frequencies[largest] == TOTAL) frequencies[largest]--, frequencies[largest ^ 1] = 1;
        u32 start = 0, first = 256, last = 0;
        for (u32 i = 0; i < 256; i++) {
            starts[i] = start, start += frequencies[i];
            if (frequencies[i] == 0) continue;
            last = i;
            if (first == 256) first = i;
        }
        scratch.message->first = first, scratch.message->last = last;
    }
    __syncthreads();
    u32 frequency = frequencies[symbol], reciprocal = 0xffffffff, shift = 0, bias = starts[symbol];
    if (frequency == 1) bias += TOTAL - 1;
    if (frequency > 1) {
        u32 digits = 1;
        while (1u << digits < frequency) digits++;
        reciprocal = (u32)(((1ull << (digits + 31)) + frequency - 1) / frequency), shift = digits - 1;
    }
    scratch.frequencies[symbol] = frequency;
    scratch.table[symbol] = reciprocal;
    scratch.table[256 + symbol] = bias | (TOTAL - frequency) << 13 | shift << 25;
}

// entropy::decode up to the streams, by a block of 256 threads: the table, and where streams are. Anything that
// does not fit makes the message a corrupt one.
static void open_streams(const RansArgs& args, Scratch& scratch) {
    __shared__ u32 frequencies[256], starts[256], wrong;
    Message& message = *scratch.message;
    u32 symbol = threadIdx.x, streams = (u32)parts(args.length, STREAM);
    const u8* coded = scratch.bytes + message.coded_at;
    u32 left = message.length - message.coded_at;
    if (symbol == 0) {
        u32 first = left < 2 ? 1 : coded[0], last = left < 2 ? 0 : coded[1];
        message.first = first, message.last = last;
        wrong = first > last || left < table_length(message) + 2ull * streams;
    }
    __syncthreads();
    if (!wrong) {
        bool occurs = symbol >= message.first && symbol <= message.last;
        frequencies[symbol] = occurs ? smaller(half_at(coded + 2 + 2 * (symbol - message.first)), TOTAL) : 0;
    }
    __syncthreads();
    if (symbol == 0 && !wrong) {
        u32 start = 0;
        for (u32 i = 0; i < 256; i++) {
            starts[i] = start, start += frequencies[i];
            if (frequencies[i] == TOTAL) wrong = 1;
        }
        if (start != TOTAL) wrong = 1;
    }
    __syncthreads();
    if (!wrong) {
        // Warp w takes symbols w, w + 8, ...: a frequency may be nearly the total.
        for (u32 i = symbol / WARP; i < 256; i += blockDim.x / WARP)
            for (u32 place = lane_of_warp(); place < frequencies[i]; place += WARP)
                scratch.table[starts[i] + place] = i | frequencies[i] << 8 | place << 20;
    }
    if (!wrong && symbol < WARP) {
        u32 head = table_length(message);
        u64 done = head + 2ull * streams;
        for (u32 first = 0; first < streams && done <= left; first += WARP) {
            u32 stream = first + symbol, words = 0;
            if (stream < streams) words = half_at(coded + head + 2 * stream);
            u32 own = stream < streams ? STATE_BYTES + 2 * words : 0, before = sum_before(own);
            if (stream < streams) scratch.words[stream] = words, scratch.starts[stream] = message.coded_at + (u32)done + before;
            done += __shfl_sync(ALL_LANES, before + own, WARP - 1);
        }
        if (symbol == 0 && done != left) wrong = 1;
    }
    __syncthreads();
    if (symbol > 0 || !wrong) return;
    message.kind = CORRUPT;
    atomicOr(args.infinite, 2);
}
