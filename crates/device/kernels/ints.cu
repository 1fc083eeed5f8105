// Small integers under one scale per block: int8, int4 and int3, to the nearest or with random rounding.
//
// Equal to codec::ints and codec::least_squares. c = round(x / s), or floor(x / s + u) with random u from 0 to 1.
#include "codes.hpp"

template <u32 BITS, bool STOCHASTIC>
struct Ints : Code {
    static constexpr bool SCALED = true, RANDOM = STOCHASTIC;
    static constexpr u32 GROUPS = BITS == 8 ? 2 : 1;
    static constexpr i32 MAX = (1 << (BITS - 1)) - 1;
    using Layout = typename Either<BITS == 8, Planes, typename Either<BITS == 4, Lanes, Three>::Type>::Type;
    using Code::Code;

    static constexpr u32 bits() { return BITS; }
    template <u32 N>
    Scale scale(const float (&)[N], u32, u32 max) const {
        return scale_of(max, MAX, STOCHASTIC);
    }
    u32 code(float x, Scale scale, u32 random) const {
        if (!STOCHASTIC) return (u32)round_even(x * scale.inverse);
        i32 digits = round_even(x * (scale.inverse * (float)(1 << RANDOM_BITS)));
        i32 code = (i32)((u32)digits + random) >> RANDOM_BITS;
        return (u32)(code < MAX ? code : MAX);
    }
    float value(u32 code, float scale) const { return signed_code(code, BITS) * scale; }
};

// codec::least_squares: the codes of the nearest integers l, under the scale sum(x l) / sum(l l).
template <u32 BITS>
struct LeastSquares : Ints<BITS, false> {
    using Nearest = Ints<BITS, false>;
    using Nearest::Nearest;

    template <u32 N>
    Scale scale(const float (&x)[N], u32 count, u32 max) const {
        Scale scale = Nearest::scale(x, count, max);
        if (!scale.finite) return scale;
        u32 products = 0, squares = 0;
        for (u32 k = 0; k < N; k++) {
            i32 level = round_even(x[k] * scale.inverse);
            products += (u32)(round_even(x[k] * (scale.inverse * 4096.0f)) * level);
            squares += (u32)(level * level);
        }
        products = sum_of_warp(products);
        squares = sum_of_warp(squares);
        if (squares == 0) return scale;
        float ratio = (float)(i32)products / ((float)(i32)squares * 4096.0f);
        float fitted = float_of((bits_of(scale.scale * ratio) + UNUSED / 2 + 1) & ~UNUSED);
        if (magnitude_bits(fitted * (float)Nearest::MAX) < INFINITE) scale.scale = fitted;
        return scale;
    }
};

ENCODE(int8, Ints<8, false>)
ENCODE(int8_stochastic, Ints<8, true>)
DECODE(int8, Ints<8, false>)
ENCODE(int4, Ints<4, false>)
ENCODE(int4_stochastic, Ints<4, true>)
ENCODE(int4_least_squares, LeastSquares<4>)
DECODE(int4, Ints<4, false>)
ENCODE(int3, Ints<3, false>)
ENCODE(int3_stochastic, Ints<3, true>)
ENCODE(int3_least_squares, LeastSquares<3>)
DECODE(int3, Ints<3, false>)

// intsgd: integers of one or two bytes in two's complement; of a group all lower bytes, then all upper ones.
template <u32 BYTES>
inline void encode_integers(const CodeArgs& args) {
    u64 first = warp_of_launch() * GROUP;
    if (first >= args.length) return;
    u32 count = smaller(args.length - first, GROUP), max = 0;
    float x[PER_LANE];
    for (u32 k = 0; k < PER_LANE; k++) {
        u32 at = WARP * k + lane_of_warp();
        x[k] = at < count ? args.values[first + at] : 0;
        if (at < count && args.residual) x[k] += args.residual[first + at];
        max = larger(max, magnitude_bits(x[k]));
    }
    bool fits = largest_of_warp(max) <= bits_of((float)((1 << (8 * BYTES - 1)) - 1));
    if (!fits && lane_of_warp() == 0) atomicOr(args.infinite, 1);
    u8* to = args.bytes + first * BYTES;
    for (u32 k = 0; k < PER_LANE; k++) {
        u32 at = WARP * k + lane_of_warp();
        i32 own = fits ? round_even(x[k]) : 0;
        for (u32 byte = 0; byte < BYTES && at < count; byte++) to[byte * count + at] = (u8)(own >> (8 * byte));
        if (args.residual && at < count) args.error[first + at] = x[k] - (float)own;
    }
}

template <u32 BYTES>
inline void decode_integers(const CodeArgs& args) {
    u64 first = warp_of_launch() * GROUP;
    if (first >= args.length) return;
    u32 count = smaller(args.length - first, GROUP);
    const u8* from = args.bytes + first * BYTES;
    for (u32 at = lane_of_warp(); at < count; at += WARP) {
        u32 code = from[at] | (BYTES == 2 ? (u32)from[count * (BYTES - 1) + at] << 8 : 0);
        float x = signed_code(code, 8 * BYTES);
        args.values[first + at] = args.add ? args.values[first + at] + x : x;
    }
}

KERNEL(encode_intsgd, CodeArgs) { encode_integers<1>(args); }
KERNEL(decode_intsgd, CodeArgs) { decode_integers<1>(args); }
KERNEL(encode_intsgd16, CodeArgs) { encode_integers<2>(args); }
KERNEL(decode_intsgd16, CodeArgs) { decode_integers<2>(args); }
