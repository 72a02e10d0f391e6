"""Measuring: what rounds decide, what is verified, what is timed at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from cpembed.driver.named import hardware_spec
from cpembed.errors import InvariantError, LoweringError
from cpembed.runtime.measurement.interleaved import Interleaved, Work
from cpembed.runtime.measurement.verification import Verification
from cpembed.runtime.tuning.space import Proposal
from cpembed.targets.cpu import measure as cpu_measure
from cpembed.targets.cpu.measure import FIRST_ROUNDS, PAUSES, ROUNDS, Failed, KernelMeasurer, Timed
from cpembed.targets.cpu.space import Objective
from cpembed.targets.cpu.target import build
from cpembed.targets.x86.target import X86Target
from tests.unit.targets.cpu.tuning import (
    TARGET,
    CpuDesign,
    CpuProposal,
    designs,
    kernels,
    layer,
)

SMALL = "conv2d n=1 c=64 h=4 w=4 k=16 r=1 s=1"

Rounds = Callable[[str, int], list[float]]
"""Microseconds of a side, by its name and the number of rounds."""


@pytest.fixture(autouse=True)
def portable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of portable code: they are verified alike, on any machine."""

    def portable_kernel(program: Any, spec: Any, knobs: Any) -> Any:
        return build(program, spec, backend="generic")

    monkeypatch.setattr(cpu_measure, "native_kernel", portable_kernel)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Rounds], list[tuple[int, list[str]]]]:
    """Makes rounds take what a function says; the list is of what was timed."""

    def use(rounds_of: Rounds) -> list[tuple[int, list[str]]]:
        asked: list[tuple[int, list[str]]] = []

        def interleaved(
            sides: Mapping[str, Work],
            *,
            rounds: int,
            round_ms: float,
            attempts: int,
            unthrottled: Callable[[], bool] | None,
        ) -> Interleaved:
            asked.append((rounds, list(sides)))
            samples = {name: rounds_of(name, rounds) for name in sides}
            return Interleaved(samples, elsewhere=0.0, rested=True)

        monkeypatch.setattr(cpu_measure, "time_interleaved", interleaved)
        return asked

    return use


def steady(times: Mapping[str, float]) -> Rounds:
    """The same in each round; sides are named by their first word, or in full."""
    return lambda name, rounds: [times.get(name, times.get(name.split()[0], 1.0))] * rounds


def proposals() -> tuple[CpuProposal, CpuProposal, CpuProposal]:
    """Two schedules of an embedding, and one of another."""
    first, second, *_ = designs(SMALL)

    def of(design: CpuDesign, place: int) -> CpuProposal:
        return Proposal(design, design.space.scored(kernels(design)[place]))

    return of(first, 0), of(first, 1), of(second, 0)


def bench(objective: Objective = "total") -> KernelMeasurer:
    return KernelMeasurer(layer(SMALL), hardware_spec(TARGET), objective)


@pytest.mark.slow
def test_a_kernel_that_is_clearly_slower_is_dropped_after_a_few_rounds(
    timed: Callable[[Rounds], list[Any]],
) -> None:
    asked = timed(steady({"kernel 0": 10.0, "kernel 1": 20.0}))
    incumbent, other, _ = proposals()
    found = bench("kernel").measure(other, incumbent)
    assert isinstance(found, Timed)
    assert found.rejected
    assert found.ratio == 2.0
    assert [rounds for rounds, _ in asked] == [FIRST_ROUNDS]


@pytest.mark.slow
def test_one_fast_round_is_enough_to_go_on(timed: Callable[[Rounds], list[Any]]) -> None:
    def disturbed(name: str, rounds: int) -> list[float]:
        return [10.0] * rounds if name == "kernel 0" else [9.0, *[100.0] * (rounds - 1)]

    asked = timed(disturbed)
    incumbent, other, _ = proposals()
    found = bench("kernel").measure(other, incumbent)
    assert isinstance(found, Timed)
    assert not found.rejected
    assert [rounds for rounds, _ in asked] == [FIRST_ROUNDS, ROUNDS]


@pytest.mark.slow
def test_disturbed_rounds_do_not_decide(timed: Callable[[Rounds], list[Any]]) -> None:
    """Most rounds of the faster kernel were disturbed; its latency says so, its ratio does not."""

    def disturbed(name: str, rounds: int) -> list[float]:
        many = rounds * 3 // 4
        return [10.0] * rounds if name == "kernel 0" else [8.0] * (rounds - many) + [40.0] * many

    timed(disturbed)
    incumbent, other, _ = proposals()
    found = bench("kernel").measure(other, incumbent)
    assert isinstance(found, Timed)
    assert found.ratio == pytest.approx(0.8)
    assert found.latency_us.median == 40.0
    assert found.noisy


@pytest.mark.slow
def test_a_minute_in_which_the_champion_is_slower_does_not_decide(
    timed: Callable[[Rounds], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is three times slower for a while, and the other kernel suffers more."""
    slow = {"kernel 0": 30.0, "kernel 1": 60.0}
    incumbent, other, _ = proposals()
    pauses: list[float] = []
    monkeypatch.setattr(cpu_measure.time, "sleep", pauses.append)
    workbench = bench("kernel")
    timed(steady({"kernel 0": 10.0}))
    workbench.measure(incumbent, None)

    def recovering(name: str, rounds: int) -> list[float]:
        times = {"kernel 0": 10.0, "kernel 1": 9.0} if len(pauses) == 1 else slow
        return [times[name]] * rounds

    asked = timed(recovering)
    found = workbench.measure(other, incumbent)
    assert isinstance(found, Timed)
    assert (found.ratio, found.rejected, found.noisy) == (pytest.approx(0.9), False, False)
    assert [rounds for rounds, _ in asked] == [FIRST_ROUNDS, ROUNDS, ROUNDS]
    timed(steady(slow))
    pauses.clear()
    found = workbench.measure(other, incumbent)
    assert isinstance(found, Timed)
    assert (found.rejected, found.noisy, tuple(pauses)) == (False, True, PAUSES)


@pytest.mark.slow
def test_slow_kernels_get_fewer_rounds(timed: Callable[[Rounds], list[Any]]) -> None:
    asked = timed(steady({"kernel": 50e3}))
    bench("kernel").measure(proposals()[0], None)
    (first, _), (others, _) = asked
    assert first == FIRST_ROUNDS < others < ROUNDS


@pytest.mark.slow
def test_moves_count_in_the_total_as_whole_calls(
    timed: Callable[[Rounds], list[Any]],
) -> None:
    incumbent, same, other = proposals()
    one, two = incumbent.design.identifier, other.design.identifier
    times = {"kernel": 10.0, f"packing {one}": 4.0, f"unpacking {one}": 6.0}
    times |= {f"packing {two}": 20.0, f"unpacking {two}": 10.0}
    asked = timed(steady({**times, "whole 0": 18.0, "whole 1": 27.0}))
    workbench = bench()
    first = workbench.measure(incumbent, None)
    assert isinstance(first, Timed)
    assert (first.copies.packing_us, first.copies.unpacking_us, first.ratio) == (4.0, 6.0, 1.0)
    moving = [f"packing {one}", f"unpacking {one}"]
    assert asked[-1][1] == ["kernel 0", "whole 0", *moving]
    assert first.whole_us is not None
    assert (first.us("total"), first.us("kernel")) == (18.0, 10.0)
    # Schedules of one embedding have the same moves, which are not timed again apart.
    found = workbench.measure(same, incumbent)
    assert isinstance(found, Timed)
    both = ["kernel 0", "kernel 1", "whole 0", "whole 1"]
    assert asked[-1][1] == both
    assert (found.copies, found.ratio) == (first.copies, 1.5)
    found = workbench.measure(other, incumbent)
    assert isinstance(found, Timed)
    assert asked[-1][1] == [*both, f"packing {two}", f"unpacking {two}"]
    # What threads pack for themselves takes less than the parts: 40 and 20 apart.
    assert found.ratio == pytest.approx(27 / 18)


@pytest.mark.slow
def test_the_pace_is_looked_at_before_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def interleaved(
        sides: Mapping[str, Work], *, unthrottled: Any, rounds: int, **named: Any
    ) -> Interleaved:
        asked.append(unthrottled)
        return Interleaved({name: [10.0] * rounds for name in sides}, elsewhere=0.0, rested=True)

    class Slow:
        def is_unthrottled(self) -> bool:
            return False

    monkeypatch.setattr(cpu_measure, "time_interleaved", interleaved)
    monkeypatch.setattr(X86Target, "throttle_probe", lambda self: Slow())
    bench("kernel").measure(proposals()[0], None)
    assert [unthrottled() for unthrottled in asked] == [False, False]


@pytest.mark.slow
def test_moves_do_not_count_for_the_kernel_alone(timed: Callable[[Rounds], list[Any]]) -> None:
    incumbent, _, other = proposals()
    asked = timed(steady({"kernel 0": 10.0, "kernel 1": 9.0, "packing": 500.0, "unpacking": 9.0}))
    workbench = bench("kernel")
    workbench.measure(incumbent, None)
    found = workbench.measure(other, incumbent)
    assert isinstance(found, Timed)
    assert (found.ratio, found.copies.packing_us) == (pytest.approx(0.9), 500.0)
    assert len(asked[-1][1]) == 4
    workbench.measure(other, incumbent)
    assert len(asked[-1][1]) == 2


@pytest.mark.slow
def test_the_best_are_timed_beside_each_other(timed: Callable[[Rounds], list[Any]]) -> None:
    asked = timed(steady({"kernel 0": 10.0, "kernel 1": 9.0, "kernel 2": 8.0}))
    found = bench("kernel").final(proposals())
    assert [item.ratio for item in found] == pytest.approx([1.0, 0.9, 0.8])
    assert len({rounds for rounds, _ in asked}) == 2


def test_every_kernel_is_verified(
    timed: Callable[[Rounds], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(steady({"kernel": 10.0}))
    judged: list[Any] = []
    right = cpu_measure.Expected.judge

    def judge(self: Any, found: Any) -> Verification:
        judged.append(found)
        return right(self, found)

    monkeypatch.setattr(cpu_measure.Expected, "judge", judge)
    workbench, (incumbent, other, _) = bench(), proposals()
    workbench.measure(incumbent, None)
    workbench.measure(other, incumbent)
    assert len(judged) == 2
    wrong = partial(Verification, max_error=3.0, verified=False, tolerance=0.0)
    monkeypatch.setattr(cpu_measure.Expected, "judge", lambda self, found: wrong())
    with pytest.raises(InvariantError, match=r"embedding \w+ of amx_int8 .* wrong by up to 3"):
        bench().measure(incumbent, None)


def test_a_schedule_without_a_kernel_is_a_result(
    timed: Callable[[Rounds], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = timed(steady({"kernel": 10.0}))

    def refusing(*arguments: Any, **named: Any) -> Any:
        raise LoweringError("does not fit")

    monkeypatch.setattr(cpu_measure, "native_kernel", refusing)
    assert bench().measure(proposals()[0], None) == Failed("does not fit")
    assert asked == []


@pytest.mark.slow
def test_kernels_are_timed_here() -> None:
    """Without a fake: portable code on this machine."""
    incumbent, _, other = proposals()
    workbench = bench()
    workbench.measure(incumbent, None)
    found = workbench.measure(other, incumbent)
    assert isinstance(found, Timed)
    assert 0 < found.latency_us.p10 <= found.latency_us.median <= found.latency_us.p90
    assert found.copies.packing_us > 0
    assert found.ratio > 0


@pytest.mark.slow
def test_packed_data_are_kept_while_there_is_room(
    timed: Callable[[Rounds], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(steady({"kernel": 10.0}))
    made: list[str] = []
    data = cpu_measure._PackedData

    def recording(identifier: str, *arguments: Any) -> Any:
        made.append(identifier)
        return data(identifier, *arguments)

    monkeypatch.setattr(cpu_measure, "_PackedData", recording)
    incumbent, _, other = proposals()
    for room, count in ((2**28, 2), (0, 4)):
        monkeypatch.setattr(cpu_measure, "_PACKED_BYTES", room)
        workbench = bench()
        made.clear()
        for item in (incumbent, other, incumbent, other):
            workbench.measure(item, None)
        assert len(made) == count
