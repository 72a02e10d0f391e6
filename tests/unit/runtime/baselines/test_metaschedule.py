"""TVM's MetaSchedule as a baseline: packed forms by numpy, and a search of two trials."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from cpembed.driver.named import hardware_spec
from cpembed.errors import BackendUnavailable
from cpembed.ir.reference import random_inputs, reference
from cpembed.runtime.baselines import NotCovered, Subject
from cpembed.targets.x86.baselines import Convolution, Product, metaschedule, problem_of
from cpembed.targets.x86.baselines.metaschedule import MetaSchedule, open_metaschedule
from cpembed.targets.x86.features import lacking
from cpembed.workloads.naming import parse_workload
from cpembed.workloads.suites import Layer

LAYERS = [
    "conv2d n=2 c=5 h=9 w=8 k=19 r=3 s=2 pad=1 stride=2 layout=NHWC",
    "conv2d n=1 c=8 h=7 w=7 k=16 r=1 s=1 dilation=1",
    "conv1d n=1 c=6 w=20 k=16 s=3 pad=1 dilation=2",
    "gemm m=5 n=18 k=11",
]
INT8 = {"I": "uint8", "W": "int8", "O": "int32", "A": "uint8", "B": "int8", "C": "int32"}


def subject_of(label: str) -> Subject:
    words = label.split()
    layout = next((word[7:] for word in words if word.startswith("layout=")), "NCHW")
    plain = [word for word in words if not word.startswith("layout=")]
    workload = parse_workload(words).with_dtypes(
        {operand.name: INT8[operand.name] for operand in parse_workload(words).operands}
    )
    return Subject.from_layer(Layer("test", 0, "", " ".join(plain)), workload, layout)


@pytest.mark.parametrize("label", LAYERS)
def test_the_packed_form_is_the_layer(label: str) -> None:
    """Multiplied in numpy as TVM's operator says, and unpacked."""
    subject = subject_of(label)
    problem = problem_of(subject)
    assert isinstance(problem, (Convolution, Product))
    shape = metaschedule._Shape.of_problem(problem)  # pyright: ignore[reportPrivateUsage]
    inputs = random_inputs(subject.workload, 2)
    image = shape.packed_image(problem, inputs).astype(np.int64)
    weights = shape.packed_weights(problem, inputs).astype(np.int64)
    assert (image.shape, weights.shape) == shape.shapes[:2]
    sums = np.zeros(shape.shapes[2], np.int64)
    (rows, columns), (down, along) = shape.output, shape.stride
    for r in range(shape.window[0]):
        for s in range(shape.window[1]):
            top, left = r * shape.dilation[0], s * shape.dilation[1]
            part = image[:, top : top + rows * down : down, left : left + columns * along : along][
                :, :rows, :columns
            ]
            sums += np.einsum("npqci,kcli->npqkl", part, weights[:, r, s])
    found = shape.unpacked(problem, sums)
    assert np.array_equal(found, reference(subject.workload, inputs))


def test_what_it_does_not_cover_says_so() -> None:
    baseline = MetaSchedule()
    depthwise = subject_of("depthwise n=1 c=8 h=9 w=9 r=3 s=3")
    found = baseline.contenders(depthwise, {})
    assert isinstance(found, NotCovered)
    floats = parse_workload(["gemm", "m=4", "n=4", "k=4"])
    typed = floats.with_dtypes({o.name: "float32" for o in floats.operands})
    found = baseline.contenders(Subject(typed, "gemm", {}), {})
    assert isinstance(found, NotCovered)
    assert "float32" in found.reason


def test_another_target_has_no_such_baseline() -> None:
    if lacking(("avx512f", "avx512_vnni")):
        pytest.skip("missing: avx512_vnni")
    with pytest.raises(BackendUnavailable, match="not vta_1x16x16"):
        open_metaschedule(hardware_spec("vta_1x16x16"))


@pytest.mark.slow
def test_a_search_finds_a_kernel_that_is_right_and_is_kept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lacks = [name for name in ("cloudpickle", "psutil") if find_spec(name) is None]
    lacks += lacking(("avx512f", "avx512_vnni"))
    if lacks:
        pytest.skip(f"missing: {', '.join(lacks)}")
    subject = subject_of(LAYERS[0])
    inputs = random_inputs(subject.workload, 4)
    for _ in range(2):
        baseline = MetaSchedule(trials=2, cost_model="random", folder=tmp_path)
        found = baseline.contenders(subject, inputs)
        assert not isinstance(found, NotCovered)
        (tuned,) = found
        assert np.array_equal(tuned.output(), reference(subject.workload, inputs))
        assert tuned.form.startswith("MetaSchedule, 2 trials in ")
    assert len(list(tmp_path.iterdir())) == 1
    again = MetaSchedule(trials=2, cost_model="random", folder=tmp_path / "again")
    assert not isinstance(again.contenders(subject, inputs), NotCovered)
    assert not capfd.readouterr().out, "standard output is the results'"
