"""Rows of buffers: when each holds something that is still needed, and where it lies.

Time is counted within one tile of the main statement's output. Each statement has three moments:
what it reads is moved to where it reads it, it is executed, and what it completes is stored. A
buffer whose contents outlive the tile is needed all the time.

Buffers that are never needed at the same moment may have the same rows. An instruction may write
its output over an input that nothing reads afterwards, where its description allows that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cpembed.accelerator.buffer_specs import BufferSpec
from cpembed.accelerator.template import Template

Key = tuple[str, str]
"""Tensor and memory of a buffer."""

_MOMENTS = 3
"""Moments of a statement: moves, execution and stores."""


@dataclass(frozen=True)
class Lifetime:
    """First and last moment at which the contents of a buffer are needed."""

    first: int
    last: int

    def meets(self, second: Lifetime) -> bool:
        """True if there is a moment at which both are needed."""
        return self.first <= second.last and second.first <= self.last

    def joined(self, second: Lifetime) -> Lifetime:
        """Return the lifetime of contents that take the place of each other."""
        return Lifetime(min(self.first, second.first), max(self.last, second.last))


def lifetimes(template: Template) -> dict[Key, Lifetime]:
    """Return the lifetime of each buffer within a tile of the main statement's output."""
    return {spec.key: _lifetime(template, spec) for spec in template.buffers}


def _filled_at(template: Template, spec: BufferSpec) -> int:
    """Return the moment at which a buffer gets its contents."""
    if spec.is_outgoing:
        return _MOMENTS * spec.first_use + 2
    is_written = not spec.load and not template.needs_fill(template.steps[spec.first_use])
    return _MOMENTS * spec.first_use + is_written


def _lifetime(template: Template, spec: BufferSpec) -> Lifetime:
    first = _filled_at(template, spec)
    last = max((_MOMENTS * n + 1 for n, _ in spec.uses), default=first)
    if spec.store:
        writer = template.last_writer(spec)
        last = max(last, first if writer is None else _MOMENTS * writer + 2)
    for reader in template.buffers:
        if reader.load and reader.tensor == spec.tensor and reader.load[0] == spec.memory:
            last = max(last, _filled_at(template, reader))
            if reader.role == "granule":
                # It is filled anew for each execution.
                last = max(last, _MOMENTS * reader.first_use + 1)
    return Lifetime(first, last)


def overwritten(template: Template, lived: Mapping[Key, Lifetime]) -> dict[Key, Key]:
    """Return for buffers the one whose rows they may be written over, element by element."""
    homes = {spec.key for spec in template.buffers if spec.is_home}
    pairs: dict[Key, Key] = {}
    for step in template.steps:
        (operand,) = step.instruction.outputs
        output = step.tensor(operand), step.instruction.places[operand].memory
        now = _MOMENTS * step.number + 1
        for name in sorted(step.match.in_place):
            key = step.tensor(name), step.instruction.places[name].memory
            if key not in lived or output not in lived or {key, output} & homes:
                continue
            is_last = lived[key].last == now and lived[output].first == now
            if is_last and key[1] == output[1] and key not in pairs.values():
                pairs.setdefault(output, key)
    return pairs


def moments(template: Template) -> dict[Key, range]:
    """Return the moments at which each buffer has rows of its own.

    A buffer that is written over another one has none while the other one is still needed.
    """
    lived = lifetimes(template)
    heirs = overwritten(template, lived)
    return {key: range(t.first + (key in heirs), t.last + 1) for key, t in lived.items()}


@dataclass(frozen=True)
class Need:
    """Rows that are needed from the first to the last moment of a lifetime.

    ``lifetime`` is None for rows that are needed all the time.
    """

    rows: int
    lifetime: Lifetime | None

    def meets(self, second: Need) -> bool:
        """True if there is a moment at which both are needed."""
        if self.lifetime is None or second.lifetime is None:
            return True
        return self.lifetime.meets(second.lifetime)


def placed(needs: Sequence[Need]) -> list[int]:
    """Return a first row for each need, such that those of one moment have different rows.

    The largest are placed first, each as low as it can be.
    """
    offsets: dict[int, int] = {}
    for number in sorted(range(len(needs)), key=lambda n: (-needs[n].rows, n)):
        need = needs[number]
        occupied = sorted(
            (offset, offset + needs[earlier].rows)
            for earlier, offset in offsets.items()
            if need.meets(needs[earlier])
        )
        row = 0
        for start, end in occupied:
            if start >= row + need.rows:
                break
            row = max(row, end)
        offsets[number] = row
    return [offsets[n] for n in range(len(needs))]
