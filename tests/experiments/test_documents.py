"""Documents of results: a line a row, tables of large ones, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.documents import read_document, table, write_document

ROWS: list[dict[str, Any]] = [
    {"key": "a", "us": 1.25, "methods": {"direct": {"us": 1.0, "plan": "x"}}, "note": None},
    {"key": "b", "us": 2.5, "methods": {"winograd": {"us": 3.0, "plan": "y"}}, "note": "noisy"},
]


def test_a_document_has_a_line_a_row_and_is_read_as_written(tmp_path: Path) -> None:
    document = {
        "machine": {"cpu": "x" * 100},
        "rows": [{"key": "x" * 90}, {"key": "y" * 90}],
        "s": 1,
    }
    path = tmp_path / "results.json"
    write_document(path, document)
    lines = path.read_text().splitlines()
    assert [line.strip(" ,") for line in lines if '"key"' in line] == [
        json.dumps(row) for row in document["rows"]
    ]
    assert read_document(path) == document


def test_a_table_names_each_key_once(tmp_path: Path) -> None:
    packed = table(ROWS)
    assert isinstance(packed, dict)
    assert packed["columns"].count("methods.direct.us") == 1
    write_document(tmp_path / "results.json", {"rows": packed})
    assert read_document(tmp_path / "results.json") == {"rows": ROWS}


@pytest.mark.parametrize(
    "rows",
    [
        [{"key": "a", "us": 1.0}, {"key": "b"}],
        [{"key": "a", "group": {"us": None}}, {"key": "b", "group": {"us": 1.0}}],
        [{"a.b": 1}, {"a.b": 2}],
    ],
)
def test_rows_that_a_table_would_change_are_kept_as_they_are(rows: list[dict[str, Any]]) -> None:
    assert table(rows) == rows
