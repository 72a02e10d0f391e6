"""Choices of kernels from other machines: proven, or searched as before."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cpembed.codegen.epilogue import Epilogue
from cpembed.cost.ranking import Candidate, derive_candidate
from cpembed.driver.matching import network_units
from cpembed.driver.named import workload
from cpembed.errors import CpembedError, DamagedStore
from cpembed.network import product_kernels, shared_choices
from cpembed.network.kernel_cache import Cache
from cpembed.network.product_kernels import KernelRequest, ProductKernels
from cpembed.network.shared_choices import (
    Choice,
    export_choices,
    import_choices,
    proven_kernel,
    read_choices,
)
from cpembed.steps import silent

TARGET = "avx2_int8"
REQUEST = KernelRequest(workload("gemm m=8 n=16 k=32", TARGET), Epilogue("int32"), placed=False)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> ProductKernels:
    kernels = ProductKernels(network_units(TARGET), Cache(tmp_path_factory.mktemp("own")))
    kernels.search([REQUEST], silent)
    return kernels


@pytest.fixture
def exported(searched: ProductKernels, tmp_path: Path) -> Path:
    file = tmp_path / "choices.jsonl"
    assert export_choices(searched.cache, file) == 1
    return file


def test_an_imported_choice_is_the_kernel_that_was_searched(
    searched: ProductKernels, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path / "cache")
    assert import_choices(cache, exported) == 1

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("searched again")

    monkeypatch.setattr(product_kernels, "choose_product_kernel", refuse)
    kernels = ProductKernels(searched.units, cache)
    kernels.search([REQUEST], silent)
    first, second = searched.lookup(REQUEST), kernels.lookup(REQUEST)
    assert first is not None
    assert second is not None
    # Times and sizes are no part of the file: they are computed again.
    assert (second.spec, second.schedule, second.cost_us) == (
        first.spec, first.schedule, first.cost_us
    )  # fmt: skip
    assert (second.utilisation, second.moved_bytes) == (first.utilisation, first.moved_bytes)
    assert second.candidate.identifier == first.candidate.identifier
    assert second.candidate.program.operands == first.candidate.program.operands
    # It is passed on: a third machine gets it from this one.
    assert export_choices(cache, tmp_path / "again.jsonl") == 1
    assert (tmp_path / "again.jsonl").read_bytes() == exported.read_bytes()


def test_no_path_of_this_machine_is_in_the_file(exported: Path) -> None:
    text = exported.read_text()
    assert "/" not in text
    assert set(json.loads(text)) == {
        "key", "target", "embedding", "in_place", "variant", "schedule", "reason", "extends"
    }  # fmt: skip


def _other_target(document: dict[str, Any]) -> None:
    document["target"] = "amx_int8"


def _other_axes(document: dict[str, Any]) -> None:
    document["embedding"]["axes"] = {
        name: [{**digit, "axis": "m", "stride": 3} for digit in digits]
        for name, digits in document["embedding"]["axes"].items()
    }


def _no_embedding(document: dict[str, Any]) -> None:
    document["embedding"] = {"axes": "x"}


def _large_tiles(document: dict[str, Any]) -> None:
    document["schedule"]["register_tiles"] = {"m": 4096}


def _packed_operands_in_place(document: dict[str, Any]) -> None:
    document["in_place"] = ["A", "B", "C", "nothing"]


@pytest.mark.parametrize(
    "damage",
    [_other_target, _other_axes, _no_embedding, _large_tiles, _packed_operands_in_place],
)
def test_a_wrong_choice_is_no_kernel(
    searched: ProductKernels,
    exported: Path,
    tmp_path: Path,
    damage: Callable[[dict[str, Any]], None],
) -> None:
    document = json.loads(exported.read_text())
    damage(document)
    choice = msgspec.convert(document, Choice)
    assert proven_kernel(choice, searched.units, REQUEST.workload, REQUEST.searched, ()) is None
    # The search stands in.
    exported.write_text(json.dumps(document))
    cache = Cache(tmp_path / "cache")
    import_choices(cache, exported)
    kernel = ProductKernels(searched.units, cache).lookup(REQUEST)
    expected = searched.lookup(REQUEST)
    assert kernel is not None
    assert expected is not None
    assert kernel.candidate.program == expected.candidate.program


def test_a_choice_of_another_search_is_not_looked_at(
    searched: ProductKernels, exported: Path, tmp_path: Path
) -> None:
    cache = Cache(tmp_path / "cache")
    import_choices(cache, exported)
    other = replace(REQUEST, workload=workload("gemm m=8 n=16 k=64", TARGET))
    kernel = ProductKernels(searched.units, cache).lookup(other)
    assert kernel is not None
    assert kernel.candidate.program.workload.extents["k"] == 64


@pytest.mark.parametrize(
    "line, said",
    [
        ("{}", "key"),
        ("nothing", "line 2"),
        ('{"key": "../x"}', "key"),
        ("[" * 2000, "line 2"),
    ],
)
def test_a_file_of_something_else_is_refused(
    exported: Path, tmp_path: Path, line: str, said: str
) -> None:
    exported.write_text(f"{exported.read_text()}{line}\n")
    cache = Cache(tmp_path / "cache")
    with pytest.raises(CpembedError, match=said):
        import_choices(cache, exported)
    assert read_choices(cache) == []
    # In the folder itself, such a line is left out with a warning.
    (tmp_path / "cache").mkdir(exist_ok=True)
    (tmp_path / "cache" / "choices-x.jsonl").write_text(exported.read_text())
    with pytest.warns(DamagedStore, match="1 of 2 rows"):
        assert len(read_choices(cache)) == 1


def test_without_a_folder_nothing_is_imported(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(CpembedError, match="CPEMBED_NETWORK_CACHE"):
        import_choices(Cache(None), exported)
    with pytest.raises(CpembedError, match="cannot be read"):
        import_choices(Cache(tmp_path), tmp_path / "none.jsonl")
    assert export_choices(Cache(None), tmp_path / "empty.jsonl") == 0


def test_a_program_that_is_not_proven_is_no_kernel(
    searched: ProductKernels, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = msgspec.json.decode(exported.read_bytes(), type=Choice)

    def derived_wrong(*arguments: Any, **keywords: Any) -> Candidate:
        candidate = derive_candidate(*arguments, **keywords)
        shifted = {axis: index + 1 for axis, index in candidate.program.axis_map.items()}
        return replace(candidate, program=replace(candidate.program, axis_map=shifted))

    def kernel() -> object:
        return proven_kernel(choice, searched.units, REQUEST.workload, REQUEST.searched, ())

    assert kernel() is not None
    monkeypatch.setattr(shared_choices, "derive_candidate", derived_wrong)
    assert kernel() is None
