# mypy: disable-error-code="no-untyped-def"
"""Atomic words, and two ways to wait: the few instructions that threads need to share the work of a step."""

import ctypes
import platform
import sys
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic as numba_intrinsic

intrinsic: Any = numba_intrinsic  # its type does not know that the first argument is numba's own

_I64 = ir.IntType(64)
_X86, _ARM = platform.machine() in ("x86_64", "AMD64"), platform.machine() in ("aarch64", "arm64")

if sys.platform == "win32":
    _yield_address = ctypes.cast(ctypes.windll.kernel32.SwitchToThread, ctypes.c_void_p).value
else:
    _yield_address = ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value
binding.add_symbol("underload_yield", _yield_address)  # a name for compiled code, also for code from numba's cache


def _word(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
    data = context.make_array(signature.args[0])(context, builder, args[0]).data
    return builder.gep(data, [args[1]], source_etype=_I64)


def _external(builder: ir.IRBuilder, name: str, result: ir.Type, *args: ir.Type) -> ir.Function:
    return builder.module.globals.get(name) or ir.Function(builder.module, ir.FunctionType(result, args), name)


@intrinsic
def fetch_add(typingctx, words, index, amount):
    """Add to an int64 word; return what it held before."""

    def codegen(context, builder, signature, args):
        return builder.atomic_rmw("add", _word(context, builder, signature, args), args[2], "seq_cst")

    return types.int64(words, types.int64, types.int64), codegen


@intrinsic
def load(typingctx, words, index):
    """Read an int64 word that other threads write."""

    def codegen(context, builder, signature, args):
        return builder.load_atomic(_word(context, builder, signature, args), "seq_cst", 8, typ=_I64)

    return types.int64(words, types.int64), codegen


@intrinsic
def store(typingctx, words, index, value):
    """Write an int64 word that other threads read; all earlier writes are seen before it."""

    def codegen(context, builder, signature, args):
        builder.store_atomic(args[2], _word(context, builder, signature, args), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(words, types.int64, types.int64), codegen


@intrinsic
def pause(typingctx):
    """Tell the core that this is a waiting loop, where it has an instruction for that."""

    def codegen(context, builder, signature, args):
        if _X86:
            builder.call(_external(builder, "llvm.x86.sse2.pause", ir.VoidType()), [])
        elif _ARM:
            builder.call(_external(builder, "llvm.aarch64.hint", ir.VoidType(), ir.IntType(32)), [ir.IntType(32)(1)])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def give_way(typingctx):
    """Let another thread of this machine run, if one waits."""

    def codegen(context, builder, signature, args):
        builder.call(_external(builder, "underload_yield", ir.IntType(32)), [])
        return context.get_dummy_value()

    return types.void(), codegen
