"""The report of ``cpembed explain``: one candidate in full."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import RenderableType

from cpembed import wording
from cpembed.driver.explain import ChosenExplanation
from cpembed.driver.result import Explanation
from cpembed.report import nest, words
from cpembed.report.blocks import bullets, header, heading, indented, table
from cpembed.report.methods import asked_rows
from cpembed.report.rewrites import step_words
from cpembed.report.solve import found, searched
from cpembed.transform.replay import layout, original_layout


def report(explanation: Explanation, *, verbose: bool = False) -> Iterator[RenderableType]:
    """Header, axes, operands, layouts, loop nest, cost, rank."""
    solved, candidate, program = (
        explanation.solved,
        explanation.candidate,
        explanation.program,
    )
    method = explanation.method if isinstance(explanation, ChosenExplanation) else None
    rows = asked_rows(explanation.workload, solved, method)
    place = words.place(candidate.rank, candidate.constraints, solved.constraints.name)
    yield header(
        [
            *rows,
            ("found", found(solved)),
            *(searched(solved) if verbose else ()),
            ("embedding", f"{place}, {candidate.identifier}, program proven"),
            *_chosen(explanation),
        ]
    )
    is_own = candidate.constraints == solved.constraints.name
    sections: list[tuple[str, RenderableType]] = [
        ("Instruction axes and the workload axes that feed them", indented(nest.drawing(program))),
        ("Operands", _operands(explanation)),
        ("Layouts", indented("\n".join(_rewrites(explanation)))),
        ("Loop nest", indented(nest.pseudo_code(program))),
        ("Workload axes", indented(nest.axis_map(program))),
        ("Cost", header(_cost(explanation))),
        (f"Why rank {candidate.rank}" if is_own else "Score", bullets(explanation.reasons)),
    ]
    for title, body in sections:
        yield ""
        yield heading(title)
        yield body


def _chosen(explanation: Explanation) -> list[tuple[str, str]]:
    """Why `run` runs it, where that was asked for."""
    if not isinstance(explanation, ChosenExplanation):
        return []
    chosen = explanation.selection
    # What describes kernels loads the compiler.
    from cpembed.report import run

    rows = run.instead(chosen.substitution)
    if chosen.plan.missing:
        rows.append(("missing", f"{'; '.join(chosen.plan.missing)}: `run` takes portable code"))
    else:
        rows += run.schedule(
            chosen.plan.target, explanation.solved, chosen.choice, explanation.method
        )
    return rows


def _operands(explanation: Explanation) -> RenderableType:
    program = explanation.program
    instruction = program.instruction
    rows: list[tuple[str, ...]] = []
    for role, name in program.roles.items():
        operand, memory = program.operand(name), instruction.memory[role]
        rows.append(
            (
                role,
                name,
                operand.dtype,
                words.tile(memory, program.embedding.extents),
                f"{math.prod(operand.original_shape):,}",
                f"{operand.elements:,}",
                "in place" if operand.is_identity else "packed",
            )
        )
    return table(
        ("role", "operand", "dtype", "tile", "elements>", "needed>", ""),
        rows,
    )


def _rewrites(explanation: Explanation) -> Iterator[str]:
    """Per operand: the original layout, then each rewrite and the layout after it."""
    program = explanation.program
    for name, steps in explanation.steps.items():
        operand = program.operand(name)
        lines = [(name, str(original_layout(program, name)))]
        lines += [(f"  {step_words(step)}", str(step.after)) for step in steps]
        width = max(len(text) for text, _ in lines)
        yield from (f"{text:<{width}}   {after}" for text, after in lines)
        if operand.is_identity:
            yield f"  the same bytes in memory: {name} is used in place"
        elif not steps:
            yield f"  {layout(program, operand)}"


def _cost(explanation: Explanation) -> list[tuple[str, str]]:
    cost = explanation.candidate.overheads
    moved = wording.data_size(cost.packing_bytes) if cost.packing_bytes else "nothing moves"
    kept = f"; in place: {' '.join(cost.in_place)}" if cost.in_place else ""
    macs = (
        f"{cost.executed_macs:,} for {cost.macs:,} (x{wording.ratio(cost.mac_overhead)}), "
        f"{cost.utilisation:.1%} useful"
    )
    return [
        ("  executions", f"{cost.calls:,} of {explanation.program.instruction.name}"),
        ("  MACs", macs),
        (
            "  elements",
            f"{cost.packed_data:,} for {cost.data:,} (x{wording.ratio(cost.data_overhead)})",
        ),
        ("  packing", f"{moved}{kept}"),
    ]
