"""Compile the kernels of 241 workloads for three GPUs, and emulate small versions of them.

    python -m experiments.studies.tensor_core_workloads.run            # all rows that are missing
    python -m experiments.studies.tensor_core_workloads.run unit16:3   # these

Writes ``results.json`` and ``results.md`` into ``--output``, by default beside this file; README.md
says what is checked. It can be stopped at any time and started again.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import CpembedError, LoweringError
from cpembed.ir.computation import Computation
from cpembed.targets.base import Target
from cpembed.targets.choice import choices
from cpembed.targets.cuda.build import CudaKernels
from cpembed.targets.cuda.emulator.executor import COMPILER, Order
from cpembed.targets.cuda.saving.cases import Expected, cases_of
from cpembed.targets.cuda.target import CudaTarget
from cpembed.targets.registry import open_target
from experiments.common import Experiment, Row, described, markdown_table
from experiments.gpu_figures import distinct
from experiments.studies.tensor_core_workloads.rows import (
    EPILOGUES,
    MACHINES,
    Variant,
    keys,
    small_words,
    variants,
    words_of,
)

CONSTRAINTS = "fused"
EMBEDDINGS, COMPARED = 8, 4
"""Number of embeddings, best by overheads, as `run` takes them, and of those of different work
whose estimates are compared."""

NO_EMBEDDING = "nothing embeds"

ORDERS = (Order.REVERSE, Order.FORWARD, 7)
"""Orders of the threads in the emulator, the last a seed of a random one."""

KEYS = tuple(keys())

AnyTarget = Target[Any, Any, Any]


def target_of(variant: Variant) -> AnyTarget:
    """Return the target of a variant, for its GPU."""
    return open_target(hardware_spec(variant.target, machine=variant.machine))


@cache
def embeddings_of(words: str, target: str) -> tuple[Computation, Sequence[RankedCandidate]]:
    """Return a workload with an instruction's element types, and its best embeddings.

    Overheads rank them, which know no machine: the GPUs of a row share them.
    """
    spec = hardware_spec(target)
    computation = workload(words, target=spec)
    solved = solve(computation, spec, constraints=CONSTRAINTS, top=EMBEDDINGS)
    return computation, solved.embeddings


@cache
def best_embedding(target: str, words: str) -> RankedCandidate:
    """Return the embedding of the smallest estimate.

    That of ``mma_f16`` is the one that `run` takes for an A100; other GPUs have a schedule of their
    own for it. On other targets fewer are compared.
    """
    variant = Variant(target, "a100" if target == "mma_f16" else "h100")
    model, ranked = target_of(variant), embeddings_of(words, target)[1]
    if isinstance(model, CudaTarget):
        ranked = distinct(model, ranked)
    return choices(model, ranked[:COMPARED], first_only=True)[0].ranked


def lowered_kernel(variant: Variant, key: str, words: str) -> tuple[Any, Any, RankedCandidate]:
    """Return a row's product with its schedule, and its embedding.

    Kernels of float16 are those that the model chooses. The others have an embedding by the row's
    number, and random rows a random schedule too.

    Parameters
    ----------
    variant : Variant
        Target, GPU and epilogue.
    key, words : str
        Name of the row, and its workload.

    Raises
    ------
    LoweringError
        If there is no kernel.
    """
    target = target_of(variant)
    computation, ranked = embeddings_of(words, variant.target)
    if not ranked:
        raise LoweringError(NO_EMBEDDING)
    epilogue = epilogue_of(target, computation, variant)
    number, is_random = KEYS.index(key), key.startswith("random:")
    if is_random or variant.epilogue is not None:
        candidate = ranked[number % len(ranked)]
    else:
        candidate = best_embedding(variant.target, words)
    lowered = target.lower(candidate.candidate.program, epilogue)
    space = target.space(lowered)
    schedule = space.best().schedule
    if is_random:
        schedule = random.Random(f"{key} {variant.name}").choice(space.ranked()).schedule
    return lowered, schedule, candidate


def epilogue_of(target: AnyTarget, computation: Computation, variant: Variant) -> Any:
    """Return the epilogue of a variant; None for the sums.

    Parameters
    ----------
    target : Target
        Target of the variant.
    computation : Computation
        Workload whose sums it takes.
    variant : Variant
    """
    if variant.epilogue is None:
        return None
    return target.epilogue(computation, EPILOGUES[variant.epilogue])


def compile_kernel(text: str, architecture: str) -> dict[str, Any]:
    """Compile a text with nvcc; warnings are errors. Return registers, spills and its words."""
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "kernel.cu"
        source.write_text(text)
        command = ["nvcc", "-cubin", f"-arch={architecture}", "-std=c++17", "-Xptxas", "-v"]
        # Functions of the generator's prelude that no kernel calls are no finding.
        command += ["-diag-suppress", "174,177", "-Werror", "all-warnings"]
        command += ["-o", "kernel.cubin", "kernel.cu"]
        process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=name)
    words = process.stderr
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", words)
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", words)]
    # Told as information: products of warp groups that wait for each other.
    remarks = re.findall(r"(?m)^.*(?:serializ|Performance Loss).*$", words)
    report: dict[str, Any] = {
        "registers": max(registers, default=0),
        "local_bytes": sum(int(frame) + int(stores) for frame, stores in spills),
    }
    if process.returncode or remarks:
        report["error"] = (remarks[0] if remarks else words.strip())[-300:]
    return report


def compute(key: str) -> Row:
    """Compile a row's kernels for all machines, and emulate a small version of each."""
    words = words_of(key)
    small = words if key.startswith("random:") else small_words(words)
    row: Row = {"words": words, "kernels": {}}
    if small != words:
        row["small"] = small
    emulated: dict[tuple[str, str, str], dict[str, Any]] = {}
    for variant in variants(key, KEYS.index(key)):
        try:
            lowered, schedule, ranked = lowered_kernel(variant, key, words)
            target = target_of(variant)
            artifact = target.build(lowered, schedule)
            report = compile_kernel(artifact.text.source, MACHINES[variant.machine])
            report |= {"schedule": str(schedule)}
            # GPUs with one choice have one kernel.
            kernel = variant.target, repr(schedule), ranked.candidate.identifier
            if kernel not in emulated and small == words:
                emulated[kernel] = compared(artifact, embeddings_of(words, variant.target)[0])
            elif kernel not in emulated:
                emulated[kernel] = emulate(variant, small, schedule, ranked)
            report["emulated"] = emulated[kernel]
        except CpembedError as error:
            report = {"error": str(error), "fits": str(error) != NO_EMBEDDING}
        if variant.epilogue is not None:
            report["epilogue"] = variant.epilogue
        row["kernels"][variant.name] = report
    embeddings_of.cache_clear()
    best_embedding.cache_clear()
    return row


def emulate(variant: Variant, words: str, schedule: Any, ranked: RankedCandidate) -> dict[str, Any]:
    """Emulate a small version of a kernel, and compare its numbers with the reference.

    Parameters
    ----------
    variant : Variant
        The kernel.
    words : str
        The small version.
    schedule : Any
        The kernel's schedule, which the small version has if it fits, else its own best, whose
        words are part of the result.
    ranked : RankedCandidate
        The kernel's embedding: the small version has the first one with the same axes, if any.
    """
    target = target_of(variant)
    computation, embeddings = embeddings_of(words, variant.target)
    epilogue = epilogue_of(target, computation, variant)
    family = ranked.candidate.embedding.family
    same = [each for each in embeddings if each.candidate.embedding.family == family]
    if not embeddings:
        return {"error": "the small version has no embedding"}
    program = (same or embeddings)[0].candidate.program
    lowered = target.lower(program, epilogue)
    space = target.space(lowered)
    try:
        space.scored(schedule)
        artifact = target.build(lowered, schedule)
    except LoweringError:
        fitting = space.best().schedule
        artifact = target.build(lowered, fitting)
        return {"schedule": str(fitting), **compared(artifact, computation)}
    return compared(artifact, computation)


def compared(artifact: CudaKernels, computation: Computation) -> dict[str, Any]:
    """Compare an emulated kernel's results with the reference, in all orders of the threads."""
    runs = 0
    for case in cases_of(computation, artifact.plan.product.epilogue):
        inputs = {name: each.array(case.shapes[name]) for name, each in case.drawings.items()}
        for order in ORDERS:
            for result, expected in zip(
                artifact.outputs(inputs, order), case.results.values(), strict=True
            ):
                if reason := difference(result, expected):
                    return {"error": f"{case.name}, {order}: {reason}"}
            runs += 1
    return {"runs": runs}


def difference(result: NDArray[Any], expected: Expected) -> str:
    """Return how an emulated kernel's result differs; empty if it is equal.

    Equal are all numbers, NaNs included, but for what the rule of the case allows: a tolerance for
    chains, and more NaNs, but not of all numbers, where inputs have some.
    """
    got, right = result.astype(np.float64), expected.array.astype(np.float64)
    equal = (got == right) | (np.isnan(got) & np.isnan(right))
    if expected.absolute or expected.relative:
        with np.errstate(invalid="ignore"):
            equal |= np.abs(got - right) <= expected.absolute + expected.relative * np.abs(right)
    spread = np.isnan(got) & ~np.isnan(right)
    if expected.spreads and np.count_nonzero(spread) < np.count_nonzero(~np.isnan(right)):
        equal |= spread
    return "" if equal.all() else f"{np.count_nonzero(~equal)} of {equal.size} elements differ"


# ------------------------------------------------------------------------------------ the page


def verdict(report: dict[str, Any]) -> str:
    """Return what is wrong with a kernel; empty if nothing is."""
    if "error" in report:
        return report["error"]
    if report["local_bytes"]:
        return f"{report['local_bytes']} bytes of local memory"
    emulated = report["emulated"]
    return f"emulated: {emulated['error']}" if "error" in emulated else ""


def markdown(rows: list[Row]) -> list[str]:
    """Return the tables; README.md says what is checked."""
    fitting: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for row in rows:
        for name, report in row["kernels"].items():
            fitting[name] += report.get("fits", True)
            right[name] += not verdict(report)
    table = [
        [f"`{target}`", MACHINES[machine], machine, str(fitting[name]), str(right[name])]
        for name in sorted(fitting)
        for target, machine in [name.split()]
    ]
    head = ["target", "compiled for", "schedule for", "workloads that embed", "right"]
    lines = [
        "*Right*: nvcc has no warning, ptxas no local memory, and the emulated numbers equal the",
        "reference in three orders of the threads.",
        "",
        *markdown_table(head, table),
        "",
        f"{sum(right.values()):,} of {sum(fitting.values()):,} kernels. What is not among them:",
        "",
    ]
    lines += list(failures(rows)) or ["- nothing"]
    return [*lines, "", *register_table(rows)]


def register_table(rows: Sequence[Row]) -> list[str]:
    """Return a table with the registers of the kernels of float16."""
    names = [*(f"mma_f16 {machine}" for machine in MACHINES), "wgmma_f16 h100"]
    cells = [
        [
            row["key"],
            f"`{row['words']}`",
            *(str(row["kernels"].get(name, {}).get("registers", "-")) for name in names),
        ]
        for row in rows
    ]
    return markdown_table(["row", "workload", *(f"{name}, registers" for name in names)], cells)


def failures(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each kernel that is missing, does not compile cleanly or is wrong."""
    for row in rows:
        for name, report in row["kernels"].items():
            if report.get("fits", True) and (reason := verdict(report)):
                yield f"- {row['key']} (`{row['words']}`), {name}: {reason}"


def missing(key: str) -> str:
    """Return what this machine lacks to compute a row."""
    nvcc = () if shutil.which("nvcc") else ("nvcc is not on the path",)
    return "; ".join((*nvcc, *COMPILER.missing()))


EXPERIMENT = Experiment(
    **described(__file__, __doc__),
    keys=KEYS,
    compute=compute,
    markdown=markdown,
    trials=None,
    missing=missing,
    quick=("unit16:5",),
    one_origin=True,
)


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
