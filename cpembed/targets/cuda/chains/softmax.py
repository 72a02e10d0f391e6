"""Softmax of rows between the products, chunk by chunk.

Of each row a lane keeps the largest score so far and the sum of its own powers. A larger score in a
later chunk scales both the sum and the second product's sums down. Lanes that share a row exchange
their largest scores by shuffles; their sums are added at the end alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from cpembed.codegen.values import literal
from cpembed.ir.index import IndexExpr
from cpembed.targets.cuda.chains.plan import ChainPlan
from cpembed.targets.cuda.chains.pointwise import converted
from cpembed.targets.cuda.chains.registers import lane_rows, place
from cpembed.targets.cuda.writer import Writer, digits, index_script, register_pointer
from cpembed.workloads.chains import LENGTHS, MASK, RowSoftmax

_LOWEST = 'T.float32("-inf")'


class Softmax:
    """Writer of the softmax of one thread's rows."""

    def __init__(self, writer: Writer, plan: ChainPlan) -> None:
        assert isinstance(plan.chain.function, RowSoftmax)
        self.writer, self.plan, self.function = writer, plan, plan.chain.function
        self.script, self.instruction = writer.script, plan.second.instruction
        self.row_of, self.masks = lane_rows(self.instruction)
        self.rows_of_lane = max(self.row_of) + 1
        result = plan.first.output.layout
        self.query, self.key = result.access[-2:]
        self.queries, self.keys = result.original_shape[-2:]
        # Scores are powers of two; the factor is applied to them with the subtraction, unless they
        # have to be scaled before, where something is added or the order would be reversed.
        self.scales_first = self.function.masked or self.function.scale <= 0
        factor = 1.0 if self.scales_first else self.function.scale
        self.exponent = factor * math.log2(math.e)

    @property
    def _is_limited(self) -> bool:
        """True if rows have different numbers of keys."""
        return self.function.causal is not None or self.function.lengths

    def begin(self) -> None:
        """Write what is the same for all chunks: statistics of rows, and their numbers of keys."""
        rows, script = self.plan.schedule.rows, self.script
        count = rows * self.rows_of_lane
        for name in ("largest", "powers"):
            script.line(f'{name} = T.alloc_buffer(({count},), "float32", scope="local")')
        for name in ("top", "shrink", "offset"):
            script.line(f'{name} = T.alloc_buffer((1,), "float32", scope="local")')
        with script.nested(f"for i in T.unroll({count}):"):
            script.line(f"largest[i] = {_LOWEST}")
            script.line("powers[i] = T.float32(0)")
        if not self._is_limited:
            return
        script.line(f'limit = T.alloc_buffer(({count},), "int32", scope="local")')
        length = str(self.keys)
        if self.function.lengths:
            batch = index_script(
                self.plan.first.output.layout.access[0],
                self._iterators("0", "0", "0"),
                self.plan.first.program.extents,
            )
            script.line(f"length = T.min({LENGTHS}[{batch}], {self.keys})")
            length = "length"
        for i in range(rows):
            for number in range(self.rows_of_lane):
                keys = length
                if self.function.causal is not None:
                    query = self._query(i, number)
                    keys = f"T.min({length}, {query} + {self.function.causal + 1})"
                script.line(f"limit[{i * self.rows_of_lane + number}] = {keys}")
        script.line(f"block_keys = {self._keys_of_rows('row', self.plan.block_rows, length, 1)}")
        rows_of_warp = f"(row + warp_row * {rows})"
        script.line(f"warp_keys = {self._keys_of_rows(rows_of_warp, rows, length, 0)}")

    def _iterators(self, tile: str, row: str, column: str) -> dict[str, str]:
        """Return the iterators of the first product at a row of a tile of rows, in batch."""
        product = self.plan.first
        return {
            **dict.fromkeys((loop.name for loop in product.program.loops), "0"),
            **digits("batch", product.batch),
            **digits(tile, product.rows),
            product.axes[0]: row,
            product.axes[1]: column,
        }

    def _query(self, tile: int, number: int) -> str:
        """Return the query of a lane's row."""
        element = self.row_of.index(number)
        row, _ = place(self.instruction.fragments[2], element)
        script = self._iterators(self._tile(tile), row, "0")
        return f"({index_script(self.query, script, self.plan.first.program.extents)})"

    def _tile(self, number: int) -> str:
        return f"(row + warp_row * {self.plan.schedule.rows} + {number})"

    def _keys_of_rows(self, first: str, count: int, length: str, upper: int) -> str:
        """Return a bound of the number of keys that any row of some tiles has.

        Parameters
        ----------
        first : str
            First tile of rows.
        count : int
            Number of tiles.
        length : str
            Number of keys of the batch.
        upper : int
            1 for the upper bound, 0 for the lower one.
        """
        if self.function.causal is None:
            return length
        axis, extents = self.plan.first.axes[0], self.plan.first.program.extents
        bounded = _axis_bound(self.query, axis, extents, upper)
        if bounded is None:
            # Whatever the query is: all keys, or none without looking.
            return length if upper else "0"
        ends = [
            index_script(bounded, self._iterators(f"({first} + {n})", "0", "0"), extents)
            for n in range(count)
        ]
        end = ends[0]
        for further in ends[1:]:
            end = f"T.{'max' if upper else 'min'}({end}, {further})"
        return f"T.max(0, T.min({length}, {end} + {self.function.causal + 1}))"

    def steps(self) -> str:
        """Write and return the number of chunks that the block has."""
        if not self._is_limited:
            return str(self.plan.chunks)
        size = self.plan.chunk_columns
        self.script.line(f"steps = (block_keys + {size - 1}) // {size}")
        return "steps"

    # -- a chunk ----------------------------------------------------------------------------------

    def write(self) -> None:
        """Write the powers of a chunk's scores into the registers of the second product."""
        plan, script = self.plan, self.script
        rows, tiles = plan.schedule.rows, plan.column_tiles
        count = self.instruction.registers[2]
        if self.scales_first:
            with script.nested(f"for i in T.unroll({rows * tiles * count}):"):
                script.line(f"scores[i] = scores[i] * {literal(self.function.scale, 'float32')}")
        self._write_masks()
        for i in range(rows):
            for number in range(self.rows_of_lane):
                self._write_row(i, number)
        self._write_middle()

    def _write_masks(self) -> None:
        """Write -inf, or an addend, to the scores that need it."""
        size = self.plan.chunk_columns
        if self.function.masked:
            self._mask_elements()
            return
        keys = "warp_keys" if self._is_limited else str(self.keys)
        if not self._is_limited and self.keys % size == 0:
            return
        # Most chunks need no mask; the condition is the same for all lanes of a warp.
        with self.script.nested(f"if (step + 1) * {size} > {keys}:"):
            self._mask_elements()

    def _mask_elements(self) -> None:
        plan, count = self.plan, self.instruction.registers[2]
        tiles, extents = plan.column_tiles, plan.first.program.extents
        product = plan.first
        # Tiles beyond the last one: their keys are beyond the last key only if a loop counts tiles.
        inside = ""
        if plan.chunks * tiles > product.tiles[2]:
            inside = f" and step * {tiles} + j < {product.tiles[2]}"
        with self.script.nested(
            f"for i in T.unroll({plan.schedule.rows}):", f"for j in T.unroll({tiles}):"
        ):
            for element in range(count):
                row, column = place(self.instruction.fragments[2], element)
                tile = f"(row + warp_row * {plan.schedule.rows} + i)"
                values = self._iterators(tile, row, column)
                values |= digits(f"(step * {tiles} + j)", product.columns)
                score = f"scores[(i * {tiles} + j) * {count} + {element}]"
                # A name for each: TVMScript binds a name once in a scope.
                key, query = f"key{element}", f"query{element}"
                self.script.line(f"{key} = {index_script(self.key, values, extents)}")
                number = self.row_of[element]
                end = f"limit[i * {self.rows_of_lane} + {number}]"
                visible = f"{key} < {end if self._is_limited else self.keys}{inside}"
                value = score
                if self.function.masked:
                    self.script.line(f"{query} = {index_script(self.query, values, extents)}")
                    present = f"{visible} and {query} < {self.queries}"
                    at = f"T.Select({present}, {query} * {self.keys} + {key}, 0)"
                    value = f"{score} + {MASK}[{at}]"
                self.script.line(f"{score} = T.Select({visible}, {value}, {_LOWEST})")

    def _scores_of(self, tile: int, number: int) -> list[str]:
        """Return the scores of one of a lane's rows."""
        count, tiles = self.instruction.registers[2], self.plan.column_tiles
        return [
            f"scores[{(tile * tiles + j) * count + element}]"
            for j in range(tiles)
            for element in range(count)
            if self.row_of[element] == number
        ]

    def _write_row(self, tile: int, number: int) -> None:
        """Write the statistics and powers of a row."""
        script, at = self.script, tile * self.rows_of_lane + number
        scores = self._scores_of(tile, number)
        script.line(f"top[0] = {scores[0]}")
        for score in scores[1:]:
            script.line(f"top[0] = T.max(top[0], {score})")
        self._combine("top[0]", "T.max(top[0], {})")
        script.line(f"top[0] = T.max(top[0], largest[{at}])")
        # A row without any key so far: its powers are zero, not NaN.
        centre = f"T.Select(top[0] == {_LOWEST}, T.float32(0), top[0])"
        factor = literal(self.exponent, "float32")
        script.line(f"offset[0] = {centre} * {factor}")
        script.line(f"shrink[0] = largest[{at}] * {factor} - offset[0]")
        self._power("shrink", "0")
        script.line(f"largest[{at}] = top[0]")
        script.line(f"powers[{at}] = powers[{at}] * shrink[0]")
        for score in scores:
            script.line(f"{score} = {score} * {factor} - offset[0]")
            self._power("scores", score.removeprefix("scores[").removesuffix("]"))
            script.line(f"powers[{at}] = powers[{at}] + {score}")
        self._scale_sums(tile, number, "shrink[0]")

    def _power(self, array: str, place: str) -> None:
        """Write 2 to the power of an element in its place."""
        self.writer.call("cpembed_exp2", register_pointer(array, place))

    def _combine(self, target: str, operation: str) -> None:
        """Write the combination of a value with those of the lanes that share its row."""
        for mask in self.masks:
            shuffled = (
                'T.call_pure_extern("float32", "__shfl_xor_sync", T.uint32(4294967295), '
                f"{target}, {mask})"
            )
            self.script.line(f"{target} = {operation.format(shuffled)}")

    def _scale_sums(self, tile: int, number: int, factor: str) -> None:
        """Write the product of a row of the second product's sums with a factor."""
        count, columns = self.instruction.registers[2], self.plan.warp_columns
        with self.script.nested(f"for j in T.unroll({columns}):"):
            for element in range(count):
                if self.row_of[element] == number:
                    target = f"sums[({tile * columns} + j) * {count} + {element}]"
                    self.script.line(f"{target} = {target} * {factor}")

    def _write_middle(self) -> None:
        """Write the registers of the second product's factor from those that they couple with."""
        plan, coupling = self.plan, self.plan.coupling
        count, tiles, chunk = self.instruction.registers[2], plan.column_tiles, plan.schedule.chunk
        with self.script.nested(
            f"for i in T.unroll({plan.schedule.rows}):", f"for inner in T.unroll({chunk}):"
        ):
            for register, source in enumerate(coupling.sources):
                tile = f"inner * {coupling.results[1]} + {source // count}"
                score = f"scores[(i * {tiles} + {tile}) * {count} + {source % count}]"
                target = f"middle[(i * {chunk} + inner) * {len(coupling.sources)} + {register}]"
                self.script.line(f"{target} = {converted(score, plan.chain.factors)}")

    def end(self) -> None:
        """Write the division of the sums by the sums of powers; rows without keys are zero."""
        for tile in range(self.plan.schedule.rows):
            for number in range(self.rows_of_lane):
                total = f"powers[{tile * self.rows_of_lane + number}]"
                self._combine(total, total + " + {}")
                self.script.line(
                    f"{total} = T.Select({total} == T.float32(0), T.float32(0), "
                    f"T.float32(1) / {total})"
                )
                self._scale_sums(tile, number, total)


def _axis_bound(
    index: IndexExpr, axis: str, extents: Mapping[str, int], upper: int
) -> IndexExpr | None:
    """Return a bound of an index over an axis; None if the axis is in a digit with others."""
    terms = list(index.terms)
    constant = index.constant
    for term in index.terms:
        if axis not in term.iterators:
            continue
        if term.inner is not None and term.iterators != (axis,):
            return None
        terms.remove(term)
        values = [term.evaluate({axis: step}) for step in range(extents[axis])]
        constant += max(values) if upper else min(values)
    return IndexExpr(tuple(terms), constant)
