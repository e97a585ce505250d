// Fast similarity sketches of shingle hashes; the definition is fastsketch_ref.py.
//
//     clear         all slots to no sketch
//     piece_counts  pieces of PIECE shingles of each row
//     throw_pieces  a warp a piece: the least value of each bin, by minima in shared memory
//     fill_pieces   a warp a piece: the bins that stayed empty take the least of all its shingles, a bin a lane
//
// A row of one piece is stored as it is; the pieces of a longer one meet by atomicMin. Whether a bin stayed empty is
// known at the end of the first launch, and no minimum of the second changes it: the top bit of such a slot stays.
#include "tape.cuh"

#define FULL 0xFFFFFFFFu
#define LEVEL 0x80000000u
#define OWN 2        // entries of a and b before those of the slots
#define MOST 1024    // slots
#define WARPS 4      // of a block, and pieces
#define PIECE 1024   // shingles
#define CHUNK 128    // shingles that a warp holds at a time: four a lane

extern "C" __global__ void __launch_bounds__(256) clear(u32 *signatures, i64 size) {
    const i64 i = position();
    if (i < size) signatures[i] = 0xFFFFFFFFu;
}

// counts int64[rows + 1]: 0, then the pieces of each row.
extern "C" __global__ void __launch_bounds__(256) piece_counts(const i64 *hash_rows, i64 rows, i64 *counts) {
    const i64 r = position();
    if (r > rows) return;
    if (r == 0) counts[0] = 0;
    if (r < rows) counts[r + 1] = (hash_rows[r + 1] - hash_rows[r] + PIECE - 1) / PIECE;
}

// piece_rows: pieces before each row. rows_at: tile_rows of tiles of WARPS pieces. a, b uint32[OWN + slots], slots up
// to MOST. signatures uint32[rows, slots], cleared before.
extern "C" __global__ void __launch_bounds__(128) throw_pieces(
    const u64 *hashes, const i64 *hash_rows, const i64 *piece_rows, const i64 *rows_at, i64 rows, const u32 *a,
    const u32 *b, u32 slots, u32 *signatures) {
    __shared__ u32 held[WARPS][MOST];
    const u32 lane = threadIdx.x & 31u;
    u32 *bins = held[threadIdx.x >> 5];
    const i64 piece = position() >> 5;
    if (piece >= piece_rows[rows]) return;  // whole warps
    const i64 row = row_of(piece_rows, rows_at[blockIdx.x], rows_at[blockIdx.x + 1], piece);
    const i64 begin = hash_rows[row] + (piece - piece_rows[row]) * PIECE;
    const i64 left = hash_rows[row + 1] - begin;
    const u32 count = left < PIECE ? (u32)left : PIECE;
    for (u32 j = lane; j < slots; j += 32) bins[j] = 0xFFFFFFFFu;
    __syncwarp();
    const u32 bin_a = a[0], bin_b = b[0], value_a = a[1], value_b = b[1];
    for (u32 i = lane; i < count; i += 32) {
        const u64 hash = hashes[begin + i];
        const u32 bin = ((bin_a * (u32)hash + bin_b) >> 10) * slots >> 22;
        atomicMin(&bins[bin], (value_a * (u32)(hash >> 32) + value_b) >> 1);
    }
    __syncwarp();
    const bool whole = piece_rows[row + 1] - piece_rows[row] == 1;
    u32 *out = signatures + row * slots;
    for (u32 j = lane; j < slots; j += 32) {
        if (whole)
            out[j] = bins[j];
        else if (bins[j] < LEVEL)
            atomicMin(&out[j], bins[j]);
    }
}

// After throw_pieces, with its arguments.
extern "C" __global__ void __launch_bounds__(128) fill_pieces(
    const u64 *hashes, const i64 *hash_rows, const i64 *piece_rows, const i64 *rows_at, i64 rows, const u32 *a,
    const u32 *b, u32 slots, u32 *signatures) {
    __shared__ unsigned short listed[WARPS][MOST];
    __shared__ uint4 held[WARPS][CHUNK / 4];
    const u32 lane = threadIdx.x & 31u;
    unsigned short *empty = listed[threadIdx.x >> 5];
    uint4 *xs = held[threadIdx.x >> 5];
    const i64 piece = position() >> 5;
    if (piece >= piece_rows[rows]) return;  // whole warps
    const i64 row = row_of(piece_rows, rows_at[blockIdx.x], rows_at[blockIdx.x + 1], piece);
    // Other pieces of the row may lower an empty bin's slot at the same time, which leaves its top bit.
    u32 *out = signatures + row * slots;
    u32 count = 0;
    for (u32 base = 0; base < slots; base += 32) {
        const bool mine = base + lane < slots && out[base + lane] >= LEVEL;
        const u32 mask = __ballot_sync(FULL, mine);
        if (mine) empty[count + (u32)__popc(mask & ((1u << lane) - 1u))] = (unsigned short)(base + lane);
        count += (u32)__popc(mask);
    }
    if (!count) return;  // the same in all lanes
    __syncwarp();
    const i64 begin = hash_rows[row] + (piece - piece_rows[row]) * PIECE;
    const i64 left = hash_rows[row + 1] - begin;
    const u32 size = left < PIECE ? (u32)left : PIECE;
    const bool whole = piece_rows[row + 1] - piece_rows[row] == 1;
    for (u32 base = 0; base < count; base += 32) {
        const bool mine = base + lane < count;
        const u32 slot = mine ? empty[base + lane] : 0u;
        const u32 factor = a[OWN + slot], addend = b[OWN + slot];
        u32 least = 0xFFFFFFFFu;
        for (u32 from = 0; from < size; from += CHUNK) {
            // The last shingle fills up the last four: it changes no minimum.
            const u32 last = size - 1;
            const u32 own = from + 4 * lane;
            uint4 four;
            four.x = (u32)(hashes[begin + min(own, last)] >> 32);
            four.y = (u32)(hashes[begin + min(own + 1, last)] >> 32);
            four.z = (u32)(hashes[begin + min(own + 2, last)] >> 32);
            four.w = (u32)(hashes[begin + min(own + 3, last)] >> 32);
            __syncwarp();
            xs[lane] = four;
            __syncwarp();
            const u32 fours = size - from < CHUNK ? (size - from + 3) / 4 : CHUNK / 4;
            for (u32 i = 0; i < fours; i++) {
                const uint4 x = xs[i];
                least = min(min(least, factor * x.x + addend), factor * x.y + addend);
                least = min(min(least, factor * x.z + addend), factor * x.w + addend);
            }
        }
        if (mine && whole) out[slot] = LEVEL | (least >> 1);
        if (mine && !whole) atomicMin(&out[slot], LEVEL | (least >> 1));
    }
}
