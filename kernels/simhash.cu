// SimHash of rows of shingle hashes; the definition is simhash_ref.py.
//
// A warp takes 32 hashes at a time, one a lane, and turns them as two 32 x 32 matrices of bits: lane i then has bit i
// of all 32, and a row's share of them is one mask and one population count. That is 40 instructions of a warp for 32
// hashes and 64 sums, where adding bit after bit takes 200.
#include "tape.cuh"

#define FULL 0xFFFFFFFFu
#define PER_WARP 256  // hashes of a warp

// Bit i of lane j's word becomes bit j of lane i's. Called by whole warps.
__device__ __forceinline__ u32 turn(u32 x, u32 lane) {
    u32 mask = 0x0000FFFFu;
#pragma unroll
    for (u32 step = 16; step; step >>= 1) {
        const u32 y = __shfl_xor_sync(FULL, x, (int)step);
        x = lane & step ? (x & ~mask) | ((y >> step) & mask) : (x & mask) | ((y << step) & ~mask);
        mask ^= mask << (step >> 1);
    }
    return x;
}

// rows_at: tile_rows of tiles of PER_WARP hashes, which are one warp's. ones uint32[rows, 64], zeros before.
extern "C" __global__ void __launch_bounds__(256) bit_counts(
    const u64 *hashes, const i64 *hash_rows, const i64 *rows_at, i64 rows, i64 tiles, u32 *ones) {
    const i64 tile = position() >> 5;
    if (tile >= tiles) return;  // whole warps
    const u32 lane = threadIdx.x & 31u;
    const i64 total = hash_rows[rows];
    const i64 begin = hash_rows[0] + tile * PER_WARP;
    const i64 stop = begin + PER_WARP < total ? begin + PER_WARP : total;
    if (begin >= stop) return;
    i64 row = rows_at[tile];
    i64 end = hash_rows[row + 1];
    u32 low = 0, high = 0;
    // Everything that steers these loops is the same in all lanes.
    for (i64 base = begin; base < stop; base += 32) {
        const i64 upto = base + 32 < stop ? base + 32 : stop;
        const u64 hash = base + lane < upto ? hashes[base + lane] : 0ull;
        const u32 bits_low = turn((u32)hash, lane), bits_high = turn((u32)(hash >> 32), lane);
        i64 at = base;
        for (;;) {
            const i64 to = end < upto ? end : upto;
            if (to > at) {
                const u32 mask = (FULL >> (32u - (u32)(to - at))) << (u32)(at - base);
                low += (u32)__popc(bits_low & mask);
                high += (u32)__popc(bits_high & mask);
            }
            at = to;
            if (at < end && at < stop) break;  // the row goes on in the next 32
            atomicAdd(&ones[row * 64 + lane], low);
            atomicAdd(&ones[row * 64 + 32 + lane], high);
            low = high = 0;
            if (at >= stop) break;
            row++;
            if (hash_rows[row + 1] <= at) row = row_of(hash_rows, row, rows - 1, at);
            end = hash_rows[row + 1];
            if (at >= upto) break;
        }
    }
}

// One warp per half a row. out uint32[rows, 2]: low half first.
extern "C" __global__ void __launch_bounds__(256) majorities(
    const u32 *ones, const i64 *hash_rows, i64 rows, u32 *out) {
    const i64 i = position();
    if ((i >> 6) >= rows) return;  // whole warps
    const i64 row = i >> 6;
    const i64 count = hash_rows[row + 1] - hash_rows[row];
    const u32 bits = __ballot_sync(FULL, 2 * (i64)ones[i] > count);
    if ((threadIdx.x & 31u) == 0) out[i >> 5] = bits;
}

// Terms of TFIDF: the sets of shingle_sets.cu, ascending within a row.
//
//     term_weights      the weight of each
//     weight_keys       after its numbers (ranks.cu): heavier first, then by place; sorted, they are ranks
//     ranked_rows       the rank of each term with its row in front; sorted, each row has its heaviest terms first
//     drop_light        weight 0 for the terms of a row behind its first `top`
//     weighted_sums, weighted_majorities  as bit_counts and majorities, with weights
// Sorts are checked on the way: report uint32[1], zero before, counts what is not in order. What is read by a sorted
// number stays inside its array whatever the sort did.

// starts int64[n]: where the repeats of each term begin among `total` sorted hashes.
extern "C" __global__ void __launch_bounds__(256) term_weights(
    const u64 *terms, const i64 *starts, i64 n, i64 total, const u32 *idf, u64 *weights) {
    const i64 i = position();
    if (i >= n) return;
    const i64 end = i + 1 < n ? starts[i + 1] : total;
    weights[i] = (u64)(end - starts[i]) * (u64)idf[terms[i] >> 40];
}

// numbers: of the weights, ascending.
extern "C" __global__ void __launch_bounds__(256) weight_keys(const u32 *numbers, i64 n, u64 *keys) {
    const i64 i = position();
    if (i < n) keys[i] = ((u64)(FULL - numbers[i]) << 32) | (u64)i;
}

extern "C" __global__ void __launch_bounds__(256) ranked_rows(
    const u64 *ranks, const i64 *term_rows, i64 rows, i64 n, u64 *keys, u32 *report) {
    const i64 r = position();
    if (r >= n) return;
    const i64 at = (i64)(u32)ranks[r];
    if (at >= n || (r && ranks[r - 1] >= ranks[r])) {
        atomicAdd(&report[0], 1u);
        keys[r] = 0;
        return;
    }
    keys[r] = ((u64)row_of(term_rows, 0, rows - 1, at) << 32) | (u64)r;
}

// sorted: what ranked_rows wrote, in order; ranks: what it read.
extern "C" __global__ void __launch_bounds__(256) drop_light(
    const u64 *sorted, const u64 *ranks, const i64 *term_rows, i64 rows, i64 n, i64 top, u64 *weights, u32 *report) {
    const i64 i = position();
    if (i >= n) return;
    const i64 row = (i64)(sorted[i] >> 32), rank = (i64)(u32)sorted[i];
    if (row >= rows || rank >= n || (i && sorted[i - 1] >= sorted[i])) {
        atomicAdd(&report[0], 1u);
        return;
    }
    if (i - term_rows[row] >= top) weights[(u32)ranks[rank]] = 0;
}

// rows_at: tile_rows of tiles of PER_WARP terms, which are one warp's. sums uint64[rows, 64], totals uint64[rows]; zeros
// before.
extern "C" __global__ void __launch_bounds__(256) weighted_sums(
    const u64 *terms, const u64 *weights, const i64 *term_rows, const i64 *rows_at, i64 rows, i64 tiles, u64 *sums,
    u64 *totals) {
    const i64 tile = position() >> 5;
    if (tile >= tiles) return;
    const u32 lane = threadIdx.x & 31u;
    const i64 last = term_rows[rows];
    const i64 begin = term_rows[0] + tile * PER_WARP;
    const i64 stop = begin + PER_WARP < last ? begin + PER_WARP : last;
    if (begin >= stop) return;
    i64 row = rows_at[tile];
    u64 low = 0, high = 0, total = 0;
    i64 at = begin;
    while (at < stop) {
        const i64 end = term_rows[row + 1];
        for (; at < end && at < stop; at++) {  // all lanes read the same two words
            const u64 hash = terms[at], weight = weights[at];
            low += (hash >> lane) & 1ull ? weight : 0ull;
            high += (hash >> (lane + 32u)) & 1ull ? weight : 0ull;
            total += weight;
        }
        atomicAdd(&sums[row * 64 + lane], low);
        atomicAdd(&sums[row * 64 + 32 + lane], high);
        if (!lane) atomicAdd(&totals[row], total);
        low = high = total = 0;
        if (at < stop) row = row_of(term_rows, row, rows - 1, at);
    }
}

// One warp per half a row. out uint32[rows, 2]: low half first.
extern "C" __global__ void __launch_bounds__(256) weighted_majorities(
    const u64 *sums, const u64 *totals, i64 rows, u32 *out) {
    const i64 i = position();
    if ((i >> 6) >= rows) return;  // whole warps
    const u32 bits = __ballot_sync(FULL, sums[i] > totals[i >> 6] >> 1);
    if ((threadIdx.x & 31u) == 0) out[i >> 5] = bits;
}
