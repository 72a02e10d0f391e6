"""Experiments of many rows: each is stored when it is done, and not computed again."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpembed.runtime.measurement.environment import provenance, provenance_lines
from cpembed.workloads.suites import suite

Row = dict[str, Any]

DEEPBENCH = tuple(str(item.index) for item in suite("deepbench"))
"""A row for each layer."""

TRIALS = 16
"""Timed simulations of each mapping, the reference's and ours alike."""


@dataclass(frozen=True)
class Experiment:
    """``keys`` names the rows; ``compute`` makes one with so many trials, of what ``measured``
    says; ``markdown`` and ``plot`` show those that there are.
    """

    folder: Path
    description: str
    keys: tuple[str, ...]
    compute: Callable[[str, int], Row]
    markdown: Callable[[list[Row]], list[str]]
    plot: Callable[[list[Row], Path], bool]
    measured: str = "timed simulations of a mapping"
    lacking: Callable[[str], str] = lambda key: ""
    """What this machine lacks for a row, in words; empty where nothing."""

    @staticmethod
    def of_script(
        script: str,
        text: str | None,
        keys: tuple[str, ...],
        compute: Callable[[str, int], Row],
        markdown: Callable[[list[Row]], list[str]],
        plot: Callable[[list[Row], Path], bool],
        measured: str = measured,
        lacking: Callable[[str], str] = lacking,
    ) -> Experiment:
        """By the file and the docstring of its script."""
        description = str(text).split("\n\n", maxsplit=1)[0]
        folder = Path(script).resolve().parent
        return Experiment(folder, description, keys, compute, markdown, plot, measured, lacking)

    def main(self) -> int:
        """The command line of the experiment."""
        parser = argparse.ArgumentParser(description=self.description)
        parser.add_argument("rows", nargs="*", help="rows to compute, by default all missing ones")
        parser.add_argument(
            "--trials", type=int, default=TRIALS, help=f"by default {TRIALS} {self.measured}"
        )
        parser.add_argument("--again", action="store_true", help="also rows that are stored")
        parser.add_argument("--rewrite", action="store_true", help="the table and the plot alone")
        parser.add_argument("--output", type=Path, default=self.folder, help="folder of results")
        given = parser.parse_args()
        unknown = sorted(set(given.rows) - set(self.keys))
        if unknown:
            parser.error(f"no such row: {', '.join(unknown)}; rows: {', '.join(self.keys)}")
        wanted = [] if given.rewrite else given.rows or list(self.keys)
        self.run(wanted, given.trials, given.output, again=given.again)
        return 0

    def run(self, wanted: Iterable[str], trials: int, folder: Path, *, again: bool = False) -> None:
        """Compute the rows that are missing; write the results after each."""
        folder.mkdir(parents=True, exist_ok=True)
        stored = load(folder)
        for key in wanted:
            if key in stored and not again:
                continue
            if missing := self.lacking(key):
                print(f"{key}: left out, missing: {missing}", file=sys.stderr, flush=True)
                continue
            started = time.perf_counter()
            row = self.compute(key, trials)
            seconds = round(time.perf_counter() - started, 1)
            stored[key] = {"key": key, **row, "seconds": seconds, **provenance()}
            self._write(stored, folder)
            print(f"{key}: {seconds:.0f} s", file=sys.stderr, flush=True)
        self._write(stored, folder)
        self.plot(self._sorted(stored), folder)

    def _sorted(self, stored: Mapping[str, Row]) -> list[Row]:
        return [stored[key] for key in self.keys if key in stored]

    def _write(self, stored: Mapping[str, Row], folder: Path) -> None:
        rows = self._sorted(stored)
        (folder / "results.json").write_text(json.dumps({"rows": rows}, indent=1) + "\n")
        if rows:
            lines = [*self.markdown(rows), "", *_origins(rows, len(self.keys), self.measured)]
            (folder / "results.md").write_text("\n".join(lines) + "\n")


def load(folder: Path) -> dict[str, Row]:
    """Rows by key; none where nothing was written yet."""
    path = folder / "results.json"
    if not path.exists():
        return {}
    return {row["key"]: row for row in json.loads(path.read_text())["rows"]}


def _origins(rows: list[Row], total: int, measured: str) -> list[str]:
    """Where the rows come from: one list for each machine and set of versions. The package may have
    changed between rows of one run: all its commits are named.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(json.dumps([row["machine"], row["versions"]]), []).append(row)
    lines = [f"{len(rows)} of {total} rows."]
    for group in groups.values():
        latest = max(group, key=lambda row: row["date"])
        short = sorted({str(row["git_commit"])[:9] for row in group})
        seconds = sum(row["seconds"] for row in group)
        document = {**latest, "git_commit": ", ".join(short)}
        trials = " or ".join(map(str, sorted({row["trials"] for row in group})))
        about = f"{len(group)} rows in {seconds:.0f} s, {trials} {measured}"
        lines += ["", *provenance_lines(document, about)]
    return lines


def geometric_mean(values: Iterable[float]) -> float:
    """
    >>> geometric_mean([1, 4])
    2.0
    """
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))
