"""Choice of the method that computes a convolution, and of the kernel of its product.

``auto`` compares what the target's model expects of each method; what is not ``implicit`` runs as
parts around a product, which is chosen as any workload is.

>>> from cpembed.driver.named import workload
>>> layer = workload("conv2d n=1 c=8 h=8 w=8 k=8 r=3 s=3 dtype=int8")
>>> compares(Request(layer, "vta_1x16x16"))
False
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from cpembed.driver.options import MethodName
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Compared, MethodChoice, Request, Selection
from cpembed.driver.result import SolveResult
from cpembed.errors import BackendUnavailable, LoweringError, SpecError, WorkloadError
from cpembed.ir.computation import Computation
from cpembed.targets.choice import Choice
from cpembed.targets.methods import MethodPlan, Methods, methods_of
from cpembed.transform.methods.convolution import Rewritten, as_convolution, explicit
from cpembed.transform.methods.error_growth import UNIT_ROUNDOFF
from cpembed.transform.methods.winograd import winograd

_REWRITES: Mapping[str, Callable[[Computation], Rewritten]] = {
    "explicit": explicit,
    "winograd_2x2": lambda workload: winograd(workload, 2, channels_last=True),
    "winograd_4x4": lambda workload: winograd(workload, 4, channels_last=True),
}
"""Rewrites by name. Transforms have lanes along channels, so Winograd's operands have channels
last."""


def compares(request: Request) -> bool:
    """Return True if ``auto`` compares methods with the implicit one.

    It does for convolutions of float32 or float64 by windows of several taps, if nothing else is
    asked for. Transforms are exact for few integers, and too coarse for shorter floats.
    """
    if not (request.options.free_choice and request.stores_sums):
        return False
    if any(operand.dtype not in UNIT_ROUNDOFF for operand in request.workload.operands):
        return False
    try:
        windows = as_convolution(request.workload).windows
    except WorkloadError:
        return False
    return any(window.taps > 1 for window in windows)


def chosen_method(
    request: Request, method: MethodName
) -> tuple[Selection, Compared | None] | SolveResult:
    """Choose what runs, by the named method or by the fastest one.

    Parameters
    ----------
    request : Request
        Workload, target and options.
    method : str
        ``auto`` compares the methods by estimates; another name insists on it.

    Returns
    -------
    tuple of Selection and Compared, or SolveResult
        Kernel of the workload or of its method's product, and the method where one was compared;
        the search's result if it found nothing that runs.
    """
    if method not in ("auto", "implicit"):
        rewritten = planned_method(request, method)
        estimates = {rewritten.method.name: rewritten.estimated}
        return rewritten.product, Compared(rewritten, estimates)
    selection = choose(request)
    if isinstance(selection, SolveResult):
        return selection
    compared = fastest(request, selection) if method == "auto" else None
    if compared is not None and compared.rewritten is not None:
        return compared.rewritten.product, compared
    return selection, compared


def planned_method(request: Request, method: MethodName) -> MethodChoice:
    """Plan a method that is insisted on: neither ``auto`` nor ``implicit``.

    Raises
    ------
    WorkloadError
        If the method does not compute the workload, or not with this output.
    LoweringError
        If the target runs no such methods here.
    """
    if not request.stores_sums:
        raise WorkloadError(
            f"--method {method} stores the sums as they are: leave out what changes them, or take "
            "--method implicit"
        )
    return _fastest_plan(request, _REWRITES[method](request.workload))


def fastest(request: Request, implicit: Selection) -> Compared | None:
    """Compare the other methods with the implicit one; None if none can be compared.

    Parameters
    ----------
    request : Request
        Workload, target and options.
    implicit : Selection
        Kernel of the implicit method.
    """
    estimate, target = implicit.choice.estimated, implicit.plan.target
    if (
        estimate is None
        or target.unit != "us"
        or methods_of(target) is None
        or not compares(request)
    ):
        return None
    estimates: dict[str, float] = {"implicit": estimate}
    refused: dict[str, str] = {}
    best: MethodChoice | None = None
    for name, rewrite in _REWRITES.items():
        try:
            choice = _fastest_plan(request, rewrite(request.workload))
        except (BackendUnavailable, LoweringError, SpecError, WorkloadError) as error:
            refused[name] = str(error)
            continue
        estimates[choice.method.name] = choice.estimated
        if best is None or choice.estimated < best.estimated:
            best = choice
    # Within the tolerance of the estimates the implicit method stays: it has no rounding error of
    # its own and needs no memory for transformed data.
    if best is not None and best.estimated * target.policy.tie_ratio >= estimate:
        best = None
    return Compared(best, estimates, refused)


def _fastest_plan(request: Request, method: Rewritten) -> MethodChoice:
    """Return the fastest plan of a method, with the kernel of its product."""
    best: MethodChoice | None = None
    refused: list[str] = []
    for plan in _plans(request, method):
        product = choose(replace(request, workload=plan.product))
        if isinstance(product, SolveResult):
            refused.append(f"{plan.product.name}: {product.why_nothing}")
            continue
        methods = methods_of(product.plan.target)
        # The parts read and write the product's operands in its own layout: a kernel that packs
        # them once more does not fit.
        usable = [choice for choice in product.plan.choices if _takes(methods, choice)]
        if not usable:
            refused.append(
                f"{request.workload.name}: {product.solved.target.name} would pack the image's "
                f"part or the result of {method.name} once more: use another method"
            )
            continue
        product = replace(product, plan=replace(product.plan, choices=usable))
        total = plan.parts_us + plan.count * (product.choice.estimated or float("inf"))
        if best is None or total < best.estimated:
            best = MethodChoice(plan, product, total)
    if best is None:
        raise LoweringError(refused[0])
    return best


def _takes(methods: Methods | None, choice: Choice) -> bool:
    return methods is not None and methods.takes(choice.ranked.program)


def _plans(request: Request, method: Rewritten) -> tuple[MethodPlan, ...]:
    target, missing = request.execution
    methods = methods_of(target)
    if methods is None:
        why = f" here ({'; '.join(missing)})" if missing else ""
        raise LoweringError(
            f"{target.spec.name} runs no method but the implicit one{why}: take --method implicit"
        )
    return methods.plans(method)
