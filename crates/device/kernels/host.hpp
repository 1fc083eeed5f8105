// A processor of CUDA's kind on the host, for tests: one block after the other, a fiber per thread.
//
// Lanes of a warp meet in __syncwarp, shuffles and ballots, threads of a block in __syncthreads. In
// between they run in an order that a seed gives, and some warps run ahead of others. Shared memory is
// poisoned before each block. Lanes that meet at different places, or wait for a lane that has
// returned, end the process with a message.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>
#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

#define __shared__ static __attribute__((section("shared_memory")))
#define __constant__ static const
extern "C" {
extern char __start_shared_memory[] __attribute__((weak, visibility("hidden")));
extern char __stop_shared_memory[] __attribute__((weak, visibility("hidden")));
}

struct dim3 {
    u32 x = 1, y = 1, z = 1;
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace host {

#if defined(__x86_64__) || defined(__aarch64__)
using Context = void*;
// Saves what a call preserves, stores the stack pointer in *from, and goes on with that of `to`.
extern "C" void thinwire_switch(Context* from, Context to) __attribute__((visibility("hidden")));
#if defined(__x86_64__)
asm(R"(
.pushsection .text
.weak thinwire_switch
.hidden thinwire_switch
.type thinwire_switch, @function
thinwire_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.popsection
)");
constexpr size_t SAVED = 6, RETURN = 6, FRAME = 8;
#else
asm(R"(
.pushsection .text
.weak thinwire_switch
.hidden thinwire_switch
.type thinwire_switch, @function
thinwire_switch:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.popsection
)");
constexpr size_t RETURN = 11, FRAME = 20;
#endif
inline void prepare(Context& context, char* stack, size_t size, void (*entry)()) {
    auto top = (void**)(((uintptr_t)stack + size) & ~(uintptr_t)15);
    void** frame = top - FRAME;
    memset(frame, 0, FRAME * sizeof(void*));
    frame[RETURN] = (void*)entry;
    context = frame;
}
inline void change(Context& from, Context& to) { thinwire_switch(&from, to); }
#else
using Context = ucontext_t;
inline void prepare(Context& context, char* stack, size_t size, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = size;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}
inline void change(Context& from, Context& to) { swapcontext(&from, &to); }
#endif

enum class State { Ready, InWarp, InBlock, Returned };

struct Fiber {
    Context context;
    State state;
    u32 meetings;  // of its warp so far
    u32 value[2];  // what the other lanes read at even and odd meetings
    const char* place;
    std::unique_ptr<char[]> stack;
};

constexpr size_t STACK = 64 << 10;
inline std::mutex one_launch;
inline std::vector<Fiber> fibers;
inline Context scheduler;
inline u32 current;
inline u64 state;
inline std::function<void()> kernel;

[[noreturn]] inline void fail(const char* what, const char* place) {
    fprintf(stderr, "kernel on the host: %s in %s\n", what, place);
    abort();
}

inline u32 random() {  // xorshift*
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return (u32)((state * 0x2545f4914f6cdd1d) >> 32);
}

inline void wait(State how, const char* place) {
    Fiber& own = fibers[current];
    own.state = how, own.place = place;
    change(own.context, scheduler);
}

inline void enter() {
    kernel();
    wait(State::Returned, "the end");
    fail("a thread goes on", "the end");
}

// Lets the fibers of `first..end` go on if all of them wait in the same way at the same place.
inline bool release(size_t first, size_t end, State how) {
    size_t waiting = 0, returned = 0;
    for (size_t i = first; i < end; i++) {
        waiting += fibers[i].state == how;
        returned += fibers[i].state == State::Returned;
    }
    if (waiting == 0 || waiting + returned < end - first) return false;
    const char* place = nullptr;
    for (size_t i = first; i < end; i++) {
        if (fibers[i].state != how) continue;
        if (how == State::InWarp && returned > 0) fail("lanes wait for one that returned", fibers[i].place);
        if (place && strcmp(place, fibers[i].place)) fail("threads meet at another place", place);
        place = fibers[i].place, fibers[i].state = State::Ready;
    }
    return true;
}

inline void run_block(u32 threads) {
    memset(__start_shared_memory, 0xa5, __stop_shared_memory - __start_shared_memory);
    std::vector<u32> order(threads);
    for (u32 i = 0; i < threads; i++) {
        Fiber& fiber = fibers[i];
        fiber.state = State::Ready, fiber.meetings = 0, order[i] = i;
        prepare(fiber.context, fiber.stack.get(), STACK, enter);
    }
    for (;;) {
        u32 ahead = random() | 1u << random() % (threads / 32);
        for (u32 i = threads - 1; i > 0; i--) std::swap(order[i], order[random() % (i + 1)]);
        for (u32 i : order) {
            if (fibers[i].state != State::Ready || !(ahead >> i / 32 & 1)) continue;
            current = i, threadIdx.x = i;
            change(scheduler, fibers[i].context);
        }
        bool left = false, ready = false;
        for (u32 warp = 0; warp < threads; warp += 32) release(warp, warp + 32, State::InWarp);
        release(0, threads, State::InBlock);
        for (u32 i = 0; i < threads; i++) {
            left |= fibers[i].state != State::Returned;
            ready |= fibers[i].state == State::Ready;
        }
        if (!left) return;
        if (!ready) fail("lanes of a warp wait for each other", "__syncthreads");
    }
}

inline void launch(u32 blocks, u32 threads, u64 seed, std::function<void()> body) {
    std::lock_guard<std::mutex> lock(one_launch);
    kernel = std::move(body), state = seed * 2 + 1;
    while (fibers.size() < threads) {
        fibers.emplace_back();
        fibers.back().stack.reset(new char[STACK]);
    }
    gridDim.x = blocks, blockDim.x = threads;
    for (u32 block = 0; block < blocks; block++) {
        blockIdx.x = block;
        run_block(threads);
    }
}

// Value that lane `from` of the warp gives at this meeting. A lane can write its next value while
// others still read this one, but not the one after that.
inline u32 exchange(u32 own, u32 from, const char* place) {
    Fiber& fiber = fibers[current];
    u32 parity = fiber.meetings++ % 2;
    fiber.value[parity] = own;
    wait(State::InWarp, place);
    return fibers[current / 32 * 32 + from % 32].value[parity];
}

}  // namespace host

#define KERNEL(name, Args)                                                                      \
    static void name(const Args args);                                                          \
    extern "C" __attribute__((visibility("default"))) const u32 name##_arguments = sizeof(Args); \
    extern "C" __attribute__((visibility("default"))) void name##_on_host(                      \
        const Args* args, u32 blocks, u32 threads, u64 seed) {                                  \
        host::launch(blocks, threads, seed, [args] { name(*args); });                           \
    }                                                                                           \
    static void name(const Args args)

inline u32 __float_as_uint(float x) {
    u32 bits;
    memcpy(&bits, &x, 4);
    return bits;
}
inline float __uint_as_float(u32 bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
inline u32 __umulhi(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }
inline u32 __popc(u32 x) { return (u32)__builtin_popcount(x); }
inline void __syncwarp() { host::wait(host::State::InWarp, "__syncwarp"); }
inline void __syncthreads() { host::wait(host::State::InBlock, "__syncthreads"); }
inline u32 __shfl_sync(u32, u32 own, u32 from) { return host::exchange(own, from, "__shfl_sync"); }
inline u32 __shfl_xor_sync(u32, u32 own, u32 with) {
    return host::exchange(own, threadIdx.x ^ with, "__shfl_xor_sync");
}
inline u32 __shfl_down_sync(u32, u32 own, u32 by) {
    u32 lane = threadIdx.x % 32;
    return host::exchange(own, lane + by < 32 ? lane + by : lane, "__shfl_down_sync");
}
inline float __shfl_sync(u32, float own, u32 from) {
    return __uint_as_float(host::exchange(__float_as_uint(own), from, "__shfl_sync"));
}
inline float __shfl_down_sync(u32 mask, float own, u32 by) {
    return __uint_as_float(__shfl_down_sync(mask, __float_as_uint(own), by));
}
inline u32 __ballot_sync(u32, bool own) {
    host::Fiber& fiber = host::fibers[host::current];
    u32 parity = fiber.meetings % 2, ballot = 0;
    host::exchange(own, 0, "__ballot_sync");
    for (u32 lane = 0; lane < 32; lane++)
        ballot |= host::fibers[host::current / 32 * 32 + lane].value[parity] << lane;
    return ballot;
}
inline u32 atomicMax(u32* at, u32 x) {
    u32 old = *at;
    *at = old < x ? x : old;
    return old;
}
inline u32 atomicOr(u32* at, u32 x) {
    u32 old = *at;
    *at |= x;
    return old;
}
inline u32 atomicAdd(u32* at, u32 x) {
    u32 old = *at;
    *at += x;
    return old;
}
