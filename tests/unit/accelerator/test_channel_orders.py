"""Machines with channels: orders by seed, races, deadlocks, depths, and times."""

from __future__ import annotations

import itertools
import random
import re

import numpy as np
import pytest

from cpembed.accelerator.assembly import parse
from cpembed.accelerator.executor import execute
from cpembed.accelerator.program import Program
from cpembed.errors import ExecutionFault
from cpembed.hw.isa import Synchronization
from tests.compilers import needs_executor
from tests.unit.accelerator.machines import channel, systolic

pytestmark = needs_executor

CHANNELS = (
    channel("loaded", "load", "execute", 2),
    channel("freed", "execute", "load", 2),
    channel("done", "execute", "store", 2),
    channel("drained", "store", "execute", 2),
)
MACHINE = systolic(Synchronization.CHANNELS, channels=CHANNELS)
TILES = 6

# Two buffers of A and C, by turns; the first two turns find them free.
FULL, SYNC = "x=16 y=16 z=16", "wait loaded signal freed, done"
SOURCE = f"""
.tensor A int8 [{16 * TILES}, 16] input
.tensor B int8 [16, 16] input
.tensor C int32 [{16 * TILES}, 16] output
set_stride D=stride V=#16
mvin D=scratchpad[64] S=B[0] r=16 e=16
loop i {TILES // 2} {{
  loop b 2 {{
    mvin D=scratchpad[16*b] S=A[512*i + 256*b] r=1 e=16 if i - 1 wait freed
    mvin D=scratchpad[16*b] S=A[512*i + 256*b] r=16 e=16 signal loaded
    zero D=accumulator[16*b] S=#0 r=16 if -i
    zero D=accumulator[16*b] S=#0 r=16 if i - 1 wait drained
    matmul A=scratchpad[16*b] B=scratchpad[64] C=accumulator[16*b] {FULL} {SYNC}
    mvout_full D=C[512*i + 256*b; r=16] S=accumulator[16*b] r=16 e=16 wait done signal drained
  }}
}}
"""


def program(source: str = SOURCE) -> Program:
    return parse(source, MACHINE)


def buffers() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(5)
    return {
        "A": draw.integers(-128, 128, 256 * TILES, dtype=np.int8),
        "B": draw.integers(-128, 128, 256, dtype=np.int8),
    }


def test_all_orders_that_signals_allow_compute_the_same_in_the_same_time() -> None:
    data = buffers()
    expected = data["A"].reshape(-1, 16).astype(np.int32) @ data["B"].reshape(16, 16)
    runs = [execute(program(), data, seed) for seed in range(20)]
    for run in runs:
        assert np.array_equal(run.buffers["C"].reshape(-1, 16), expected)
        assert run.cycles == runs[0].cycles
        assert run.unit_cycles == runs[0].unit_cycles
    assert runs[0].warnings == (
        "2 signals of channel freed are left over",
        "2 signals of channel drained are left over",
    )


@pytest.mark.parametrize("missing", ["wait loaded", "wait freed", "wait done", "wait drained"])
def test_a_missing_wait_is_a_race_in_every_order(missing: str) -> None:
    source = SOURCE.replace(missing, "")
    for seed in range(8):
        with pytest.raises(ExecutionFault) as fault:
            execute(program(source), buffers(), seed)
        # Without its wait, a channel also fills, and rows may be read before they are written.
        problems = "nothing orders that with .*instruction|may be full|never written"
        assert re.search(problems, str(fault.value))


def test_a_race_names_both_instructions() -> None:
    source = SOURCE.replace("wait loaded signal freed, done", "signal freed, done").replace(
        " signal loaded", ""
    )
    texts: list[str] = []
    for seed in range(20):
        with pytest.raises(ExecutionFault) as fault:
            execute(program(source), buffers(), seed)
        texts.append(str(fault.value))
    races = [text for text in texts if "nothing orders" in text]
    assert races
    for text in races:
        assert text.count("instruction ") == 2
        assert "matmul" in text
        assert "mvin" in text


@pytest.mark.parametrize("missing", ["signal loaded", "signal drained"])
def test_a_missing_signal_is_a_deadlock(missing: str) -> None:
    with pytest.raises(ExecutionFault, match="deadlock: it waits for channel"):
        execute(program(SOURCE.replace(missing, "")), buffers(), 0)


def test_signals_beyond_the_depth_are_refused_in_every_order() -> None:
    # Nothing says that the first signal is taken before the third one is sent.
    tiles = "".join(
        f"mvin D=scratchpad[{16 * tile}] S=A[{256 * tile}] r=16 e=16 signal loaded\n"
        for tile in range(3)
    )
    taken = "zero D=accumulator[0] S=#0 r=16 wait loaded\n" * 3
    source = f".tensor A int8 [768] input\nset_stride D=stride V=#16\n{tiles}{taken}"
    for seed in range(8):
        with pytest.raises(
            ExecutionFault, match="channel loaded, which may be full: 2 signals fit"
        ):
            execute(program(source), {"A": np.zeros(768, np.int8)}, seed)


def test_random_signals_race_exactly_where_orders_differ() -> None:
    """Two units write and read a row: a fault iff some order of the units gives another result."""
    draw = random.Random(3)
    faults = 0
    for _ in range(60):
        lines, units = random_lines(draw)
        source = ".tensor A int8 [64] input\nset_stride D=stride V=#0\n"
        source += "mvin D=scratchpad[0] S=A[0] r=4 e=16 signal loaded\n"
        source += "zero D=accumulator[0] S=#0 r=4 wait loaded\n"
        source += "\n".join(lines)
        expected = has_race(units)
        data = {"A": np.arange(64, dtype=np.int8)}
        if expected:
            with pytest.raises(ExecutionFault, match="nothing orders"):
                execute(parse(source, WIDE), data, draw.randrange(99))
        else:
            execute(parse(source, WIDE), data, draw.randrange(99))
        faults += expected
    assert 10 < faults < 50


WIDE = systolic(
    Synchronization.CHANNELS,
    channels=(channel("loaded", "load", "execute"), channel("freed", "execute", "load")),
    distinct_banks=False,
)


def random_lines(
    draw: random.Random,
) -> tuple[list[str], list[tuple[str, int, list[str], list[str]]]]:
    """Return instructions of two units on few rows, whose waits come after their signals."""
    lines: list[str] = []
    units: list[tuple[str, int, list[str], list[str]]] = []
    open_signals = {"loaded": 0, "freed": 0}
    for _ in range(draw.randint(2, 7)):
        unit = draw.choice(["load", "execute"])
        row = draw.randrange(3)
        takes, sends = ("freed", "loaded") if unit == "load" else ("loaded", "freed")
        waits = [takes] if open_signals[takes] and draw.random() < 0.7 else []
        signals = [sends] if draw.random() < 0.6 else []
        open_signals[takes] -= len(waits)
        open_signals[sends] += len(signals)
        text = (
            f"mvin D=scratchpad[{row}] S=A[0] r=1 e=16"
            if unit == "load"
            else f"matmul A=scratchpad[{row}] B=scratchpad[64] C=accumulator[0] x=1 y=1 z=1"
        )
        # The product's other operand is loaded by nobody: use one row for both.
        text = text.replace("B=scratchpad[64]", f"B=scratchpad[{row}]")
        words = [text, *(f"wait {w}" for w in waits), *(f"signal {s}" for s in signals)]
        lines.append(" ".join(words))
        units.append((unit, row, waits, signals))
    return lines, units


def has_race(units: list[tuple[str, int, list[str], list[str]]]) -> bool:
    """Decide by reachability whether two accesses of a row, one a write, are not ordered."""
    count = len(units)
    before = [[False] * count for _ in range(count)]
    queues: dict[str, list[int]] = {"loaded": [], "freed": []}
    last: dict[str, int] = {}
    for number, (unit, _, waits, signals) in enumerate(units):
        if unit in last:
            before[last[unit]][number] = True
        last[unit] = number
        for name in waits:
            before[queues[name].pop(0)][number] = True
        for name in signals:
            queues[name].append(number)
    for k, i, j in itertools.product(range(count), repeat=3):
        before[i][j] |= before[i][k] and before[k][j]
    return any(
        units[i][1] == units[j][1]
        and "load" in (units[i][0], units[j][0])
        and not before[i][j]
        and not before[j][i]
        for i, j in itertools.combinations(range(count), 2)
    )
