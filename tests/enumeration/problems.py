"""Random problems that are small enough to enumerate, of every kind that decides something."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from typing import Any

from cpembed.errors import WorkloadError
from cpembed.hw.instruction import (
    Instruction,
    InstructionAxis,
    OperandMemory,
    StrideRule,
    TileDimension,
)
from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation

PRODUCTS = (
    "C[x,y] += A[x,z] * B[z,y]",
    "C[x,y] += A[x,z] * B[y,z]",
    "C[y] += A[z] * B[y,z]",
    "C[] += A[z] * B[z]",
    "C[x] += A[x,z] * B[x,z]",
    "C[x,y] += A[x] * B[y]",
    "C[x] += A[x,z,w] * B[w,z]",
)
WINDOW_UNITS = (
    "C[x] += A[x+z] * B[z]",
    "C[x,y] += A[x+z] * B[z,y]",
    "C[x,y] += A[y,x+z] * B[y,z]",
    "C[x] += A[x+z,w] * B[z,w]",
    "C[x,w] += A[x+z,w+v] * B[z,v]",
    "C[x] += A[x-z+{z}] * B[z]",
)
LAYERS = (
    "O[q] += I[{t}*q+{d}*s] * W[s]",
    "O[k,q] += I[c,{t}*q+{d}*s] * W[k,c,s]",
    "O[p,q] += I[{t}*p+r,q+{d}*s] * W[r,s]",
    "O[k,p] += I[p+{d}*r] * W[k,r]",
    "O[c,q] += I[c,{t}*q+s] * W[c,s]",
    "O[p,q] += I[p+r,q,c] * W[r,c]",
)
WINDOW_SETS = ("in_place", "in_place_padded", "in_place_padded")


@dataclass(frozen=True)
class Kind:
    """Workloads and the statements of instructions that they go with.

    ``{t}`` and ``{d}`` are a stride and a dilation; ``{p}`` is the last point of an axis p.
    """

    workloads: tuple[str, ...]
    instructions: tuple[str, ...] = PRODUCTS
    steps: tuple[int, ...] = (1, 1, 2)
    extents: tuple[int, ...] = (1, 2, 2, 3, 4)
    units: tuple[int, ...] = (1, 2, 2, 3, 4)
    configurable: float = 0.15
    mixed_types: bool = False
    sets: tuple[str, ...] = ()
    """Shipped sets that decide something here; all of them by default."""


COMPLEX = (
    "R[{o},0] += A[{a},0]*B[{b},0] - A[{a},1]*B[{b},1]; "
    "R[{o},1] += A[{a},0]*B[{b},1] + A[{a},1]*B[{b},0]"
)
TWO = "C[{o}] += A[{a}] * B[{b}]; D[{o}] += A[{a}] * E[{b}]"

KINDS: dict[str, Kind] = {
    "products": Kind(
        (
            "O[m,n] += I[m,k] * W[k,n]",
            "O[m,n] += I[k,m] * W[n,k]",
            "O[m] += I[m,k,l] * W[l,k]",
            "O[m,n] += I[m] * W[n]",
            "O[m,n] += I[2*m,k] * W[k,n+1]",
        )
    ),
    "windows": Kind(LAYERS, sets=(*WINDOW_SETS, "strict", "relaxed", "cut_boxes", "complete")),
    "strides": Kind(LAYERS, steps=(2, 3), units=(2, 2, 4)),
    "negative": Kind(
        (
            "O[q] += I[q-s+{s}] * W[s]",
            "O[k,q] += I[c,{t}*q-{d}*s+{d}*{s}] * W[k,c,s]",
            "O[p,k] += I[{p}-p] * W[k]",
            "O[p] += I[{p}-p,k] * W[k]",
            "O[p,q] += I[p-q+{q},c] * W[c]",
        )
    ),
    "maxima": Kind(
        (
            "O[p] max= I[p,r]",
            "O[p] max= I[{t}*p+{d}*r]",
            "O[p,q] max= I[p+r,q+s]",
            "O[c,p] max= I[c,p,r,s]",
            "O[p,q] max= I[p,q,r+s]",
        ),
        ("C[x] max= A[x,z]", "C[x] max= A[z,x]", "C[] max= A[z]", "C[x,y] max= A[y,x]"),
    ),
    "ones": Kind(
        (*LAYERS, "O[n,k,p] += I[n,c,p+r] * W[k,c,r]"),
        extents=(1, 1, 1, 2, 3),
        units=(1, 2, 4),
        sets=(*WINDOW_SETS, "strict_padded", "strict_padded", "relaxed", "boxes", "flattened"),
    ),
    "sums": Kind(
        (
            "O[k] += I[d+{t}*e] * W[k,d,e]",
            "O[k,p] += I[p,c+r,d] * W[k,c,r,d]",
            "O[p,q] += I[{t}*p+q,c] * W[c]",
            "O[p,q] = I[{t}*p+q] * W[q]",
            "O[m,n] += I[m+{t}*n] * W[]",
            "O[2*p+q] = I[p,q] * W[q]",
        ),
        (*PRODUCTS, "C[x] = A[x] * B[x]", "C[x,y] = A[x,y] * B[y]", "C[x] += A[x] * B[]"),
        extents=(1, 2, 2, 3),
        units=(2, 2, 3, 4),
    ),
    "fused": Kind(
        (
            "O[k] += I[c,s] * W[k,c,s]",
            "O[k,q] += I[c,q+s] * W[k,c,s]",
            "O[n,q] += I[n,q,c] * W[c]",
            "O[k] += I[c,d+e] * W[k,c,d,e]",
            "O[k,p] += I[p+{t}*r,q] * W[k,r,q]",
            "O[p,q] += I[2*p+r,q+s] * W[r,s]",
            "O[m,n,l] += I[m,k,l] * W[k,n]",
            "O[p,q] max= I[p,q,r]",
            "O[n,q] max= I[n,q+s]",
            "O[2*p+q,p] = I[p,q] * W[q,p]",
            "O[k] += I[d+e,d] * W[k]",
        ),
        (
            *PRODUCTS,
            "C[x] max= A[x,z]",
            "C[x,y] max= A[x,y]",
            "C[x] = A[x] * B[x]",
            "C[x] += A[z] * B[x]",
        ),
        steps=(1,),
        extents=(2, 2, 3, 4, 5),
        units=(1, 2, 4, 4, 8),
        sets=("fused", "fused", "flattened", "complete"),
    ),
    "configurable": Kind(
        (
            "O[m,n] += I[m,k] * W[k,n]",
            "O[k,q] += I[c,q+s] * W[k,c,s]",
            "O[m] += I[m,k] * W[k]",
            "O[m,n] += I[m] * W[n]",
        ),
        configurable=0.8,
        units=(2, 4, 4),
    ),
    "statements": Kind(
        (
            COMPLEX.format(o="m", a="m,k", b="k"),
            "; ".join(reversed(COMPLEX.format(o="m", a="m,k", b="k").split("; "))),
            COMPLEX.format(o="m,n", a="m,k", b="n,k"),
            COMPLEX.format(o="m", a="m+k", b="k"),
            TWO.format(o="m", a="m,k", b="k"),
            "; ".join(reversed(TWO.format(o="m,n", a="m,k", b="k,n").split("; "))),
        ),
        (
            COMPLEX.format(o="x", a="x,z", b="z"),
            COMPLEX.format(o="x,y", a="x,z", b="y,z"),
            TWO.format(o="x", a="x,z", b="z"),
            TWO.format(o="x,y", a="x,z", b="z,y"),
        ),
        extents=(1, 2, 2, 3),
        units=(1, 2, 2),
    ),
    "read_twice": Kind(
        (
            "O[i] += I[i,0] * W[k,0] + I[i,1] * W[k,1]",
            "O[i] = max(I[i], I[i+1])",
            "O[i] = max(I[i+1], I[i])",
            "O[i,k] = max(I[k,i], I[k,i+{t}])",
            "O[i] = I[i] * I[i]",
            "O[i] += I[i,k] * I[i,k]",
            "O[i] += I[i+k] * I[i]",
        ),
        (
            "C[x] += A[x,0] * B[z,0] + A[x,1] * B[z,1]",
            "C[x] = max(A[x], A[x+1])",
            "C[x] = max(A[x], B[x])",
            "C[x] = A[x] * B[x]",
            "C[x] = A[x] * A[x]",
            "C[x] += A[x,z] * B[x,z]",
            "C[x] += A[x,z] * A[x,z]",
        ),
    ),
    "window_units": Kind(
        (
            "O[p] += I[{t}*p+{d}*c] * W[c]",
            "O[k,p] += I[p+c] * W[c,k]",
            "O[k,p] += I[k,{t}*p+{d}*c] * W[k,c]",
            "O[p] += I[p+c,k] * W[c,k]",
            "O[p,q] += I[p+r,q+{d}*s] * W[r,s]",
            "O[p] += I[p-c+{c}] * W[c]",
            "O[n,p] += I[n+p+c] * W[c]",
        ),
        WINDOW_UNITS,
        units=(1, 2, 2, 3),
    ),
    "types": Kind(
        (
            "O[m,n] += I[m,k] * W[k,n]",
            "O[m] += I[m,k] * W[m,k]",
            "O[k,q] += I[c,q+s] * W[k,c,s]",
        ),
        ("C[] += A[z] * B[z]", "C[x] += A[x,z] * B[x,z]", "C[x,y] += A[x] * B[y]", PRODUCTS[1]),
        mixed_types=True,
        sets=("complete", "boxes", "cut_boxes", "relaxed", "strict_padded"),
    ),
    "other_forms": Kind(
        (
            "O[m] += abs(I[m,k] - W[k])",
            "O[m] += I[m,k]",
            "O[m,n] += (I[m,k] + V[n,k]) * W[k]",
            "O[m] += I[m+k]",
        ),
        ("C[x] += abs(A[x,z] - B[z])", "C[x] += A[x,z]", "C[x,y] += (A[x,z] + D[y,z]) * B[z]"),
    ),
}

MOST_OPERATIONS, LARGEST_DOMAIN = 16, 400
"""Points of an instruction, and of a workload with what a tile may pad it by."""


def random_problem(rng: random.Random, kind: Kind) -> tuple[Computation, Instruction]:
    """A workload and an instruction whose graphs may agree."""
    while True:
        workload = _workload(rng, kind)
        instruction = _instruction(rng, kind)
        if workload is None or instruction is None:
            continue
        if _shape(workload) == _shape(instruction.computation):
            return workload, instruction


def _shape(computation: Computation) -> object:
    """What must be equal for the graphs to agree, in rough terms."""
    return sorted(
        (s.reduction or "", re.sub(r"[A-Za-z_]+\[[^]]*\]", "", str(s.value)))
        for s in computation.statements
    )


def _filled(rng: random.Random, text: str, kind: Kind, extents: dict[str, int]) -> str:
    last = {name: extent - 1 for name, extent in extents.items()}
    return text.format(**{**last, "t": rng.choice(kind.steps), "d": rng.choice(kind.steps)})


def _axes(text: str) -> list[str]:
    plain = re.sub(r"\{\w+\}|[a-z]{2,}=?", "", text)
    return sorted(set(re.findall(r"[a-z]", plain)))


def _workload(rng: random.Random, kind: Kind) -> Computation | None:
    text = rng.choice(kind.workloads)
    extents = {name: rng.choice(kind.extents) for name in _axes(text)}
    try:
        workload = parse_computation(_filled(rng, text, kind, extents), extents, name="workload")
    except WorkloadError:  # two points may store one element
        return None
    if kind.mixed_types:
        types = {operand.name: rng.choice(["int8", "uint8"]) for operand in workload.inputs}
        workload = workload.with_dtypes({**types, workload.output.name: "int32"})
    return workload if workload.macs <= LARGEST_DOMAIN else None


def _instruction(rng: random.Random, kind: Kind) -> Instruction | None:
    text = rng.choice(kind.instructions)
    extents = {name: rng.choice(kind.units) for name in _axes(text)}
    if math.prod(extents.values()) > MOST_OPERATIONS:
        return None
    filled = _filled(rng, text, kind, extents)
    computation = parse_computation(filled, extents, name="instruction")
    types = {operand.name: (operand.dtype,) for operand in computation.operands}
    if kind.mixed_types:
        choices = (("int8",), ("uint8",), ("int8", "uint8"))
        types = {operand.name: rng.choice(choices) for operand in computation.inputs}
        types[computation.output.name] = ("int32",)
        computation = computation.with_dtypes({name: first for name, (first, *_) in types.items()})
    indices = [i for a in (*computation.reads, *computation.stores) for i in a.index]
    shortenable = {
        name
        for name in extents
        if all(i.single_iterator == name for i in indices if name in i.iterators)
    }
    axes: list[InstructionAxis] = []
    for axis in computation.axes:
        if axis.name in shortenable and rng.random() < kind.configurable:
            step = rng.choice([s for s in (1, 2) if axis.extent % s == 0])
            least = rng.choice(range(step, axis.extent + 1, step))
            axes.append(InstructionAxis(axis.name, least, axis.extent, step))
        else:
            axes.append(InstructionAxis(axis.name, axis.extent, axis.extent))
    memory = {o.name: _memory(rng, computation, o.name) for o in computation.operands}
    if kind.mixed_types and rng.random() < 0.6:
        # Operands that only their types can tell apart.
        memory = {name: _plain(side) for name, side in memory.items()}
    return Instruction("instruction", tuple(axes), computation, types, memory)


def _memory(rng: random.Random, computation: Computation, operand: str) -> OperandMemory:
    accesses = computation.access_maps[operand]
    axes = sorted({name for a in accesses for index in a.index for name in index.iterators})
    rng.shuffle(axes)
    strides = {name: StrideRule.ANY for name in axes if rng.random() < 0.5}
    tile = tuple(TileDimension(name) for name in axes)
    contiguous = tuple(sorted({part.axis for part in tile if rng.random() < 0.3}))
    alignment = rng.choice([1, 1, 1, 16])
    return OperandMemory("memory", tile, strides, alignment, contiguous=contiguous)


def _plain(memory: OperandMemory) -> OperandMemory:
    tile = tuple(sorted(memory.tile, key=lambda part: part.axis))
    return OperandMemory(memory.scope, tile)


def random_tables(rng: random.Random) -> dict[str, dict[str, Any]]:
    """The tables of a set that is not shipped: other parameters, and constraints left out."""
    tables: dict[str, dict[str, Any]] = {
        "dataflow": {"commute": rng.random() < 0.5},
        "all_different": {"elements": rng.choice(["none", "along_axes", "all"])},
        "padding": {"axes": rng.choice([[], "all", "all", ["k", "q", "p"]])},
    }
    if rng.random() < 0.3:
        tables["padding"]["growth"] = rng.choice([1.5, 2.0])
    if rng.random() < 0.3:
        tables["padding"]["below"] = 3
    if rng.random() < 0.15:
        images = rng.choice(["operations", "operands", "all"])
        tables["domain_bound"] = {"bound": rng.choice([2, 3]), "images": images}
    if rng.random() < 0.15:
        tables["contiguous"] = {}
    if rng.random() < 0.5:
        tables["hyper_rectangle"] = {}
        if rng.random() < 0.8:
            tables["fixed_origin"] = {}
        if rng.random() < 0.6:
            tables["dense"] = {"stencil_stride": rng.choice(["one", "memory"])}
        if rng.random() < 0.6:
            tables["linear_access"] = {"stencil": rng.choice(["none", "in_place"])}
        return tables
    tables["all_different"] = {"elements": "along_axes"}
    tables["hyper_rectangle"] = {"images": "operations"}
    tables["fixed_origin"] = {}
    strides = ["one", *(s for s in ("spread", "step") if rng.random() < 0.6)]
    mixed = ["any", "none", *(["sub_images"] if "spread" in strides else [])]
    tables["strides"] = {"allowed": strides, "mixed": rng.choice(mixed)}
    tables["digits"] = {"per_axis": rng.choice([1, 2, 3])}
    if rng.random() < 0.5:
        tables["extents"] = {}
    if rng.random() < 0.5:
        tables["flatten"] = {"max_axes": rng.choice([2, 3]), "plain": rng.random() < 0.4}
    return tables
