"""Program of a loop: the calls of its body, and the copies between its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cpembed.codegen.values import storage_type
from cpembed.export.layout import ALIGNMENT
from cpembed.export.program import Buffer, CallLoop, Move, Moving, Role
from cpembed.graph.graph import Operator
from cpembed.graph.kinds import TensorType
from cpembed.graph.loop import Loop
from cpembed.network.layout import Layout

if TYPE_CHECKING:
    from cpembed.network.program import ProgramBuilder


@dataclass
class LoopBuilder:
    """Buffers and moves of a loop while the program around it is built."""

    outer: ProgramBuilder
    operator: Operator
    kind: Loop
    body: ProgramBuilder
    moves: list[Move] = field(default_factory=list[Move])

    def make(self) -> int:
        """Add the loop to the program, and return its number."""
        kind, loops, calls = self.kind, self.outer.loops, self.outer.calls
        number, first = len(loops), len(calls)
        controls, states, scanned, invariant = kind.split_inputs(self.operator.inputs)
        numbers, state_names, slices, invariant_names = kind.body_inputs
        sources = [self._source(name) for name in controls]
        # Its place among the loops comes before those inside it, which the body adds.
        loop = CallLoop(self.operator.name, first, first, kind.steps, (), parent=self.outer.loop)
        loops.append(loop)
        counter = self._memory(numbers[0]) if numbers else None
        current = [
            self._begun(name, tensor) for name, tensor in zip(state_names, states, strict=True)
        ]
        for name, tensor, backwards in zip(slices, scanned, kind.scanned, strict=True):
            self._slice(name, tensor, backwards)
        for name, tensor in zip(invariant_names, invariant, strict=True):
            self.body.bind(name, self._source(tensor))
        self.body.make_operators()
        again = self._end_steps(current)
        limit = sources[0] if kind.limited else None
        condition = sources[-1] if kind.conditional else None
        loops[number] = CallLoop(
            name=self.operator.name,
            first=first,
            last=len(calls),
            steps=kind.steps,
            moves=tuple(self.moves),
            number=counter,
            limit=limit,
            condition=condition,
            again=again,
            parent=self.outer.loop,
            padded=kind.padded,
        )
        return number

    def _source(self, tensor: str) -> str:
        """Return the buffer of a tensor outside of the loop, in row-major order."""
        graph = self.outer.plan.graph
        kind = graph.types[tensor]
        if graph.is_constant(tensor):
            return self.outer.constant(graph.constants[tensor], storage_type(kind.dtype))
        return self.outer.place(tensor, Layout.plain(kind.shape))

    def _memory(self, name: str) -> str:
        """Add memory for an input of the body, which lives as long as the loop."""
        buffer = self._added(name, self.kind.body.inputs[name], Role.WORKSPACE)
        self.body.bind(name, buffer)
        return buffer

    def _added(self, name: str, kind: TensorType, role: Role) -> str:
        label = self.outer.unused(f"{self.body.prefix}{name}")
        dtype = storage_type(kind.dtype)
        self.outer.buffers[label] = Buffer(label, dtype, kind.elements, role)
        return label

    def _begun(self, name: str, initial: str) -> str:
        """Add a state, which begins as a copy of the initial one."""
        state = self._memory(name)
        self.moves.append(Move(Moving.START, self._source(initial), state))
        return state

    def _slice(self, name: str, tensor: str, backwards: bool) -> None:
        """Let the body read a slice in place where it is aligned, or else a copy of it."""
        kind, source = self.kind.body.inputs[name], self._source(tensor)
        slice_bytes = self.outer.buffers[source].bytes // max(1, self.kind.steps or 0)
        in_place = slice_bytes % ALIGNMENT == 0
        buffer = self._added(name, kind, Role.WINDOW if in_place else Role.WORKSPACE)
        self.moves.append(Move(Moving.VIEW if in_place else Moving.READ, source, buffer, backwards))
        self.body.bind(name, buffer)

    def _end_steps(self, current: Sequence[str]) -> str | None:
        """Add the moves after each step and after the last one; return the condition's buffer."""
        kind, results = self.kind, self.body.results
        conditions, states, parts = kind.body_outputs
        finals, collected = (
            self.operator.outputs[: kind.states], self.operator.outputs[kind.states :]
        )  # fmt: skip
        for part, result, backwards in zip(parts, collected, kind.results, strict=True):
            self.moves.append(Move(Moving.WRITE, results[part], self._source(result), backwards))
        swapped: set[str] = set()
        for name, buffer in zip(states, current, strict=True):
            # Memory is exchanged once; a second state of the same value is a copy.
            moving = Moving.COPY if name in swapped else Moving.SWAP
            swapped.add(name)
            self.moves.append(Move(moving, results[name], buffer))
        for buffer, final in zip(current, finals, strict=True):
            self.moves.append(Move(Moving.FINISH, buffer, self._source(final)))
        return results[conditions[0]] if conditions else None
