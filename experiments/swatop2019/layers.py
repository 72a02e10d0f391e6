"""The layers and matrix products of the paper's evaluation.

Sizes of networks are facts of their papers: VGG16 (Simonyan and Zisserman 2014, configuration D),
ResNet-50 (He et al. 2016, as the suite ``resnet50`` has it) and YOLO (Redmon et al. 2016,
figure 3). Layers of equal sizes are one, with a count.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cpembed.driver.named import workload
from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.workloads.suites import suite
from experiments.swatop2019.paper import LISTING_1, LISTING_2

FIFTH_ROWS = 16
"""A fifth number of rows for listing 1.

The listing as printed has 60 configurations a batch (15 pairs of channels, 4 sizes), table 1 counts
75: we take the next smaller size for a fifth that is lost. 512 is none: one image tensor would be
64 GB at a batch of 128.
"""


@dataclass(frozen=True)
class Convolution:
    """A layer of ``rows`` x ``rows`` outputs with filters of ``taps`` x ``taps``.

    ``first``: the first of its network, of three channels.
    """

    group: str
    name: str
    batch: int
    channels: int
    filters: int
    rows: int
    taps: int = 3
    stride: int = 1
    pad: int = 1
    count: int = 1
    first: bool = False

    @property
    def key(self) -> str:
        sizes = f"c{self.channels} k{self.filters} {self.rows}x{self.rows}"
        return f"{self.group} {self.name} b{self.batch} {sizes} f{self.taps} s{self.stride}"

    @property
    def height(self) -> int:
        """Number of rows of the image, without padding."""
        return (self.rows - 1) * self.stride + self.taps - 2 * self.pad

    @property
    def macs(self) -> int:
        return self.batch * self.channels * self.filters * self.rows**2 * self.taps**2

    def of_batch(self, batch: int) -> Convolution:
        return replace(self, batch=batch)

    def computation(self, layout: str) -> Computation:
        """Return the computation in ``NCHW``, ``NHWC`` or ``HWCN``.

        In the last one, swDNN's layout, a batch is contiguous.
        """
        if layout == "HWCN":
            return self._batch_last()
        height, s = self.height, self.taps
        return workload(
            f"conv2d n={self.batch} c={self.channels} h={height} w={height} k={self.filters} "
            f"r={s} s={s} pad={self.pad} stride={self.stride} layout={layout} dtype=float32"
        )

    def _batch_last(self) -> Computation:
        height, step = self.height, "" if self.stride == 1 else f"{self.stride}*"
        shift = f"-{self.pad}" if self.pad else ""
        statement = f"O[p,q,k,n] += I[{step}p+r{shift},{step}q+s{shift},c,n] * W[r,s,c,k]"
        outputs = {"p": self.rows, "q": self.rows, "k": self.filters, "n": self.batch}
        sums = {"c": self.channels, "r": self.taps, "s": self.taps}
        return parse_computation(
            statement,
            {**outputs, **sums},
            name="conv2d",
            dtypes=dict.fromkeys("IWO", "float32"),
            shapes={"I": (height, height, self.channels, self.batch)},
            zero_outside=("I",) if self.pad else (),
        )


@dataclass(frozen=True)
class Product:
    """``C[m, n] += A[m, k] * B[k, n]``, all row-major."""

    group: str
    m: int
    n: int
    k: int

    @property
    def key(self) -> str:
        return f"{self.m} {self.n} {self.k}"

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.m, self.n, self.k

    @property
    def macs(self) -> int:
        return self.m * self.n * self.k

    def computation(self) -> Computation:
        return workload(f"gemm m={self.m} n={self.n} k={self.k} dtype=float32")


_VGG16 = (
    (3, 64, 224, 1),
    (64, 64, 224, 1),
    (64, 128, 112, 1),
    (128, 128, 112, 1),
    (128, 256, 56, 1),
    (256, 256, 56, 2),
    (256, 512, 28, 1),
    (512, 512, 28, 2),
    (512, 512, 14, 3),
)
"""Channels, filters, rows, count."""

_YOLO = (
    (3, 64, 224, 7, 2, 1),
    (64, 192, 112, 3, 1, 1),
    (192, 128, 56, 1, 1, 1),
    (128, 256, 56, 3, 1, 1),
    (256, 256, 56, 1, 1, 1),
    (256, 512, 56, 3, 1, 1),
    (512, 256, 28, 1, 1, 4),
    (256, 512, 28, 3, 1, 4),
    (512, 512, 28, 1, 1, 1),
    (512, 1024, 28, 3, 1, 1),
    (1024, 512, 14, 1, 1, 2),
    (512, 1024, 14, 3, 1, 2),
    (1024, 1024, 14, 3, 1, 1),
    (1024, 1024, 7, 3, 2, 1),
    (1024, 1024, 7, 3, 1, 2),
)
"""Channels, filters, rows, taps, stride, count."""


def networks(batches: Sequence[int]) -> list[Convolution]:
    """Return all convolution layers of the three networks, at each batch."""
    layers = [
        Convolution("VGG16", str(n), 1, c, k, rows, count=count, first=n == 0)
        for n, (c, k, rows, count) in enumerate(_VGG16)
    ]
    for n, layer in enumerate(suite("resnet50")):
        sizes = {name: int(value) for name, value in layer.parameters.items()}
        s, pad, stride = sizes["s"], sizes["pad"], sizes["stride"]
        rows = (sizes["h"] + 2 * pad - s) // stride + 1
        layers.append(
            Convolution(
                *("ResNet", str(n), 1, sizes["c"], sizes["k"], rows, s, stride, pad),
                count=layer.count,
                first=n == 0,
            )
        )
    layers += [
        Convolution(
            "Yolo", str(n), 1, c, k, rows, taps, stride, (taps - 1) // 2, count, first=n == 0
        )
        for n, (c, k, rows, taps, stride, count) in enumerate(_YOLO)
    ]
    return [layer.of_batch(batch) for batch in batches for layer in layers]


def listing_1(batches: Sequence[int]) -> list[Convolution]:
    """Return the 75 configurations of each batch: filters of 3x3, no padding.

    The image has two rows more than the output.
    """
    pairs = [
        (c, k) for c, k in itertools.product(LISTING_1["channels"], LISTING_1["filters"]) if c >= k
    ]
    return [
        Convolution("listing 1", "-", batch, c, k, rows, pad=0)
        for batch in batches
        for c, k in pairs
        for rows in (FIFTH_ROWS, *LISTING_1["rows"])
    ]


def listing_2() -> list[Product]:
    """Return the matrix products."""
    return [
        Product(group, *sizes)
        for group, each in LISTING_2.items()
        for sizes in itertools.product(each, repeat=3)
    ]
