"""What reports say of the method by which a convolution is computed."""

from __future__ import annotations

from cpembed import wording
from cpembed.driver.plan import Compared, MethodError
from cpembed.driver.result import SolveResult
from cpembed.ir.computation import Computation
from cpembed.report.solve import given_rows, problem_rows, set_words

Row = tuple[str, str]


def asked_rows(workload: Computation, solved: SolveResult, method: Compared | None) -> list[Row]:
    """What was asked for, by which method it is computed, and the set under which the workload, or
    the method's product, was searched."""
    if workload == solved.workload:
        return [*problem_rows(solved), *method_rows(method)]
    given = given_rows(workload, solved.target)
    return [*given, *method_rows(method), ("constraints", set_words(solved))]


def method_rows(compared: Compared | None) -> list[Row]:
    """The method, and the estimates by which it was chosen; nothing where none was chosen."""
    if compared is None:
        return []
    chosen, estimates = compared.rewritten, compared.estimates
    what = compared.name
    if chosen is not None:
        share = chosen.method.relative_multiplications
        what += f", {share:.3g} times the multiplications of the convolution"
    rows = [("method", what)]
    if len(estimates) > 1:
        words = ", ".join(f"{name} {wording.duration(us)}" for name, us in estimates.items())
        least = estimates[compared.name] == min(estimates.values())
        place = "the fastest by estimate" if least else "estimates cannot tell it from the fastest"
        rows.append(("", f"{place}: {words}"))
    rows += [("", f"not compared: {name}: {why}") for name, why in compared.refused.items()]
    if chosen is not None:
        count = chosen.plan.count
        times = f", {wording.plural(count, 'time')}, each over a part of the tiles"
        sizes = " ".join(f"{name} {n}" for name, n in chosen.plan.product.extents.items())
        rows.append(("product", f"{chosen.plan.product}"))
        rows.append(("", f"{sizes}{times if count > 1 else ''}"))
    return rows


def error_words(error: MethodError) -> str:
    """How far a result is from the convolution in float64."""
    share = error.largest / error.output if error.output else 0.0
    return (
        f"largest error {error.largest:.3g} against float64, {share:.1e} of the largest output; "
        f"the bound of its tiles is {error.bound:.3g}"
    )
