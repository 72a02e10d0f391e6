"""Grouped fully connected layer: independent matrix products per group of features."""

from __future__ import annotations

from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.operators.family import DTYPE, Dtypes, OperatorFamily, Parameter


def grouped_fc(*, n: int, g: int, c: int, k: int, dtype: Dtypes = None) -> Computation:
    """``O[n,g,k] += I[n,g,c] * W[g,k,c]``; axes n, g, k, c.

    The features of group g see only each other, as in WeightNet (2020) and AMOS (2022, "GFC"). A
    feature is two dimensions, group and member of it: in memory the usual layout with ``g * c``
    and ``g * k`` features.
    """
    GROUPED_FC.check_sizes(n=n, g=g, c=c, k=k)
    image_type, weight_type, output_type = GROUPED_FC.dtypes(dtype, GROUPED_FC.inputs)
    return parse_computation(
        "O[n,g,k] += I[n,g,c] * W[g,k,c]",
        {"n": n, "g": g, "k": k, "c": c},
        name="grouped_fc",
        dtypes={"I": image_type, "W": weight_type, "O": output_type},
    )


GROUPED_FC = OperatorFamily(
    "grouped_fc",
    "grouped fully connected layer O[n,g,k] += I[n,g,c] * W[g,k,c]",
    grouped_fc,
    (
        Parameter("n", "samples"),
        Parameter("g", "groups"),
        Parameter("c", "input features of one group"),
        Parameter("k", "output features of one group"),
        DTYPE,
    ),
)
