"""MinHash in Numba; the definition is minhash_ref.

Slots lie across the lanes of vectors and shingles stream past them: 32 running minima, multipliers and addends stay in
registers while a block of shingles is read; each shingle costs one broadcast and then multiply, add, minimum a vector.
There is no reduction across lanes and no remainder, so short texts run at nearly the rate of long ones. The loop is
written as LLVM IR (16 lanes of 32 bits; LLVM cuts them to what the CPU has): what the vectoriser makes of a scalar loop
depends on its version, guards every call against overlapping arrays, and takes longer to compile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gpu_dedup.kernels.jit import frozen, jit
from gpu_dedup.kernels.minhash_ref import EMPTY, I64, U32, U64, check

LANES = 16
GROUP = 2  # vectors of slots per sweep: 3 * 2 vectors of 64 bytes, the 16 registers of AVX2 hold the minima and addends
SLOTS = LANES * GROUP  # signatures are padded to a multiple of this
XS = 2048  # shingles per sweep: 8 KB, in L1

_EMPTY = np.uint32(EMPTY)
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_V = ir.VectorType(_I32, LANES)


def _fold_slots(typingctx: Any, signature: Any, a: Any, b: Any, slot: Any, xs: Any, count: Any) -> Any:
    """signature[j] = min(signature[j], min over i < count of a[j] * xs[i] + b[j]) for SLOTS slots from `slot`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def pointer(which: int, index: Any) -> Any:
            data = context.make_array(sig.args[which])(context, builder, args[which]).data
            return builder.gep(data, [index], inbounds=True)

        def vector(which: int, group: int) -> Any:
            index = builder.add(args[3], ir.Constant(_I64, group * LANES))
            return builder.bitcast(pointer(which, index), _V.as_pointer())

        groups = range(GROUP)
        least = [builder.load(vector(0, g), align=4) for g in groups]
        factor = [builder.load(vector(1, g), align=4) for g in groups]
        addend = [builder.load(vector(2, g), align=4) for g in groups]
        zero = ir.Constant(_I64, 0)
        entry = builder.block
        body = builder.append_basic_block("shingle")
        after = builder.append_basic_block("after")
        builder.cbranch(builder.icmp_signed("<", zero, args[5]), body, after)

        builder.position_at_end(body)
        i = builder.phi(_I64)
        running = [builder.phi(_V) for _ in groups]
        x = builder.load(pointer(4, i), align=4)
        broadcast = builder.insert_element(ir.Constant(_V, ir.Undefined), x, ir.Constant(_I32, 0))
        zeros = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
        broadcast = builder.shuffle_vector(broadcast, ir.Constant(_V, ir.Undefined), zeros)
        lower = []
        for g in groups:
            value = builder.add(builder.mul(factor[g], broadcast), addend[g])
            lower.append(builder.select(builder.icmp_unsigned("<", value, running[g]), value, running[g]))
        following = builder.add(i, ir.Constant(_I64, 1))
        i.add_incoming(zero, entry)
        i.add_incoming(following, body)
        for g in groups:
            running[g].add_incoming(least[g], entry)
            running[g].add_incoming(lower[g], body)
        builder.cbranch(builder.icmp_signed("<", following, args[5]), body, after)

        builder.position_at_end(after)
        for g in groups:
            final = builder.phi(_V)
            final.add_incoming(least[g], entry)
            final.add_incoming(lower[g], body)
            least[g] = final
        for g in groups:
            builder.store(least[g], vector(0, g), align=4)
        return context.get_dummy_value()

    return types.void(signature, a, b, types.int64, xs, types.int64), codegen


fold_slots: Any = intrinsic(_fold_slots)


@jit
def fold(signature: U32, a: U32, b: U32, xs: U32, count: int) -> None:
    """Take xs[:count] into a padded signature; a, b, signature have the same length, a multiple of SLOTS."""
    for slot in range(0, len(signature), SLOTS):
        fold_slots(signature, a, b, slot, xs, count)


def pad_slots(values: U32) -> U32:
    """Read-only copy of a or b, zeros up to a multiple of SLOTS."""
    out = np.zeros(-(-len(values) // SLOTS) * SLOTS, np.uint32)
    out[: len(values)] = values
    return frozen(out, np.uint32)


@jit
def _minhash(hashes: U64, hash_offsets: I64, a: U32, b: U32, out: U32) -> None:
    signature = np.empty(len(a), np.uint32)
    xs = np.empty(XS, np.uint32)
    for d in range(len(hash_offsets) - 1):
        signature[:] = _EMPTY
        end = hash_offsets[d + 1]
        for at in range(hash_offsets[d], end, XS):
            count = min(XS, end - at)
            for i in range(count):
                xs[i] = np.uint32(hashes[at + i] >> np.uint64(32))
            fold(signature, a, b, xs, count)
        for j in range(out.shape[1]):
            out[d, j] = signature[j]


def minhash(hashes: U64, hash_offsets: I64, a: U32, b: U32) -> U32:
    """MinHash signatures of shingled documents; see minhash_ref.minhash."""
    check(hashes, hash_offsets, a, b)
    out = np.empty((len(hash_offsets) - 1, len(a)), np.uint32)
    _minhash(frozen(hashes, np.uint64), frozen(hash_offsets, np.int64), pad_slots(a), pad_slots(b), out)
    return out
