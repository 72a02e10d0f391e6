"""Compare several libraries of each network in a folder: options, measurements, documents."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.documents import Document, Row, write_document
from cpembed.files import write_whole
from cpembed.runtime.measurement.environment import provenance, provenance_lines

FOLDER = Path(__file__).resolve().parent


def comparison_parser(description: str, target: str) -> argparse.ArgumentParser:
    """Return the options of a comparison; ``target`` is the default one."""
    parser = argparse.ArgumentParser(description=description.split("\n", 1)[0])
    parser.add_argument("models", type=Path)
    parser.add_argument("--target", default=target)
    parser.add_argument("--measure", action="store_true", help="choose by measured kernels")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--round-ms", type=float, default=40.0)
    parser.add_argument("--output", type=Path, default=FOLDER)
    return parser


@dataclass(frozen=True)
class Comparison:
    """Comparison of the libraries of networks.

    Attributes
    ----------
    name : str
        Name of the documents, without an ending.
    row : callable
        Measures the network of a file.
    line, markdown : callable
        A row as a line, and a document as a page.
    further : mapping
        Further entries of the document.
    """

    name: str
    row: Callable[[Path], Row]
    line: Callable[[Row], str]
    markdown: Callable[[Document], str]
    further: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def run(self, options: argparse.Namespace, pattern: str) -> None:
        """Measure the models whose names match; documents are written after each of them."""
        rows: list[Row] = []
        for path in sorted(options.models.glob(pattern)):
            if options.only and path.stem not in options.only:
                continue
            rows.append(self.row(path))
            document = {
                "target": options.target,
                "costs": "measured" if options.measure else "estimated",
                "rounds": options.rounds,
                **self.further,
                "rows": rows,
            }
            document |= provenance()
            write_document(options.output / f"{self.name}.json", document)
            write_whole(options.output / f"{self.name}.md", self.markdown(document))
            print(self.line(rows[-1]))


def heading(title: str, document: Mapping[str, Any]) -> list[str]:
    """Return the first lines of a document's page."""
    run = (
        f"{document['rounds']} rounds, target {document['target']}, "
        f"kernels {document['costs']} for the choice"
    )
    return [f"# {title}", "", *provenance_lines(document, run)]


def median_us(times: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the median time of a call of each library."""
    return {name: 1e6 * statistics.median(seconds) for name, seconds in times.items()}
