"""Report of ``cpembed explain``: a candidate in full, its rewrites, axes and loop nest as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cpembed import wording
from cpembed.blocks import Block, Bullets, Header, Heading, Preformatted, Table
from cpembed.driver.explain import ChosenExplanation
from cpembed.driver.result import Explanation
from cpembed.embedding.embedding import Digit
from cpembed.ir.index import IndexExpr
from cpembed.report import messages
from cpembed.report.solve import request_rows, search_text, solver_rows
from cpembed.transform.layout import Step, layout, original_layout
from cpembed.transform.program import DerivedProgram, Loop
from cpembed.transform.rewrites import Split

PRIME = "'"
"""Mark of a packed operand in the loop nest."""


def report(explanation: Explanation, *, verbose: bool = False) -> Iterator[Block]:
    """Yield header, axes, operands, layouts, loop nest, cost and rank; more if ``verbose``."""
    solved, candidate, program = explanation.solved, explanation.candidate, explanation.program
    method = explanation.method if isinstance(explanation, ChosenExplanation) else None
    rank = messages.rank_text(candidate, solved.constraints.name)
    yield Header(
        [
            *request_rows(explanation.workload, solved, method),
            ("found", search_text(solved)),
            *(solver_rows(solved) if verbose else ()),
            ("embedding", f"{rank}, {candidate.identifier}, program proven"),
            *_choice_rows(explanation),
        ]
    )
    # A tuned candidate may be from the ranking of another constraint set.
    is_ranked = candidate.constraints == solved.constraints.name
    sections: list[tuple[str, Block]] = [
        (
            "Instruction axes and the workload axes that feed them",
            Preformatted(axis_drawing(program)),
        ),
        ("Operands", _operands(program)),
        ("Layouts", Preformatted("\n".join(_layout_lines(explanation)))),
        ("Loop nest", Preformatted(pseudo_code(program))),
        ("Workload axes", Preformatted(axis_map_text(program))),
        ("Cost", Header(_cost_rows(explanation))),
        (f"Why rank {candidate.rank}" if is_ranked else "Score", Bullets(explanation.reasons)),
    ]
    for title, body in sections:
        yield ""
        yield Heading(title)
        yield body


def _choice_rows(explanation: Explanation) -> list[tuple[str, str]]:
    """Return the rows on why ``cpembed run`` runs the candidate, if ``--chosen`` asks for it."""
    if not isinstance(explanation, ChosenExplanation):
        return []
    selection = explanation.selection
    # Describing kernels loads the compiler, which most calls of explain do without.
    from cpembed.report import run

    rows = run.substitution_rows(selection.substitution)
    if selection.plan.missing:
        reason = "; ".join(selection.plan.missing)
        return [*rows, ("missing", f"{reason}: `run` falls back to portable code")]
    target, method = selection.plan.target, explanation.method
    return [*rows, *run.schedule_rows(target, explanation.solved, selection.choice, method)]


def _operands(program: DerivedProgram) -> Table:
    rows: list[tuple[str, ...]] = []
    for role, name in program.roles.items():
        operand, memory = program.operand(name), program.instruction.memory[role]
        rows.append(
            (
                role,
                name,
                operand.dtype,
                messages.tile_text(memory, program.embedding.extents),
                f"{math.prod(operand.original_shape):,}",
                f"{operand.elements:,}",
                "in place" if operand.is_identity else "packed",
            )
        )
    return Table(("role", "operand", "dtype", "tile", "elements>", "needed>", ""), rows, keys=2)


def _layout_lines(explanation: Explanation) -> Iterator[str]:
    """Yield for each operand its original layout, then each rewrite and the layout after it."""
    program = explanation.program
    for name, steps in explanation.steps.items():
        operand = program.operand(name)
        lines = [(name, str(original_layout(program, name)))]
        lines += [(f"  {rewrite_text(step)}", str(step.after)) for step in steps]
        width = max(len(text) for text, _ in lines)
        yield from (f"{text:<{width}}   {after}" for text, after in lines)
        if operand.is_identity:
            yield f"  the same bytes in memory: {name} is used in place"
        elif not steps:
            yield f"  {layout(program, operand)}"


def _cost_rows(explanation: Explanation) -> list[tuple[str, str]]:
    cost = explanation.candidate.overheads
    copied = wording.data_size(cost.packing_bytes) if cost.packing_bytes else "nothing is copied"
    in_place = f"; in place: {' '.join(cost.in_place)}" if cost.in_place else ""
    macs = f"{cost.executed_macs:,} for {cost.macs:,} (x{wording.ratio(cost.mac_overhead)})"
    elements = f"{cost.packed_data:,} for {cost.data:,} (x{wording.ratio(cost.data_overhead)})"
    return [
        ("  executions", f"{cost.calls:,} of {explanation.program.instruction.name}"),
        ("  MACs", f"{macs}, {cost.utilisation:.1%} useful"),
        ("  elements", elements),
        ("  packing", f"{copied}{in_place}"),
    ]


# -- rewrites -------------------------------------------------------------------------------------


def rewrite_text(step: Step) -> str:
    """Describe a rewrite, as in ``split k into k.o, k.i``."""
    if isinstance(step.rewrite, Split):
        # Only the layout before the step knows the name of the dimension that is split.
        dimension = step.before.names[step.rewrite.dimension]
        return f"split {dimension} into {step.rewrite.outer}, {step.rewrite.inner}"
    parameters = step.rewrite.describe()
    phrase = _PHRASES.get(step.rewrite.name)
    # A rewrite without a phrase of its own, for instance one that is new.
    if phrase is None:
        details = " ".join(f"{key}={value}" for key, value in parameters.items())
        return f"{step.rewrite.name} {details}"
    return f"{step.rewrite.name} {phrase(parameters)}"


def _pad_text(parameters: Mapping[str, Any]) -> str:
    sides = [f"{parameters[side]} {side}" for side in ("before", "after") if parameters[side]]
    return f"{parameters['axes'][0]} by {' and '.join(sides)}"


def _unroll_text(parameters: Mapping[str, Any]) -> str:
    parts = (
        f"{name} by {part['step']}" if part["step"] > 1 else name
        for name, part in parameters["parts"].items()
    )
    return f"{parameters['axes'][0]} into {', '.join(parts)}"


def _fuse_text(parameters: Mapping[str, Any]) -> str:
    return f"{', '.join(parameters['axes'])} to {parameters['to']}"


_PHRASES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "pad": _pad_text,
    "reorder": lambda _: "dimensions",
    "fuse": _fuse_text,
    "flatten": _fuse_text,
    "stencil_unroll": _unroll_text,
    "image_pack": _unroll_text,
}


# -- axes and loops -------------------------------------------------------------------------------


def axis_drawing(program: DerivedProgram) -> str:
    """Return which workload axes feed which instruction axes, and which stay outer loops.

    ::

        x  14 of 16  <----  p : 14 of 56
        y  16        <----  k : 16 of 64
        z  64        <----  c : 64 of 64
             outer  n 1  q 56  r 3  s 3
    """
    embedding, workload = program.embedding, program.workload
    rows: list[tuple[str, str]] = []
    for axis in program.instruction.axes:
        used = embedding.extents[axis.name]
        maximum = "" if used == axis.maximum else f" of {axis.maximum}"
        digits = embedding.digits[axis.name]
        label = f"{axis.name}  {used}{maximum}"
        if not digits:
            rows.append((label, f"{messages.EMPTY}  (one step: no axis feeds it)"))
        for number, digit in enumerate(digits):
            text = _feeding_text(program, digit)
            if len(digits) > 1:
                place = f"digit {number + 1} of {len(digits)}" if number else "innermost"
                text += f"  ({place})"
            rows.append(("" if number else label, text))
    fed = {digit.axis for digits in embedding.digits.values() for digit in digits}
    outer = {axis: extent for axis, extent in workload.extents.items() if axis not in fed}
    # All arrows stand in one column.
    width = max(len(label) for label, _ in rows)
    lines = [f"{label:<{width}}  ◀────  {text}".rstrip() for label, text in rows]
    if outer:
        lines.append(f"{'':<{width}}  outer  {wording.sizes(outer)}")
    return "\n".join(lines)


def _feeding_text(program: DerivedProgram, digit: Digit) -> str:
    """Return ``c : 16 of 60 in steps of 2, padded to 64``, with the members of a fused axis."""
    extent, padded = program.workload.extents[digit.axis], program.padded_extents[digit.axis]
    step = f" in steps of {digit.stride}" if digit.stride > 1 else ""
    padding = f", padded to {padded}" if padded > extent else ""
    members = program.embedding.flattened.get(digit.axis, ())
    fused = ""
    if members and program.original is not None:
        extents, pitches = program.original.extents, program.embedding.pitches
        rows = {member: f" in rows of {pitch}" for member, pitch in pitches.items()}
        sizes = (f"{member} {extents[member]}{rows.get(member, '')}" for member in members)
        fused = f" (fused: {', '.join(sizes)})"
    return f"{digit.axis} : {digit.count} of {extent}{fused}{step}{padding}"


def axis_map_text(program: DerivedProgram) -> str:
    """Return each workload axis as an expression of loops and instruction axes, a line for each.

    Coordinates beyond an extent are padding.
    """
    rows = {
        axis: without_unit_iterators(index, program.extents)
        for axis, index in program.axis_map.items()
        if program.workload.extents[axis] > 1
    }
    width = max((len(axis) for axis in rows), default=0)
    lines = [f"{axis:<{width}} = {index}" for axis, index in rows.items()]
    return "\n".join(lines) or "every axis has one step"


def pseudo_code(program: DerivedProgram) -> str:
    """Return the loop nest around one execution of the instruction, without loops of one step.

    A packed operand is written with a prime, one that is used in place without.
    """
    # Loops of one step would only deepen the nest.
    loops = [loop for loop in program.loops if loop.extent > 1]
    heads = [f"{'  ' * depth}{_loop_head(loop)}" for depth, loop in enumerate(loops)]
    width = max(map(len, heads), default=0)
    lines = [
        f"{head:<{width}}  # {loop.kind.value}" for head, loop in zip(heads, loops, strict=True)
    ]
    margin = "  " * len(loops)
    inner = ", ".join(f"{axis.name} < {axis.extent}" for axis in program.instruction_axes)
    lines.append(f"{margin}{program.instruction.name}  for {inner}:")
    for role, name in program.roles.items():
        prime = "" if program.operand(name).is_identity else PRIME
        lines.append(f"{margin}  {role} is {name}{prime}[{access_text(program, name)}]")
    lines.append(f"{margin}  {program.instruction.computation}")
    return "\n".join(lines)


def _loop_head(loop: Loop) -> str:
    return f"for {loop.name} in 0..{loop.extent - 1}:"


def access_text(program: DerivedProgram, operand: str) -> str:
    """Return the indices at which a program accesses an operand's layout."""
    indices = program.operand(operand).access
    return ", ".join(str(without_unit_iterators(index, program.extents)) for index in indices)


def without_unit_iterators(index: IndexExpr, extents: Mapping[str, int]) -> IndexExpr:
    """Return an index expression without the iterators of one step, which are 0."""
    return IndexExpr.sum(
        (term for term in index.terms if any(extents[name] > 1 for name in term.iterators)),
        index.constant,
    )
