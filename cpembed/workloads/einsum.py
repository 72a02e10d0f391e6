"""Operators that are one statement over named axes: products of matrices, vectors and tensors.

Axes are in the order of the output's indices, then as they appear in the reads.

>>> str(batched_gemm(b=2, m=4, n=5, k=6, trans_b=True))
'C[b, m, n] += (A[b, m, k] * B[b, n, k])'
>>> str(gemv(m=4, k=6, column=True)), dot(k=4).output.shape
('C[m, n] += (A[m, k] * B[k, n])', ())
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.workloads.family import DTYPE, OperatorFamily, Parameter, ParameterKind

TRANS_A = Parameter("trans_a", "1: A is stored with k before m", ParameterKind.FLAG, "0")
TRANS_B = Parameter("trans_b", "1: B is stored with n before k", ParameterKind.FLAG, "0")
# Lets a unit that multiplies matrices execute the product, mostly on padding, which is how AMOS
# (2022, "GMV") maps it to one. Nothing differs in memory.
COLUMN = Parameter(
    "column", "1: vectors are matrices of one column, an axis n", ParameterKind.FLAG, "0"
)

_OPERAND = re.compile(r"(\w+)\[([^\]]*)\]")


def einsum(
    name: str,
    summary: str,
    statement: str,
    sizes: Mapping[str, str],
    *options: Parameter,
    note: str = "",
    varying: Collection[str] = (),
) -> OperatorFamily:
    """Make the family of a statement all of whose axes are sizes.

    >>> row_max = einsum("row_max", "maximum of rows", "O[m] max= A[m,k]", {"m": "rows", "k": "of"})
    >>> str(row_max(m=4, k=8)), row_max.inputs
    ('O[m] max= A[m, k]', 1)

    Parameters
    ----------
    name : str
        Name of the operator.
    summary : str
        Short description, printed before the statement.
    statement : str
        Statement of the expression language.
    sizes : mapping of str to str
        Meaning of each axis.
    *options : Parameter
        Some of :data:`TRANS_A` and :data:`TRANS_B` (the operand's last two indices are exchanged)
        and :data:`COLUMN`.
    note : str
        Conditions on the operands, printed after the statement.
    varying : collection of str
        Inputs that could be weights but are computed anew for every call.
    """
    output, *reads = _OPERAND.findall(statement)
    # The inputs in the order of their first read, which is that of types too, then the output.
    operands = [*dict.fromkeys(operand for operand, _ in reads), output[0]]

    def build(
        *,
        trans_a: bool = False,
        trans_b: bool = False,
        column: bool = False,
        dtype: Any = None,
        **extents: int,
    ) -> Computation:
        family.check_sizes(**extents)
        transposed = {"A": trans_a, "B": trans_b}

        def rewrite(operand: re.Match[str]) -> str:
            indices = operand[2].split(",")
            # The last two only: a batch stays outside.
            if transposed.get(operand[1]):
                indices[-2:] = reversed(indices[-2:])
            if column and len(indices) == 1:
                indices.append("n")
            return f"{operand[1]}[{','.join(indices)}]"

        return parse_computation(
            _OPERAND.sub(rewrite, statement),
            {**extents, "n": 1} if column else extents,
            name=name,
            dtypes=dict(zip(operands, family.dtypes(dtype, family.inputs), strict=True)),
            varying=varying,
            axis_order="appearance",
        )

    family = OperatorFamily(
        name=name,
        description=f"{summary} {statement}{note}",
        build=build,
        parameters=(*(Parameter(*size) for size in sizes.items()), *options, DTYPE),
        inputs=len(operands) - 1,
    )
    return family


_PRODUCT = {"m": "rows of C", "n": "columns of C", "k": "reduction"}
_ROWS = {"m": "rows", "k": "elements of a row"}
_TRANSPOSED = (TRANS_A, TRANS_B)

gemm = einsum("gemm", "matrix multiplication", "C[m,n] += A[m,k] * B[k,n]", _PRODUCT, *_TRANSPOSED)
# Both factors are computed while a network runs, so neither can be packed ahead.
batched_gemm = einsum(
    "batched_gemm", "matrix multiplications", "C[b,m,n] += A[b,m,k] * B[b,k,n]",
    {"b": "products", **_PRODUCT}, *_TRANSPOSED, varying=("B",),
)  # fmt: skip
"""Independent products. In attention of h heads (Vaswani et al. 2017, 3.2) ``b=h m=t n=t k=d
trans_b=1`` are the scores of t tokens, and ``b=h m=t n=d k=t`` their sums of values."""
gemv = einsum(
    "gemv", "matrix-vector multiplication", "C[m] += A[m,k] * B[k]",
    {"m": "rows", "k": "reduction"}, TRANS_A, COLUMN,
)  # fmt: skip
dot = einsum("dot", "dot product", "C[] += A[k] * B[k]", {"k": "reduction"})
"""Product whose result C is a scalar: an operand without dimensions."""
# No axis is a reduction, yet the result is added to C. Like every computation it starts from zero:
# a caller who has a C adds the product to it.
axpy = einsum("axpy", "scaled vector", "C[m] += A[] * B[m]", {"m": "elements"})
"""Scalar times a vector."""
grouped_fc = einsum(
    "grouped_fc",
    "grouped fully connected layer",
    "O[n,g,k] += I[n,g,c] * W[g,k,c]",
    {
        "n": "samples",
        "g": "groups",
        "c": "input features of one group",
        "k": "output features of one group",
    },
)
"""The features of group g see only each other, as in WeightNet (2020) and AMOS (2022, "GFC"). A
feature is two dimensions, group and member of it: in memory the usual layout with ``g * c`` and
``g * k`` features."""
# With integers W holds ones and the sum is divided afterwards; other weights give a weighted mean.
mean = einsum(
    "mean", "mean of rows", "O[m] += A[m,k] * W[k]", _ROWS, COLUMN, note=", each W[k] being 1/k"
)
"""Mean as a product (AMOS 2022, "MEN"): a channel of a batch of images is a row."""
# The squared deviations from the row's mean are computed element by element before it.
variance = einsum(
    "variance", "variance of rows", "O[m] += D[m,k] * W[k]", _ROWS, COLUMN,
    note=", D the squared deviations, each W[k] being 1/k",
)  # fmt: skip
"""Contraction that AMOS (2022, "VAR") maps to a matrix unit. W is as in ``mean``."""
row_sum = einsum("row_sum", "sum of rows", "O[m] += A[m,k]", _ROWS)
"""Reduction without a multiplication."""
scan = einsum(
    "scan",
    "prefix sums of rows",
    "C[m,n] += A[m,k] * B[k,n]",
    {"m": "rows", "n": "prefix sums of a row", "k": "elements of a row"},
    note=", B[k,n] being 1 for k <= n, else 0",
)
"""The form of AMOS (2022, "SCN") and of scans on matrix units (Dakkak et al. 2019): column n of C
is the sum of the columns of A up to n. A scan of whole rows has ``n = k``; smaller n stops it
early, larger n repeats the last column. B is an ordinary operand, which the caller fills."""
ttm = einsum(
    "ttm",
    "tensor times matrix",
    "C[i,j,k] += A[i,j,l] * B[l,k]",
    {
        "i": "first dimension of the tensor",
        "j": "second dimension of the tensor",
        "k": "columns of the matrix",
        "l": "reduction: last dimension of the tensor, rows of the matrix",
    },
)
"""A tensor of three dimensions times a matrix along its last: a workload of HASCO (2021)."""
mttkrp = einsum(
    "mttkrp",
    "tensor times Khatri-Rao product",
    "D[i,j] += A[i,k,l] * B[l,j] * C[k,j]",
    {
        "i": "first dimension of the tensor, rows of D",
        "j": "columns of D",
        "k": "reduction: second dimension of the tensor",
        "l": "reduction: third dimension of the tensor",
    },
)
"""A product of three factors: an instruction that multiplies two does not embed in it. HASCO
(2021) splits it in two: ``E[i,k,j] += A[i,k,l] * B[l,j]``, which is a ``ttm``, and
``D[i,j] += E[i,k,j] * C[k,j]``."""
