"""What explorations keep is data: files of others are read, and nothing in them is executed."""

from __future__ import annotations

import base64
import os
import pickle
import random
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cpembed.driver.named import workload
from cpembed.errors import CpembedError, DamagedStore
from cpembed.exploration.cores.family import CoreFamily
from cpembed.exploration.costing import (
    AnalysisRow,
    Costing,
    LayerWork,
    Row,
    packed,
    store_for,
    unpacked,
)
from cpembed.runtime.cluster.executors import ThisProcess
from cpembed.stores import DamagedRowError
from cpembed.targets.family import Family, Point
from cpembed.targets.vta.family import VtaFamily

CORE = {"intrinsic": "gemm", "pe_rows": 8, "pe_columns": 8, "scratchpad_kib": 128, "banks": 4}
LAYER = workload("gemm m=16 n=32 k=48", target="vta_1x16x16")


def analysed(family: Family, point: Point) -> tuple[Point, Any]:
    usual = {one.name: one.default for one in family.parameters if one.default is not None}
    whole = {**usual, **point}
    return whole, family.analyse(whole, LAYER)


@pytest.fixture(scope="module", params=["core", "vta"])
def made(request: pytest.FixtureRequest) -> tuple[Family, Point, Any]:
    if request.param == "core":
        return CoreFamily(), *analysed(CoreFamily(), CORE)
    return VtaFamily(), *analysed(VtaFamily(), {"embeddings": 2})


def test_an_analysis_that_was_kept_says_the_same(made: tuple[Family, Point, Any]) -> None:
    family, point, analysis = made
    again = unpacked(family, packed(analysis))
    assert family.choices(point, again) == family.choices(point, analysis)
    assert family.bound(point, again) == family.bound(point, analysis)


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_nothing_in_a_file_is_executed(tmp_path: Path, made: tuple[Family, Point, Any]) -> None:
    family = made[0]
    trap = tmp_path / "executed"
    store = store_for(family, "suite", None, tmp_path)
    store.open()
    value = base64.b85encode(zlib.compress(pickle.dumps(Trap(trap)))).decode()
    store.append(Row(AnalysisRow("group", "layer", value, None)))
    with pytest.warns(DamagedStore, match="1 of 1 rows left out as damaged"):
        assert store.load() == []
    assert not trap.exists()


def test_what_is_unpacked_has_a_limit(made: tuple[Family, Point, Any]) -> None:
    bomb = base64.b85encode(zlib.compress(bytes(2**27))).decode()
    with pytest.raises(DamagedRowError, match="more than 67,108,864 bytes"):
        unpacked(made[0], bomb)


def damaged(analysis: Any, seed: int) -> str:
    chance = random.Random(seed)
    document = bytearray(zlib.decompress(base64.b85decode(packed(analysis))))
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(document))
        change = chance.choice([b"0", b"9", b"null", b"-", b"1e30", b"x", b"m", b"[", b'"'])
        document[at : at + chance.randint(0, 2)] = change
    return base64.b85encode(zlib.compress(bytes(document))).decode()


def use(costing: Costing, point: Point) -> None:
    """What a search does with an analysis."""
    (layer,) = costing.layers
    costing.bound(point, layer)
    requests = costing.evaluations(point, layer)[:1]
    list(costing.find_out([(point, layer, one) for one in requests], ThisProcess()))
    costing.costs(point, layer)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.quick(40)
@pytest.mark.parametrize("seed", range(600))
def test_a_changed_analysis_is_left_out_used_or_refused_in_a_line(
    tmp_path: Path, made: tuple[Family, Point, Any], seed: int
) -> None:
    family, point, analysis = made
    store = store_for(family, "suite", None, tmp_path)
    store.open()
    layer = LayerWork(0, "layer", 1, LAYER, "digest")
    group = repr(family.group(point))
    store.append(Row(AnalysisRow(group, layer.digest, damaged(analysis, seed), None)))
    costing = Costing(family, [layer], store)
    if not costing.stored_answers:
        return
    with suppress(CpembedError):
        use(costing, point)


def test_a_schedule_of_another_layer_is_refused_in_a_line(tmp_path: Path) -> None:
    family = VtaFamily()
    point, analysis = analysed(family, {"embeddings": 2})
    document = zlib.decompress(base64.b85decode(packed(analysis))).replace(b'"n.o"', b'"x.o"', 1)
    store = store_for(family, "suite", None, tmp_path)
    store.open()
    layer = LayerWork(0, "layer", 1, LAYER, "digest")
    value = base64.b85encode(zlib.compress(document)).decode()
    store.append(Row(AnalysisRow(repr(family.group(point)), layer.digest, value, None)))
    costing = Costing(family, [layer], store)
    assert costing.stored_answers == 1
    with pytest.raises(CpembedError, match=r"cannot be used .*: --fresh"):
        use(costing, point)
