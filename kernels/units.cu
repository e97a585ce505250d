// Units of a staged text (tape.cu) and their hashes; the definition is units_ref.py.
//
// Tiles of 4,096 bytes, 16 bytes a thread. Whether a unit begins at a code point depends on the last code point before
// it that is not ignorable, at any distance, so the road is
//
//     boundaries   one bit per byte: a text begins here (and at the end of the last)
//     tile_states  what the last such code point of each tile was: in a run, not in a run, or the tile has none
//     tile_known   after a scan of "has one": the states of the tiles that have one, end to end
//     unit_count   per thread, at which of its bytes units begin and end; units that begin in each tile
//     unit_mark    after a scan of the counts: first byte and end of each unit
//     unit_rows    units before each text
//     unit_hash    one thread per unit
//
// A unit's end here is where the code point stands that closes it: ignorable ones that trail a run lie inside, and as
// they enter no hash nothing changes. Units of single bytes need none of this: byte_hash.
#include "tape.cuh"
#include "utf8.cuh"

#define THREADS 256
#define BYTES 16
#define TILE (THREADS * BYTES)
#define FULL 0xFFFFFFFFu

extern "C" __global__ void __launch_bounds__(256) boundaries(const i64 *offsets, i64 rows, u32 *bits) {
    const i64 r = position();
    if (r <= rows) atomicOr(&bits[offsets[r] >> 5], 1u << (u32)(offsets[r] & 31));
}

__device__ __forceinline__ u32 action_at(const u8 *text, i64 at, int unit, const u16 *stage1, const u8 *actions) {
    const u32 c = text[at];
    if (c < 0x80u) return ascii_action(c, unit);
    return wide_action(code_point(c, text[at + 1], text[at + 2], text[at + 3]), unit, stage1, actions);
}

// One thread per tile, backwards from its end: a step or two, unless a tile is full of ignorable code points.
extern "C" __global__ void __launch_bounds__(128) tile_states(
    const u8 *text, i64 size, const u32 *bits, int unit, const u16 *stage1, const u8 *actions, i64 tiles, i64 *known,
    u8 *states) {
    const i64 tile = position();
    if (tile >= tiles) return;
    const i64 begin = tile * TILE;
    i64 at = begin + TILE < size ? begin + TILE : size;
    u32 found = 0, state = 0;
    while (!found && at > begin) {
        at--;
        if (is_lead(text[at])) {
            const u32 action = action_at(text, at, unit, stage1, actions);
            if (action != ACT_IGNORE) found = 1, state = action == ACT_RUN;
        }
        if (!found && ((bits[at >> 5] >> (u32)(at & 31)) & 1u)) found = 1;  // nothing of the text before reaches here
    }
    known[tile] = found;
    states[tile] = (u8)state;
}

// known: inclusive sums of what tile_states wrote.
extern "C" __global__ void __launch_bounds__(256) tile_known(const i64 *known, const u8 *states, i64 tiles, u8 *list) {
    const i64 tile = position();
    if (tile >= tiles) return;
    const i64 before = tile ? known[tile - 1] : 0;
    if (known[tile] > before) list[before] = states[tile];
}

// marks: two words per thread, each of two masks over its 16 bytes, bit i for byte i, the first in the low half:
//     x  a unit begins; the open unit ends
//     y  a unit begins and is this code point alone; an ignorable code point inside the open unit
// counts: units that begin in each tile.
extern "C" __global__ void __launch_bounds__(THREADS) unit_count(
    const uint4 *text, i64 size, const u32 *bits, int unit, const u16 *stage1, const u8 *actions, const i64 *known,
    const u8 *list, uint2 *marks, i64 *counts) {
    __shared__ u32 warp_states[THREADS / 32];
    __shared__ u32 total;
    if (threadIdx.x == 0) total = 0;
    const i64 tile = (i64)blockIdx.x;
    const i64 at = tile * TILE + (i64)threadIdx.x * BYTES;
    const uint4 here = text[at >> 4];
    const u32 words[4] = {here.x, here.y, here.z, here.w};
    u32 lead = 0, wide = 0, run = 0, ignored = 0, single = 0;
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        const u32 w = words[k];
        u32 runs, singles;
        ascii_actions(w & 0x7F7F7F7Fu, unit, runs, singles);
        lead |= top_bits(~w) << (4 * k);
        wide |= top_bits(w & (w << 1)) << (4 * k);  // 0xC0 and above
        run |= top_bits(runs & ~w) << (4 * k);
        single |= top_bits(singles & ~w) << (4 * k);
    }
    const u32 valid = size - at >= BYTES ? 0xFFFFu : size > at ? (1u << (u32)(size - at)) - 1u : 0u;
    lead = (lead | wide) & valid, run &= valid, single &= valid;
    for (u32 left = wide & valid; left; left &= left - 1u) {
        const u32 i = (u32)__ffs((int)left) - 1u;
        const u8 *place = (const u8 *)text + at + i;
        const u32 action = wide_action(code_point(place[0], place[1], place[2], place[3]), unit, stage1, actions);
        run |= (u32)(action == ACT_RUN) << i;
        single |= (u32)(action == ACT_SINGLE) << i;
        ignored |= (u32)(action == ACT_IGNORE) << i;
    }
    const u32 boundary = (bits[at >> 5] >> (u32)(at & 16)) & 0xFFFFu;
    const u32 relevant = (lead & ~ignored) | boundary;
    const u32 other = ~relevant & 0xFFFFu;
    // In a run after byte i: as byte i says where it is relevant, else as before it. Four doublings carry it 16 bytes.
    u32 inside = run, through = other;
    inside |= through & (inside << 1), through &= through << 1;
    inside |= through & (inside << 2), through &= through << 2;
    inside |= through & (inside << 4), through &= through << 4;
    inside |= through & (inside << 8);

    // What stands before the thread's first byte: the last lane before with a relevant byte, else the last warp, else
    // the last tile that has one.
    const u32 lane = threadIdx.x & 31u, warp = threadIdx.x >> 5;
    const u32 has = __ballot_sync(FULL, relevant != 0);
    const u32 in_run = __ballot_sync(FULL, (int)((inside >> (BYTES - 1)) & 1u));
    const u32 before = has & ((1u << lane) - 1u);
    if (lane == 0) warp_states[warp] = has ? 2u | ((in_run >> (31 - __clz((int)has))) & 1u) : 0u;
    __syncthreads();
    u32 carry = 0;
    if (before) {
        carry = (in_run >> (31 - __clz((int)before))) & 1u;
    } else {
        u32 w = warp;
        while (w > 0 && !(warp_states[w - 1] & 2u)) w--;
        if (w > 0) {
            carry = warp_states[w - 1] & 1u;
        } else if (tile > 0) {
            const i64 count = known[tile - 1];
            carry = count ? (u32)list[count - 1] : 0u;
        }
    }
    if (carry) inside |= other & ~(other + 1u);  // the irrelevant bytes before the first relevant one
    const u32 open = (inside << 1) | carry;      // in a run before byte i
    const u32 starts = single | (run & ~(open & ~boundary));
    const u32 closes = open & (boundary | (lead & ~ignored & ~run));
    const u32 odd = ignored & open & ~boundary;
    marks[position()] = make_uint2(starts | (closes << 16), single | (odd << 16));
    // The sum of a warp by adding it up across its lanes, then one atomic each.
    u32 sum = (u32)__popc(starts);
#pragma unroll
    for (u32 step = 16; step; step /= 2) sum += __shfl_xor_sync(FULL, sum, (int)step);
    if (lane == 0) atomicAdd(&total, sum);
    __syncthreads();
    if (threadIdx.x == 0) counts[tile] = (i64)total;
}

// marks: as unit_count wrote them. counts: inclusive sums of its counts. odd: one bit per unit, zeros before.
extern "C" __global__ void __launch_bounds__(THREADS) unit_mark(
    const u8 *text, const uint2 *marks, const i64 *counts, u32 *first, u32 *end, u32 *odd) {
    __shared__ u32 warp_counts[THREADS / 32];
    const i64 tile = (i64)blockIdx.x;
    const uint2 own_marks = marks[position()];
    const u32 starts = own_marks.x & 0xFFFFu, single = own_marks.y & 0xFFFFu;
    const u32 lane = threadIdx.x & 31u, warp = threadIdx.x >> 5;
    const u32 own = (u32)__popc(starts);
    u32 sum = own;
#pragma unroll
    for (u32 step = 1; step < 32; step *= 2) {
        const u32 other = __shfl_up_sync(FULL, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == 31) warp_counts[warp] = sum;
    __syncthreads();
    u32 base = sum - own;
    for (u32 w = 0; w < warp; w++) base += warp_counts[w];
    const i64 rank = (tile ? counts[tile - 1] : 0) + (i64)base;  // units that begin before the thread's first byte
    const i64 at = tile * TILE + (i64)threadIdx.x * BYTES;
    for (u32 left = own_marks.x >> 16; left; left &= left - 1u) {
        const u32 i = (u32)__ffs((int)left) - 1u;
        end[rank + __popc(starts & ((1u << i) - 1u)) - 1] = (u32)(at + i);
    }
    for (u32 left = starts; left; left &= left - 1u) {
        const u32 i = (u32)__ffs((int)left) - 1u;
        const i64 number = rank + __popc(starts & ((1u << i) - 1u));
        first[number] = (u32)(at + i);
        if ((single >> i) & 1u) end[number] = (u32)(at + i) + size_of(text[at + i]);
    }
    for (u32 left = own_marks.y >> 16; left; left &= left - 1u) {
        const u32 i = (u32)__ffs((int)left) - 1u;
        const i64 number = rank + __popc(starts & ((1u << i) - 1u)) - 1;
        atomicOr(&odd[number >> 5], 1u << (u32)(number & 31));
    }
}

// out[r] = units before row r, r = 0 ... rows.
extern "C" __global__ void __launch_bounds__(256) unit_rows(const u32 *first, i64 units, const i64 *offsets, i64 rows,
                                                           i64 *out) {
    const i64 r = position();
    if (r > rows) return;
    i64 low = 0, high = units;
    while (low < high) {
        const i64 middle = low + (high - low) / 2;
        if ((i64)first[middle] < offsets[r])
            low = middle + 1;
        else
            high = middle;
    }
    out[r] = low;
}

// The chain over a unit with ignorable code points inside; its length without them starts it, so twice over the bytes.
__device__ __noinline__ u64 odd_hash(const u8 *text, i64 begin, i64 end, const u16 *stage1, const u8 *actions) {
    u64 length = 0, h = 0;
    for (int sweep = 0; sweep < 2; sweep++) {
        h = length * GOLDEN;
        u64 word = 0;
        u32 filled = 0;
        for (i64 at = begin; at < end;) {
            const u32 c = text[at];
            const u32 bytes = size_of(c);
            if (action_at(text, at, UNIT_TOKEN, stage1, actions) != ACT_IGNORE) {
                if (sweep == 0) {
                    length += bytes;
                } else {
                    for (u32 i = 0; i < bytes; i++) {
                        word |= (u64)text[at + i] << (8u * filled);
                        if (++filled == 8u) {
                            h = mix64(h + word);
                            word = 0, filled = 0;
                        }
                    }
                }
            }
            at += bytes;
        }
        if (sweep == 1 && filled) h = mix64(h + word);
    }
    return h;
}

extern "C" __global__ void __launch_bounds__(256) unit_hash(
    const u64 *words, const u32 *first, const u32 *end, const u32 *odd, i64 units, const u16 *stage1, const u8 *actions,
    u64 *hashes) {
    const i64 number = position();
    if (number >= units) return;
    i64 at = (i64)first[number];
    i64 left = (i64)end[number] - at;
    if ((odd[number >> 5] >> (u32)(number & 31)) & 1u) {
        hashes[number] = odd_hash((const u8 *)words, at, at + left, stage1, actions);
        return;
    }
    u64 h = (u64)left * GOLDEN;
    for (; left > 8; left -= 8, at += 8) h = mix64(h + load_u64(words, at));
    hashes[number] = mix64(h + low_bytes(load_u64(words, at), left));
}

extern "C" __global__ void __launch_bounds__(256) byte_hash(const u8 *text, i64 size, u64 *hashes) {
    const i64 at = position();
    if (at < size) hashes[at] = mix64(GOLDEN + (u64)text[at]);
}
