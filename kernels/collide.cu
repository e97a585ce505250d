// Buckets of equal band keys, their pairs, and equal slots of a pair; the definition is collide_ref.py.
//
//     segment_keys   segment and key number in one word, where there are several segments (ranks.cu numbers keys)
//     run_starts     after an argsort and a scan: where each run of equal keys begins ...
//     run_lowest     ... and the lowest position in it
//     member_flags   positions that share their key with another
//     member_keys    after a scan: (lowest of the bucket, position) of each. These words differ from one another and a plain
//                    sort puts them in the order that is promised, whatever the first sort did with equal keys
//     split_members  after that sort: the members, and where a bucket begins
//     bucket_starts  after a scan
//
// Positions take 32 bits: at most 2**31 - 1 keys at a time.
#include "tape.cuh"

#define FULL 0xFFFFFFFFu

extern "C" __global__ void __launch_bounds__(256) segment_keys(const u32 *numbers, const i64 *segments, i64 count, i64 n,
                                                              u64 *out) {
    const i64 i = position();
    if (i < n) out[i] = ((u64)row_of(segments, 0, count - 1, i) << 32) | numbers[i];
}

// flags, runs: as in ranks.cu. starts uint32[runs + 1]
extern "C" __global__ void __launch_bounds__(256) run_starts(const i64 *flags, const i64 *runs, i64 n, u32 *starts) {
    const i64 i = position();
    if (i >= n) return;
    if (flags[i]) starts[runs[i] - 1] = (u32)i;
    if (i == n - 1) starts[runs[i]] = (u32)n;
}

// lowest uint32[runs], all ones before
extern "C" __global__ void __launch_bounds__(256) run_lowest(const i64 *order, const i64 *runs, i64 n, u32 *lowest) {
    const i64 i = position();
    if (i < n) atomicMin(&lowest[runs[i] - 1], (u32)order[i]);
}

extern "C" __global__ void __launch_bounds__(256) fill_ones(u32 *out, i64 n) {
    const i64 i = position();
    if (i < n) out[i] = 0xFFFFFFFFu;
}

extern "C" __global__ void __launch_bounds__(256) member_flags(const i64 *runs, const u32 *starts, i64 n, i64 *flags) {
    const i64 i = position();
    if (i >= n) return;
    const i64 run = runs[i] - 1;
    flags[i] = starts[run + 1] - starts[run] > 1u;
}

// places: inclusive sums of the flags.
extern "C" __global__ void __launch_bounds__(256) member_keys(const i64 *order, const i64 *runs, const u32 *lowest,
                                                             const i64 *flags, const i64 *places, i64 n, u64 *out) {
    const i64 i = position();
    if (i < n && flags[i]) out[places[i] - 1] = ((u64)lowest[runs[i] - 1] << 32) | (u32)order[i];
}

// packed: sorted words of member_keys. report uint32[1], zero before: words not above the one before them.
extern "C" __global__ void __launch_bounds__(256) split_members(const u64 *packed, i64 n, i64 *members, i64 *flags,
                                                               u32 *report) {
    const i64 i = position();
    if (i >= n) return;
    const u64 own = packed[i];
    members[i] = (i64)(u32)own;
    flags[i] = !i || (packed[i - 1] >> 32) != (own >> 32);
    if (i && packed[i - 1] >= own) atomicAdd(&report[0], 1u);
}

// places: inclusive sums of the flags. starts int64[buckets + 1]
extern "C" __global__ void __launch_bounds__(256) bucket_starts(const i64 *flags, const i64 *places, i64 n, i64 *starts) {
    const i64 i = position();
    if (i >= n) return;
    if (flags[i]) starts[places[i] - 1] = i;
    if (i == n - 1) starts[places[i]] = n;
}

// counts int64[n + 1]: 0, then the pairs of each member.
extern "C" __global__ void __launch_bounds__(256) pair_counts(const i64 *starts, i64 buckets, i64 n, i64 cap, i64 lowest,
                                                             i64 *counts) {
    const i64 e = position();
    if (e >= n) return;
    if (e == 0) counts[0] = 0;
    const i64 bucket = row_of(starts, 0, buckets - 1, e);
    const i64 size = starts[bucket + 1] - starts[bucket];
    const i64 place = e - starts[bucket];
    counts[e + 1] = size > cap && place > lowest ? lowest : place;
}

// One thread per pair, from pair `base` = offsets[first] on; members first to last.
extern "C" __global__ void __launch_bounds__(256) bucket_pairs(const i64 *members, const i64 *starts, i64 buckets,
                                                              const i64 *offsets, i64 first, i64 last, i64 base, i64 pairs,
                                                              i64 *high, i64 *low) {
    const i64 i = position();
    if (i >= pairs) return;
    const i64 e = row_of(offsets, first, last - 1, base + i);
    const i64 bucket = row_of(starts, 0, buckets - 1, e);
    high[i] = members[e];
    low[i] = members[starts[bucket] + (base + i - offsets[e])];
}

#define WARPS 8
#define RUN 8     // pairs of a warp
#define WORDS 4   // slots of a lane at a time

// A warp takes RUN pairs, each row in reads of 128 consecutive bytes. Pairs come sorted by their left row, so that a warp
// reads a left row once for all its pairs with it and keeps it in registers; right rows pass through.
//
// signatures uint32[m, slots]; out int64[pairs]
extern "C" __global__ void __launch_bounds__(256) agreements(const u32 *signatures, u32 slots, const i64 *left,
                                                            const i64 *right, i64 pairs, i64 *out) {
    const u32 lane = threadIdx.x & 31u;
    const i64 begin = ((i64)blockIdx.x * WARPS + (i64)(threadIdx.x >> 5)) * RUN;
    if (begin >= pairs) return;  // the whole warp
    u32 same[RUN];
#pragma unroll
    for (u32 r = 0; r < RUN; r++) same[r] = 0;
#pragma unroll 1
    for (u32 at = lane; at - lane < slots; at += 32 * WORDS) {
        u32 own[WORDS];
        i64 held = -1;
#pragma unroll
        for (u32 r = 0; r < RUN; r++) {
            const i64 pair = begin + r < pairs ? begin + r : pairs - 1;
            const i64 row = left[pair];
            if (row != held) {
                held = row;
                const u32 *place = signatures + row * slots;
#pragma unroll
                for (u32 w = 0; w < WORDS; w++) own[w] = at + 32 * w < slots ? place[at + 32 * w] : 0u;
            }
            const u32 *place = signatures + right[pair] * slots;
#pragma unroll
            for (u32 w = 0; w < WORDS; w++) same[r] += at + 32 * w < slots && place[at + 32 * w] == own[w];
        }
    }
    // Eight sums over 32 lanes in 9 exchanges: at each step half the lanes take over half the pairs.
#pragma unroll
    for (u32 step = RUN / 2; step >= 1; step /= 2) {
        const bool upper = (lane & step) != 0;
#pragma unroll
        for (u32 r = 0; r < step; r++) {
            const u32 sent = upper ? same[r] : same[r + step];
            const u32 kept = upper ? same[r + step] : same[r];
            same[r] = kept + __shfl_xor_sync(FULL, sent, step);
        }
    }
    u32 sum = same[0];
#pragma unroll
    for (u32 step = RUN; step < 32; step *= 2) sum += __shfl_xor_sync(FULL, sum, step);
    if (lane < RUN && begin + lane < pairs) out[begin + lane] = (i64)sum;
}
