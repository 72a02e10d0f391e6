"""Short texts that several reports share: sizes, counts, mappings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cpembed.embedding.embedding import Digit, Embedding
from cpembed.hw.instruction import OperandMemory
from cpembed.ir.computation import Computation
from cpembed.wording import plural, shape

NOTHING = "·"
"""Stands where an instruction axis takes one step and no workload axis feeds it."""


def tile(memory: OperandMemory, extents: Mapping[str, int]) -> str:
    """``vta.inp [x, z] 1x16``: the memory that holds an operand's tile, its order and shape."""
    order = ", ".join(str(dimension) for dimension in memory.tile)
    return f"{memory.scope} [{order}] {shape(memory.tile_shape(extents))}"


def digit(item: Digit) -> str:
    """``q:14``, or ``q:14 by 2`` where consecutive steps are 2 apart."""
    return f"{item.axis}:{item.count}" + (f" by {item.stride}" if item.stride > 1 else "")


def feeds(embedding: Embedding) -> list[str]:
    """Per instruction axis ``z ← c:16 r:3``: innermost digit first."""
    return [
        f"{axis} ← {' '.join(digit(item) for item in digits) or NOTHING}"
        for axis, digits in embedding.digits.items()
    ]


def mapping(embedding: Embedding, width: int | None = None) -> str:
    """``x ← q:14   y ← k:16   z ← c:16 r:3``; a line that would be wider than ``width`` ends
    between two instruction axes.

    >>> from cpembed.embedding.embedding import Digit
    >>> digits = {"x": (Digit("q", 14),), "y": (Digit("k", 16),), "z": ()}
    >>> mapping(Embedding({}, {"x": 14, "y": 16, "z": 1}, digits), width=20).splitlines()
    ['x ← q:14   y ← k:16', 'z ← ·']
    """
    lines: list[str] = []
    for part in feeds(embedding):
        longer = f"{lines[-1]}   {part}" if lines else part
        if lines and (width is None or len(longer) <= width):
            lines[-1] = longer
        else:
            lines.append(part)
    return "\n".join(lines)


def legend(embeddings: Iterable[Embedding]) -> str:
    """How mappings are read: an example of each form that is in them.

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
    return "mapping: " + "; ".join(_forms(embeddings).values())


def unusual(embedding: Embedding) -> str:
    """The legend of what is in a mapping beside ``axis:count``; empty where that is all.

    >>> unusual(Embedding({}, {"x": 4}, {"x": (Digit("p", 4, 14),)}))
    'p:4 by 14 is 4 steps along p, 14 apart'
    >>> unusual(Embedding({}, {"x": 4, "y": 1}, {"x": (Digit("p", 4),), "y": ()}))
    ''
    """
    forms = _forms([embedding])
    return "; ".join(text for form, text in forms.items() if form not in ("plain", "empty"))


def _forms(embeddings: Iterable[Embedding]) -> dict[str, str]:
    """Form of a mapping -> an example in words, in a fixed order."""
    found: dict[str, str] = {}
    for embedding in embeddings:
        for digits in embedding.digits.values():
            if not digits:
                found["empty"] = f"{NOTHING} is one step"
            if len(digits) > 1:
                found["several"] = "of several the first varies fastest"
            for item in digits:
                steps = f"{digit(item)} is {plural(item.count, 'step')} along {item.axis}"
                if item.stride > 1:
                    found.setdefault("strided", f"{steps}, {item.stride} apart")
                else:
                    found.setdefault("plain", steps)
        for name, axes in embedding.flattened.items():
            listed = f"{', '.join(axes[:-1])} and {axes[-1]}"
            found.setdefault("fused", f"{name} is {listed} as one axis")
    order = ("plain", "strided", "several", "empty", "fused")
    return {form: found[form] for form in order if form in found}


def dtypes(computation: Computation) -> str:
    """``I int8  W int8  O int32``."""
    return "  ".join(f"{operand.name} {operand.dtype}" for operand in computation.operands)


def place(rank: int, of: str, searched: str) -> str:
    """``rank 3``, with the set whose ranking it is of where that is not the one searched."""
    return f"rank {rank}" if of == searched else f"rank {rank} of {of}"
