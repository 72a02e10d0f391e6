"""Options and fixtures for every test."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cpembed.runtime.worker import IN_PROCESS_VARIABLE

# What a test replaces is replaced where kernels are built and run; tests of the worker, and of
# command lines in a process of their own, say otherwise.
os.environ[IN_PROCESS_VARIABLE] = "1"

# A shell starts a background job with SIGINT ignored, and commands that tests start inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

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
    parser.addoption(
        "--list-skipped",
        metavar="FILE",
        type=Path,
        help="write the ids of skipped tests to FILE, one a line; `pytest @FILE` runs just them",
    )


class SkipList:
    """Plugin of the controlling process that lists each skipped test or module in a file.

    Parameters
    ----------
    path : Path
        File to write. A module that is skipped while it is collected counts as one entry.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.node_ids: set[str] = set()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.node_ids.add(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.node_ids.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.path.write_text("".join(f"{node_id}\n" for node_id in sorted(self.node_ids)))


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--list-skipped")
    # Workers of xdist report to the controlling process, which alone writes the file.
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SkipList(path))


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
