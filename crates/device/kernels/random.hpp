// Random numbers: Philox4x32-10, a pure function of key and counter.
//
// Equal to wire::random::{Key, philox} and codec::kernel::group::random.
#pragma once

#include "device.hpp"

// wire::random::Key::philox_input: the words that do not vary within a tensor.
struct Key {
    u32 tensor, step, seed[2];
};

struct Words {
    u32 at[4];
};

inline Words philox(const Key& key, u64 block) {
    u32 a = (u32)block, b = (u32)(block >> 32), c = key.tensor, d = key.step;
    u32 first = key.seed[0], second = key.seed[1];
    for (u32 turn = 0; turn < 10; turn++) {
        u32 low = __umulhi(a, 0xD2511F53), high = __umulhi(c, 0xCD9E8D57);
        u32 next_b = c * 0xCD9E8D57, next_d = a * 0xD2511F53;
        a = high ^ b ^ first, c = low ^ d ^ second, b = next_b, d = next_d;
        first += 0x9E3779B9, second += 0xBB67AE85;
    }
    return {{a, b, c, d}};
}

// 15 random bits for each of the elements 32 k + lane of a group of 128: element 16 v + j takes half
// v % 2 of word v / 2 of block 16 group + j.
struct Random {
    Words words;

    void draw(const Key& key, u64 group) { words = philox(key, group * 16 + threadIdx.x % 16); }
    u32 of(u32 k) const { return (words.at[k] >> (threadIdx.x & 16) & 0xffff) >> 1; }
};
