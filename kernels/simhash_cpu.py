"""Text to SimHash in one pass through the cache, in Numba; the definition is simhash_ref.

Per document: a block of shingle hashes (units_cpu), stop shingles out, then

    SET    a hash table passes each hash once; the new ones of the block are counted
    COUNT  all are counted
    TFIDF  a hash table with counts; at the document's end its terms get their weights, a heap keeps the `top` heaviest

Weight 1: a hash is broadcast over 8 lanes, shifted by 0 to 7 and masked to the lowest bit of each byte, so one vector
add takes it into 64 counters of a byte; these are emptied into the sums after at most 255 hashes. That is 4
instructions a hash with 64-byte vectors. (Carry-save adders would take under 1, but below 1 ns a hash it is shingling
and the hash table that a document waits for.) Weights: 64 sums in lanes, each bit of the hash a mask. Both loops are
written as LLVM IR, for the reasons in minhash_cpu.

A place in a hash table is the top of the hash times an odd number that each process draws anew: whoever writes a text
whose hashes would meet in one place of a known table makes nothing slow, and the answer does not depend on it.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gpu_dedup.kernels.jit import frozen, inline, jit
from gpu_dedup.kernels.mix64_cpu import Word
from gpu_dedup.kernels.simd import clz64
from gpu_dedup.kernels.simhash_ref import BITS, CELL_BITS, COUNT, I64, SET, TFIDF, U32, U64, check, check_rule
from gpu_dedup.kernels.units_cpu import BLOCK, SPARE, drop_stops, next_block, prepare
from gpu_dedup.kernels.units_ref import U8
from gpu_dedup.kernels.units_ref import check as check_text

BURST = 255  # hashes before a byte could overflow
PLACES = 4  # of a hash table for each hash that it is expected to hold, or up to twice as many
IN_CACHE = 1 << 16  # places, half a megabyte

_0 = np.uint64(0)
_1 = np.uint64(1)
_CELL_SHIFT = np.uint64(64 - CELL_BITS)
_ODD = np.uint64(secrets.randbits(64) | 1)

_I8, _I32, _I64 = (ir.IntType(bits) for bits in (8, 32, 64))
_V8 = ir.VectorType(_I64, 8)
_BYTES = ir.VectorType(_I8, BITS)
_SUMS = ir.VectorType(_I64, BITS)


def _pointer(context: Any, builder: Any, sig: Any, args: Any, which: int, index: Any) -> Any:
    data = context.make_array(sig.args[which])(context, builder, args[which]).data
    return builder.gep(data, [index], inbounds=True)


def _splat(builder: Any, value: Any, lanes: int) -> Any:
    kind = ir.VectorType(value.type, lanes)
    vector = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_I32, 0))
    zeros = ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes)
    return builder.shuffle_vector(vector, ir.Constant(kind, ir.Undefined), zeros)


def _loop(builder: Any, count: Any, start: Any, step: Any) -> Any:
    """step(i, sum) -> sum for i = 0 ... count - 1, from `start`; leaves the builder after the loop."""
    zero = ir.Constant(_I64, 0)
    entry = builder.block
    body = builder.append_basic_block("hash")
    after = builder.append_basic_block("after")
    builder.cbranch(builder.icmp_signed("<", zero, count), body, after)
    builder.position_at_end(body)
    i = builder.phi(_I64)
    running = builder.phi(start.type)
    larger = step(i, running)
    following = builder.add(i, ir.Constant(_I64, 1))
    for phi, first, later in ((i, zero, following), (running, start, larger)):
        phi.add_incoming(first, entry)
        phi.add_incoming(later, body)
    builder.cbranch(builder.icmp_signed("<", following, count), body, after)
    builder.position_at_end(after)
    final = builder.phi(start.type)
    final.add_incoming(start, entry)
    final.add_incoming(larger, body)
    return final


def _count_bits(typingctx: Any, sums: Any, hashes: Any, begin: Any, count: Any) -> Any:
    """sums[b] += set bits b of hashes[begin:begin + count], count <= BURST."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        shifts = ir.Constant(_V8, list(range(8)))
        lowest = ir.Constant(_V8, [0x0101010101010101] * 8)

        def step(i: Any, planes: Any) -> Any:
            hash_ = builder.load(_pointer(context, builder, sig, args, 1, builder.add(args[2], i)), align=8)
            moved = builder.lshr(_splat(builder, hash_, 8), shifts)
            return builder.add(planes, builder.and_(moved, lowest))

        planes = _loop(builder, args[3], ir.Constant(_V8, [0] * 8), step)
        # Byte 8 * s + j has the count of bit s + 8 * j.
        order = ir.Constant(ir.VectorType(_I32, BITS), [8 * (bit & 7) + (bit >> 3) for bit in range(BITS)])
        counts = builder.shuffle_vector(builder.bitcast(planes, _BYTES), ir.Constant(_BYTES, ir.Undefined), order)
        place = builder.bitcast(_pointer(context, builder, sig, args, 0, ir.Constant(_I64, 0)), _SUMS.as_pointer())
        builder.store(builder.add(builder.load(place, align=8), builder.zext(counts, _SUMS)), place, align=8)
        return context.get_dummy_value()

    return types.void(sums, hashes, types.int64, types.int64), codegen


def _add_weights(typingctx: Any, sums: Any, hashes: Any, weights: Any, count: Any) -> Any:
    """sums[b] += weights[i] for each i < count whose hashes[i] has bit b set."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = builder.bitcast(_pointer(context, builder, sig, args, 0, ir.Constant(_I64, 0)), _SUMS.as_pointer())
        bits = ir.Constant(_SUMS, [1 << bit for bit in range(BITS)])
        zeros = ir.Constant(_SUMS, [0] * BITS)

        def step(i: Any, sums: Any) -> Any:
            hash_ = builder.load(_pointer(context, builder, sig, args, 1, i), align=8)
            weight = builder.load(_pointer(context, builder, sig, args, 2, i), align=8)
            clear = builder.icmp_unsigned("==", builder.and_(_splat(builder, hash_, BITS), bits), zeros)
            return builder.add(sums, builder.select(clear, zeros, _splat(builder, weight, BITS)))

        builder.store(_loop(builder, args[3], builder.load(place, align=8), step), place, align=8)
        return context.get_dummy_value()

    return types.void(sums, hashes, weights, types.int64), codegen


def _above(typingctx: Any, sums: Any, bound: Any) -> Any:
    """Bit b set where sums[b] > bound; sums int64[64]."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = builder.bitcast(_pointer(context, builder, sig, args, 0, ir.Constant(_I64, 0)), _SUMS.as_pointer())
        over = builder.icmp_signed(">", builder.load(place, align=8), _splat(builder, args[1], BITS))
        return builder.bitcast(over, _I64)

    return types.uint64(sums, types.int64), codegen


count_bits: Any = intrinsic(_count_bits)
add_weights: Any = intrinsic(_add_weights)
above: Any = intrinsic(_above)


@jit
def add_ones(sums: I64, hashes: U64, begin: int, end: int) -> None:
    """sums[b] += set bits b of hashes[begin:end]."""
    for at in range(begin, end, BURST):
        count_bits(sums, hashes, at, min(BURST, end - at))


@jit
def _simhash(hashes: U64, hash_offsets: I64, out: U64) -> None:
    sums = np.empty(BITS, np.int64)
    for d in range(len(out)):
        sums[:] = 0
        add_ones(sums, hashes, hash_offsets[d], hash_offsets[d + 1])
        out[d] = above(sums, (hash_offsets[d + 1] - hash_offsets[d]) >> 1)


def simhash(hashes: U64, hash_offsets: I64) -> U64:
    """64-bit SimHash of rows of hashes; see simhash_ref.simhash."""
    check(hashes, hash_offsets)
    out = np.empty(len(hash_offsets) - 1, np.uint64)
    _simhash(frozen(hashes, np.uint64), frozen(hash_offsets, np.int64), out)
    return out


@inline
def place_of(table: U64, shift: Word, last: Word, odd: Word, h: Word) -> Word:
    """Where h, not 0, stands in the table, or the free place where it belongs.

    min(found, found ^ h) is 0 for both: one rare branch, where a compiler makes two of `found == 0 or found == h`, the
    one between them a coin toss wherever half the shingles of a text are repeats. (Indices are unsigned throughout:
    Numba takes signed ones for counts from the end when negative, and asks each time.)
    """
    at = (h * odd) >> shift
    found = table[at]
    while min(found, found ^ h) != _0:
        at = (at + _1) & last
        found = table[at]
    return at


@jit
def first_seen(table: U64, bits: int, odd: Word, hashes: U64, count: int) -> Any:
    """Put hashes[:count], none of them 0, into the table; close the gaps of those that were there already.

    table    uint64[>= 2**bits], 0 where free; at least one place more than hashes in the end
    returns  how many are left
    """
    shift = np.uint64(64 - bits)
    last = (_1 << np.uint64(bits)) - _1
    kept = _0
    for i in range(count):
        h = hashes[i]
        hashes[kept] = h
        at = place_of(table, shift, last, odd, h)
        kept += np.uint64(table[at] == _0)
        table[at] = h
    return np.int64(kept)


@jit
def tally(table: U64, counts: I64, bits: int, odd: Word, hashes: U64, count: int, terms: U64, held: int) -> Any:
    """Count hashes[:count], none of them 0, in the table of `first_seen`; write the new ones to terms[held:].

    terms    uint64[>= held + count + 1]
    returns  how many terms there are
    """
    shift = np.uint64(64 - bits)
    last = (_1 << np.uint64(bits)) - _1
    end = np.uint64(held)
    for i in range(count):
        h = hashes[i]
        at = place_of(table, shift, last, odd, h)
        new = np.int64(table[at] == _0)
        table[at] = h
        counts[at] = counts[at] * (1 - new) + 1
        terms[end] = h
        end += np.uint64(new)
    return np.int64(end)


@jit
def weigh(table: U64, counts: I64, bits: int, odd: Word, terms: U64, held: int, idf: U32, weights: I64) -> None:
    """weights[i] of terms[:held]: the count in the table times the idf."""
    shift = np.uint64(64 - bits)
    last = (_1 << np.uint64(bits)) - _1
    for i in range(held):
        h = terms[i]
        weights[i] = counts[place_of(table, shift, last, odd, h)] * np.int64(idf[h >> _CELL_SHIFT])


@jit
def places(distinct: int, more: int, left: int) -> int:
    """Logarithm of the places that a table needs before `more` hashes are added to `distinct` of them.

    left  a guess of all that will come. It is believed as long as the table fits the cache: growing it costs more than
          its size does. Beyond, and where a text is mostly repeats, a table is as large as what it holds asks for
    """
    guess = min(PLACES * max(left, more), IN_CACHE)
    bits: int = 64 - clz64(np.uint64(max(guess, 2 * (distinct + more))))
    return bits


@jit
def move(table: U64, counts: I64, bits: int, to: int, odd: Word, larger: U64, numbers: I64) -> None:
    """Move what 2**bits places hold, with its counts (or none), to a table of 2**to, and clear the old one."""
    shift = np.uint64(64 - to)
    last = (_1 << np.uint64(to)) - _1
    for i in range(np.int64(1) << bits):
        h = table[i]
        if h != _0:
            table[i] = _0
            at = place_of(larger, shift, last, odd, h)
            larger[at] = h
            if len(counts) > 0:
                numbers[at] = counts[i]


@jit
def without_zeros(hashes: U64, count: int) -> int:
    """Close the gaps of zeros in hashes[:count]; returns how many others there are."""
    left = 0
    for i in range(count):
        hashes[left] = hashes[i]
        left += np.int64(hashes[i] != _0)
    return left


@jit
def lighter(weights: I64, terms: U64, i: int, j: int) -> bool:
    """Term i goes before term j does: a lower weight, or the same and a larger hash."""
    less: bool = weights[i] < weights[j] or (weights[i] == weights[j] and terms[i] > terms[j])
    return less


@jit
def sink(weights: I64, terms: U64, root: int, count: int) -> None:
    """Let the term at `root` sink in the heap of the first `count`, the lightest on top."""
    while True:
        child = 2 * root + 1
        if child >= count:
            break
        if child + 1 < count and lighter(weights, terms, child + 1, child):
            child += 1
        if not lighter(weights, terms, child, root):
            break
        weights[root], weights[child] = weights[child], weights[root]
        terms[root], terms[child] = terms[child], terms[root]
        root = child


@jit
def heaviest(weights: I64, terms: U64, count: int, top: int) -> None:
    """Bring the `top` heaviest of `count` terms to the front, top < count."""
    for root in range(top // 2 - 1, -1, -1):
        sink(weights, terms, root, top)
    for i in range(top, count):
        if lighter(weights, terms, 0, i):
            weights[0] = weights[i]
            terms[0] = terms[i]
            sink(weights, terms, 0, top)


@jit
def _fingerprints(
    blob: U8, tail: U8, shift: int, limit: int, offsets: I64, select: I64, unit: int, n: int, poly_n: Word,
    stage1: npt.NDArray[np.uint16], stage2: U8, action: U8, stop: U64, stop_filter: U8,
    rule: int, idf: U32, top: int, odd: Word, out: U64, units_of: I64, kept: I64,
) -> None:  # fmt: skip
    spans = np.empty((4, BLOCK + SPARE), np.int64)
    units = np.empty(1000 + BLOCK + SPARE, np.uint64)
    hashes = np.empty(BLOCK + SPARE, np.uint64)
    state = np.empty(4, np.int64)
    window = np.zeros(1, np.uint64)
    sums = np.empty(BITS, np.int64)
    table = np.zeros(0, np.uint64)
    counts = np.zeros(0, np.int64)
    other = np.zeros(0, np.uint64)  # where a table moves to that has become too small
    other_counts = np.zeros(0, np.int64)
    terms = np.empty(0, np.uint64)
    weights = np.empty(0, np.int64)
    for d in range(len(select)):
        begin = offsets[select[d]]
        end = offsets[select[d] + 1]
        text = blob
        if end > limit:
            text = tail
            begin -= shift
            end -= shift
        state[0] = begin
        state[1] = 0
        state[2] = 0
        state[3] = 0
        sums[:] = 0
        total = 0  # shingles that count
        distinct = 0  # in the table
        zeros = 0  # of them with hash 0, which the table cannot hold
        bits = 0
        while True:
            m = next_block(text, end, unit, n, poly_n, stage1, stage2, action, spans, units, hashes, state, window)
            if m == 0:
                break
            if len(stop) > 0:
                m = drop_stops(hashes, m, stop, stop_filter)
            total += m
            if rule == COUNT:
                add_ones(sums, hashes, 0, m)
                continue
            read = max(state[0] - begin, 1)
            needed = places(distinct, m, np.int64(m * ((end - begin) / read)) if distinct == 0 else 0)
            if needed > bits:
                if distinct > 0:
                    needed += 1  # or a text that grows by blocks would be moved block by block
                    if len(other) < np.int64(1) << needed:
                        other = np.zeros(np.int64(1) << needed, np.uint64)
                        if rule == TFIDF:
                            other_counts = np.empty(len(other), np.int64)
                    move(table, counts, bits, needed, odd, other, other_counts)
                    table, other = other, table
                    counts, other_counts = other_counts, counts
                elif len(table) < np.int64(1) << needed:
                    table = np.zeros(np.int64(1) << needed, np.uint64)
                    if rule == TFIDF:
                        counts = np.empty(len(table), np.int64)
                bits = needed
            none = 0
            for i in range(m):
                none += np.int64(hashes[i] == _0)
            if none > 0:
                zeros += none
                m = without_zeros(hashes, m)
            if rule == SET:
                fresh = first_seen(table, bits, odd, hashes, m)
                add_ones(sums, hashes, 0, fresh)
            else:
                if len(terms) < distinct + m + 2:  # one more that is written and not kept, and one for hash 0
                    larger = np.empty(2 * (distinct + m) + 2, np.uint64)
                    larger[:distinct] = terms[:distinct]
                    terms = larger
                    weights = np.empty(len(terms), np.int64)
                fresh = tally(table, counts, bits, odd, hashes, m, terms, distinct) - distinct
            distinct += fresh
        weight = total
        if rule == SET:
            weight = distinct + min(zeros, 1)
        elif rule == TFIDF:
            count = distinct
            if distinct > 0:
                weigh(table, counts, bits, odd, terms, distinct, idf, weights)
            if zeros > 0:
                terms[count] = _0
                weights[count] = zeros * np.int64(idf[0])
                count += 1
            if 0 < top < count:
                heaviest(weights, terms, count, top)
                count = top
            weight = 0
            for i in range(count):
                weight += weights[i]
            add_weights(sums, terms, weights, count)
        if distinct > 0:
            table[: np.int64(1) << bits] = _0
        out[d] = above(sums, weight >> 1)  # set > clear, and set + clear = weight
        units_of[d] = state[3]
        kept[d] = total


def fingerprints(
    blob: U8, offsets: I64, select: I64, unit: int, n: int, stop: U64, rule: int, idf: U32, top: int,
    odd: np.uint64 = _ODD,
) -> tuple[U64, I64, I64]:  # fmt: skip
    """Shingle and SimHash chosen documents; see simhash_ref.fingerprints. The text's UTF-8 is trusted, not checked.

    odd  places of the hash tables, which the answer does not depend on
    """
    check_text(blob, offsets, select, unit, n)
    check_rule(rule, idf, top)
    out = np.empty(len(select), np.uint64)
    units = np.empty(len(select), np.int64)
    kept = np.empty(len(select), np.int64)
    arguments = prepare(blob, offsets, select, unit, n, stop)
    _fingerprints(*(*arguments, rule, frozen(idf, np.uint32), top, np.uint64(odd), out, units, kept))
    return out, units, kept
