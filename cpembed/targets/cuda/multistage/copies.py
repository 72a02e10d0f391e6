"""Copies of a factor into shared memory as TensorIR: one tile in each step of a kernel's loop.

Where a factor's addresses are separable (:mod:`cpembed.targets.cuda.multistage.separation`), a
thread computes the address of each of its rows and a mask of the places along the depth at which
the row is outside of the factor once before the loop. A step adds the depth's address, which grows
by constants as the digits of the depth do, and tests a mask. Other factors compute every address in
every step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from cpembed.codegen.plan import storage_dtype
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.cuda.multistage.schedule import CHUNK, Plan
from cpembed.targets.cuda.multistage.separation import (
    MASK_BITS,
    DepthWalk,
    Separation,
    Window,
)
from cpembed.targets.cuda.multistage.tile_copies import (
    SWIZZLE_ROWS,
    CopiedTile,
    GeneralCopies,
    TileCopies,
)
from cpembed.targets.cuda.writer import (
    PARAMETERS,
    Writer,
    digits,
    index_script,
    quotient,
    register_pointer,
    remainder,
    shared_pointer,
)


def factor_copies(writer: Writer, plan: Plan, number: int) -> TileCopies:
    """Return the writer of a factor's copies.

    Parameters
    ----------
    writer
        Text of the kernel, with the variables ``thread``, ``row``, ``column``, ``batch`` and
        ``part``.
    plan
        Product and schedule.
    number
        0 for the first factor, 1 for the second.
    """
    schedule, depth = plan.schedule, plan.schedule.depth
    part = f"part * {plan.steps * depth}" if schedule.splits > 1 else "0"
    copied = CopiedTile(
        name=PARAMETERS[number],
        number=number,
        product=plan.product,
        operand=plan.operand(number),
        tile=plan.shared_tiles[number],
        threads=schedule.threads,
        first=(("row", "column")[number], part),
        moves=(0, depth),
        visited=(
            plan.blocks[number] * schedule.block[number],
            plan.steps * schedule.splits * depth,
        ),
    )
    separation = plan.separation(number)
    if separation is None:
        return GeneralCopies(writer, copied)
    return _SeparableCopies(writer, copied, separation, plan.row_distance(number))


class _SeparableCopies(TileCopies):
    """Copies whose rows are located before the loop.

    A thread's variables are named after the factor: ``A_rows`` and ``A_outside`` hold the address
    and the mask of each of its rows, ``A_targets`` their places in shared memory, ``A_offset`` the
    address along the depth, ``A_digits`` the digits of the depth, ``A_deep`` its number of tiles.
    Rows at equal distances need one address, and rows that the depth moves neither in nor out of
    the factor one mask, with a bit for each.
    """

    def __init__(
        self, writer: Writer, copied: CopiedTile, separation: Separation, distance: int | None
    ) -> None:
        super().__init__(writer, copied)
        self.separation = separation
        self.extent, self.loops = copied.extents[0], copied.loops[0]
        self.walk = DepthWalk(self.product.depth, copied.moves[1])
        self.movement = self.walk.movement(separation.depth)
        self.turn_rows = self.threads // self.tile.row_vectors
        period = SWIZZLE_ROWS if self.tile.swizzled else 1
        self.phases = min(self.turns, period // math.gcd(period, self.turn_rows))
        """Number of turns after which rows have the same permutation of chunks again."""
        checked = [*separation.depth_checks, *(window.check for window in separation.windows)]
        indices = [check.depth for check in checked]
        if self.movement is None:
            indices.append(separation.depth)
        self.levels = self.walk.levels_of(indices)
        """Number of digits of the depth that are variables."""
        if self.movement is not None:
            corrections = [n + 1 for n, added in enumerate(self.movement[1]) if added]
            self.levels = max(self.levels, *corrections, 0)
        self.limits = self.depth_is_ragged
        self.distance = distance
        """Elements from the row of a turn to that of the next; None if they vary."""

    def prepare(self) -> None:
        name, tile = self.name, self.tile
        self.script.line(f"{name}_element = thread % {tile.row_vectors} * {self.operand.length}")
        self.script.line(f"{name}_row = {quotient('thread', tile.row_vectors)}")
        self._prepare_depth()
        self._prepare_targets()
        if tile.width < 4:
            shape = f"({self.turns * self.operand.length},)"
            dtype = storage_dtype(self.operand.layout.dtype)
            self.script.line(f'{name}_copied = T.alloc_buffer({shape}, "{dtype}", scope="local")')
        self._array("rows", self.turns if self.distance is None else 1)
        if self._has_masks:
            self._array("outside", self.turns if self.separation.windows else 1)
            if not self.separation.windows:
                self.script.line(f"{name}_outside[0] = 0")
        # Rows at equal distances are located by the first; masks are of all of them.
        located = self.turns if self._has_masks or self.distance is None else 1
        with self.script.nested(f"for turn in T.unroll({located}):"):
            self._locate_row()

    def _prepare_depth(self) -> None:
        """Write the digits and the address of the thread's first place along the depth."""
        name, first = self.name, self.copied.first[1]
        tiles = quotient(f"{name}_element", self.product.instruction.k)
        self.script.line(f"{name}_first = {first} + {tiles}")
        values = digits(f"{name}_first", self.product.depth)
        if self.levels:
            self._array("digits", self.levels)
            for level, loop in enumerate(self.walk.names[: self.levels]):
                self.script.line(f"{name}_digits[{level}] = {values[loop]}")
        if self.limits:
            self._array("deep", 1)
            self.script.line(f"{name}_deep[0] = {name}_first")
        if self.movement is not None:
            self._array("offset", 1)
            values[self.product.axes[2]] = self._lane
            offset = index_script(self.separation.depth, values, self.extents)
            self.script.line(f"{name}_offset[0] = {offset}")

    @property
    def _lane(self) -> str:
        """Place of the thread's vector within an instruction tile along the depth."""
        return remainder(f"{self.name}_element", self.product.instruction.k)

    @property
    def _has_masks(self) -> bool:
        row = self._row_conditions("", "")
        return bool(row or self.separation.row_checks or self.separation.windows)

    def _prepare_targets(self) -> None:
        size = size_bytes(self.operand.layout.dtype)
        self._array("targets", self.phases)
        element = f"{self.name}_element"
        chunk, offset = f"{element} * {size} // {CHUNK}", f"{element} * {size} % {CHUNK}"
        for phase in range(self.phases):
            row = f"{self.name}_row + {phase * self.turn_rows}"
            place = f"{self.tile.place(row, chunk)} + {offset}"
            self.script.line(f"{self.name}_targets[{phase}] = {place}")

    def _locate_row(self) -> None:
        """Write the address and the mask of the row of ``turn``."""
        name, separation = self.name, self.separation
        self.script.line(f"shared_row = turn * {self.turn_rows} + {name}_row")
        self.script.line(f"tile = {self.copied.first[0]} + {quotient('shared_row', self.extent)}")
        values = self._row_values("tile", remainder("shared_row", self.extent))
        rows = index_script(separation.rows, values, self.extents)
        if self.distance is None:
            self.script.line(f"{name}_rows[turn] = {rows}")
        else:
            with self.script.nested("if turn == 0:"):
                self.script.line(f"{name}_rows[0] = {rows}")
        if not self._has_masks:
            return
        conditions = self._row_conditions("tile", "shared_row")
        for check in separation.row_checks:
            index = index_script(check.rows, values, self.extents)
            conditions += [f"0 <= {index}", f"{index} < {check.size}"]
        condition = " and ".join(conditions)
        if not separation.windows:
            bit = f"T.Select({condition}, 0, T.shift_left(1, turn))"
            self.script.line(f"{name}_outside[0] = {name}_outside[0] + {bit}")
            return
        # A bit that every mask has makes a step of which nothing is valid outside for every row.
        masks = [str(1 << MASK_BITS)]
        masks += [self._window_mask(window, values) for window in separation.windows]
        mask = " + ".join(masks)
        if condition:
            self.script.line(f"mask = {mask}")
            mask = f"T.Select({condition}, mask, -1)"
        self.script.line(f"{name}_outside[turn] = {mask}")

    def _window_mask(self, window: Window, values: Mapping[str, str]) -> str:
        """Write the ends of a row's range of numbers that are inside; return the mask's bits."""
        count, label = window.count, f"{self.name}_{window.bit}"
        base = index_script(window.check.rows + window.low, values, self.extents)
        self.script.line(f"base_{label} = {base}")
        # The numbers inside are those from the least whose sum is not negative to the largest whose
        # sum is below the size; quotients are rounded down.
        begin = f"-((base_{label}) // {window.step})"
        end = f"-((base_{label} - {window.check.size}) // {window.step})"
        for side, number in (("begin", begin), ("end", end)):
            self.script.line(f"{side}_{label} = T.max(T.min({number}, {count}), 0)")
        inside = f"T.shift_left(1, end_{label}) - T.shift_left(1, begin_{label})"
        return f"({(1 << count) - 1} - ({inside})) * {1 << window.bit}"

    def copy(self, step: str, base: str) -> None:
        name = self.name
        values = self._depth_values()
        offset = f"{name}_offset[0]"
        if self.movement is None:
            offset = f"{name}_offset_now"
            self.script.line(
                f"{offset} = {index_script(self.separation.depth, values, self.extents)}"
            )
        valid = self._write_bits(values)
        place = f"{name}_rows[turn]" if self.distance is None else f"{name}_rows[0]"
        place = f"{place} + {offset}" + f" + turn * {self.distance}" * bool(self.distance)
        if self.tile.width >= 4:
            with self._turns():
                self._copy_row(base, place, valid)
        else:
            self._copy_short_rows(base, place, valid)
        self._advance()

    def _depth_values(self) -> dict[str, str]:
        """Return the values of the iterators of the depth, from the variables."""
        values = {loop.name: "0" for loop in self.product.program.loops}
        for level, loop in enumerate(self.walk.names[: self.levels]):
            values[loop] = f"{self.name}_digits[{level}]"
        values[self.product.axes[2]] = self._lane
        return values

    def _write_bits(self, values: Mapping[str, str]) -> str:
        """Write the bits that a step tests; return the expression of a row's validity."""
        name, conditions = self.name, list[str]()
        if self.limits:
            conditions.append(f"{name}_deep[0] < {self.product.tiles[3]}")
        for check in self.separation.depth_checks:
            index = index_script(check.depth + check.rows.constant, values, self.extents)
            conditions += [f"0 <= {index}", f"{index} < {check.size}"]
        bits = [self._bit(window, values) for window in self.separation.windows]
        condition = " and ".join(conditions)
        if not self._has_masks:
            return f'T.cast({condition}, "int32")' if condition else "1"
        if not bits:
            outside = f"{name}_outside[0]"
            if condition:
                self.script.line(f"{name}_outside_now = {outside}")
                self.script.line(f"{name}_bits = T.Select({condition}, {name}_outside_now, -1)")
                outside = f"{name}_bits"
            return f'T.cast(T.bitwise_and({outside}, T.shift_left(1, turn)) == 0, "int32")'
        self.script.line(f"{name}_bits_all = {' + '.join(bits)}")
        selected = (
            f"T.Select({condition}, {name}_bits_all, -1)" if condition else f"{name}_bits_all"
        )
        self.script.line(f"{name}_bits = {selected}")
        return f'T.cast(T.bitwise_and({name}_outside[turn], {name}_bits) == 0, "int32")'

    def _bit(self, window: Window, values: Mapping[str, str]) -> str:
        number = index_script(window.check.depth + (-window.low), values, self.extents)
        return f"T.shift_left({1 << window.bit}, {quotient(f'({number})', window.step)})"

    def _target(self, base: str) -> str:
        """Return a pointer to the place in shared memory of the row of ``turn``."""
        distance = self.phases * self.turn_rows * self.tile.pitch
        target = f"{self.name}_targets[turn % {self.phases}] + turn // {self.phases} * {distance}"
        return shared_pointer(f"{base} + {target}")

    def _copy_row(self, base: str, place: str, valid: str) -> None:
        pointer = f"T.address_of({self.name}[{place}])"
        self.writer.call(f"cpembed_cp_async_{self.tile.width}", self._target(base), pointer, valid)

    def _copy_short_rows(self, base: str, place: str, valid: str) -> None:
        """Write copies that are shorter than cp.async takes: through registers."""
        name, length, width = self.name, self.operand.length, self.tile.width
        register = register_pointer(f"{name}_copied", f"turn * {length}")
        # All loads are in flight before the first store waits.
        with self._turns():
            pointer = f"T.address_of({name}[{place}])"
            self.writer.call(f"cpembed_load_{width}", register, pointer, valid)
        with self._turns():
            self.writer.call(f"cpembed_shared_store_{width}", self._target(base), register)

    def _advance(self) -> None:
        """Write the movement of the depth's digits and address to the next step."""
        name, walk = self.name, self.walk
        added, carried = self.movement or (0, ())
        if self.limits:
            self.script.line(f"{name}_deep[0] = {name}_deep[0] + {walk.increment}")
        if added:
            self.script.line(f"{name}_offset[0] = {name}_offset[0] + {added}")
        for level in range(walk.still, self.levels):
            digit, increment = f"{name}_digits[{level}]", walk.increments[level]
            carry = f" + {name}_carry_{level - 1}" if level > walk.still else ""
            self.script.line(f"{digit} = {digit} + {increment}{carry}")
            if level == len(walk.loops) - 1:
                break
            extent = walk.extents[level]
            self.script.line(f'{name}_carry_{level} = T.cast({digit} >= {extent}, "int32")')
            moved = f"{name}_carry_{level} * {{}}"
            self.script.line(f"{digit} = {digit} - {moved.format(extent)}")
            if carried and carried[level]:
                self.script.line(
                    f"{name}_offset[0] = {name}_offset[0] + {moved.format(carried[level])}"
                )
