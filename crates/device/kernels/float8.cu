// Numbers of one byte under one scale per block: e4m3, e5m2 and dynamic8.
//
// Equal to codec::{float8, dynamic8}.
#include "codes.hpp"

// Sign, exponent and DIGITS digits behind the point, rounded to the nearest, ties to even.
template <u32 DIGITS>
struct Float8 : Code {
    static constexpr bool SCALED = true;
    static constexpr u32 CUT = 23 - DIGITS, BIAS = (1 << (6 - DIGITS)) - 1;
    using Code::Code;

    static constexpr u32 bits() { return 8; }
    // Smallest positive number.
    static float step() { return float_of((128 - BIAS - DIGITS) << 23); }
    template <u32 N>
    Scale scale(const float (&)[N], u32, u32 max) const {
        return scale_of(max, DIGITS == 3 ? 448 : 57344, false);
    }
    u32 code(float x, Scale scale, u32) const {
        u32 y = bits_of(x * scale.inverse), magnitude = y & ~SIGN;
        u32 rounded = (magnitude + (1 << (CUT - 1)) - 1 + (magnitude >> CUT & 1)) >> CUT;
        u32 normal = rounded - ((127 - BIAS) << DIGITS);
        float shift = step() * (float)(1 << 23);
        u32 small = bits_of(float_of(magnitude) + shift) - bits_of(shift);
        return (magnitude < (128 - BIAS) << 23 ? small : normal) | (y >> 24 & 0x80);
    }
    float value(u32 code, float scale) const {
        float normal = float_of(((code & 0x7f) << CUT) + ((127 - BIAS) << 23));
        float small = (float)(code & ((1 << DIGITS) - 1)) * step();
        float magnitude = (code & 0x7f) >> DIGITS == 0 ? small : normal;
        return float_of(bits_of(magnitude) | (code << 24 & SIGN)) * scale;
    }
};

// Decade i of seven has 2^i evenly spaced magnitudes. Doubles are computed by the compiler alone.
constexpr u32 DECADES = 7;

constexpr double dynamic_magnitude(u32 decade, u32 index) {
    double unit = 1.0 / (0.1 + 0.9 * 63.5 / 64.0);
    for (u32 at = decade; at < DECADES - 1; at++) unit /= 10.0;
    return unit * (0.1 + 0.9 * (index + 0.5) / (1 << decade));
}

struct Magnitudes {
    float at[GROUP];
};
constexpr Magnitudes dynamic_magnitudes() {
    Magnitudes table{};
    for (u32 decade = 0; decade < DECADES; decade++)
        for (u32 i = 0; i < 1u << decade; i++)
            table.at[(1 << decade) + i] = (float)dynamic_magnitude(decade, i);
    return table;
}
__constant__ constexpr Magnitudes MAGNITUDES = dynamic_magnitudes();

// dynamic8::STARTS: start of a decade, magnitude of its first code, and codes per unit.
struct Decade {
    float start, first, per_unit;
};
struct Decades {
    Decade at[DECADES];
};
constexpr Decades dynamic_decades() {
    Decades decades{};
    for (u32 decade = 0; decade < DECADES; decade++) {
        u32 first = 1u << decade;
        double below = decade == 0 ? 0.0 : dynamic_magnitude(decade - 1, first / 2 - 1);
        double own = dynamic_magnitude(decade, 0);
        double step = own - 0.1 * own / (0.1 + 0.45 / first);
        decades.at[decade] = {(float)((below + own) / 2.0), (float)own, (float)(0.5 / step)};
    }
    return decades;
}
__constant__ constexpr Decades STARTS = dynamic_decades();

struct Dynamic8 : Code {
    static constexpr bool SCALED = true;
    using Code::Code;

    static constexpr u32 bits() { return 8; }
    template <u32 N>
    Scale scale(const float (&)[N], u32, u32 max) const {
        return scale_of(max, 1, false);
    }
    u32 code(float x, Scale scale, u32) const {
        float y = float_of(magnitude_bits(x)) * scale.inverse, place = 0, last = 0;
        for (u32 decade = 0; decade < DECADES; decade++) {
            const Decade own = STARTS.at[decade];
            float codes = (float)(1 << decade), above = (y - own.first) * own.per_unit;
            place = y >= own.start ? codes + (above > 0 ? above : 0) : place;
            last = y >= own.start ? 2 * codes - 1 : last;
        }
        i32 code = round_even(place < last ? place : last);
        return (u32)(bits_of(x) & SIGN ? -code : code);
    }
    float value(u32 code, float scale) const {
        i32 own = (signed char)code;
        float magnitude = MAGNITUDES.at[(own < 0 ? -own : own) & 0x7f] * scale;
        return own < 0 ? -magnitude : magnitude;
    }
};

ENCODE(e4m3, Float8<3>)
DECODE(e4m3, Float8<3>)
ENCODE(e5m2, Float8<2>)
DECODE(e5m2, Float8<2>)
ENCODE(dynamic8, Dynamic8)
DECODE(dynamic8, Dynamic8)
