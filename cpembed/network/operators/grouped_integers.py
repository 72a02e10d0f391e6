"""Kernels of weight-only products whose activations are rounded to int8, group by group.

A group's sums are dot products of bytes, exact in 32 bits. Codes of four bits or fewer are the
unsigned factor, which no instruction saturates on; codes of eight bits are two such factors, their
lower and their upper halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.values import (
    clamped,
    extremum,
    literal,
    nan_to_zero,
    round_to_even,
)
from cpembed.graph.kinds.grouped import LARGEST_LEVEL, TILE, GroupedProduct, GroupQuantize
from cpembed.network.operators.emission import LANE, Kernel, Operands
from cpembed.network.operators.grouped import (
    FEW_ROWS,
    ProductText,
    over_groups,
    over_words,
    rows_from,
    store,
)
from cpembed.network.operators.grouped_instruction import group_instruction

# Bytes of a word, and bits of the unsigned factor of a dot product.
_BYTES, _HALF = 4, 4
# Lanes of the search for the largest magnitude.
_LANES = 8


def group_quantize_plan(kind: GroupQuantize, operands: Operands) -> KernelPlan:
    """Return the kernel that rounds groups to int8."""
    (source,) = operands.inputs
    kernel = Kernel(operands, operands.chunks(4, [source]))
    script, groups = kernel.script, kind.groups
    rows = source.type.elements // kind.columns
    complete, rest = divmod(kind.columns, kind.block)
    with (
        kernel.body(),
        script.nested(f"for row in T.serial({kernel.share(rows)}):"),
    ):
        if complete:
            with script.nested(f"for group in T.serial({complete}):"):
                _rounded_group(kernel, kind, f"row * {groups} + group", "group", kind.block)
        if rest:
            _rounded_group(kernel, kind, f"row * {groups} + {complete}", str(complete), rest)
    return kernel.plan("group_quantize")


def _rounded_group(
    kernel: Kernel, kind: GroupQuantize, number: str, group: str, count: int
) -> None:
    """Write the rounding of a group of ``count`` columns; ``number`` counts all groups."""
    script = kernel.script
    place = f"row * {kind.columns} + {group} * {kind.block}"
    largest = kernel.bind(_largest_magnitude(kernel, place, count))
    factor = kernel.bind(f"{literal(LARGEST_LEVEL, 'float32')} / {largest}")
    total = kernel.registers(1, "int32")
    script.line(f"{total}[0] = T.int32(0)")
    with script.nested(f"for column in T.serial({count}):"):
        # A NaN, also 0 times an infinite factor, becomes 0, as the scale makes its products NaN.
        value = nan_to_zero(kernel.bind, f"in0[{place} + column] * {factor}", "float32")
        level = clamped(round_to_even(value), "float32", -LARGEST_LEVEL, LARGEST_LEVEL)
        level = kernel.bind(f'T.cast({level}, "int32")')
        script.line(f'out0[({number}) * {kind.padded} + column] = T.cast({level}, "int8")')
        script.line(f"{total}[0] = {total}[0] + {level}")
    if count < kind.padded:
        with script.nested(f"for column in T.serial({count}, {kind.padded}):"):
            script.line(f"out0[({number}) * {kind.padded} + column] = T.int8(0)")
    script.line(f"out1[{number}] = {largest} / {literal(LARGEST_LEVEL, 'float32')}")
    script.line(f"out2[{number}] = {total}[0]")


def _largest_magnitude(kernel: Kernel, place: str, count: int) -> str:
    """Write the search for the largest magnitude of some elements; return its text."""
    script, vectors = kernel.script, count // _LANES
    name = kernel.registers(_LANES, "float32", literal(0, "float32"))

    def magnitude(text: str, dtype: str) -> str:
        number = 'T.llvm_lookup_intrinsic_id("llvm.fabs")'
        return f'T.call_llvm_pure_intrin({number}, {text}, dtype="{dtype}")'

    if vectors:
        kind, ramp = f"float32x{_LANES}", f"T.Ramp(0, 1, {_LANES})"
        with script.nested(f"for step in T.serial({vectors}):"):
            element = f"in0[T.Ramp({place} + step * {_LANES}, 1, {_LANES})]"
            text = extremum("max", f"{name}[{ramp}]", magnitude(element, kind), "float32", _LANES)
            script.line(f"{name}[{ramp}] = {text}")
    for rest in range(vectors * _LANES, count):
        element = magnitude(f"in0[{place} + {rest}]", "float32")
        script.line(f"{name}[0] = {extremum('max', f'{name}[0]', element, 'float32')}")
    for lane in range(1, _LANES):
        script.line(f"{name}[0] = {extremum('max', f'{name}[0]', f'{name}[{lane}]', 'float32')}")
    return f"{name}[0]"


# --------------------------------------------------------------------------------------- products


def integer_product_plan(kind: GroupedProduct, operands: Operands) -> KernelPlan:
    """Return the kernel of a product of rounded activations and packed weights."""
    writer = _IntegerWriter(kind, operands)
    return writer.plan()


class _IntegerWriter:
    """Text of a kernel: inputs 0 to 2 are integers, their scales and their sums."""

    def __init__(self, kind: GroupedProduct, operands: Operands) -> None:
        self.text = ProductText(kind, operands)
        self.kind, self.form = kind, kind.weights
        self.dot = group_instruction(self.form.padded_block)
        # Codes of eight bits have two sums.
        self.halves = 2 if self.form.bits > _HALF else 1
        rows = min(kind.rows, FEW_ROWS)
        self.lanes = TILE if rows * self.halves == 1 else TILE // 2

    @property
    def kernel(self) -> Kernel:
        return self.text.kernel

    def plan(self) -> KernelPlan:
        if self.kind.rows <= FEW_ROWS:
            plan = self.text.write(self._few)
        else:
            plan = self.text.write(self._many)
        attributes = () if self.dot is None else self.dot.attributes
        functions = "" if self.dot is None else self.dot.functions
        backend = f"grouped.{'portable' if self.dot is None else self.dot.name}"
        return KernelPlan(
            backend, plan.source, attributes=attributes, functions=plan.functions + functions
        )

    def _few(self, count: int) -> None:
        """Write a tile for few rows, whose totals stay in registers."""
        rows = rows_from("0", self.kind.rows)
        for first in range(0, count, self.lanes):
            zero = literal(0, "float32")
            totals = [self.kernel.registers(self.lanes, "float32", zero) for _ in rows]

            add = partial(self._group, first=first, rows=rows, totals=totals)
            over_groups(self.kernel, self.form, lambda number, _, add=add: add(number))
            store(self.text, totals, first, self.lanes, min(self.lanes, count - first))

    def _many(self, count: int) -> None:
        """Write a tile for many rows, whose totals are the results in memory."""
        text, lanes = self.text, self.lanes
        text.write_initial(count)

        def group(number: str, _: int) -> None:
            for first in range(0, count, lanes):
                stored = min(lanes, count - first)
                for rows in text.row_blocks(FEW_ROWS):
                    with text.added_to(rows, first, lanes, stored) as totals:
                        self._group(number, first, rows, totals)

        over_groups(self.kernel, self.form, group)

    def _group(self, group: str, first: int, rows: Sequence[str], totals: Sequence[str]) -> None:
        """Write the dot products of a group, and add them to the totals in the group's scales."""
        kernel, form, script = self.kernel, self.form, self.kernel.script
        sums = [
            [kernel.registers(self.lanes, "int32", "T.int32(0)") for _ in range(self.halves)]
            for _ in rows
        ]

        def word(place: str, _: int) -> None:
            for phase in range(8 // min(form.bits, _HALF)):
                half = phase if self.halves == 2 else 0
                # Both halves of a code are multiplied by the same activations.
                column = f"{place} * {form.codes_per_word} + {0 if self.halves == 2 else 4 * phase}"
                for row, halves in zip(rows, sums, strict=True):
                    at = f"({row} * {form.groups} + {group}) * {form.padded_block}"
                    self._multiply(
                        _Step(group, place, first, phase), f"{at} + {column}", halves[half]
                    )

        over_words(kernel, form, form.padded_block, word)
        for row, halves, total in zip(rows, sums, totals, strict=True):
            with kernel.vectorized(self.lanes):
                value = self._centred(group, first, row, halves)
                parameter = f"{row} * {form.groups} + {group}"
                scale = self.text.weights.scale(group, f"{first} + {LANE}")
                scaled = f"{value} * ({scale} * in1[{parameter}])"
                script.line(f"{total}[{LANE}] = {total}[{LANE}] + {scaled}")

    def _centred(self, group: str, first: int, row: str, sums: Sequence[str]) -> str:
        """Return the text of a lane's sum, less the zero point times the activations' sum."""
        text = f"{sums[0]}[{LANE}]"
        if self.halves == 2:
            text = f"({text} + {sums[1]}[{LANE}] * T.int32({1 << _HALF}))"
        weights, activations = self.text.weights, f"in2[{row} * {self.form.groups} + {group}]"
        if weights.has_zeros and weights.zero_dtype == "uint8":
            place = f"(tile * {self.form.groups} + {group}) * {TILE} + {first} + {LANE}"
            zero = f'T.cast(in{weights.number + 2}[{place}], "int32")'
        elif not weights.has_zeros and weights.zero == int(weights.zero):
            zero = f"T.int32({int(weights.zero)})"
        else:
            zero = weights.zero_point(group, f"{first} + {LANE}")
            return f'(T.cast({text}, "float32") - {zero} * T.cast({activations}, "float32"))'
        # Exact, so that equal weights and zero points cancel.
        return f'T.cast({text} - {zero} * {activations}, "float32")'

    def _multiply(self, step: _Step, activations: str, sums: str) -> None:
        """Write the dot products of four activations with the codes of a step."""
        script, dot = self.kernel.script, self.dot
        bits = min(self.form.bits, _HALF)
        mask = sum((2**bits - 1) << (8 * byte) for byte in range(_BYTES))
        if dot is None:
            self._multiply_portably(step, activations, sums)
            return
        lanes = dot.lanes
        for register in range(0, self.lanes, lanes):
            place = self.text.weights.place(step.group, step.word, str(step.first + register))
            words = f"in{self.text.weights.number}[T.Ramp({place}, 1, {lanes})]"
            if step.phase:
                shift = f"T.broadcast(T.int32({bits * step.phase}), {lanes})"
                words = f"T.shift_right({words}, {shift})"
            words = f"T.bitwise_and({words}, T.broadcast(T.int32({mask}), {lanes}))"
            codes = f'T.reinterpret({words}, dtype="uint8x{_BYTES * lanes}")'
            four = f'T.reinterpret(in0[T.Ramp({activations}, 1, {_BYTES})], dtype="int32")'
            spread = f'T.reinterpret(T.broadcast({four}, {lanes}), dtype="int8x{_BYTES * lanes}")'
            target = f"{sums}[T.Ramp({register}, 1, {lanes})]"
            script.line(f"{target} = {dot.call(target, spread, codes, True)}")

    def _multiply_portably(self, step: _Step, activations: str, sums: str) -> None:
        bits = min(self.form.bits, _HALF)
        word = self.text.weights.word(step.group, step.word, f"{step.first} + {LANE}")
        with self.kernel.vectorized(self.lanes):
            terms: list[str] = []
            for byte in range(_BYTES):
                shift = f"T.shift_right({word}, T.int32({8 * byte + bits * step.phase}))"
                code = f"T.bitwise_and({shift}, T.int32({2**bits - 1}))"
                terms.append(f'{code} * T.cast(in0[{activations} + {byte}], "int32")')
            line = f"{sums}[{LANE}] = {sums}[{LANE}] + {' + '.join(terms)}"
            self.kernel.script.line(line)


@dataclass(frozen=True)
class _Step:
    """Codes of a dot product: the group, the word, the first row in the tile, and the shift."""

    group: str
    word: str
    first: int
    phase: int
