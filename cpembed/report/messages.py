"""Texts and tables that several reports share: mappings, tiles, ranks, targets side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from cpembed.blocks import Table
from cpembed.embedding.embedding import Embedding
from cpembed.hw.instruction import OperandMemory
from cpembed.ir.computation import Computation
from cpembed.wording import amount, count, data_size, plural, shape

if TYPE_CHECKING:
    from cpembed.cost.ranking import RankedCandidate
    from cpembed.driver.across import Figure, Line, TimeSum

EMPTY = "·"
"""Mark of an instruction axis of one step that no workload axis feeds, and of empty cells."""

# Maximum number of layers that are listed before the others are only counted.
_LISTED = 12


def tile_text(memory: OperandMemory, extents: Mapping[str, int]) -> str:
    """Return memory, axis order and shape of an operand's tile: ``vta.inp [x, z] 1x16``."""
    order = ", ".join(str(dimension) for dimension in memory.tile)
    return f"{memory.scope} [{order}] {shape(memory.tile_shape(extents))}"


def mapping_text(embedding: Embedding, width: int | None = None) -> str:
    """Return ``x ← q:14   y ← k:16   z ← c:16 r:3``.

    It is broken between two instruction axes where a line would be wider than ``width``.

    >>> from cpembed.embedding.embedding import Digit
    >>> digits = {"x": (Digit("q", 14),), "y": (Digit("k", 16),), "z": ()}
    >>> embedding = Embedding({}, {"x": 14, "y": 16, "z": 1}, digits)
    >>> mapping_text(embedding, width=20).splitlines()
    ['x ← q:14   y ← k:16', 'z ← ·']
    """
    lines: list[str] = []
    for part in embedding.axis_texts:
        longer = f"{lines[-1]}   {part}" if lines else part
        # Broken only between instruction axes: a digit is read as one word.
        if lines and (width is None or len(longer) <= width):
            lines[-1] = longer
        else:
            lines.append(part)
    return "\n".join(lines)


def legend(embeddings: Iterable[Embedding]) -> str:
    """Return a line that explains the notation of mappings, with an example of each form in them.

    >>> from cpembed.embedding.embedding import Digit
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

    >>> from cpembed.embedding.embedding import Digit
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
                steps = f"{digit} is {plural(digit.count, 'step')} along {digit.axis}"
                if digit.stride > 1:
                    examples.setdefault("strided", f"{steps}, {digit.stride} apart")
                else:
                    examples.setdefault("plain", steps)
        for name, axes in embedding.flattened.items():
            members = f"{', '.join(axes[:-1])} and {axes[-1]}"
            examples.setdefault("fused", f"{name} is {members} as one axis")
    # Fixed, so that legends of different workloads read alike.
    order = ("plain", "strided", "several", "empty", "fused")
    return {form: examples[form] for form in order if form in examples}


def dtypes_text(computation: Computation) -> str:
    """Return ``I int8  W int8  O int32``."""
    return "  ".join(f"{operand.name} {operand.dtype}" for operand in computation.operands)


def rank_text(candidate: RankedCandidate, searched: str) -> str:
    """Return ``rank 3``, with the ranking's constraint set unless that is the ``searched`` one."""
    other_set = "" if candidate.constraints == searched else f" of {candidate.constraints}"
    return f"rank {candidate.rank}{other_set}"


def layer_numbers(layers: Sequence[int]) -> str:
    """Return ``0, 3, 5``, the first of many, with the number of others."""
    return listed(layers, _LISTED)


def listed(items: Sequence[object], longest: int) -> str:
    """Return the first items as a comma list, with the number of others.

    >>> listed([0, 3, 5, 7], 3)
    '0, 3, 5 and 1 more'
    """
    more = len(items) - longest
    return ", ".join(map(str, items[:longest])) + (f" and {more} more" if more > 0 else "")


def percent(share: float | None) -> str:
    """Return a share as ``12.3%``; empty if it is unknown."""
    return "" if share is None else f"{share:.1%}"


# -- targets side by side ------------------------------------------------------------------------

LEGEND = (
    "used: mean share of the instruction's MACs that is useful, of the embedded layers; "
    "by MACs: of all that the instructions multiply\n"
    "moved: bytes that packing and unpacking read and write; microseconds include them, except for "
    "weights, which are packed ahead; cycles do not"
)

_LAYER_WIDTH = 48

OUTCOMES = {"no": "not embedded", "stopped": "stopped by the time limit", "failed": "search failed"}
"""Texts of the outcomes of searches without an embedding."""


def layer_table(
    layers: Sequence[tuple[str, ...]],
    head: Sequence[str],
    targets: Sequence[str],
    figures: Mapping[str, Sequence[Figure | None]],
) -> Table:
    """Return a table with a row for each layer and two columns for each target.

    They are the used share of the instruction, and the time.

    Parameters
    ----------
    layers
        First cells of each row.
    head
        Names of their columns.
    targets
        Names of the targets.
    figures
        Results by target, one for each layer; None where a target has no such layer.
    """
    columns = [*head, *(name for target in targets for name in (f"{target}>", "time>"))]
    rows = (
        [*cells, *(text for target in targets for text in _cells(target, figures[target][number]))]
        for number, cells in enumerate(layers)
    )
    return Table(columns, rows, dict.fromkeys(head, _LAYER_WIDTH), keys=len(head))


def _cells(target: str, figure: Figure | None) -> tuple[str, str]:
    if figure is None:
        return "", ""
    if figure.embedded_on is None:
        return OUTCOMES.get(figure.outcome, figure.outcome), ""
    # An alternative of the target took the layer, as its file declares.
    alternative = "" if figure.embedded_on == target else f"{figure.embedded_on} "
    time = "" if figure.time is None else amount(figure.time.amount, figure.time.unit)
    return alternative + percent(figure.utilisation), time


def target_table(lines: Iterable[Line]) -> Table:
    """Return a table with a row for each target: layers, used share, packed bytes, and times."""
    return Table(
        ("target", "embedded>", "MACs>", "used>", "by MACs>", "moved>", "time"),
        (
            (
                line.target,
                f"{line.embedded} of {line.layers}",
                share_text(line.embedded_macs, line.macs),
                percent(line.use),
                percent(line.use_by_macs),
                data_size(line.moved_bytes),
                times_text(line),
            )
            for line in lines
        ),
    )


def times_text(line: Line) -> str:
    """Return ``1.2 ms measured (18 layers), 30 us estimated (2 layers)``.

    The numbers of layers are there only if not all have the same kind of time.
    """

    def text(origin: str, total: TimeSum) -> str:
        time = f"{amount(total.amount, total.unit)} {origin.removesuffix(f' in {total.unit}')}"
        # Times of different kinds or machines are not added: each has its number of layers.
        is_of_all = total.layers == line.layers
        return time if is_of_all else f"{time} ({plural(total.layers, 'layer')})"

    return ", ".join(text(origin, total) for origin, total in line.times.items()) or "unknown"


def share_text(part: float, total: float) -> str:
    """Return a part of a total as ``12.3%``; ``none`` of nothing."""
    return f"{part / total:.1%}" if total else "none"


def macs_text(macs: int) -> str:
    """Return a number of MACs as ``115.6 M``; empty for none."""
    return count(macs) if macs else ""


def short_names(names: Sequence[str]) -> list[str]:
    """Return the last parts of dotted names, as many as make each of them distinct.

    >>> short_names(["instruction.axes.x", "memories.a.banks", "memories.b.banks"])
    ['x', 'a.banks', 'b.banks']
    """
    parts = [name.split(".") for name in names]

    def short(place: int) -> str:
        for length in range(1, len(parts[place])):
            tail = parts[place][-length:]
            if sum(each[-length:] == tail for each in parts) == 1:
                return ".".join(tail)
        return names[place]

    return [short(place) for place in range(len(names))]
