"""Softmax of a tile of scores: powers of two, with the maximum and the sum of each row so far.

Rows are taken in groups: their maxima first, then the statistics of the group as one vector, then
the powers. So the combinations of lanes of several rows overlap in time, which those of one row,
each waiting for the one before, would not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from cpembed.codegen.approximations import APPROXIMATIONS, exp2_below
from cpembed.codegen.values import Value, converted, literal
from cpembed.graph.kinds import Attention
from cpembed.network.operators.attention_tiles import Tiles
from cpembed.network.operators.emission import (
    LANE,
    SERIAL,
    VECTORIZED,
    Kernel,
    combined_lanes,
    vector_runs,
    vector_size,
)
from cpembed.network.operators.nest import PlacedTensor

MAXIMUM_LANES = 32
"""Maximum number of scores per vector where their maximum is computed."""

POWER_LANES = 16
"""Maximum number of scores per vector of powers: with 32, constants leave AVX2's registers."""

ROW_GROUP = 8
"""Maximum number of rows of a group, whose scores stay in the first-level cache."""

STATISTICS = 4
"""Numbers of a row: its maximum, its sum, the factor of earlier results, and the tile's maximum,
which becomes what is subtracted from scores."""

_MAXIMUM, _SUM, _RESCALING, _CENTRE = range(STATISTICS)
LOWEST = 'T.float32("-inf")'
"""Text of the maximum of no scores."""


def larger(first: str, second: str) -> str:
    """Return the text of the larger of two scores; the second one if that is NaN."""
    return f"T.max({first}, {second})"


def added(first: str, second: str) -> str:
    """Return the text of the sum of two numbers."""
    return f"{first} + {second}"


@dataclass(frozen=True)
class TileSoftmax:
    """Text of the softmax of a tile.

    Attributes
    ----------
    kernel : Kernel
        Kernel that is written.
    mask : PlacedTensor or None
        Mask of the scores, the kernel's fourth input.
    start : function from str to str
        Text of the first place of the thread's part of a buffer, by the buffer's name.
    """

    kernel: Kernel
    kind: Attention
    tiles: Tiles
    mask: PlacedTensor | None
    start: Callable[[str], str]

    @property
    def is_raw(self) -> bool:
        """True if scores are compared without their scale, which is a factor of the exponents."""
        return self.mask is None and not self.kind.softcap and self.kind.scale > 0

    @property
    def factor(self) -> str:
        """Text of the factor from differences of scores to exponents of 2."""
        scale = self.kind.scale if self.is_raw else 1.0
        return literal(scale / math.log(2), "float32")

    def power(self, score: str, centre: str) -> str:
        """Write the power of a score's difference from a ``centre``, and return its name."""
        exponent = self.kernel.bind(f"({score} - {centre}) * {self.factor}")
        return exp2_below(self.kernel.bind, exponent)

    def write(self) -> None:
        """Write the powers of all scores of a tile, and the statistics of its rows."""
        condition = self._is_full()
        if condition is None:
            self._write_rows(is_full=True)
            return
        # Tiles that no limit crosses, which are most of many, need no comparisons.
        with self.kernel.script.nested(f"if {condition}:"):
            self._write_rows(is_full=True)
        with self.kernel.script.nested("else:"):
            self._write_rows(is_full=False)

    def statistic(self, number: int, row: str) -> str:
        """Return the element that holds a number of a row.

        >>> [_MAXIMUM, _SUM, _RESCALING, _CENTRE]
        [0, 1, 2, 3]
        """
        return f"statistics[{self.start('statistics')} + {number * self.tiles.rows} + {row}]"

    # ------------------------------------------------------------------------------- limits

    def _is_full(self) -> str | None:
        """Return the condition that all keys of a tile count for all rows; None if they always do.

        Of causal rows, the first one has the fewest keys.
        """
        tiles, conditions = self.tiles, list[str]()
        if self.kind.causal is not None:
            conditions.append(f"{self._last_key('0')} >= {tiles.keys - 1}")
        if tiles.extents["n"] % tiles.keys:
            conditions.append(f"tile * {tiles.keys} == first_key")
        return " and ".join(conditions) or None

    def _last_key(self, row: str) -> str:
        """Return the last key of a tile that a row has."""
        number = f"first_row + {row}" if self.tiles.row_axis == "s" else "0"
        return f"{number} + {self.kind.causal} - first_key"

    def _limit(self, row: str, is_full: bool) -> str | None:
        """Write the last key of a tile that a row has; None if it has all."""
        if is_full or self.kind.causal is None:
            return None
        return self.kernel.bind(self._last_key(row))

    def any_visible(self) -> str | None:
        """Write whether a mask leaves a tile any key; return the condition, None without need.

        A cache has more places than tokens so far, and tiles behind these need not be read.
        """
        kernel, mask = self.kernel, self.mask
        if mask is None or self.tiles.tiles == 1 or mask.shape[-1:] in ((), (1,)):
            return None
        if mask.dtype == "bool" and self.kind.excluded != -math.inf:
            return None
        varies = len(mask.shape) > (1 if self.tiles.row_axis == "s" else 2)
        axis = -2 if self.tiles.row_axis == "s" else -3
        rows = self.tiles.rows if varies and mask.shape[axis] > 1 else 1
        lanes = vector_size(self.tiles.keys, MAXIMUM_LANES)
        visible = kernel.accumulators(lanes, "float32", "T.float32(0)")
        hidden = "T.uint8(0)" if mask.dtype == "bool" else LOWEST
        with kernel.script.nested(f"for member in T.serial({rows}):"):
            for at, size in vectors(kernel, self.tiles.keys, lanes):
                with kernel.vectorized(size):
                    element = f"in3[{self._mask_place(mask, 'member', at)}]"
                    counts = f"T.Select({element} == {hidden}, T.float32(0), T.float32(1))"
                    place = f"{visible}[{LANE}]"
                    kernel.script.line(f"{place} = T.max({counts}, {place})")
        return f"{combined_lanes(kernel, visible, lanes, 'float32', larger)} > T.float32(0)"

    # --------------------------------------------------------------------------------- rows

    def _write_rows(self, *, is_full: bool) -> None:
        kernel, script = self.kernel, self.kernel.script
        for first, size in vectors(kernel, self.tiles.rows, ROW_GROUP):
            with script.nested(f"for member in T.serial({size}):"):
                self._write_maximum(f"({first} + member)", is_full)
            with kernel.vectorized(size):
                self._write_statistics(f"({first} + {LANE})")
            with script.nested(f"for member in T.serial({size}):"):
                self._write_powers(f"({first} + member)", is_full)

    def _write_maximum(self, row: str, is_full: bool) -> None:
        """Write a row's maximum in the tile, and its scores unless they stay as they are."""
        kernel = self.kernel
        limit = self._limit(row, is_full)
        lanes = vector_size(self.tiles.keys, MAXIMUM_LANES)
        top = kernel.accumulators(lanes, "float32", LOWEST)
        for at, size in self._visible(limit, lanes):
            # Hyperbolic tangents name integers, which TVM's vectors do not allow.
            with kernel.vectorized(size, SERIAL if self.kind.softcap else VECTORIZED):
                place = self._place(row, at)
                score = self._score(place, row, at, limit, is_full)
                if not (self.is_raw and is_full):
                    kernel.script.line(f"{place} = {score}")
                kernel.script.line(f"{top}[{LANE}] = T.max({score}, {top}[{LANE}])")
        largest = combined_lanes(kernel, top, lanes, "float32", larger)
        kernel.script.line(f"{self.statistic(_CENTRE, row)} = {largest}")

    def _write_statistics(self, row: str) -> None:
        """Write the running maxima of a group of rows, and the factors of earlier sums."""
        kernel, line = self.kernel, self.kernel.script.line
        largest = kernel.bind(self.statistic(_CENTRE, row))
        before = kernel.bind(self.statistic(_MAXIMUM, row)) if self.tiles.tiles > 1 else None
        if before is not None:
            largest = kernel.bind(f"T.max({largest}, {before})")
        # Differences from a maximum of -inf would be NaN; its powers are zeros.
        centre = kernel.bind(f"T.Select({largest} == {LOWEST}, T.float32(0), {largest})")
        if before is not None:
            rescaling = self.power(before, centre)
            total = self.statistic(_SUM, row)
            line(f"{self.statistic(_RESCALING, row)} = {rescaling}")
            line(f"{total} = {total} * {rescaling}")
            line(f"{self.statistic(_MAXIMUM, row)} = {largest}")
        line(f"{self.statistic(_CENTRE, row)} = {centre}")

    def _write_powers(self, row: str, is_full: bool) -> None:
        """Write the powers of a row's scores in a tile, and add them to its sum."""
        kernel = self.kernel
        limit = self._limit(row, is_full)
        lanes = vector_size(self.tiles.keys, POWER_LANES)
        centre = kernel.opaque(self.statistic(_CENTRE, row), "float32")
        total = kernel.accumulators(lanes, "float32", "T.float32(0)")
        for at, size in self._visible(limit, lanes, clears=row):
            with kernel.vectorized(size):
                power = self.power(self._place(row, at), centre)
                self._store_weight(row, at, power)
                kernel.script.line(f"{total}[{LANE}] = {total}[{LANE}] + {power}")
        summed = combined_lanes(kernel, total, lanes, "float32", added)
        place = self.statistic(_SUM, row)
        before = f"{place} + " if self.tiles.tiles > 1 else ""
        kernel.script.line(f"{place} = {before}{summed}")

    @property
    def weights(self) -> str:
        """Buffer of the weights: that of the scores, unless they are of a shorter type."""
        return "S" if self.kind.factors == "float32" else "P"

    def _store_weight(self, row: str, at: str, power: str) -> None:
        """Write a power where the product with the values reads it, in the type of its factors."""
        stored = converted(self.kernel.bind, Value(power, "float32"), self.kind.factors)
        self.kernel.script.line(f"{self._place(row, at, self.weights)} = {stored}")

    def _place(self, row: str, at: str, buffer: str = "S") -> str:
        return f"{buffer}[{self.start(buffer)} + {row} * {self.tiles.keys} + {at} + {LANE}]"

    def _visible(
        self, limit: str | None, most: int, clears: str | None = None
    ) -> Iterator[tuple[str, int]]:
        """Write loops over the vectors of a tile with keys of a row; yield start and size.

        Scores beyond the limit are not computed, and cleared for a row ``clears``.
        """
        kernel, width = self.kernel, self.tiles.keys
        if limit is None:
            yield from vectors(kernel, width, most)
            return
        for start, size, count in vector_runs(width, most):
            needed = f"T.max(0, T.min({count}, ({limit} - {start} + {size}) // {size}))"
            steps, name = kernel.bind(needed), kernel.name("step")
            with kernel.script.nested(f"for {name} in T.serial({steps}):"):
                yield f"({name} * {size} + {start})", size
            if clears is not None:
                rest = kernel.name("step")
                with (
                    kernel.script.nested(f"for {rest} in T.serial({steps}, {count}):"),
                    kernel.vectorized(size),
                ):
                    self._store_weight(clears, f"({rest} * {size} + {start})", "T.float32(0)")

    # ------------------------------------------------------------------------------- scores

    def _score(self, place: str, row: str, at: str, limit: str | None, is_full: bool) -> str:
        """Write a score with its scale and masks, and return its name."""
        kernel, kind, tiles = self.kernel, self.kind, self.tiles
        scale = "" if self.is_raw else f" * {literal(kind.scale, 'float32')}"
        value = kernel.bind(f"{place}{scale}")
        if kind.softcap:
            cap, inverse = (literal(c, "float32") for c in (kind.softcap, 1 / kind.softcap))
            tangent = APPROXIMATIONS["tanh"](kernel.bind, kernel.bind(f"{value} * {inverse}"))
            value = kernel.bind(f"{tangent} * {cap}")
        if self.mask is not None:
            element = f"in3[{self._mask_place(self.mask, row, at)}]"
            if self.mask.dtype == "bool":
                excluded = literal(kind.excluded, "float32")
                value = kernel.bind(f"T.Select({element} != T.uint8(0), {value}, {excluded})")
            else:
                value = kernel.bind(f"{value} + {element}")
        if limit is not None:
            value = kernel.bind(f"T.Select({at} + {LANE} <= {limit}, {value}, {LOWEST})")
        if tiles.extents["n"] % tiles.keys and not is_full:
            # The last tile begins earlier: keys of the tile before it count there.
            skipped = f"tile * {tiles.keys} - first_key"
            value = kernel.bind(f"T.Select({at} + {LANE} >= {skipped}, {value}, {LOWEST})")
        return value

    def _mask_place(self, mask: PlacedTensor, row: str, at: str) -> str:
        """Return the place of a mask's element, which broadcasts."""
        tiles = self.tiles
        shape = (1,) * (4 - len(mask.shape)) + mask.shape
        steps = [0 if shape[k] == 1 else math.prod(shape[k + 1 :]) for k in range(4)]
        if tiles.row_axis == "s":
            head, number = "query_head", f"(first_row + {row})"
        else:
            head, number = f"(query_head * {tiles.extents['g']} + first_row + {row})", "0"
        indices = ("batch", head, number, f"(first_key + {at} + {LANE})")
        terms = [f"{index} * {step}" for index, step in zip(indices, steps, strict=True) if step]
        return " + ".join(terms) or "0"


def vectors(kernel: Kernel, extent: int, most: int) -> Iterator[tuple[str, int]]:
    """Write loops over vectors of a row; yield each one's start and size.

    Parameters
    ----------
    kernel : Kernel
    extent : int
        Number of elements of the row.
    most : int
        Maximum number of elements of a vector, a power of two.
    """
    for start, size, count in vector_runs(extent, most):
        with ExitStack() as stack:
            at = str(start)
            if count > 1:
                name = kernel.name("step")
                stack.enter_context(kernel.script.nested(f"for {name} in T.serial({count}):"))
                at = f"({name} * {size} + {start})"
            yield at, size
