// Shingle hashes of rows of units; the definition is shingle_ref.py.
//
//     window_counts  shingles of each row, from its units
//     shingle        after a scan of the counts: one thread per unit that begins a window, units from shared memory
//     stop_flags     which shingles are no stop shingles
//     stop_compact   after a scan of the flags: the others, end to end
//     stop_rows      and how many of them come before each row
#include "tape.cuh"

#define THREADS 256
#define PER_THREAD 4
#define TILE (THREADS * PER_THREAD)  // units of a block; its shared memory holds n - 1 more, n <= 1000

// unit_rows int64[rows + 1]: units before each row. counts int64[rows + 1]: 0, then the windows of each row.
extern "C" __global__ void __launch_bounds__(256) window_counts(const i64 *unit_rows, i64 rows, i64 n,
                                                               i64 *counts) {
    const i64 r = position();
    if (r > rows) return;
    if (r == 0) counts[0] = 0;
    if (r == rows) return;
    const i64 own = unit_rows[r + 1] - unit_rows[r];
    counts[r + 1] = own >= n ? own - n + 1 : own > 0 ? 1 : 0;
}

// window_rows: windows before each row. rows_at: tile_rows of tiles of TILE units.
extern "C" __global__ void __launch_bounds__(THREADS) shingle(
    const u64 *units, const i64 *unit_rows, const i64 *window_rows, const i64 *rows_at, i64 rows, u32 n, u64 *hashes) {
    __shared__ u64 held[TILE + 999];
    const i64 begin = (i64)blockIdx.x * TILE;
    const i64 total = unit_rows[rows];
    const u32 wanted = TILE + n - 1u;
    const u32 count = total - begin < (i64)wanted ? (u32)(total - begin) : wanted;
    for (u32 i = threadIdx.x; i < count; i += THREADS) held[i] = units[begin + i];
    __syncthreads();
    const i64 low = rows_at[blockIdx.x], high = rows_at[blockIdx.x + 1];
    for (u32 i = threadIdx.x; i < TILE && i < count; i += THREADS) {
        const i64 at = begin + i;
        const i64 row = row_of(unit_rows, low, high, at);
        const i64 from = unit_rows[row];
        const i64 own = unit_rows[row + 1] - from;
        const u32 size = own < (i64)n ? (u32)own : n;
        if (at - from > own - (i64)size) continue;  // too near the row's end to begin a window
        u64 s = 0;
        for (u32 j = 0; j < size; j++) s = s * POLY + held[i + j];
        hashes[window_rows[row] + (at - from)] = mix64(s + (u64)size * GOLDEN);
    }
}

// stop: ascending, one or more.
extern "C" __global__ void __launch_bounds__(256) stop_flags(const u64 *hashes, const i64 *window_rows, i64 rows,
                                                            const u64 *stop, i64 stops, i64 *kept) {
    const i64 w = position();
    if (w >= window_rows[rows]) return;
    const u64 hash = hashes[w];
    i64 low = 0, high = stops;
    while (low < high) {
        const i64 middle = low + (high - low) / 2;
        if (stop[middle] < hash)
            low = middle + 1;
        else
            high = middle;
    }
    kept[w] = !(low < stops && stop[low] == hash);
}

// kept: inclusive sums of what stop_flags wrote.
extern "C" __global__ void __launch_bounds__(256) stop_compact(const u64 *hashes, const i64 *window_rows, i64 rows,
                                                              const i64 *kept, u64 *out) {
    const i64 w = position();
    if (w >= window_rows[rows]) return;
    const i64 before = w ? kept[w - 1] : 0;
    if (kept[w] > before) out[before] = hashes[w];
}

extern "C" __global__ void __launch_bounds__(256) stop_rows(
    const i64 *window_rows, i64 rows, const i64 *kept, i64 *out) {
    const i64 r = position();
    if (r <= rows) out[r] = window_rows[r] ? kept[window_rows[r] - 1] : 0;
}
