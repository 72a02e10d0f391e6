"""Rows of products of warp groups (``wgmma``) and of their registers.

From the PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions" and "setmaxnreg".
"""

from __future__ import annotations

from cpembed.errors import LoweringError
from cpembed.targets.cuda.emulator.ptx.body import Call
from cpembed.targets.cuda.emulator.ptx.syntax import Immediate, Vector
from cpembed.targets.cuda.emulator.ptx.table import instruction, required, runtime_call

FACTORS_IN_REGISTERS = "ExecutorPlaces{ptx_p"
"""Beginning of an argument that only products have whose first factor is in registers; a launch of
a text with one checks what a fence orders."""

_FLOATS_8 = ("e4m3", "e5m2")
_PRODUCTS: dict[tuple[str, int], tuple[tuple[str, str], ...]] = {
    ("f32", 16): (("f16", "f16"), ("bf16", "bf16")),
    ("f16", 16): (("f16", "f16"),),
    ("f32", 32): tuple((a, b) for a in _FLOATS_8 for b in _FLOATS_8),
    ("f16", 32): tuple((a, b) for a in _FLOATS_8 for b in _FLOATS_8),
    ("s32", 32): tuple((a, b) for a in ("s8", "u8") for b in ("s8", "u8")),
}
"""Element types of the factors by type of the sums and depth."""

_SHAPES = tuple(f"m64n{n}k{k}" for k in (16, 32) for n in range(8, 257, 8))
_FACTORS = ("f16", "bf16", *_FLOATS_8, "s8", "u8")


def _columns(shape: str, sums: str) -> tuple[int, int]:
    """Return columns and depth of a shape."""
    n, k = map(int, shape.removeprefix("m64n").split("k"))
    if sums == "s32" and n > 24 and n % 16:
        raise LoweringError(f"{shape}: more than 24 columns of integers are a multiple of 16")
    return n, k


@instruction("wgmma.mma_async.sync.aligned", required("shape", *_SHAPES),
             required("d", "f32", "f16", "s32"), required("a", *_FACTORS),
             required("b", *_FACTORS), operands=tuple(range(4, 9)))  # fmt: skip
def _multiply(call: Call) -> str:
    sums = call["d"]
    n, k = _columns(call["shape"], sums)
    if (call["a"], call["b"]) not in _PRODUCTS.get((sums, k), ()):
        raise LoweringError(f"no product of {call['a']} and {call['b']} in {sums} of depth {k}")
    wide = call["a"] in ("f16", "bf16")
    from_registers = isinstance(call.operands[1], Vector)
    # d, a, b, scale-d; -1 or 1 for each factor of floats; then which of them are transposed.
    transposes = (1 if from_registers else 2) if wide else 0
    constants = 0 if sums == "s32" else 2 + transposes
    call.require_operands(4 + constants)
    values = [call.constant(4 + number) for number in range(constants)]
    scales = values[:2] or ["1", "1"]
    # The registers of A have one order only.
    transposed = ["0", "0", *values[2:]][-2:]
    count = n // 4 if sums == "f16" else n // 2
    kind = "f32" if sums == "f32" else "b32"
    registers = [call.reference(item, kind) for item in call.items(0, count)]
    words, places, a = "", "", "0"
    if from_registers:
        words = ", ".join(call.values(1, "b32", 4))
        places = ", ".join(call.place(item) for item in call.items(1, 4))
    else:
        a = call.value(1, "b64")
    return (
        f"{call.function} executor::multiply_group(f_, ExecutorWords{{{words}}}, "
        f"ExecutorPlaces{{{places}}}, {'true' if from_registers else 'false'}, "
        f"{a}, {call.value(2, 'b64')}, "
        f"{_scale(call)}, {', '.join([*scales, *transposed, *registers])});"
    )


def _scale(call: Call) -> str:
    """Return whether the sums are added to."""
    operand = call.operands[3]
    if isinstance(operand, Immediate):
        return f"({operand.text}) != 0"
    return call.condition(operand)


runtime_call("wgmma.fence.sync.aligned", "wgmma_fence")
runtime_call("wgmma.commit_group.sync.aligned", "wgmma_commit")
runtime_call("wgmma.wait_group.sync.aligned", "wgmma_wait", arguments=["constant"])


@instruction("setmaxnreg", required("change", "inc", "dec"), required("sync", "sync"),
             required("aligned", "aligned"), required("type", "u32"), operands=1)  # fmt: skip
def _set_registers(call: Call) -> str:
    increases = "true" if call["change"] == "inc" else "false"
    return call.invoke("setmaxnreg", call.constant(0), increases)
