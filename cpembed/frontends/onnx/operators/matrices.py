"""Products of matrices."""

from __future__ import annotations

from cpembed.errors import WorkloadError
from cpembed.frontends.convolutions import matmul as product
from cpembed.frontends.convolutions import scalable
from cpembed.frontends.expressions import X, Y, add, mul
from cpembed.frontends.onnx.site import Site, Translation


def matmul(site: Site) -> str:
    return product(site, site.input(0), site.input(1))


def gemm(site: Site) -> str:
    a, c = site.input(0), site.optional(2)
    alpha, beta = site.number("alpha", 1.0), site.number("beta", 1.0)
    if not site.rank(0) == site.rank(1) == 2:
        raise WorkloadError(f"a product of {site.type(0)} and {site.type(1)}: give matrices")
    if site.flag("transA"):
        a = site.transposed(a, (1, 0))
    transposed = site.flag("transB")

    def write(b: str, c: str | None) -> str:
        result = product(site, a, b, transposed=transposed)
        if alpha != 1.0:
            result = site.elementwise(mul(X, alpha), result)
        if c is None or beta == 0.0:
            return result
        added = Y if beta == 1.0 else mul(Y, beta)
        return site.elementwise(add(X, added), result, c)

    columns = site.type(1).shape[0 if transposed else 1]
    by_column = c is None or site.shape(c) in ((), (1,), (columns,), (1, columns))
    if alpha == beta == 1.0 and by_column:
        return scalable(site, site.input(1), c, write, axis=0 if transposed else 1)
    return write(site.input(1), c)


TABLE: dict[str, Translation] = {"MatMul": matmul, "Gemm": gemm}
