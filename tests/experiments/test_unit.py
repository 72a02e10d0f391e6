"""UNIT's figures on CPUs: layers of the networks, counts of instructions, tables."""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from benchmarks.documents import read_document
from benchmarks.onednn import cpu_of, stored_parts
from cpembed.driver.named import hardware_spec
from cpembed.targets.arm.emulator import emulate
from cpembed.targets.x86 import features
from cpembed.workloads.suites import suite
from experiments.common import Experiment, load
from experiments.unit2021 import earlier, networks, paper
from experiments.unit2021.figure12 import counting
from tests.experiments.loading import committed, script
from tests.features import require_features

needs_counting = pytest.mark.skipif(
    bool(counting.counting_needs()), reason=f"missing: {counting.counting_needs()}"
)

WORDS = {
    # sdot v0.4s,v1.16b,v2.16b; udot v0.4s,v1.16b,v2.4b[0]; sdot v0.2s,v1.8b,v2.4b[3]
    "dot": (0x4E829420, 0x6F82E020, 0x0FA2E820),
    # smlal v0.8h,v1.8b,v2.8b; umull2 v0.4s,v1.8h,v2.8h; smlal v0.4s,v1.4h,v2.h[5];
    # mul v0.4s,v1.4s,v2.4s; mla v0.8h,v1.8h,v2.8h; mls v0.8h,v1.8h,v2.h[0]; mul by element
    "multiply": (
        *(0x0E228020, 0x6E62C020, 0x0F522820, 0x4EA29C20, 0x4E629420, 0x6F424020, 0x4FA28020),
    ),
    # fmla v0.4s,v1.4s,v2.4s; fmla by element; add; saddl; dup; addv; movi
    "vector": (
        *(0x4E22CC20, 0x4FA21020, 0x4EA28420, 0x0E220020, 0x4E010420, 0x4EB1B820, 0x4F000400),
    ),
    # ldr q0,[sp]; ld1 {v0.16b,v1.16b},[x2]; ldp q0,q1,[sp]; prfm pldl1keep,[sp]
    "memory": (0x3DC003E0, 0x4C40A040, 0xAD4007E0, 0xF98003E0),
    # b .+4; cbz x3,.+4
    "branch": (0x14000001, 0xB4000023),
    # add x0,x0,#1; add x0,x0,x1; madd x0,x0,x1,x2
    "integer": (0x91000400, 0x8B010000, 0x9B010800),
}
"""Instructions of each class, as GNU's assembler encodes them."""

LOOPS = 10
START = (0x910003E2, 0xD2800141)  # mov x2,sp; mov x1,#10
LOOP_END = (0xF1000421,)  # subs x1,x1,#1, and a branch back that depends on the length
EXIT = (0xD2800BA8, 0xD2800000, 0xD4000001)  # mov x8,#93; mov x0,#0; svc #0


def executable(words: tuple[int, ...]) -> bytes:
    """Return an AArch64 program of one segment."""
    address, offset = 0x400000, 0x10000
    code = struct.pack(f"<{len(words)}I", *words)
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", identity, 2, 183, 1, address, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    head += struct.pack("<IIQQQQQQ", 1, 5, offset, address, address, len(code), len(code), 0x10000)
    return head.ljust(offset, b"\0") + code


@needs_counting
def test_every_instruction_is_counted_in_its_class_as_often_as_it_is_executed() -> None:
    body = tuple(word for words in WORDS.values() for word in words)
    distance = -(len(body) + 1)
    back = 0x54000001 | (distance & 0x7FFFF) << 5  # b.ne
    program = executable((*START, *body, *LOOP_END, back, *EXIT))
    _, counts = counting.counted(lambda: emulate(program, "counting"))
    expected = {name: LOOPS * len(words) for name, words in WORDS.items()}
    # Around the loop: four moves, and the system call, which the tables list beside branches.
    expected["integer"] += LOOPS + 4
    expected["branch"] += LOOPS + 1
    assert counts == expected


@needs_counting
def test_counts_of_several_programs_are_added_and_none_are_zero() -> None:
    program = executable(EXIT)
    _, counts = counting.counted(lambda: [emulate(program, "counting") for _ in range(3)])
    assert (counts["integer"], counts["branch"], sum(counts.values())) == (6, 3, 9)
    assert not any(counting.counted(lambda: None)[1].values())


@needs_counting
def test_an_emulator_that_takes_no_plugin_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "INTERFACES", (1000,))
    counting._plugin.cache_clear()
    with pytest.raises(RuntimeError, match="takes no plugin"):
        counting._plugin()
    counting._plugin.cache_clear()


@pytest.mark.parametrize(
    "counts, cycles",
    [
        ({"dot": 8}, 4),
        ({"multiply": 8}, 8),
        ({"memory": 6, "dot": 4}, 3),
        ({"branch": 5, "integer": 6}, 5),
        ({"integer": 9}, 3),
        ({"dot": 2, "vector": 2, "memory": 4, "branch": 2, "integer": 6}, 4),
    ],
)
def test_the_busiest_pipeline_bounds_the_cycles(counts: dict[str, int], cycles: float) -> None:
    assert counting.least_cycles({**dict.fromkeys(counting.CLASSES, 0), **counts}) == cycles


def shape(label: str) -> tuple[Any, ...]:
    """Return a convolution's kind, channels, filters, window, stride and output size."""
    kind, *words = label.split()
    sizes = dict(word.split("=") for word in words)
    pads = [int(value) for value in sizes.get("pad", "0").split(",")]
    window, stride = (int(sizes["r"]), int(sizes["s"])), int(sizes["stride"])
    output = [
        (int(sizes[name]) + 2 * pad - extent) // stride + 1
        for name, extent, pad in zip("hw", window, (pads[0], pads[-1]), strict=True)
    ]
    return (kind, sizes["c"], sizes.get("k"), window, stride, *output)


def test_the_layers_of_table_1_are_layers_of_the_networks() -> None:
    """The paper chose them from these networks; its sizes include the padding."""
    convolutions = {shape(label) for label in networks.layers()}
    absent = [each.label for each in suite("unit16") if shape(each.label) not in convolutions]
    assert not absent


@pytest.mark.parametrize("name, suite_name", [("resnet-18", "resnet18"), ("resnet-50", "resnet50")])
def test_networks_have_the_layers_of_their_suites(name: str, suite_name: str) -> None:
    counts = {label: each[name] for label, each in networks.layers().items() if name in each}
    assert counts == {each.label: each.count for each in suite(suite_name)}


def test_depthwise_layers_are_those_of_the_suite() -> None:
    counts = {
        label: each["mobilenet-v1"]
        for label, each in networks.layers().items()
        if "mobilenet-v1" in each and label.startswith("depthwise")
    }
    assert counts == {each.label: each.count for each in suite("mobilenet")}


def test_networks_have_as_many_convolutions_as_published() -> None:
    """By the names of the networks, whose layers count the fully connected one, not shortcuts."""
    numbers = {
        name: sum(each.get(name, 0) for each in networks.layers().values())
        for name in paper.NETWORKS
    }
    # A shortcut in each stage of a residual network; none in the first of ResNet-18.
    residual = {"resnet-18": 3, "resnet-50": 4, "resnet-50_v1b": 4, "resnet-101": 4}
    for name, shortcuts in {**residual, "resnet-152": 4}.items():
        depth = int(re.sub(r"resnet-(\d+).*", r"\1", name))
        assert numbers[name] == depth - 1 + shortcuts
    assert numbers["mobilenet-v1"] == 27
    assert numbers["inception-v3"] == 94


@pytest.mark.slow
@pytest.mark.parametrize("name", paper.NETWORKS)
def test_the_table_of_layers_is_what_the_builders_build(name: str) -> None:
    pytest.importorskip("onnx")
    from tests.models.registry import MODELS

    built = networks.convolutions(MODELS[paper.NETWORKS[name]]())
    stored = {label: each[name] for label, each in networks.layers().items() if name in each}
    assert stored == dict(built)


# ------------------------------------------------------------------------------ figure 12


def arm_rows(names: dict[str, dict[str, int]]) -> list[dict[str, Any]]:
    """Return made-up rows: a layer has a hundred dot products, or eight hundred multiplications."""
    rows: list[dict[str, Any]] = []
    for number, label in enumerate(names):
        for code, (dot, multiply) in {"sdot": (100, 0), "neon": (0, 800)}.items():
            counts = {**dict.fromkeys(counting.CLASSES, 0), "dot": dot, "multiply": multiply}
            zero = dict.fromkeys(counting.CLASSES, 0)
            rows.append(
                {
                    "key": f"{number}/{code}",
                    "layer": label,
                    "backend": code,
                    "emulator": "qemu",
                    "macs": 1600,
                    "counts": {"packing": zero, "contraction": counts, "unpacking": zero},
                    "least_us": {"packing": 0.0, "contraction": dot / 2 + multiply, "unpacking": 1},
                }
            )
    return rows


def test_a_network_is_the_sum_of_its_layers_as_often_as_it_has_them() -> None:
    figure = script("unit2021/figure12")
    rows = arm_rows(networks.layers())
    sums = {(row["network"], row["code"]): row for row in figure.network_rows(rows)}
    assert sums.keys() == {(name, code) for name in paper.NETWORKS for code in figure.CODES}
    row = sums["resnet-50", "sdot"]
    assert (row["layers"], row["macs"], row["instructions"]) == (53, 53 * 1600, 5300)
    assert row["us"] == 53 * 50
    assert row["us_with_packing"] == 53 * 51
    text = "\n".join(figure.markdown(rows))
    assert text.startswith("# ")
    line = next(line for line in text.splitlines() if line.startswith("| resnet-50 |"))
    # Eight times the instructions, sixteen times the pipelines' time.
    assert "| 8.00 |" in line
    assert "| 16.00 |" in line
    assert "Rows of layers are missing" not in text


def test_a_network_with_a_missing_layer_has_no_sum() -> None:
    figure = script("unit2021/figure12")
    rows = arm_rows(networks.layers())
    stem = "depthwise n=1 c=64 h=112 w=112 r=3 s=3 pad=1 stride=2"
    rows.remove(next(row for row in rows if row["layer"] == stem))
    names = {row["network"] for row in figure.network_rows(rows) if row["code"] == "sdot"}
    assert names == paper.NETWORKS.keys() - {"mobilenet-v1"}
    assert "Rows of layers are missing for mobilenet-v1." in figure.markdown(rows)


@needs_counting
@pytest.mark.slow
def test_a_layer_is_executed_and_counted_by_both_codes(tmp_path: Path) -> None:
    figure = script("unit2021/figure12")
    figure.EXPERIMENT.run(figure.QUICK, None, tmp_path)
    rows = load(tmp_path)
    assert set(rows) == set(figure.QUICK)
    dot, neon = (rows[key]["counts"]["contraction"] for key in figure.QUICK)
    macs = rows[figure.QUICK[0]]["macs"]
    # An instruction sums 16 products; nothing else does, and padding adds some.
    assert macs / 16 <= dot["dot"] < 1.5 * macs / 16
    # Two multiplications of eight products stand for each.
    assert (neon["dot"], neon["multiply"]) == (0, 2 * dot["dot"])
    assert all(row["verified"] for row in rows.values())
    assert rows[figure.QUICK[0]]["layer"] in (tmp_path / "results.md").read_text()


def macs_inside(label: str) -> int:
    """Return the products of a convolution that are not with padding, counted one by one."""
    sizes = dict(word.split("=") for word in label.split()[1:])
    pads = [int(value) for value in sizes["pad"].split(",")]
    stride, total = int(sizes["stride"]), int(sizes["c"]) * int(sizes["k"])
    for name, window, pad in (("h", "r", pads[0]), ("w", "s", pads[-1])):
        size, extent = int(sizes[name]), int(sizes[window])
        places = range(-pad, size + pad - extent + 1, stride)
        total *= sum(0 <= place + step < size for place in places for step in range(extent))
    return total


def test_committed_counts_are_those_of_the_layers_of_the_table() -> None:
    figure = script("unit2021/figure12")
    rows = committed("unit2021/figure12")["rows"]
    assert rows
    for row in rows:
        number, code = row["key"].split("/")
        assert row["layer"] == figure.NAMES[int(number)]
        assert row["verified"]
        counts = row["counts"]["contraction"]
        assert row["least_us"]["contraction"] == figure.least_us(counts)
        if not row["layer"].startswith("depthwise"):
            # Each instruction of the code multiplies at most so many bytes.
            products = 16 * counts["dot"] if code == "sdot" else 8 * counts["multiply"]
            assert products >= macs_inside(row["layer"])


# ------------------------------------------------------------------------------ figures 10 and 13


def layer_row(key: str, **more: Any) -> dict[str, Any]:
    compared = {"timed": "primitive", "us": 12.0, "ours_us": 8.0, "ratio": 1.5, "noisy": False}
    compared |= {"ratio_with_packing": 1.2, "versions": {"onednn": "3.12.0"}}
    return {
        "key": key,
        "layer": f"layer {key}",
        "target": "avx512_vnni",
        "verified": True,
        "us": 9.0,
        "libraries": {"onednn": compared},
        **more,
    }


def test_a_step_is_compared_with_onednn_through_the_model() -> None:
    figure = script("unit2021/figure10")
    steps = {"parallel": 40.0, "unroll": 20.0, "model": 10.0, "tune": 8.0}
    row = layer_row("1", steps_us=steps, steps_noisy=False)
    assert figure.relative(row) == {"parallel": 0.3, "unroll": 0.6, "model": 1.2, "tune": 1.5}
    missing = {**row, "libraries": {"onednn": {"missing": "no torch"}}}
    assert figure.relative(missing) == {"parallel": 1, "unroll": 2, "model": 4, "tune": 5}
    text = "\n".join(figure.markdown([row]))
    assert "| 1 | `layer 1` | 40.0 | 20.0 | 10.0 | 8.0 | 0.30 | 0.60 | 1.20 | 1.50 |" in text
    assert "- + Unroll over Parallel: geometric mean 2.00" in text
    assert "without tuning: 0 of 1 layers" in text
    assert "not compared with oneDNN: no torch; rows 1" in "\n".join(figure.markdown([missing]))


def test_a_table_names_means_and_what_is_disturbed_missing_or_wrong() -> None:
    figure = script("unit2021/figure13")
    noisy = layer_row("1")
    noisy["libraries"]["onednn"] |= {"ratio": 6.0, "noisy": True}
    missing = layer_row("2", libraries={"onednn": {"missing": "no form"}}, target="avx_vnni")
    text = "\n".join(figure.markdown([layer_row("0"), noisy, {**missing, "verified": False}]))
    assert "| 0 | `layer 0` | 12.0 | 8.0 | 1.50 |" in text
    assert "| 6.00* |" in text
    assert "| 2 | `layer 2` | — | 9.0 | — |" in text
    assert "geometric mean 3.00, 1.50 to 6.00, 2 of 3 layers" in text
    assert "measured with `avx_vnni`: not avx512_vnni" in text
    assert "**wrong results** in rows 2" in text
    assert str(paper.FIGURE13_MEAN) in text


def test_rows_that_this_machine_cannot_measure_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(features, "cpu_features", frozenset)
    for name in ("unit2021/figure13", "unit2021/figure10", "amos2022/figure8a"):
        experiment: Experiment = script(name).EXPERIMENT
        experiment.run(experiment.keys[:1], 1, tmp_path)
        assert not load(tmp_path)
        message = capsys.readouterr().err
        assert f"{experiment.keys[0]}: left out, missing: an x86 processor" in message


def test_unrolling_is_limited_along_the_image() -> None:
    from cpembed.driver.named import workload
    from cpembed.driver.options import SolveOptions
    from cpembed.driver.solve import solve
    from cpembed.targets.registry import open_target

    figure = script("unit2021/figure10")
    spec = hardware_spec("avx512_vnni")
    computation = workload(["unit16:1", "layout=NHWC"], target=spec)
    target = open_target(spec)
    candidate = solve(computation, spec, SolveOptions(top=1)).embeddings[0].candidate
    space = target.space(target.lower(candidate.program))
    knobs = figure.unrolled(space)
    # Nine rows of a 3 x 3 window leave seven pixels, fewer than the limit.
    assert list(knobs.register_tiles.values()) == [7]
    assert set(knobs.register_tiles) <= {loop.origin for loop in space.loops[0]}


@pytest.mark.slow
def test_the_steps_of_a_layer_are_measured(tmp_path: Path) -> None:
    from experiments.cpu import byte_target

    figure = script("unit2021/figure10")
    require_features(hardware_spec(byte_target() or "avx512_vnni"))
    figure.EXPERIMENT.run(["2"], 2, tmp_path)
    row = load(tmp_path)["2"]
    assert row["steps_us"].keys() == figure.STEPS.keys()
    assert all(us > 0 for us in row["steps_us"].values())
    assert "schedules that tuning measures" in (tmp_path / "results.md").read_text()


# ------------------------------------------------------------------------------ figure 8


def network_row(key: str) -> dict[str, Any]:
    times = {name: {"median": ms / 1e3} for name, ms in (("cpembed", 2), ("openvino", 3))}
    return {
        "key": key,
        "missing": {"torch": "torchao is not installed"},
        "rounds": 9,
        "of": 11,
        "versions": {"cpembed": "built", "openvino": "2026.4"},
        "seconds": times,
        "over": "cpembed",
        "ratios": {"openvino": 1.5},
        "difference": {"cpembed": 0.01},
    }


def test_a_network_is_stored_beside_its_origin_and_shown_with_what_is_missing() -> None:
    figure = script("unit2021/figure8")
    row = {**figure.figures(network_row("resnet-18"), 11), "seconds": 40.0, "versions": {}}
    text = "\n".join(figure.markdown([row]))
    assert text.startswith("# ")
    assert "\n- the paper: " in text
    assert "| resnet-18 | 2 | 3 | 1.50 | 1.0e-02 | 9 of 11 |" in text
    assert "openvino over ours: geometric mean 1.50" in text
    assert "torch is left out: torchao is not installed; resnet-18" in text
    assert "1.3 and over TVM" in text


def test_an_experiment_without_trials_states_its_origins(tmp_path: Path) -> None:
    experiment = Experiment(
        folder=tmp_path,
        description="Squares",
        keys=("1", "2"),
        compute=lambda key: {"square": int(key) ** 2},
        markdown=lambda rows: [f"{row['key']} {row['square']}" for row in rows],
        trials=None,
    )
    experiment.run(["2"], None, tmp_path)
    text = (tmp_path / "results.md").read_text()
    assert text.startswith("2 4\n\n1 of 2 rows.")
    assert "1 rows in 0 s\n" in text
    assert math.isclose(read_document(tmp_path / "results.json")["rows"][0]["square"], 4)


def test_earlier_means_are_those_of_the_benchmarks_page() -> None:
    page = (earlier.BENCHMARKS / "onednn.md").read_text(encoding="utf-8")
    for part in earlier.onednn_parts("unit_conv3d", stored_parts(earlier.BENCHMARKS).values()):
        summary = page.split(f"## {cpu_of(part)}\n", 1)[1]
        line = next(line for line in summary.splitlines() if f"| {part['part']} |" in line)
        mean = line.split("|")[4].split()[0]
        assert earlier.onednn_table([part], 0)[-1] == f"|  | geometric mean | {mean} |"


def test_earlier_networks_have_the_names_of_the_paper() -> None:
    times = {"cpembed": {"median": 0.002}}
    row = {"model": "resnet50_int8", "threads": 2, "seconds": times, "ratios": {"openvino": 1.5}}
    lines = earlier.network_tables({"rows": [row, {**row, "model": "bert_base_int8"}]})
    assert "| resnet-50_v1b | 2 | 1.50 |" in lines
    assert not any("bert" in line for line in lines)
