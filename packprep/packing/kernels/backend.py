"""The compiler behind kernels: numba, loaded when the first kernel is compiled.

Functions of `common` have twins here that LLVM turns into single instructions.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]
from numba import carray, from_dtype, njit, types
from numba.core import cgutils
from numba.core.cgutils import true_bit
from numba.extending import intrinsic, overload, register_jitable

from . import common
from .common import INLINED
from .disk_cache import KernelCache

_NUMBERS = {
    int: types.int64,
    float: types.float64,
    bool: types.boolean,
    np.uint64: types.uint64,
}


def compiled(function: Callable[..., Any], arguments: Sequence[tuple[Any, bool, bool]]) -> Any:
    """The function compiled for these arguments.

    arguments: type of a number or of the elements of an array, whether it is a number, and whether
    it is written.
    """
    while INLINED:
        register_jitable(INLINED.pop())
    kinds = [
        _NUMBERS[element]
        if is_number
        else types.Array(from_dtype(np.dtype(element)), 1, "C", readonly=not is_written)
        for element, is_number, is_written in arguments
    ]
    dispatcher: Any = njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True)(function)
    dispatcher._cache = KernelCache(function)
    dispatcher.compile(tuple(kinds))
    dispatcher.disable_compile()  # so that other types are converted, or refused
    return dispatcher


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _smaller(_typing: Any, first: Any, second: Any) -> Any:
    """The smaller of two int64. numba would compile its `min` for each kernel."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.select(builder.icmp_signed("<", *arguments), *arguments)

    return types.int64(types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _larger(_typing: Any, first: Any, second: Any) -> Any:
    """The larger of two int64."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.select(builder.icmp_signed(">", *arguments), *arguments)

    return types.int64(types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _lowest_bit(_typing: Any, word: Any) -> Any:
    """Position of the lowest set bit of a uint64 that is not 0."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], true_bit)

    return types.int64(types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _set_bits(_typing: Any, word: Any) -> Any:
    """Number of set bits of a uint64."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _smaller_of_16(_typing: Any, values: Any, start: Any, limit: Any) -> Any:
    """Bit i is values[start + i] < limit, for i in 0..15: int32 array, uint64, int32 -> uint64.

    One vector comparison in portable LLVM; the compiler picks the instructions of the machine. All
    16 values must be in the array.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = ir.VectorType(ir.IntType(32), 16)
        nothing, zero = ir.Constant(lanes, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        loaded = builder.load(
            builder.bitcast(builder.gep(array.data, [arguments[1]]), lanes.as_pointer())
        )
        loaded.align = 4
        limits = builder.insert_element(nothing, arguments[2], zero)
        limits = builder.shuffle_vector(limits, nothing, ir.Constant(lanes, [0] * 16))
        bits = builder.bitcast(builder.icmp_signed("<", loaded, limits), ir.IntType(16))
        return builder.zext(bits, ir.IntType(64))

    return types.uint64(values, types.uint64, types.int32), generate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _pointer(_typing: Any, address: Any) -> Any:
    """The address as a pointer that `carray` takes."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@overload(common.smaller)  # type: ignore[untyped-decorator,unused-ignore]
def _overload_smaller(first, second):  # type: ignore[no-untyped-def] # numba compares signatures
    return lambda first, second: _smaller(first, second)


@overload(common.larger)  # type: ignore[untyped-decorator,unused-ignore]
def _overload_larger(first, second):  # type: ignore[no-untyped-def] # numba compares signatures
    return lambda first, second: _larger(first, second)


@overload(common.lowest_bit)  # type: ignore[untyped-decorator,unused-ignore]
def _overload_lowest_bit(word):  # type: ignore[no-untyped-def] # numba compares signatures
    return lambda word: _lowest_bit(word)


@overload(common.set_bits)  # type: ignore[untyped-decorator,unused-ignore]
def _overload_set_bits(word):  # type: ignore[no-untyped-def] # numba compares signatures
    return lambda word: _set_bits(word)


@overload(common.smaller_of_16)  # type: ignore[untyped-decorator,unused-ignore]
def _overload_smaller_of_16(values, start, limit):  # type: ignore[no-untyped-def] # numba compares signatures
    return lambda values, start, limit: _smaller_of_16(values, start, limit)


@overload(common.array_at)  # type: ignore[untyped-decorator,unused-ignore]
def _overload_array_at(address, count, like):  # type: ignore[no-untyped-def] # numba compares signatures
    return lambda address, count, like: carray(_pointer(address), count, like.dtype)
