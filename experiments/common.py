"""Run experiments, write their results and draw their plots: what all of them share.

An experiment of many rows is an :class:`Experiment`: its command computes the rows that are missing
in ``results.json``, stores them, and writes ``results.md`` and ``results.svg``; it can be stopped
at any time and started again. Experiments that take seconds compute all of their rows in each run
and end with :func:`write_results`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.documents import Document, Row, read_document, table, write_document
from cpembed.runtime.measurement.environment import provenance, provenance_lines
from cpembed.workloads.suites import suite

DEEPBENCH = tuple(str(layer.index) for layer in suite("deepbench"))
"""Keys of the rows of an experiment with a row for each layer of DeepBench."""

TRIALS = 16
"""Default number of timed simulations of each mapping, the reference's and ours alike."""

SECONDS_BETWEEN_WRITES = 10.0
"""Minimum time between two versions of the results: rows may take milliseconds."""

TABLE_ROWS = 300
"""Minimum number of rows that are written as a table, with their keys named once."""


# --------------------------------------------------------------------------------------- running


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment whose rows are stored when they are computed, and not computed again.

    Attributes
    ----------
    folder : Path
        Folder of ``results.json`` and the other results.
    description : str
        Summary for the command's help; also the title of the page if ``one_origin`` is set.
    keys : tuple of str
        Keys of all rows, in the order of the tables.
    compute : callable
        Function from a key to its row; from a key and a number of trials if ``trials`` is set.
    markdown : callable
        Function from rows to the lines of ``results.md``.
    plot : callable, optional
        Function from rows and a folder that draws ``results.svg`` into the folder.
    trials : int, optional
        Default number of trials of a row; None for rows that know no trials.
    trial_unit : str
        Words for what a trial is.
    missing : callable
        Function from a key to the words for what this machine lacks to compute it; empty if
        nothing.
    quick : tuple of str
        Keys that take seconds together, which ``--quick`` computes and prints.
    one_origin : bool
        True for results that are computed, not measured: all rows have the commit and machine of
        the last run. Otherwise each row has its own.
    """

    folder: Path
    description: str
    keys: tuple[str, ...]
    compute: Callable[..., Row]
    markdown: Callable[[list[Row]], list[str]]
    plot: Callable[[list[Row], Path], bool] | None = None
    trials: int | None = TRIALS
    trial_unit: str = "timed simulations of a mapping"
    missing: Callable[[str], str] = lambda key: ""
    quick: tuple[str, ...] = ()
    one_origin: bool = False

    def main(self) -> int:
        """Run the command line of the experiment; return its exit code."""
        parser = argparse.ArgumentParser(description=self.description)
        parser.add_argument("rows", nargs="*", help="rows to compute, by default all missing ones")
        if self.trials is not None:
            words = f"by default {self.trials} {self.trial_unit}"
            parser.add_argument("--trials", type=int, default=self.trials, help=words)
        if self.quick:
            parser.add_argument("--quick", action="store_true", help="a few rows, printed only")
        parser.add_argument("--again", action="store_true", help="also rows that are stored")
        parser.add_argument("--rewrite", action="store_true", help="the table and the plot alone")
        parser.add_argument("--jobs", type=int, default=1, help="processes, by default 1")
        parser.add_argument("--output", type=Path, default=self.folder, help="folder of results")
        options = parser.parse_args()
        unknown = sorted(set(options.rows) - set(self.keys))
        if unknown:
            parser.error(f"no such row: {', '.join(unknown)}; rows: {', '.join(self.keys)}")
        trials: int | None = getattr(options, "trials", None)
        if getattr(options, "quick", False):
            rows = list(self._computed(self._possible(self.quick), trials, jobs=1))
            print("\n".join(self.markdown(rows) if rows else ["no row can be computed here"]))
            return 0
        keys = [] if options.rewrite else options.rows or list(self.keys)
        self.run(keys, trials, options.output, again=options.again, jobs=options.jobs)
        return 0

    def run(
        self,
        keys: Iterable[str],
        trials: int | None,
        folder: Path,
        *,
        again: bool = False,
        jobs: int = 1,
    ) -> None:
        """Compute the rows that are missing, and write the results now and then and at the end.

        Parameters
        ----------
        keys : iterable of str
            Keys of the rows to compute.
        trials : int or None
            Number of trials of a row, if rows know trials.
        folder : Path
            Folder of the results, created if needed.
        again : bool
            True to also compute rows that are stored.
        jobs : int
            Number of processes.
        """
        folder.mkdir(parents=True, exist_ok=True)
        rows = load(folder)
        pending = self._possible(key for key in keys if again or key not in rows)
        last_write = -math.inf
        for number, row in enumerate(self._computed(pending, trials, jobs), 1):
            rows[row["key"]] = row
            progress = f"{number} of {len(pending)}: {row['key']}, {row['seconds']:.0f} s"
            print(progress, file=sys.stderr, flush=True)
            if time.monotonic() - last_write > SECONDS_BETWEEN_WRITES:
                self._write(rows, folder, fresh=True)
                last_write = time.monotonic()
        self._write(rows, folder, fresh=bool(pending))
        if self.plot is not None:
            self.plot(self._sorted(rows), folder)

    def _possible(self, keys: Iterable[str]) -> list[str]:
        """Return the keys that this machine can compute; name the others on stderr."""
        possible: list[str] = []
        for key in keys:
            if reason := self.missing(key):
                print(f"{key}: left out, missing: {reason}", file=sys.stderr, flush=True)
            else:
                possible.append(key)
        return possible

    def _computed(self, keys: Sequence[str], trials: int | None, jobs: int) -> Iterator[Row]:
        calls = [
            (self.compute, (key,) if trials is None else (key, trials), self.one_origin)
            for key in keys
        ]
        if jobs == 1:
            yield from (_computed_row(*call) for call in calls)
            return
        with ProcessPoolExecutor(jobs) as pool:
            for future in as_completed([pool.submit(_computed_row, *call) for call in calls]):
                yield future.result()

    def _sorted(self, rows: Mapping[str, Row]) -> list[Row]:
        return [rows[key] for key in self.keys if key in rows]

    def _write(self, rows_by_key: Mapping[str, Row], folder: Path, *, fresh: bool) -> None:
        """Write the rows and their page; ``fresh``: some of them were computed in this run."""
        rows, path = self._sorted(rows_by_key), folder / "results.json"
        document: Document = {"rows": table(rows) if len(rows) >= TABLE_ROWS else rows}
        if self.one_origin:
            stored = None if fresh or not path.exists() else read_document(path)
            document = {"origin": stored["origin"] if stored else provenance(), **document}
        write_document(path, document)
        if rows:
            page = self.page(rows, document.get("origin"))
            (folder / "results.md").write_text(page, encoding="utf-8")

    def page(self, rows: list[Row], origin: Mapping[str, Any] | None = None) -> str:
        """Return the page ``results.md`` of some rows.

        ``origin``: that of all rows, if they have one.
        """
        if origin is None:
            lines = [*self.markdown(rows), "", *self._origins(rows)]
        else:
            seconds = sum(row["seconds"] for row in rows)
            run = f"{len(rows)} of {len(self.keys)} rows in {seconds:.0f} s of processor time"
            lines = [f"# {self.description}", "", *self.markdown(rows), ""]
            lines += provenance_lines(origin, run)
        return "\n".join(lines) + "\n"

    def _origins(self, rows: list[Row]) -> list[str]:
        """Return the origins of the rows: one list for each machine and set of versions.

        The package may have changed between rows of one run: all its commits are named.
        """
        groups: dict[str, list[Row]] = {}
        for row in rows:
            groups.setdefault(json.dumps([row["machine"], row["versions"]]), []).append(row)
        lines = [f"{len(rows)} of {len(self.keys)} rows."]
        for group in groups.values():
            latest = max(group, key=lambda row: row["date"])
            commits = sorted({str(row["git_commit"])[:9] for row in group})
            seconds = sum(row["seconds"] for row in group)
            run = f"{len(group)} rows in {seconds:.0f} s"
            if self.trials is not None:
                trials = " or ".join(map(str, sorted({row["trials"] for row in group})))
                run += f", {trials} {self.trial_unit}"
            document = {**latest, "git_commit": ", ".join(commits)}
            lines += ["", *provenance_lines(document, run)]
        return lines


def described(script: str, docstring: str | None) -> dict[str, Any]:
    """Return ``folder`` and ``description`` of an experiment, from its script and docstring."""
    description = str(docstring).split("\n\n", maxsplit=1)[0].replace("\n", " ")
    return {"folder": Path(script).resolve().parent, "description": description}


def _computed_row(compute: Callable[..., Row], arguments: tuple[Any, ...], one_origin: bool) -> Row:
    # Several processes share the cores where rows are computed; measured rows have the cores to
    # themselves, and what they start in other processes counts too.
    clock = time.process_time if one_origin else time.perf_counter
    started = clock()
    row = {"key": arguments[0], **compute(*arguments)}
    seconds = round(clock() - started, 2 if one_origin else 1)
    return {**row, "seconds": seconds, **({} if one_origin else provenance())}


def load(folder: Path) -> dict[str, Row]:
    """Return the stored rows of a folder by key; none if nothing was written yet."""
    path = folder / "results.json"
    return {row["key"]: row for row in read_document(path)["rows"]} if path.exists() else {}


def load_document(folder: Path) -> Document:
    """Return the stored ``results.json`` of a folder."""
    return read_document(folder / "results.json")


# --------------------------------------------------------------------------------------- writing


def results_parser(docstring: str | None, folder: Path) -> argparse.ArgumentParser:
    """Return a parser with the option ``--output``, by default a folder."""
    parser = argparse.ArgumentParser(description=str(docstring).splitlines()[0])
    parser.add_argument("--output", type=Path, default=folder, help="folder of the results")
    return parser


def write_results(folder: Path, document: Mapping[str, Any], page: str) -> None:
    """Write ``results.json`` and ``results.md``.

    Parameters
    ----------
    folder : Path
        Folder of the results, created if needed.
    document : mapping
        All figures, with their provenance.
    page : str
        The document as tables in Markdown.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_document(folder / "results.json", document)
    (folder / "results.md").write_text(page, encoding="utf-8")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    return [
        f"| {' | '.join(head)} |",
        "|" + " --- |" * len(head),
        *(f"| {' | '.join(map(str, row))} |" for row in rows),
    ]


def percent(value: float, digits: int = 0) -> str:
    """Return a share as a percentage, with a space before the sign."""
    return f"{value * 100:.{digits}f} %"


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean of positive values.

    >>> geometric_mean([1, 4])
    2.0
    """
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


# --------------------------------------------------------------------------------------- drawing


def pyplot() -> Any:
    """Return matplotlib's interface for drawing SVG; None, with a message, if it is missing."""
    try:
        import matplotlib as mpl

        mpl.use("svg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("no plot: matplotlib is not installed (extra: bench)", file=sys.stderr)
        return None
    # Equal figures make equal files; text as text is a tenth of its outlines.
    mpl.rcParams.update({"svg.hashsalt": "cpembed", "svg.fonttype": "none"})
    return plt


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as SVG without a date, and without blanks at the ends of lines."""
    figure.savefig(path, metadata={"Date": None}, dpi=120)
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("".join(f"{line.rstrip()}\n" for line in lines), encoding="utf-8")


def bars(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    path: Path,
    *,
    title: str,
    logarithmic: bool = False,
) -> bool:
    """Draw a bar chart of speed-ups, with a line at 1.

    Parameters
    ----------
    labels : sequence of str
        Names of the groups of bars.
    series : mapping of str to sequence of float
        A bar of each group for each name in the legend.
    path : Path
        SVG file to write.
    title : str
        Title above the chart.
    logarithmic : bool
        True for a logarithmic axis.

    Returns
    -------
    bool
        False if matplotlib is not installed.
    """
    plt = pyplot()
    if plt is None:
        return False
    figure, panel = plt.subplots(figsize=(max(6.0, 0.16 * len(labels) * len(series)), 4))
    width = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        shift = (number - (len(series) - 1) / 2) * width
        panel.bar([place + shift for place in range(len(labels))], values, width, label=name)
    panel.axhline(1, color="black", linewidth=0.8)
    panel.set_xticks(range(len(labels)), labels, rotation=90, fontsize=6)
    panel.set_ylabel("speed-up")
    panel.set_title(title, fontsize=9)
    if logarithmic:
        panel.set_yscale("log")
    if len(series) > 1:
        panel.legend(fontsize=7)
    figure.tight_layout()
    save_figure(figure, path)
    plt.close(figure)
    return True
