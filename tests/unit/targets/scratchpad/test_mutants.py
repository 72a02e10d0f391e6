"""Mistakes in a text are found when it is executed: by a fault, or by other numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from cpembed.errors import ExecutionFault, LoweringError
from cpembed.ir.reference import reference
from cpembed.targets.scratchpad.emit import c_text
from cpembed.targets.scratchpad.executor import ScratchpadProgram, program
from cpembed.targets.scratchpad.schedule import Plan, check
from cpembed.targets.scratchpad.target import SEEDS
from tests.unit.targets.scratchpad.executor.running import needs_compiler
from tests.unit.targets.scratchpad.plans import plan_of, small_inputs

pytestmark = needs_compiler

QUICK = "sw26010"

PLANS: dict[str, Callable[[], Plan]] = {
    # Windows with padding, channels in two tiles, kernels in two of which one is half full.
    "sw26010": lambda: plan_of(
        "sw26010",
        "conv2d n=1 c=16 h=3 w=16 k=72 r=3 s=3 pad=1 layout=NHWC",
        {"k": "x", "q": "y", "c": "z"},
        {"k": 64, "q": 16, "s": 3},
    ),
    "sw26010, one buffer": lambda: plan_of(
        "sw26010",
        "conv1d n=1 c=16 w=18 k=40 s=3 pad=1 layout=NWC",
        {"k": "x", "q": "y", "c": "z"},
        {"q": 16, "c": 16},
        buffers=1,
    ),
    "gemmini_16x16": lambda: plan_of(
        "gemmini_16x16",
        "conv2d n=1 c=32 h=5 w=18 k=40 r=3 s=3 pad=1 layout=NHWC",
        {"q": "x", "k": "y", "c": "z"},
        {"k": 32, "q": 32, "s": 3},
        ahead=True,
    ),
    "nvdla_small": lambda: plan_of(
        "nvdla_small",
        "conv2d n=1 c=12 h=5 w=6 k=20 r=3 s=3 pad=1 layout=NHWC",
        {"k": "y", "c": "z"},
        {"k": 16, "q": 3, "c": 16},
    ),
}

MISTAKES = {
    "no wait for the first input": (r"if \((\w+)_moving\[\1_in\]\) dma_wait.*\n", "\n", 1),
    "no wait for the second input": (r"if \((\w+)_moving\[\1_in\]\) dma_wait.*\n", "\n", 2),
    "sums begin while the last are stored": (r"if \((O)_moving\[O_in\]\) dma_wait.*\n", "\n", 1),
    "no wait for the last stores": (r"if \(O_moving\[k\]\) dma_wait\(.*;", ";", 1),
    "stores are waited for after they are forgotten": (
        r"    if \((O)_moving\[O_in\]\) (dma_wait.*\n)(.*O_moving.*= 0;)",
        r"\3 if (O_moving[O_in]) \2",
        1,
    ),
    "the other input's reply word": (r"(get_W\(.*)&W_reply\[", r"\1&I_reply[", 1),
    "the output waits for an input's word": (
        r"dma_wait\(&O_reply\[O_in\]",
        "dma_wait(&I_reply[I_in]",
        1,
    ),
    "waiting for one more": (r"dma_wait\((.*)\);", r"dma_wait(\1 + 1);", 1),
    "waiting for one less": (r"dma_wait\((.*)\);", r"dma_wait(\1 - 1);", 2),
    "waiting for the tile after": (r"dma_wait\(&W_reply\[W_in\]", "dma_wait(&W_reply[!W_in]", 1),
    "this tile instead of the next": (r"(get_W\(.*)&next", r"\1&now", 1),
    "both buffers in one place": (
        r"(W_box\[2\] = \{)(scratchpad\(\d, \d+\)), [^}]*",
        r"\1\2, \2",
        1,
    ),
    "the first input over the second": (r"(_box\[\d\] = \{scratchpad\(0, )\d+\)", r"\g<1>0)", 2),
    "sums do not begin at zero": (r"      zero\(.*\n", "\n", 1),
    "padding is not zero": (r"if \(!put && cut\) zero\(here, whole\);", "", 1),
    "zeros over what lies after": (r"zero\(here, whole\)", "zero(here, whole + 64)", 1),
    "sums begin with every tile": (r"  begins = .*;", "  begins = 1;", 1),
    "sums go on in the next box": (r"  begins = .*;", "  begins = !more;", 1),
    "another distance in main memory": (r"(I, (?:.*\n)*?.*apart\[2\] = )(\d+)", r"\1\2 + 4", 1),
    "another distance of the output": (r"(O, (?:.*\n)*?.*apart\[1\] = )(\d+)", r"\1\2 + 4", 1),
    "a step too far": (r"(I, (?:.*\n)*?.*step\[2\] = )1", r"\g<1>2", 1),
    "the place before": (r"(I, (?:.*\n)*?.*first\[2\] = .*)-1;", r"\1-2;", 1),
    "a box too small": (r"(W, (?:.*\n)*?.*held\[1\] = )(.*);", r"\1\2 - 1;", 1),
    "the mesh's axes are exchanged": (r"(W, (?:.*\n)*?.*)PE_ROW", r"\1PE_COLUMN", 1),
    "one PE has not its part": (
        r"(get_W\(.*\{)",
        r"\1 if (PE_ROW == PE_ROWS - 1 && PE_COLUMN == PE_COLUMNS - 1) return 0;",
        1,
    ),
    "one PE does not store": (
        r"(put_O\(.*\{)",
        r"\1 if (PE_ROW == PE_ROWS - 1 && PE_COLUMN == PE_COLUMNS - 1) return 0;",
        1,
    ),
    "tiles are not filled up": (r"\(points \+ granule - 1\) / granule", "points / granule", 1),
    "the last tile is whole": (r"least\(TILE_k, EXTENT_k - t->first_k\)", "TILE_k", 1),
    "another leading dimension of A": (r"(gemm\(.*, A, )([^,]*)", r"\1\2 + 4", 1),
    "another leading dimension of B": (r"(gemm\(.*, B, )([^,]*)", r"\1\2 + 4", 1),
    "another leading dimension of C": (r"(gemm\(.*, C, )([^,]*)", r"\1\2 + 4", 1),
    "the other variant": (r"B_COLUMN_MAJOR\);", "0);", 1),
    "less depth": (r"(gemm\([^,]*, [^,]*, )([^,]*)", r"\1\2 - 8", 1),
    "another distance in a granule": (r"(  execute_\w+\(A.*, B[^,]*, )([^,]*)", r"\1\2 + 1", 1),
    "too few granules": (r"at_k \+= \d+\)", "at_k += 2 * GRANULE_k)", 1),
}  # fmt: skip
"""What is replaced by what, and of how many matches it is which."""

HARMLESS = {
    "the mesh's axes are exchanged": {"gemmini_16x16"},  # There is one PE.
    # Of operands as they lie, what is beyond is zero and not stored: it is only wasted.
    "the last tile is whole": {"sw26010", "sw26010, one buffer", "nvdla_small"},
}
"""Plans in which a change is no mistake."""


def mutant(text: str, name: str) -> str | None:
    """None where the text has no such place."""
    pattern, new, number = MISTAKES[name]
    found = list(re.finditer(pattern, text))
    if len(found) < number:
        return None
    match = found[number - 1]
    return text[: match.start()] + match.expand(new) + text[match.end() :]


def is_caught(plan: Plan, text: str) -> bool:
    """Whether a text has a fault, or other numbers than the reference, in one of the orders in
    which a target executes it."""
    given = plan.product.program.unfused
    inputs = small_inputs(given, 3)
    expected = reference(given, inputs)
    for order in SEEDS:
        try:
            found = ScratchpadProgram(plan, text).run(inputs, order)
        except ExecutionFault:
            return True
        if not np.array_equal(found, expected):
            return True
    return False


def smaller(plan: Plan, number: int) -> Plan:
    """On a machine with a byte less than the plan uses of a memory."""
    machine = plan.product.machine
    room = list(machine.capacities)
    room[number] = plan.used[number] - 1
    less = replace(machine, capacities=tuple(room))
    return replace(plan, product=replace(plan.product, machine=less))


@pytest.fixture(
    scope="module",
    params=[n if n == QUICK else pytest.param(n, marks=pytest.mark.slow) for n in PLANS],
)
def case(request: pytest.FixtureRequest) -> tuple[str, Plan, str]:
    plan = PLANS[request.param]()
    return request.param, plan, program(plan).text


def test_what_is_generated_is_right(case: tuple[str, Plan, str]) -> None:
    _, plan, text = case
    assert not is_caught(plan, text)


def test_a_byte_less_than_what_is_used_is_a_fault(case: tuple[str, Plan, str]) -> None:
    _, plan, text = case
    for number in range(len(plan.product.machine.memories)):
        assert is_caught(smaller(plan, number), text)
        with pytest.raises(LoweringError, match=r"takes .* bytes of .*, which has"):
            check(smaller(plan, number))


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(case: tuple[str, Plan, str], name: str) -> None:
    where, plan, right = case
    text = mutant(right, name)
    if text is None or where in HARMLESS.get(name, set()):
        pytest.skip("this plan has no such place")
    assert text != right
    assert is_caught(plan, text)


def test_every_mistake_can_be_made_somewhere() -> None:
    texts = {where: c_text(make()) for where, make in PLANS.items()}
    for name in MISTAKES:
        places = {where for where, text in texts.items() if mutant(text, name) is not None}
        assert places - HARMLESS.get(name, set()), name
