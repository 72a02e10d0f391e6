"""Programs that the planner makes of small layers, for tests of proofs and of the executor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.operator_search import OperatorSearch
from cpembed.accelerator.program import Program
from cpembed.accelerator.specification import Specification, Statement
from cpembed.hw.isa import InstructionSet
from cpembed.ir.dtypes import numpy_dtype
from tests.unit.accelerator.toys import statement

DTYPES = {
    "int8": "ABEFY", "int32": "STUVb", "float32": "XGHPMQ", "bfloat16": "CDIJKL",
}  # fmt: skip
"""Element type of each tensor, by its letter."""

BYTES = "Y[i,j] = int8(S[i,j] * 0.0078125)"
SHIFTED = (
    "T[i,j] = S[i,j] >> 7", "U[i,j] = max(T[i,j], -128)", "V[i,j] = min(U[i,j], 127)",
    "Y[i,j] = cast(V[i,j], int8)",
)  # fmt: skip
SMALLER = (
    "S[i,j] = int8(A[i,j] * 0.5)", "S[i,j] += int8(B[i,j] * 0.25)",
    "Y[i,j] = int8(max(S[i,j], 0) * 1.0)",
)  # fmt: skip


def _windows(statements: Sequence[str]) -> tuple[str, ...]:
    """Return statements over matrices as statements over images."""
    return tuple(s.replace("i,j", "p,q,k") for s in statements)


LAYERS: Mapping[str, Sequence[tuple[str, ...]]] = {
    "gemm": [
        ("S[i,j] += A[i,k] * B[k,j]", BYTES),
        ("S[i,j] += A[i,k] * B[j,k]", *SHIFTED),
        ("S[i,j] += A[i,k] * B[k,j]",),
        ("K[i,j] += C[i,k] * D[k,j]",),
    ],
    "gemm with bias": [
        ("S[i,j] = b[j]", "S[i,j] += A[i,k] * B[k,j]", BYTES),
        ("S[i,j] = b[j]", "S[i,j] += A[i,k] * B[j,k]", *SHIFTED),
    ],
    "convolution": [
        (
            "S[p,q,k] = b[k]",
            "S[p,q,k] += A[2*p+r-1,2*q+s-1,c] * B[k,r,s,c]",
            *_windows(["Y[i,j] = int8(max(S[i,j] * 0.0078125, 0))"]),
        ),
        (
            "S[p,q,k] = b[k]",
            "S[p,q,k] += A[2*p+r-1,2*q+s-1,c] * B[k,r,s,c]",
            *_windows(["Y[i,j] = int8(max(S[i,j], 0) * 0.0078125)"]),
        ),
        (
            "S[p,q,k] = b[k]",
            "S[p,q,k] += A[2*p+r-1,2*q+s-1,c] * B[k,r,s,c]",
            *_windows(SHIFTED),
        ),
    ],
    "depthwise": [
        (
            "S[p,q,k] = b[k]",
            "S[p,q,k] += A[p+r-1,q+s-1,k] * B[r,s,k]",
            *_windows([BYTES]),
        ),
        ("S[p,q,k] += A[p+r-1,q+s-1,k] * B[r,s,k]", *_windows([BYTES])),
    ],
    "pool": [("Y[p,q,k] max= A[2*p+r-1,2*q+s-1,k]",)],
    "residual": [
        ("Y[i,j] = int8(max(A[i,j] * 0.5 + B[i,j] * 0.25, 0))",),
        SMALLER,
        ("Y[i,j] = int8(A[i,j] + B[i,j])",),
    ],
    "softmax": [
        (
            "M[i] max= X[i,j]", "G[i,j] = exp(X[i,j] - M[i])", "H[i] += G[i,j]",
            "P[i,j] = G[i,j] / H[i]",
        ),
        ("I[i,j] = exp(C[i,j])", "J[i] += I[i,j]", "K[i,j] = I[i,j] / J[i]"),
    ],
}  # fmt: skip
"""Statements of each layer, in forms of which a machine has instructions for one."""

EXTENTS = {"p": 4, "q": 5, "r": 3, "s": 3, "c": 8}


def specification(
    name: str, statements: Sequence[str], extents: Mapping[str, int]
) -> Specification:
    """Return the specification of statements; weights and biases are constants."""
    dtypes = {letter: dtype for dtype, letters in DTYPES.items() for letter in letters}
    window = next((s for s in statements if "+r" in s), "")
    image = _image(window, extents) if window else ()
    parsed: list[Statement] = []
    begun = set[str]()
    for text in statements:
        axes = set(re.findall(r"[a-z]", " ".join(re.findall(r"\[(.*?)\]", text))))
        output = text[0]
        shapes = {"A": image} if text == window else {}
        used = {axis: extents[axis] for axis in extents if axis in axes}
        parsed.append(statement(text, dtypes, used, accumulates=output in begun, shapes=shapes))
        begun.add(output)
    read = {o.tensor for s in parsed for o in s.reads} - begun
    operands = {o.tensor: o for s in parsed for o in s.computation.operands}
    random = np.random.default_rng(7)
    constants: dict[str, NDArray[Any]] = {}
    if len({"B", "b"} & read) and "residual" not in name:
        constants = {
            letter: random.integers(-99, 100, operands[letter].shape).astype(
                numpy_dtype(operands[letter].dtype)
            )
            for letter in ("B", "b")
            if letter in read
        }
    inputs = tuple(sorted(read - set(constants)))
    return Specification(name, tuple(parsed), inputs, (parsed[-1].output.tensor,), constants)


def _image(text: str, extents: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of the image whose windows a statement reads, with a margin of one."""
    step = 2 if "2*p" in text else 1
    depth = extents["c"] if ",c]" in text else extents["k"]
    return (step * extents["p"], step * extents["q"], depth)


def planned(
    name: str, machine: InstructionSet, extents: Mapping[str, int]
) -> tuple[Specification, tuple[Program, ...]] | str:
    """Return the programs of the first form of a layer that has some, or why none has."""
    reason = ""
    for statements in LAYERS[name]:
        layer = specification(name, statements, extents)
        plans = OperatorSearch(layer, machine).plans()
        if not isinstance(plans, str):
            return layer, tuple(plan.program() for plan in plans)
        reason = reason or plans
    return reason


def layers(machine: InstructionSet, extents: Mapping[str, int]) -> Iterator[tuple[str, Program]]:
    """Yield the programs of all layers that a machine can execute, with the layer's name."""
    for name in LAYERS:
        result = planned(name, machine, extents)
        if not isinstance(result, str):
            for program in result[1]:
                yield name, program
