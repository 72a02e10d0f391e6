"""Every operator against an independent implementation with loops, and its checks of sizes."""

import numpy as np
import pytest

from cpembed.driver.solve import solve
from cpembed.errors import WorkloadError
from cpembed.frontends.products import Window, transposed_convolution
from cpembed.ir.reference import random_inputs, reference
from cpembed.workloads.convolutions import conv1d, conv2d, conv3d, depthwise
from cpembed.workloads.einsum import batched_gemm, gemm
from cpembed.workloads.naming import parse_workload
from cpembed.workloads.operators import OPERATORS
from tests.unit.workloads.definitions import CONV_CASES, check, convolution, per_axis


@pytest.mark.parametrize("case", CONV_CASES, ids=str)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_conv2d(case, layout):
    computation = conv2d(n=2, c=3, h=7, w=6, k=4, r=3, s=2, layout=layout, **case)
    assert "".join(computation.extents) == "nkpqcrs"

    def expected(image, weights):
        if layout == "NCHW":
            return convolution(image, weights, *per_axis(case, 2))
        image, weights = image.transpose(0, 3, 1, 2), weights.transpose(0, 3, 1, 2)
        return convolution(image, weights, *per_axis(case, 2)).transpose(0, 2, 3, 1)

    check(computation, expected)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_grouped_conv2d(layout):
    computation = conv2d(
        n=2, c=2, h=5, w=6, k=3, r=3, s=2, pad=(1, 0), stride=(1, 2), groups=3, layout=layout
    )
    assert "".join(computation.extents) == "ngkpqcrs"

    def expected(image, weights):
        if layout == "NHWC":
            image, weights = image.transpose(0, 3, 4, 1, 2), weights.transpose(0, 1, 4, 2, 3)
        groups = [convolution(image[:, g], weights[g], (1, 0), (1, 2), (1, 1)) for g in range(3)]
        result = np.stack(groups, axis=1)
        return result if layout == "NCHW" else result.transpose(0, 3, 4, 1, 2)

    check(computation, expected)


@pytest.mark.parametrize("case", [{}, {"pad": 2, "stride": 2}, {"dilation": 3, "pad": 1}], ids=str)
def test_conv1d(case):
    computation = conv1d(n=2, c=3, w=9, k=4, s=3, **case)
    assert "".join(computation.extents) == "nkqcs"
    check(computation, lambda image, weights: convolution(image, weights, *per_axis(case, 1)))


@pytest.mark.parametrize("case", [{}, {"pad": (1, 0, 1), "stride": (1, 2, 1)}], ids=str)
def test_conv3d(case):
    computation = conv3d(n=1, c=2, d=4, h=5, w=4, k=3, t=2, r=3, s=2, **case)
    assert "".join(computation.extents) == "nkopqctrs"
    check(computation, lambda image, weights: convolution(image, weights, *per_axis(case, 3)))


@pytest.mark.parametrize("case", CONV_CASES, ids=str)
def test_depthwise(case):
    computation = depthwise(n=2, c=3, h=7, w=6, r=3, s=2, **case)
    assert "".join(computation.extents) == "ncpqrs"

    def expected(image, weights):
        channels = [
            convolution(image[:, [c]], weights[[c]][:, None], *per_axis(case, 2))
            for c in range(len(weights))
        ]
        return np.concatenate(channels, axis=1)

    check(computation, expected)


LAST = {
    "conv1d": (conv1d, {"n": 2, "c": 3, "w": 9, "k": 4, "s": 3, "pad": 1}, "NWC", True),
    "conv3d": (
        conv3d,
        {"n": 1, "c": 2, "d": 4, "h": 5, "w": 4, "k": 3, "t": 2, "r": 3, "s": 2, "stride": 2},
        "NDHWC",
        True,
    ),
    "depthwise": (depthwise, {"n": 2, "c": 3, "h": 7, "w": 6, "r": 3, "s": 2}, "NHWC", False),
}


@pytest.mark.parametrize("name", LAST)
def test_channels_last_is_the_same_operator_on_other_layouts(name):
    build, sizes, layout, weights_too = LAST[name]
    first, last = build(**sizes), build(**sizes, layout=layout)
    assert list(first.extents) == list(last.extents)
    inputs = random_inputs(first, 5)
    # Views, not in row-major order.
    moved = {"I": np.moveaxis(inputs["I"], 1, -1), "W": inputs["W"]}
    if weights_too:
        moved["W"] = np.moveaxis(inputs["W"], 1, -1)
    expected = np.moveaxis(reference(first, inputs), 1, -1)
    assert np.array_equal(reference(last, moved), expected)
    with pytest.raises(WorkloadError, match="layout=HCNW is none of"):
        build(**sizes, layout="HCNW")


BLOCKS = [
    (conv1d, {"n": 2, "c": 6, "w": 9, "k": 4, "s": 3, "pad": 1}, "NCW2c", 1),
    (conv2d, {"n": 2, "c": 8, "h": 7, "w": 6, "k": 12, "r": 3, "s": 2, "stride": 2}, "NCHW4c", 2),
    (
        conv2d,
        {"n": 1, "c": 4, "h": 5, "w": 6, "k": 2, "r": 3, "s": 2, "pad": (1, 0), "groups": 3},
        "NCHW2c",
        2,
    ),
    (
        conv3d,
        {"n": 1, "c": 6, "d": 4, "h": 5, "w": 4, "k": 3, "t": 2, "r": 3, "s": 2},
        "NCDHW3c",
        3,
    ),
    (depthwise, {"n": 2, "c": 6, "h": 7, "w": 6, "r": 3, "s": 2, "pad": 1}, "NCHW3c", 2),
    (depthwise, {"n": 1, "c": 6, "h": 5, "w": 5, "r": 3, "s": 3, "m": 2}, "NCHW3c", 2),
]


@pytest.mark.parametrize("build, sizes, layout, axes", BLOCKS)
def test_blocks_of_channels_are_the_same_operator(build, sizes, layout, axes):
    first, blocks = build(**sizes), build(**sizes, layout=layout)
    inputs = random_inputs(first, 5)

    def in_blocks(array, operand):
        """Blocks of channels before the image's axes, the channels of one after them."""
        image = array.shape[-axes:]
        start = next(p for p in range(2, 4) if operand.shape[p : p + axes] == image)
        inside = operand.shape[start + axes :]
        apart = array.reshape(array.shape[0], -1, int(np.prod(inside)), *image)
        return np.moveaxis(apart, 2, -1).reshape(operand.shape)

    # Weights lie in memory as they are without blocks.
    weights = inputs["W"].reshape(blocks.operand("W").shape)
    moved = {"I": in_blocks(inputs["I"], blocks.operand("I")), "W": weights}
    expected = in_blocks(reference(first, inputs), blocks.output)
    assert np.array_equal(reference(blocks, moved), expected)


def test_blocks_are_whole():
    with pytest.raises(WorkloadError, match="c=3 is no multiple of the 16 channels of a block"):
        conv2d(n=1, c=3, h=8, w=8, k=16, r=3, s=3, layout="NCHW16c")
    with pytest.raises(WorkloadError, match="k=24 is no multiple of the 16 channels of a block"):
        conv2d(n=1, c=32, h=8, w=8, k=24, r=3, s=3, layout="NCHW16c")
    for strange in ("NCHWc", "NCHW0c", "NHW16cC", "NCHW16C", "NCHW-2c"):
        with pytest.raises(WorkloadError, match=f"layout={strange} is none of"):
            conv2d(n=1, c=32, h=8, w=8, k=32, r=3, s=3, layout=strange)


def test_depthwise_channels_last_with_a_multiplier():
    sizes = {"n": 1, "c": 3, "h": 5, "w": 5, "r": 3, "s": 3, "m": 2, "pad": 1}
    first, last = depthwise(**sizes), depthwise(**sizes, layout="NHWC")
    inputs = random_inputs(first, 5)
    moved = {"I": np.moveaxis(inputs["I"], 1, -1), "W": inputs["W"]}
    expected = reference(first, inputs).transpose(0, 3, 4, 1, 2)
    assert np.array_equal(reference(last, moved), expected)


def test_depthwise_with_a_multiplier():
    computation = depthwise(n=1, c=3, h=5, w=5, r=3, s=3, m=2, pad=1)
    assert "".join(computation.extents) == "ncmpqrs"
    assert computation.output.shape == (1, 3, 2, 5, 5)

    def expected(image, weights):
        channels = [
            convolution(image[:, [c]], weights[c][:, None], (1, 1), (1, 1), (1, 1))
            for c in range(3)
        ]
        return np.stack(channels, axis=1)

    check(computation, expected)


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_gemm(trans_a, trans_b):
    computation = gemm(m=4, n=5, k=6, trans_a=trans_a, trans_b=trans_b)
    assert "".join(computation.extents) == "mnk"
    check(computation, lambda a, b: (a.T if trans_a else a) @ (b.T if trans_b else b))


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_batched_gemm(trans_a, trans_b):
    computation = batched_gemm(b=3, m=4, n=5, k=6, trans_a=trans_a, trans_b=trans_b)
    assert "".join(computation.extents) == "bmnk"
    assert computation.operand("B").varies
    check(
        computation,
        lambda a, b: (
            (a.transpose(0, 2, 1) if trans_a else a) @ (b.transpose(0, 2, 1) if trans_b else b)
        ),
    )


def test_only_a_padded_image_is_zero_outside():
    sizes = {"n": 1, "c": 1, "h": 4, "w": 4, "k": 1, "r": 3, "s": 3}
    assert not conv2d(**sizes).operand("I").zero_outside
    padded = conv2d(**sizes, pad=(0, 1))
    assert padded.operand("I").zero_outside
    assert padded.operand("I").shape == (1, 1, 4, 4)
    assert not padded.operand("W").zero_outside


def test_dtypes_of_operands():
    def types(dtype):
        return [o.dtype for o in gemm(m=1, n=1, k=1, dtype=dtype).operands]

    assert types(None) == ["int8", "int8", "int32"]
    assert types("uint8,int8") == ["uint8", "int8", "int32"]
    assert types(("bfloat16",)) == ["bfloat16", "bfloat16", "float32"]
    assert types("int8,int8,int16") == ["int8", "int8", "int16"]


@pytest.mark.parametrize("family", OPERATORS.values(), ids=lambda f: f.name)
def test_every_family_takes_its_parameters_as_text(family):
    assert OPERATORS[family.name] is family
    assert all(p.meaning for p in family.parameters)
    smallest = {p.name: "1" for p in family.required}
    defaults = {p.name: p.default for p in family.optional if p.default is not None}
    computation = family.workload({**smallest, **defaults})
    assert computation.name == family.name
    assert computation == family.workload(dict.fromkeys(smallest, 1))
    for name in smallest:
        rest = {other: "1" for other in smallest if other != name}
        with pytest.raises(
            WorkloadError, match=f"{family.name}: missing {name}; {family.name} takes"
        ):
            family.workload(rest)
        for value, what in (("0", "less than 1"), ("-2", "less than 1"), ("1.5", "not an integer")):
            with pytest.raises(WorkloadError, match=f"{name}={value} is {what}; .* takes"):
                family.workload({**smallest, name: value})
        with pytest.raises(WorkloadError, match=f"{name}=True is not an integer"):
            family.workload({**smallest, name: True})
    with pytest.raises(WorkloadError, match=r"unknown parameter 'zz'; .* takes"):
        family.workload({**smallest, "zz": "1"})


@pytest.mark.parametrize(
    "operator, values, message",
    [
        ("gemm", {"trans_a": "yes"}, "trans_a=yes is neither 0 nor 1"),
        ("gemm", {"dtype": "int5"}, "gemm: unknown dtype 'int5'"),
        ("conv2d", {"pad": "1,2,3"}, r"pad has 3 numbers; give one, or one per image axis \(2\)"),
        ("conv2d", {"pad": "-1"}, "pad=-1 is less than 0"),
        ("conv2d", {"stride": "1,0"}, "stride=0 is less than 1"),
        ("conv2d", {"dilation": "x"}, "dilation=x is not an integer"),
        ("conv2d", {"layout": "CHWN"}, "layout=CHWN is none of NCHW NHWC"),
        ("conv2d", {"groups": "0"}, "groups=0 is less than 1"),
        ("conv2d", {"r": "3"}, "output axis p has extent -1 at h=1 r=3 pad=0 stride=1 dilation=1"),
        ("conv3d", {"t": "2"}, "output axis o has extent 0 at d=1 t=2"),
        ("conv1d", {"s": "2", "pad": "1,1"}, "pad has 2 numbers"),
        ("depthwise", {"m": "0"}, "m=0 is less than 1"),
        ("gemv", {"trans_a": "2"}, "trans_a=2 is neither 0 nor 1"),
        ("row_sum", {"dtype": "int8,int8,int8"}, r"give one, 1 \(the inputs\) or 2"),
        ("mttkrp", {"dtype": "int8,int8"}, r"give one, 3 \(the inputs\) or 4"),
        ("transposed_conv2d", {"pad": "1"}, "output axis p has extent -1 at h=1 r=1 pad=1"),
        ("transposed_conv2d", {"output_pad": "1"}, "output_pad=1 is not below stride=1 or dil"),
        ("transposed_conv2d", {"output_pad": "0,-1"}, "output_pad=-1 is less than 0"),
        ("batched_conv2d", {"s": "2"}, "output axis q has extent 0 at w=1 s=2"),
        ("capsule_conv2d", {"u": "0"}, "u=0 is less than 1"),
    ],
)
def test_wrong_values_are_answered_in_one_line(operator, values, message):
    family = OPERATORS[operator]
    with pytest.raises(WorkloadError, match=message) as caught:
        family.workload({**{p.name: "1" for p in family.required}, **values})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", range(12))
def test_useful_products_of_a_transposed_convolution_are_those_with_pixels(seed: int) -> None:
    """Counted as its definition scatters: each pixel adds its multiple of the filter."""
    generator = np.random.default_rng(seed)
    h, w, r, s = (int(x) for x in generator.integers(1, 6, 4))
    stride, dilation = generator.integers(1, 4, 2), generator.integers(1, 3, 2)
    most = [int(d) * (taps - 1) for d, taps in zip(dilation, (r, s), strict=True)]
    pad = [int(generator.integers(0, 1 + reach // 2)) for reach in most]
    text = f"transposed_conv2d n=2 c=3 k=4 h={h} w={w} r={r} s={s}"
    for name, (a, b) in (("stride", stride), ("dilation", dilation), ("pad", pad)):
        text += f" {name}={a},{b}"
    try:
        computation = parse_workload(text.split())
    except WorkloadError:
        pytest.skip("the output has no elements")
    count = 2 * 3 * 4
    for size, taps, out, k in ((h, r, "p", 0), (w, s, "q", 1)):
        count *= sum(
            0 <= stride[k] * pixel + dilation[k] * tap - pad[k] < computation.extents[out]
            for pixel in range(size)
            for tap in range(taps)
        )
    assert computation.useful_macs == count
    window = Window(
        taps=(r, s), strides=[*map(int, stride)], dilations=[*map(int, dilation)], before=pad,
        after=pad,
    )  # fmt: skip
    front_end = transposed_convolution((2, 3, h, w), (3, 4, r, s), window).computation
    assert front_end.useful_macs == count


def test_padding_of_an_ordinary_convolution_counts() -> None:
    padded = parse_workload(["conv2d", "n=1", "c=4", "h=6", "w=6", "k=5", "r=3", "s=3", "pad=1"])
    assert padded.useful_macs == padded.macs


def test_inserted_zeros_are_no_use_of_an_instruction() -> None:
    found = solve(
        parse_workload(
            [
                *[
                    "transposed_conv2d",
                    "n=1",
                    "c=16",
                    "h=8",
                    "w=8",
                    "k=32",
                    "r=3",
                    "s=3",
                    "pad=1",
                    "stride=2",
                ],
                "dtype=uint8,int8,int32",
            ]
        ),
        "avx512_vnni",
        top=1,
    )
    costs = found.embeddings[0].overheads
    # Of 15 * 3 pairs of a row and a tap, 22 have a pixel.
    assert costs.utilisation == pytest.approx((22 / 45) ** 2 * costs.occupancy)
    assert found.utilisation == costs.utilisation
