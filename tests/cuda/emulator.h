// CUDA's words with a meaning on a CPU, so that the kernels' own text is compiled by g++ and run.
//
// A block's threads are fibers on one OS thread: a thread runs until it meets a barrier or a warp instruction, then the
// next one runs. What this can prove is arithmetic, indexing and control flow; it cannot prove the memory model, speed,
// or anything that needs two threads at the same instant. Faults (a barrier that some threads never reach, lanes meeting
// at different instructions, an address outside every array, undefined behaviour) end the launch with a message.
//
// Order 0 runs threads and blocks ascending, 1 descending, 2 in a seeded shuffle that changes at every pass and also
// switches threads at atomics.
#pragma once

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <type_traits>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define EMU_ASAN 1
#else
#define EMU_ASAN 0
#endif

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("emu_shared")))

struct uint2 { unsigned int x, y; } __attribute__((aligned(8)));
struct uint3 { unsigned int x, y, z; };
struct uint4 { unsigned int x, y, z, w; } __attribute__((aligned(16)));
struct int2 { int x, y; } __attribute__((aligned(8)));
struct int3 { int x, y, z; };
struct int4 { int x, y, z, w; } __attribute__((aligned(16)));
struct uchar2 { unsigned char x, y; } __attribute__((aligned(2)));
struct uchar4 { unsigned char x, y, z, w; } __attribute__((aligned(4)));
struct ushort2 { unsigned short x, y; } __attribute__((aligned(4)));
struct ushort4 { unsigned short x, y, z, w; } __attribute__((aligned(8)));
struct longlong2 { long long x, y; } __attribute__((aligned(16)));
struct ulonglong2 { unsigned long long x, y; } __attribute__((aligned(16)));
struct dim3 { unsigned int x, y, z; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline int3 make_int3(int x, int y, int z) { return {x, y, z}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline uchar2 make_uchar2(unsigned char x, unsigned char y) { return {x, y}; }
static inline uchar4 make_uchar4(unsigned char x, unsigned char y, unsigned char z, unsigned char w) {
    return {x, y, z, w};
}
static inline ushort2 make_ushort2(unsigned short x, unsigned short y) { return {x, y}; }
static inline ushort4 make_ushort4(unsigned short x, unsigned short y, unsigned short z, unsigned short w) {
    return {x, y, z, w};
}
static inline longlong2 make_longlong2(long long x, long long y) { return {x, y}; }
static inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static const int warpSize = 32;

// ---------------------------------------------------------------------------------------------------- the scheduler

// Dynamic shared memory; `extern __shared__ T x[]` is rewritten to a pointer to it.
alignas(128) static unsigned char emu_dynamic_shared[48 << 10];
extern "C" {
extern unsigned char __start_emu_shared[] __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_emu_shared[] __attribute__((weak, visibility("hidden")));
}

namespace emu {

enum State { READY, AT_WARP, AT_BLOCK, DONE };
enum Op { SYNCTHREADS, SYNC_OR, SYNC_AND, SYNC_COUNT, SYNCWARP, SHFL, SHFL_UP, SHFL_DOWN, SHFL_XOR, BALLOT, ANY, ALL,
          ADD_U, MIN_U, MAX_U, MIN_I, MAX_I, AND_U, OR_U, XOR_U };
static const char *const op_names[] = {
    "__syncthreads", "__syncthreads_or", "__syncthreads_and", "__syncthreads_count", "__syncwarp", "__shfl_sync",
    "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync", "__ballot_sync", "__any_sync", "__all_sync",
    "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync", "__reduce_min_sync", "__reduce_max_sync",
    "__reduce_and_sync", "__reduce_or_sync", "__reduce_xor_sync"};

const int MAX_THREADS = 1024;
#if EMU_ASAN
const size_t STACK = 256 << 10;
#else
const size_t STACK = 64 << 10;
#endif
const uint64_t CANARY = 0x5AFE57ACC0DE5AFEull;
const uint64_t SPIN_LIMIT = 1ull << 27;

struct Fiber {
#if defined(__x86_64__) && !defined(EMU_UCONTEXT)
    void *sp;
#else
    ucontext_t context;
#endif
    unsigned char *stack;
    void *fake;
};

struct Thread {
    State state;
    Fiber *fiber;  // null until it runs, and again once it is done
    uint3 index;
    Op op;
    int line;
    const char *file;
    uint64_t value, result;
    int param, width;
};

struct Warp {
    int live, waiting, first;  // first: the thread that came first to the instruction the warp now waits at
};

typedef void (*Kernel)(void **);

static Thread threads[MAX_THREADS];
static Warp warps[MAX_THREADS / 32];
static Fiber fibers[MAX_THREADS];
static Fiber *idle[MAX_THREADS];
static int idle_count, fiber_count, count, block_waiting, block_first, done_count;
static int self;
static Fiber main_fiber;
static Kernel kernel;
static void **arguments;
static bool failed, shuffling;
static uint64_t random_state, atomics;
static char *message;
static size_t message_size;
static sigjmp_buf escape;
#if EMU_ASAN
static const void *main_bottom;
static size_t main_size;
#endif

static inline uint64_t next_random() {
    uint64_t z = random_state += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

#if defined(__x86_64__) && !defined(EMU_UCONTEXT)
extern "C" void emu_switch(void **save, void *to) __attribute__((visibility("hidden")));
asm(R"(
    .text
    .hidden emu_switch
    .globl emu_switch
    .type emu_switch, @function
emu_switch:
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
    .size emu_switch, . - emu_switch
)");
#endif

static void jump(Fiber *from, Fiber *to) {
#if EMU_ASAN
    const bool home = to == &main_fiber;
    __sanitizer_start_switch_fiber(&from->fake, home ? main_bottom : to->stack, home ? main_size : STACK);
#endif
#if defined(__x86_64__) && !defined(EMU_UCONTEXT)
    emu_switch(&from->sp, to->sp);
#else
    swapcontext(&from->context, &to->context);
#endif
#if EMU_ASAN
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(from->fake, &bottom, &size);
    if (from != &main_fiber) main_bottom = bottom, main_size = size;
#endif
}

static void leave() { jump(threads[self].fiber, &main_fiber); }

__attribute__((format(printf, 1, 2))) static void describe(const char *format, ...) {
    if (failed) return;
    failed = true;
    va_list list;
    va_start(list, format);
    int n = snprintf(message, message_size, "block (%u, %u, %u): ", blockIdx.x, blockIdx.y, blockIdx.z);
    vsnprintf(message + n, message_size - n, format, list);
    va_end(list);
}

[[noreturn]] static void abandon() {
    for (;;) leave();  // the launch ends; this fiber is never resumed
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// Where a thread is, in words.
static void place(char *out, size_t size, int t) {
    const Thread &a = threads[t];
    if (a.state == DONE)
        snprintf(out, size, "thread %d has left the kernel", t);
    else
        snprintf(out, size, "thread %d waits in %s at %s:%d", t, op_names[a.op], base_name(a.file), a.line);
}

static void describe_two(const char *what, int a, int b) {
    char left[200], right[200];
    place(left, sizeof left, a);
    place(right, sizeof right, b);
    describe("%s: %s, but %s", what, left, right);
}

static void finish_warp(Warp &warp, int w) {
    const int base = w * 32;
    const int lanes = count - base < 32 ? count - base : 32;
    const Op op = threads[warp.first].op;
    uint64_t all = op == MIN_U || op == ALL || op == AND_U ? ~0ull : 0;
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (int i = 0; i < lanes; i++) {
        const Thread &t = threads[base + i];
        if (t.state == DONE) continue;
        const uint32_t v = (uint32_t)t.value;
        switch (op) {
            case BALLOT: if (t.value) all |= 1ull << i; break;
            case ANY: if (t.value) all = 1; break;
            case ALL: if (!t.value) all = 0; break;
            case ADD_U: all = (uint32_t)(all + v); break;
            case MIN_U: if (v < all) all = v; break;
            case MAX_U: if (v > all) all = v; break;
            case AND_U: all &= v; break;
            case OR_U: all |= v; break;
            case XOR_U: all ^= v; break;
            case MIN_I: if ((int32_t)v < low) low = (int32_t)v; break;
            case MAX_I: if ((int32_t)v > high) high = (int32_t)v; break;
            default: break;
        }
    }
    if (op == ALL) all = all != 0;
    if (op == AND_U) all = (uint32_t)all;
    if (op == MIN_I) all = (uint32_t)(int32_t)low;
    if (op == MAX_I) all = (uint32_t)(int32_t)high;
    for (int i = 0; i < lanes; i++) {
        Thread &t = threads[base + i];
        if (t.state == DONE) continue;
        if (op >= SHFL && op <= SHFL_XOR) {
            const int segment = i & ~(t.width - 1), last = segment + t.width - 1;
            int source = i;
            if (op == SHFL) source = segment + (t.param & (t.width - 1));
            if (op == SHFL_UP) source = i - t.param < segment ? i : i - t.param;
            if (op == SHFL_DOWN) source = i + t.param > last ? i : i + t.param;
            if (op == SHFL_XOR) source = (i ^ t.param) > last ? i : i ^ t.param;
            if (source >= lanes || threads[base + source].state == DONE) {
                describe("thread %d reads lane %d at %s:%d, which has left the kernel or does not exist", base + i,
                         source, base_name(t.file), t.line);
                return;
            }
            t.result = threads[base + source].value;
        } else {
            t.result = all;
        }
    }
    for (int i = 0; i < lanes; i++)
        if (threads[base + i].state == AT_WARP) threads[base + i].state = READY;
    warp.waiting = 0;
}

static void same_site(int first, int t) {
    const Thread &a = threads[first], &b = threads[t];
    if (a.op != b.op || a.line != b.line || strcmp(a.file, b.file)) {
        describe_two("threads meet at different instructions", first, t);
        abandon();
    }
}

static uint64_t warp_op(Op op, unsigned mask, uint64_t value, int param, int width, const char *file, int line) {
    Thread &t = threads[self];
    if (mask != 0xFFFFFFFFu) {
        describe("thread %d calls %s at %s:%d with mask 0x%08x; only the full mask 0xffffffff is allowed", self,
                 op_names[op], base_name(file), line, mask);
        abandon();
    }
    if (width < 1 || width > 32 || (width & (width - 1))) {
        describe("%s at %s:%d has width %d, which is no power of two up to 32", op_names[op], base_name(file), line, width);
        abandon();
    }
    t.op = op, t.value = value, t.param = param, t.width = width, t.file = file, t.line = line;
    t.state = AT_WARP;
    Warp &warp = warps[self / 32];
    if (warp.waiting++ == 0) warp.first = self;
    same_site(warp.first, self);
    if (warp.waiting == warp.live) {
        finish_warp(warp, self / 32);
        if (failed) abandon();
        // The last lane to come is not always the first to go on.
        if (shuffling && (next_random() & 1)) leave();
    } else {
        leave();
    }
    return t.result;
}

static int block_op(Op op, int predicate, const char *file, int line) {
    Thread &t = threads[self];
    t.op = op, t.value = predicate != 0, t.file = file, t.line = line;
    t.state = AT_BLOCK;
    if (block_waiting++ == 0) block_first = self;
    same_site(block_first, self);
    if (block_waiting == count) {
        uint64_t sum = 0;
        for (int i = 0; i < count; i++) sum += threads[i].value;
        const uint64_t result = op == SYNC_COUNT ? sum : op == SYNC_OR ? sum != 0 : sum == (uint64_t)count;
        for (int i = 0; i < count; i++) threads[i].result = result, threads[i].state = READY;
        block_waiting = 0;
    }
    leave();
    return (int)t.result;
}

static inline void atomic_point(const char *file, int line) {
    if (++atomics > SPIN_LIMIT) {
        describe("thread %d spins at an atomic at %s:%d", self, base_name(file), line);
        abandon();
    }
    if (shuffling && (next_random() & 3) == 0) leave();
}

static void fiber_main() {
#if EMU_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &main_bottom, &main_size);
#endif
    for (;;) {
        kernel(arguments);
        Thread &t = threads[self];
        t.state = DONE;
        done_count++;
        Warp &warp = warps[self / 32];
        if (--warp.live > 0 && warp.waiting == warp.live) finish_warp(warp, self / 32);
        leave();
    }
}

static void prepare(Fiber &fiber) {
#if EMU_ASAN
    __asan_unpoison_memory_region(fiber.stack, STACK);
#endif
    memcpy(fiber.stack, &CANARY, sizeof CANARY);
#if defined(__x86_64__) && !defined(EMU_UCONTEXT)
    void **top = reinterpret_cast<void **>(fiber.stack + STACK - 64);
    *--top = nullptr;  // return address of fiber_main, which never returns; keeps the stack as after a call
    *--top = reinterpret_cast<void *>(&fiber_main);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    fiber.sp = top;
#else
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &fiber_main, 0);
#endif
}

static Fiber *take_fiber() {
    if (idle_count) return idle[--idle_count];
    Fiber &fiber = fibers[fiber_count++];
    if (!fiber.stack) {
        void *memory = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) abort();
        fiber.stack = static_cast<unsigned char *>(memory);
    }
    prepare(fiber);
    return &fiber;
}

static void resume(int t) {
    Thread &thread = threads[t];
    if (!thread.fiber) thread.fiber = take_fiber();
    self = t;
    threadIdx = thread.index;
    atomics = 0;
    jump(&main_fiber, thread.fiber);
    uint64_t canary;
    memcpy(&canary, thread.fiber->stack, sizeof canary);
    if (canary != CANARY) {
        describe("thread %d needs more than %zu bytes of stack", t, STACK);
        return;
    }
    if (thread.state == DONE) {
        idle[idle_count++] = thread.fiber;
        thread.fiber = nullptr;
    }
}

__attribute__((no_sanitize_address)) static void poison(unsigned char *from, unsigned char *to) {
    for (volatile unsigned char *p = from; p < to; p++) *p = 0xCB;
}

static void explain_stuck() {
    int waiting = -1;
    for (int i = 0; i < count; i++)
        if (threads[i].state == AT_BLOCK) { waiting = i; break; }
    if (waiting < 0) {
        describe("threads wait for each other");
        return;
    }
    for (int i = 0; i < count; i++)
        if (threads[i].state != AT_BLOCK) {
            describe_two("not all threads reach a barrier", waiting, i);
            return;
        }
}

static void run_block(int order, int *sequence) {
    for (int i = 0; i < count; i++) {
        Thread &t = threads[i];
        t.state = READY;
        t.fiber = nullptr;
        t.index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
        sequence[i] = order == 1 ? count - 1 - i : i;
    }
    for (int w = 0; w * 32 < count; w++) warps[w] = {count - w * 32 < 32 ? count - w * 32 : 32, 0, 0};
    block_waiting = done_count = 0;
    poison(__start_emu_shared, __stop_emu_shared);
    while (done_count < count) {
        if (shuffling)
            for (int i = count - 1; i > 0; i--) std::swap(sequence[i], sequence[next_random() % (i + 1)]);
        bool progress = false;
        for (int i = 0; i < count; i++) {
            const int t = sequence[i];
            if (threads[t].state != READY) continue;
            progress = true;
            resume(t);
            if (failed) return;
        }
        if (!progress) {
            explain_stuck();
            return;
        }
    }
}

static struct sigaction old_actions[4];
static const int caught[4] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};

static void on_signal(int number, siginfo_t *info, void *context) {
    const char *what = number == SIGILL   ? "undefined behaviour (misaligned access, shift too far, signed overflow, "
                                            "index outside its array, division by zero)"
                       : number == SIGFPE ? "division by zero"
                                          : "address outside every array";
    void *pc = nullptr;
#if defined(__x86_64__)
    pc = reinterpret_cast<void *>(static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
    pc = reinterpret_cast<void *>(static_cast<ucontext_t *>(context)->uc_mcontext.pc);
#endif
    describe("thread %d: %s, address %p [pc+%p]", self, what, info->si_addr, (void *)((char *)pc - (char *)nullptr));
    siglongjmp(escape, 1);
}

static void catch_signals(bool on) {
#if !EMU_ASAN
    for (int i = 0; i < 4; i++) {
        if (!on) {
            sigaction(caught[i], &old_actions[i], nullptr);
            continue;
        }
        struct sigaction action;
        memset(&action, 0, sizeof action);
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigaction(caught[i], &action, &old_actions[i]);
    }
#else
    (void)on;
    (void)old_actions;
    (void)caught;
#endif
}

static int launch(Kernel function, const uint32_t *shape, uint64_t shared, void **args, int order, uint64_t seed,
                  char *text, size_t size) {
    static int sequence[MAX_THREADS];
    static unsigned char signal_stack[64 << 10];
    gridDim = {shape[0], shape[1], shape[2]};
    blockDim = {shape[3], shape[4], shape[5]};
    count = (int)(blockDim.x * blockDim.y * blockDim.z);
    kernel = function, arguments = args, failed = false, message = text, message_size = size;
    shuffling = order == 2;
    random_state = seed;
    fiber_count = idle_count = 0;  // fibers of an abandoned launch are made anew
    const uint64_t blocks = (uint64_t)gridDim.x * gridDim.y * gridDim.z;
    // A walk over all blocks with a step that has no factor in common with their number.
    uint64_t step = 1, start = 0;
    if (order == 2 && blocks > 2) {
        start = next_random() % blocks;
        for (;;) {
            step = 1 + next_random() % (blocks - 1);
            uint64_t a = blocks, b = step;
            while (b) { const uint64_t r = a % b; a = b, b = r; }
            if (a == 1) break;
        }
    }
    stack_t stack = {}, old_stack;
    stack.ss_sp = signal_stack;
    stack.ss_size = sizeof signal_stack;
#if !EMU_ASAN
    sigaltstack(&stack, &old_stack);
#else
    (void)old_stack;
    __asan_unpoison_memory_region(emu_dynamic_shared, sizeof emu_dynamic_shared);
#endif
    catch_signals(true);
    if (sigsetjmp(escape, 1) == 0) {
        uint64_t at = start;
        for (uint64_t i = 0; i < blocks && !failed; i++) {
            const uint64_t b = order == 1 ? blocks - 1 - i : order == 2 ? at : i;
            at += step;
            if (at >= blocks) at -= blocks;
            blockIdx = {(unsigned)(b % gridDim.x), (unsigned)(b / gridDim.x % gridDim.y),
                        (unsigned)(b / ((uint64_t)gridDim.x * gridDim.y))};
            poison(emu_dynamic_shared, emu_dynamic_shared + shared);
#if EMU_ASAN
            __asan_poison_memory_region(emu_dynamic_shared + shared, sizeof emu_dynamic_shared - shared);
#endif
            run_block(order, sequence);
        }
    }
    catch_signals(false);
#if !EMU_ASAN
    sigaltstack(&old_stack, nullptr);
#endif
    return failed ? 1 : 0;
}

// --------------------------------------------------------------------------------------- arguments and their types

template <class T> struct Code { static void put(char *&p) { p += sprintf(p, "s%zu", sizeof(T)); } };
template <> struct Code<void> { static void put(char *&p) { *p++ = 'v'; } };
template <> struct Code<bool> { static void put(char *&p) { p += sprintf(p, "b1"); } };
template <class T> struct Scalar {
    static void put(char *&p) {
        p += sprintf(p, "%c%zu", std::is_floating_point<T>::value ? 'f' : std::is_signed<T>::value ? 'i' : 'u', sizeof(T));
    }
};
#define EMU_SCALAR(T) template <> struct Code<T> : Scalar<T> {};
EMU_SCALAR(char) EMU_SCALAR(signed char) EMU_SCALAR(unsigned char) EMU_SCALAR(short) EMU_SCALAR(unsigned short)
EMU_SCALAR(int) EMU_SCALAR(unsigned int) EMU_SCALAR(long) EMU_SCALAR(unsigned long) EMU_SCALAR(long long)
EMU_SCALAR(unsigned long long) EMU_SCALAR(float) EMU_SCALAR(double)
#undef EMU_SCALAR
#define EMU_VECTOR(T, text) template <> struct Code<T> { static void put(char *&p) { p += sprintf(p, text); } };
EMU_VECTOR(uint2, "u4x2") EMU_VECTOR(uint4, "u4x4") EMU_VECTOR(int2, "i4x2") EMU_VECTOR(int4, "i4x4")
EMU_VECTOR(uchar2, "u1x2") EMU_VECTOR(uchar4, "u1x4") EMU_VECTOR(ushort2, "u2x2") EMU_VECTOR(ushort4, "u2x4")
EMU_VECTOR(longlong2, "i8x2") EMU_VECTOR(ulonglong2, "u8x2")
#undef EMU_VECTOR
template <class T> struct Code<T *> {
    static void put(char *&p) { *p++ = '*'; Code<typename std::remove_cv<T>::type>::put(p); }
};

template <class... P> static void signature(void (*)(P...), char *out) {
    char *p = out;
    *p = 0;
    ((Code<typename std::remove_cv<P>::type>::put(p), *p++ = ' '), ...);
    if (p > out) p--;
    *p = 0;
}

template <class... P, size_t... I> static void apply(void (*f)(P...), void **a, std::index_sequence<I...>) {
    (void)a;
    f(*static_cast<typename std::remove_cv<P>::type *>(a[I])...);
}
template <class... P> static void apply(void (*f)(P...), void **a) { apply(f, a, std::index_sequence_for<P...>{}); }

}  // namespace emu

// --------------------------------------------------------------------------------------------------- CUDA's functions

#define EMU_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

static inline void __syncthreads(EMU_SITE) { emu::block_op(emu::SYNCTHREADS, 0, file, line); }
static inline int __syncthreads_or(int p, EMU_SITE) { return emu::block_op(emu::SYNC_OR, p, file, line); }
static inline int __syncthreads_and(int p, EMU_SITE) { return emu::block_op(emu::SYNC_AND, p, file, line); }
static inline int __syncthreads_count(int p, EMU_SITE) { return emu::block_op(emu::SYNC_COUNT, p, file, line); }
static inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, EMU_SITE) {
    emu::warp_op(emu::SYNCWARP, mask, 0, 0, 32, file, line);
}

template <class T> static inline T emu_shuffle(emu::Op op, unsigned mask, T value, int param, int width, EMU_SITE) {
    static_assert(std::is_arithmetic<T>::value && (sizeof(T) == 4 || sizeof(T) == 8), "shuffles move 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = emu::warp_op(op, mask, bits, param, width, file, line);
    memcpy(&value, &bits, sizeof value);
    return value;
}
template <class T> static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, EMU_SITE) {
    return emu_shuffle(emu::SHFL, mask, value, lane, width, file, line);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, EMU_SITE) {
    return emu_shuffle(emu::SHFL_UP, mask, value, (int)delta, width, file, line);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EMU_SITE) {
    return emu_shuffle(emu::SHFL_DOWN, mask, value, (int)delta, width, file, line);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, EMU_SITE) {
    return emu_shuffle(emu::SHFL_XOR, mask, value, lane_mask, width, file, line);
}
static inline unsigned __ballot_sync(unsigned mask, int p, EMU_SITE) {
    return (unsigned)emu::warp_op(emu::BALLOT, mask, p != 0, 0, 32, file, line);
}
static inline int __any_sync(unsigned mask, int p, EMU_SITE) {
    return (int)emu::warp_op(emu::ANY, mask, p != 0, 0, 32, file, line);
}
static inline int __all_sync(unsigned mask, int p, EMU_SITE) {
    return (int)emu::warp_op(emu::ALL, mask, p != 0, 0, 32, file, line);
}
// As on hardware (sm_80 and later): a kernel for sm_75 must not use them; the build sets __CUDA_ARCH__.
#define EMU_REDUCE(name, T, op) \
    static inline T name(unsigned mask, T v, EMU_SITE) { \
        return (T)(uint32_t)emu::warp_op(emu::op, mask, (uint32_t)v, 0, 32, file, line); \
    }
EMU_REDUCE(__reduce_add_sync, unsigned, ADD_U) EMU_REDUCE(__reduce_add_sync, int, ADD_U)
EMU_REDUCE(__reduce_min_sync, unsigned, MIN_U) EMU_REDUCE(__reduce_min_sync, int, MIN_I)
EMU_REDUCE(__reduce_max_sync, unsigned, MAX_U) EMU_REDUCE(__reduce_max_sync, int, MAX_I)
EMU_REDUCE(__reduce_and_sync, unsigned, AND_U) EMU_REDUCE(__reduce_or_sync, unsigned, OR_U)
EMU_REDUCE(__reduce_xor_sync, unsigned, XOR_U)
#undef EMU_REDUCE

template <class T> static inline T emu_sum(T a, T b) {
    typedef typename std::make_unsigned<T>::type U;
    return (T)((U)a + (U)b);
}
#define EMU_ATOMIC(T) \
    static inline T atomicAdd(T *p, T v, EMU_SITE) { emu::atomic_point(file, line); T o = *p; *p = emu_sum(o, v); return o; } \
    static inline T atomicMin(T *p, T v, EMU_SITE) { emu::atomic_point(file, line); T o = *p; if (v < o) *p = v; return o; } \
    static inline T atomicMax(T *p, T v, EMU_SITE) { emu::atomic_point(file, line); T o = *p; if (v > o) *p = v; return o; } \
    static inline T atomicOr(T *p, T v, EMU_SITE) { emu::atomic_point(file, line); T o = *p; *p = o | v; return o; } \
    static inline T atomicAnd(T *p, T v, EMU_SITE) { emu::atomic_point(file, line); T o = *p; *p = o & v; return o; } \
    static inline T atomicXor(T *p, T v, EMU_SITE) { emu::atomic_point(file, line); T o = *p; *p = o ^ v; return o; } \
    static inline T atomicExch(T *p, T v, EMU_SITE) { emu::atomic_point(file, line); T o = *p; *p = v; return o; } \
    static inline T atomicCAS(T *p, T c, T v, EMU_SITE) { \
        emu::atomic_point(file, line); T o = *p; if (o == c) *p = v; return o; \
    }
EMU_ATOMIC(unsigned int) EMU_ATOMIC(int) EMU_ATOMIC(unsigned long long)
#undef EMU_ATOMIC
static inline unsigned atomicSub(unsigned *p, unsigned v, EMU_SITE) { return atomicAdd(p, 0u - v, file, line); }
// atomicMin and atomicMax alone have a signed 64-bit form.
static inline long long atomicMin(long long *p, long long v, EMU_SITE) {
    emu::atomic_point(file, line);
    long long o = *p;
    if (v < o) *p = v;
    return o;
}
static inline long long atomicMax(long long *p, long long v, EMU_SITE) {
    emu::atomic_point(file, line);
    long long o = *p;
    if (v > o) *p = v;
    return o;
}

template <class T> static inline T __ldg(const T *p) { return *p; }
// __clz(0) is 32 in CUDA. The kernels guard it all the same, and here it is a fault.
static inline int emu_zero(const char *name, const char *file, int line) {
    emu::describe("thread %d calls %s(0) at %s:%d; guard it", emu::self, name, emu::base_name(file), line);
    emu::abandon();
}
static inline int __clz(int x, EMU_SITE) { return x ? __builtin_clz((unsigned)x) : emu_zero("__clz", file, line); }
static inline int __clzll(long long x, EMU_SITE) {
    return x ? __builtin_clzll((unsigned long long)x) : emu_zero("__clzll", file, line);
}
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline unsigned __brev(unsigned x) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r = (r << 1) | ((x >> i) & 1u);
    return r;
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a * b) >> 32); }
static inline int __mulhi(int a, int b) { return (int)(((int64_t)a * b) >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((((uint64_t)high << 32) | low) << (shift & 31)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)((((uint64_t)high << 32) | low) >> (shift & 31));
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const uint64_t both = ((uint64_t)y << 32) | x;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned s = (selector >> (4 * i)) & 15u;
        unsigned byte = (unsigned)(both >> (8 * (s & 7))) & 255u;
        if (s & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << (8 * i);
    }
    return r;
}

#define EMU_MINMAX(T) \
    static inline T min(T a, T b) { return b < a ? b : a; } \
    static inline T max(T a, T b) { return a < b ? b : a; }
EMU_MINMAX(int) EMU_MINMAX(unsigned int) EMU_MINMAX(long) EMU_MINMAX(unsigned long) EMU_MINMAX(long long)
EMU_MINMAX(unsigned long long) EMU_MINMAX(float) EMU_MINMAX(double)
#undef EMU_MINMAX
// CUDA takes mixed signs too, and compares them as unsigned.
#define EMU_MIXED(U, S) \
    static inline U min(U a, S b) { return min(a, (U)b); } \
    static inline U min(S a, U b) { return min((U)a, b); } \
    static inline U max(U a, S b) { return max(a, (U)b); } \
    static inline U max(S a, U b) { return max((U)a, b); }
EMU_MIXED(unsigned int, int) EMU_MIXED(unsigned long long, long long)
#undef EMU_MIXED
static inline unsigned umin(unsigned a, unsigned b) { return b < a ? b : a; }
static inline unsigned umax(unsigned a, unsigned b) { return a < b ? b : a; }
