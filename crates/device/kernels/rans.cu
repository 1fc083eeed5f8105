// rANS in streams of 16,384 symbols: a warp for each stream, a lane for each of its 32 states.
//
// Equal to codec::{entropy, kernel::rans}. Launches are listed in ecsq.hpp and lossless.hpp.
#include "ecsq.hpp"
#include "lossless.hpp"

// Zeros in what kernels add to.
KERNEL(rans_clear, RansArgs) {
    Scratch scratch(args);
    u64 words = 16 + 256, counts = 3 * parts(args.length, SECTION);
    for (u64 i = thread_of_launch(); i < words; i += threads_of_launch()) ((u32*)scratch.message)[i] = 0;
    for (u64 i = thread_of_launch(); i < counts; i += threads_of_launch()) scratch.counts[i] = 0;
}

// rans::rans_encode: states and words of a stream, in its slot; words from the end of the slot on.
KERNEL(rans_encode, RansArgs) {
    __shared__ u32 table[512];
    Scratch scratch(args);
    if (scratch.message->kind != CODED) return;
    for (u32 i = threadIdx.x; i < 512; i += blockDim.x) table[i] = scratch.table[i];
    __syncthreads();
    u64 stream = warp_of_launch(), first = stream * STREAM;
    if (first >= args.length) return;
    u32 lane = lane_of_warp(), count = smaller(args.length - first, STREAM), at = SLOT, x = LOWEST;
    const u8* symbols = scratch.symbols + first;
    u16* slot = scratch.slots + stream * SLOT;
    for (u32 row = (count + WARP - 1) / WARP; row-- > 0;) {
        u32 i = row * WARP + lane;
        bool exists = i < count;
        u32 symbol = exists ? symbols[i] : 0, step = table[256 + symbol];
        u32 complement = step >> 13 & (TOTAL - 1);
        bool puts = exists && x >= (TOTAL - complement) << (31 - TOTAL_BITS);
        u32 all = __ballot_sync(ALL_LANES, puts);
        at -= __popc(all);
        if (puts) slot[at + __popc(all & lower_lanes())] = (u16)x, x >>= WORD_BITS;
        u32 quotient = __umulhi(x, table[symbol]) >> (step >> 25);
        if (exists) x += (step & 0x1fff) + quotient * complement;
    }
    ((u32*)slot)[lane] = x;
    if (lane == 0) scratch.words[stream] = SLOT - at;
}

// Places of streams, by one warp; a message that does not fit is a short one.
KERNEL(rans_layout, RansArgs) {
    Scratch scratch(args);
    Message& message = *scratch.message;
    u32 lane = lane_of_warp(), streams = (u32)parts(args.length, STREAM);
    bool coded = message.kind == CODED;
    u64 length = message.coded_at + table_length(message) + 2ull * streams;
    for (u32 first = 0; coded && first < streams && length <= args.room; first += WARP) {
        u32 stream = first + lane, own = stream < streams ? STATE_BYTES + 2 * scratch.words[stream] : 0;
        u32 before = sum_before(own);
        if (stream < streams) scratch.starts[stream] = (u32)length + before;
        length += __shfl_sync(ALL_LANES, before + own, WARP - 1);
    }
    __syncwarp();
    if (lane > 0) return;
    coded = coded && length <= args.room;
    u64 raw = 8 + (args.planes == 0 ? 0 : (args.planes + 1) * args.length);
    message.kind = coded ? CODED : SHORT;
    message.length = (u32)(coded ? length : raw);
}

// The entropy-coded part, in scratch memory: a block of threads for each stream.
KERNEL(rans_gather, RansArgs) {
    Scratch scratch(args);
    const Message& message = *scratch.message;
    if (message.kind != CODED) return;
    u32 streams = (u32)parts(args.length, STREAM), stream = blockIdx.x;
    if (stream < streams) {
        const u16* slot = scratch.slots + (u64)stream * SLOT;
        u8* to = scratch.bytes + scratch.starts[stream];
        u32 states = STATE_BYTES / 2, words = scratch.words[stream], behind = SLOT - words - states;
        for (u32 i = threadIdx.x; i < states + words; i += blockDim.x)
            put_half(to + 2 * i, slot[i < states ? i : i + behind]);
    }
    if (stream > 0) return;
    u8* head = scratch.bytes + message.coded_at;
    u32 symbols = message.last - message.first + 1;
    for (u32 i = threadIdx.x; i < symbols + streams; i += blockDim.x) {
        bool in_table = i < symbols;
        put_half(head + 2 + 2 * i, in_table ? scratch.frequencies[message.first + i] : scratch.words[i - symbols]);
    }
    if (threadIdx.x == 0) put_half(head, message.first | message.last << 8);
}

// Copies bytes between memory that is aligned and memory that may not be.
inline void copy(u8* to, const u8* from, u32 length) {
    u64 words = ((u64)to | (u64)from) % 4 == 0 ? length / 4 : 0;
    for (u64 i = thread_of_launch(); i < words; i += threads_of_launch()) ((u32*)to)[i] = ((const u32*)from)[i];
    for (u64 i = 4 * words + thread_of_launch(); i < length; i += threads_of_launch()) to[i] = from[i];
}

// The message to where the host reads it.
KERNEL(rans_deliver, RansArgs) {
    Scratch scratch(args);
    copy(args.bytes, scratch.bytes, scratch.message->length);
}

// As much of the message as it says that it has, from where the host wrote it.
KERNEL(rans_stage, RansArgs) {
    __shared__ u32 length;
    if (threadIdx.x == 0) length = smaller(word_at(args.bytes), args.room);
    __syncthreads();
    copy(Scratch(args).bytes, args.bytes, length);
}

// rans::rans_decode: the symbols of a stream, and the number of escapes of each chunk.
KERNEL(rans_decode, RansArgs) {
    __shared__ u32 table[TOTAL];
    Scratch scratch(args);
    if (scratch.message->kind != CODED) return;
    for (u32 i = threadIdx.x; i < TOTAL; i += blockDim.x) table[i] = scratch.table[i];
    __syncthreads();
    u64 stream = warp_of_launch(), first = stream * STREAM;
    if (first >= args.length) return;
    u32 lane = lane_of_warp(), count = smaller(args.length - first, STREAM);
    const u8* states = scratch.bytes + scratch.starts[stream];
    const u8* words = states + STATE_BYTES;
    u32 x = half_at(states + 4 * lane) | half_at(states + 4 * lane + 2) << 16;
    u32 at = 0, all_words = scratch.words[stream], escapes = 0;
    bool sound = x >= LOWEST && x < SIGN;
    for (u32 row = 0; row * WARP < count; row++) {
        u32 i = row * WARP + lane, entry = table[x & (TOTAL - 1)];
        bool exists = i < count;
        u32 next = (entry >> 8 & (TOTAL - 1)) * (x >> TOTAL_BITS) + (entry >> 20);
        bool takes = exists && next < LOWEST;
        u32 all = __ballot_sync(ALL_LANES, takes), place = at + __popc(all & lower_lanes());
        // Too few words are noticed at the end.
        if (takes) next = next << WORD_BITS | (place < all_words ? half_at(words + 2 * place) : 0);
        at += __popc(all);
        if (exists) scratch.symbols[first + i] = (u8)entry, x = next;
        escapes += __popc(__ballot_sync(ALL_LANES, exists && (entry & 0xff) == 0));
        bool ends = (i - lane + WARP) % CHUNK == 0 || i - lane + WARP >= count;
        if (!ends) continue;
        if (lane == 0) scratch.escapes[(first + i) / CHUNK] = escapes;
        escapes = 0;
    }
    sound = sound && at == all_words && x == LOWEST;
    if (!sound) atomicOr(args.infinite, 2);
}
