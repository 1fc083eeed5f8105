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
