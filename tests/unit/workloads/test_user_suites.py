"""Tables of layers that a person wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.errors import WorkloadError
from cpembed.workloads.suites import layer
from cpembed.workloads.user_suites import ComputedLayer, read_suite


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.csv"
    path.write_bytes(text.encode())
    return path


def test_each_line_is_a_layer(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "application,layer,count\n"
        "mine,gemm m=8 n=16 k=32,3\n"
        "\n"
        ',"C[x,y] += A[x,z] * B[z,y] x=4 y=5 z=6",\n'
        "theirs,deepbench:12,2\n",
    )
    first, second, third = read_suite(path)
    assert (first.index, first.application, first.count) == (0, "mine", 3)
    assert first.workload().macs == 8 * 16 * 32
    assert isinstance(second, ComputedLayer)
    assert (second.index, second.count, second.application) == (1, 1, "")
    assert second.workload().macs == 4 * 5 * 6
    assert third.label == layer("deepbench", 12).label
    assert third.workload("int8", "NHWC") == layer("deepbench", 12).workload("int8", "NHWC")


def test_the_layer_alone_is_enough_and_bytes_of_a_spreadsheet_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, "\ufefflayer\r\ngemm m=8 n=16 k=32\r\n")
    (only,) = read_suite(path)
    assert (only.count, only.application) == (1, "")


def test_an_expression_has_no_other_layout(tmp_path: Path) -> None:
    (only,) = read_suite(written(tmp_path, 'layer\n"C[x] += A[x,z] * B[z] x=4 z=6"\n'))
    with pytest.raises(WorkloadError, match="leave layout out"):
        only.workload(layout="NHWC")


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "no column named layer"),
        ("name\ngemm m=1 n=1 k=1\n", "no column named layer"),
        ("layer,often\ngemm m=1 n=1 k=1,2\n", "unknown column 'often'"),
        ("layer\n", "has no layers"),
        ("layer,count\ngemm m=1 n=1 k=1,0\n", ":2: count '0'"),
        ("layer,count\ngemm m=1 n=1 k=1,two\n", ":2: count 'two'"),
        ("layer,count\ngemm m=1 n=1 k=1,²\n", ":2: count"),
        ("layer,count\n,2\n", ":2: the layer is empty"),
        ("layer\ngemm m=1 n=1 k=1\ngemm m=1 n=1\n", ":3: gemm: missing k"),
        ("layer\nnosuch m=1\n", ":2: unknown workload 'nosuch'"),
        ("layer\nC[x,y] += A[x,z] * B[z,y] x=1 y=1 z=1\n", ":2: more cells than columns"),
        ("layer\ndeepbench:9999\n", ":2: deepbench:9999: no such layer"),
        ("layer\nnosuch:1\n", ":2: unknown suite 'nosuch'"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(WorkloadError) as error:
        read_suite(written(tmp_path, text))
    assert said in str(error.value)
    assert "mine.csv" in str(error.value)


def test_a_file_that_is_no_text_and_one_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_suite(path)
    path.write_bytes(b"layer\n\xff\xfe\n")
    with pytest.raises(WorkloadError, match="UTF-8"):
        read_suite(path)
