// Random rounding to levels and to powers of two: qsgd, terngrad and natural.
//
// Equal to codec::{qsgd, natural}.
#include "codes.hpp"

enum Norm : u32 { MAX, LENGTH, CLIPPED };

// c = floor(x / s + u) with random u from 0 to 1, and s = norm / levels.
struct Levels : Code {
    static constexpr bool SCALED = true, RANDOM = true;
    u32 width, norm;
    float clip;

    explicit Levels(const CodeArgs& args) : Code(args), width(args.bits), norm(args.norm), clip(args.parameter) {}
    u32 bits() const { return width; }
    i32 levels() const { return (1 << (width - 1)) - 1; }
    // qsgd::length: squares in 16 lanes, in order, then the lanes in order.
    template <u32 N>
    static u32 length(const float (&x)[N], u32 max) {
        float least = float_of(0x00800000), inverse = 1.0f / (float_of(max) > least ? float_of(max) : least);
        float sum = 0;
        for (u32 k = 0; k < N; k++) {
            float square = (x[k] * inverse) * (x[k] * inverse);
            sum += square;
            sum += __shfl_down_sync(ALL_LANES, square, LANES);
        }
        float all = 0;
        for (u32 lane = 0; lane < LANES; lane++) all += __shfl_sync(ALL_LANES, sum, lane);
        u32 length = bits_of(float_of(max) * sqrtf(all));
        return max < INFINITE ? larger(length, max) : max;
    }
    template <u32 N>
    Scale scale(const float (&x)[N], u32 count, u32 max) const {
        u32 bound = norm == MAX ? max : length(x, max);
        if (norm == CLIPPED) bound = smaller(bits_of(float_of(bound) / sqrtf((float)count) * clip), max);
        return scale_of(bound, levels(), true);
    }
    u32 code(float x, Scale scale, u32 random) const {
        float digits = x * (scale.inverse * (float)(1 << RANDOM_BITS)), max = (float)(levels() << RANDOM_BITS);
        digits = digits > max ? max : digits;
        i32 rounded = round_even(digits < -max ? -max : digits);
        i32 code = (i32)((u32)rounded + random) >> RANDOM_BITS;
        return (u32)(code < levels() ? code : levels());
    }
    float value(u32 code, float scale) const { return signed_code(code, width) * scale; }
};

// A power of two from 2^-100 to 2^26: digits behind the point and random ones carry into the exponent.
struct Natural : Code {
    static constexpr bool RANDOM = true;
    static constexpr u32 DIGITS = 23, ZERO = 127 - 101;
    using Code::Code;

    static constexpr u32 bits() { return 8; }
    template <u32 N>
    Scale scale(const float (&)[N], u32, u32 max) const {
        return max <= (ZERO + 127) << DIGITS ? NO_SCALE : refused();
    }
    u32 code(float x, Scale, u32 random) const {
        constexpr u32 DROPPED = DIGITS - RANDOM_BITS;
        u32 sum = magnitude_bits(x) + (random << DROPPED | 1 << (DROPPED - 1));
        u32 exponent = magnitude_bits(x) < (ZERO + 1) << DIGITS ? 0 : (sum >> DIGITS) - ZERO;
        return (bits_of(x) >> 24 & 0x80) | exponent;
    }
    float value(u32 code, float) const {
        u32 exponent = code & 0x7f, magnitude = exponent == 0 ? 0 : (exponent + ZERO) << DIGITS;
        return float_of(magnitude | (code << 24 & SIGN));
    }
};

ENCODE(levels, Levels)
DECODE(levels, Levels)
ENCODE(natural, Natural)
DECODE(natural, Natural)
