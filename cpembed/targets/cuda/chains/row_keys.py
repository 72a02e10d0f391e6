"""Keys that the rows of a softmax look at: numbers of them, masks of scores.

A causal mask, a window and lengths leave each row the keys from a first one to a last one. A block
visits the chunks in which any of its rows has keys; a warp masks only those that hide some.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cpembed.codegen.plan import Script, read
from cpembed.codegen.values import literal
from cpembed.ir.index import IndexExpr
from cpembed.ir.scalars import Apply, Input
from cpembed.targets.cuda.chains.plan import ChainPlan
from cpembed.targets.cuda.expressions import ExpressionWriter
from cpembed.targets.cuda.instructions import fragments
from cpembed.targets.cuda.lane_places import lane_rows, place
from cpembed.targets.cuda.lower import TiledProduct
from cpembed.targets.cuda.multistage.separation import Positions
from cpembed.targets.cuda.writer import Writer, digits, index_script, tile_values
from cpembed.workloads.chains import LENGTHS, MASK, RowSoftmax

LOWEST = 'T.float32("-inf")'


class RowKeys:
    """Writer of the limits and masks of one thread's rows."""

    def __init__(self, writer: Writer, plan: ChainPlan) -> None:
        assert isinstance(plan.chain.function, RowSoftmax)
        self.writer, self.plan, self.function = writer, plan, plan.chain.function
        self.script, self.instruction = writer.script, plan.second.instruction
        self.row_of, self.masks = lane_rows(self.instruction)
        self.rows_of_lane = max(self.row_of) + 1
        result = plan.first.output.layout
        self.coordinates = dict(zip("bgrqk", result.access, strict=True))
        self.sizes = dict(zip("bgrqk", result.original_shape, strict=True))
        self.query, self.key = self.coordinates["q"], self.coordinates["k"]
        self.keys, self.extents = self.sizes["k"], plan.first.program.extents

    @property
    def _is_limited(self) -> bool:
        """True if rows have different numbers of keys."""
        return self.function.causal is not None or self.function.lengths

    def locate_block(self) -> tuple[str, str]:
        """Write how many keys the block's rows have.

        Returns
        -------
        tuple of str and str
            Expressions of the first chunk that any of the rows looks at, and of the one behind the
            last.
        """
        size, script = self.plan.chunk_columns, self.script
        if not self._is_limited:
            return "0", str(self.plan.chunks)
        if self.function.lengths:
            values = self._iterators("0", "0", "0")
            batch = index_script(self.coordinates["b"], values, self.extents)
            script.line(f"length = T.max(0, T.min({LENGTHS}[{batch}], {self.keys}))")
        keys = self._bound("row", self.plan.block_rows, upper=True)
        script.line(f"block_keys = {keys}")
        first = "0"
        if self.function.window is not None:
            script.line(f"first_key = {self._first_key('row', self.plan.block_rows, upper=False)}")
            first = f"first_key // {size}"
        return first, f"(block_keys + {size - 1}) // {size}"

    @property
    def _length(self) -> str:
        """Number of keys of the block's batch."""
        return "length" if self.function.lengths else str(self.keys)

    def _begin_limits(self) -> None:
        """Write what is the same for all chunks: the keys of each row, and of all of a warp."""
        rows, script = self.plan.schedule.rows, self.script
        count = rows * self.rows_of_lane
        if not self._is_limited:
            return
        for name in ["limit"] + ["first_of_row"] * (self.function.window is not None):
            script.line(f'{name} = T.alloc_buffer(({count},), "int32", scope="local")')
        for i in range(rows):
            for number in range(self.rows_of_lane):
                at = i * self.rows_of_lane + number
                keys = self._length
                if self.function.causal is not None:
                    end = f"{self._query(i, number)} + {self.function.causal + 1}"
                    keys = f"T.min({keys}, {end})"
                    if self.function.window is not None:
                        script.line(f"first_of_row[{at}] = {end} - {self.function.window}")
                script.line(f"limit[{at}] = {keys}")
        tiles = f"(row + warp_row * {rows})"
        script.line(f"warp_keys = {self._bound(tiles, rows, upper=False)}")
        if self.function.window is not None:
            script.line(f"warp_first = {self._first_key(tiles, rows, upper=True)}")

    def _iterators(self, tile: str, row: str, column: str) -> dict[str, str]:
        """Return the iterators of the first product at a row of a tile of rows, in batch."""
        return self._iterators_of(self.plan.first, tile, row, column)

    @staticmethod
    def _iterators_of(product: TiledProduct, tile: str, row: str, column: str) -> dict[str, str]:
        return tile_values(product, tile) | {product.axes[0]: row, product.axes[1]: column}

    def _query(self, tile: int, number: int) -> str:
        """Return the query of a lane's row."""
        values = self._iterators(self._tile(str(tile)), self._row(number), "0")
        return f"({index_script(self.query, values, self.extents)})"

    def _row(self, number: int) -> str:
        """Return the row within its tile of one of a lane's rows."""
        row, _ = place(self.instruction.fragments[2], self.row_of.index(number))
        return self.plan.row_in_tile(row)

    def _tile(self, number: str) -> str:
        return f"(row + warp_row * {self.plan.schedule.rows} + {number})"

    def _bound(self, first: str, count: int, *, upper: bool) -> str:
        """Return a bound of the number of keys that any row of some tiles has.

        Parameters
        ----------
        first : str
            First tile of rows.
        count : int
            Number of tiles.
        upper : bool
            True for the upper bound, False for the lower one.
        """
        if self.function.causal is None:
            return self._length
        query = self._bound_of_queries(first, count, upper=upper)
        if query is None:
            # Whatever the query is: all keys, or none without looking.
            return self._length if upper else "0"
        return f"T.max(0, T.min({self._length}, {query} + {self.function.causal + 1}))"

    def _first_key(self, first: str, count: int, *, upper: bool) -> str:
        """Return a bound of the first key that any row of some tiles looks at."""
        causal, window = self.function.causal, self.function.window
        assert causal is not None
        assert window is not None
        query = self._bound_of_queries(first, count, upper=upper)
        if query is None:
            return str(self.keys) if upper else "0"
        return f"T.max(0, {query} + {causal + 1 - window})"

    def _bound_of_queries(self, first: str, count: int, *, upper: bool) -> str | None:
        """Return a bound of the queries of some tiles; None if they take turns within a tile."""
        extents = self.extents
        bounded = _axis_bound(self.query, self.plan.first.axes[0], extents, upper=upper)
        if bounded is None:
            return None
        ends = [
            index_script(bounded, self._iterators(f"({first} + {n})", "0", "0"), extents)
            for n in range(count)
        ]
        end = ends[0]
        for further in ends[1:]:
            end = f"T.{'max' if upper else 'min'}({end}, {further})"
        return end

    # -- a chunk ----------------------------------------------------------------------------------

    def _write_masks(self, step: str) -> None:
        """Write -inf, or an addend, to the scores that need it."""
        size = self.plan.chunk_columns
        if self.function.mask:
            self._mask_elements(step)
            return
        keys = "warp_keys" if self._is_limited else str(self.keys)
        if not self._is_limited and self.keys % size == 0:
            return
        # Most chunks need no mask; the condition is the same for all lanes of a warp.
        condition = f"({step} + 1) * {size} > {keys}"
        if self.function.window is not None:
            condition += f" or {step} * {size} < warp_first"
        with self.script.nested(f"if {condition}:"):
            self._mask_elements(step)

    def _mask_positions(self, step: str) -> None:
        """Write -inf to scores whose keys are hidden, where keys are counted by positions."""
        plan, product, script = self.plan, self.plan.first, self.script
        tiles, count = plan.column_tiles, self.instruction.registers[2]
        fragment, n = fragments()[self.instruction.fragments[2]], product.instruction.n
        # Positions of the chunk that a lane's first element is behind of: of the end, of the start.
        first = f"{step} * {plan.chunk_columns} + {place(self.instruction.fragments[2], 0)[1]}"
        bounds = {"keys_left": "limit" if self._is_limited else ""}
        if self.function.window is not None:
            bounds["keys_before"] = "first_of_row"
        rows = plan.schedule.rows * self.rows_of_lane
        for name, bound in bounds.items():
            script.line(f'{name} = T.alloc_buffer(({rows},), "int32", scope="local")')
            for at in range(rows):
                value = f"{bound}[{at}]" if bound else str(self.keys)
                script.line(f"{name}[{at}] = {value} - ({first})")
        with script.nested(
            f"for i in T.unroll({plan.schedule.rows}):", f"for j in T.unroll({tiles}):"
        ):
            for element in range(count):
                score = f"scores[(i * {tiles} + j) * {count} + {element}]"
                at = f"[i * {self.rows_of_lane} + {self.row_of[element]}]"
                key = f"j * {n} + {fragment.position(0, element)[1]}"
                visible = f"{key} < keys_left{at}"
                if self.function.window is not None:
                    visible += f" and {key} >= keys_before{at}"
                script.line(f"{score} = T.Select({visible}, {score}, {LOWEST})")

    @property
    def _counts_keys(self) -> bool:
        """True if the key of a score is its position along the columns of the first product."""
        product = self.plan.first
        columns = Positions(product.axes[1], product.instruction.n, product.columns)
        key = self.key
        counts = columns.slope(key) == 1 and not key.constant
        return counts and set(key.iterators) <= columns.names

    def _mask_elements(self, step: str) -> None:
        if not self.function.mask and self._counts_keys:
            self._mask_positions(step)
            return
        plan, count = self.plan, self.instruction.registers[2]
        tiles, extents, product = plan.column_tiles, self.extents, plan.first
        # Tiles beyond the last one: their keys are beyond the last key only if a loop counts tiles.
        inside = ""
        if plan.chunks * tiles > product.tiles[2]:
            inside = f" and {step} * {tiles} + j < {product.tiles[2]}"
        with self.script.nested(
            f"for i in T.unroll({plan.schedule.rows}):", f"for j in T.unroll({tiles}):"
        ):
            for element in range(count):
                row, column = place(self.instruction.fragments[2], element)
                values = self._iterators(self._tile("i"), plan.row_in_tile(row), column)
                values |= digits(f"({step} * {tiles} + j)", product.columns)
                score = f"scores[(i * {tiles} + j) * {count} + {element}]"
                # A name for each: TVMScript binds a name once in a scope.
                key = f"key{element}"
                self.script.line(f"{key} = {index_script(self.key, values, extents)}")
                at = f"i * {self.rows_of_lane} + {self.row_of[element]}"
                visible = f"{key} < {f'limit[{at}]' if self._is_limited else self.keys}{inside}"
                if self.function.window is not None:
                    visible += f" and {key} >= first_of_row[{at}]"
                if self.function.mask:
                    self._apply_mask(element, values, score, visible)
                else:
                    self.script.line(f"{score} = T.Select({visible}, {score}, {LOWEST})")

    def _apply_mask(
        self, element: int, values: Mapping[str, str], score: str, visible: str
    ) -> None:
        """Write a score with the element of the mask that belongs to it."""
        numbers = {"k": f"key{element}"}
        conditions = [visible]
        for name in "bgrq":
            if _DIMENSIONS.get(name, name) not in self.function.mask:
                continue
            variable = f"{name}_number{element}"
            index = index_script(self.coordinates[name], values, self.extents)
            self.script.line(f"{variable} = {index}")
            numbers[name] = variable
            # Rows of padded tiles have no element.
            conditions.append(f"{variable} < {self.sizes[name]}")
        present = " and ".join(conditions)
        masked_score(self.script, self.function, self.sizes, numbers, (score, visible, present))


_DIMENSIONS = {"g": "h", "r": "h"}
"""Dimensions of a mask by those of the scores, where they differ: heads are those of keys, and the
ones that share them."""


def combine_lanes(script: Script, target: str, operation: str, masks: Iterable[int]) -> None:
    """Write the combination of a value with those of other lanes.

    Parameters
    ----------
    script : Script
    target : str
        The value, which becomes that of all of these lanes.
    operation : str
        Its combination with another one, ``{}``.
    masks : iterable of int
        Binary digits in which the numbers of the lanes differ.
    """
    for mask in masks:
        shuffled = (
            'T.call_pure_extern("float32", "__shfl_xor_sync", T.uint32(4294967295), '
            f"{target}, {mask})"
        )
        script.line(f"{target} = {operation.format(shuffled)}")


def write_scaled(script: Script, function: RowSoftmax, score: str, label: str) -> None:
    """Write a score times its factor, and within the bounds of a cap, in its place.

    Parameters
    ----------
    script : Script
    function : RowSoftmax
    score : str
        The score.
    label : str
        Beginning of the names of registers.
    """
    cap = function.cap
    factor = literal(function.scale if cap is None else function.scale / cap, "float32")
    script.line(f"{score} = {score} * {factor}")
    if cap is not None:
        value = ExpressionWriter(script, label).value(Apply("tanh", (Input(0),)), {0: score})
        script.line(f"{score} = {value.text} * {literal(cap, 'float32')}")


def masked_score(
    script: Script,
    function: RowSoftmax,
    sizes: Mapping[str, int],
    numbers: Mapping[str, str],
    score: tuple[str, str, str],
) -> None:
    """Write a score with its mask: -inf where a key is hidden.

    Parameters
    ----------
    script : Script
    function : RowSoftmax
    sizes : mapping of str to int
        Extents of the scores by dimension: ``b``, ``g``, ``r``, ``q``, ``k``.
    numbers : mapping of str to str
        Expressions of the score's coordinates that the mask has, by dimension.
    score : tuple of str
        The score, the condition under which its key is visible without the mask, and the one under
        which the mask has an element of it.
    """
    name, visible, present = score
    if function.mask:
        offset, stride = "0", 1
        for dimension in "kqrgb":
            if _DIMENSIONS.get(dimension, dimension) in function.mask:
                offset += f" + {numbers[dimension]} * {stride}"
                stride *= sizes[dimension]
        element, dtype = f"{MASK}[T.Select({present}, {offset}, 0)]", function.mask_dtype
        if dtype == "uint8":
            visible += f" and {element} != T.uint8(0)"
        else:
            addend = element if dtype == "float32" else read(element, dtype, "float32")
            script.line(f"{name} = {name} + {addend}")
    script.line(f"{name} = T.Select({visible}, {name}, {LOWEST})")


def _axis_bound(
    index: IndexExpr, axis: str, extents: Mapping[str, int], *, upper: bool
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
