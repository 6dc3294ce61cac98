# mypy: disable-error-code="no-untyped-def"
"""The inner loops, as LLVM IR: what a compiler does not find by itself, and nothing else.

Everything is made of one register tile: R rows of x times Q panels of 16 weights, R x Q vector accumulators.

              panel of w (16 outputs side by side)
      k = 0  [ w w w w w w w w w w w w w w w w ]      acc[r] += x[r, k] * w[k]      one load of w serves R rows,
      k = 1  [ w w w w w w w w w w w w w w w w ]                                    one broadcast of x Q panels
        ...

Each output is one chain of fused multiply-adds over k = 0, 1, 2, ... whatever R and Q are: a row's result is bitwise
the same alone and in any company. Vectors are 16 floats wide for every machine; LLVM lowers them to one AVX-512,
two AVX2 or four NEON registers, and `MAX_TILE` says how many accumulators then fit.
"""

import platform
from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import config
from numba.extending import intrinsic as numba_intrinsic

intrinsic: Any = numba_intrinsic  # its type does not know that the first argument is numba's own

LANES = 16  # outputs in a panel

_F32, _I64, _I32, _I16 = ir.FloatType(), ir.IntType(64), ir.IntType(32), ir.IntType(16)
_VECTOR = ir.VectorType(_F32, LANES)
KEYS_AHEAD = 16  # tokens between a key's use and the request for it
_HALF = 8  # lanes of the score kernel: 8 keys at a time
_HALF_VECTOR = ir.VectorType(_F32, _HALF)
_PTR = ir.PointerType()


def _has(feature: str) -> bool:
    """Whether the processor that numba compiles for has it; as told by numba's settings, or found."""
    told = getattr(config, "CPU_FEATURES", None)
    if told is not None:
        return f"+{feature}" in told.split(",")
    return bool(binding.get_host_cpu_features().get(feature, False))


HAS_FMA = platform.machine() not in ("x86_64", "AMD64") or _has("fma")
_WIDE = _has("avx512f")
MAX_ROWS = 8 if _WIDE else 6
MIX_ROWS = 4  # query heads that share a value; fewer tiles are compiled faster
_MAX_TILE = 24 if _WIDE else 6  # accumulators of 16 floats: 24 of 32 registers, or 6 x 2 of 16


def panels_at_once(rows: int) -> int:
    """Panels of the widest tile for `rows` rows. Several keep enough products in flight at few rows, and at more they
    share each broadcast of x: 8 rows x 3 panels load 11 vectors for 24 products, where 16 x 1 load 17 for 16."""
    return max(1, min(4, _MAX_TILE // rows))


# -------------------------------------------------- emitting


def _named(module: ir.Module, name: str, result: ir.Type, *args: ir.Type) -> ir.Function:
    found = module.globals.get(name)
    return found or ir.Function(module, ir.FunctionType(result, args), name)


def _fma(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    lanes = a.type.count
    return builder.call(_named(builder.module, f"llvm.fma.v{lanes}f32", a.type, a.type, a.type, a.type), (a, b, c))


def _prefetch(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Ask for a line of data to be read into the second-level cache."""
    function = _named(builder.module, "llvm.prefetch.p0", ir.VoidType(), _PTR, _I32, _I32, _I32)
    builder.call(function, (address, _I32(0), _I32(2), _I32(1)))


def _at(builder: ir.IRBuilder, base: ir.Value, index: ir.Value | int, element: ir.Type = _F32) -> ir.Value:
    index = _I64(index) if isinstance(index, int) else index
    return builder.gep(base, [index], source_etype=element)


def _load(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    value = builder.load(address, typ=kind)
    value.align = 4 if kind is not _I16 else 2  # nothing is promised about alignment; unaligned loads cost nothing
    return value


def _store(builder: ir.IRBuilder, value: ir.Value, address: ir.Value) -> None:
    builder.store(value, address).align = 4


def _broadcast(builder: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), scalar, _I32(0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES))


def _widened(builder: ir.IRBuilder, address: ir.Value, storage: str, lanes: int) -> ir.Value:
    """Load neighbouring values of a storage format and widen them to float32."""
    vector = ir.VectorType(_F32, lanes)
    if storage == "float32":
        return _load(builder, address, vector)
    if storage == "float16":
        raw = builder.load(address, typ=ir.VectorType(ir.HalfType(), lanes))
        raw.align = 2
        return builder.fpext(raw, vector)
    raw = builder.load(address, typ=ir.VectorType(_I16, lanes))  # bfloat16 is the upper half of a float32
    raw.align = 2
    wide = ir.VectorType(_I32, lanes)
    return builder.bitcast(builder.shl(builder.zext(raw, wide), ir.Constant(wide, [16] * lanes)), vector)


_ELEMENT = {"float32": _F32, "float16": _I16, "bfloat16": _I16}


def _loop(
    builder: ir.IRBuilder,
    start: ir.Value,
    stop: ir.Value,
    step: int,
    carried: list[ir.Value],
    body: Callable[[ir.IRBuilder, ir.Value, list[ir.Value]], list[ir.Value]],
) -> list[ir.Value]:
    """for i in range(start, stop, step): carried = body(i, carried); the carried values live in registers."""
    before = builder.block
    head, inside, after = (builder.append_basic_block(name) for name in ("head", "body", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(_I64)
    index.add_incoming(start, before)
    phis = []
    for value in carried:
        phi = builder.phi(value.type)
        phi.add_incoming(value, before)
        phis.append(phi)
    builder.cbranch(builder.icmp_signed("<", index, stop), inside, after)
    builder.position_at_end(inside)
    results = body(builder, index, list(phis))
    index.add_incoming(builder.add(index, _I64(step)), builder.block)
    for phi, value in zip(phis, results, strict=True):
        phi.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return list(phis)


def _function(module: ir.Module, name: str, *args: ir.Type) -> tuple[ir.Function, ir.IRBuilder]:
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), args), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    return function, ir.IRBuilder(function.append_basic_block("entry"))


# -------------------------------------------------- the tile


def _product_tile(module: ir.Module, rows: int, panels: int, storage: str) -> ir.Function:
    """out[r, 16 p + j] = sum over k of x[r, k] w[p, k, j]; panels end to end, k a multiple of 4.

    The same stretch of memory `ahead` weights further on is prefetched meanwhile.
    """
    name = f"underload_product_{rows}x{panels}_{storage}"
    if name in module.globals:
        return module.globals[name]
    function, builder = _function(module, name, _PTR, _PTR, _I64, _PTR, _I64, _I64, _I64)
    w, x, x_stride, out, out_stride, inner, ahead = function.args
    element = _ELEMENT[storage]
    x_row = [_at(builder, x, builder.mul(_I64(r), x_stride)) for r in range(rows)]
    panel = [_at(builder, w, builder.mul(_I64(p * LANES), inner), element) for p in range(panels)]
    lines = 4 if storage == "float32" else 2  # cache lines in four steps of k

    def four_steps(builder: ir.IRBuilder, k: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
        for p in range(panels):
            there = builder.add(builder.mul(k, _I64(LANES)), ahead)
            for line in range(lines):
                _prefetch(builder, _at(builder, panel[p], builder.add(there, _I64(line * 4 * LANES // lines)), element))
        for step in range(4):
            here = builder.add(k, _I64(step))
            ws = [
                _widened(builder, _at(builder, panel[p], builder.mul(here, _I64(LANES)), element), storage, LANES)
                for p in range(panels)
            ]
            for r in range(rows):
                xs = _broadcast(builder, _load(builder, _at(builder, x_row[r], here), _F32))
                for p in range(panels):
                    acc[r * panels + p] = _fma(builder, xs, ws[p], acc[r * panels + p])
        return acc

    zero = ir.Constant(_VECTOR, [0.0] * LANES)
    acc = _loop(builder, _I64(0), inner, 4, [zero] * (rows * panels), four_steps)
    for r in range(rows):
        row = _at(builder, out, builder.mul(_I64(r), out_stride))
        for p in range(panels):
            _store(builder, acc[r * panels + p], _at(builder, row, p * LANES))
    builder.ret_void()
    return function


def _mix_tile(module: ir.Module, rows: int, panels: int, storage: str) -> ir.Function:
    """out[r, 16 p + j] += sum over t of x[r, t] v[index[t] + 16 p + j]: attention's second product, values in place."""
    name = f"underload_mix_{rows}x{panels}_{storage}"
    if name in module.globals:
        return module.globals[name]
    function, builder = _function(module, name, _PTR, _PTR, _PTR, _I64, _PTR, _I64, _I64, _I64)
    v, index, x, x_stride, out, out_stride, start, stop = function.args
    element = _ELEMENT[storage]
    x_row = [_at(builder, x, builder.mul(_I64(r), x_stride)) for r in range(rows)]
    out_at = [
        _at(builder, _at(builder, out, builder.mul(_I64(r), out_stride)), p * LANES)
        for r in range(rows)
        for p in range(panels)
    ]

    def step(builder: ir.IRBuilder, t: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
        token = _at(builder, v, _load(builder, _at(builder, index, t, _I64), _I64), element)
        vs = [_widened(builder, _at(builder, token, p * LANES, element), storage, LANES) for p in range(panels)]
        for r in range(rows):
            xs = _broadcast(builder, _load(builder, _at(builder, x_row[r], t), _F32))
            for p in range(panels):
                acc[r * panels + p] = _fma(builder, xs, vs[p], acc[r * panels + p])
        return acc

    acc = _loop(builder, start, stop, 1, [_load(builder, address, _VECTOR) for address in out_at], step)
    for value, address in zip(acc, out_at, strict=True):
        _store(builder, value, address)
    builder.ret_void()
    return function


def _scores(module: ir.Module, storage: str) -> ir.Function:
    """out[r, i] = sum over d of q[r, d] k[index[i] + d], for 8 tokens i; `width` a multiple of 16.

    Eight sums of eight lanes each, then folded: the lanes of all eight are added in pairs until one vector holds
    the eight totals. One query after the other; the eight keys stay in the first-level cache meanwhile.

    A head's share of a token is too short a stretch for the hardware to see a pattern, so the keys of later tokens and
    the values of these, which are needed next, are asked for here. `index` must go on for 8 + KEYS_AHEAD tokens.
    """
    name = f"underload_scores_{storage}"
    if name in module.globals:
        return module.globals[name]
    function, builder = _function(module, name, _PTR, _PTR, _PTR, _PTR, _PTR, _I64, _I64, _PTR, _I64, _I64)
    k, v, index, v_index, q, q_stride, rows, out, out_stride, width = function.args
    element = _ELEMENT[storage]

    def token(pool: ir.Value, places: ir.Value, i: int) -> ir.Value:
        return _at(builder, pool, _load(builder, _at(builder, places, i, _I64), _I64), element)

    keys = [token(k, index, i) for i in range(_HALF)]
    for i in range(_HALF):
        for address in (token(k, index, i + KEYS_AHEAD), token(v, v_index, i)):

            def ask(
                builder: ir.IRBuilder, d: ir.Value, _: list[ir.Value], address: ir.Value = address
            ) -> list[ir.Value]:
                _prefetch(builder, _at(builder, address, d, element))
                return []

            _loop(builder, _I64(0), width, LANES if storage == "float32" else 2 * LANES, [], ask)  # a cache line
    zero = ir.Constant(_HALF_VECTOR, [0.0] * _HALF)

    def one_query(builder: ir.IRBuilder, r: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        query = _at(builder, q, builder.mul(r, q_stride))

        def step(builder: ir.IRBuilder, d: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
            for half in (0, _HALF):
                here = builder.add(d, _I64(half))
                qs = _load(builder, _at(builder, query, here), _HALF_VECTOR)
                acc = [
                    _fma(builder, qs, _widened(builder, _at(builder, keys[i], here, element), storage, _HALF), acc[i])
                    for i in range(_HALF)
                ]
            return acc

        sums = _loop(builder, _I64(0), width, 2 * _HALF, [zero] * _HALF, step)
        while len(sums) > 1:
            sums = [_fold(builder, a, b) for a, b in zip(sums[0::2], sums[1::2], strict=True)]
        _store(builder, sums[0], _at(builder, out, builder.mul(r, out_stride)))
        return []

    _loop(builder, _I64(0), rows, 1, [], one_query)
    builder.ret_void()
    return function


def _fold(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Lanes of a added in pairs, then those of b: a0+a1, a2+a3, ..., b0+b1, ... Done thrice, eight end sorted."""
    shuffle = ir.VectorType(_I32, _HALF)
    even = builder.shuffle_vector(a, b, ir.Constant(shuffle, list(range(0, 2 * _HALF, 2))))
    odd = builder.shuffle_vector(a, b, ir.Constant(shuffle, list(range(1, 2 * _HALF, 2))))
    return builder.fadd(even, odd)


# -------------------------------------------------- called from numba


def _storage(array: types.Array) -> str:
    """The format of weights by the array that holds their bits: int16 is float16, uint16 is bfloat16."""
    return {"float32": "float32", "int16": "float16", "uint16": "bfloat16"}[str(array.dtype)]


def _data(context: Any, builder: ir.IRBuilder, array: types.Array, value: ir.Value) -> ir.Value:
    return context.make_array(array)(context, builder, value).data


def _choose(
    builder: ir.IRBuilder, rows: ir.Value, most: int, panels: ir.Value, call: Callable[[int, int], None]
) -> None:
    """Branch to the tile for `rows`, 1 to `most`, and `panels`, 1 to panels_at_once(rows)."""
    after = builder.append_basic_block("done")
    switch = builder.switch(builder.add(builder.mul(rows, _I64(8)), panels), after)
    for r in range(1, most + 1):
        for p in range(1, panels_at_once(r) + 1):
            block = builder.append_basic_block(f"tile_{r}x{p}")
            switch.add_case(_I64(8 * r + p), block)
            builder.position_at_end(block)
            call(r, p)
            builder.branch(after)
    builder.position_at_end(after)


@intrinsic
def product(typingctx, w, w_at, panels, x, x_at, x_stride, rows, out, out_at, out_stride, inner, ahead):
    """out[r, 16 p + j] = sum over k < inner of x[r, k] w[p, k, j], 1 to MAX_ROWS rows; flat arrays from `_at` on."""
    signature = types.void(
        w,
        types.int64,
        types.int64,
        x,
        types.int64,
        types.int64,
        types.int64,
        out,
        types.int64,
        types.int64,
        types.int64,
        types.int64,
    )

    def codegen(context, builder, signature, args):
        storage = _storage(w)
        data_w = _at(builder, _data(context, builder, w, args[0]), args[1], _ELEMENT[storage])
        data_x = _at(builder, _data(context, builder, x, args[3]), args[4])
        data_out = _at(builder, _data(context, builder, out, args[7]), args[8])
        module = builder.module

        def call(r: int, p: int) -> None:
            tile = _product_tile(module, r, p, storage)
            builder.call(tile, (data_w, data_x, args[5], data_out, args[9], args[10], args[11]))

        _choose(builder, args[6], MAX_ROWS, args[2], call)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def mix(
    typingctx, v, v_at, panels, index, index_at, x, x_at, x_stride, rows, out, out_at, out_stride, start, stop
):  # fmt: skip
    """out[r, 16 p + j] += sum over start <= t < stop of x[r, t] v[index[t] + 16 p + j], for 1 to MIX_ROWS rows."""
    i = types.int64
    signature = types.void(v, i, i, index, i, x, i, i, i, out, i, i, i, i)

    def codegen(context, builder, signature, args):
        storage = _storage(v)
        data_v = _at(builder, _data(context, builder, v, args[0]), args[1], _ELEMENT[storage])
        data_index = _at(builder, _data(context, builder, index, args[3]), args[4], _I64)
        data_x = _at(builder, _data(context, builder, x, args[5]), args[6])
        data_out = _at(builder, _data(context, builder, out, args[9]), args[10])
        module = builder.module

        def call(r: int, p: int) -> None:
            tile = _mix_tile(module, r, p, storage)
            builder.call(tile, (data_v, data_index, data_x, args[7], data_out, args[11], args[12], args[13]))

        _choose(builder, args[8], MIX_ROWS, args[2], call)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def scores(
    typingctx, k, k_at, v, v_at, index, index_at, v_index_at, q, q_at, q_stride, rows, out, out_at, out_stride, width
):  # fmt: skip
    """out[r, i] = sum over d < width of q[r, d] k[index[i] + d], for 8 tokens i and any number of rows.

    The values of these tokens, v from `v_at` by the index from `v_index_at`, are only asked for: they are needed next.
    """
    i = types.int64
    signature = types.void(k, i, v, i, index, i, i, q, i, i, i, out, i, i, i)

    def codegen(context, builder, signature, args):
        storage = _storage(k)
        data_k = _at(builder, _data(context, builder, k, args[0]), args[1], _ELEMENT[storage])
        data_v = _at(builder, _data(context, builder, v, args[2]), args[3], _ELEMENT[storage])
        data_index = _data(context, builder, index, args[4])
        index_k, index_v = (_at(builder, data_index, at, _I64) for at in (args[5], args[6]))
        data_q = _at(builder, _data(context, builder, q, args[7]), args[8])
        data_out = _at(builder, _data(context, builder, out, args[11]), args[12])
        arguments = (data_k, data_v, index_k, index_v, data_q, args[9], args[10], data_out, args[13], args[14])
        builder.call(_scores(builder.module, storage), arguments)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def widened(typingctx, array, index):
    """One stored weight as a float32."""

    def codegen(context, builder, signature, args):
        storage = _storage(array)
        address = _at(builder, _data(context, builder, array, args[0]), args[1], _ELEMENT[storage])
        if storage == "float32":
            return _load(builder, address, _F32)
        if storage == "float16":
            return builder.fpext(builder.load(address, typ=ir.HalfType()), _F32)
        return builder.bitcast(builder.shl(builder.zext(_load(builder, address, _I16), _I32), _I32(16)), _F32)

    return types.float32(array, types.int64), codegen


@intrinsic
def narrow(typingctx, array, index, value):
    """array[index] = value in the array's storage format, rounded to the nearest, ties to even."""

    def codegen(context, builder, signature, args):
        storage = _storage(array)
        address = _at(builder, _data(context, builder, array, args[0]), args[1], _ELEMENT[storage])
        if storage == "float32":
            _store(builder, args[2], address)
        elif storage == "float16":
            half = builder.fptrunc(args[2], ir.HalfType())
            builder.store(builder.bitcast(half, _I16), address).align = 2
        else:
            bits = builder.bitcast(args[2], _I32)
            odd = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))
            rounded = builder.add(bits, builder.add(odd, _I32(0x7FFF)))
            # Rounding up could carry a NaN over into infinity, or a zero.
            kept = builder.select(builder.fcmp_unordered("uno", args[2], args[2]), _I32(0x7FC0 << 16), rounded)
            builder.store(builder.trunc(builder.lshr(kept, _I32(16)), _I16), address).align = 2
        return context.get_dummy_value()

    return types.void(array, types.int64, types.float32), codegen


@intrinsic
def pointer(typingctx, address, like):
    """A memory address as a pointer to what the array `like` holds; `like` is only looked at for its type."""
    kind = types.CPointer(like.dtype)

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(kind))

    return kind(types.int64, like), codegen


@intrinsic
def bits_to_float(typingctx, bits):
    """The float32 that these 32 bits are."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], _F32)

    return types.float32(types.int32), codegen


@intrinsic
def copy_out(typingctx, address, at, array, array_at, n):
    """Copy n float32 values of an array to `at` values after a memory address."""
    signature = types.void(types.int64, types.int64, array, types.int64, types.int64)

    def codegen(context, builder, signature, args):
        target = _at(builder, builder.inttoptr(args[0], _PTR), args[1])
        source = _at(builder, _data(context, builder, array, args[2]), args[3])
        function = _named(builder.module, "llvm.memcpy.p0.p0.i64", ir.VoidType(), _PTR, _PTR, _I64, ir.IntType(1))
        builder.call(function, (target, source, builder.mul(args[4], _I64(4)), ir.IntType(1)(0)))
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def get(typingctx, array, index):
    """array[index] for an index known to be inside.

    Indexing as Python means it, from the end for negative numbers, is a branch an element, and keeps LLVM from making
    vectors of a loop.
    """

    def codegen(context, builder, signature, args):
        return _load(builder, _at(builder, _data(context, builder, array, args[0]), args[1]), _F32)

    return types.float32(array, types.int64), codegen


@intrinsic
def put(typingctx, array, index, value):
    """array[index] = value for an index known to be inside."""

    def codegen(context, builder, signature, args):
        _store(builder, args[2], _at(builder, _data(context, builder, array, args[0]), args[1]))
        return context.get_dummy_value()

    return types.void(array, types.int64, types.float32), codegen
