// MinHash signatures of shingle hashes; the definition is minhash_ref.py.
//
// One slot a thread, its minimum in a register. Shingles stream past from shared memory, four to a 16-byte read that
// all threads of a warp share, and two of them enter a three-way minimum (VIMNMX3 on sm_90): multiply-add, half a
// minimum and a quarter of a load per shingle and slot, which is below the two issue slots that the multiply-add itself
// takes on hardware with one integer multiplier per two lanes. benchmarks/sass_minhash.py counts.
//
// Work is cut by tiles of shingles, not by rows: a tile holds many short rows or a piece of a long one. A row is padded
// to whole groups of four by repeating its last shingle, which changes no minimum and leaves no remainder to the loop.
#include "tape.cuh"

#define GROUP 4
#define GROUPS 256  // groups of a tile: 4 KB of shingles
#define WHOLE 0x10000u

// Where each row's groups begin: counts int64[rows + 1]: 0, then the groups of each row.
extern "C" __global__ void __launch_bounds__(256) group_counts(const i64 *hash_rows, i64 rows, i64 *counts) {
    const i64 r = position();
    if (r > rows) return;
    if (r == 0) counts[0] = 0;
    if (r < rows) counts[r + 1] = (hash_rows[r + 1] - hash_rows[r] + GROUP - 1) / GROUP;
}

extern "C" __global__ void __launch_bounds__(256) fill_empty(u32 *signatures, i64 size) {
    const i64 i = position();
    if (i < size) signatures[i] = 0xFFFFFFFFu;
}

// group_rows: groups before each row. rows_at: tile_rows of tiles of GROUPS groups. signatures uint32[rows, slots], all
// ones before. Blocks along y take the slots, blockDim.x each.
extern "C" __global__ void __launch_bounds__(512) minhash(
    const u64 *hashes, const i64 *hash_rows, const i64 *group_rows, const i64 *rows_at, i64 rows, const u32 *a,
    const u32 *b, u32 slots, u32 *signatures) {
    __shared__ uint4 held[GROUPS];
    __shared__ u32 rows_of[GROUPS];  // row of each group, counted from the tile's first
    __shared__ u32 ends[GROUPS];     // end of the row's groups in this tile, and WHOLE if no other tile has any
    const i64 begin = (i64)blockIdx.x * GROUPS;
    const i64 total = group_rows[rows];
    if (begin >= total) return;  // the grid is made for the most shingles there can be
    const u32 groups = total - begin < GROUPS ? (u32)(total - begin) : GROUPS;
    const i64 low = rows_at[blockIdx.x], high = rows_at[blockIdx.x + 1];
    for (u32 g = threadIdx.x; g < groups; g += blockDim.x) {
        const i64 row = row_of(group_rows, low, high, begin + g);
        const i64 from = group_rows[row], to = group_rows[row + 1];
        const i64 at = hash_rows[row] + (begin + g - from) * GROUP;
        const i64 after = hash_rows[row + 1] - 1 - at;
        const u32 last = after < GROUP - 1 ? (u32)after : GROUP - 1;
        const u64 *own = hashes + at;
        uint4 four;
        four.x = (u32)(own[0] >> 32);
        four.y = (u32)(own[min(1u, last)] >> 32);
        four.z = (u32)(own[min(2u, last)] >> 32);
        four.w = (u32)(own[last] >> 32);
        held[g] = four;
        rows_of[g] = (u32)(row - low);
        const bool whole = from >= begin && to <= begin + GROUPS;
        ends[g] = (to - begin < (i64)groups ? (u32)(to - begin) : groups) | (whole ? WHOLE : 0u);
    }
    __syncthreads();
    const u32 slot = blockIdx.y * blockDim.x + threadIdx.x;
    if (slot >= slots) return;
    const u32 factor = a[slot], addend = b[slot];
    u32 *out = signatures + low * slots + slot;
    for (u32 g = 0; g < groups;) {
        const u32 row = rows_of[g];
        const u32 end = ends[g] & (WHOLE - 1u);
        const bool whole = (ends[g] & WHOLE) != 0;
        u32 least = 0xFFFFFFFFu;
        const uint4 *next = held + g, *const stop = held + end, *const full = next + ((end - g) & ~7u);
        g = end;
#pragma unroll 1
        for (; next != full; next += 8) {
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                const uint4 x = next[i];
                least = min(min(least, factor * x.x + addend), factor * x.y + addend);
                least = min(min(least, factor * x.z + addend), factor * x.w + addend);
            }
        }
#pragma unroll 1
        for (; next != stop; next++) {
            const uint4 x = *next;
            least = min(min(least, factor * x.x + addend), factor * x.y + addend);
            least = min(min(least, factor * x.z + addend), factor * x.w + addend);
        }
        u32 *place = out + (i64)row * slots;
        if (whole)
            *place = least;
        else
            atomicMin(place, least);
    }
}
