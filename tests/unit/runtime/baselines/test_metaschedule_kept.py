"""What MetaSchedule's searches kept is put aside where TVM could not read it, or would crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.errors import DamagedStore
from cpembed.targets.x86.baselines import metaschedule

RECORDS = "database_tuning_record.json"


@pytest.mark.slow  # Loading MetaSchedule takes half a minute.
@pytest.mark.parametrize(
    "text", [b"[1,2", b"\xff\xfe", b'{"a":1}\n', b"[0,null]\n", b"[0,[]]\n", b"nonsense\n"]
)
def test_a_damaged_search_is_put_aside(tmp_path: Path, text: bytes) -> None:
    folder = tmp_path / "layer"
    folder.mkdir()
    (folder / "database_workload.json").write_bytes(b"")
    (folder / RECORDS).write_bytes(text)
    with pytest.warns(DamagedStore, match=r"cannot be read .*put aside as layer-damaged-\d+"):
        assert len(metaschedule._database(folder)) == 0
    (aside,) = tmp_path.glob("layer-damaged-*")
    assert (aside / RECORDS).read_bytes() == text
    assert len(metaschedule._database(folder)) == 0


def test_seconds_that_are_damaged_are_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "seconds.json"
    assert metaschedule._seconds(path) == 0.0
    path.write_text("12.5")
    assert metaschedule._seconds(path) == 12.5
    for text in ("NaN", "-1", '"12"', "[]", ""):
        path.write_text(text)
        with pytest.warns(DamagedStore, match="are not counted"):
            assert metaschedule._seconds(path) == 0.0
