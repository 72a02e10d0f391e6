"""Parts of the experiment: rows by key, each stored when it is done and not computed again."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpembed.runtime.measurement.environment import provenance, provenance_lines

HERE = Path(__file__).resolve().parent
Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """``compute`` makes the row of a key, in any process; ``markdown`` shows rows as tables;
    ``quick`` are keys that take seconds together.
    """

    name: str
    title: str
    keys: tuple[str, ...]
    quick: tuple[str, ...]
    compute: Callable[[str], Row]
    markdown: Callable[[Sequence[Row]], list[str]]

    def main(self) -> int:
        parser = argparse.ArgumentParser(description=self.title)
        parser.add_argument("rows", nargs="*", help="rows to compute, by default those missing")
        parser.add_argument("--quick", action="store_true", help="a few rows, printed only")
        parser.add_argument("--again", action="store_true", help="also rows that are stored")
        parser.add_argument("--rewrite", action="store_true", help="only the tables anew")
        parser.add_argument("--jobs", type=int, default=1, help="processes, by default 1")
        parser.add_argument("--output", type=Path, default=HERE, help="folder of the results")
        given = parser.parse_args()
        unknown = sorted(set(given.rows) - set(self.keys))
        if unknown:
            parser.error(f"no such row: {unknown[0]}")
        if given.quick:
            print("\n".join(self.markdown([self._row(key) for key in self.quick])))
            return 0
        wanted = () if given.rewrite else given.rows or self.keys
        self.run(wanted, given.output, given.jobs, again=given.again)
        return 0

    def run(
        self, wanted: Iterable[str], folder: Path, jobs: int = 1, *, again: bool = False
    ) -> None:
        """Compute missing rows and write what there is, now and then and at the end."""
        folder.mkdir(parents=True, exist_ok=True)
        stored = load(folder, self.name)
        missing = [key for key in wanted if again or key not in stored]
        written = time.monotonic()
        for number, row in enumerate(self._computed(missing, jobs), 1):
            stored[row["key"]] = row
            print(f"{number} of {len(missing)}: {row['key']}", file=sys.stderr, flush=True)
            if time.monotonic() - written > 10:
                self._write(stored, folder, fresh=True)
                written = time.monotonic()
        self._write(stored, folder, fresh=bool(missing))

    def _computed(self, keys: Sequence[str], jobs: int) -> Iterable[Row]:
        if jobs == 1:
            yield from map(self._row, keys)
            return
        with ProcessPoolExecutor(jobs) as pool:
            for done in as_completed([pool.submit(_row, self.compute, key) for key in keys]):
                yield done.result()

    def _row(self, key: str) -> Row:
        return _row(self.compute, key)

    def _write(self, stored: Mapping[str, Row], folder: Path, *, fresh: bool) -> None:
        rows = [stored[key] for key in self.keys if key in stored]
        path = folder / f"{self.name}.json"
        origin = provenance() if fresh or not path.exists() else _document(path)["origin"]
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        path.write_text(f'{{"origin": {json.dumps(origin)},\n"rows": [\n{lines}\n]}}\n')
        (folder / f"{self.name}.md").write_text(self.text(rows, origin))

    def text(self, rows: Sequence[Row], origin: Mapping[str, Any]) -> str:
        """The page of some rows."""
        seconds = sum(row["seconds"] for row in rows)
        about = f"{len(rows)} of {len(self.keys)} rows in {seconds:.0f} s of processor time"
        lines = [f"# {self.title}", "", *self.markdown(rows), "", *provenance_lines(origin, about)]
        return "\n".join(lines) + "\n"


def _row(compute: Callable[[str], Row], key: str) -> Row:
    started = time.process_time()
    row = compute(key)
    return {"key": key, **row, "seconds": round(time.process_time() - started, 2)}


def _document(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def load(folder: Path, part: str) -> dict[str, Row]:
    """Rows by key; none where nothing was written yet."""
    path = folder / f"{part}.json"
    return {row["key"]: row for row in _document(path)["rows"]} if path.exists() else {}


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """A table in Markdown."""
    return [
        f"| {' | '.join(head)} |",
        "|" + " --- |" * len(head),
        *(f"| {' | '.join(map(str, row))} |" for row in rows),
    ]


def percent(value: float, digits: int = 0) -> str:
    return f"{value * 100:.{digits}f} %"
