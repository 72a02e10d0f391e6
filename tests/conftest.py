"""Options and fixtures for every test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cpembed.worker import IN_PROCESS_VARIABLE

# What a test replaces is replaced where kernels are built and run; tests of the worker, and of
# command lines in a process of their own, say otherwise.
os.environ[IN_PROCESS_VARIABLE] = "1"

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    """A command's ``--threads`` stays in its process, which here is that of all tests."""
    before = os.environ.get("TVM_NUM_THREADS")
    yield
    if before is None:
        os.environ.pop("TVM_NUM_THREADS", None)
    else:
        os.environ["TVM_NUM_THREADS"] = before


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files instead of comparing with them; read the diff",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked ``quick(n)``, n of its cases, spread evenly over them, are in the quick
    suite; the others are slow."""
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("quick") is not None:
            groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in groups.values():
        marker = cases[0].get_closest_marker("quick")
        assert marker is not None
        (count,) = marker.args
        kept = {round((n + 0.5) * len(cases) / count - 0.5) for n in range(count)}
        for number, item in enumerate(cases):
            if number not in kept:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def nothing_tuned(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What a person tuned or calibrated on this machine changes no test."""
    nothing = tmp_path_factory.getbasetemp() / "nothing_tuned"
    monkeypatch.setenv("CPEMBED_TUNE_DIR", str(nothing))
    monkeypatch.setenv("CPEMBED_CALIBRATION_DIR", str(nothing))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the golden file of a name, or write it under ``--update-golden``."""
    update = request.config.getoption("--update-golden")

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if update:
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check
