"""Softmax of rows between the products, chunk by chunk.

Of each row a lane keeps a score that powers are relative to, and the sum of its own powers. Where a
score of a later chunk is so much larger that its power would exceed a bound, that score takes its
place, and both the sum and the second product's sums are scaled down; in most chunks none is. Lanes
that share a row exchange their largest scores by shuffles; their sums are added at the end alone.

Where blocks share the keys of a row, each stores its sums with the row's largest score and sum of
powers, by which another kernel weights them (:mod:`cpembed.targets.cuda.reduction`).
"""

from __future__ import annotations

import math

from cpembed.codegen.values import literal
from cpembed.targets.cuda.chains.plan import ChainPlan
from cpembed.targets.cuda.chains.pointwise import converted
from cpembed.targets.cuda.chains.row_keys import LOWEST, RowKeys, combine_lanes, write_scaled
from cpembed.targets.cuda.reduction import STATISTICS
from cpembed.targets.cuda.writer import (
    Writer,
    index_script,
    inside_conditions,
    register_pointer,
)
from cpembed.workloads.chains import SINKS

MAX_EXPONENT = 8
"""Exponent of two up to which powers of scores grow before sums are scaled down: 256 is exact in
float16 and in bfloat16, whose relative precision is that of 1 (FlashAttention 4 has the same)."""


class Softmax(RowKeys):
    """Writer of the softmax of one thread's rows."""

    def __init__(self, writer: Writer, plan: ChainPlan) -> None:
        super().__init__(writer, plan)
        # Scores are powers of two; the factor is applied to them with the subtraction, unless they
        # have to be scaled before, where something is added or the order would be reversed.
        self.scales_first = (
            bool(self.function.mask) or self.function.cap is not None or self.function.scale <= 0
        )
        factor = 1.0 if self.scales_first else self.function.scale
        self.exponent = factor * math.log2(math.e)

    # -- before the chunks ------------------------------------------------------------------------

    def begin(self) -> None:
        """Write what is the same for all chunks: statistics of rows, and their numbers of keys."""
        rows, script = self.plan.schedule.rows, self.script
        count = rows * self.rows_of_lane
        for name in ("largest", "powers", "shrink", "top", "offset"):
            script.line(f'{name} = T.alloc_buffer(({count},), "float32", scope="local")')
        script.line('grows = T.alloc_buffer((1,), "int32", scope="local")')
        with script.nested(f"for i in T.unroll({count}):"):
            script.line(f"largest[i] = {LOWEST}")
            script.line("powers[i] = T.float32(0)")
        if self.function.sinks:
            self._begin_with_sinks()
        for at in range(count):
            self._write_offset(at)
        self._begin_limits()

    def _begin_with_sinks(self) -> None:
        """Write the scores of no key as the first ones of the rows."""
        script, extents = self.script, self.extents
        holds = f"T.bitwise_and(lane, {sum(self.masks)}) == 0"
        first = "part == 0" if self.plan.schedule.splits > 1 else "True"
        factor = literal(math.log2(math.e) / self.exponent, "float32")
        for i in range(self.plan.schedule.rows):
            for number in range(self.rows_of_lane):
                at = i * self.rows_of_lane + number
                values = self._iterators(self._tile(str(i)), self._row(number), "0")
                group, member = (
                    index_script(self.coordinates[name], values, extents) for name in "gr"
                )
                # Rows of padded tiles have no head.
                head = f"T.min(({group}) * {self.sizes['r']} + {member}, {self._heads - 1})"
                script.line(f"largest[{at}] = {SINKS}[{head}] * {factor}")
                if first != "True":
                    script.line(f"largest[{at}] = T.Select({first}, largest[{at}], {LOWEST})")
                counted = f"{first} and {holds}"
                script.line(f"powers[{at}] = T.Select({counted}, T.float32(1), T.float32(0))")

    @property
    def _heads(self) -> int:
        return self.sizes["g"] * self.sizes["r"]

    # -- a chunk ----------------------------------------------------------------------------------

    def write_powers(self, step: str, *, rescale: bool) -> None:
        """Write the powers of a chunk's scores, in their place, and the statistics of its rows.

        Parameters
        ----------
        step : str
            Number of the chunk.
        rescale : bool
            True to scale the second product's sums at once, otherwise :meth:`rescale` does.
        """
        rows, tiles = self.plan.schedule.rows, self.plan.column_tiles
        count = self.instruction.registers[2]
        if self.scales_first:
            self._scale_scores(rows * tiles * count)
        self._write_masks(step)
        places = [(i, number) for i in range(rows) for number in range(self.rows_of_lane)]
        for tile, number in places:
            self._write_top(tile, number)
        bound = literal(MAX_EXPONENT / self.exponent, "float32")
        larger = " or ".join(f"top[{at}] > largest[{at}] + {bound}" for at in range(len(places)))
        # The same for all lanes of a warp, so that no branch divides it.
        self.script.line(
            'grows[0] = T.call_pure_extern("int32", "__any_sync", T.uint32(4294967295), '
            f'T.cast({larger}, "int32"))'
        )
        with self.script.nested("if grows[0] != 0:"):
            for at in range(len(places)):
                self._grow(at)
            if rescale:
                self._shrink_sums()
        for tile, number in places:
            self._write_row(tile, number)

    def rescale(self) -> None:
        """Write the products of the second product's sums with what larger scores take off."""
        with self.script.nested("if grows[0] != 0:"):
            self._shrink_sums()

    def _shrink_sums(self) -> None:
        for i in range(self.plan.schedule.rows):
            for number in range(self.rows_of_lane):
                self._scale_sums(i, number, f"shrink[{i * self.rows_of_lane + number}]")

    def _scale_scores(self, count: int) -> None:
        with self.script.nested(f"for i in T.unroll({count}):"):
            write_scaled(self.script, self.function, "scores[i]", "capped")

    def _scores_of(self, tile: int, number: int) -> list[str]:
        """Return the scores of one of a lane's rows."""
        count, tiles = self.instruction.registers[2], self.plan.column_tiles
        return [
            f"scores[{(tile * tiles + j) * count + element}]"
            for j in range(tiles)
            for element in range(count)
            if self.row_of[element] == number
        ]

    def _write_top(self, tile: int, number: int) -> None:
        """Write the largest score of a row in the chunk."""
        top = f"top[{tile * self.rows_of_lane + number}]"
        scores = self._scores_of(tile, number)
        self.script.line(f"{top} = {scores[0]}")
        for score in scores[1:]:
            self.script.line(f"{top} = T.max({top}, {score})")
        self._combine(top, f"T.max({top}, {{}})")

    def _write_offset(self, at: int) -> None:
        """Write what is subtracted from the scores of a row, as a power of two."""
        # A row without any key so far: its powers are zero, not NaN.
        centre = f"T.Select(largest[{at}] == {LOWEST}, T.float32(0), largest[{at}])"
        self.script.line(f"offset[{at}] = {centre} * {literal(self.exponent, 'float32')}")

    def _grow(self, at: int) -> None:
        """Write the change of a row to the largest score so far."""
        script, factor = self.script, literal(self.exponent, "float32")
        script.line(f"shrink[{at}] = largest[{at}] * {factor}")
        script.line(f"largest[{at}] = T.max(top[{at}], largest[{at}])")
        self._write_offset(at)
        script.line(f"shrink[{at}] = shrink[{at}] - offset[{at}]")
        self._power("shrink", str(at))
        script.line(f"powers[{at}] = powers[{at}] * shrink[{at}]")

    def _write_row(self, tile: int, number: int) -> None:
        """Write the powers of a row, and their sum."""
        script, at = self.script, tile * self.rows_of_lane + number
        factor = literal(self.exponent, "float32")
        for score in self._scores_of(tile, number):
            script.line(f"{score} = {score} * {factor} - offset[{at}]")
            self._power("scores", score.removeprefix("scores[").removesuffix("]"))
            script.line(f"powers[{at}] = powers[{at}] + {score}")

    def _power(self, array: str, place: str) -> None:
        """Write 2 to the power of an element in its place."""
        self.writer.call("cpembed_exp2", register_pointer(array, place))

    def _combine(self, target: str, operation: str) -> None:
        """Write the combination of a value with those of the lanes that share its row."""
        combine_lanes(self.script, target, operation, self.masks)

    def _scale_sums(self, tile: int, number: int, factor: str) -> None:
        """Write the product of a row of the second product's sums with a factor."""
        count, columns = self.instruction.registers[2], self.plan.warp_columns
        with self.script.nested(f"for j in T.unroll({columns}):"):
            for element in range(count):
                if self.row_of[element] == number:
                    target = f"sums[({tile * columns} + j) * {count} + {element}]"
                    self.script.line(f"{target} = {target} * {factor}")

    def write_middle(self) -> None:
        """Write the registers of the second product's factor from those that they couple with."""
        plan, coupling = self.plan, self.plan.coupling
        count, tiles, chunk = self.instruction.registers[2], plan.column_tiles, plan.schedule.chunk
        with self.script.nested(
            f"for i in T.unroll({plan.schedule.rows}):", f"for inner in T.unroll({chunk}):"
        ):
            tile = f"i * {tiles} + inner * {coupling.results[1]}"
            values = [
                f"scores[({tile} + {source // count}) * {count} + {source % count}]"
                for source in coupling.sources
            ]
            first = f"(i * {chunk} + inner) * {len(values)}"
            for register in range(0, len(values), 2):
                low, high = values[register : register + 2]
                if plan.chain.factors == "bfloat16":
                    # Rounding by arithmetic on bits takes several instructions for each.
                    target = register_pointer("middle", f"{first} + {register}")
                    self.writer.call("cpembed_pack_bfloat16", target, low, high)
                    continue
                for number, value in enumerate((low, high)):
                    target = f"middle[{first} + {register + number}]"
                    self.script.line(f"{target} = {converted(value, plan.chain.factors)}")

    def end(self) -> None:
        """Write the division of the sums by the sums of powers; rows without keys are zero.

        If blocks share the keys, the statistics of rows are stored instead.
        """
        for tile in range(self.plan.schedule.rows):
            for number in range(self.rows_of_lane):
                total = f"powers[{tile * self.rows_of_lane + number}]"
                self._combine(total, total + " + {}")
                if self.plan.schedule.splits > 1:
                    self._store_statistics(tile, number)
                    continue
                self.script.line(
                    f"{total} = T.Select({total} == T.float32(0), T.float32(0), "
                    f"T.float32(1) / {total})"
                )
                self._scale_sums(tile, number, total)

    def _store_statistics(self, tile: int, number: int) -> None:
        """Write the stores of a row's largest score, as a power of two, and its sum of powers."""
        script, product, at = self.script, self.plan.second, tile * self.rows_of_lane + number
        output, extents = product.output, product.program.extents
        values = self._iterators_of(product, self._tile(str(tile)), self._row(number), "0")
        conditions = [
            f"T.bitwise_and(lane, {sum(self.masks)}) == 0",
            "column == 0",
            f"{self._tile(str(tile))} < {product.tiles[1]}",
            *inside_conditions(output, values, extents),
        ]
        length = output.layout.original_shape[-1]
        rows = output.layout.elements // length
        script.line(f"largest[{at}] = largest[{at}] * {literal(self.exponent, 'float32')}")
        with script.nested(f"if {' and '.join(conditions)}:"):
            script.line(
                f"result_row = ({index_script(output.address, values, extents)}) // {length}"
            )
            for place_of, value in enumerate(("largest", "powers")):
                script.line(
                    f"{STATISTICS}[(part * {rows} + result_row) * 2 + {place_of}] = {value}[{at}]"
                )
