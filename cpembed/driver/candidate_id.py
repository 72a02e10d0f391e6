"""Lookup of a candidate by its id, wherever it was printed.

>>> from cpembed.driver.solve import solve
>>> from cpembed.driver.named import workload
>>> layer = workload("gemm m=8 n=32 k=16", target="vta_1x16x16")
>>> first = solve(layer, "vta_1x16x16").embeddings[0].candidate.identifier
>>> identified(layer, solve(layer, "vta_1x16x16").target, first[:6])[1].rank
1
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cpembed.cost.ranking import Candidate, RankedCandidate, derive_candidate, overheads
from cpembed.driver.options import DEFAULT_CONSTRAINTS, WIDER, KernelOptions, SearchOptions
from cpembed.driver.plan import Request, considered
from cpembed.driver.result import SolveResult
from cpembed.driver.solve import Progress, constraint_set, solve
from cpembed.embedding.constraint_set import ConstraintSet, load_constraint_set
from cpembed.embedding.cpsat import SearchLimits
from cpembed.embedding.search import find_embeddings
from cpembed.errors import TransformError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.runtime.tuning.database import workload_key
from cpembed.runtime.tuning.records import WIDEST, Record, first_proven
from cpembed.targets.registry import stored_tunings
from cpembed.transform.proof import require

_INITIAL_WINDOW, _WINDOW_GROWTH = 8, 8
"""Initial window of the ranking to scan for a candidate's place, and its growth factor."""

_ID_DIGITS = "0123456789abcdef"


def identified(
    workload: Computation,
    target: HardwareSpec,
    identifier: str,
    options: SearchOptions | None = None,
    *,
    progress: Progress | None = None,
) -> tuple[SolveResult, RankedCandidate]:
    """Find the candidate with a given id and prove its program correct.

    Parameters
    ----------
    workload : Computation
        Operator.
    target : HardwareSpec
        Target that the id was printed for.
    identifier : str
        Id of an embedding or its beginning, with ``+NAME`` for each operand that stays in place.
    options : SearchOptions, optional
        Constraint set and time limit of each search. The id is looked up, in this order, among the
        embeddings under that set (the default set if none is given), in the tuning records, under
        the other preset sets, and among the variants that :func:`~cpembed.driver.run.run`
        considers.
    progress : callable, optional
        Called at each step with the stage and a count.

    Returns
    -------
    solved : SolveResult
        Search that the candidate belongs to.
    candidate : RankedCandidate
        The candidate.

    Raises
    ------
    WorkloadError
        If no candidate has the id, or it is a prefix of several ids.
    """
    options = options or SearchOptions()
    start, *in_place = identifier.split("+")
    if not start or set(start) - set(_ID_DIGITS):
        raise WorkloadError(f"{identifier!r} is no id: an id is hexadecimal, as 0c78d175afb8")
    search = _Search(workload, target, start, tuple(in_place), options.timeout, progress)
    first = constraint_set(options.constraints or DEFAULT_CONSTRAINTS)
    presets = (DEFAULT_CONSTRAINTS, WIDER, WIDEST)
    rest = [load_constraint_set(name) for name in presets if name != first.name]
    lookups: list[Callable[[], tuple[SolveResult, RankedCandidate] | None]] = [
        partial(search.under, first),
        partial(search.tuned, first),
        *(partial(search.under, constraints) for constraints in rest),
        partial(search.among_variants, first),
    ]
    for look_up in lookups:
        result = look_up()
        if result is not None:
            return result
    raise WorkloadError(search.unknown([first, *rest]))


@dataclass(frozen=True)
class _Search:
    """Lookup of an id that begins with ``start``, with these operands in place."""

    workload: Computation
    target: HardwareSpec
    start: str
    in_place: tuple[str, ...]
    timeout: float | None
    progress: Progress | None

    @property
    def identifier(self) -> str:
        """Id that is looked up, as it was given."""
        return "+".join((self.start, *self.in_place))

    def under(self, constraints: ConstraintSet) -> tuple[SolveResult, RankedCandidate] | None:
        """Look among all embeddings of a set."""
        search = find_embeddings(
            self.workload,
            self.target.instruction,
            constraints,
            SearchLimits(seconds=self.timeout),
            self.progress,
        )
        name = self._unique(embedding.identifier() for embedding in search.embeddings)
        if name is None:
            return None
        total, top = len(search.embeddings), _INITIAL_WINDOW
        while True:
            solved = self._solve(constraints, top, name)
            for ranked in solved.embeddings:
                if ranked.candidate.embedding.identifier() == name:
                    return solved, self._with_operands_in_place(ranked)
            if top >= total:
                # The embedding exists, but no rewrite can serve it.
                reason = next(iter(solved.not_derivable), "it is no axis map")
                raise WorkloadError(f"{name} has no program: {reason}")
            top *= _WINDOW_GROWTH

    def tuned(self, constraints: ConstraintSet) -> tuple[SolveResult, RankedCandidate] | None:
        """Look among the tuning records of the workload and the target."""
        key = workload_key(self.workload)
        files = [
            file
            for file in stored_tunings()
            if file.key["workload"] == key and file.key["target"] == self.target.name
        ]
        trials: dict[str, tuple[Any, Any]] = {}
        for file in files:
            for trial in file.trials:
                trials.setdefault(trial.identifier, (file, trial))
        name = self._exact_or_unique(trials)
        if name is None:
            return None
        file, trial = trials[name]
        record = Record(trial, file.count, file.key["constraints"], file.path)

        def best(rejected: Collection[str]) -> Record[Any] | None:
            return None if rejected else record

        def any_schedule(candidate: Candidate, trial: Any) -> None:
            """Accept every schedule: the candidate is only shown."""

        choice = first_proven(self.workload, self.target, best, any_schedule)
        if choice is None:
            return None
        return self._solve(constraints, _INITIAL_WINDOW), choice.ranked(constraints.weights)

    def among_variants(
        self, constraints: ConstraintSet
    ) -> tuple[SolveResult, RankedCandidate] | None:
        """Look among the variants that a CPU target considers besides the best candidates."""
        options = KernelOptions(timeout=self.timeout)
        request = Request(self.workload, self.target, options, progress=self.progress)
        variants = {
            ranked.candidate.identifier: ranked
            for ranked in considered(request)
            if ranked.candidate.variant
        }
        name = self._exact_or_unique(variants)
        if name is None:
            return None
        require(variants[name].program)
        return self._solve(constraints, _INITIAL_WINDOW), variants[name]

    def unknown(self, sets: Iterable[ConstraintSet]) -> str:
        """Return the message for an id that is unknown, with the target that has it, if any."""
        names = ", ".join(dict.fromkeys(constraints.name for constraints in sets))
        for name in self.target.alternatives:
            if self._belongs_to(load_hardware_spec(name)):
                return (
                    f"{self.identifier} is no candidate of {self.target.name}, but of {name}, "
                    f"which may run in its place: give --target {name}"
                )
        return (
            f"no candidate of {self.target.name} in {self.workload.name} has the id "
            f"{self.identifier}, under {names} or among what was tuned: give the --target, the "
            "sizes and the --constraints with which it was printed"
        )

    def _belongs_to(self, alternative: HardwareSpec) -> bool:
        """Return True if the alternative target has a candidate with this id."""
        try:
            search = replace(self, target=alternative)
            return search.under(load_constraint_set(DEFAULT_CONSTRAINTS)) is not None
        except WorkloadError:
            # Several begin so, or the alternative multiplies other element types.
            return False

    def _solve(self, constraints: ConstraintSet, top: int, name: str | None = None) -> SolveResult:
        """Solve for the best candidates, or for the named one with its neighbours."""

        def around(ranked: tuple[RankedCandidate, ...]) -> tuple[RankedCandidate, ...]:
            for place, item in enumerate(ranked):
                if item.candidate.embedding.identifier() == name:
                    return ranked[max(place - 1, 0) : place + 2]
            return ()

        return solve(
            self.workload,
            self.target,
            constraints=constraints,
            top=top,
            keep=None if name is None else around,
            timeout=self.timeout,
            progress=self.progress,
        )

    def _exact_or_unique(self, names: Collection[str]) -> str | None:
        """Return the candidate with exactly these operands in place, else any that begins so."""
        ending = "".join(f"+{name}" for name in self.in_place)
        exact = [n for n in names if n.partition("+")[0] + ending == n]
        return self._unique(exact) or (None if self.in_place else self._unique(names))

    def _unique(self, names: Iterable[str]) -> str | None:
        """Return the only name that begins with the id; None if there is none.

        Raises
        ------
        WorkloadError
            If several do.
        """
        matches = sorted({name for name in names if name.startswith(self.start)})
        if len(matches) > 1:
            raise WorkloadError(
                f"{len(matches)} candidates have an id that begins with {self.start}, such as "
                f"{matches[0]} and {matches[1]}: give more of it"
            )
        return matches[0] if matches else None

    def _with_operands_in_place(self, ranked: RankedCandidate) -> RankedCandidate:
        """Return the same embedding with the operands in place that the id names."""
        if not self.in_place:
            return ranked
        workload = ranked.candidate.program.unfused
        _check_operands(self.in_place, workload)
        try:
            candidate = derive_candidate(
                workload,
                self.target.instruction,
                ranked.candidate.embedding,
                in_place=self.in_place,
            )
        except TransformError as error:
            raise WorkloadError(f"{self.identifier} has no program: {error}") from error
        require(candidate.program)
        return replace(ranked, candidate=candidate, overheads=overheads(candidate.program))


def _check_operands(names: Collection[str], workload: Computation) -> None:
    operands = [operand.name for operand in workload.operands]
    for name in names:
        if name not in operands:
            raise WorkloadError(f"{name!r} is no operand of {workload.name}: {' '.join(operands)}")
