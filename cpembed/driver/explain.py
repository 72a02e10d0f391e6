"""Explanation of one candidate: its axes, its layouts rewrite by rewrite, and its rank.

>>> from cpembed.driver.named import workload
>>> layer = workload("gemm m=8 n=16 k=16", target="vta_1x16x16")
>>> story = explain(layer, "vta_1x16x16")
>>> [(step.rewrite.name, str(step.after)) for step in story.steps["C"]]
[('split', '[m, n.o, n.i] (8, 1, 16)')]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.advice import pick
from cpembed.driver.candidate_id import identified
from cpembed.driver.named import hardware_spec
from cpembed.driver.options import CandidateOptions, SearchOptions, SolveOptions, merged, shared
from cpembed.driver.result import SolveResult, embedding_json, workload_json
from cpembed.driver.solve import Progress, solve
from cpembed.errors import InvariantError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.transform.layout_builder import original_layout as before_rewrites
from cpembed.transform.program import DerivedProgram, PackedOperand, Rewrite

if TYPE_CHECKING:
    from cpembed.driver.options import MethodName
    from cpembed.driver.plan import Compared, Request, Selection


@dataclass(frozen=True)
class Layout:
    """Dimensions of a layout by name, outermost first; ``lanes`` are the instruction axes that
    walk each of them."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    lanes: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return f"[{', '.join(self.names)}] ({', '.join(map(str, self.shape))})"

    def to_json(self) -> dict[str, Any]:
        return {"dimensions": list(self.names), "shape": list(self.shape)}


@dataclass(frozen=True)
class Step:
    """One rewrite with the layout before and after it."""

    rewrite: Rewrite
    before: Layout
    after: Layout


@dataclass(frozen=True)
class Explanation:
    """A candidate, each operand's rewrites step by step, and the candidates next to it; ``chosen``
    where it is the one that runs, and why.

    ``method``: of a convolution whose method was chosen; where that is not the implicit one, all of
    this is of its product. ``steps`` is by workload operand, in the instruction's operand order; an
    operand without steps is used as it is. ``better`` and ``worse`` are the neighbours in the
    ranking.
    """

    solved: SolveResult
    candidate: RankedCandidate
    steps: Mapping[str, tuple[Step, ...]]
    better: RankedCandidate | None
    worse: RankedCandidate | None
    reasons: tuple[str, ...]
    chosen: Selection | None = None
    method: Compared | None = None

    @property
    def workload(self) -> Computation:
        """Operator that was asked for, whatever method computes it."""
        rewritten = None if self.method is None else self.method.rewritten
        return self.solved.workload if rewritten is None else rewritten.workload

    @property
    def program(self) -> DerivedProgram:
        return self.candidate.program

    def to_json(self) -> dict[str, Any]:
        """The document of ``explain --json``: what ``solve`` says of the candidate, and more."""
        program = self.program
        return {
            "workload": workload_json(self.workload),
            "target": self.solved.target.name,
            "instruction": str(program.instruction.computation),
            "constraints": self.solved.constraints.name,
            "status": self.solved.status.value,
            "complete": self.solved.complete,
            "count": self.solved.count,
            "embedding": embedding_json(self.candidate),
            "candidate": self.candidate.identifier,
            "ranking_of": self.candidate.constraints,
            **({} if self.chosen is None else self.chosen.to_json()),
            **({} if self.method is None else {"method": self.method.to_json()}),
            "loops": [
                {"name": loop.name, "extent": loop.extent, "kind": loop.kind.value}
                for loop in program.loops
            ],
            "axis_map": {axis: str(index) for axis, index in program.axis_map.items()},
            "operands": [self._operand_json(role) for role in program.roles],
            "ranking": list(self.reasons),
            **self.solved.sets_json(),
        }

    def _operand_json(self, role: str) -> dict[str, Any]:
        operand = self.program.role(role)
        return {
            "name": operand.name,
            "role": role,
            "dtype": operand.dtype,
            "original": original_layout(self.program, operand.name).to_json(),
            "packed": layout(self.program, operand).to_json(),
            "access": [str(index) for index in operand.access],
            "in_place": operand.is_identity,
            "rewrites": [
                {
                    **step.rewrite.to_json(),
                    "before": step.before.to_json(),
                    "after": step.after.to_json(),
                }
                for step in self.steps[operand.name]
            ],
        }


def explain(
    workload: Computation,
    target: str | HardwareSpec,
    options: CandidateOptions | None = None,
    *,
    progress: Progress | None = None,
    **keywords: Any,
) -> Explanation | SolveResult:
    """Show one candidate in full.

    Parameters
    ----------
    workload : Computation
        Operator, from :func:`~cpembed.driver.named.workload`.
    target : str or HardwareSpec
        Target by name, file or value.
    options : CandidateOptions, optional
        Which candidate, by rank (the best by default) or id; its fields may also be given as
        keywords.
    progress : callable, optional
        Called at each step with the stage and a count.

    Returns
    -------
    Explanation or SolveResult
        The search's result, with its conflict, if it found nothing.

    Raises
    ------
    WorkloadError
        If the rank or the id does not exist.
    """
    options = merged(CandidateOptions, options, keywords)
    if options.identifier is not None:
        spec = hardware_spec(target)
        return _explained(
            *identified(workload, spec, options.identifier, options, progress=progress)
        )
    rank = options.rank or 1
    search = SolveOptions(top=rank + 1, **shared(options, SearchOptions))
    solved = solve(workload, target, search, progress=progress)
    if not solved.count:
        return solved
    return _explained(solved, pick(solved, rank))


def explain_chosen(request: Request, method: MethodName = "auto") -> Explanation | SolveResult:
    """The candidate that :func:`~cpembed.driver.run.run` runs, in full, with why it does.

    Raises as :func:`~cpembed.driver.methods.choose_method`.
    """
    from cpembed.driver.methods import chosen_method

    result = chosen_method(request, method)
    if isinstance(result, SolveResult):
        return result
    selection, compared = result
    explanation = _explained(selection.solved, selection.candidate, selection)
    return replace(explanation, method=compared)


def _explained(
    solved: SolveResult, candidate: RankedCandidate, selection: Selection | None = None
) -> Explanation:
    ranked = {item.rank: item for item in solved.embeddings}
    # A variant has the rank of what it was made from, and tuning may rank by another set.
    same_rank = ranked.get(candidate.rank)
    better = worse = None
    if same_rank is not None and same_rank.identifier == candidate.identifier:
        better, worse = ranked.get(candidate.rank - 1), ranked.get(candidate.rank + 1)
    program = candidate.program
    return Explanation(
        solved,
        candidate,
        {operand.name: replay(program, operand.name) for operand in program.operands},
        better,
        worse,
        ranking_reasons(solved, candidate, better, worse),
        selection,
    )


def layout(program: DerivedProgram, operand: PackedOperand) -> Layout:
    """Return an operand's dimensions by name, with the instruction axes that walk them."""
    walking = {lane.name for lane in program.instruction_axes if lane.extent > 1}
    return Layout(
        tuple(d.name for d in operand.dimensions),
        operand.shape,
        tuple(tuple(n for n in index.iterators if n in walking) for index in operand.access),
    )


def original_layout(program: DerivedProgram, name: str) -> Layout:
    """Return the layout of an operand before any rewrite."""
    return layout(program, _unpacked(program, name))


def replay(program: DerivedProgram, name: str) -> tuple[Step, ...]:
    """Replay the rewrites of one operand from its original layout to the packed one."""
    current = _unpacked(program, name)
    steps: list[Step] = []
    for rewrite in program.rewrites:
        if rewrite.operand == name:
            after = rewrite.apply(current, program.extents)
            steps.append(Step(rewrite, layout(program, current), layout(program, after)))
            current = after
    replayed, packed = layout(program, current), layout(program, program.operand(name))
    if replayed != packed:
        raise InvariantError(f"the rewrites of {name} lead to {replayed}, not to {packed}")
    return tuple(steps)


def _unpacked(program: DerivedProgram, name: str) -> PackedOperand:
    """Return the operand before any rewrite; its dimensions have the names of their axes."""
    workload = program.unfused
    return before_rewrites(workload, workload.access(name), program.axis_map)


def ranking_reasons(
    solved: SolveResult,
    candidate: RankedCandidate,
    better: RankedCandidate | None,
    worse: RankedCandidate | None,
) -> tuple[str, ...]:
    """Return sentences on why a candidate ranks where it does.

    Parameters
    ----------
    solved : SolveResult
        Search that ranked it.
    candidate : RankedCandidate
        The candidate.
    better, worse : RankedCandidate, optional
        Its neighbours in the ranking.
    """
    weights, cost = solved.constraints.weights, candidate.overheads
    extra_macs = cost.executed_macs - cost.macs
    extra_data = cost.packed_data - cost.data
    score = (
        f"score {candidate.score:.6g}: the norm of {weights.mac:g} x {extra_macs:,} extra MACs and "
        f"{weights.data:g} x {extra_data:,} extra elements; 0 is perfect"
    )
    sentences = [score]
    if better is not None:
        sentences.append(f"behind #{better.rank}: {_compare(better, candidate)}")
    if worse is not None:
        sentences.append(f"ahead of #{worse.rank}: {_compare(candidate, worse)}")
    if solved.count == 1 and candidate.constraints == solved.constraints.name:
        extent = "" if solved.complete else " found so far"
        sentences.append(f"it is the only candidate{extent} under {solved.constraints.name}")
    return tuple(sentences)


def _compare(first: RankedCandidate, second: RankedCandidate) -> str:
    """Return what decides between two neighbours of the ranking, the better one first."""
    a, b = first.overheads, second.overheads
    if first.score != second.score:
        return (
            f"score {first.score:.6g} against {second.score:.6g} "
            f"(MACs x{a.mac_overhead:.4g} against x{b.mac_overhead:.4g}, "
            f"data x{a.data_overhead:.4g} against x{b.data_overhead:.4g})"
        )
    if a.calls != b.calls:
        return f"equal scores, {a.calls:,} executions against {b.calls:,}"
    if a.packing_bytes != b.packing_bytes:
        return f"equal scores, packing moves {a.packing_bytes:,} bytes against {b.packing_bytes:,}"
    return "equal in score, executions and packing: the order of their axis maps decides"
