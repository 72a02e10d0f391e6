"""Small machines and operators for tests of the planner."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cpembed.accelerator.lowering import OperatorPlan, operator_plan, template_plans
from cpembed.accelerator.matching import match_statement
from cpembed.accelerator.problem import OperatorProblem, PlanningError
from cpembed.accelerator.program import Program
from cpembed.accelerator.specification import Specification, Statement
from cpembed.accelerator.template import exact_template
from cpembed.hw.isa import (
    IMMEDIATE,
    InstructionSet,
    IsaInstruction,
    IsaMemory,
    OperandPlace,
    StrideSource,
    Synchronization,
)
from cpembed.ir.dtypes import numpy_dtype
from cpembed.ir.parser import parse_computation
from tests.unit.accelerator import machines
from tests.unit.accelerator.slow_machine import SlowMachine


def memory(name: str, rows: int, row_bytes: int) -> IsaMemory:
    return machines.rows_memory(name, rows, row_bytes)


def main(bytes_per_cycle: float = 16.0) -> IsaMemory:
    return machines.main(bytes_per_cycle=bytes_per_cycle, latency_cycles=20.0)


def place(
    memory: str,
    dtype: str,
    dimensions: str = "",
    rows: str = "",
    lanes: str = "",
    **strides: int | str,
) -> OperandPlace:
    sources = {k: StrideSource(v) if v in ("any", "dense") else v for k, v in strides.items()}
    return machines.place(memory, dtype, dimensions, rows=rows, lanes=lanes, strides=sources)


def instruction(
    name: str,
    unit: str,
    text: str,
    axes: Mapping[str, tuple[int, int]],
    places: Mapping[str, OperandPlace],
    *,
    accumulates: bool = True,
    cycles: Mapping[str, float] | None = None,
) -> IsaInstruction:
    terms = (cycles or {"1": 1.0}).items()
    polynomial = tuple(((k,) if k != "1" else (), v) for k, v in terms)
    return machines.instruction(
        name, unit, text, axes, places, accumulates=accumulates, cycles=polynomial
    )


def machine(
    name: str,
    memories: list[IsaMemory],
    instructions: list[IsaInstruction],
    synchronization: Synchronization = Synchronization.INTERLOCKED,
    channels: Sequence[tuple[str, str]] = (),
) -> InstructionSet:
    return machines.machine(
        name,
        memories,
        tuple(dict.fromkeys(i.unit for i in instructions)),
        instructions,
        synchronization=synchronization,
        channels=tuple(machines.channel(f"{a}_{b}", a, b) for a, b in channels),
    )


def systolic(
    rows: int = 64,
    sums: int = 32,
    lanes: int = 4,
    *,
    fixed: bool = False,
    registers: bool = False,
    variant: bool = True,
    bytes_per_cycle: float = 16.0,
) -> InstructionSet:
    """A machine with a scratchpad, accumulators and a store that shifts, like Gemmini."""
    low = lanes if fixed else 1
    tile = {"r": (low, lanes), "e": (low, lanes)}
    load = "load_stride" if registers else "any"
    store = "store_stride" if registers else "any"
    products = {"i": (low, lanes), "j": (low, lanes), "k": (low, lanes)}
    operands = {
        "A": place("scratchpad", "int8", "i k", "i", "k", i=1),
        "B": place("scratchpad", "int8", "k j", "k", "j", k=1),
        "C": place("accumulator", "int32", "i j", "i", "j", i=1),
    }
    memories = [
        main(bytes_per_cycle),
        memory("scratchpad", rows, lanes),
        memory("accumulator", sums, 4 * lanes),
    ]
    instructions = [
        instruction(
            "mvin",
            "load",
            "D[r,e] = S[r,e]",
            tile,
            {
                "D": place("scratchpad", "int8", "r e", "r", "e", r=1),
                "S": place("dram", "int8", "r e", r=load, e=1),
            },
            cycles={"1": 4, "r": 1},
        ),
        instruction(
            "mvin_sums",
            "load",
            "D[r,e] = S[r,e]",
            tile,
            {
                "D": place("accumulator", "int32", "r e", "r", "e", r=1),
                "S": place("dram", "int32", "r e", r=load, e=1),
            },
            cycles={"1": 4, "r": 1},
        ),
        instruction(
            "matmul",
            "execute",
            "C[i,j] += A[i,k] * B[k,j]",
            products,
            operands,
            cycles={"1": 2, "i": 1},
        ),
        instruction(
            "mvout",
            "store",
            "D[r,e] = S[r,e] >> 3",
            tile,
            {
                "D": place("dram", "int8", "r e", r=store, e=1),
                "S": place("accumulator", "int32", "r e", "r", "e", r=1),
            },
            cycles={"1": 4, "r": 1},
        ),
        instruction(
            "mvout_sums",
            "store",
            "D[r,e] = S[r,e]",
            tile,
            {
                "D": place("dram", "int32", "r e", r=store, e=1),
                "S": place("accumulator", "int32", "r e", "r", "e", r=1),
            },
            cycles={"1": 4, "r": 1},
        ),
    ]
    if variant:
        begin = next(i for i in instructions if i.name == "matmul")
        instructions.append(replace(begin, name="matmul_begin", accumulates=False))
    else:
        instructions.append(
            instruction(
                "clear",
                "execute",
                "C[i,j] = 0",
                {"i": (low, lanes), "j": (low, lanes)},
                {"C": place("accumulator", "int32", "i j", "i", "j", i=1)},
            )
        )
    if registers:
        memories += [machines.register(n, "int32") for n in ("load_stride", "store_stride")]
        instructions += [
            instruction(
                f"config_{name}",
                name.partition("_")[0],
                "R[] = v[]",
                {},
                {"R": place(name, "int32"), "v": place(IMMEDIATE, "int32")},
            )
            for name in ("load_stride", "store_stride")
        ]
    return machine("systolic", memories, instructions)


def execute(program: Program, inputs: Mapping[str, Any]) -> SlowMachine:
    """Execute a program on arrays, element by element."""
    specification = program.specification
    assert specification is not None
    arrays = {**specification.constants, **inputs}
    buffers = {n: t.buffer(arrays.get(n)) for n, t in program.tensors.items()}
    machine = SlowMachine(program, buffers)
    machine.run()
    return machine


def statement(
    text: str,
    dtypes: Mapping[str, str],
    extents: Mapping[str, int],
    *,
    accumulates: bool = False,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Statement:
    names = set(re.findall(r"([A-Za-z_]\w*)\[", text))
    shapes = shapes or {}
    computation = parse_computation(
        text,
        extents,
        dtypes={n: t for n, t in dtypes.items() if n in names},
        shapes=shapes,
        zero_outside=tuple(shapes),
    )
    return Statement(computation, accumulates)


def plans(specification: Specification, machine: InstructionSet) -> tuple[OperatorPlan, ...]:
    """Return the best plan of the first combination of matches that has one, and smaller ones."""
    matchings = [match_statement(s, machine).matches for s in specification.statements]
    refusal: PlanningError | None = None
    for matches in itertools.product(*matchings):
        try:
            best = operator_plan(OperatorProblem(specification, matches), machine)
        except PlanningError as error:
            refusal = refusal or error
            continue
        assert best is not None
        # Plans in fewer rows are of the same variant.
        return (best, *template_plans(exact_template(best.problem, machine))[1:])
    raise refusal or PlanningError("a statement has no match")


def random_arrays(specification: Specification, seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    operands = specification.operands
    return {
        name: generator.integers(-100, 100, operands[name].shape).astype(
            numpy_dtype(operands[name].dtype)
        )
        for name in specification.inputs
    }


def product(m: int, n: int, k: int, *, bias: bool = True, seed: int = 0) -> Specification:
    """A product of matrices, shifted to bytes."""
    dtypes = {"acc": "int32", "bias": "int32", "A": "int8", "B": "int8", "out": "int8"}
    generator = np.random.default_rng(seed)
    constants: dict[str, Any] = {"B": generator.integers(-100, 100, (k, n)).astype(np.int8)}
    statements = [
        statement(
            "acc[i,j] += A[i,k] * B[k,j]", dtypes, {"i": m, "j": n, "k": k}, accumulates=bias
        ),
        statement("out[i,j] = acc[i,j] >> 3", dtypes, {"i": m, "j": n}),
    ]
    if bias:
        statements.insert(0, statement("acc[i,j] = bias[j]", dtypes, {"i": m, "j": n}))
        constants["bias"] = generator.integers(-1000, 1000, n).astype(np.int32)
    return Specification("product", tuple(statements), ("A",), ("out",), constants)


def convolution(
    p: int, q: int, c: int, k: int, r: int, s: int, stride: int, pad: int, seed: int = 0
) -> Specification:
    """A convolution with padding, channels last, shifted to bytes."""
    dtypes = {"acc": "int32", "bias": "int32", "X": "int8", "W": "int8", "out": "int8"}
    h, w = (p - 1) * stride + r - 2 * pad, (q - 1) * stride + s - 2 * pad
    generator = np.random.default_rng(seed)
    outer = {"p": p, "q": q, "k": k}
    statements = (
        statement("acc[p,q,k] = bias[k]", dtypes, outer),
        statement(
            f"acc[p,q,k] += X[{stride}*p+r-{pad}, {stride}*q+s-{pad}, c] * W[r,s,c,k]",
            dtypes,
            outer | {"r": r, "s": s, "c": c},
            accumulates=True,
            shapes={"X": (h, w, c)},
        ),
        statement("out[p,q,k] = acc[p,q,k] >> 3", dtypes, outer),
    )
    constants = {
        "W": generator.integers(-100, 100, (r, s, c, k)).astype(np.int8),
        "bias": generator.integers(-1000, 1000, k).astype(np.int32),
    }
    return Specification("convolution", statements, ("X",), ("out",), constants)
