// What the kernels on text share: where a thread stands among rows of unequal length, and unaligned words of a staged
// text.
#pragma once
#include "mix64.cuh"

// Rows lie end to end: row r is offsets[r] to offsets[r + 1], empty rows allowed. The last row of [low, high] that
// begins at or before `at`; offsets[low] <= at must hold. A row found for a place inside the rows is never empty.
__device__ __forceinline__ i64 row_of(const i64 *offsets, i64 low, i64 high, i64 at) {
    while (low < high) {
        const i64 middle = low + (high - low + 1) / 2;
        if (offsets[middle] <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

// Position of this thread in a one-dimensional grid.
__device__ __forceinline__ i64 position() { return (i64)blockIdx.x * (i64)blockDim.x + (i64)threadIdx.x; }

// Eight bytes from any position of a text that begins at a multiple of 8 and has 16 spare bytes after its end.
__device__ __forceinline__ u64 load_u64(const u64 *words, i64 at) {
    const i64 word = at >> 3;
    const u32 shift = 8u * (u32)(at & 7);
    return (words[word] >> shift) | ((words[word + 1] << 1) << (63u - shift));
}

// The low `count` bytes, 1 <= count <= 8.
__device__ __forceinline__ u64 low_bytes(u64 word, i64 count) { return word & (~0ull >> (64u - 8u * (u32)count)); }
