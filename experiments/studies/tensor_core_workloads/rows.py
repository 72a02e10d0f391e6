"""Rows of the study: workloads of suites and random ones, their kernels and small versions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from cpembed.codegen.epilogue_request import EpilogueRequest
from cpembed.driver.epilogue_language import parse_expression
from cpembed.driver.named import workload
from cpembed.errors import WorkloadError
from cpembed.workloads.suites import suite
from experiments.gpu_figures import with_products

MACHINES = {"a100": "sm_80", "h100": "sm_90a", "rtx_5090": "sm_120a"}
"""GPUs whose figures choose the schedules, and the architecture that nvcc compiles for."""

SUITES = {
    "unit16": 1,
    "unit_conv3d": 1,
    "resnet18": 1,
    "resnet50": 1,
    "amos": 3,
    "deepbench": 6,
    "gemm": 8,
    "attention": 8,
}
"""Suites, and the step among their layers that have products: 121 in all."""

RANDOM = 120
"""Number of random workloads."""

TYPES = ("s8", "bf16", "f8", "f16_f16")
"""Element types beside float16 with sums of float32, one of them a row."""

EPILOGUES = {
    "bias, relu": EpilogueRequest("float16", bias=True, relu=True),
    "chain": EpilogueRequest("float16", chain=parse_expression("relu6(x) + residual")),
    "bias, scale": EpilogueRequest("float32", bias=True, scale=True),
}
"""Epilogues of the kernels of other types, one of them a row."""


@dataclass(frozen=True)
class Variant:
    """A kernel of a row: its instruction, the GPU that it is for, and the name of an epilogue."""

    target: str
    machine: str
    epilogue: str | None = None

    @property
    def name(self) -> str:
        return f"{self.target} {self.machine}"


def keys() -> Iterator[str]:
    """Yield the rows: suite and number of a layer, then the random ones."""
    for name, step in SUITES.items():
        layers = [layer for layer in suite(name) if has_product(layer.application)]
        yield from (f"{name}:{layer.index}" for layer in layers[::step])
    yield from (f"random:{number}" for number in range(RANDOM))


def has_product(application: str) -> bool:
    """True unless an operator of AMOS only adds: means, variances and scans."""
    return application not in ("MEN", "VAR", "SCN")


def words_of(key: str) -> str:
    """Return the words of a row's workload, channels last where there is such a layout."""
    name, _, number = key.partition(":")
    if name == "random":
        return random_words(int(number))
    return with_products(suite(name)[int(number)].label)


def variants(key: str, number: int) -> list[Variant]:
    """Return the kernels of a row: float16 of both instructions, and another type of one of them.

    Parameters
    ----------
    key : str
        Key of the row.
    number : int
        Its place among the rows, by which types, instructions, GPUs and epilogues take turns.
    """
    machines, dtype = list(MACHINES), TYPES[number % len(TYPES)]
    turn = number // len(TYPES)
    # 8-bit floats have no instruction of their own before sm_89 and on sm_90.
    machine = "rtx_5090" if dtype == "f8" else machines[turn % len(machines)]
    epilogue = list(EPILOGUES)[number % len(EPILOGUES)]
    kind, gpu = ("wgmma", "h100") if turn % 2 else ("mma", machine)
    typed = Variant(f"{kind}_{dtype}", gpu, epilogue)
    # Suites are for all GPUs, and random rows for one of them.
    some = machines[number % len(machines) :][:1] if key.startswith("random:") else machines
    return [*(Variant("mma_f16", name) for name in some), Variant("wgmma_f16", "h100"), typed]


# -------------------------------------------------------------------------------- small versions

SMALL = {
    "h": 11,
    "w": 13,
    "d": 4,
    "c": 24,
    "k": 72,
    "m": 150,
    "n": 72,
    "b": 2,
    "l": 12,
    "u": 4,
    "v": 4,
}
"""Greatest sizes of the small versions; windows, strides and paddings stay.

They make several blocks of most schedules, with a tail along rows, columns and depth.
"""


def small_words(words: str) -> str:
    """Return a workload of the same operator and windows, of few elements.

    >>> small_words("conv2d n=1 c=64 h=56 w=56 k=64 r=3 s=3 pad=1 layout=NHWC")
    'conv2d n=1 c=24 h=11 w=13 k=64 r=3 s=3 pad=1 layout=NHWC'
    """
    operator, *settings = words.split()
    sizes = dict(setting.split("=") for setting in settings)
    most = SMALL
    if "d" in sizes:
        most = {**SMALL, "h": 6, "w": 7}
    if "gem" in operator:
        # A matrix product is deep where a convolution has channels.
        most = {**SMALL, "k": 152}
    elif sizes.get("n", "").isdigit():
        # Images.
        most = {**most, "n": 2}
    for name, value in sizes.items():
        if name in most and value.isdigit():
            # An image is at least as large as its window.
            window = {"h": "r", "w": "s", "d": "t"}.get(name, "")
            least = int(sizes[window]) if sizes.get(window, "").isdigit() else 1
            sizes[name] = str(min(int(value), max(most[name], least + 2)))
    if sizes.get("groups", "").isdigit():
        sizes["groups"] = str(min(int(sizes["groups"]), 3))
    return " ".join([operator, *(f"{name}={value}" for name, value in sizes.items())])


# ----------------------------------------------------------------------------- random workloads

CHANNELS = (1, 3, 8, 16, 17, 24, 32, 33, 48, 64, 72, 96, 130)
EXTENTS = (1, 2, 5, 7, 8, 11, 16, 23)
LENGTHS = (1, 2, 7, 8, 16, 31, 40, 64, 72, 100, 128, 129, 200)
MOST_PRODUCTS = 20_000_000


def random_words(number: int) -> str:
    """Return the words of a random workload of a kind and of sizes that the suites do not have."""
    rng = random.Random(number)
    kinds = (_product, _products, _convolution, _transposed, _gradient, _of_other_kinds)
    while True:
        words = kinds[number % len(kinds)](rng)
        try:
            if workload(words).macs <= MOST_PRODUCTS:
                return words
        # A window may be larger than the image, or no tap reach the rows of a phase.
        except WorkloadError:
            continue


def _words(operator: str, **sizes: object) -> str:
    return " ".join([operator, *(f"{name}={value}" for name, value in sizes.items())])


def _product(rng: random.Random) -> str:
    sizes = {name: rng.choice(LENGTHS) for name in "mnk"}
    return _words("gemm", **sizes, trans_a=rng.randint(0, 1), trans_b=rng.randint(0, 1))


def _products(rng: random.Random) -> str:
    sizes = {name: rng.choice(LENGTHS) for name in "mnk"}
    transposes = {"trans_a": rng.randint(0, 1), "trans_b": rng.randint(0, 1)}
    return _words("batched_gemm", b=rng.choice((1, 2, 5)), **sizes, **transposes)


def _image(rng: random.Random, axes: str, windows: str) -> dict[str, int]:
    """Return sizes of an image and of a window that fits it, with stride, dilation and padding."""
    dilation, pad = rng.choice((1, 1, 1, 2)), rng.choice((0, 1, 1, 2))
    taps = {name: rng.choice((1, 2, 3, 3, 5)) for name in windows}
    sizes = {
        axis: max(rng.choice(EXTENTS), (taps[window] - 1) * dilation + 1)
        for axis, window in zip(axes, windows, strict=True)
    }
    if len(axes) == 3:
        taps = {name: min(taps[name], 3) for name in taps}
    return {**sizes, **taps, "pad": pad, "stride": rng.choice((1, 1, 2, 3)), "dilation": dilation}


def _convolution(rng: random.Random) -> str:
    axes, windows, last = rng.choice(
        (("w", "s", "NWC"), ("hw", "rs", "NHWC"), ("hw", "rs", "NHWC"), ("dhw", "trs", "NDHWC"))
    )
    groups = rng.choice((1, 1, 2, 4)) if len(axes) == 2 else 1
    channels = {name: rng.choice(CHANNELS) * groups for name in "ck"}
    first = "NC" + last[1:-1]
    layout = {"layout": rng.choice((last, last, first))}
    sizes = {"n": rng.choice((1, 1, 2)), **channels, **_image(rng, axes, windows)}
    sizes |= {"groups": groups} if groups > 1 else {}
    return _words(f"conv{len(axes)}d", **sizes, **layout)


def _transposed(rng: random.Random) -> str:
    sizes = {"n": rng.choice((1, 2)), **{name: rng.choice(CHANNELS) for name in "ck"}}
    image = _image(rng, "hw", "rs")
    image["pad"] = min(image["pad"], image["r"] - 1, image["s"] - 1)
    del image["dilation"]
    return _words("transposed_conv2d", **sizes, **image)


def _gradient(rng: random.Random) -> str:
    sizes = {"n": rng.choice((1, 2)), **{name: rng.choice(CHANNELS) for name in "ck"}}
    image = _image(rng, "hw", "rs")
    layout = {"layout": rng.choice(("NHWC", "NHWC", "NCHW"))}
    if rng.random() < 0.5:
        return _words("conv2d_wgrad", **sizes, **image, **layout)
    phase = ",".join(str(rng.randrange(image["stride"])) for _ in range(2))
    return _words("conv2d_dgrad", **sizes, **image, **layout, phase=phase)


def _of_other_kinds(rng: random.Random) -> str:
    channels = {"n": rng.choice((1, 2)), "c": rng.choice(CHANNELS)}
    image = _image(rng, "hw", "rs")
    match rng.randrange(5):
        case 0:
            multiplier = {"m": rng.choice((1, 4, 16))}
            return _words("depthwise", **channels, **multiplier, **image, layout="NHWC")
        case 1:
            return _words("capsule_conv2d", **channels, k=rng.choice(CHANNELS), u=4, **image)
        case 2:
            return _words("batched_conv2d", **channels, k=rng.choice(CHANNELS), **image)
        case 3:
            sizes = {name: rng.choice(LENGTHS) for name in "nkc"}
            return _words("grouped_fc", **sizes, g=rng.choice((2, 5)))
        case _:
            return _words("ttm", **{name: rng.choice(LENGTHS) for name in "ikl"}, j=3)
