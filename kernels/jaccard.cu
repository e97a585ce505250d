// Items that two sets share; the definition is jaccard_ref.py.
//
// The merged order of a pair is cut into tiles of 2,048 items, one block each, so that short pairs cost one block and a pair
// of millions of items keeps the device busy. In a tile the items of the smaller set go into a hash table in shared memory,
// which those of the larger set probe. Where equal items fall on two sides of a cut, the smaller set's comes first, so a
// tile also takes the last item of the smaller set before it.
#include "tape.cuh"

#define TILE 2048
#define SLOTS 4096  // 32 KB; the table is never more than half full
#define THREADS 128
#define NONE 0xFFFFFFFFFFFFFFFFull

// counts int64[pairs + 1]: 0, then the tiles of each pair; none where a set is empty.
extern "C" __global__ void __launch_bounds__(256) pair_tiles(const i64 *offsets, const i64 *left, const i64 *right, i64 pairs,
                                                            i64 *counts) {
    const i64 i = position();
    if (i >= pairs) return;
    if (i == 0) counts[0] = 0;
    const i64 a = offsets[left[i] + 1] - offsets[left[i]], b = offsets[right[i] + 1] - offsets[right[i]];
    counts[i + 1] = a && b ? (a + b + TILE - 1) / TILE : 0;
}

// tile_rows: tiles before each pair. out uint32[tiles]: the pair of each tile.
extern "C" __global__ void __launch_bounds__(256) tile_pairs(const i64 *tile_rows, i64 pairs, i64 tiles, u32 *out) {
    const i64 t = position();
    if (t < tiles) out[t] = (u32)row_of(tile_rows, 0, pairs - 1, t);
}

// How many of the first `count` items of the merged order come from `one`, whose item is first where both have it.
__device__ __forceinline__ i64 merge_cut(const u64 *one, i64 ones, const u64 *other, i64 others, i64 count) {
    i64 low = count > others ? count - others : 0, high = count < ones ? count : ones;
    while (low < high) {
        const i64 middle = low + (high - low) / 2;
        if (one[middle] <= other[count - 1 - middle])
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// shared uint32[pairs], zeros before
extern "C" __global__ void __launch_bounds__(THREADS) shared_items(const u64 *items, const i64 *offsets, const i64 *left,
                                                                  const i64 *right, const i64 *tile_rows, const u32 *pair_of,
                                                                  u32 *shared) {
    __shared__ u64 table[SLOTS];
    __shared__ i64 cuts[2];
    __shared__ u32 has_none;  // the item that marks a free place is in the smaller set
    __shared__ u32 found;
    const i64 pair = (i64)pair_of[blockIdx.x];
    i64 small = left[pair], large = right[pair];
    if (offsets[small + 1] - offsets[small] > offsets[large + 1] - offsets[large]) {
        small = right[pair];
        large = left[pair];
    }
    const u64 *one = items + offsets[small];
    const u64 *other = items + offsets[large];
    const i64 ones = offsets[small + 1] - offsets[small], others = offsets[large + 1] - offsets[large];
    const i64 from = ((i64)blockIdx.x - tile_rows[pair]) * TILE;
    const i64 to = from + TILE < ones + others ? from + TILE : ones + others;
    if (threadIdx.x < 2) cuts[threadIdx.x] = merge_cut(one, ones, other, others, threadIdx.x ? to : from);
    if (threadIdx.x == 0) has_none = 0, found = 0;
    __syncthreads();
    const i64 begin = cuts[0] ? cuts[0] - 1 : 0;
    // Of sets that are not ascending anything may come; the table must not overflow.
    const i64 wanted = cuts[1] - begin;
    const u32 count = wanted < 0 ? 0u : wanted > TILE + 1 ? (u32)(TILE + 1) : (u32)wanted;
    u32 bits = 5;
    while (bits < 12 && (1u << bits) < 2 * count) bits++;
    const u32 mask = (1u << bits) - 1u;
    const u32 shift = 64u - bits;
    for (u32 i = threadIdx.x; i <= mask; i += THREADS) table[i] = NONE;
    __syncthreads();
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        const u64 item = one[begin + i];
        if (item == NONE) {
            has_none = 1;  // of unique items one at most
            continue;
        }
        u32 slot = (u32)((item * GOLDEN) >> shift);
        while (true) {
            const u64 there = atomicCAS(&table[slot], NONE, item);
            if (there == NONE || there == item) break;
            slot = (slot + 1u) & mask;
        }
    }
    __syncthreads();
    const i64 first = from - cuts[0], last = to - cuts[1];
    u32 hits = 0;
    for (i64 i = first + threadIdx.x; i < last; i += THREADS) {
        const u64 item = other[i];
        if (item == NONE) {
            hits += has_none;
            continue;
        }
        u32 slot = (u32)((item * GOLDEN) >> shift);
        while (true) {
            const u64 there = table[slot];
            hits += there == item;
            if (there == NONE || there == item) break;
            slot = (slot + 1u) & mask;
        }
    }
    if (hits) atomicAdd(&found, hits);
    __syncthreads();
    if (threadIdx.x == 0 && found) atomicAdd(&shared[pair], found);
}
