"""Kernels of chains that are wrong on purpose: a wrong number, or a fault that has a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from cpembed.errors import ExecutionFault
from cpembed.targets.cuda.chains import emit, pointwise, row_keys
from cpembed.targets.cuda.chains.plan import ChainPlan, ChainSchedule
from cpembed.targets.cuda.chains.row_keys import RowKeys
from cpembed.targets.cuda.chains.softmax import Softmax
from cpembed.targets.cuda.emulator.executor import Order
from cpembed.targets.cuda.multistage.linear_copies import LinearCopies
from cpembed.targets.cuda.writer import Writer
from cpembed.workloads.chains import RowSoftmax
from tests.unit.targets.cuda.chains.generated import chain_of, is_right, kernels_of, plan_of
from tests.unit.targets.cuda.emulator.running import needs_compiler

pytestmark = needs_compiler

# Scores that differ by more than what powers may grow by, so that sums are scaled.
HEADS = ("attention b=2 h=4 kv=2 q=40 k=70 d=32 causal lengths scale=2", (2, 1), 1, 2, 4)
MASKED = ("attention b=1 h=1 q=40 k=70 d=32 mask", (2, 1), 1, 2, 4)
BYTES = ("mlp m=40 k=64 n=100 p=48 act=relu bias dtype=int8", (2, 1), 1, 1, 6)
SHARED = ("mlp m=40 k=64 n=100 p=48 act=relu bias dtype=int8", (2, 2), 1, 2, 6)


def plan(case: tuple[Any, ...]) -> ChainPlan:
    words, warps, rows, chunk, columns = case
    via = "registers" if warps[1] == 1 else "shared memory"
    return plan_of(chain_of(words), ChainSchedule(via, warps, rows, chunk, columns))


@dataclass(frozen=True)
class Mutant:
    """A change of the generator: a member, and its replacement from the original one."""

    name: str
    case: tuple[Any, ...]
    owner: Any
    member: str
    change: Callable[[Any], Any]


def lines(pattern: str, replacement: str) -> Callable[[Any], Any]:
    """Edit what a member writes, line by line."""

    def changed(original: Any) -> Any:
        def member(self: Any, *arguments: Any, **keywords: Any) -> Any:
            script = self.script
            write = script.line
            edited: list[str] = []

            def line(text: str) -> None:
                edited.append(text)
                write(text.replace(pattern, replacement))

            script.line = line
            try:
                return original(self, *arguments, **keywords)
            finally:
                script.line = write
                assert any(pattern in text for text in edited), "the mutant changes nothing"

        return member

    return changed


def nothing(_: Any) -> Any:
    return lambda *_arguments, **_keywords: None


def without_call(name: str) -> Callable[[Any], Any]:
    """Leave out the calls of a device function, or barriers."""

    def changed(original: Any) -> Any:
        def member(self: Writer, called: str, *arguments: str) -> None:
            if not called.startswith(name):
                original(self, called, *arguments)

        return member

    return changed


def shifted_causal(original: Any) -> Any:
    def begin(self: Softmax) -> None:
        assert self.function.causal is not None
        self.function = replace(self.function, causal=self.function.causal + 1)
        original(self)

    return begin


MUTANTS = (
    Mutant("a causal mask that is off by one", HEADS, RowKeys, "_begin_limits", shifted_causal),
    Mutant("no mask", HEADS, RowKeys, "_write_masks", nothing),
    Mutant("no rescaling of the sums", HEADS, Softmax, "_shrink_sums", nothing),
    Mutant("no rescaling of the powers", HEADS, Softmax, "_grow",
           lines("* shrink[", "* T.float32(1) + 0 * shrink[")),
    Mutant("no score is so much larger", HEADS, Softmax, "write_powers",
           lines("grows[0] = ", "grows[0] = 0 * ")),
    Mutant("the largest score is that of one lane", HEADS, Softmax, "_combine", nothing),
    Mutant("the largest score is forgotten", HEADS, Softmax, "_grow",
           lines("= T.max(", "= T.min(")),
    Mutant("a factor of the scores is missing", HEADS, Softmax, "__init__",
           lambda original: lambda self, *a: with_exponent(self, original, *a)),
    Mutant("lengths are not looked at", HEADS, RowKeys, "locate_block",
           lines("Lengths[", "0 * Lengths[")),
    Mutant("lengths of another batch", HEADS, row_keys, "index_script",
           lambda original: lambda *a: original(*a).replace("batch", "(3 - batch)")),
    Mutant("addends of other rows", MASKED, RowKeys, "_apply_mask",
           lines("Mask[T.Select(", "Mask[T.Select(q_number0 > 0 and ")),
    Mutant("keys beyond the last one count", MASKED, RowKeys, "_mask_elements",
           lines("< 70", "< 96")),
    Mutant("registers in another order", BYTES, pointwise, "_write_registers",
           lambda original: lambda writer, plan, step: original(writer, reordered(plan), step)),
    Mutant("the second factor is not reordered", BYTES, ChainPlan, "is_ordered",
           lambda _: property(lambda self: True)),
    Mutant("addends of other columns", BYTES, pointwise, "place",
           lambda original: lambda name, element: original(name, element ^ 1)),
    Mutant("stages overlap", HEADS, ChainPlan, "stage_bytes",
           lambda original: property(lambda self: original.fget(self) // 2)),
    Mutant("no wait for copies", HEADS, Writer, "call", without_call("cpembed_cp_async_wait")),
    Mutant("no barriers", HEADS, Writer, "barrier", nothing),
    Mutant("no barriers around shared memory", SHARED, Writer, "barrier", nothing),
    Mutant("the second factor is not transposed", HEADS, Writer, "call",
           lambda original: lambda self, name, *a: original(self, name.replace("_trans", ""), *a)),
    Mutant("rows of another warp", HEADS, emit._Fragments, "locate",
           lambda original: lambda self, chunks: of_other_warp(self, original, chunks)),
    Mutant("vectors of the first turn", HEADS, LinearCopies, "copy",
           lines(" + turn * ", " + 0 * turn * ")),
    Mutant("the last chunk is left out", HEADS, RowKeys, "locate_block",
           lambda original: lambda self: (original(self)[0], f"({original(self)[1]} - 1)")),
)  # fmt: skip


def with_exponent(self: Softmax, original: Any, *arguments: Any) -> None:
    original(self, *arguments)
    self.exponent = 1.0


def reordered(plan: ChainPlan) -> ChainPlan:
    """With pairs of registers exchanged, as those of 16-bit factors would be."""
    coupling = plan.coupling
    sources = tuple(sorted(coupling.sources))
    pair = replace(plan.pair, coupling=replace(coupling, sources=sources))
    return replace(plan, pair=pair)


def of_other_warp(fragments: Any, original: Any, chunks: Any) -> None:
    fragments.line = fragments.line.replace("warp_row", "(1 - warp_row)")
    original(fragments, chunks)


@pytest.mark.quick(5)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_wrong_kernel_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    original = mutant.owner.__dict__[mutant.member]
    right = plan(mutant.case)
    monkeypatch.setattr(mutant.owner, mutant.member, mutant.change(original))
    kernels = kernels_of(replace(right))
    noticed = False
    for order in (Order.FORWARD, Order.REVERSE, 3):
        try:
            noticed = noticed or not is_right(kernels, 5, order)
        except ExecutionFault:
            noticed = True
    assert noticed


@pytest.mark.parametrize("case", [HEADS, MASKED, BYTES, SHARED], ids=lambda case: case[0][:20])
def test_the_kernels_that_are_changed_are_right(case: tuple[Any, ...]) -> None:
    kernels = kernels_of(plan(case))
    assert all(is_right(kernels, 5, order) for order in (Order.FORWARD, Order.REVERSE, 3))


def test_the_cases_have_masks_that_matter() -> None:
    function = chain_of(HEADS[0]).function
    assert isinstance(function, RowSoftmax)
    assert function.lengths
    assert function.causal == 30
