"""A calibration is kept for its machine, and nothing else is taken for one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from cpembed.codegen.host_cpu import cache_bytes, cpu_model
from cpembed.errors import CpembedError, DamagedStore
from cpembed.targets.cpu import calibration as module
from cpembed.targets.cpu.calibration import (
    OPERATIONS,
    Calibration,
    calibration,
    calibration_path,
    default_calibration,
    load_calibration,
    store_calibration,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(module.DIRECTORY_VARIABLE, str(tmp_path / "kept"))
    monkeypatch.setenv("TVM_NUM_THREADS", "3")
    calibration.cache_clear()
    yield tmp_path / "kept"
    calibration.cache_clear()


def measured(threads: int = 3) -> Calibration:
    return replace(
        default_calibration(threads),
        cpu="here",
        measured="2026-01-02T03:04:05+00:00",
        launch_us=7.5,
        product_shared_ns={"tdpbusd": 13.0},
        noisy=("launch_us",),
    )


def test_what_is_kept_is_used(folder: Path) -> None:
    assert load_calibration() is None
    assert calibration().is_default
    path = store_calibration(measured())
    assert path.parent == folder
    assert load_calibration() == measured()
    assert calibration() == measured()
    assert list(folder.iterdir()) == [path]


def test_what_this_machine_has_not_is_planned_by_published_figures() -> None:
    without = replace(measured(), product_ns={"vpdpbusd": 0.25})
    assert without.for_product("vpdpbusd") is without
    assert without.for_product("tdpbusd") == default_calibration(3)


def test_another_number_of_threads_is_another_calibration(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_calibration(measured())
    monkeypatch.setenv("TVM_NUM_THREADS", "4")
    assert load_calibration() is None
    store_calibration(measured(4))
    assert load_calibration() == measured(4)
    assert len(list(folder.iterdir())) == 2


def test_another_cpu_is_another_calibration(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del folder
    store_calibration(measured())
    here = calibration_path()
    monkeypatch.setattr(module, "cpu_model", lambda: "Another CPU (TM)/v2")
    assert load_calibration() is None
    assert calibration_path().name != here.name
    assert calibration_path().parent == here.parent


def test_a_folder_of_ones_own(tmp_path: Path, folder: Path) -> None:
    path = store_calibration(measured(), tmp_path / "other")
    assert path.parent == tmp_path / "other"
    assert not folder.exists()
    assert load_calibration(tmp_path / "other") == measured()


def test_a_file_that_is_none_is_one_line_with_the_remedy(folder: Path) -> None:
    path = store_calibration(measured())
    document = json.loads(path.read_text())
    del document["task_ns"]
    path.write_text(json.dumps(document))
    with pytest.warns(DamagedStore, match=r"task_ns.*published.*run `cpembed calibrate` again"):
        assert load_calibration() is None
    path.write_text("{")
    with pytest.warns(DamagedStore, match=r"is no calibration"):
        assert load_calibration() is None
    path.write_bytes(b'{"cpu": "\xff"}')
    with pytest.warns(DamagedStore, match=r"is no calibration"):
        assert load_calibration() is None
    path.unlink()
    path.mkdir(parents=True)
    with pytest.warns(DamagedStore, match=r"cannot be read"):
        assert load_calibration() is None


@pytest.mark.parametrize(
    "change, place",
    [
        ({"threads": 0}, "threads"),
        ({"threads": 7}, "threads"),
        ({"launch_us": -1.0}, "launch_us"),
        ({"launch_us": 1e300}, "launch_us"),
        ({"product_ns": {"tdpbusd": 0.0}}, "product_ns"),
        ({"product_ns": {"mul": 1.0}}, "product_ns"),
        ({"product_ns": {}}, "product_ns"),
        ({"latency_ns": {}}, "latency_ns"),
        ({"product_row_ns": {"tdpbusd": 1e6}}, "product_row_ns"),
        ({"tile_line_ns": [1.0]}, "tile_line_ns"),
        ({"measured": ""}, "measured"),
    ],
)
def test_figures_that_nothing_measures_are_none(
    folder: Path, change: dict[str, object], place: str
) -> None:
    del folder
    path = store_calibration(measured())
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.warns(DamagedStore, match=rf"{place}.*run `cpembed calibrate` again"):
        assert load_calibration() is None


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, folder: Path) -> None:
    del folder
    (tmp_path / "file").write_text("")
    with pytest.raises(CpembedError, match=r"cannot be made.*name another folder"):
        store_calibration(measured(), tmp_path / "file" / "below")


def test_an_interruption_leaves_the_older_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_calibration(measured())

    def interrupted(self: Path, target: Path) -> None:
        del self, target
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store_calibration(replace(measured(), launch_us=1.0))
    assert load_calibration() == measured()
    assert len(list(folder.iterdir())) == 1


def test_published_figures_say_that_they_are_and_grow_outwards() -> None:
    found = default_calibration()
    assert found.is_default
    assert "published" in found.cpu
    assert not measured().is_default
    for lines in (found.tile_line_ns, found.vector_line_ns, found.store_line_ns):
        assert list(lines) == sorted(lines)
        assert lines[0] > 0
    for products in (found.product_ns, found.latency_ns):
        assert products.keys() == OPERATIONS.keys()
    assert all(found.product_row_ns[name] * 16 <= ns for name, ns in found.product_ns.items())


def test_peaks_count_two_operations_a_multiply_accumulate() -> None:
    # 16 x 16 x 64 multiply-accumulates in 8 ns: 4 096 operations a nanosecond.
    found = replace(measured(), product_ns={"tdpbusd": 8.0})
    assert found.peak_gops("tdpbusd") == 4096
    assert found.shared_peak_gops("tdpbusd") == pytest.approx(3 * 32768 / 13)
    assert found.shared_peak_gops("vpdpbusd") is None


def test_every_field_is_stored(folder: Path) -> None:
    del folder
    document = json.loads(store_calibration(measured()).read_text())
    assert document.keys() == {field.name for field in fields(Calibration)}


def test_caches_are_those_of_data_as_the_system_names_them(tmp_path: Path) -> None:
    listed = [(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2048K")]
    for number, (level, kind, size) in enumerate([*listed, (3, "Unified", "105M")]):
        index = tmp_path / f"index{number}"
        index.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (index / name).write_text(f"{text}\n")
    assert cache_bytes(tmp_path) == (48 * 1024, 2 * 1024**2, 105 * 1024**2)
    (tmp_path / "index2" / "size").write_text("?")
    assert cache_bytes(tmp_path) == (48 * 1024, 0, 105 * 1024**2)
    assert cache_bytes(tmp_path / "none") == (0, 0, 0)


def test_generations_of_one_name_are_two_cpus(tmp_path: Path) -> None:
    """Virtual machines call many of them "AMD EPYC"."""
    names = set[str]()
    for family in (25, 26):
        file = tmp_path / str(family)
        core = f"cpu family\t: {family}\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n"
        file.write_text(core + "\n" + core.replace("17", "18"))
        names.add(cpu_model(file))
    assert names == {"AMD EPYC, family 25 model 17", "AMD EPYC, family 26 model 17"}
    unnamed = tmp_path / "unnamed"
    unnamed.write_text("CPU part\t: 0xd40\n")
    assert cpu_model(unnamed) == cpu_model(tmp_path / "none")
