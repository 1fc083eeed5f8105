// Small integers under one scale per block: int8, int4 and int3, to the nearest or with random rounding.
//
// Equal to codec::ints. c = round(x / s), or floor(x / s + u) with random u from 0 to 1.
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

ENCODE(int8, Ints<8, false>)
ENCODE(int8_stochastic, Ints<8, true>)
DECODE(int8, Ints<8, false>)
ENCODE(int4, Ints<4, false>)
ENCODE(int4_stochastic, Ints<4, true>)
DECODE(int4, Ints<4, false>)
ENCODE(int3, Ints<3, false>)
ENCODE(int3_stochastic, Ints<3, true>)
DECODE(int3, Ints<3, false>)
