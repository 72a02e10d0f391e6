"""The suites' tables: their layers are workloads, and those that their sources list."""

import math
from collections import Counter

import pytest

from cpembed.errors import WorkloadError
from cpembed.workloads.naming import parse_workload
from cpembed.workloads.suites import SUITES, layer, suite

LAYERS = {
    "deepbench": 108,
    "amos": 124,
    "unit16": 16,
    "unit_conv3d": 11,
    "resnet18": 11,
    "resnet50": 20,
    "odd": 14,
    "mobilenet": 9,
    "attention": 10,
    "gemm": 88,
}


def test_every_suite_has_its_layers():
    assert {name: len(suite(name)) for name in SUITES} == LAYERS


@pytest.mark.parametrize("name", SUITES)
def test_every_layer_is_the_workload_that_its_label_names(name):
    layers = suite(name)
    assert [layer.index for layer in layers] == list(range(len(layers)))
    for one in layers:
        assert one == layer(name, one.index)
        assert one.suite == name
        assert one.application
        computation = one.workload()
        assert computation.name == one.operator.name == one.label.split()[0]
        assert computation == parse_workload([one.label])
        assert computation == parse_workload([f"{name}:{one.index}"])


def test_dtypes_and_layout_of_a_layer():
    nhwc = parse_workload(["deepbench:5", "layout=NHWC"])
    assert nhwc == suite("deepbench")[5].workload(layout="NHWC")
    assert nhwc != suite("deepbench")[5].workload()
    given = suite("gemm")[0].workload(("uint8", "int8", "int32"))
    assert [operand.dtype for operand in given.operands] == ["uint8", "int8", "int32"]
    assert suite("gemm")[0].workload("float32").output.dtype == "float32"
    blocks = parse_workload(["deepbench:5", "layout=NCHW16c"])
    assert blocks == suite("deepbench")[5].workload(layout="NCHW16c")
    assert blocks.operand("I").shape[-1] == 16
    # Of planes, by the operator's name for it or by that of images.
    planes = suite("unit_conv3d")[3]
    assert planes.workload(layout="NCHW32c") == planes.workload(layout="NCDHW32c")
    assert planes.layout_settings("NCHW32c") == {"layout": "NCDHW32c"}
    # NCHW is also the layout of operators that have no choice.
    assert suite("gemm")[0].workload(layout="NCHW") == suite("gemm")[0].workload()
    with pytest.raises(WorkloadError, match="gemm:0: gemm has no layout NHWC"):
        suite("gemm")[0].workload(layout="NHWC")


def test_deepbench():
    layers = suite("deepbench")
    # Layers of DeepBench's own source: DeepSpeech's first convolution and the ResNet stem.
    assert layers[0].application == "DeepSpeech"
    assert layers[0].label == "conv2d n=1 c=1 h=161 w=700 k=32 r=5 s=20 pad=0 stride=2"
    # The only layer with unequal strides: keyword spotting steps further along the columns.
    assert [x.index for x in layers if "," in x.parameters["stride"]] == [41]
    assert layers[41].parameters["stride"] == "2,8"
    stem = "conv2d n=1 c=3 h=224 w=224 k=64 r=7 s=7 pad=3 stride=2"
    assert any(x.label == stem for x in layers)


def test_amos_has_its_fifteen_operators():
    layers = suite("amos")
    assert Counter(x.application for x in layers) == {
        "GMV": 5, "GMM": 5, "C1D": 8, "C2D": 12, "C3D": 11, "T2D": 11, "GRP": 4, "DIL": 6,
        "DEP": 7, "CAP": 12, "BCV": 4, "GFC": 10, "MEN": 12, "VAR": 12, "SCN": 5,
    }  # fmt: skip

    def first(application):
        return next(x for x in layers if x.application == application).workload()

    # The weights of a group, a multiplier, a capsule, an image: dimensions of their own.
    assert first("GRP").operand("W").shape == (3, 8, 1, 3, 3)
    assert [x.workload().operand("W").shape for x in layers if x.application == "DEP"][1:3] == [
        (16, 6, 3, 3),
        (24, 6, 3, 3),
    ]
    assert first("CAP").operand("W").shape == (64, 3, 7, 7, 8)
    assert first("BCV").operand("W").shape == (1, 64, 64, 3, 3)
    assert first("GFC").operand("W").shape == (24, 9, 1)
    assert first("MEN").operand("A").shape == (3, 224 * 224)
    # Vectors are matrices of one column, so that a matrix unit takes them.
    assert {first(name).output.shape[1:] for name in ("GMV", "MEN", "VAR")} == {(1,)}
    # The gradient of the first convolution of AMOS: 64 channels go in, 3 come out.
    assert first("T2D").output.shape == (1, 3, 774, 774)
    # Every dilated layer is 1x1.
    assert {x.parameters["r"] for x in layers if x.application == "DIL"} == {"1"}


def test_unit16_gives_the_outputs_of_the_table():
    # Row OHW of table I.
    outputs = [17, 7, 7, 71, 14, 14, 14, 14, 14, 14, 14, 14, 14, 27, 28, 14]
    shapes = [x.workload().output.shape for x in suite("unit16")]
    assert [shape[2] for shape in shapes] == outputs
    assert [shape[3] for shape in shapes] == outputs
    assert not any(x.workload().operand("I").zero_outside for x in suite("unit16"))


def test_unit_conv3d_has_the_output_rows_of_resnet18():
    rows = {x.workload().output.shape[3] for x in suite("unit_conv3d")}
    assert rows == {112, 56, 28, 14, 7}


def test_resnet18_is_the_whole_network():
    layers = suite("resnet18")
    assert sum(x.count for x in layers) == 20
    assert len({x.label for x in layers}) == len(layers)
    # 1.8e9 multiply-adds (He et al. 2016, table 1), of which the last layer has half a million.
    assert 1.75e9 < sum(x.count * x.workload().macs for x in layers) < 1.85e9
    # The 11,689,512 parameters without the last layer (513,000) and the norms (9,600).
    weights = sum(x.count * math.prod(x.workload().operand("W").shape) for x in layers)
    assert weights == 11_166_912


def test_resnet50_is_the_whole_network():
    layers = suite("resnet50")
    assert sum(x.count for x in layers) == 53
    assert len({x.label for x in layers}) == len(layers)
    # 3.8e9 multiply-adds (He et al. 2015, table 1), the last fully connected layer included.
    total = sum(x.count * x.workload().macs for x in layers)
    assert total == 3_855_925_248
    # Weights of all convolutions: the 25.6 million of the network without its last layer and norms.
    weights = sum(x.count * math.prod(x.workload().operand("W").shape) for x in layers)
    assert weights == 23_454_912


def test_mobilenet_has_its_thirteen_depthwise_layers():
    layers = suite("mobilenet")
    assert sum(x.count for x in layers) == 13
    # 17.4 million: 3.06 % of the 568.7 million multiply-adds (Howard et al. 2017, table 2).
    total = sum(x.count * x.workload().macs for x in layers)
    assert 0.0300 < total / 568_740_352 < 0.0312


def test_attention_has_both_products_of_each_size():
    for scores, sums in zip(*(iter(suite("attention")),) * 2, strict=True):
        assert scores.application == sums.application
        first, second = scores.workload(), sums.workload()
        assert first.macs == second.macs
        # Scores are the left factor of the sums of values.
        assert first.output.shape == second.operand("A").shape
        assert first.operand("B").varies
        assert second.operand("B").varies


def test_gemm_has_both_lists():
    layers = suite("gemm")
    assert Counter(x.application for x in layers) == {"server": 75, "device": 13}
    assert layers[0].label == layers[75].label == "gemm m=5124 n=700 k=2048"
    assert layers[-1].label == "gemm m=4224 n=1 k=128"
