"""Advice on a search's result: options without effect, lost precision or time, and remedies.

>>> from cpembed.driver.solve import solve
>>> from cpembed.driver.named import workload
>>> layer = workload("O[m,n] += W[n,k] * I[m,k] m=1 n=64 k=64", target="vta_1x16x16")
>>> better_order(solve(layer, "vta_1x16x16")).partition(":")[0]
'the factors in the order I, W use 100.0% of vta_1x16x16 instead of 6.2%'
"""

from __future__ import annotations

import math
from dataclasses import replace

from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.named import with_commuted_types
from cpembed.driver.options import DEFAULT_CONSTRAINTS, SolveOptions
from cpembed.driver.result import SolveResult
from cpembed.driver.solve import solve
from cpembed.embedding.constraints.base import slides
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.errors import WorkloadError
from cpembed.hw.instruction import OperandMemory, StrideRule
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import dtype_info
from cpembed.ir.ranges import overflowing, value_range
from cpembed.resources import hardware_spec_files
from cpembed.targets.base import WELL_USED
from cpembed.targets.choice import ModelChoice

POOR = 0.5
"""Utilisation below which another order of the factors, or another target, is tried.

There a factor of two is lost."""

_SHORT = 0.5
"""Maximum seconds of a search that is repeated for advice, and limit of the repetition."""


def idle_padding(solved: SolveResult) -> str | None:
    """Return a note if ``padding`` names axes that the workload does not have.

    A set serves many workloads, so this is no error, but a misspelt axis looks the same.
    """
    axes = solved.constraints.padding.axes
    if axes == "all":
        return None
    unknown = [axis for axis in axes if axis not in solved.workload.extents]
    if not unknown:
        return None
    axes_text = " ".join(solved.workload.extents)
    return (
        f"{solved.constraints.name}: padding.axes names {', '.join(unknown)}, which "
        f"{solved.workload.name} does not have (axes {axes_text}): no effect here"
    )


def undeclared_stride(solved: SolveResult) -> str | None:
    """Return a note if a declared stride would let windows be read in place and use more.

    None if the memory side declares a stride or that it has none, if nothing is wasted, or if the
    repeated search would take long. Shipped targets declare all strides that they take. A memory
    side that asks for alignment reads tiles as a whole, whatever lies between them.
    """
    before = solved.narrower.utilisation if solved.narrower else solved.utilisation
    if solved.target.path in map(str, hardware_spec_files().values()):
        return None
    if not solved.complete or before >= WELL_USED or solved.total_seconds > _SHORT:
        return None
    instruction = solved.target.instruction
    problem = solved.pairing.problem
    if not isinstance(problem, EmbeddingProblem):
        return None
    # Rows of a window begin one element apart: only a stride lets them be read in place.
    sliding = {
        pair.instruction.operand
        for pair in problem.pairs
        if any(slides(problem, index, index.iterators) for index in pair.workload.index)
    }
    memory: dict[str, OperandMemory] = {}
    declarations: list[str] = []
    for name, side in instruction.memory.items():
        rows = side.axes[:-1]
        if name in sliding and rows and not side.strides and side.alignment_bytes == 1:
            memory[name] = replace(side, strides=dict.fromkeys(rows, StrideRule.ANY))
            table = ", ".join(f'{axis} = "any"' for axis in rows)
            declarations.append(f"stride = {{ {table} }} of {name}")
    if not declarations:
        return None
    declared = replace(instruction, memory={**instruction.memory, **memory})
    spec = replace(solved.target, instruction=declared)
    options = SolveOptions(constraints=DEFAULT_CONSTRAINTS, top=1, timeout=_SHORT)
    in_place = solve(solved.workload, spec, options)
    if in_place.utilisation <= before:
        return None
    return (
        f"{instruction.name} declares no stride between rows: if it takes one, declare "
        f"{' and '.join(declarations)}; windows are then read in place, and {DEFAULT_CONSTRAINTS} "
        f"uses {in_place.utilisation:.1%} of the instruction instead of {before:.1%}"
    )


def overflow(workload: Computation) -> str | None:
    """Return a note if the type of a result does not hold all of its sums, in exact arithmetic."""
    statements = overflowing(workload)
    if not statements:
        return None
    statement, (low, high) = statements[0]
    output = workload.operand(statement.store.operand)
    values = value_range(workload, statement)
    assert values is not None
    points = high // values[1] if values[1] else low // values[0]
    ranges = ((dtype, dtype_info(dtype).integer_range) for dtype in ("int16", "int32", "int64"))
    wide = next((dtype for dtype, (a, b) in ranges if a <= low and high <= b), None)
    remedy = "keep the inputs' values small"
    remedy += f", or give {output.name} {wide} where the target has it" if wide else ""
    sums = f"{points:,} values of {values[0]:,} to {values[1]:,} make "
    largest = dtype_info(output.dtype).integer_range[1]
    return (
        f"{output.name} can overflow: {sums if points > 1 else ''}{low:,} to {high:,}, and "
        f"{output.dtype} wraps around beyond {largest:,}: {remedy}"
    )


def empty_places(
    solved: SolveResult, candidate: RankedCandidate, model: ModelChoice | None = None
) -> str | None:
    """Return a note on where a candidate wastes the unit, and what would use more of it.

    None if at least :data:`POOR` of it is used.

    Parameters
    ----------
    solved : SolveResult
        Search of the candidate.
    candidate : RankedCandidate
        Candidate that runs.
    model : ModelChoice, optional
        Candidates that were compared and rejected when it was chosen.
    """
    used = candidate.overheads.utilisation
    if used >= POOR:
        return None
    reasons = _unfilled(solved, candidate)
    if not reasons:
        return None
    text = f"{used:.1%} of {solved.target.instruction.name} is used: {', '.join(reasons)}"
    best = max(solved.embeddings, key=lambda each: each.overheads.utilisation, default=candidate)
    remedies: list[str] = []
    if best.overheads.utilisation > used:
        refusal = None if model is None else model.why_refused(best)
        rejected = "" if refusal is None else f", and is rejected ({refusal})"
        remedies.append(f"rank {best.rank} uses {best.overheads.utilisation:.1%}{rejected}")
    wider = solved.wider
    if wider is not None and wider.utilisation > max(used, best.overheads.utilisation):
        bound = "uses" if wider.searched else "might use up to"
        remedies.append(f"--constraints {wider.constraints} {bound} {wider.utilisation:.1%}")
    return f"{text}; {', '.join(remedies) or 'extents in multiples of the places fill them'}"


def _unfilled(solved: SolveResult, candidate: RankedCandidate) -> list[str]:
    """Return where places of the instruction's axes stay empty, the worst first."""
    embedding, extents = candidate.embedding, solved.workload.extents
    reasons: list[tuple[float, str]] = []
    for axis in solved.target.instruction.axes:
        digits = embedding.digits.get(axis.name, ())
        extent_used = embedding.extents.get(axis.name, 1)
        share = extent_used / axis.maximum
        texts: list[str] = []
        for digit in digits:
            members = embedding.flattened.get(digit.axis, (digit.axis,))
            # A target's variant may have axes of its own.
            if not extents.keys() >= set(members):
                return []
            extent = math.prod(extents[member] for member in members)
            block = digit.count * digit.stride
            blocks = -(-extent // block)
            share *= extent / (blocks * block)
            if extent < blocks * block:
                times = f"{blocks} x " if blocks > 1 else ""
                texts.append(f"{digit.axis} of {extent} takes {times}{block} places of {axis.name}")
        if extent_used < axis.maximum:
            fed = " ".join(digit.axis for digit in digits) or "nothing"
            texts.append(f"{fed} fills {extent_used} of {axis.maximum} places of {axis.name}")
        if share < 1:
            reasons.append((share, " and ".join(texts)))
    return [text for _, text in sorted(reasons)]


def better_order(solved: SolveResult) -> str | None:
    """Return a note if commuted operands give a better candidate, searched and proven.

    None if the best candidate is good enough, or if the repeated search would take long. Where the
    element types keep the factors in their roles, the note names other types.
    """
    commutes = solved.constraints.commutes
    if commutes or not solved.complete or not solved.embeddings or solved.total_seconds > _SHORT:
        return None
    best = solved.embeddings[0]
    instruction = solved.target.instruction
    pairing = solved.pairing
    if best.overheads.occupancy >= POOR or pairing.fits(solved.workload) is None:
        return None
    orders = [commuted.workload for commuted in pairing.alternatives(factors=True)]
    typed = with_commuted_types(solved.workload) if not orders else None
    options = SolveOptions(constraints=solved.constraints, top=1, timeout=_SHORT)
    # Types that fit one order only would reject the other: there, types are exchanged with it.
    for order in orders if typed is None else [typed]:
        try:
            result = solve(order, solved.target, options)
        except WorkloadError:
            # The types fit in no order.
            continue
        if not result.embeddings or result.embeddings[0].score >= best.score:
            continue
        if result.utilisation > best.overheads.utilisation:
            names = ", ".join(operand.name for operand in order.inputs)
            more = (
                f"{result.utilisation:.1%} of {instruction.name} instead of "
                f"{solved.utilisation:.1%}"
            )
            if typed is None:
                remedy = "exchange them or use --constraints complete"
                return f"the factors in the order {names} use {more}: {remedy}"
            types = ",".join(operand.dtype for operand in (*typed.inputs, typed.output))
            return f"with the roles of the factors {names} exchanged, {more} is used: dtype={types}"
    return None
