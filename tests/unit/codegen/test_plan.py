"""Loops of a kernel's text: whatever their limits, compiled code takes the steps of the text."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cpembed.codegen.plan import KernelPlan, Script
from cpembed.codegen.runtime import compile_plan, empty
from cpembed.errors import InvariantError

_PLACES = 8
"""Number of values of a loop's variable that a test tells apart."""


def _limits(maker: random.Random, names: list[str]) -> tuple[str, str]:
    """Return limits of a loop within 0 to 7, which may name outer loops."""
    outer = maker.choice(names) if names else None
    first = maker.choice(["0", "1", "2", *([outer, f"{outer} // 2"] if outer else [])])
    count = maker.choice(["1", "2"])
    ends = [f"T.min({first} + {count}, {_PLACES})"]
    if first in ("0", "1") and outer is not None:
        ends.append(f"T.max({outer}, {first} + 1)")
    return first, maker.choice(ends)


@pytest.mark.parametrize("seed", range(12))
def test_loops_begin_and_end_where_outer_loops_say(seed: int) -> None:
    maker = random.Random(seed)
    depth = maker.choice([2, 3, 3])
    script, names = Script(), list[str]()
    code, indent = "", ""
    headers = list[str]()
    for level in range(depth):
        first, end = _limits(maker, names)
        kind = "parallel" if level == 0 and first == "0" and seed % 2 else "serial"
        limits = f"{first}, {end}" if kind == "serial" else f"{end}"
        names.append("xyz"[level])
        headers.append(f"for {names[-1]} in T.{kind}({limits}):")
        plain = f"range({first}, {end})".replace("T.min", "min").replace("T.max", "max")
        code += f"{indent}for {names[-1]} in {plain}:\n"
        indent += "    "
    size = _PLACES**depth
    place = " + ".join(f"{name} * {_PLACES**k}" for k, name in enumerate(names))
    code += f"{indent}counts[{place}] += 1\n"
    with script.function([f'counts: T.Buffer(({size},), "int32")']), script.nested(*headers):
        script.line(f"counts[{place}] = counts[{place}] + 1")
    expected = np.zeros(size, np.int32)
    exec(code, {"counts": expected})
    counts = empty(size, "int32")
    compile_plan(KernelPlan("loops", script.text()))(counts)
    np.testing.assert_array_equal(counts.numpy(), expected)


def test_a_loop_after_a_shifted_one_keeps_its_limits() -> None:
    script = Script()
    with script.nested("for x in T.serial(1, 3):"):
        pass
    with script.nested("for y in T.serial(x, 3):"):
        script.line("pass")
    assert "limit" not in script.text()


def test_a_loop_may_not_hide_the_variable_of_one_around_it() -> None:
    script = Script()
    with script.nested("for i in T.serial(4):", "for j in T.unroll(2):"):
        pass
    with (
        script.nested("for i in T.serial(4):"),
        pytest.raises(InvariantError, match="hides the loop variable i"),
        script.nested("for j in T.serial(2):", "for i in T.unroll(3):"),
    ):
        pass
