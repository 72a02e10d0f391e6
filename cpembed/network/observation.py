"""Observe a run of a network: read each operator's results and compare them.

Results are read right after their operator, since tensors share memory. Operators inside a loop are
compared on the values of real steps: the first two, the last two and two at random; of a loop whose
number of steps is computed, steps 0 to 3, and those at powers of two. What a loop itself does, its
movement of states and slices, is compared bit for bit.

The result of the first operator of a pair is nowhere in memory. That of the second is compared with
both definitions, one applied to the result of the other, and the verdict is on both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cpembed.export.loader import Library
from cpembed.graph.graph import Array, Operator
from cpembed.graph.loop import Loop
from cpembed.ir.dtypes import as_typed
from cpembed.network.layout import Layout
from cpembed.network.method_error import MethodError
from cpembed.network.plan import NetworkPlan
from cpembed.network.program import LoopProgram, NetworkProgram


@dataclass(frozen=True)
class Verdict:
    """Comparison of an operator's results with its definition.

    Attributes
    ----------
    operator : str
        Name of the operator.
    max_error, tolerance : float
        Largest difference and its limit, which is 0 if results have to be equal bit for bit.
    spreads_nan : bool
        True if results of a product of floats are NaN that are none in the definition: an input is
        infinite or NaN, and zeros that pad the sum are multiplied by it, or a method transforms it
        with others.
    method_error : MethodError or None
        Error of a product of float32 by Winograd's method, on finite inputs.
    """

    operator: str
    max_error: float
    tolerance: float
    spreads_nan: bool = False
    method_error: MethodError | None = None

    @property
    def verified(self) -> bool:
        """True if the results are within the tolerance."""
        within = self.method_error is None or self.method_error.is_within_limit
        return within and self.max_error <= self.tolerance

    def joined(self, later: Verdict) -> Verdict:
        """Return the worse of two verdicts on one operator."""
        spreads = self.spreads_nan or later.spreads_nan
        worse = max(self, later, key=lambda verdict: (not verdict.verified, verdict.max_error))
        errors = [each.method_error for each in (self, later) if each.method_error is not None]
        error = max(errors, key=lambda each: each.growth, default=None)
        return replace(worse, spreads_nan=spreads, method_error=error)


def difference(actual: Array, expected: Array) -> float:
    """Return the largest difference; infinite if only one is NaN, or shapes or types differ."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return float("inf")
    if not actual.size:
        return 0.0
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        distances = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return float(np.nan_to_num(distances, nan=np.inf, posinf=np.inf).max())


Compare = Callable[[NetworkPlan, Operator, Mapping[str, Array]], Verdict]
"""Function that compares the results of an operator of a plan with its definition."""


@dataclass
class _Frame:
    """Values of a graph while it is executed: the network, or the body of a loop.

    Attributes
    ----------
    active : bool
        True if the operators of this step are compared.
    position : int
        Number of the next operator to compare.
    ended : set of str
        Loops of this graph that have ended.
    ends : mapping from int to tuple of arrays
        The body's outputs after some steps, by the number of the step.
    """

    plan: NetworkPlan
    tensors: Mapping[str, str]
    results: Mapping[str, str]
    parent: int | None = None
    operator: Operator | None = None
    active: bool = True
    position: int = 0
    step: int | None = None
    values: dict[str, Array] = field(default_factory=dict[str, Array])
    ended: set[str] = field(default_factory=set[str])
    ends: dict[int, tuple[Array, ...]] = field(default_factory=dict[int, tuple[Array, ...]])
    moves_right: bool = True

    @property
    def loop(self) -> Loop:
        """The loop whose body this is."""
        assert self.operator is not None
        assert isinstance(self.operator.kind, Loop)
        return self.operator.kind


class NetworkObserver:
    """Observer of one run; ``verdicts`` has the verdict on each operator that was executed.

    Parameters
    ----------
    plan : NetworkPlan
    network : NetworkProgram
    library : Library
        Loaded library of the network.
    inputs : mapping from str to ndarray
    callbacks : tuple of callable
        The first compares an operator of a plan with its definition on the values of tensors; the
        second is called with the number of operators that have a verdict.
    """

    def __init__(
        self,
        plan: NetworkPlan,
        network: NetworkProgram,
        library: Library,
        inputs: Mapping[str, Array],
        callbacks: tuple[Compare, Callable[[int], None]],
    ) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self._compare, self._progress = callbacks
        self._network, self._library = network, library
        top = _Frame(plan, network.tensors, network.results)
        top.values = {**plan.graph.constants, **inputs}
        self._frames: dict[int | None, _Frame] = {None: top}
        self._add_bodies(None, top, network.bodies)
        program = network.program
        self._owner: list[int | None] = [None] * len(program.run)
        # Inner loops come later, and own their calls.
        for number, loop in enumerate(program.loops):
            self._owner[loop.first : loop.last] = [number] * (loop.last - loop.first)
        random = np.random.default_rng(0)
        self._chosen = {
            number: _chosen_steps(frame.loop, random)
            for number, frame in self._frames.items()
            if number is not None
        }

    def _add_bodies(
        self, number: int | None, frame: _Frame, bodies: Mapping[str, LoopProgram]
    ) -> None:
        operators = {operator.name: operator for operator in frame.plan.graph.operators}
        for name, body in bodies.items():
            inner = _Frame(
                frame.plan.bodies[name], body.tensors, body.results, number, operators[name]
            )
            self._frames[body.number] = inner
            self._add_bodies(body.number, inner, body.bodies)

    def __call__(self, step: int, iterations: Sequence[int]) -> None:
        """Compare the operators that a call of a kernel, or a loop, has completed."""
        if step < 0:
            self._end_loop(-1 - step, iterations)
            return
        number = self._owner[step]
        self._enter(number, iterations)
        frame = self._frames[number]
        if frame.active:
            self._advance(frame, step + 1)
        if number is not None and step + 1 == self._network.program.loops[number].last:
            self._end_step(frame)

    # -- steps of loops -------------------------------------------------------------------------

    def _enter(self, number: int | None, iterations: Sequence[int]) -> None:
        """Begin the current step of a loop, and of those around it, unless it has begun."""
        if number is None:
            return
        frame = self._frames[number]
        self._enter(frame.parent, iterations)
        step = iterations[number]
        if frame.step == step:
            return
        frame.step, frame.position = step, 0
        frame.ended.clear()
        around = self._frames[frame.parent]
        frame.active = around.active and self._is_chosen(number, step)
        frame.values = {**frame.plan.graph.constants}
        if frame.active:
            for name in frame.plan.graph.inputs:
                frame.values[name] = self._read(frame, name, frame.tensors[name])
            frame.moves_right = frame.moves_right and self._begins_right(frame, around)

    def _is_chosen(self, number: int, step: int) -> bool:
        steps = self._chosen[number]
        return step in steps or (not steps and (step < 4 or step & (step - 1) == 0))

    def _begins_right(self, frame: _Frame, around: _Frame) -> bool:
        """Compare the inputs of a step with the tensors that they are parts or copies of."""
        loop, operator, step = frame.loop, frame.operator, frame.step
        assert operator is not None
        assert step is not None
        _, initial, scanned, invariant = loop.split_inputs(operator.inputs)
        numbers, states, slices, same = loop.body_inputs
        expected: dict[str, Array] = {name: np.asarray(step, np.int64) for name in numbers}
        expected |= {a: around.values[b] for a, b in zip(same, invariant, strict=True)}
        for name, tensor, backwards in zip(slices, scanned, loop.scanned, strict=True):
            limit = self._limit(frame, around)
            expected[name] = around.values[tensor][loop.place(step, backwards, limit)]
        if step == 0:
            expected |= {a: around.values[b] for a, b in zip(states, initial, strict=True)}
        elif step - 1 in frame.ends:
            expected |= zip(states, self._states(frame, step - 1), strict=True)
        return all(_is_same(frame.values[name], array) for name, array in expected.items())

    def _end_step(self, frame: _Frame) -> None:
        """Record the outputs of a step."""
        around = self._frames[frame.parent]
        assert frame.step is not None
        if frame.active or (around.active and not frame.loop.is_fixed):
            names = frame.plan.graph.outputs
            frame.ends[frame.step] = tuple(
                self._read(frame, name, frame.results[name], plain=True) for name in names
            )

    def _states(self, frame: _Frame, step: int) -> tuple[Array, ...]:
        first = int(frame.loop.conditional)
        return frame.ends[step][first : first + frame.loop.states]

    def _end_loop(self, number: int, iterations: Sequence[int]) -> None:
        frame = self._frames[number]
        # A loop of no steps has begun no step, and neither may have the loops around it.
        self._enter(frame.parent, iterations)
        around, operator = self._frames[frame.parent], frame.operator
        assert operator is not None
        if around.active:
            for name in operator.outputs:
                around.values[name] = self._read(around, name, around.tensors[name])
            is_right = frame.moves_right and self._ends_right(frame, around, iterations[number])
            self._add(Verdict(operator.name, 0.0 if is_right else np.inf, 0.0))
            around.ended.add(operator.name)
        frame.step, frame.moves_right = None, True
        frame.ends.clear()
        if around.active:
            self._advance(around, self._network.program.loops[number].last)

    def _ends_right(self, frame: _Frame, around: _Frame, count: int) -> bool:
        """Compare the results of a loop with those of its steps."""
        loop, operator = frame.loop, frame.operator
        assert operator is not None
        controls, initial, _, _ = loop.split_inputs(operator.inputs)
        limit = self._limit(frame, around)
        goes_on = True
        if loop.conditional:
            first = bool(around.values[controls[-1]])
            goes_on = bool(frame.ends[count - 1][0]) if count else first
        # It ends at its limit, or by its condition.
        if (limit is not None and count > limit) or (goes_on and count != limit):
            return False
        finals = [around.values[name] for name in operator.outputs]
        begun = [around.values[name] for name in initial]
        expected = self._states(frame, count - 1) if count else begun
        right = all(_is_same(a, b) for a, b in zip(finals, expected, strict=False))
        collected = finals[loop.states :]
        for step, outputs in frame.ends.items():
            parts = outputs[int(loop.conditional) + loop.states :]
            for part, result, backwards in zip(parts, collected, loop.results, strict=True):
                right = right and _is_same(result[loop.place(step, backwards, limit)], part)
        if loop.padded:
            right = right and not any(result[count:].any() for result in collected)
        return right

    def _limit(self, frame: _Frame, around: _Frame) -> int | None:
        """Return the largest number of steps of the run of a loop."""
        assert frame.operator is not None
        controls, _, _, _ = frame.loop.split_inputs(frame.operator.inputs)
        return frame.loop.limit([around.values[name] for name in controls])

    # -- operators ------------------------------------------------------------------------------

    def _advance(self, frame: _Frame, executed: int) -> None:
        """Compare the operators whose calls are complete."""
        operators = frame.plan.graph.operators
        while frame.position < len(operators):
            operator = operators[frame.position]
            if isinstance(operator.kind, Loop):
                if operator.name not in frame.ended:
                    return
            elif self._network.calls[operator.name][1] > executed:
                return
            else:
                self._observe(frame, operator)
            frame.position += 1

    def _observe(self, frame: _Frame, operator: Operator) -> None:
        """Read the results of an operator and compare them."""
        execution = frame.plan.execution(operator)
        if execution.is_deferred:
            inputs = [frame.values[name] for name in operator.inputs]
            frame.values[operator.output] = operator.kind.evaluate(inputs)[0]
            return
        for name in operator.outputs:
            frame.values[name] = self._read(frame, name, frame.tensors[name])
        verdict = self._compare(frame.plan, operator, frame.values)
        if execution.fused_with is not None:
            self._add(replace(verdict, operator=execution.fused_with))
        self._add(verdict)

    def _add(self, verdict: Verdict) -> None:
        earlier = self.verdicts.get(verdict.operator)
        self.verdicts[verdict.operator] = verdict if earlier is None else earlier.joined(verdict)
        self._progress(len(self.verdicts))

    def _read(self, frame: _Frame, name: str, buffer: str, *, plain: bool = False) -> Array:
        """Return a tensor in its shape and type, from its buffer."""
        kind = frame.plan.graph.types[name]
        layout = Layout.plain(kind.shape) if plain else frame.plan.written[name]
        # Nothing computes a tensor without elements, so the library has no memory of it.
        if not kind.elements:
            return np.zeros(kind.shape, kind.dtype)
        array = self._library.tensor(buffer)
        return as_typed(layout.elements_of(array[: layout.elements]), kind.dtype)


def _chosen_steps(loop: Loop, random: np.random.Generator) -> set[int]:
    """Return the steps whose operators are compared; none for a number that is computed."""
    if not loop.is_fixed or loop.steps is None:
        return set()
    middle = int(random.integers(loop.steps))
    steps = {0, 1, loop.steps - 2, loop.steps - 1, middle, middle + 1}
    return {step for step in steps if 0 <= step < loop.steps}


def _is_same(actual: Array, expected: Array) -> bool:
    return difference(actual, np.asarray(expected).reshape(actual.shape)) == 0.0
