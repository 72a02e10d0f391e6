"""The options that `run` and `build` share: a kernel of a workload, and what it stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

import click

from cpembed.cli.options import (
    Asked,
    Problem,
    backend_option,
    embedding_options,
    id_option,
    output_option,
    problem,
    rank_option,
    require_one,
    steps_options,
    together,
    untuned_option,
)

if TYPE_CHECKING:
    from cpembed.driver.options import BackendName

kernel_options = together(
    embedding_options,
    rank_option(
        "The candidate of this place in the ranking.  [default: what was tuned; else the fastest "
        "by the target's estimate of the best 8, where it compares them, or the best]"
    ),
    id_option,
    backend_option("what works here."),
    output_option(
        ["requantized", "int32", "int8", "uint8", "float32", "bfloat16", "float16"],
        "What is stored of the sums: this type, integers saturated.  [default: the sums]  "
        "Where the target itself converts: requantized is shifted and clipped to int8, int32 all "
        "bits, int8 the low eight.  [default: requantized; int8 where that is the output's type]",
    ),
    steps_options,
    click.option(
        "--shift",
        type=click.IntRange(0, 31),
        metavar="N",
        help="Bits by which integer sums are shifted right before they are stored as int8.  "
        "[default: none; of requantized ones 7 and half the binary logarithm of the products in a "
        "sum]",
    ),
    untuned_option,
)
"""A workload on a target, which candidate, by what code, and what is stored: the parameters of
:class:`KernelAsked`."""


class _Choice(TypedDict):
    """Which kernel: as the command line and as functions of the library have it."""

    rank: int | None
    identifier: str | None
    backend: BackendName
    output: str | None
    shift: int | None
    bias: bool
    scale: bool
    relu: bool
    untuned: bool


class KernelAsked(Asked, _Choice):
    """The parameters of :data:`kernel_options`."""


class Kernel(Problem, _Choice):
    """A kernel, as functions of the library take it."""


def kernel(asked: KernelAsked) -> Kernel:
    """The kernel that is asked for; a usage error where the candidate is named in two ways."""
    require_one(rank=asked["rank"] is not None, id=asked["identifier"] is not None)
    return Kernel(
        **problem(asked),
        rank=asked["rank"],
        identifier=asked["identifier"],
        backend=asked["backend"],
        output=asked["output"],
        shift=asked["shift"],
        bias=asked["bias"],
        scale=asked["scale"],
        relu=asked["relu"],
        untuned=asked["untuned"],
    )
