"""The pace of the product instruction, on a clock of ours."""

from __future__ import annotations

from itertools import chain, repeat

import pytest

from cpembed.driver.named import hardware_spec
from cpembed.targets.x86 import calibrate
from cpembed.targets.x86.calibrate import UNTHROTTLED, ThrottlingProbe
from tests.features import require_features


class Scripted(ThrottlingProbe):
    """Loops that take what is said, in nanoseconds."""

    def __init__(self, *times: float) -> None:
        self._best_ns = float("inf")
        self._times = chain(times, repeat(times[-1]))

    def _timed(self) -> float:
        return next(self._times)


def test_slow_is_what_takes_longer_than_the_best() -> None:
    """The better of two loops counts."""
    found = Scripted(100, 100, 100 * UNTHROTTLED + 1, 100 * UNTHROTTLED + 2, 300, 100 * UNTHROTTLED)
    assert [found.is_unthrottled() for _ in range(3)] == [True, False, True]


def test_waiting_ends_when_the_machine_is_itself_or_patience_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibrate, "PATIENCE", 0.01)
    assert Scripted(100, 100).wait()
    slow = Scripted(100, 100, 900)
    assert slow.wait()
    assert not slow.wait()


def test_a_target_of_another_machine_has_no_pace() -> None:
    assert ThrottlingProbe.for_target(hardware_spec("vta_1x16x16")) is None


@pytest.mark.parametrize("target", ["amx_int8", "avx512_vnni", "avx512_bf16"])
def test_the_loop_runs(target: str) -> None:
    spec = hardware_spec(target)
    require_features(spec)
    found = ThrottlingProbe.for_target(spec)
    assert found is not None
    assert found is ThrottlingProbe.for_target(spec)
    found.is_unthrottled()
