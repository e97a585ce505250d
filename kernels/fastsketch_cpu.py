"""Fast similarity sketch in Numba, from shingle hashes and from text; the definition is fastsketch_ref.

Bins and values of 16 shingles at a time in vectors (LLVM IR, as in minhash_cpu), then one load, minimum and store a
shingle without a branch. Bins that stay empty take the least of all shingles: 32 bins to a sweep with slots across the
lanes, and what is left of them one by one with shingles across the lanes, where that is less work.

From text, the halves of hashes that empty bins will ask for are kept, HELD of them. A text that has more shingles and
still an empty bin (it repeats itself) is shingled once more. Scratch has a fixed size, whatever a text's length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gpu_dedup.kernels.fastsketch_ref import LEVEL, OWN, check, check_slots
from gpu_dedup.kernels.jit import frozen, jit
from gpu_dedup.kernels.minhash_cpu import LANES, SLOTS, fold_slots, pad_slots
from gpu_dedup.kernels.minhash_ref import EMPTY, I64, U32, U64
from gpu_dedup.kernels.mix64_cpu import Word
from gpu_dedup.kernels.simd import ctz64, popcount64
from gpu_dedup.kernels.units_cpu import BLOCK, SPARE, drop_stops, next_block, prepare
from gpu_dedup.kernels.units_ref import U8
from gpu_dedup.kernels.units_ref import check as check_text

HELD = 16384  # halves of hashes: 64 KB, in L2

_EMPTY = np.uint32(EMPTY)
_LEVEL = np.uint32(LEVEL)
_1 = np.uint32(1)
_ONE = np.uint64(1)
_S32 = np.uint64(32)
_I16 = ir.IntType(16)
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_V16 = ir.VectorType(_I16, LANES)
_V32 = ir.VectorType(_I32, LANES)
_V64 = ir.VectorType(_I64, LANES)


def _every(kind: Any, value: int) -> Any:
    return ir.Constant(ir.VectorType(kind, LANES), [value] * LANES)


def _splat(builder: Any, value: Any) -> Any:
    vector = builder.insert_element(ir.Constant(_V32, ir.Undefined), value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(vector, ir.Constant(_V32, ir.Undefined), _every(_I32, 0))


def _place(
    typingctx: Any,
    hashes: Any,
    at: Any,
    bins: Any,
    values: Any,
    to: Any,
    slots: Any,
    a: Any,
    b: Any,
    xs: Any,
    held: Any,
) -> Any:
    """bins[to:to + LANES] and values[...] of hashes[at:at + LANES], and their high halves as xs[held:held + LANES]; the
    caller owns the bounds."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def pointer(which: int, index: Any) -> Any:
            data = context.make_array(sig.args[which])(context, builder, args[which]).data
            return builder.gep(data, [index], inbounds=True)

        def entry(which: int, index: int) -> Any:
            return _splat(builder, builder.load(pointer(which, ir.Constant(_I64, index))))

        block = builder.load(builder.bitcast(pointer(0, args[1]), _V64.as_pointer()), align=8)
        low = builder.trunc(block, _V32)
        high = builder.trunc(builder.lshr(block, _every(_I64, 32)), _V32)
        mixed = builder.lshr(builder.add(builder.mul(low, entry(6, 0)), entry(7, 0)), _every(_I32, 10))
        place = builder.lshr(builder.mul(mixed, _splat(builder, args[5])), _every(_I32, 22))
        value = builder.lshr(builder.add(builder.mul(high, entry(6, 1)), entry(7, 1)), _every(_I32, 1))
        builder.store(builder.trunc(place, _V16), builder.bitcast(pointer(2, args[4]), _V16.as_pointer()), align=2)
        builder.store(value, builder.bitcast(pointer(3, args[4]), _V32.as_pointer()), align=4)
        builder.store(high, builder.bitcast(pointer(8, args[9]), _V32.as_pointer()), align=4)
        return context.get_dummy_value()

    kinds = (hashes, types.int64, bins, values, types.int64, types.uint32, a, b, xs, types.int64)
    return types.void(*kinds), codegen


place: Any = intrinsic(_place)


def _fold_lanes(typingctx: Any, xs: Any, groups: Any, factor: Any, addend: Any, least: Any) -> Any:
    """least[lane] = min over g < groups, one or more, of factor * xs[LANES * g + lane] + addend."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def pointer(which: int, index: Any) -> Any:
            data = context.make_array(sig.args[which])(context, builder, args[which]).data
            return builder.bitcast(builder.gep(data, [index], inbounds=True), _V32.as_pointer())

        factor, addend = _splat(builder, args[2]), _splat(builder, args[3])
        zero = ir.Constant(_I64, 0)
        entry = builder.block
        body = builder.append_basic_block("group")
        after = builder.append_basic_block("after")
        builder.branch(body)
        builder.position_at_end(body)
        g = builder.phi(_I64)
        running = builder.phi(_V32)
        x = builder.load(pointer(0, builder.mul(g, ir.Constant(_I64, LANES))), align=4)
        value = builder.add(builder.mul(factor, x), addend)
        lower = builder.select(builder.icmp_unsigned("<", value, running), value, running)
        following = builder.add(g, ir.Constant(_I64, 1))
        g.add_incoming(zero, entry)
        g.add_incoming(following, body)
        running.add_incoming(_every(_I32, EMPTY), entry)
        running.add_incoming(lower, body)
        builder.cbranch(builder.icmp_signed("<", following, args[1]), body, after)
        builder.position_at_end(after)
        builder.store(lower, pointer(4, zero), align=4)
        return context.get_dummy_value()

    return types.void(xs, types.int64, types.uint32, types.uint32, least), codegen


fold_lanes: Any = intrinsic(_fold_lanes)


def _top_bits(typingctx: Any, values: Any, at: Any) -> Any:
    """uint64: bit j is the top bit of values[at + j], j < LANES."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        pointer = builder.bitcast(builder.gep(data, [args[1]], inbounds=True), _V32.as_pointer())
        set_ = builder.icmp_signed("<", builder.load(pointer, align=4), _every(_I32, 0))
        return builder.zext(builder.bitcast(set_, _I16), _I64)

    return types.uint64(values, types.int64), codegen


top_bits: Any = intrinsic(_top_bits)


def _numbers(a: U32, b: U32) -> tuple[U32, U32, U32, U32]:
    """Those of bins and values, then those of slots, padded."""
    return frozen(a[:OWN], np.uint32), frozen(b[:OWN], np.uint32), pad_slots(a[OWN:]), pad_slots(b[OWN:])


@jit
def throw(
    hashes: U64, begin: int, count: int, slots: int, a: U32, b: U32,
    rest: U64, bins: npt.NDArray[np.uint16], values: U32, xs: U32, held_from: int, signature: U32,
) -> None:  # fmt: skip
    """The least value of each bin over hashes[begin:begin + count], into the signature; their high halves into xs from
    `held_from` on, where there is room for LANES more."""
    most = np.uint32(slots)
    for i in range(0, count, LANES):
        if begin + i + LANES <= len(hashes):
            place(hashes, begin + i, bins, values, i, most, a, b, xs, held_from + i)
        else:
            for j in range(i, count):
                rest[j - i] = hashes[begin + j]
            place(rest, 0, bins, values, i, most, a, b, xs, held_from + i)
    for i in range(count):
        j = np.int64(bins[i])
        value = values[i]
        held = signature[j]
        signature[j] = value if value < held else held


@jit
def find_empty(signature: U32, empty: npt.NDArray[np.int64]) -> Any:
    """empty[:e]: the bins into which no shingle fell; returns e. `empty` has 4 spare entries."""
    e = np.int64(0)
    for j in range(0, len(signature), LANES):
        bits = top_bits(signature, j)
        many = popcount64(bits)
        for q in range(0, many, 4):  # four at a time, what is too much is overwritten: see units_cpu.scan
            for r in range(q, q + 4):
                empty[e + r] = j + ctz64(bits)
                bits &= bits - _ONE
        e += many
    return e


@jit
def clear(signature: U32, slots: int) -> None:
    """No shingle in any bin. What pads a signature is 0 for ever, so that it is never empty."""
    signature[:slots] = _EMPTY


@jit
def fill(
    xs: U32, count: int, all_factors: U32, all_addends: U32, empty: npt.NDArray[np.int64], e: int,
    factors: U32, addends: U32, least: U32, slots: int, signature: U32,
) -> None:  # fmt: skip
    """Take xs[:count], one or more, into the empty[:e] bins of the signature. Writes over xs[count:count + LANES].

    all_factors, all_addends, least, signature  as long as the slots, padded to a multiple of SLOTS
    factors, addends                 SLOTS of them
    """
    # Work is counted in fortieths of a nanosecond: 32 bins at once take some 20 a shingle, and 40 a bin to gather their
    # numbers; one bin takes about 1 a shingle and 200. Slots that are not empty may be swept along: they are lower.
    if (slots - e) * count < 64 * e:
        least[:] = _EMPTY
        for slot in range(0, len(least), SLOTS):
            fold_slots(least, all_factors, all_addends, slot, xs, count)
        for j in range(slots):
            value = np.uint32(_LEVEL | np.uint32(least[j] >> _1))
            held = signature[j]
            signature[j] = value if value < held else held
        return
    whole = e - e % SLOTS
    if (e - whole) * (count + 200) > 20 * count:
        whole = e
    for first in range(0, whole, SLOTS):
        here = min(SLOTS, e - first)
        for j in range(here):
            factors[j] = all_factors[empty[first + j]]
            addends[j] = all_addends[empty[first + j]]
        least[:SLOTS] = _EMPTY
        fold_slots(least, factors, addends, 0, xs, count)
        for j in range(here):
            k = empty[first + j]
            signature[k] = min(signature[k], np.uint32(_LEVEL | np.uint32(least[j] >> _1)))
    if whole < e:
        for j in range(LANES):
            xs[count + j] = xs[count - 1]
        for first in range(whole, e):
            k = empty[first]
            fold_lanes(xs, (count + LANES - 1) // LANES, all_factors[k], all_addends[k], least)
            lowest = least[0]
            for j in range(1, LANES):
                lowest = min(lowest, least[j])
            signature[k] = min(signature[k], np.uint32(_LEVEL | np.uint32(lowest >> _1)))


@jit
def _fastsketch(hashes: U64, hash_offsets: I64, a: U32, b: U32, all_factors: U32, all_addends: U32, out: U32) -> None:
    slots = out.shape[1]
    rest = np.zeros(LANES, np.uint64)
    bins = np.empty(BLOCK + LANES, np.uint16)
    values = np.empty(BLOCK + LANES, np.uint32)
    xs = np.empty(HELD + BLOCK + LANES, np.uint32)
    empty = np.empty(slots + 4, np.int64)
    factors = np.zeros(SLOTS, np.uint32)
    addends = np.zeros(SLOTS, np.uint32)
    least = np.empty(len(all_factors), np.uint32)
    signature = np.zeros(len(all_factors), np.uint32)
    for d in range(len(hash_offsets) - 1):
        begin = hash_offsets[d]
        end = hash_offsets[d + 1]
        clear(signature, slots)
        for at in range(begin, end, BLOCK):
            throw(
                hashes, at, min(BLOCK, end - at), slots, a, b, rest, bins, values, xs, min(at - begin, HELD), signature
            )
        e = find_empty(signature, empty) if end > begin else 0
        if e > 0 and end - begin <= HELD:
            fill(xs, end - begin, all_factors, all_addends, empty, e, factors, addends, least, slots, signature)
        elif e > 0:
            for at in range(begin, end, BLOCK):
                count = min(BLOCK, end - at)
                for i in range(count):
                    xs[i] = np.uint32(hashes[at + i] >> _S32)
                fill(xs, count, all_factors, all_addends, empty, e, factors, addends, least, slots, signature)
        for j in range(slots):
            out[d, j] = signature[j]


def fastsketch(hashes: U64, hash_offsets: I64, a: U32, b: U32) -> U32:
    """Fast similarity sketches of shingled documents; see fastsketch_ref.fastsketch."""
    slots = check(hashes, hash_offsets, a, b)
    out = np.empty((len(hash_offsets) - 1, slots), np.uint32)
    _fastsketch(frozen(hashes, np.uint64), frozen(hash_offsets, np.int64), *_numbers(a, b), out)
    return out


@jit
def _fast_sketch(
    blob: U8, tail: U8, shift: int, limit: int, offsets: I64, select: I64, unit: int, n: int, poly_n: Word,
    stage1: npt.NDArray[np.uint16], stage2: U8, action: U8, stop: U64, stop_filter: U8,
    a: U32, b: U32, all_factors: U32, all_addends: U32, out: U32, units_of: I64, kept: I64,
) -> None:  # fmt: skip
    spans = np.empty((4, BLOCK + SPARE), np.int64)
    units = np.empty(1000 + BLOCK + SPARE, np.uint64)
    hashes = np.empty(BLOCK + SPARE + LANES, np.uint64)
    state = np.empty(4, np.int64)
    window = np.zeros(1, np.uint64)
    slots = out.shape[1]
    rest = np.zeros(LANES, np.uint64)
    bins = np.empty(BLOCK + SPARE + LANES, np.uint16)
    values = np.empty(BLOCK + SPARE + LANES, np.uint32)
    xs = np.empty(HELD + BLOCK + SPARE + LANES, np.uint32)
    empty = np.empty(slots + 4, np.int64)
    factors = np.zeros(SLOTS, np.uint32)
    addends = np.zeros(SLOTS, np.uint32)
    least = np.empty(len(all_factors), np.uint32)
    signature = np.zeros(len(all_factors), np.uint32)
    for d in range(len(select)):
        begin = offsets[select[d]]
        end = offsets[select[d] + 1]
        text = blob
        if end > limit:
            text = tail
            begin -= shift
            end -= shift
        clear(signature, slots)
        counted = 0
        e = np.int64(0)
        for again in range(2):
            # First time: throw, and hold what fits. Second time, for bins that stayed empty: all of it once more.
            state[0] = begin
            state[1] = 0
            state[2] = 0
            state[3] = 0
            total = 0
            while True:
                m = next_block(text, end, unit, n, poly_n, stage1, stage2, action, spans, units, hashes, state, window)
                if m == 0:
                    break
                if len(stop) > 0:
                    m = drop_stops(hashes, m, stop, stop_filter)
                if again == 0:
                    throw(hashes, 0, m, slots, a, b, rest, bins, values, xs, min(total, HELD), signature)
                elif m > 0:
                    for i in range(m):
                        xs[i] = np.uint32(hashes[i] >> _S32)
                    fill(xs, m, all_factors, all_addends, empty, e, factors, addends, least, slots, signature)
                total += m
            counted = total
            if again == 0:
                e = find_empty(signature, empty) if total > 0 else 0
                if e > 0 and total <= HELD:
                    fill(xs, total, all_factors, all_addends, empty, e, factors, addends, least, slots, signature)
                    e = 0
            if e == 0:
                break
        for j in range(slots):
            out[d, j] = signature[j]
        units_of[d] = state[3]
        kept[d] = counted


def fast_sketch(
    blob: U8, offsets: I64, select: I64, unit: int, n: int, stop: U64, a: U32, b: U32
) -> tuple[U32, I64, I64]:
    """Shingle and sketch chosen documents; see fastsketch_ref.fast_sketch. The text's UTF-8 is trusted, not checked."""
    check_text(blob, offsets, select, unit, n)
    slots = check_slots(a, b)
    out = np.empty((len(select), slots), np.uint32)
    units = np.empty(len(select), np.int64)
    kept = np.empty(len(select), np.int64)
    arguments = prepare(blob, offsets, select, unit, n, stop)
    _fast_sketch(*(*arguments, *_numbers(a, b), out, units, kept))
    return out, units, kept
