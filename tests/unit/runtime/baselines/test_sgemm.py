"""Matrix products of float32 by BLAS: every form computes the workload, transposed or not."""

from __future__ import annotations

import pytest

from cpembed.codegen.epilogue import Epilogue
from cpembed.errors import BackendUnavailable
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.reference import random_inputs
from cpembed.runtime.baselines import NotCovered, Subject
from cpembed.runtime.measurement.verification import Expected
from cpembed.targets.x86.baselines import sgemm
from cpembed.workloads.suites import Layer

F32 = load_hardware_spec("avx512_f32")
OPENERS = {"mkl": sgemm.open_mkl, "openblas": sgemm.open_openblas}
PRODUCTS = [
    "gemm m=5 n=16 k=32",
    "gemm m=9 n=7 k=33 trans_a=1",
    "gemm m=9 n=7 k=33 trans_b=1",
    "gemm m=16 n=3 k=64 trans_a=1 trans_b=1",
    "gemv m=24 k=40",
    "gemv m=24 k=40 trans_a=1",
    "batched_gemm b=3 m=5 n=6 k=7",
    "batched_gemm b=2 m=5 n=6 k=7 trans_a=1 trans_b=1",
]


def subject(label: str) -> Subject:
    layer = Layer("", 0, "", label)
    return Subject.from_layer(layer, layer.workload(("float32", "float32"), "NCHW"))


def opened(name: str) -> sgemm.Mkl | sgemm.OpenBlas:
    if name == "mkl":
        pytest.importorskip("torch", reason="torch, which brings MKL, is not installed")
    try:
        return OPENERS[name](F32)
    except BackendUnavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("label", PRODUCTS)
@pytest.mark.parametrize("name", OPENERS)
def test_every_form_is_right(name: str, label: str) -> None:
    library, what = opened(name), subject(label)
    inputs = random_inputs(what.workload, 3)
    expected = Expected(what.workload, inputs)
    contenders = library.contenders(what, inputs)
    assert not isinstance(contenders, NotCovered)
    assert len(contenders) == len({one.form for one in contenders})
    for one in contenders:
        assert expected.judge_converted(one.output()).verified, one.form
        assert one.primitives(1) is None
    assert all(library.identity().values())


@pytest.mark.parametrize("name", OPENERS)
def test_convolutions_are_not_covered(name: str) -> None:
    found = opened(name).contenders(subject("conv2d n=1 c=2 h=5 w=5 k=3 r=3 s=3"), {})
    assert found == NotCovered("BLAS has no convolutions")


@pytest.mark.parametrize("name", OPENERS)
def test_other_types_and_other_results_are_refused(name: str) -> None:
    with pytest.raises(BackendUnavailable, match="multiplies float32, not int32, int8 and uint8"):
        OPENERS[name](load_hardware_spec("avx512_vnni"))
    with pytest.raises(BackendUnavailable, match="as they are"):
        OPENERS[name](F32, Epilogue("float32", relu=True))
