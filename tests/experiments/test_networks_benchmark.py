"""The comparison of whole networks: which rounds count, which ratios, what is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from benchmarks import networks
from benchmarks.network_tables import markdown
from cpembed.hw.loader import load_hardware_spec
from cpembed.runtime.measurement.environment import provenance
from cpembed.targets.x86.features import missing_features


@dataclass
class Fake(networks.Server):
    """A runtime whose turns take what is written down."""

    answers: Iterator[dict] = field(default_factory=lambda: iter(()))
    asked: list[int] = field(default_factory=list)

    def turn(self, calls: int) -> dict:
        self.asked.append(calls)
        return next(self.answers)


def fake(seconds: list[float], elsewhere: list[float], output: float = 1.0) -> Fake:
    """The first two turns find out how many calls make a round."""
    rounds = [
        {"seconds": s, "elsewhere": e, "rested": True}
        for s, e in zip(seconds, elsewhere, strict=True)
    ]
    outputs = {"logits": np.array([0.0, output])}
    return Fake(None, "1", outputs, answers=iter([rounds[0], rounds[0], *rounds]))


def test_rounds_with_other_work_are_left_out_and_ratios_are_of_the_same_round():
    ours = fake([0.010, 0.011, 0.500, 0.010, 0.020], [0, 0, 1.5, 0, 0])
    other = fake([0.020, 0.022, 0.100, 0.020, 0.060], [0, 0, 0.0, 0, 0], output=1.5)
    servers = {"cpembed": ours, "onnxruntime": other}
    assert networks.take_samples(servers, 5, 100.0) == 4
    assert ours.samples == [0.010, 0.011, 0.010, 0.020]
    assert ours.asked == [1, 3, *[10] * 5]
    found = networks.compared(servers, {"logits": np.array([0.0, 1.5])})
    assert found["ratios"] == {"onnxruntime": pytest.approx(2.0)}
    assert found["fastest"] == "onnxruntime"
    assert found["difference"] == {"cpembed": pytest.approx(0.5 / 1.5), "onnxruntime": 0.0}


def test_disturbed_rounds_are_repeated_as_long_as_there_are_tries():
    ours = fake([0.01, 0.02, 0.03, 0.04, 0.05], [0, 1, 1, 0, 0])
    assert networks.take_samples({"cpembed": ours}, 2, 1.0, tries=5) == 2
    assert ours.samples == [0.01, 0.04]
    assert len(ours.asked) == 2 + 4


def test_all_rounds_are_kept_where_hardly_any_was_left_alone():
    ours = fake([0.010, 0.011, 0.012, 0.013], [1, 1, 1, 0])
    assert networks.take_samples({"cpembed": ours}, 4, 1.0) == 1
    assert len(ours.samples) == 4


def test_the_page_names_the_fastest_the_mean_the_worst_and_what_is_missing():
    def row(model: str, ours: float, other: float, **missing: str) -> dict:
        samples = {"cpembed": fake([ours] * 3, [0] * 3), "openvino": fake([other] * 3, [0] * 3)}
        networks.take_samples(samples, 3, 1.0)
        return {
            "model": model, "threads": 1, "missing": missing, "rounds": 3, "of": 3,
            **networks.compared(samples, {}),
        }  # fmt: skip

    rows = [row("a_int8", 0.001, 0.004), row("b_int8", 0.002, 0.002, torch="not installed")]
    page = markdown({**provenance(), "rows": rows})
    assert "| a | 1 | 4 | openvino | 4.00 | 3 of 3 |" in page
    assert "Geometric mean of 2 networks 2.00, worst 1.00 (b_int8)." in page
    assert "torch is left out for b_int8: not installed" in page


def test_a_runtime_that_cannot_run_a_network_says_why(tmp_path):
    np.savez(tmp_path / "inputs.npz", input=np.zeros(1))
    call = ["cpembed", str(tmp_path / "none"), "1", str(tmp_path / "inputs.npz"),
            str(tmp_path / "outputs.npz")]  # fmt: skip
    with networks.serving(networks.sys.executable, call) as server:
        assert isinstance(server, str)
        assert "has 0 libraries: cpembed build writes one" in server


def test_two_runtimes_compute_a_tiny_network_and_agree(tmp_path):
    pytest.importorskip("onnxruntime")
    from tests.models.registry import write_int8

    model = write_int8("tiny", tmp_path / "tiny_int8.onnx")
    paths = {"onnxruntime": model, "onnxruntime_unfused": model}
    row = networks.measured(model, 1, paths, {}, 2, 1.0, 2)
    assert set(row["seconds"]) == set(paths)
    # Without VNNI, ONNX Runtime's products of bytes saturate at 16 bits.
    tolerance = 0.1 if missing_features(load_hardware_spec("avx512_vnni")) else 0.03
    assert row["difference"] == dict.fromkeys(paths, pytest.approx(0, abs=tolerance))
    assert json.dumps(row)


@pytest.mark.parametrize("name", ["tiny", "mobilenet_v2", "shufflenet_v1", "bert_base", "milstm"])
def test_pytorch_reads_a_quantized_file_as_it_is_meant(name, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchao")
    from benchmarks.network_torch import OnnxModule
    from tests.models.registry import TINY, write_int8

    path = write_int8(name, tmp_path / f"{name}_int8.onnx", **TINY[name])
    feed = networks.inputs_of(path)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    expected = ort.InferenceSession(path, options).run(None, feed)[0]
    module = OnnxModule(path).eval()
    with torch.no_grad():
        found = module(*(torch.from_numpy(feed[each]) for each in module.inputs))[0].numpy()
    # Means of four bytes lie between two bytes, exactly: either is right, and later layers differ.
    assert np.linalg.norm(found - expected) < 0.1 * np.linalg.norm(expected)
