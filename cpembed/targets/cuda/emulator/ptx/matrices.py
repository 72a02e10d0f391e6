"""Rows of ``ldmatrix``, ``mma.sync`` and WMMA, which the 32 lanes of a warp execute together."""

from __future__ import annotations

from cpembed.errors import LoweringError
from cpembed.targets.cuda.emulator.ptx.body import SPACES, Call
from cpembed.targets.cuda.emulator.ptx.table import instruction, optional, required

FLOATS_8 = ("e4m3", "e5m2")

PRODUCTS: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("m16n8k8", "f32"): (("f16", "f16"), ("bf16", "bf16"), ("tf32", "tf32")),
    ("m16n8k8", "f16"): (("f16", "f16"),),
    ("m16n8k16", "f32"): (("f16", "f16"), ("bf16", "bf16")),
    ("m16n8k16", "f16"): (("f16", "f16"),),
    ("m16n8k4", "f32"): (("tf32", "tf32"),),
    ("m16n8k16", "s32"): tuple((a, b) for a in ("s8", "u8") for b in ("s8", "u8")),
    ("m16n8k32", "s32"): tuple((a, b) for a in ("s8", "u8") for b in ("s8", "u8")),
    ("m16n8k32", "f32"): tuple((a, b) for a in FLOATS_8 for b in FLOATS_8),
    ("m16n8k32", "f16"): tuple((a, b) for a in FLOATS_8 for b in FLOATS_8),
}
"""Element types of the factors by shape and type of the sums: those of ``native/matrices.h``."""

SHAPES = {"m16n16k16": (16, 16, 16), "m32n8k16": (32, 8, 16), "m8n32k16": (8, 32, 16)}
"""Rows, columns and depth of WMMA."""

_BYTES = {
    "f16": 2, "bf16": 2, "tf32": 4, "s8": 1, "u8": 1, "e4m3": 1, "e5m2": 1, "f32": 4, "s32": 4,
}  # fmt: skip
_FACTORS = ("f16", "bf16", "tf32", "s8", "u8", *FLOATS_8)
_SUMS = ("f32", "f16", "s32")


def _result(call: Call, place: int, kind: str, count: int) -> str:
    """Return the assignments of ``w_`` to a vector of registers."""
    return " ".join(
        call.assign(
            item,
            kind,
            f"w_.word[{number}]" if kind != "f32" else f"executor::bits<float>(w_.word[{number}])",
        )
        for number, item in enumerate(call.items(place, count))
    )


def _words(call: Call, place: int, kind: str, count: int, size: int) -> str:
    """Return a vector of registers as an aggregate of ``size`` words."""
    values = call.values(place, kind, count)
    if kind == "f32":
        values = [f"executor::bits<uint32_t>({value})" for value in values]
    name = "ExecutorWords" if size == 4 else "ExecutorFragment"
    return f"{name}{{{{{', '.join(values)}}}}}"


@instruction(
    "ldmatrix.sync.aligned.m8n8",
    required("count", "x1", "x2", "x4"),
    optional("transposed", "trans"),
    optional("space", "shared", "shared::cta"),
    required("type", "b16"),
    operands=2,
)
def _load_matrices(call: Call) -> str:
    count = int(call["count"][1:])
    return (
        f"{call.function} const ExecutorWords w_ = executor_load_matrices(f_, "
        f"{SPACES[call['space']]}, {call.address(1, call['space'])}, {count}, "
        f"{call.flag('transposed')}); "
        f"{_result(call, 0, 'b32', count)}"
    )


@instruction("stmatrix.sync.aligned.m8n8", required("count", "x1", "x2", "x4"),
             optional("transposed", "trans"), optional("space", "shared", "shared::cta"),
             required("type", "b16"), operands=2)  # fmt: skip
def _store_matrices(call: Call) -> str:
    count = int(call["count"][1:])
    return (
        f"{call.function} executor_store_matrices(f_, {SPACES[call['space']]}, "
        f"{call.address(0, call['space'])}, {_words(call, 1, 'b32', count, 4)}, {count}, "
        f"{call.flag('transposed')});"
    )


@instruction(
    "mma.sync.aligned",
    required("shape", *sorted({shape for shape, _ in PRODUCTS})),
    required("a_layout", "row"),
    required("b_layout", "col"),
    optional("saturated", "satfinite"),
    required("d", *_SUMS),
    required("a", *_FACTORS),
    required("b", *_FACTORS),
    required("c", *_SUMS),
    operands=4,
)
def _multiply(call: Call) -> str:
    shape, sums = call["shape"], call["d"]
    if (call["a"], call["b"]) not in PRODUCTS.get((shape, sums), ()):
        raise LoweringError(f"{shape} has no product of {call['a']} and {call['b']} in {sums}")
    _require_equal_sums(call)
    depth = int(shape.rpartition("k")[2])
    kind, count = ("f32", 4) if sums == "f32" else ("b32", 2 if sums == "f16" else 4)
    first = 16 * depth * _BYTES[call["a"]] // 128
    second = 8 * depth * _BYTES[call["b"]] // 128
    run = f"executor_mma_{shape}_{sums}_{call['a']}_{call['b']}"
    return (
        f"{call.function} const ExecutorWords w_ = executor_multiply(f_, {run}, "
        f"{_words(call, 1, 'b32', first, 4)}, {_words(call, 2, 'b32', second, 4)}, "
        f"{_words(call, 3, kind, count, 4)}); {_result(call, 0, kind, count)}"
    )


def _require_equal_sums(call: Call) -> None:
    if call["c"] != call["d"]:
        raise LoweringError(f"sums of type {call['c']} for results of type {call['d']}")
    if call["saturated"]:
        raise LoweringError("saturated sums are not emulated")


_LAYOUTS = ("row", "col")
_MEMORY = optional("space", "global", "shared", "shared::cta")


def _fragment_registers(operand: str, shape: str, kind: str) -> int:
    """Return the number of 32-bit registers of a WMMA fragment."""
    m, n, k = SHAPES[shape]
    if operand in "ab" and kind == "f16":
        # PTX ISA, wmma: eight registers of f16x2 in every shape, some elements twice.
        return 8
    elements = {"a": m * k, "b": k * n}.get(operand, m * n)
    return elements * _BYTES[kind] // 128


for _operand in "abc":

    @instruction(
        f"wmma.load.{_operand}.sync.aligned",
        required("layout", *_LAYOUTS),
        required("shape", *SHAPES),
        _MEMORY,
        required("type", *(_SUMS if _operand == "c" else ("f16", "bf16", "s8", "u8"))),
        operands=(2, 3),
    )
    def _load_fragment(call: Call, operand: str = _operand) -> str:
        kind, count = call["type"], _fragment_registers(operand, call["shape"], call["type"])
        run = f"executor_wmma_load_{operand}_{call['shape']}_{kind}"
        return (
            f"{call.function} const ExecutorFragment w_ = executor_load_fragment(f_, {run}, "
            f"{SPACES[call['space']]}, {call.address(1, call['space'])}, {_stride(call)}, "
            f"{_by_columns(call['layout'])}); "
            f"{_result(call, 0, 'f32' if kind == 'f32' else 'b32', count)}"
        )


@instruction("wmma.store.d.sync.aligned", required("layout", *_LAYOUTS), required("shape", *SHAPES),
             _MEMORY, required("type", *_SUMS), operands=(2, 3))  # fmt: skip
def _store_fragment(call: Call) -> str:
    kind, count = call["type"], _fragment_registers("d", call["shape"], call["type"])
    run = f"executor_wmma_store_d_{call['shape']}_{kind}"
    registers = _words(call, 1, "f32" if kind == "f32" else "b32", count, 8)
    return (
        f"{call.function} executor_store_fragment(f_, {run}, {SPACES[call['space']]}, "
        f"{call.address(0, call['space'])}, {registers}, {_stride(call)}, "
        f"{_by_columns(call['layout'])});"
    )


def _by_columns(layout: str) -> str:
    return "true" if layout == "col" else "false"


def _stride(call: Call) -> str:
    """Return the leading dimension in elements; 0 stands for that of a dense matrix."""
    return call.value(2, "s32") if len(call.operands) == 3 else "0"


@instruction(
    "wmma.mma.sync.aligned",
    required("a_layout", *_LAYOUTS),
    required("b_layout", *_LAYOUTS),
    required("shape", *SHAPES),
    required("d", *_SUMS),
    optional("a", "bf16", "s8", "u8"),
    optional("b", "bf16", "s8", "u8"),
    required("c", *_SUMS),
    optional("saturated", "satfinite"),
    operands=4,
)
def _multiply_fragments(call: Call) -> str:
    _require_equal_sums(call)
    sums, factor = call["d"], call["a"] or "f16"
    expected = {"f16": ("f32", "f16"), "bf16": ("f32",), "s8": ("s32",), "u8": ("s32",)}
    if call["a"] != call["b"] or sums not in expected[factor]:
        raise LoweringError(f"no product of {factor} and {call['b'] or 'f16'} in {sums}")
    shape, kind = call["shape"], "f32" if sums == "f32" else "b32"
    counts = [_fragment_registers(*parts) for parts in
              (("a", shape, factor), ("b", shape, factor), ("d", shape, sums))]  # fmt: skip
    run = f"executor_wmma_mma_{shape}_{sums}_{factor}"
    layouts = f"{_by_columns(call['a_layout'])}, {_by_columns(call['b_layout'])}"
    return (
        f"{call.function} const ExecutorFragment w_ = executor_multiply_fragments(f_, {run}, "
        f"{layouts}, {_words(call, 1, 'b32', counts[0], 8)}, "
        f"{_words(call, 2, 'b32', counts[1], 8)}, "
        f"{_words(call, 3, kind, counts[2], 8)}); {_result(call, 0, kind, counts[2])}"
    )
