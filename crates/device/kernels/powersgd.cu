// PowerSGD: products of a matrix with thin ones, and orthonormal vectors.
//
// Equal to codec::powersgd and codec::alternate. A matrix M is `rows` x `columns`, row after row; P is
// `low_rank` vectors of `rows` numbers, Q of `columns` numbers. Sums:
//   dot   32 lanes, halved, of every 4,096 elements; then these in order
//   MᵀP   every 128 rows in order; then these in order
#include "random.hpp"

struct PowerArgs {
    float* values;          // M
    const float* residual;  // added to M, and the sum left in M; null if there is none
    float* p;
    float* q;
    float* partial;  // of MᵀP: low_rank x columns numbers for every 128 rows
    u32* infinite;   // becomes 1 where a product is not finite, 2 where vectors outnumber dimensions
    u32 rows, columns, low_rank;
    u32 add;     // of the product P Qᵀ: 1 adds to M, 0 overwrites it
    float sign;  // of the product P Qᵀ
    u32 length;  // of the vectors P that are made orthonormal
};

constexpr u32 CHUNK = 4096, SUMMED_ROWS = 128, TILE = 4;
constexpr u32 THREADS_MAX = 1024;

inline u32 chunks_of(u32 length) { return (length + CHUNK - 1) / CHUNK; }

inline void report(u32* infinite, float x) {
    if (magnitude_bits(x) >= INFINITE) atomicOr(infinite, 1);
}

// Power of two that brings a magnitude to 1 or more and below 2, for exponents from `least` to `most`.
inline float to_one(u32 max, u32 least, u32 most) {
    u32 exponent = larger(smaller(max >> 23, most), least);
    return float_of((254 - exponent) << 23);
}

// Largest magnitude of a vector, in every thread of the block; `shared` has a word for each warp.
inline u32 largest_of_block(const float* x, u32 length, u32* shared) {
    u32 own = 0;
    for (u32 i = threadIdx.x; i < length; i += blockDim.x) own = larger(own, magnitude_bits(x[i]));
    own = largest_of_warp(own);
    if (lane_of_warp() == 0) shared[threadIdx.x / WARP] = own;
    __syncthreads();
    for (u32 warp = 0; warp < blockDim.x / WARP; warp++) own = larger(own, shared[warp]);
    __syncthreads();
    return own;
}

// powersgd::balanced, a block of threads for each vector: Q, times powers of two, to `partial`.
KERNEL(powersgd_balance, PowerArgs) {
    __shared__ u32 shared[THREADS_MAX / WARP];
    const float* from = args.q + (u64)blockIdx.x * args.columns;
    float* to = args.partial + (u64)blockIdx.x * args.columns;
    float factor = to_one(largest_of_block(from, args.columns, shared), 1, 253);
    for (u32 i = threadIdx.x; i < args.columns; i += blockDim.x) to[i] = from[i] * factor;
}

// Factor::project and multiply(Side::Rows), a warp for 4 rows: M += residual, P = M Q.
KERNEL(powersgd_project, PowerArgs) {
    u64 first_row = warp_of_launch() * TILE;
    if (first_row >= args.rows) return;
    u32 lane = lane_of_warp(), rows = smaller(args.rows - first_row, TILE);
    float* values = args.values + first_row * args.columns;
    for (u32 first = 0; first < args.low_rank; first += TILE) {
        bool add = args.residual && first == 0;
        float sums[TILE][TILE] = {};
        for (u32 chunk = 0; chunk < args.columns; chunk += CHUNK) {
            float lanes[TILE][TILE] = {};
            u32 end = smaller((u64)chunk + CHUNK, args.columns);
            for (u32 column = chunk + lane; column < end; column += WARP) {
                float q[TILE];
                for (u32 j = 0; j < TILE; j++)
                    q[j] = first + j < args.low_rank ? args.q[(u64)(first + j) * args.columns + column] : 0;
                for (u32 i = 0; i < TILE; i++) {
                    if (i >= rows) break;
                    u64 at = (u64)i * args.columns + column;
                    float x = values[at];
                    if (add) values[at] = x += args.residual[first_row * args.columns + at];
                    for (u32 j = 0; j < TILE; j++) lanes[i][j] += x * q[j];
                }
            }
            for (u32 i = 0; i < TILE; i++)
                for (u32 j = 0; j < TILE; j++) sums[i][j] += halved(lanes[i][j]);
        }
        if (lane > 0) continue;
        for (u32 i = 0; i < TILE; i++) {
            for (u32 j = 0; j < TILE; j++) {
                if (i >= rows || first + j >= args.low_rank) continue;
                args.p[(u64)(first + j) * args.rows + first_row + i] = sums[i][j];
                report(args.infinite, sums[i][j]);
            }
        }
    }
}

// The first sums of multiply(Side::Columns), a thread for a column of 128 rows: M += residual, MᵀP.
KERNEL(powersgd_project_back, PowerArgs) {
    u32 tiles = (args.columns + blockDim.x - 1) / blockDim.x, block = blockIdx.x / tiles;
    u32 column = blockIdx.x % tiles * blockDim.x + threadIdx.x;
    if (column >= args.columns) return;
    u32 first_row = block * SUMMED_ROWS, end = smaller((u64)first_row + SUMMED_ROWS, args.rows);
    for (u32 first = 0; first < args.low_rank; first += TILE) {
        bool add = args.residual && first == 0;
        u32 count = smaller(args.low_rank - first, TILE);
        float sums[TILE] = {};
        for (u32 row = first_row; row < end; row++) {
            u64 at = (u64)row * args.columns + column;
            float x = args.values[at];
            if (add) args.values[at] = x += args.residual[at];
            for (u32 j = 0; j < TILE; j++)
                if (j < count) sums[j] += x * args.p[(u64)(first + j) * args.rows + row];
        }
        for (u32 j = 0; j < TILE; j++)
            if (j < count)
                args.partial[((u64)block * args.low_rank + first + j) * args.columns + column] = sums[j];
    }
}

// The last sums of multiply(Side::Columns), a thread for each element of Q.
KERNEL(powersgd_sum, PowerArgs) {
    u64 length = (u64)args.low_rank * args.columns, i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= length) return;
    float sum = 0;
    for (u32 block = 0; block * SUMMED_ROWS < args.rows; block++) sum += args.partial[block * length + i];
    args.q[i] = sum;
    report(args.infinite, sum);
}

// powersgd::add_product, a thread for each element: M = sign P Qᵀ, or M += sign P Qᵀ.
KERNEL(powersgd_product, PowerArgs) {
    u32 tiles = (args.columns + blockDim.x - 1) / blockDim.x, row = blockIdx.x / tiles;
    u32 column = blockIdx.x % tiles * blockDim.x + threadIdx.x;
    if (column >= args.columns) return;
    u64 at = (u64)row * args.columns + column;
    float x = args.add ? args.values[at] : 0;
    for (u32 j = 0; j < args.low_rank; j++)
        x += args.q[(u64)j * args.columns + column] * (args.sign * args.p[(u64)j * args.rows + row]);
    args.values[at] = x;
}

// kernel::dot, in every thread of the block: a warp for each chunk.
inline float dot_of_block(const float* a, const float* b, u32 length, u32* shared) {
    u32 warps = blockDim.x / WARP, warp = threadIdx.x / WARP;
    float sum = 0;
    for (u32 first = 0; first < chunks_of(length); first += warps) {
        float own = 0;
        u32 chunk = (first + warp) * CHUNK, end = smaller((u64)chunk + CHUNK, length);
        for (u32 i = chunk + lane_of_warp(); i < end; i += WARP) own += a[i] * b[i];
        own = halved(own);
        if (lane_of_warp() == 0) shared[warp] = bits_of(own);
        __syncthreads();
        for (u32 i = 0; i < smaller(chunks_of(length) - first, warps); i++) sum += float_of(shared[i]);
        __syncthreads();
    }
    return sum;
}

// powersgd::normalise: to length 1; false for a vector that is zero or not finite.
inline bool normalise(float* x, u32 length, u32* shared) {
    u32 max = largest_of_block(x, length, shared);
    if (max == 0 || max >= INFINITE) return false;
    float factor = to_one(max, 27, 227);
    for (u32 i = threadIdx.x; i < length; i += blockDim.x) x[i] *= factor;
    __syncthreads();
    float norm = sqrtf(dot_of_block(x, x, length, shared));
    for (u32 i = threadIdx.x; i < length; i += blockDim.x) x[i] /= norm;
    __syncthreads();
    return true;
}

// powersgd::project_out: subtracts the parts along `count` vectors; false if next to nothing is left.
inline bool project_out(const float* before, u32 count, float* x, u32 length, u32* shared) {
    constexpr float INDEPENDENT = 1e-5f;
    for (u32 turn = 0; turn < 2; turn++) {
        for (u32 j = 0; j < count; j++) {
            const float* unit = before + (u64)j * length;
            float along = -dot_of_block(unit, x, length, shared);
            for (u32 i = threadIdx.x; i < length; i += blockDim.x) x[i] += unit[i] * along;
            __syncthreads();
        }
        if (dot_of_block(x, x, length, shared) < INDEPENDENT * INDEPENDENT) return false;
        if (!normalise(x, length, shared)) return false;
    }
    return true;
}

// powersgd::orthonormalise, one block of threads: `low_rank` vectors P of `length` numbers.
KERNEL(powersgd_orthonormalise, PowerArgs) {
    __shared__ u32 shared[THREADS_MAX / WARP];
    u32 length = args.length;
    for (u32 index = 0; index < args.low_rank; index++) {
        float* x = args.p + (u64)index * length;
        if (!normalise(x, length, shared))
            for (u32 i = threadIdx.x; i < length; i += blockDim.x) x[i] = 0;
        __syncthreads();
        for (u32 attempt = 0; !project_out(args.p, index, x, length, shared); attempt++) {
            if (attempt == 64) {
                if (threadIdx.x == 0) atomicOr(args.infinite, 2);
                return;
            }
            Key key = {length, index, {attempt, 0}};
            for (u32 i = threadIdx.x; i < length; i += blockDim.x) {
                u32 word = philox(key, i / 4).at[i % 4];
                x[i] = (float)(word >> 8) * (1.0f / 16777216) - 0.5f;
            }
            __syncthreads();
            normalise(x, length, shared);
        }
    }
}
