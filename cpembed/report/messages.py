"""Short texts that several reports share: mappings, tiles, element types, ranks, numbers of
layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cpembed.embedding.embedding import Digit, Embedding
from cpembed.hw.instruction import OperandMemory
from cpembed.ir.computation import Computation
from cpembed.wording import plural, shape

EMPTY = "·"
"""Mark of an instruction axis that takes one step and that no workload axis feeds; of empty cells
too."""

_LISTED = 12
"""Maximum number of layers that are listed before the others are only counted."""


def tile_text(memory: OperandMemory, extents: Mapping[str, int]) -> str:
    """Return memory, axis order and shape of an operand's tile: ``vta.inp [x, z] 1x16``."""
    order = ", ".join(str(dimension) for dimension in memory.tile)
    return f"{memory.scope} [{order}] {shape(memory.tile_shape(extents))}"


def digit_text(digit: Digit) -> str:
    """Return ``q:14``, or ``q:14 by 2`` if consecutive steps are 2 apart."""
    return f"{digit.axis}:{digit.count}" + (f" by {digit.stride}" if digit.stride > 1 else "")


def axis_texts(embedding: Embedding) -> list[str]:
    """Return ``z ← c:16 r:3`` for each instruction axis, innermost digit first."""
    return [
        f"{axis} ← {' '.join(map(digit_text, digits)) or EMPTY}"
        for axis, digits in embedding.digits.items()
    ]


def mapping_text(embedding: Embedding, width: int | None = None) -> str:
    """Return ``x ← q:14   y ← k:16   z ← c:16 r:3``, broken between two instruction axes where a
    line would be wider than ``width``.

    >>> from cpembed.embedding.embedding import Digit
    >>> digits = {"x": (Digit("q", 14),), "y": (Digit("k", 16),), "z": ()}
    >>> embedding = Embedding({}, {"x": 14, "y": 16, "z": 1}, digits)
    >>> mapping_text(embedding, width=20).splitlines()
    ['x ← q:14   y ← k:16', 'z ← ·']
    """
    lines: list[str] = []
    for part in axis_texts(embedding):
        longer = f"{lines[-1]}   {part}" if lines else part
        if lines and (width is None or len(longer) <= width):
            lines[-1] = longer
        else:
            lines.append(part)
    return "\n".join(lines)


def legend(embeddings: Iterable[Embedding]) -> str:
    """Return a line that explains the notation of mappings, with an example of each form in them.

    >>> digits = {"x": (Digit("p", 4, 14), Digit("q", 4)), "y": (), "z": (Digit("c_r", 16),)}
    >>> embedding = Embedding({}, {"x": 16, "y": 1, "z": 16}, digits, {}, {"c_r": ("c", "r")})
    >>> for line in legend([embedding]).split("; "):
    ...     print(line)
    mapping: q:4 is 4 steps along q
    p:4 by 14 is 4 steps along p, 14 apart
    of several the first varies fastest
    · is one step
    c_r is c and r as one axis
    """
    return "mapping: " + "; ".join(_notation(embeddings).values())


def special_notation(embedding: Embedding) -> str:
    """Return the legend of a mapping's forms beyond ``axis:count``; empty if it has no others.

    >>> special_notation(Embedding({}, {"x": 4}, {"x": (Digit("p", 4, 14),)}))
    'p:4 by 14 is 4 steps along p, 14 apart'
    >>> special_notation(Embedding({}, {"x": 4, "y": 1}, {"x": (Digit("p", 4),), "y": ()}))
    ''
    """
    forms = _notation([embedding])
    return "; ".join(text for form, text in forms.items() if form not in ("plain", "empty"))


def _notation(embeddings: Iterable[Embedding]) -> dict[str, str]:
    """Return an example of each form of digits, explained, in a fixed order."""
    examples: dict[str, str] = {}
    for embedding in embeddings:
        for digits in embedding.digits.values():
            if not digits:
                examples["empty"] = f"{EMPTY} is one step"
            if len(digits) > 1:
                examples["several"] = "of several the first varies fastest"
            for digit in digits:
                steps = f"{digit_text(digit)} is {plural(digit.count, 'step')} along {digit.axis}"
                if digit.stride > 1:
                    examples.setdefault("strided", f"{steps}, {digit.stride} apart")
                else:
                    examples.setdefault("plain", steps)
        for name, axes in embedding.flattened.items():
            listed = f"{', '.join(axes[:-1])} and {axes[-1]}"
            examples.setdefault("fused", f"{name} is {listed} as one axis")
    order = ("plain", "strided", "several", "empty", "fused")
    return {form: examples[form] for form in order if form in examples}


def dtypes_text(computation: Computation) -> str:
    """Return ``I int8  W int8  O int32``."""
    return "  ".join(f"{operand.name} {operand.dtype}" for operand in computation.operands)


def rank_text(rank: int, constraints: str, searched: str) -> str:
    """Return ``rank 3``, with the ranking's constraint set unless that is the searched one.

    Parameters
    ----------
    rank
        Place of a candidate.
    constraints
        Constraint set whose ranking it is.
    searched
        Constraint set that was searched.
    """
    return f"rank {rank}" if constraints == searched else f"rank {rank} of {constraints}"


def layer_numbers(layers: Sequence[int]) -> str:
    """Return ``0, 3, 5``, the first of many, with the number of others."""
    listed = ", ".join(map(str, layers[:_LISTED]))
    more = len(layers) - _LISTED
    return listed + (f" and {more} more" if more > 0 else "")


def percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"
