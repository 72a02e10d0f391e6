"""Where integers pass through Winograd's transforms without a loss.

Transforms make values larger: a tile of ``F(2x2, 3x3)`` of int8 reaches 512, its filters, times 4
so that they are integers, 1152. The rule: every value that is stored, that of V, of U and of each
sum of M, and each result before it is divided by the scale, lies in the type that it is stored in.
Then no sum wraps, the division leaves no remainder, and results are the convolution's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpembed.errors import WorkloadError
from cpembed.ir.dtypes import dtype_info
from cpembed.transform.methods.convolution import Convolution

_IMAGE, _SUMS = ("int8", "int16", "int32"), ("int32", "int64")


@dataclass(frozen=True)
class Ranges:
    """Largest absolute values: of V, U, M, and of the results before they are divided."""

    image: int
    weights: int
    products: int
    results: int


def integer_types(
    conv: Convolution, ranges: Ranges, types: tuple[str, str, str] | None
) -> tuple[str, str, str]:
    """The types of V, U and M: the narrowest that are exact, or the given ones, if these are.

    Raises :class:`WorkloadError` where they do not hold every value.
    """
    sums = max(ranges.products, ranges.results)
    wanted = (("V", ranges.image), ("U", ranges.weights), ("M", sums))
    if types is None:
        choices = (_IMAGE, _IMAGE, _SUMS)
        found = [
            next((t for t in some if value <= _largest(t)), some[-1])
            for some, (_, value) in zip(choices, wanted, strict=True)
        ]
        # A product has factors of one type.
        factor = max(found[:2], key=_largest)
        types = factor, factor, found[2]
    for (name, value), dtype in zip(wanted, types, strict=True):
        if not dtype_info(dtype).is_integer or value > _largest(dtype):
            raise WorkloadError(
                f"{conv.workload.name}: Winograd's method would not be exact: {name} reaches "
                f"{value}, which {dtype} does not hold: use another method or smaller tiles"
            )
    return types


def _largest(dtype: str) -> int:
    return dtype_info(dtype).integer_range[1]
