"""oneDNN through PyTorch: every form computes the workload, and says what it ran."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from cpembed.codegen.epilogue import Epilogue
from cpembed.errors import BackendUnavailable
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.reference import random_inputs
from cpembed.runtime.baselines import NotCovered, Primitives, Subject
from cpembed.runtime.measurement.verification import Expected
from cpembed.targets.capabilities import baselines
from cpembed.targets.registry import open_target
from cpembed.targets.x86.baselines import onednn
from cpembed.targets.x86.baselines.onednn import Executed
from cpembed.targets.x86.baselines.onednn_forms import Form
from cpembed.targets.x86.features import lacking
from cpembed.workloads.suites import Layer

INT8, BF16, VNNI, F32 = map(
    load_hardware_spec, ("amx_int8", "amx_bf16", "avx512_vnni", "avx512_f32")
)
LIMIT = "ONEDNN_MAX_CPU_ISA"

INTEGER, SIGNED, BFLOAT = ("uint8", "int8"), ("int8", "int8"), ("bfloat16", "bfloat16")
FLOAT = ("float32", "float32")


@pytest.fixture(autouse=True)
def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LIMIT, raising=False)


def subject(label: str, dtypes: tuple[str, ...], layout: str = "NCHW") -> Subject:
    layer = Layer("", 0, "", label)
    return Subject.from_layer(layer, layer.workload(dtypes, layout), layout)


def require_exact_products(dtypes: tuple[str, ...]) -> None:
    """Skip where the processor lacks what oneDNN's primitives of these element types need."""
    if dtypes == FLOAT:
        return
    if dtypes == BFLOAT:
        # PyTorch's own condition, in `mkldnn_bf16_device_check`.
        if lacking(("avx512bw", "avx512vl", "avx512dq")) and lacking(("avx_ne_convert",)):
            pytest.skip("this CPU has neither AVX-512 nor AVX-NE-CONVERT, which bfloat16 needs")
    elif lacking(("avx512_vnni",)) and lacking(("avx_vnni",)):
        # Without VNNI, oneDNN adds pairs of products in 16 bits, which saturate.
        pytest.skip("this CPU has no VNNI, without which oneDNN's sums of int8 are not exact")


CONVOLUTIONS = (
    "conv1d n=1 c=8 w=20 k=16 s=3 pad=2 dilation=2",
    "conv2d n=2 c=8 h=9 w=10 k=16 r=3 s=2 pad=1,0 stride=2,1",
    "conv2d n=1 c=1 h=12 w=9 k=8 r=5 s=4 stride=2",
    "conv2d n=1 c=4 h=6 w=6 k=4 r=3 s=3 groups=4 pad=1",
    "conv3d n=1 c=8 d=3 h=6 w=7 k=16 t=2 r=3 s=3 pad=1",
    "depthwise n=1 c=16 h=8 w=8 r=3 s=3 pad=1 stride=2",
    "depthwise n=1 c=16 h=8 w=8 r=3 s=3 m=2",
)
PRODUCTS = (
    "gemm m=5 n=16 k=32",
    "gemm m=16 n=3 k=64 trans_a=1 trans_b=1",
    "gemv m=240 k=400",
)
BATCHED = "batched_gemm b=2 m=40 n=32 k=64 trans_a=1"
CASES = [
    *((label, dtypes, "NCHW") for label in CONVOLUTIONS for dtypes in (INTEGER, BFLOAT)),
    (CONVOLUTIONS[1], INTEGER, "NHWC"),
    (CONVOLUTIONS[3], BFLOAT, "NHWC"),
    *((label, dtypes, "NCHW") for label in PRODUCTS for dtypes in (INTEGER, SIGNED, BFLOAT)),
    ("batched_gemm b=3 m=32 n=48 k=64 trans_b=1", BFLOAT, "NCHW"),
    (BATCHED, BFLOAT, "NCHW"),
    *((label, FLOAT, "NHWC" if "conv" in label else "NCHW") for label in CONVOLUTIONS),
    *((label, FLOAT, "NCHW") for label in PRODUCTS),
]


@pytest.mark.parametrize("label, dtypes, layout", CASES)
def test_every_form_is_right_and_runs_one_primitive(
    label: str, dtypes: tuple[str, ...], layout: str
) -> None:
    pytest.importorskip("torch", reason="torch, which brings oneDNN, is not installed")
    require_exact_products(dtypes)
    what = subject(label, dtypes, layout)
    inputs = random_inputs(what.workload, 3)
    expected = Expected(what.workload, inputs)
    # A limit has to be said before the library is first used, and other tests use it without.
    library = onednn.open_onednn(BF16 if dtypes in (BFLOAT, FLOAT) else INT8)
    contenders = library.contenders(what, inputs)
    assert not isinstance(contenders, NotCovered)
    assert len(contenders) == len({one.form for one in contenders})
    for one in contenders:
        assert expected.judge_converted(one.output()).verified, one.form
        found = one.primitives(3)
        assert found is not None
        assert len(found.names) == 1, "nothing is moved: layouts and weights are its own"
        assert found.us > 0
        assert found.reorder_us == 0
        assert found.weights_us == 0


STORED = [
    *(
        (label, dtypes, stored)
        for label in (*CONVOLUTIONS, *PRODUCTS)
        for dtypes, stored in (
            (INTEGER, Epilogue("uint8", scale=True, bias=True, relu=True)),
            (INTEGER, Epilogue("int8", scale=True)),
            (INTEGER, Epilogue("int8", scale=True, relu="conv3d" not in label)),
            (INTEGER, Epilogue("float32", bias=True)),
            (BFLOAT, Epilogue("bfloat16", relu=True)),
            (FLOAT, Epilogue("float32", relu=True)),
        )
    ),
    (CONVOLUTIONS[1], INTEGER, Epilogue("bfloat16", scale=True, bias=True)),
    (PRODUCTS[0], INTEGER, Epilogue("int32")),
    (PRODUCTS[0], SIGNED, Epilogue("int32")),
]


@pytest.mark.parametrize("label, dtypes, stored", STORED)
def test_a_bias_a_scale_and_an_activation_are_the_primitives_own(
    label: str, dtypes: tuple[str, ...], stored: Epilogue
) -> None:
    pytest.importorskip("torch", reason="torch, which brings oneDNN, is not installed")
    require_exact_products(dtypes)
    what = replace(subject(label, dtypes), stored=stored)
    inputs = random_inputs(what.workload, 4)
    expected = Expected(what.workload, inputs)
    vectors = expected.vectors(stored, 5)
    library = onednn.open_onednn(BF16 if dtypes in (BFLOAT, FLOAT) else INT8)
    contenders = library.contenders(what, {**inputs, **vectors})
    assert not isinstance(contenders, NotCovered)
    for one in contenders:
        found = one.output()
        assert expected.judge_converted(found, stored, vectors).verified, one.form
        assert len((one.primitives(1) or Primitives(0, 0, 0, ())).names) == 1
        # To uint8, saturation is the activation.
        others = [replace(stored, relu=not stored.relu)] if stored.dtype != "uint8" else []
        for other in (*others, replace(stored, scale=True), replace(stored, bias=True)):
            if other != stored:
                given = {**expected.vectors(other, 6), **vectors}
                assert not expected.judge_converted(found, other, given).verified, other


def test_weights_are_packed_as_the_primitive_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two ways to pack, the one that needs no packing in the call; else any."""
    ran: list[str] = []

    def logged(call: Callable[[], object], profile: object) -> list[Executed]:
        call()
        moves = [Executed("reorder", "jit", "4x4", 1.0)] if ran[-1] != "fits" else []
        return [*moves, Executed("matmul", "brg", "", 2.0)]

    def call(made: str) -> Callable[[], None]:
        return lambda: ran.append(made)

    monkeypatch.setattr(onednn, "logged", logged)
    forms = [
        Form("one", call("fits not"), np.asarray, "4x4"),
        Form("one", call("fits"), np.asarray, "4x4"),
        Form("two", call("neither"), np.asarray, "4x4"),
        Form("two", call("neither"), np.asarray, "4x4"),
    ]
    monkeypatch.setattr(onednn, "forms_of", lambda *asked: forms)
    library = onednn.OneDnn(sys, None)
    found = library.contenders(subject(PRODUCTS[0], INTEGER), {})
    assert not isinstance(found, NotCovered)
    for one in found:
        one.run()
    assert [one.form for one in found] == ["one", "two"]
    assert ran[-2:] == ["fits", "neither"]


def test_what_torch_does_not_offer_has_a_reason() -> None:
    pytest.importorskip("torch", reason="torch, which brings oneDNN, is not installed")
    library = onednn.open_onednn(INT8)
    for label, dtypes, reason in (
        (CONVOLUTIONS[1], SIGNED, "no conv2d of int8 and int8 into int32"),
        (PRODUCTS[0], ("uint8", "uint8"), "no gemm of uint8 and uint8 into int32"),
        ("grouped_fc n=2 g=3 c=4 k=5", INTEGER, "no form of grouped_fc"),
    ):
        what = subject(label, dtypes)
        found = library.contenders(what, random_inputs(what.workload, 0))
        assert isinstance(found, NotCovered)
        assert reason in found.reason


def test_what_torch_does_not_store_has_a_reason() -> None:
    pytest.importorskip("torch", reason="torch, which brings oneDNN, is not installed")
    library = onednn.open_onednn(INT8)
    for label, dtypes, stored, reason in (
        (CONVOLUTIONS[1], INTEGER, Epilogue("int32"), "uint8, int8 of such products, not int32"),
        (CONVOLUTIONS[4], INTEGER, Epilogue("int8", relu=True), "no activation after a quantized"),
        (PRODUCTS[0], BFLOAT, Epilogue("float32"), "without a float32 bias or scale"),
        (CONVOLUTIONS[1], BFLOAT, Epilogue("bfloat16", scale=True), "without a float32 bias"),
        (BATCHED, BFLOAT, Epilogue("bfloat16", relu=True), "no operation after the product"),
        (BATCHED, BFLOAT, Epilogue("float32"), "without a float32 bias or scale"),
    ):
        what = replace(subject(label, dtypes), stored=stored)
        inputs = random_inputs(what.workload, 0)
        vectors = Expected(what.workload, inputs).vectors(stored, 0)
        found = library.contenders(what, {**inputs, **vectors})
        assert isinstance(found, NotCovered)
        assert reason in found.reason


def test_what_torch_refuses_to_pack_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch, which brings oneDNN, is not installed")

    def refuse(*arguments: object) -> None:
        raise RuntimeError("needs the cpu support avx512bw\nmore about it")

    monkeypatch.setattr(torch._C._nn, "mkldnn_reorder_conv2d_weight", refuse)
    what = subject(CONVOLUTIONS[1], FLOAT)
    refusal = onednn.open_onednn(BF16).contenders(what, random_inputs(what.workload, 0))
    assert refusal == NotCovered("oneDNN through torch: needs the cpu support avx512bw")


LIMITED = """
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.reference import random_inputs
from cpembed.runtime.baselines import Subject
from cpembed.targets.x86.baselines.onednn import open_onednn
from cpembed.workloads.suites import Layer
library = open_onednn(load_hardware_spec("avx512_vnni"))
layer = Layer("", 0, "", "conv2d n=1 c=64 h=8 w=8 k=64 r=3 s=3")
what = Subject.from_layer(layer, layer.workload(("uint8", "int8")))
for one in library.contenders(what, random_inputs(what.workload, 0)):
    print(library.identity()["max_cpu_isa"], *one.primitives(1).names)
"""


def test_a_narrower_target_limits_the_library() -> None:
    pytest.importorskip("torch", reason="torch, which brings oneDNN, is not installed")
    environment = {name: value for name, value in os.environ.items() if name != LIMIT}
    done = subprocess.run(
        [sys.executable, "-c", LIMITED],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=environment,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("AVX512_CORE_VNNI ") for line in lines)
    assert not any("amx" in line for line in lines)


def test_a_limit_that_comes_too_late_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "torch", sys)
    with pytest.raises(BackendUnavailable, match=f"set {LIMIT}=AVX512_CORE_VNNI before"):
        onednn.open_onednn(VNNI)
    assert LIMIT not in os.environ


def test_stores_of_bfloat16_may_use_its_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ours do, of any target."""
    pytest.importorskip("torch", reason="torch, which brings oneDNN, is not installed")
    for has_one, limit in ((True, "AVX512_CORE_BF16"), (False, "AVX512_CORE_VNNI")):
        monkeypatch.setattr(onednn, "lacking", lambda names, has=has_one: () if has else names)
        monkeypatch.setenv(LIMIT, limit)
        opened = onednn.open_onednn(VNNI, Epilogue("bfloat16", scale=True))
        assert opened.identity()["max_cpu_isa"] == limit


def test_float32_is_compared_with_the_same_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "find_spec", lambda name: object())
    monkeypatch.setattr(onednn, "_loaded", lambda limit: onednn.OneDnn(sys, limit))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert onednn.open_onednn(F32).limit == "AVX512_CORE"
    monkeypatch.delenv(LIMIT)
    assert onednn.open_onednn(load_hardware_spec("avx2_f32")).limit == "AVX2"


def test_somebody_elses_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "find_spec", lambda name: object())
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setenv(LIMIT, "AVX2")
    for spec in (INT8, VNNI):
        with pytest.raises(BackendUnavailable, match=LIMIT):
            onednn.open_onednn(spec)


def test_without_torch_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "find_spec", lambda name: None)
    with pytest.raises(BackendUnavailable, match=r"pip install 'cpembed\[bench\]'") as caught:
        onednn.open_onednn(INT8)
    assert caught.value.exit_code == 5
    assert "\n" not in str(caught.value)


def test_other_targets_are_refused() -> None:
    with pytest.raises(BackendUnavailable, match="use one of amx_int8, amx_bf16, avx512_vnni"):
        onednn.open_onednn(load_hardware_spec("avx2_maddubs"))


def test_the_target_says_what_it_is_compared_with() -> None:
    assert list(baselines(open_target(INT8))) == ["onednn", "mkl", "openblas", "tvm"]
    assert not baselines(open_target(load_hardware_spec("vta_1x16x16")))
