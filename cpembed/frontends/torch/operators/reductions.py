"""Sums, means, extrema and softmax along axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cpembed.frontends import expressions as ex
from cpembed.frontends.expressions import X, Y, apply
from cpembed.frontends.rows import cumulative_sum, log_sum_exp
from cpembed.frontends.torch.call import Call, Handler, Results
from cpembed.graph.kinds import Reduce, Softmax


def _axes_of(call: Call, x: str) -> tuple[int, ...]:
    axes = call.get("dim")
    return call.axes(x, [axes] if isinstance(axes, int) else axes)


def _keeps(call: Call) -> bool:
    return bool(call.get("keepdim"))


def reduce(call: Call, what: str, x: str, axes: Sequence[int], keeps: bool) -> str:
    """``what`` over axes of a tensor; of a scalar the scalar."""
    return call.emit(Reduce(what, tuple(axes), keeps), x) if call.shape(x) else x


def _reduction(what: str) -> Handler:
    def handler(call: Call) -> str:
        x = call.cast(call["self"], call.result.dtype)
        return reduce(call, what, x, _axes_of(call, x), _keeps(call))

    return handler


def _extremum(what: str) -> Handler:
    def handler(call: Call) -> Results:
        x = call["self"]
        value = reduce(call, what, x, _axes_of(call, x), _keeps(call))
        return call.first_of(value)

    return handler


def _centred(call: Call, x: str, axes: Sequence[int]) -> tuple[str, str]:
    """The mean, and the squares of what elements differ from it by."""
    mean = reduce(call, "mean", x, axes, True)
    difference = ex.sub(X, Y)
    return mean, call.elementwise(ex.mul(difference, difference), x, mean)


def _variance(roots: bool, with_mean: bool) -> Handler:
    def handler(call: Call) -> Results:
        x, axes = call["self"], _axes_of(call, call["self"])
        correction = call.get("correction")
        if correction is None:
            correction = 0 if call.get("unbiased") is False else 1
        count = math.prod(call.shape(x)[axis] for axis in axes)
        mean, squares = _centred(call, x, axes)
        total = reduce(call, "sum", squares, axes, _keeps(call))
        value = ex.div(X, max(0, count - correction))
        found = call.elementwise(apply("sqrt", value) if roots else value, total)
        shape = call.shape(found)
        return (found, call.reshaped(mean, shape)) if with_mean else found

    return handler


def _norm(call: Call) -> str:
    x, order = call.get("self") or call["x"], call.get("ord")
    order = call.get("p") if order is None else order
    order = 2 if order is None else order
    axes, keeps = _axes_of(call, x), _keeps(call)
    if order == 2:
        total = reduce(call, "sum", call.elementwise(ex.mul(X, X), x), axes, keeps)
        return call.elementwise(apply("sqrt", X), total)
    size = call.elementwise(apply("abs", X), x)
    if order == 1:
        return reduce(call, "sum", size, axes, keeps)
    if order == math.inf:
        return reduce(call, "max", size, axes, keeps)
    raise call.error(f"the norm of order {order} is not known: only 1, 2 and inf")


def _softmax(log: bool) -> Handler:
    def handler(call: Call) -> str:
        x, axis = call.cast(call["self"], call.result.dtype), call["dim"]
        if call.shape(x):
            return call.emit(Softmax(call.axis(x, axis), log), x)
        return call.reshaped(call.emit(Softmax(0, log), call.reshaped(x, (1,))), ())

    return handler


def _log_sum_exp(call: Call) -> str:
    x = call.cast(call["self"], call.result.dtype)
    return log_sum_exp(call, x, _axes_of(call, x), call.result.shape)


def _any_or_all(what: str) -> Handler:
    def handler(call: Call) -> str:
        x = call.cast(call.cast(call["self"], "bool"), "int32")
        return call.cast(reduce(call, what, x, _axes_of(call, x), _keeps(call)), "bool")

    return handler


def _cumulative_sum(call: Call) -> str:
    x = call.cast(call["self"], call.result.dtype)
    return cumulative_sum(call, x, call.axis(x, call["dim"])) if call.shape(x) else x


def _table(handler: Handler, *names: str) -> dict[str, Handler]:
    return {f"aten.{name}": handler for name in names}


OPERATORS: Mapping[str, Handler] = {
    **_table(_reduction("sum"), "sum.default", "sum.dim_IntList"),
    **_table(_reduction("mean"), "mean.default", "mean.dim"),
    **_table(_reduction("prod"), "prod.default", "prod.dim_int"),
    **_table(_extremum("max"), "amax.default", "max.default", "max.dim"),
    **_table(_extremum("min"), "amin.default", "min.default", "min.dim"),
    **_table(_variance(False, False), "var.correction", "var.dim", "var.default"),
    **_table(_variance(True, False), "std.correction", "std.dim", "std.default"),
    **_table(_variance(False, True), "var_mean.correction", "var_mean.dim", "var_mean.default"),
    **_table(_norm, "linalg_vector_norm.default", "norm.ScalarOpt_dim", "norm.Scalar"),
    **_table(_softmax(False), "softmax.int", "_softmax.default"),
    **_table(_softmax(True), "log_softmax.int", "_log_softmax.default"),
    **_table(_log_sum_exp, "logsumexp.default"),
    **_table(_any_or_all("max"), "any.default", "any.dim", "any.dims"),
    **_table(_any_or_all("min"), "all.default", "all.dim", "all.dims"),
    **_table(_cumulative_sum, "cumsum.default"),
}
