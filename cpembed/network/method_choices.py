"""Choice of the methods that compete with a convolution's own sums.

Winograd's method of floats is considered where the rounding error grows by no more than
:data:`~cpembed.transform.methods.error_growth.MOST_GROWTH`; of bytes where a unit multiplies the
wider integers in which it is exact. Kernels of products of matrices take
time to search, so they are searched only for methods that can be faster than the convolution, at
the speed of the network's fastest product.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cpembed.codegen.epilogue import BYTES
from cpembed.driver.options import MethodName
from cpembed.errors import LoweringError, WorkloadError
from cpembed.graph.kinds import Product
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.dtypes import is_integer
from cpembed.network.convolution_methods import (
    ConvolutionMethod,
    Im2colMethod,
    ProductLayouts,
    WinogradMethod,
)
from cpembed.network.layout import Layout
from cpembed.targets.methods import MethodPlan, Methods, methods_of
from cpembed.targets.registry import open_target, takes
from cpembed.targets.units import Units, with_alternatives
from cpembed.transform.methods.convolution import U, V, as_convolution
from cpembed.transform.methods.error_growth import MOST_GROWTH, UNIT_ROUNDOFF, error_growth
from cpembed.transform.methods.winograd import winograd

TargetPlan = tuple[HardwareSpec, MethodPlan]
"""Plan of a method, and the target of its product."""

TILES: Mapping[MethodName, int] = {"winograd_2x2": 2, "winograd_4x4": 4}
"""Outputs of a tile along a window, by method."""

_BLOCKINGS = 2
"""Maximum number of block sizes of Winograd's tiles whose products are searched."""

_HEADROOM = 1.25
"""Factor by which a method's product may be faster, or slower, than the network's fastest one."""


@dataclass(frozen=True)
class CostLimit:
    """Cost of a convolution's own sums in microseconds, which a method has to be below.

    ``rate`` is the number of multiply-accumulates per microsecond of the network's fastest product.
    """

    own_us: float
    rate: float

    def least_us(self, parts_us: float, macs: int) -> float:
        """Return the time of a method whose products are as fast as they can be expected to be."""
        return parts_us + macs / (self.rate * _HEADROOM)

    def most_us(self, parts_us: float, macs: int) -> float:
        """Return the time of a method whose products are as slow as they can be expected to be."""
        return parts_us + macs / (self.rate / _HEADROOM)

    def admits(self, parts_us: float, macs: int) -> bool:
        """True if a method of some parts and products can be faster."""
        return self.least_us(parts_us, macs) < self.own_us


@dataclass(frozen=True)
class MethodChoices:
    """Methods that may compute products on the units of a processor.

    Attributes
    ----------
    units : Units
        Targets of the products of matrices.
    method : MethodName
        ``auto`` for all that may pay, ``implicit`` for none; another name for this one wherever it
        is possible.
    """

    units: Units
    method: MethodName = "auto"

    def candidates(
        self, kind: Product, combinations: Iterable[ProductLayouts], limit: CostLimit
    ) -> Iterator[ConvolutionMethod]:
        """Yield the methods of a product in combinations of layouts.

        Parameters
        ----------
        kind : Product
            Product with constant weights.
        combinations : iterable of ProductLayouts
            Layouts of its tensors.
        limit : CostLimit
            Cost of its own sums.
        """
        if self.method == "implicit" or not suits(kind):
            return
        plans = self._worth_searching(self._winograd_plans(kind, limit), limit)
        methods = self._methods_for([operand.dtype for operand in kind.computation.inputs])
        # Kernels of integers have im2col among their variants.
        copies_windows = self.method in ("auto", "explicit") and not _is_integer(kind)
        windows_us: dict[Layout, float] = {}
        for layouts in combinations:
            for target, plan in plans:
                method = WinogradMethod(kind, layouts, plan.parts_us, plan, target)
                if method.reads_in_place:
                    yield method
            if methods is None or not copies_windows:
                continue
            image = layouts.image
            if image not in windows_us:
                windows_us[image] = _windows_us(methods[1], Im2colMethod(kind, layouts, 0.0))
            if self._admits(limit, windows_us[image], kind.computation.macs):
                im2col = Im2colMethod(kind, layouts, windows_us[image])
                if im2col.is_possible:
                    yield im2col

    def _admits(self, limit: CostLimit, parts_us: float, macs: int) -> bool:
        """True if a method may pay, or is insisted on and possible."""
        return limit.admits(parts_us, macs) if self.method == "auto" else math.isfinite(parts_us)

    def _methods_for(self, dtypes: Sequence[str]) -> tuple[HardwareSpec, Methods] | None:
        """Return the first target for factors of some types, with its methods; None without any."""
        for leader in self.units.candidates(dtypes):
            # A target that is named multiplies the types that it is named for.
            if self.units.named not in (None, leader) and all(map(is_integer, dtypes)):
                continue
            target = next(each for each in with_alternatives(leader) if takes(each, dtypes))
            methods = methods_of(open_target(target))
            return None if methods is None else (target, methods)
        return None

    def _worth_searching(
        self, plans: Iterable[TargetPlan], limit: CostLimit
    ) -> Sequence[TargetPlan]:
        """Return the plans that no plan of another tile size is sure to beat."""
        sizes = [(each, each[1].parts_us, each[1].count * each[1].product.macs) for each in plans]
        if self.method != "auto" or not sizes:
            return [each for each, _, _ in sizes]
        best_us = min(limit.most_us(parts_us, macs) for _, parts_us, macs in sizes)
        return [each for each, us, macs in sizes if limit.least_us(us, macs) <= best_us]

    def _winograd_plans(self, kind: Product, limit: CostLimit) -> Iterator[TargetPlan]:
        """Yield plans of Winograd's method with the targets of their products."""
        for name, outputs in TILES.items():
            if self.method not in ("auto", name):
                continue
            try:
                method = winograd(kind.computation, outputs, channels_last=True)
            except WorkloadError:
                continue
            if not method.is_exact and error_growth(method) > MOST_GROWTH:
                continue
            on_target = self._methods_for([method.product.operand(name).dtype for name in (V, U)])
            if on_target is None:
                continue
            target, methods = on_target
            in_place = methods.in_place_plans(method, kind.dtype)
            plans = sorted(in_place, key=lambda plan: plan.parts_us)
            for plan in plans[:_BLOCKINGS]:
                if self._admits(limit, plan.parts_us, plan.count * plan.product.macs):
                    yield target, plan


def _windows_us(methods: Methods, method: Im2colMethod) -> float:
    """Return the estimated time of copying the windows of an image; infinite if that is impossible.

    Channels in blocks that are groups are an example.
    """
    try:
        return methods.conversion_us(method.windows)
    except (LoweringError, WorkloadError):
        return math.inf


def _is_integer(kind: Product) -> bool:
    return is_integer(kind.computation.output.dtype)


def suits(kind: Product) -> bool:
    """True if a product is a convolution of floats or bytes by windows of several taps."""
    types = [operand.dtype for operand in kind.computation.operands]
    of_bytes = all(dtype in BYTES for dtype in types[:-1])
    if not of_bytes and any(dtype not in UNIT_ROUNDOFF for dtype in types):
        return False
    try:
        conv = as_convolution(kind.computation)
    except WorkloadError:
        return False
    several = any(window.taps > 1 for window in conv.windows)
    return several and len(conv.channels) == 1 and len(conv.filters) == 1
