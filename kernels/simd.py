"""Sixty-four bytes at a time in Numba: loads and compares that LLVM turns into AVX-512, AVX2, SSE2 or NEON.

Numba has no vector types, but an intrinsic may emit any LLVM IR. Each of these takes a uint8 array and a position and
reads 64 (or 8) bytes from there, unaligned; the caller owns the bound: `i + 64 <= len(a)`. Buffers that are scanned
this way carry PAD spare bytes at the end.

    mask_eq(a, i, c)            bit j set where a[i + j] == c
    mask_lt(a, i, c)            bit j set where a[i + j] < c (unsigned)
    mask_high(a, i)             bit j set where a[i + j] >= 0x80
    copy64(dst, d, src, s)      dst[d:d+64] = src[s:s+64] (loads all before it stores)
    load_u64(a, i)              little-endian uint64 from a[i:i+8]
    store_u64(a, i, v)
    ctz64(x), clz64(x), popcount64(x)   ctz64(0) = clz64(0) = 64
    mulhi64(x, y)               high 64 bits of the 128-bit product
    prefetch_line(a, i)         ask for the cache line with byte i of an array of any type; no bound, nothing is read
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as _intrinsic

# Numba's type for it does not know that the typing context is no argument of the caller.
intrinsic: Any = _intrinsic

PAD = 64

_I8 = ir.IntType(8)
_I64 = ir.IntType(64)
_V64 = ir.VectorType(_I8, 64)


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """Pointer to array[index]; arrays must be C-contiguous uint8."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(builder.bitcast(data, _I8.as_pointer()), [index], inbounds=True)


def _u8(array: Any) -> bool:
    return isinstance(array, types.Array) and array.dtype == types.uint8 and array.layout == "C" and array.ndim == 1


def _load_v64(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    pointer = builder.bitcast(_address(context, builder, array_type, array, index), _V64.as_pointer())
    return builder.load(pointer, align=1)


def _splat(builder: Any, byte: Any) -> Any:
    vector = builder.insert_element(ir.Constant(_V64, ir.Undefined), byte, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), 64), [0] * 64)
    return builder.shuffle_vector(vector, ir.Constant(_V64, ir.Undefined), zeros)


def _compare(op: str) -> Any:
    def typer(typingctx: Any, a: Any, i: Any, c: Any) -> Any:
        if not _u8(a):
            return None
        signature = types.uint64(a, types.int64, types.uint8)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            block = _load_v64(context, builder, sig.args[0], args[0], args[1])
            hit = builder.icmp_unsigned(op, block, _splat(builder, args[2]))
            return builder.bitcast(hit, _I64)

        return signature, codegen

    return typer


mask_eq: Any = intrinsic(_compare("=="))
mask_lt: Any = intrinsic(_compare("<"))


def _mask_high(typingctx: Any, a: Any, i: Any) -> Any:
    if not _u8(a):
        return None

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        block = _load_v64(context, builder, sig.args[0], args[0], args[1])
        return builder.bitcast(builder.icmp_signed("<", block, ir.Constant(_V64, [0] * 64)), _I64)

    return types.uint64(a, types.int64), codegen


mask_high: Any = intrinsic(_mask_high)


def _copy64(typingctx: Any, dst: Any, d: Any, src: Any, s: Any) -> Any:
    if not (_u8(dst) and _u8(src)):
        return None

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        block = _load_v64(context, builder, sig.args[2], args[2], args[3])
        pointer = builder.bitcast(_address(context, builder, sig.args[0], args[0], args[1]), _V64.as_pointer())
        builder.store(block, pointer, align=1)
        return context.get_dummy_value()

    return types.void(dst, types.int64, src, types.int64), codegen


copy64: Any = intrinsic(_copy64)


def _load_u64(typingctx: Any, a: Any, i: Any) -> Any:
    if not _u8(a):
        return None

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = builder.bitcast(_address(context, builder, sig.args[0], args[0], args[1]), _I64.as_pointer())
        return builder.load(pointer, align=1)

    return types.uint64(a, types.int64), codegen


load_u64: Any = intrinsic(_load_u64)


def _store_u64(typingctx: Any, a: Any, i: Any, v: Any) -> Any:
    if not _u8(a):
        return None

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = builder.bitcast(_address(context, builder, sig.args[0], args[0], args[1]), _I64.as_pointer())
        builder.store(args[2], pointer, align=1)
        return context.get_dummy_value()

    return types.void(a, types.int64, types.uint64), codegen


store_u64: Any = intrinsic(_store_u64)


def _unary(name: str, flag: bool) -> Any:
    def typer(typingctx: Any, x: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            operands = [args[0]] + ([ir.Constant(ir.IntType(1), 0)] if flag else [])
            kind = ir.FunctionType(_I64, [op.type for op in operands])
            insert: Any = cgutils.get_or_insert_function
            function = insert(builder.module, kind, f"llvm.{name}.i64")
            return builder.call(function, operands)

        return types.int64(types.uint64), codegen

    return typer


ctz64: Any = intrinsic(_unary("cttz", True))
clz64: Any = intrinsic(_unary("ctlz", True))
popcount64: Any = intrinsic(_unary("ctpop", False))


def _mulhi64(typingctx: Any, x: Any, y: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), _I64)

    return types.uint64(types.uint64, types.uint64), codegen


mulhi64: Any = intrinsic(_mulhi64)


def _prefetch_line(typingctx: Any, a: Any, i: Any) -> Any:
    if not isinstance(a, types.Array) or a.layout != "C":
        return None

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        i32 = ir.IntType(32)
        pointer = _address(context, builder, sig.args[0], args[0], args[1])
        kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), i32, i32, i32])
        insert: Any = cgutils.get_or_insert_function
        # LLVM of today says p0 and renames this one as it reads it; older ones know it by this name alone.
        function = insert(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [pointer, ir.Constant(i32, 0), ir.Constant(i32, 3), ir.Constant(i32, 1)])
        return context.get_dummy_value()

    return types.void(a, types.int64), codegen


prefetch_line: Any = intrinsic(_prefetch_line)
