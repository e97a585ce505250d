// Staging: the chosen texts of a batch end to end in aligned memory, and which row each tile of work begins in.
//
// All kernels on text read a staged text: it begins at a multiple of 16, its first text at 0, and zeros follow the last
// to the end of the last tile and 16 bytes beyond. The copy costs two bytes of traffic a byte, some 2 % of the PCIe copy
// before it, and buys that no later kernel meets an odd alignment or the end of an array.
#include "tape.cuh"

// out[t] = row of the element t * size after the first row's first, t = 0 ... tiles; elements past the last row count
// as the last row's.
extern "C" __global__ void __launch_bounds__(256) tile_rows(
    const i64 *offsets, i64 rows, i64 size, i64 tiles, i64 *out) {
    const i64 t = position();
    if (t <= tiles) out[t] = row_of(offsets, 0, rows - 1, offsets[0] + t * size);
}

// Four bytes a thread. starts[r]: first byte of row r in the blob; offsets[r]: in the staged text; rows_at: tile_rows
// of tiles of 1,024 bytes, the bytes of a block.
extern "C" __global__ void __launch_bounds__(256) gather(
    const u8 *blob, i64 blob_size, const i64 *starts, const i64 *offsets, i64 rows, const i64 *rows_at, i64 words,
    u32 *staged) {
    const i64 word = position();
    if (word >= words) return;
    i64 at = 4 * word;
    const i64 end = offsets[rows];
    u32 out = 0;
    if (at < end) {
        const i64 tile = (i64)blockIdx.x;
        i64 row = row_of(offsets, rows_at[tile], rows_at[tile + 1], at);
        const i64 from = starts[row] + (at - offsets[row]);
        // Whole aligned words where both words around the four bytes lie inside the blob and the row.
        if (at + 4 <= offsets[row + 1] && from >= 4 && from + 8 <= blob_size) {
            const u8 *place = blob + from;
            const u32 odd = (u32)((u64)place & 3u);
            const u32 *aligned = (const u32 *)(place - odd);
            out = aligned[0];
            if (odd) out = (out >> (8u * odd)) | (aligned[1] << (32u - 8u * odd));
        } else {
            for (u32 i = 0; i < 4 && at < end; i++, at++) {
                if (at >= offsets[row + 1]) row = row_of(offsets, row, rows - 1, at);
                out |= (u32)blob[starts[row] + (at - offsets[row])] << (8u * i);
            }
        }
    }
    staged[word] = out;
}

// out[r] = length of row r.
extern "C" __global__ void __launch_bounds__(256) row_sizes(const i64 *offsets, i64 rows, i64 *out) {
    const i64 r = position();
    if (r < rows) out[r] = offsets[r + 1] - offsets[r];
}

// Proof of a scan that other code made: every step of the sums is the count of its place. out int64[2], zeros before:
// the last sum and how many places are wrong.
extern "C" __global__ void __launch_bounds__(256) scan_check(const i64 *counts, const i64 *sums, i64 size, u64 *out) {
    const i64 i = position();
    if (i >= size) return;
    if (sums[i] != (i ? sums[i - 1] : 0) + counts[i]) atomicAdd(&out[1], 1ull);
    if (i == size - 1) out[0] = (u64)sums[i];
}
