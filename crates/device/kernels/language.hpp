// Programs of the codec language: what the text that codec::language::cuda writes includes.
//
// A team encodes a block: a warp up to 256 elements, else a block of threads. Element THREADS k + own thread
// lies in register k of a thread; what others need goes through `scratch`. Equal to codec::language: sums in
// 32 lanes and then by halves, whatever the team.
#pragma once

#include "codes.hpp"
#include "formats.hpp"

// Sizes of a program: elements of a block, and the most bytes that one becomes.
template <u32 ELEMENTS_, u32 BYTES_>
struct Sizes {
    static constexpr u32 ELEMENTS = ELEMENTS_, BYTES = BYTES_;
    static constexpr u32 EIGHTH = (ELEMENTS / 8 + WARP - 1) / WARP * WARP;
    static constexpr u32 THREADS = ELEMENTS <= 256 ? WARP : EIGHTH < 256 ? EIGHTH : 256;
    static constexpr u32 EACH = (ELEMENTS + THREADS - 1) / THREADS;
    static constexpr u32 PADDED = (ELEMENTS + GROUP - 1) / GROUP * GROUP;
    static constexpr u32 TEAMS = THREADS == WARP ? WARPS : 1;
};

template <class Sizes>
struct Shared {
    u32 scratch[Sizes::PADDED], words[(Sizes::BYTES + 3) / 4], sums[Sizes::THREADS / WARP];
};

inline u32 word(float x) { return bits_of(x); }
inline u32 word(i32 x) { return (u32)x; }
inline void unword(float& to, u32 word) { to = float_of(word); }
inline void unword(i32& to, u32 word) { to = (i32)word; }

// Arithmetic of language::compute and language::loops.
inline float least(float x, float y) { return x < y ? x : y; }
inline float most(float x, float y) { return x > y ? x : y; }
inline i32 least(i32 x, i32 y) { return x < y ? x : y; }
inline i32 most(i32 x, i32 y) { return x > y ? x : y; }
inline float quotient(float x, float y) { return y == 0 ? 0 : x / y; }
inline float magnitude(float x) { return float_of(magnitude_bits(x)); }
inline float negated(float x) { return float_of(bits_of(x) ^ SIGN); }
inline i32 magnitude(i32 x) { return x < 0 ? (i32)(0 - (u32)x) : x; }
inline i32 negated(i32 x) { return (i32)(0 - (u32)x); }
inline i32 plus(i32 x, i32 y) { return (i32)((u32)x + (u32)y); }
inline i32 minus(i32 x, i32 y) { return (i32)((u32)x - (u32)y); }
inline i32 times(i32 x, i32 y) { return (i32)((u32)x * (u32)y); }
inline i32 rounded(float x) {
    constexpr float MAX = 4194303.0f;
    x = x < MAX ? x : MAX;
    return round_even(x > -MAX ? x : -MAX);
}
inline i32 rounded_randomly(float x, i32 random) {
    constexpr i32 MAX = 127 << RANDOM_BITS;
    return plus(most(-MAX, least(rounded(x * 32768.0f), MAX)), random) >> RANDOM_BITS;
}
inline float digits(float x, u32 count) {
    return magnitude(x) < SMALLEST ? 0 : float_of(bits_of(x) & ~((1u << (24 - count)) - 1));
}
inline float digits_up(float x, u32 count) {
    u32 unused = (1u << (24 - count)) - 1, up = (bits_of(x) + unused) & ~unused;
    return (up & ~SIGN) < INFINITE && magnitude(x) >= SMALLEST ? float_of(up) : digits(x, count);
}

// Constants that depend on the number of elements; program::{Unary, Binary}::of.
inline double ratio(double x, double y) { return y == 0 ? 0 : x / y; }
inline double least(double x, double y) { return x < y || y != y ? x : y; }
inline double most(double x, double y) { return x > y || y != y ? x : y; }
inline double whole_above(double x) { return ceil(x - 1e-6); }
inline i32 whole(double x) {
    return x != x ? 0 : x >= 2147483647.0 ? 2147483647 : x <= -2147483648.0 ? -2147483647 - 1 : (i32)x;
}
// Number of kept elements.
inline u32 counted(double x, u32 elements) { return !(x >= 1) ? 1 : x >= elements ? elements : (u32)x; }

// language::wire::Wire::bytes of integers.
inline u32 code_bytes(u32 width, u32 count) {
    if (width >= 8) return width / 8 * count;
    return count / GROUP * Planes::length(GROUP, width) + Planes::length(count % GROUP, width);
}

// indices::Indices.
struct IndexLayout {
    u32 low_bits = 0, low_bytes, high_bytes;

    IndexLayout(u32 count, u32 elements) {
        while (elements / count >> (low_bits + 1)) low_bits++;
        low_bytes = (count * low_bits + 7) / 8;
        high_bytes = (((elements - 1) >> low_bits) + count + 7) / 8;
    }
    u32 bytes() const { return low_bytes + high_bytes; }
};

template <class Text>
struct Team {
    static constexpr u32 THREADS = Text::THREADS, EACH = Text::EACH;
    using Numbers = float[EACH];
    using Ints = i32[EACH];

    Shared<Text>& shared;
    const Key& key;
    u64 number, first;
    u32 thread, elements;
    bool is_finite = true, is_corrupt = false;

    Team(const CodeArgs& args, Shared<Text>* all)
        : shared(all[THREADS == WARP ? threadIdx.x / WARP : 0]), key(args.key) {
        number = THREADS == WARP ? warp_of_launch() : blockIdx.x;
        first = number * Text::ELEMENTS;
        thread = threadIdx.x % THREADS;
        elements = first < args.length ? smaller(args.length - first, Text::ELEMENTS) : 0;
    }

    u8* bytes() const { return (u8*)shared.words; }
    u32 at(u32 k) const { return THREADS * k + thread; }
    void sync() const {
        if (THREADS == WARP) __syncwarp();
        else __syncthreads();
    }

    // Shows values to the other threads.
    template <class T>
    void show(const T (&x)[EACH]) const {
        sync();
        for (u32 k = 0; k < EACH; k++)
            if (at(k) < Text::PADDED) shared.scratch[at(k)] = word(x[k]);
        sync();
    }
    template <class T>
    void see(T& to, u32 at) const { unword(to, shared.scratch[at]); }

    u32 total(u32 own) const {
        own = sum_of_warp(own);
        if (THREADS == WARP) return own;
        sync();
        if (thread % WARP == 0) shared.sums[thread / WARP] = own;
        sync();
        u32 sum = 0;
        for (u32 warp = 0; warp < THREADS / WARP; warp++) sum += shared.sums[warp];
        return sum;
    }
    // For each register, the sum of those of earlier elements.
    void sum_before(u32 (&own)[EACH]) const {
        constexpr u32 SHARE = Text::PADDED / WARP;
        sync();
        for (u32 k = 0; k < EACH; k++)
            if (at(k) < Text::PADDED) shared.scratch[at(k)] = own[k];
        for (u32 rest = THREADS * EACH + thread; rest < Text::PADDED; rest += THREADS) shared.scratch[rest] = 0;
        sync();
        if (thread < WARP) {
            u32 sum = 0, before = 0;
            for (u32 i = 0; i < SHARE; i++) sum += shared.scratch[SHARE * thread + i];
            for (u32 lane = 0; lane < WARP; lane++) {
                u32 other = __shfl_sync(ALL_LANES, sum, lane);
                before += lane < thread ? other : 0;
            }
            for (u32 i = 0; i < SHARE; i++) {
                u32 one = shared.scratch[SHARE * thread + i];
                shared.scratch[SHARE * thread + i] = before;
                before += one;
            }
        }
        sync();
        for (u32 k = 0; k < EACH; k++) own[k] = at(k) < Text::PADDED ? shared.scratch[at(k)] : 0;
    }

    // loops::reduce
    template <class Fold>
    float reduce(float start, const Numbers& x, u32 count, Fold fold) const {
        float own = start;
        if (THREADS == WARP) {
            for (u32 k = 0; k < EACH; k++)
                if (at(k) < count) own = fold(own, x[k]);
        } else {
            show(x);
            if (thread < WARP)
                for (u32 i = thread; i < count; i += WARP) own = fold(own, float_of(shared.scratch[i]));
        }
        for (u32 half = WARP / 2; half > 0; half /= 2) own = fold(own, __shfl_down_sync(ALL_LANES, own, half));
        own = __shfl_sync(ALL_LANES, own, 0);
        if (THREADS == WARP) return own;
        sync();
        if (thread == 0) shared.sums[0] = bits_of(own);
        sync();
        float all = float_of(shared.sums[0]);
        sync();
        return all;
    }
    float sum(const Numbers& x, u32 count) const {
        return reduce(0, x, count, [](float a, float b) { return a + b; });
    }
    float mean(const Numbers& x, u32 count, float share) const {
        Numbers parts;
        for (u32 k = 0; k < EACH; k++) parts[k] = x[k] * share;
        return sum(parts, count) / ((float)count * share);
    }
    float least_of(const Numbers& x, u32 count) const {
        return reduce(float_of(INFINITE), x, count, [](float a, float b) { return least(a, b); });
    }
    float most_of(const Numbers& x, u32 count) const {
        return reduce(float_of(SIGN | INFINITE), x, count, [](float a, float b) { return most(a, b); });
    }
    i32 count_of(const Ints& x, u32 count) const {
        u32 own = 0;
        for (u32 k = 0; k < EACH; k++) own += at(k) < count ? (u32)x[k] : 0;
        return (i32)total(own);
    }

    // pick::scan: one thread, in order.
    void scan(Numbers& to, const Numbers& x, u32 count) const {
        show(x);
        float sum = 0;
        for (u32 i = 0; thread == 0 && i < count; i++) {
            sum += float_of(shared.scratch[i]);
            shared.scratch[i] = bits_of(sum);
        }
        sync();
        for (u32 k = 0; k < EACH; k++) see(to[k], at(k) < count ? at(k) : 0);
    }
    // pick::shift
    template <class T>
    void shift(T (&to)[EACH], const T (&x)[EACH], u32 count, i32 by) const {
        show(x);
        for (u32 k = 0; k < EACH; k++) {
            long long from = (long long)at(k) - by;
            bool inside = from >= 0 && from < count;
            see(to[k], inside ? (u32)from : 0);
            if (!inside) to[k] = 0;
        }
    }
    // pick::transform: pieces of a power of two, each sum of all scaled numbers with their signs.
    void transform(Numbers& to, const Numbers& x) const {
        u32 starts[EACH], lengths[EACH];
        for (u32 k = 0; k < EACH; k++) {
            u32 start = 0, length = 4096;
            for (; length > 1; length /= 2) {
                if (!(elements & length)) continue;
                if (at(k) < start + length) break;
                start += length;
            }
            u32 odd = 0, factor = 127;
            for (u32 n = length; n > 1; n /= 2) {
                odd ^= 1;
                factor -= odd ^ 1;
            }
            starts[k] = start, lengths[k] = length;
            to[k] = x[k] * (float_of(factor << 23) * (odd ? 0.70710677f : 1.0f));
        }
        for (u32 half = 1; half < Text::PADDED; half *= 2) {
            show(to);
            for (u32 k = 0; k < EACH; k++) {
                u32 own = at(k) - starts[k];
                if (half >= lengths[k] || at(k) >= elements) continue;
                float other = float_of(shared.scratch[starts[k] + (own ^ half)]);
                to[k] = own & half ? other - to[k] : to[k] + other;
            }
        }
    }

    // random::fill
    void draw(Ints& to) const {
        constexpr bool IS_SHARED = THREADS == WARP && Text::ELEMENTS % GROUP == 0;
        Words words = {};
        for (u32 k = 0; k < EACH; k++) {
            u64 element = first + at(k);
            u32 vector = (u32)(element % GROUP) / LANES, own = IS_SHARED ? k % PER_LANE : vector / 2;
            if (!IS_SHARED || own == 0) words = philox(key, element / GROUP * LANES + element % LANES);
            u32 pair = own == 0 ? words.at[0] : own == 1 ? words.at[1] : own == 2 ? words.at[2] : words.at[3];
            to[k] = (i32)((pair >> (vector % 2 * 16) & 0xffff) >> 1);
        }
    }
    // wire::random::Key::below of the number of the block.
    u32 start() const {
        u64 block = first / elements;
        Words words = philox(key, block / 4);
        u32 own = (u32)block % 4;
        u32 word = own == 0 ? words.at[0] : own == 1 ? words.at[1] : own == 2 ? words.at[2] : words.at[3];
        return __umulhi(word, elements);
    }

    // Largest key that `count` of the eligible keys reach.
    u32 cut(const u32 (&keys)[EACH], const bool (&eligible)[EACH], u32 count) const {
        u32 cut = 0;
        for (u32 bit = 1u << 31; bit > 0; bit /= 2) {
            u32 own = 0;
            for (u32 k = 0; k < EACH; k++) own += eligible[k] && keys[k] >= (cut | bit);
            if (total(own) >= count) cut |= bit;
        }
        return cut;
    }
    // Places of chosen elements, in order.
    void collect(Ints& to, const bool (&chosen)[EACH], u32 kept) const {
        u32 places[EACH];
        for (u32 k = 0; k < EACH; k++) places[k] = chosen[k];
        sum_before(places);
        sync();
        for (u32 k = 0; k < EACH; k++)
            if (chosen[k]) shared.scratch[places[k]] = at(k);
        sync();
        for (u32 k = 0; k < EACH; k++) to[k] = at(k) < kept ? (i32)shared.scratch[at(k)] : 0;
    }
    void choose_largest(Ints& to, const Numbers& x, const bool (&eligible)[EACH], u32 kept) const {
        u32 keys[EACH], equal[EACH], above = 0;
        bool chosen[EACH];
        for (u32 k = 0; k < EACH; k++) keys[k] = magnitude_bits(x[k]);
        u32 least = cut(keys, eligible, kept);
        for (u32 k = 0; k < EACH; k++) {
            equal[k] = eligible[k] && keys[k] == least;
            chosen[k] = eligible[k] && keys[k] > least;
            above += chosen[k];
        }
        above = total(above);
        u32 is_equal = 0;
        for (u32 k = 0; k < EACH; k++) is_equal |= equal[k] << k;
        sum_before(equal);
        for (u32 k = 0; k < EACH; k++) chosen[k] |= is_equal >> k & 1 && equal[k] < kept - above;
        collect(to, chosen, kept);
    }
    void largest(Ints& to, const Numbers& x, u32 kept) const {
        bool all[EACH];
        for (u32 k = 0; k < EACH; k++) all[k] = at(k) < elements;
        choose_largest(to, x, all, kept);
    }
    void largest_where(Ints& to, const Numbers& x, const Ints& mask, u32 kept) const {
        if ((u32)count_of(mask, elements) <= kept) return where(to, mask, kept);
        bool holds[EACH];
        for (u32 k = 0; k < EACH; k++) holds[k] = at(k) < elements && mask[k] != 0;
        choose_largest(to, x, holds, kept);
    }
    // pick::locate
    void where(Ints& to, const Ints& mask, u32 kept) const {
        u32 before[EACH], from = start(), own = 0;
        bool chosen[EACH];
        for (u32 k = 0; k < EACH; k++) {
            before[k] = at(k) < elements && mask[k] != 0;
            own += at(k) < from && before[k];
        }
        u32 holding = (u32)count_of(mask, elements), early = total(own);
        sum_before(before);
        for (u32 k = 0; k < EACH; k++) {
            bool holds = mask[k] != 0;
            u32 rank = holds ? before[k] : at(k) - before[k], first = holds ? early : from - early;
            u32 all = holds ? holding : elements - holding, places = holds ? kept : kept - holding;
            u32 turn = at(k) >= from ? rank - first : rank + (all - first);
            chosen[k] = at(k) < elements && (holds || holding < kept) && turn < places;
        }
        collect(to, chosen, kept);
    }
    template <class T>
    void gather(T (&to)[EACH], const T (&x)[EACH], const Ints& indices, u32 kept) const {
        show(x);
        for (u32 k = 0; k < EACH; k++) see(to[k], at(k) < kept ? (u32)indices[k] : 0);
    }
    // pick::rank, in the order of f32::total_cmp.
    float rank(const Numbers& x, u32 count, i32 rank) const {
        u32 keys[EACH];
        bool all[EACH];
        for (u32 k = 0; k < EACH; k++) {
            keys[k] = bits_of(x[k]) ^ (bits_of(x[k]) & SIGN ? ALL_LANES : SIGN);
            all[k] = at(k) < count;
        }
        u32 key = cut(keys, all, rank < 1 ? 1 : smaller((u32)rank, count));
        return float_of(key ^ (key & SIGN ? SIGN : ALL_LANES));
    }
    void sample(Numbers& to, const Numbers& x, u32 kept) const {
        u32 stride = elements / kept;
        show(x);
        for (u32 k = 0; k < EACH; k++) {
            u32 jitter = (at(k) * 0x9e3779b9u >> 8) % stride;
            see(to[k], at(k) < kept ? at(k) * stride + jitter : 0);
        }
    }
    // take::put_at: numbers at indices, and where they are.
    void scatter(Numbers& to, bool (&there)[EACH], const Ints& indices, const Numbers& x, u32 kept) const {
        Ints none = {};
        show(none);
        for (u32 k = 0; k < EACH; k++)
            if (at(k) < kept) shared.scratch[indices[k]] = 1;
        sync();
        for (u32 k = 0; k < EACH; k++) there[k] = at(k) < elements && shared.scratch[at(k)] != 0;
        sync();
        for (u32 k = 0; k < EACH; k++)
            if (at(k) < kept) shared.scratch[indices[k]] = bits_of(x[k]);
        sync();
        for (u32 k = 0; k < EACH; k++) to[k] = there[k] ? float_of(shared.scratch[at(k)]) : 0;
    }

    template <class Format>
    void put(u32 offset, const Numbers& x, u32 count) {
        constexpr u32 SIZE = sizeof(typename Format::Element);
        for (u32 k = 0; k < EACH; k++) {
            if (at(k) >= count) continue;
            is_finite &= magnitude_bits(x[k]) < Format::LIMIT;
            u32 element = Format::put(x[k]);
            for (u32 i = 0; i < SIZE; i++) bytes()[offset + SIZE * at(k) + i] = (u8)(element >> (8 * i));
        }
    }
    template <class Format>
    float get(u32 offset, u32 at) const {
        constexpr u32 SIZE = sizeof(typename Format::Element);
        u32 element = 0;
        for (u32 i = 0; i < SIZE; i++) element |= (u32)bytes()[offset + SIZE * at + i] << (8 * i);
        return Format::get((typename Format::Element)element);
    }
    template <class Format>
    void take(Numbers& to, u32 offset, u32 count) const {
        for (u32 k = 0; k < EACH; k++) to[k] = at(k) < count ? get<Format>(offset, at(k)) : 0;
    }
    template <class Format>
    void spoil(u32 offset, u32 count) const {
        Numbers none;
        for (u32 k = 0; k < EACH; k++) none[k] = float_of(0x7fc00000);
        Team(*this).put<Format>(offset, none, count);
    }
    void spoil_codes(u32 offset, u32 end) const {
        for (u32 i = offset + thread; i < end; i += THREADS) bytes()[i] = 0;
    }

    void put_codes(u32 offset, const Ints& x, u32 count, u32 width, i32 min, i32 max) const {
        Ints codes;
        for (u32 k = 0; k < EACH; k++) codes[k] = least(most(x[k], min), max);
        if (width >= 8) {
            for (u32 k = 0; k < EACH; k++)
                for (u32 i = 0; at(k) < count && i < width / 8; i++)
                    bytes()[offset + width / 8 * at(k) + i] = (u8)((u32)codes[k] >> (8 * i));
            return;
        }
        u8* all = (u8*)shared.scratch;
        sync();
        for (u32 k = 0; k < EACH; k++)
            if (at(k) < Text::PADDED) all[at(k)] = (u8)(at(k) < count ? codes[k] : 0);
        for (u32 rest = THREADS * EACH + thread; rest < Text::PADDED; rest += THREADS) all[rest] = 0;
        sync();
        u32 whole = Planes::length(GROUP, width), length = code_bytes(width, count);
        for (u32 i = thread; i < length; i += THREADS) {
            u32 group = i / whole, own = smaller(count - group * GROUP, GROUP);
            bytes()[offset + i] = (u8)Planes::byte(all + group * GROUP, own, width, i % whole);
        }
    }
    i32 code(u32 offset, u32 count, u32 width, bool is_signed, u32 at) const {
        const u8* from = bytes() + offset;
        u32 code = 0;
        if (width >= 8) {
            for (u32 i = 0; i < width / 8; i++) code |= (u32)from[width / 8 * at + i] << (8 * i);
        } else {
            u32 group = at / GROUP, own = smaller(count - group * GROUP, GROUP);
            code = Planes::code(from + group * Planes::length(GROUP, width), own, width, at % GROUP);
        }
        return is_signed ? (i32)(code << (32 - width)) >> (32 - width) : (i32)code;
    }
    void take_codes(Ints& to, u32 offset, u32 count, u32 width, bool is_signed) const {
        for (u32 k = 0; k < EACH; k++) to[k] = at(k) < count ? code(offset, count, width, is_signed, at(k)) : 0;
    }

    void set_bits(u32 at, u32 bits) const {
        atomicOr(&shared.scratch[at / 32], bits << (at % 32));
        u32 rest = at % 32 == 0 ? 0 : bits >> (32 - at % 32);
        if (rest) atomicOr(&shared.scratch[at / 32 + 1], rest);
    }
    void put_indices(u32 offset, const Ints& indices, u32 kept) const {
        IndexLayout layout(kept, elements);
        Ints none = {};
        show(none);
        for (u32 k = 0; k < EACH; k++) {
            if (at(k) >= kept) continue;
            u32 index = (u32)indices[k];
            set_bits(at(k) * layout.low_bits, index & ((1u << layout.low_bits) - 1));
            set_bits(8 * layout.low_bytes + (index >> layout.low_bits) + at(k), 1);
        }
        sync();
        for (u32 i = thread; i < layout.bytes(); i += THREADS) bytes()[offset + i] = ((u8*)shared.scratch)[i];
    }
    void take_indices(Ints& to, u32 offset, u32 kept) {
        IndexLayout layout(kept, elements);
        const u8 *low = bytes() + offset, *high = low + layout.low_bytes;
        u32 ones[EACH], found = 0;
        for (u32 k = 0; k < EACH; k++) {
            ones[k] = at(k) < layout.high_bytes ? __popc(high[at(k)]) : 0;
            found += ones[k];
        }
        is_corrupt |= total(found) < kept;
        sum_before(ones);
        Ints none = {};
        show(none);
        for (u32 k = 0; k < EACH; k++) {
            u32 place = ones[k];
            for (u32 i = 0; at(k) < layout.high_bytes && i < 8; i++)
                if (high[at(k)] >> i & 1 && place < kept) shared.scratch[place++] = 8 * at(k) + i;
        }
        sync();
        for (u32 k = 0; k < EACH; k++) {
            to[k] = 0;
            if (at(k) >= kept) continue;
            u32 lower = 0, bit = at(k) * layout.low_bits;
            for (u32 i = 0; i < layout.low_bits; i++, bit++) lower |= (u32)(low[bit / 8] >> bit % 8 & 1) << i;
            to[k] = (i32)((shared.scratch[at(k)] - at(k)) << layout.low_bits | lower);
        }
        show(to);
        for (u32 k = 0; k < EACH; k++) {
            if (at(k) >= kept) continue;
            bool follows = at(k) == 0 || shared.scratch[at(k) - 1] < (u32)to[k];
            if ((u32)to[k] < elements && follows) continue;
            is_corrupt = true;
            to[k] = 0;
        }
    }
};

// interpreted::encode_batch: bytes of a block, and x + r - decode(bytes), the new residual.
template <class Text>
inline void encode_text(const CodeArgs& args, Shared<Text>* shared) {
    Team<Text> team(args, shared);
    if (team.elements == 0) return;
    const typename Text::Layout layout(team.elements);
    float x[Text::EACH], y[Text::EACH];
    bool there[Text::EACH];
    for (u32 k = 0; k < Text::EACH; k++) {
        bool inside = team.at(k) < team.elements;
        x[k] = inside ? args.values[team.first + team.at(k)] : 0;
        if (inside && args.residual) x[k] += args.residual[team.first + team.at(k)];
        team.is_finite &= magnitude_bits(x[k]) < INFINITE;
    }
    Text::encode(team, layout, x);
    bool finite = team.total(!team.is_finite) == 0;
    if (!finite) Text::spoil(team, layout);
    team.sync();
    Text::decode(team, layout, y, there);
    bool held = finite;
    for (u32 k = 0; k < Text::EACH; k++) {
        if (team.at(k) >= team.elements) continue;
        float left = !args.residual ? y[k] : there[k] ? x[k] - y[k] : x[k];
        held &= magnitude_bits(left) < INFINITE;
        if (args.residual) args.error[team.first + team.at(k)] = finite ? left : x[k];
    }
    if (!held) atomicOr(args.infinite, 1);

    u8* to = args.bytes + team.number * Text::WHOLE;
    u32 words = words_of(to, layout.bytes);
    for (u32 i = 4 * team.thread; i < words; i += 4 * Text::THREADS) *(u32*)(to + i) = team.shared.words[i / 4];
    for (u32 i = words + team.thread; i < layout.bytes; i += Text::THREADS) to[i] = team.bytes()[i];
}

// x = decode(bytes), or x += decode(bytes).
template <class Text>
inline void decode_text(const CodeArgs& args, Shared<Text>* shared) {
    Team<Text> team(args, shared);
    if (team.elements == 0) return;
    const typename Text::Layout layout(team.elements);
    const u8* from = args.bytes + team.number * Text::WHOLE;
    u32 words = words_of(from, layout.bytes);
    for (u32 i = 4 * team.thread; i < words; i += 4 * Text::THREADS) team.shared.words[i / 4] = *(const u32*)(from + i);
    for (u32 i = words + team.thread; i < layout.bytes; i += Text::THREADS) team.bytes()[i] = from[i];
    team.sync();
    float y[Text::EACH];
    bool there[Text::EACH];
    Text::decode(team, layout, y, there);
    for (u32 k = 0; k < Text::EACH; k++) {
        if (team.at(k) >= team.elements) continue;
        float& x = args.values[team.first + team.at(k)];
        if (!args.add) x = y[k];
        else if (there[k]) x += y[k];
    }
    if (team.is_corrupt) atomicOr(args.infinite, 1);
}

#define PROGRAM(encode_name, decode_name, Text)        \
    KERNEL(encode_name, CodeArgs) {                    \
        __shared__ Shared<Text> shared[Text::TEAMS];   \
        encode_text<Text>(args, shared);               \
    }                                                  \
    KERNEL(decode_name, CodeArgs) {                    \
        __shared__ Shared<Text> shared[Text::TEAMS];   \
        decode_text<Text>(args, shared);               \
    }
