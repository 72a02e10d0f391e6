"""Random small workloads: every operator family, sums of products, and irregular expressions."""

from __future__ import annotations

import math
import random
import re

from cpembed.errors import WorkloadError
from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.workloads.family import OperatorFamily, Parameter, ParameterKind
from cpembed.workloads.operators import OPERATORS

LARGEST = 40_000
"""Points of a workload at most: small enough for the interpreter."""

FORMS: dict[str, tuple[str, ...]] = {
    # What an irregular instruction computes -> workloads with that statement, over other axes.
    "sad": (
        "S[u,b] += abs(P[b,y+u,x] - Q[b,y,x])",
        "S[a,b] += abs(P[b,x,a] - Q[x,b,a])",
        "S[b] += abs(P[2*b,x] - Q[b,x])",
    ),
    "saturated": tuple(
        f"C[{i}] = max(min(A[{a}]*B[{b}] + A[{a1}]*B[{b1}], 32767), -32768)"
        for i, a, a1, b, b1 in (
            ("i", "2*i", "2*i+1", "2*i", "2*i+1"),
            ("i", "i,0", "i,1", "0,i", "1,i"),
            ("i,j", "j,0,i", "j,1,i", "i,j,0", "i,j,1"),
        )
    ),
    "requantized": (
        "Q[n,k,p] = min(max((A[n,k,p] * M[k] + B[k]) >> 16, -128), 127)",
        "Q[p,k] = min(max((A[k,p] * M[k] + B[k]) >> 16, -128), 127)",
    ),
    "pre_added": (
        "Y[n] += (X[n+k] + X[n-k+{k}]) * H[k]",
        "Y[m,n] += (X[m,k] + Z[n,k]) * H[k,n]",
    ),
    "complex": tuple(
        f"R[{o},0] += A[{a},0]*B[{b},0] - A[{a},1]*B[{b},1]; "
        f"R[{o},1] += A[{a},0]*B[{b},1] + A[{a},1]*B[{b},0]"
        for o, a, b in (("m,n", "m,k", "k,n"), ("m", "2*m+k", "k"), ("n,m", "k,m", "n,k"))
    ),
    "plain_sum": ("O[m] += A[m,k]", "O[m,n] += A[n,2*m+k]"),
    "largest": ("O[m] max= A[m,k]", "O[p,q] max= A[2*p+r,q+s]", "O[m,n] max= A[n,m,k]"),
}


def random_size(rng: random.Random, parameter: Parameter) -> object:
    """A value for an operator's parameter: small, of the size of an instruction now and then."""
    if parameter.kind is ParameterKind.PER_AXIS:
        low = 0 if "pad" in parameter.name else 1
        return rng.choice([low, low, low + 1, low + 1, low + 2])
    if parameter.kind is ParameterKind.FLAG:
        return rng.random() < 0.5
    if parameter.kind is ParameterKind.CHOICE:
        return rng.choice(parameter.choices)
    if parameter.name in ("r", "s", "t"):
        return rng.randint(1, 4)
    if parameter.name in ("h", "w", "d"):
        return rng.randint(1, 10)
    if parameter.name in ("n", "u", "groups", "g") and parameter.meaning != "columns of C":
        return rng.choice([1, 1, 1, 2, 2, 3, 4])
    return rng.choice([rng.randint(1, 6), rng.randint(2, 20), rng.choice([4, 8, 16, 32, 33, 64])])


def operator(rng: random.Random, family: OperatorFamily) -> Computation:
    """A family at random sizes, strides, pads, dilations, groups and layouts, at most
    :data:`LARGEST` points."""
    while True:
        values: dict[str, object] = {}
        for parameter in family.parameters:
            if parameter.kind is ParameterKind.DTYPES:
                continue
            if parameter.required or rng.random() < 0.6:
                values[parameter.name] = random_size(rng, parameter)
            if parameter.kind is ParameterKind.PER_AXIS and rng.random() < 0.3:
                axes = sum(p.name in ("h", "w", "d") for p in family.parameters)
                values[parameter.name] = tuple(random_size(rng, parameter) for _ in range(axes))
        try:
            found = family.workload(values)
        except WorkloadError:  # the window is larger than the image
            continue
        if found.macs <= LARGEST:
            return found


def sum_of_products(rng: random.Random) -> Computation:
    """``O[..] += A[..] * B[..]`` on random axes: transposed, strided, offset, sliding, diagonal."""
    while True:
        spatial = list("abcd"[: rng.randint(1, 4)])
        reduced = list("xyz"[: rng.randint(0, 3)])
        reads: list[list[str]] = [[], []]
        for axis in (*spatial, *reduced):
            for read in rng.choice([reads, reads[:1], reads[1:]]):
                read.extend([axis] * rng.choice([1] * 15 + [2]))  # twice: a diagonal
        extents = {a: rng.choice([1, 2, 3, 4, 5, 8, 9, 16, 17]) for a in (*spatial, *reduced)}
        indices = [", ".join(_index(rng, read)) for read in reads]
        rng.shuffle(spatial)
        text = f"O[{', '.join(spatial)}] += A[{indices[0]}] * B[{indices[1]}]"
        found = parse_computation(text, extents, name="sum_of_products")
        if found.macs <= LARGEST:
            return found


def _index(rng: random.Random, axes: list[str]) -> list[str]:
    """Index expressions over the axes in random order, some of them sums."""
    left = list(axes)
    rng.shuffle(left)
    found: list[str] = []
    while left:
        terms = [left.pop() for _ in range(min(len(left), rng.choice([1, 1, 1, 2])))]
        scaled = [f"{rng.choice([1, 1, 1, 2, 3])}*{axis}" for axis in terms]
        found.append("+".join(scaled) + rng.choice(["", "", "", "+1"]))
    return found


def irregular(rng: random.Random, form: str) -> Computation:
    """A workload with the statement of :data:`FORMS`, at random extents."""
    text = rng.choice(FORMS[form])
    # A letter by itself is an iterator; those of max, min and abs are not.
    names = sorted(set(re.findall(r"(?<![A-Za-z])[a-z](?![a-z])", text)))
    extents = {name: rng.choice([1, 2, 3, 4, 5, 8, 16, 17]) for name in names}
    while math.prod(extents.values()) > LARGEST:
        extents[rng.choice(names)] = rng.choice([1, 2, 3])
    filled = text.format(**{name: extents[name] - 1 for name in names if f"{{{name}}}" in text})
    return parse_computation(filled, extents, name=form)


def any_operator(rng: random.Random) -> Computation:
    return operator(rng, OPERATORS[rng.choice(sorted(OPERATORS))])


PRIMES = (1, 2, 3, 5, 7, 11, 13, 17, 23, 37, 61)


def layer(rng: random.Random, *, along_lanes: bool = False) -> str:
    """Words of a convolution or a product of prime sizes: strides, dilation, padding, groups,
    layouts, transposed operands; ``along_lanes`` of a depthwise convolution."""
    if not along_lanes and rng.random() < 0.3:
        m, n, k = (rng.choice(PRIMES) for _ in range(3))
        return f"gemm m={m} n={n} k={k} trans_a={rng.randint(0, 1)} trans_b={rng.randint(0, 1)}"
    r, s = rng.choice((1, 2, 3, 5)), rng.choice((1, 2, 3))
    dilation, pad = rng.choice((1, 1, 2)), rng.randint(0, 2)
    h, w = (rng.choice((5, 7, 11, 13)) + dilation * (size - 1) for size in (r, s))
    window = f"h={h} w={w} r={r} s={s} pad={pad} stride={rng.choice((1, 1, 2, 3))}"
    window += f" dilation={dilation} layout={rng.choice(('NCHW', 'NHWC'))}"
    n, c, k = rng.choice((1, 1, 2)), rng.choice(PRIMES), rng.choice(PRIMES)
    if along_lanes:
        return f"depthwise n={n} c={c} {window}"
    return f"conv2d n={n} c={c} k={k} groups={rng.choice((1, 1, 1, 2, 3))} {window}"
