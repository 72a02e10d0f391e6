"""Random cases end to end: a workload, a target and a shipped constraint set."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

from cpembed.embedding.constraint_set import ConstraintSet, load_constraint_set
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.resources import constraint_files, hardware_spec_files
from tests.random_instructions import STATEMENTS, random_target
from tests.random_workloads import FORMS, any_operator, irregular, sum_of_products

SHIPPED_FORMS = {
    # Shipped targets that compute no sum of products, with what they compute.
    "avx512_sad": "sad",
    "avx2_maddubs": "saturated",
    "requantize": "requantized",
    "pre_add_dot": "pre_added",
    "complex_mac": "complex",
}
WIDE = {"relaxed": 8, "flattened": 6, "complete": 6}
"""Constraint sets whose embeddings grow with the number of axes, and the axes of a case at most."""
SCALAR = 256
"""Operations of an instruction at most on which sums of products are tried."""


@dataclass(frozen=True)
class Case:
    """``make_case(seed)`` makes it again."""

    seed: int
    workload: Computation
    target: HardwareSpec
    constraints: ConstraintSet

    def __str__(self) -> str:
        return (
            f"make_case({self.seed}): {self.workload} {dict(self.workload.extents)} on "
            f"{self.target.name} {self.target.instruction.computation} "
            f"{[(a.minimum, a.maximum) for a in self.target.instruction.axes]} "
            f"under {self.constraints.name}"
        )


@cache
def shipped_target(name: str) -> HardwareSpec:
    return load_hardware_spec(name)


@cache
def shipped_constraints(name: str) -> ConstraintSet:
    return load_constraint_set(name)


def make_case(seed: int) -> Case:
    """The case of a seed: half of them on shipped targets, the others on random instructions."""
    rng = random.Random(seed)
    constraints = rng.choice(sorted(constraint_files()))
    if rng.random() < 0.5:
        target = shipped_target(rng.choice(sorted(hardware_spec_files())))
        form = SHIPPED_FORMS.get(target.name, "product")
    else:
        form = rng.choice(["product"] * 6 + sorted(set(STATEMENTS) - {"product"}))
        target = random_target(rng, form)
    while True:
        workload = _workload(rng, form, target)
        if _breadth(workload, target) <= WIDE.get(constraints, 99):
            break
    return Case(seed, _typed(rng, workload, target), target, shipped_constraints(constraints))


def _workload(rng: random.Random, form: str, target: HardwareSpec) -> Computation:
    """Mostly of the target's form; any other now and then, which must be refused in words."""
    if rng.random() < 0.03:
        form = rng.choice(["product", *sorted(FORMS)])
    if form == "product":
        # Sums of axes in many indices need the scalar model: seconds where operations are many.
        small = target.instruction.macs <= SCALAR
        return sum_of_products(rng) if small and rng.random() < 0.4 else any_operator(rng)
    return irregular(rng, form)


def _breadth(workload: Computation, target: HardwareSpec) -> int:
    """Axes of a case: how many embeddings there are grows with the workload's axes to the power of
    the instruction's, above all where an axis is configurable."""
    axes = target.instruction.axes
    return len(workload.axes) + max(0, len(axes) - 2) + sum(not axis.is_fixed for axis in axes)


def _typed(rng: random.Random, workload: Computation, target: HardwareSpec) -> Computation:
    """Element types that the target takes, by position; one case in 30 has one that may not fit."""
    computation = target.instruction.computation
    accepted = rng.choice(target.instruction.dtype_choices)
    types: dict[str, str] = {}
    for ours, theirs in (
        (computation.inputs, workload.inputs),
        (computation.outputs, workload.outputs),
    ):
        types |= {t.name: accepted[o.name] for o, t in zip(ours, theirs, strict=False)}
    if rng.random() < 1 / 30:
        types[rng.choice(sorted(types))] = rng.choice(["int8", "uint8", "int16", "float32"])
    return workload.with_dtypes(types)
