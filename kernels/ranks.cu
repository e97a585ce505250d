// Dense numbers of 64-bit keys, in key order, from a sort that may put equal keys in any order.
//
//     key_runs     after an argsort: where a key begins that differs from the one before; counts what a sort may not do
//     run_numbers  after a scan of the flags: the number of each position's key
//     run_values   and the key of each number
//
// A number takes 32 bits, so that a second sort can have another 32 bits in front of it (a document, a segment) and still
// moves single words.
#include "tape.cuh"

// flags[i] = 1 if the key at order[i] is not that at order[i - 1]. report uint32[2], zeros before: positions that are no
// position or stand after a greater key; the sum of all positions modulo 2**32, by which a position that came twice shows.
extern "C" __global__ void __launch_bounds__(256) key_runs(const u64 *keys, const i64 *order, i64 n, i64 *flags,
                                                          u32 *report) {
    __shared__ u32 wrong, sum;
    if (threadIdx.x == 0) wrong = 0, sum = 0;
    __syncthreads();
    const i64 i = position();
    if (i < n) {
        const i64 at = order[i], before = i ? order[i - 1] : at;
        bool fresh = true;
        if (at < 0 || at >= n || before < 0 || before >= n) {
            atomicAdd(&wrong, 1u);
        } else if (i) {
            const u64 key = keys[at], other = keys[before];
            if (other > key) atomicAdd(&wrong, 1u);
            fresh = other != key;
        }
        flags[i] = fresh;
        atomicAdd(&sum, (u32)at);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        if (wrong) atomicAdd(&report[0], wrong);
        atomicAdd(&report[1], sum);
    }
}

// runs: inclusive sums of the flags. numbers[order[i]] = runs[i] - 1.
extern "C" __global__ void __launch_bounds__(256) run_numbers(const i64 *order, const i64 *runs, i64 n, u32 *numbers) {
    const i64 i = position();
    if (i < n) numbers[order[i]] = (u32)(runs[i] - 1);
}

extern "C" __global__ void __launch_bounds__(256) run_values(const u64 *keys, const i64 *order, const i64 *flags,
                                                            const i64 *runs, i64 n, u64 *values) {
    const i64 i = position();
    if (i < n && flags[i]) values[runs[i] - 1] = keys[order[i]];
}
