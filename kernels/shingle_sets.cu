// Shingle sets of rows of shingle hashes: unique, ascending within a row; the definition is shingle_ref.shingle_sets.
//
//     row_keys   row and number of the hash (ranks.cu) in one word; sorted, they are the rows' sets with repeats
//     set_flags  after the sort: which of them are the first of their kind
//     set_items  after a scan: the hashes of these
//     set_starts where the repeats of each begin, for those who count them
//     set_rows   and how many come before each row
#include "tape.cuh"

// hash_rows int64[rows + 1]: hashes before each row.
extern "C" __global__ void __launch_bounds__(256) row_keys(const u32 *numbers, const i64 *hash_rows, i64 rows, i64 n, u64 *out) {
    const i64 i = position();
    if (i < n) out[i] = ((u64)row_of(hash_rows, 0, rows - 1, i) << 32) | numbers[i];
}

// report uint32[1], zero before: words below the one before them.
extern "C" __global__ void __launch_bounds__(256) set_flags(const u64 *packed, i64 n, i64 *flags, u32 *report) {
    const i64 i = position();
    if (i >= n) return;
    flags[i] = !i || packed[i - 1] != packed[i];
    if (i && packed[i - 1] > packed[i]) atomicAdd(&report[0], 1u);
}

// values uint64[numbers]: the hash of each number; places: inclusive sums of the flags.
extern "C" __global__ void __launch_bounds__(256) set_items(const u64 *packed, const i64 *flags, const i64 *places,
                                                           const u64 *values, i64 n, u64 *out) {
    const i64 i = position();
    if (i < n && flags[i]) out[places[i] - 1] = values[(u32)packed[i]];
}

extern "C" __global__ void __launch_bounds__(256) set_starts(const i64 *flags, const i64 *places, i64 n, i64 *starts) {
    const i64 i = position();
    if (i < n && flags[i]) starts[places[i] - 1] = i;
}

extern "C" __global__ void __launch_bounds__(256) set_rows(const i64 *hash_rows, i64 rows, const i64 *places, i64 *out) {
    const i64 r = position();
    if (r <= rows) out[r] = hash_rows[r] ? places[hash_rows[r] - 1] : 0;
}
