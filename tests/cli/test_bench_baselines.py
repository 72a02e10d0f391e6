"""``cpembed bench --baseline`` as a person sees it: what is refused, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.driver import bench as bench_module
from cpembed.report import plots
from cpembed.targets.x86 import target
from cpembed.targets.x86.baselines import onednn
from tests.cli.calling import Caller
from tests.unit.runtime.baselines.fakes import FakeBaseline

BENCH = ("bench", "unit16", "--layers", "0", "--target", "amx_int8")


@pytest.fixture(autouse=True)
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine has every instruction; nothing here gets as far as running one."""
    monkeypatch.setattr(bench_module, "missing_for", lambda spec: ())


def test_without_torch_the_remedy_is_named(
    cpembed: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(onednn, "find_spec", lambda name: None)
    called = cpembed(*BENCH, "--baseline", "onednn", "--results", str(tmp_path))
    called.is_one_line_error(5, "onednn", "pip install 'cpembed[bench]'")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options, said",
    [
        (("--baseline", "nosuch"), "'nosuch': use onednn"),
        (("--baseline", "onednn,,"), "'': use onednn"),
        (("--baseline", "onednn", "--no-run"), "leave out --no-run"),
        (("--baseline", "onednn", "--backend", "generic"), "portable code"),
        (("--plot", "x.svg"), "add --baseline"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    cpembed: Caller, options: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    cpembed(*BENCH, *options, "--results", str(tmp_path)).is_one_line_error(2, said)


def test_without_matplotlib_nothing_is_run_for_a_drawing(
    cpembed: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    called = cpembed(*BENCH, "--baseline", "onednn", "--plot", str(tmp_path / "x.svg"))
    called.is_one_line_error(5, "matplotlib", "pip install 'cpembed[bench]'")


def test_baselines_are_named_one_by_one_or_together(
    cpembed: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each is opened once; the suite is empty of work, so nothing runs."""
    opened: list[str] = []

    def opening(name: str) -> FakeBaseline:
        opened.append(name)
        return FakeBaseline(name=name)

    names = ("one", "two", "three")
    loads = {name: lambda spec, stored, name=name: opening(name) for name in names}
    monkeypatch.setattr(target, "openers", lambda: loads)
    monkeypatch.setattr(bench_module.Bench, "run", lambda *_: iter(()))
    options = ("--baseline", "one, two", "--baseline", "three", "--baseline", "one")
    called = cpembed(*BENCH, *options, "--results", str(tmp_path), "--json")
    assert called.code == 0, called.err
    assert opened == ["one", "two", "three"]
    assert list(called.json["baselines"]) == ["one", "two", "three"]
