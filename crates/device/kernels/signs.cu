// Signs and thresholds: onebit, int2, vote and tbq.
//
// Equal to codec::{signs, vote, tbq}.
#include "codes.hpp"

// The unit is a multiple of the mean magnitude; values are ± one unit, with two bits ± one or three.
template <u32 BITS>
struct Signs : Code {
    static constexpr bool SCALED = true;
    using Layout = typename Either<BITS == 1, Planes, Lanes>::Type;
    using Code::Code;

    static constexpr u32 bits() { return BITS; }
    static float three(float unit) { return unit * 3.0f; }
    // Signs::unit of the sum |x| / 128, in the 32 lanes of scalar::magnitudes.
    template <u32 N>
    Scale scale(const float (&x)[N], u32 count, u32) const {
        constexpr float SHARE = 1.0f / GROUP;
        float sum = 0;
        for (u32 k = 0; k < N; k++) sum += float_of(magnitude_bits(x[k])) * SHARE;
        float mean = halved(sum) / ((float)count * SHARE);
        if (mean < SMALLEST) return ZEROS;
        float scale = float_of(bits_of(BITS == 1 ? mean : mean * 0.625f) & ~UNUSED);
        bool finite = (BITS == 1 ? scale : three(scale)) < float_of(INFINITE);
        return finite ? Scale{scale, 0, true} : refused();
    }
    u32 code(float x, Scale scale, u32) const {
        bool large = BITS == 2 && magnitude_bits(x) > magnitude_bits(scale.scale * 2.0f);
        return bits_of(x) >> 31 | (u32)large << 1;
    }
    float value(u32 code, float unit) const {
        return float_of(bits_of(BITS == 1 || !(code & 2) ? unit : three(unit)) ^ code << 31);
    }
};

// The sign alone.
struct Vote : Code {
    using Code::Code;

    static constexpr u32 bits() { return 1; }
    u32 code(float x, Scale, u32) const { return x < 0; }
    float value(u32 code, float) const { return float_of(bits_of(1.0f) | code << 31); }
};

// -tau, 0 or tau.
struct Threshold : Code {
    float tau;

    explicit Threshold(const CodeArgs& args) : Code(args), tau(args.parameter) {}
    static constexpr u32 bits() { return 2; }
    u32 code(float x, Scale, u32) const { return (u32)((x >= tau) - (x <= -tau)); }
    // Code 2, which is never written, is read as 0.
    float value(u32 code, float) const { return code == 1 ? tau : code == 3 ? -tau : 0; }
};

ENCODE(int2, Signs<2>)
DECODE(int2, Signs<2>)
ENCODE(onebit, Signs<1>)
DECODE(onebit, Signs<1>)
ENCODE(vote, Vote)
DECODE(vote, Vote)
ENCODE(tbq, Threshold)
DECODE(tbq, Threshold)

// Vote::canonicalise: values that are finite become their signs.
KERNEL(canonicalise_vote, CodeArgs) {
    for (u32 k = 0; k < PER_LANE; k++) {
        u64 i = warp_of_launch() * GROUP + WARP * k + lane_of_warp();
        if (i < args.length && magnitude_bits(args.values[i]) < INFINITE)
            args.values[i] = args.values[i] < 0 ? -1.0f : 1.0f;
    }
}
