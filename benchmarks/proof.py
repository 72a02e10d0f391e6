"""Measure proofs of complete enumerations: milliseconds a program, cold, warm, without lemmas.

Usage: ``python -m benchmarks.proof``. The enumerations are every way to fill each instruction axis
with digits of the workload axes that fit it (up to three digits, strides 1 and spread), and every
embedding of a few layers under shipped constraint sets (the first few thousand of them).
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence

from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.cpsat import SearchLimits
from cpembed.embedding.embedding import Digit, Embedding
from cpembed.embedding.search import find_embeddings
from cpembed.errors import TransformError
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.transform.derive import derive
from cpembed.transform.program import DerivedProgram
from cpembed.transform.proof import Proof, lemmas, prove, prove_whole
from cpembed.workloads.naming import parse_workload

CONTRACTION = "O[n,p,q,k] += I[n,p,q,c,d] * W[k,c,d]"
CONTRACTIONS = {
    "vta_1x16x16": ({"x": "npq", "y": "k", "z": "cd"}, {}),
    "arm_sdot": ({"y": "k", "z": "cd"}, {}),
    "amx_int8": ({"x": "npq", "y": "k", "z": "cd"}, {"x": 16}),
}
LAYERS = [
    "conv2d n=1 c=64 h=28 w=28 k=64 r=3 s=3 pad=1 layout=NHWC",
    "conv2d n=1 c=3 h=56 w=56 k=32 r=7 s=7 stride=2 pad=3 layout=NHWC",
    "gemm m=1000 n=512 k=700",
]


def ordered_factors(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yield factorisations of a number into ``count`` factors of at least 2."""
    if count == 0:
        if number == 1:
            yield ()
        return
    for factor in range(2, number + 1):
        if number % factor == 0:
            for rest in ordered_factors(number // factor, count - 1):
                yield (factor, *rest)


def fillings(axes: str, extent: int, workload: Computation) -> list[tuple[Digit, ...]]:
    """Return every list of digits of different axes that fills an instruction axis.

    Parameters
    ----------
    axes : str
        Workload axes, a letter each.
    extent : int
        Extent of the instruction axis.
    workload : Computation
        The workload.
    """
    digit_lists: list[tuple[Digit, ...]] = []
    for count in range(min(3, len(axes)) + 1):
        for combination in itertools.permutations(axes, count):
            for factors in ordered_factors(extent, count):
                strides = [
                    sorted({1, -(-workload.extents[axis] // factor)})
                    for axis, factor in zip(combination, factors, strict=True)
                ]
                digit_lists += [
                    tuple(Digit(*digit) for digit in zip(combination, factors, steps, strict=True))
                    for steps in itertools.product(*strides)
                ]
    return digit_lists


def contractions(target: str, extents: Sequence[int]) -> list[DerivedProgram]:
    """Return programs of every filling of a target's instruction in a contraction."""
    candidates, sizes = CONTRACTIONS[target]
    spec = load_hardware_spec(target).instruction
    axes = zip("npqkcd", extents, strict=True)
    workload = parse_workload([CONTRACTION, *(f"{axis}={size}" for axis, size in axes)])
    used = {axis.name: sizes.get(axis.name, axis.maximum) for axis in spec.axes}
    operand_names = [operand.name for operand in spec.computation.operands]
    options = [fillings(candidates.get(axis, ""), size, workload) for axis, size in used.items()]
    roles = dict(zip(operand_names, "IWO", strict=True))
    embeddings = (
        Embedding(roles, used, dict(zip(used, digits, strict=True)))
        for digits in itertools.product(*options)
    )
    return [derive(workload, spec, embedding) for embedding in embeddings]


def layer(text: str, target: str, name: str) -> list[DerivedProgram]:
    """Return programs of the embeddings of a layer under a shipped constraint set.

    Parameters
    ----------
    text : str
        The workload.
    target : str
        Name of the target.
    name : str
        Name of the constraint set.
    """
    spec = load_hardware_spec(target)
    dtypes = tuple(
        spec.instruction.dtypes[o.name][0] for o in spec.instruction.computation.operands
    )
    workload = parse_workload(text.split(), dtypes)
    constraints = load_constraint_set(name)
    limits = SearchLimits(seconds=60, solutions=5000)
    search = find_embeddings(workload, spec.instruction, constraints, limits)
    programs: list[DerivedProgram] = []
    for embedding in search.embeddings:
        try:
            programs.append(derive(workload, spec.instruction, embedding))
        except TransformError:
            continue
    return programs


def measure(
    decide: Callable[[DerivedProgram], Proof], programs: Sequence[DerivedProgram]
) -> tuple[float, int]:
    """Return milliseconds a program, and the number of programs that are not proven."""
    start = time.perf_counter()
    unproven = sum(not decide(program).holds for program in programs)
    return (time.perf_counter() - start) * 1e3 / len(programs), unproven


def report(name: str, programs: Sequence[DerivedProgram]) -> None:
    """Print a line of the table."""
    lemmas.forget()
    cold, unproven = measure(prove, programs)
    warm, _ = measure(prove, programs)
    sample = random.Random(0).sample(programs, min(20, len(programs)))
    without_lemmas, _ = measure(prove_whole, sample)
    print(
        f"{name[:60]:60} {len(programs):8} {unproven:8} {lemmas.decided():8} "
        f"{cold:8.3f} {warm:8.3f} {without_lemmas:8.1f}",
        flush=True,
    )


def main() -> None:
    """Run the command."""
    print(f"{'':60} programs  refused   lemmas  cold ms  warm ms whole ms")
    for target in CONTRACTIONS:
        for extents in ((4, 14, 14, 64, 64, 9), (1, 7, 30, 20, 60, 5)):
            report(f"{target} {extents}", contractions(target, extents))
    for workload, target, name in itertools.product(
        LAYERS, ("vta_1x16x16", "amx_int8"), ("in_place_padded", "relaxed")
    ):
        programs = layer(workload, target, name)
        if programs:
            report(f"{target} {name} {workload}", programs)


if __name__ == "__main__":
    main()
