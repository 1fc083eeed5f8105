// The language of kernels: CUDA C under NVRTC, and C++20 of the host for tests.
//
// Kernels have one argument, a flat struct that cuda/arguments.rs repeats. They name 32 lanes, use no
// atomic operation on floats, and reduce in the order of the Rust function that they equal.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;

#ifdef __CUDACC_RTC__
#define KERNEL(name, Args) extern "C" __global__ void name(const Args args)
#else
#include "host.hpp"
#endif

constexpr u32 WARP = 32, ALL_LANES = 0xffffffff;
constexpr u32 SIGN = 0x80000000, INFINITE = 0x7f800000;

inline u32 bits_of(float x) { return __float_as_uint(x); }
inline float float_of(u32 bits) { return __uint_as_float(bits); }
inline u32 magnitude_bits(float x) { return bits_of(x) & ~SIGN; }

inline u32 smaller(u64 a, u32 b) { return a < b ? (u32)a : b; }
inline u32 larger(u32 a, u32 b) { return a < b ? b : a; }

// Number of this thread in its warp, and of its warp in the launch.
inline u32 lane_of_warp() { return threadIdx.x % WARP; }
inline u64 warp_of_launch() { return ((u64)blockIdx.x * blockDim.x + threadIdx.x) / WARP; }
inline u32 lower_lanes() { return (1u << lane_of_warp()) - 1; }

inline u64 thread_of_launch() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
inline u64 threads_of_launch() { return (u64)gridDim.x * blockDim.x; }

// Largest value of the 32 lanes, in every lane.
inline u32 largest_of_warp(u32 own) {
    for (u32 half = WARP / 2; half > 0; half /= 2)
        own = larger(own, __shfl_xor_sync(ALL_LANES, own, half));
    return own;
}

// Sum of the 32 lanes, in every lane; sums of integers have no order.
inline u32 sum_of_warp(u32 own) {
    for (u32 half = WARP / 2; half > 0; half /= 2) own += __shfl_xor_sync(ALL_LANES, own, half);
    return own;
}

// Sum of the numbers of lower lanes.
inline u32 sum_before(u32 own) {
    u32 sum = own;
    for (u32 by = 1; by < WARP; by *= 2) {
        u32 other = __shfl_sync(ALL_LANES, sum, (lane_of_warp() - by) % WARP);
        if (lane_of_warp() >= by) sum += other;
    }
    return sum - own;
}

// codec::kernel::scalar::halved: lane i adds lane i + half; the sum of lane 0 comes to all lanes.
inline float halved(float own) {
    for (u32 half = WARP / 2; half > 0; half /= 2)
        own += __shfl_down_sync(ALL_LANES, own, half);
    return __shfl_sync(ALL_LANES, own, 0);
}

template <bool FIRST, class A, class B>
struct Either {
    using Type = A;
};
template <class A, class B>
struct Either<false, A, B> {
    using Type = B;
};
