// What a code point does to the units around it; rules and precedence of units_ref.py.
#pragma once
#include "mix64.cuh"

#define UNIT_TOKEN 0
#define UNIT_WORD 1
#define UNIT_CHAR 2
#define UNIT_BYTE 3
#define UNIT_CODE 4

#define ACT_BREAK 0u
#define ACT_RUN 1u
#define ACT_SINGLE 2u
#define ACT_IGNORE 3u

#define CODE_POINTS 0x110000u

__device__ __forceinline__ bool is_lead(u32 byte) { return (byte & 0xC0u) != 0x80u; }

// Of an ASCII character, by arithmetic: no table is touched by English text.
__device__ __forceinline__ u32 ascii_action(u32 c, int unit) {
    if (unit == UNIT_CHAR) return ACT_SINGLE;
    if (unit == UNIT_WORD) return c == 0x20u || c - 0x09u < 5u ? ACT_BREAK : ACT_RUN;
    if ((c | 0x20u) - 'a' < 26u || c - '0' < 10u || c == '_') return ACT_RUN;
    return unit == UNIT_CODE && c - 0x21u < 0x5Eu ? ACT_SINGLE : ACT_BREAK;
}

// Bytes of a code point by its first.
__device__ __forceinline__ u32 size_of(u32 lead) { return 1u + (lead >= 0xC0u) + (lead >= 0xE0u) + (lead >= 0xF0u); }

// The code point of lead byte a >= 0xC0 and the three bytes after it. Bytes that are no UTF-8 give some number below
// CODE_POINTS, so that they cannot lead out of a table.
__device__ __forceinline__ u32 code_point(u32 a, u32 b, u32 c, u32 d) {
    b &= 0x3Fu, c &= 0x3Fu, d &= 0x3Fu;
    if (a < 0xE0u) return ((a & 0x1Fu) << 6) | b;
    if (a < 0xF0u) return ((a & 0x0Fu) << 12) | (b << 6) | c;
    const u32 point = ((a & 0x07u) << 18) | (b << 12) | (c << 6) | d;
    return point < CODE_POINTS ? point : CODE_POINTS - 1u;
}

// actions: the second stage of the class table with each class replaced by its action under `unit`.
__device__ __forceinline__ u32 wide_action(u32 point, int unit, const u16 *stage1, const u8 *actions) {
    if (unit == UNIT_CHAR) return ACT_SINGLE;
    return actions[((u32)stage1[point >> 7] << 7) | (point & 127u)];
}

// Four bytes of a word side by side, an answer in the top bit of each; the bytes must be below 0x80.

__device__ __forceinline__ u32 at_least(u32 word, u32 c) { return word + (0x80u - c) * 0x01010101u; }

__device__ __forceinline__ u32 between(u32 word, u32 first, u32 last) {
    return at_least(word, first) & ~at_least(word, last + 1u);
}

// ascii_action of four characters: where it is ACT_RUN, and where ACT_SINGLE.
__device__ __forceinline__ void ascii_actions(u32 word, int unit, u32 &run, u32 &single) {
    run = single = 0;
    if (unit == UNIT_CHAR) {
        single = ~0u;
    } else if (unit == UNIT_WORD) {
        run = ~(between(word, 0x20u, 0x20u) | between(word, 0x09u, 0x0Du));
    } else {
        run = between(word | 0x20202020u, 'a', 'z') | between(word, '0', '9') | between(word, '_', '_');
        if (unit == UNIT_CODE) single = between(word, 0x21u, 0x7Eu) & ~run;
    }
}

// The top bits of the four bytes as bits 0 to 3.
__device__ __forceinline__ u32 top_bits(u32 word) { return (((word >> 7) & 0x01010101u) * 0x10204080u) >> 28; }
