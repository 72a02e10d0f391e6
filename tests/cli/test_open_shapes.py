"""``--shape`` of ``network`` and ``build``: sizes, names of dimensions, and ranges."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calling import Caller

pytest.importorskip("onnx")

from tests.integration.open_models import mlp

TARGET = ("--target", "avx2_f32")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(mlp(tmp_path_factory.mktemp("open") / "mlp.onnx"))


@pytest.mark.parametrize("arguments, parts", [
    (("--shape", "batch=16..1"), ("16..1 ends before it begins", "write 1..16")),
    (("--shape", "batch=0..4"), ("a range begins at 1", "write 1..4")),
    (("--shape", "batch=0..0"), ("a range begins at 1", "write 0")),
    (("--shape", "batch=1...4"), ("'batch=1...4' is no shape", "NAME=1..16")),
    (("--shape", "batch=-1..4"), ("'batch=-1..4' is no shape", "NAME=1..16")),
    (("--shape", "batch=1..4", "--shape", "batch=3"), ("batch is given more than once",)),
    (("--shape", "batch=3", "--loss", "1.1"), ("--loss applies to ranges of sizes",)),
    (("--shape", "batch=1..4", "--output", "out"), ("--output applies to fixed sizes",)),
])  # fmt: skip
def test_usage_is_explained_in_one_line(
    cpembed: Caller, model: str, arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    cpembed("network", model, *TARGET, *arguments).is_one_line_error(2, *parts)


@pytest.mark.parametrize("shape, said", [
    ("rows=3", "has no input rows: its inputs are x, its open dimensions batch"),
    ("x=1..4,25", "dimension 1 of input x is 24 in the model, not 25"),
    ("x=1..4,1..25", "dimension 1 of input x is 24 in the model, not 1..25"),
])  # fmt: skip
def test_models_are_checked_before_anything_is_compiled(
    cpembed: Caller, model: str, shape: str, said: str
) -> None:
    cpembed("network", model, *TARGET, "--shape", shape).is_one_line_error(2, said)


def test_ranges_are_for_libraries(cpembed: Caller, model: str, tmp_path: Path) -> None:
    cpembed("match", model, *TARGET, "--shape", "batch=1..4").is_one_line_error(
        2, "ranges of sizes apply to network and build"
    )
    called = cpembed("build", "gemm", "m=4", "n=4", "k=4", *TARGET, "-o", str(tmp_path),
                     "--instances", "3")  # fmt: skip
    called.is_one_line_error(2, "--instances applies to ranges of sizes")


def test_a_target_without_libraries(cpembed: Caller, model: str) -> None:
    called = cpembed("network", model, "--target", "vta_1x16x16", "--shape", "batch=1..4")
    assert called.code != 0
    assert "ranges of sizes need" in called.err
