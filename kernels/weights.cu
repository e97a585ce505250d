// Document frequencies: the cells of each row of shingle hashes, once each; the definition is weights_ref.py.
//
//     cell_keys   row and cell in one word; sorted, and flagged by set_flags (shingle_sets.cu), the first of each kind
//                 is a cell of a row
//     cell_items  after a scan of the flags: these cells
#include "tape.cuh"

// hash_rows int64[rows + 1]: hashes before each row.
extern "C" __global__ void __launch_bounds__(256) cell_keys(
    const u64 *hashes, const i64 *hash_rows, i64 rows, i64 n, u64 *keys) {
    const i64 i = position();
    if (i < n) keys[i] = ((u64)row_of(hash_rows, 0, rows - 1, i) << 32) | (hashes[i] >> 40);
}

// places: inclusive sums of the flags.
extern "C" __global__ void __launch_bounds__(256) cell_items(
    const u64 *keys, const i64 *flags, const i64 *places, i64 n, u32 *cells) {
    const i64 i = position();
    if (i < n && flags[i]) cells[places[i] - 1] = (u32)keys[i];
}
