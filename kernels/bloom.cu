// Bloom filters of cache-line blocks; the definition is bloom_ref.py.
//
//     block_numbers  block of each key; the launcher groups the keys by it
//     group_starts   where each group begins in the order of the keys
//     add_groups     a block of threads per block of the table, which it has for itself: the lowest row of each bit, by
//                    atomicMin in shared memory, then every row against those, then the words. So the answer is the
//                    sequential one without any order among threads: a row has been seen if each of its bits was set
//                    before or has a lower row
//     ask_keys       one thread per key
//     fill_counts    bits set in each block of the table, counted
#include "tape.cuh"

#define BLOCK_BITS 512
#define BLOCK_WORDS 8
#define FIELDS 7
#define THREADS 64
#define FULL 0xFFFFFFFFu
#define NOBODY 0xFFFFFFFFu

__device__ __forceinline__ u64 hash_one(const u64 *keys, i64 row, u32 width) {
    return mix64(keys[row * (i64)width] + GOLDEN);
}

__device__ __forceinline__ u64 hash_two(const u64 *keys, i64 row, u32 width) {
    return mix64(keys[row * (i64)width + (i64)width - 1] + 2ull * GOLDEN);
}

// keys uint64[n, width]; out uint64[n]
extern "C" __global__ void __launch_bounds__(256) block_numbers(const u64 *keys, i64 n, u32 width, u64 blocks, u64 *out) {
    const i64 i = position();
    if (i < n) out[i] = __umul64hi(hash_one(keys, i, width), blocks);
}

// flags, runs: of ranks.cu. starts int64[count + 1]
extern "C" __global__ void __launch_bounds__(256) group_starts(const i64 *flags, const i64 *runs, i64 n, i64 *starts) {
    const i64 i = position();
    if (i >= n) return;
    if (flags[i]) starts[runs[i] - 1] = i;
    if (i == n - 1) starts[runs[i]] = n;
}

// words uint64[blocks, 8]; order, starts: the keys of each group; seen uint8[n]. n < 2^31.
extern "C" __global__ void __launch_bounds__(THREADS) add_groups(
    u64 *words, u64 blocks, const u64 *keys, u32 width, u32 hashes, const i64 *order, const i64 *starts, u8 *seen) {
    __shared__ u32 lowest[BLOCK_BITS];  // 1 + row; 0 for a bit that was set before
    const i64 begin = starts[blockIdx.x], end = starts[(i64)blockIdx.x + 1];
    u64 *own = words + __umul64hi(hash_one(keys, order[begin], width), blocks) * BLOCK_WORDS;
    for (u32 bit = threadIdx.x; bit < BLOCK_BITS; bit += THREADS)
        lowest[bit] = (own[bit >> 6] >> (bit & 63u)) & 1ull ? 0u : NOBODY;
    __syncthreads();
    for (i64 i = begin + threadIdx.x; i < end; i += THREADS) {
        const i64 row = order[i];
        const u64 step = hash_one(keys, row, width) | 1ull;
        u64 h = hash_two(keys, row, width);
        for (u32 k = 0; k < hashes; k += FIELDS, h += step) {
            u64 x = mix64(h);
            for (u32 t = k; t < hashes && t < k + FIELDS; t++, x >>= 9) atomicMin(&lowest[x & 511ull], (u32)row + 1u);
        }
    }
    __syncthreads();
    for (i64 i = begin + threadIdx.x; i < end; i += THREADS) {
        const i64 row = order[i];
        const u64 step = hash_one(keys, row, width) | 1ull;
        u64 h = hash_two(keys, row, width);
        bool fresh = false;
        for (u32 k = 0; k < hashes; k += FIELDS, h += step) {
            u64 x = mix64(h);
            for (u32 t = k; t < hashes && t < k + FIELDS; t++, x >>= 9) fresh = fresh || lowest[x & 511ull] > (u32)row;
        }
        seen[row] = fresh ? 0 : 1;
    }
    // Every thread is here for every round: 512 bits, 64 at a time, a warp's 32 bits in one ballot.
    u32 *halves = (u32 *)own;
    for (u32 bit = threadIdx.x; bit < BLOCK_BITS; bit += THREADS) {
        const u32 word = __ballot_sync(FULL, lowest[bit] != NOBODY);
        if ((threadIdx.x & 31u) == 0) halves[bit >> 5] = word;
    }
}

// seen uint8[n]
extern "C" __global__ void __launch_bounds__(256) ask_keys(const u64 *words, u64 blocks, const u64 *keys, i64 n,
                                                          u32 width, u32 hashes, u8 *seen) {
    const i64 i = position();
    if (i >= n) return;
    const u64 h1 = hash_one(keys, i, width);
    const u64 *own = words + __umul64hi(h1, blocks) * BLOCK_WORDS;
    const u64 step = h1 | 1ull;
    u64 h = hash_two(keys, i, width);
    u64 all = 1;
    for (u32 k = 0; k < hashes && all; k += FIELDS, h += step) {
        u64 x = mix64(h);
        for (u32 t = k; t < hashes && t < k + FIELDS; t++, x >>= 9) all &= own[(x & 511ull) >> 6] >> (x & 63ull);
    }
    seen[i] = (u8)(all & 1ull);
}

// counts uint64[513], zeros before: blocks by bits set
extern "C" __global__ void __launch_bounds__(256) fill_counts(const u64 *words, i64 blocks, u64 *counts) {
    const i64 i = position();
    if (i >= blocks) return;
    u32 bits = 0;
    for (u32 w = 0; w < BLOCK_WORDS; w++) bits += (u32)__popcll(words[i * BLOCK_WORDS + w]);
    atomicAdd(&counts[bits], 1ull);
}
