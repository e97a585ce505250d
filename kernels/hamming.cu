// Fingerprints of 64 bits that differ in few bits; the definition is hamming_ref.py.
//
//     masked_keys     a key of the bits that a mask leaves
//     bits_apart      differing bits of given pairs
//     near_flags      one thread per pair of a bucket: is it near, and not met under an earlier mask?
//     near_fill       after a scan of the flags: the pairs that are
#include "tape.cuh"

extern "C" __global__ void __launch_bounds__(256) masked_keys(const u64 *values, i64 n, u64 mask, u64 start, u64 *out) {
    const i64 i = position();
    if (i < n) out[i] = mix64((values[i] & mask) + start);
}

extern "C" __global__ void __launch_bounds__(256) bits_apart(const u64 *values, const i64 *left, const i64 *right,
                                                            i64 pairs, i64 *out) {
    const i64 i = position();
    if (i < pairs) out[i] = (i64)__popcll(values[left[i]] ^ values[right[i]]);
}

// The pairs of a slice are numbered from `base` = offsets[first] on; pair i is one of member e with the bucket's member
// number i - offsets[e].
__device__ __forceinline__ void pair_at(const i64 *members, const i64 *starts, i64 buckets, const i64 *offsets, i64 first,
                                        i64 last, i64 number, i64 *high, i64 *low) {
    const i64 e = row_of(offsets, first, last - 1, number);
    const i64 bucket = row_of(starts, 0, buckets - 1, e);
    *high = members[e];
    *low = members[starts[bucket] + (number - offsets[e])];
}

extern "C" __global__ void __launch_bounds__(256) near_flags(const u64 *values, const i64 *members, const i64 *starts,
                                                            i64 buckets, const i64 *offsets, i64 first, i64 last, i64 base,
                                                            i64 pairs, const u64 *earlier, i64 masks, i64 distance,
                                                            i64 *flags) {
    const i64 i = position();
    if (i >= pairs) return;
    i64 high, low;
    pair_at(members, starts, buckets, offsets, first, last, base + i, &high, &low);
    const u64 apart = values[high] ^ values[low];
    bool near = (i64)__popcll(apart) <= distance;
    for (i64 t = 0; near && t < masks; t++) near = (apart & earlier[t]) != 0;
    flags[i] = near;
}

// places: inclusive sums of the flags.
extern "C" __global__ void __launch_bounds__(256) near_fill(const i64 *members, const i64 *starts, i64 buckets,
                                                           const i64 *offsets, i64 first, i64 last, i64 base, i64 pairs,
                                                           const i64 *flags, const i64 *places, i64 *out_high,
                                                           i64 *out_low) {
    const i64 i = position();
    if (i >= pairs || !flags[i]) return;
    i64 high, low;
    pair_at(members, starts, buckets, offsets, first, last, base + i, &high, &low);
    out_high[places[i] - 1] = high;
    out_low[places[i] - 1] = low;
}
