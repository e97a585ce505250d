// Two seeded digests of each text; the definition is digest_ref.py.
//
// XXH64 takes 32 bytes a step in four sums of 8 bytes: four threads per chunk, one sum each, both seeds at once, so
// that a warp reads eight chunks and each step of one is a whole sector of memory. Thread 0 of the four then finishes
// the first seed, thread 1 the second. A text's chunk hashes are combined by one thread per text and seed.
#include "tape.cuh"

#define CHUNK 4096
#define FULL 0xFFFFFFFFu
#define P1 0x9E3779B185EBCA87ull
#define P2 0xC2B2AE3D27D4EB4Full
#define P3 0x165667B19E3779F9ull
#define P4 0x85EBCA77C2B2AE63ull
#define P5 0x27D4EB2F165667C5ull

__device__ __forceinline__ u64 rotate(u64 x, u32 by) { return (x << by) | (x >> (64u - by)); }

__device__ __forceinline__ u64 round_of(u64 sum, u64 word) { return rotate(sum + word * P2, 31) * P1; }

__device__ __forceinline__ u64 merge(u64 h, u64 sum) { return (h ^ round_of(0, sum)) * P1 + P4; }

__device__ __forceinline__ u64 first_sum(u64 seed, u32 which) {
    return which == 0 ? seed + P1 + P2 : which == 1 ? seed + P2 : which == 2 ? seed : seed - P1;
}

__device__ __forceinline__ u64 gather_sums(u64 a, u64 b, u64 c, u64 d) {
    u64 h = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
    h = merge(h, a);
    h = merge(h, b);
    h = merge(h, c);
    return merge(h, d);
}

__device__ __forceinline__ u64 take_word(u64 h, u64 word) { return rotate(h ^ round_of(0, word), 27) * P1 + P4; }

__device__ __forceinline__ u64 avalanche(u64 h) {
    h = (h ^ (h >> 33)) * P2;
    h = (h ^ (h >> 29)) * P3;
    return h ^ (h >> 32);
}

// words: a staged text. chunk_rows int64[rows + 1]: chunks before each row; rows_at: tile_rows of tiles of 64 chunks,
// the chunks of a block. out uint64[2 * chunks]: first all hashes of seed 0, then those of GOLDEN.
extern "C" __global__ void __launch_bounds__(256) chunk_digests(
    const u64 *words, const i64 *offsets, const i64 *chunk_rows, const i64 *rows_at, i64 chunks, u64 *out) {
    const i64 chunk = position() >> 2;
    const u32 which = threadIdx.x & 3u;
    i64 at = 0, size = 0;
    if (chunk < chunks) {
        const i64 row = row_of(chunk_rows, rows_at[blockIdx.x], rows_at[blockIdx.x + 1], chunk);
        at = offsets[row] + (chunk - chunk_rows[row]) * CHUNK;
        const i64 left = offsets[row + 1] - at;
        size = left < CHUNK ? left : CHUNK;
    }
    const i64 full = at + (size & ~(i64)31);
    u64 zero = first_sum(0, which), golden = first_sum(GOLDEN, which);
    i64 place = at;
#pragma unroll 4
    for (; place < full; place += 32) {
        const u64 word = load_u64(words, place + 8 * (i64)which);
        zero = round_of(zero, word);
        golden = round_of(golden, word);
    }
    // All lanes are here again: the sums of the other three.
    const u32 lead = threadIdx.x & 28u;
    u64 sums[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u64 a = __shfl_sync(FULL, zero, (int)(lead + i));
        const u64 b = __shfl_sync(FULL, golden, (int)(lead + i));
        sums[i] = which == 0 ? a : b;
    }
    if (chunk >= chunks || which > 1) return;
    u64 h = size >= 32 ? gather_sums(sums[0], sums[1], sums[2], sums[3]) : (which ? GOLDEN : 0ull) + P5;
    h += (u64)size;
    i64 left = size & 31;
    place = full;
    for (; left >= 8; left -= 8, place += 8) h = take_word(h, load_u64(words, place));
    if (left > 0) {
        const u64 rest = low_bytes(load_u64(words, place), left);
        u32 shift = 0;
        if (left >= 4) {
            h = rotate(h ^ ((rest & 0xFFFFFFFFull) * P1), 23) * P2 + P3;
            shift = 32, left -= 4;
        }
        for (; left > 0; left--, shift += 8) h = rotate(h ^ (((rest >> shift) & 255ull) * P5), 11) * P1;
    }
    out[(which ? chunks : 0) + chunk] = avalanche(h);
}

// out uint64[rows, 2]
extern "C" __global__ void __launch_bounds__(128) row_digests(const u64 *digests, i64 chunks, const i64 *chunk_rows,
                                                             const i64 *offsets, i64 rows, u64 *out) {
    const i64 i = position();
    if (i >= 2 * rows) return;
    const i64 row = i >> 1;
    const u64 seed = (i & 1) ? GOLDEN : 0ull;
    const u64 *words = digests + ((i & 1) ? chunks : 0) + chunk_rows[row];
    const i64 own = chunk_rows[row + 1] - chunk_rows[row];
    const i64 count = own + 1;  // the last word is the text's length
    const u64 length = (u64)(offsets[row + 1] - offsets[row]);
    u64 h = seed + P5;
    i64 k = 0;
    if (count >= 4) {
        u64 a = first_sum(seed, 0), b = first_sum(seed, 1), c = first_sum(seed, 2), d = first_sum(seed, 3);
        for (; k + 4 <= count; k += 4) {
            a = round_of(a, words[k]);
            b = round_of(b, words[k + 1]);
            c = round_of(c, words[k + 2]);
            d = round_of(d, k + 3 < own ? words[k + 3] : length);
        }
        h = gather_sums(a, b, c, d);
    }
    h += 8ull * (u64)count;
    for (; k < count; k++) h = take_word(h, k < own ? words[k] : length);
    out[i] = avalanche(h);
}
