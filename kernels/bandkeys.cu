// Band keys and slot keys of signatures; the definition is bandkeys_ref.py. One thread per key.
#include "tape.cuh"

// signatures uint32[m, slots]; out uint64[m, bands]
extern "C" __global__ void __launch_bounds__(256) band_keys(
    const u32 *signatures, i64 m, u32 slots, u32 bands, u32 rows, u64 *out) {
    const i64 i = position();
    if (i >= m * bands) return;
    const u32 band = (u32)(i % bands);
    const u32 *own = signatures + (i / bands) * slots + (i64)band * rows;
    u64 h = ((u64)band + 1ull) * GOLDEN;
    u32 r = 0;
    for (; r + 2 <= rows; r += 2) h = mix64(h + ((u64)own[r] | ((u64)own[r + 1] << 32)));
    if (r < rows) h = mix64(h + (u64)own[r]);
    out[i] = h;
}

// chosen int64[count]: slots in the order in which they enter; out uint64[m]
extern "C" __global__ void __launch_bounds__(256) slot_keys(const u32 *signatures, i64 m, u32 slots, const i64 *chosen,
                                                           u32 count, u64 start, u64 *out) {
    const i64 i = position();
    if (i >= m) return;
    const u32 *own = signatures + i * slots;
    u64 h = start;
    u32 r = 0;
    for (; r + 2 <= count; r += 2) h = mix64(h + ((u64)own[chosen[r]] | ((u64)own[chosen[r + 1]] << 32)));
    if (r < count) h = mix64(h + (u64)own[chosen[r]]);
    out[i] = h;
}
