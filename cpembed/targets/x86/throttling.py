"""How fast the CPU's product instruction is at the moment.

On a shared machine a core's tile unit may be another guest's too, for a minute or a millisecond:
products then take two or three times as long, whoever asks for them, and nothing that the system
accounts for shows it. A loop of products on registers does.
"""

from __future__ import annotations

import math
import time
from functools import cache

from cpembed.codegen.runtime import compile_plan, thread_count
from cpembed.hw.instruction import HardwareSpec
from cpembed.targets.cpu.calibration import OPERATIONS, load_calibration
from cpembed.targets.x86 import microkernels
from cpembed.targets.x86.amx_tiles import MAX_ROWS
from cpembed.targets.x86.calibrate import FEATURES, product_of
from cpembed.targets.x86.features import lacking
from cpembed.targets.x86.microbenchmarks import BLOCK_PRODUCTS, VECTOR_ACCUMULATORS, Kernel

UNTHROTTLED = 1.5
"""Times what was calibrated, or the least that was seen here: clocks vary, and threads start."""

PATIENCE = 0.1
"""Seconds."""

_SAMPLE_NS = 100_000
"""On each thread."""
_STRETCHES = 10
_REGION = microkernels.BLOCK


class ThrottlingProbe:
    """A loop of a product instruction on all threads of a kernel, in registers."""

    def __init__(self, product: str, threads: int) -> None:
        tiles = product.startswith("tdp")
        count = VECTOR_ACCUMULATORS
        body = (
            microkernels.tile_products(product, BLOCK_PRODUCTS)
            if tiles
            else microkernels.vector_products(product, count, count)
        )
        plan = microkernels.plan(body, _REGION, threads, tiles=tiles)
        data = microkernels.varied_bytes(_REGION * threads)
        self._kernel = Kernel(compile_plan(plan), threads, data, MAX_ROWS)
        known = load_calibration()
        steps_ns = (7.0 * len(BLOCK_PRODUCTS)) if tiles else 0.2 * count
        self._steps = int(_SAMPLE_NS / steps_ns)
        products = len(BLOCK_PRODUCTS) if tiles else count
        per_thread = products * self._steps * _STRETCHES
        self.macs = OPERATIONS[product] // 2 * per_thread * threads
        """Multiply-accumulates of :meth:`stretch`, at the product's largest shape."""
        shared = None if known is None else known.product_shared_ns.get(product)
        self._best = math.inf if shared is None else shared * products * self._steps
        """Nanoseconds of the loop when nothing else had the unit."""

    @staticmethod
    def of(spec: HardwareSpec) -> ThrottlingProbe | None:
        """Of the target's instruction; None where it is none of this CPU's."""
        product = product_of(spec)
        if product is None or lacking(FEATURES[product]):
            return None
        return _probe(product, thread_count())

    def wait(self) -> bool:
        """Run the loop until it takes about as long as it did at best; False where it does not for
        :data:`PATIENCE` seconds.
        """
        deadline = time.perf_counter() + PATIENCE
        while not self.is_unthrottled():
            if time.perf_counter() > deadline:
                return False
        return True

    def stretch(self) -> None:
        """Products for about a millisecond, to be timed: what starting the threads takes does not
        show in it.
        """
        self._kernel.run(self._steps * _STRETCHES)

    def is_unthrottled(self) -> bool:
        """Whether the loop takes about as long as it did at best."""
        took = min(self._timed() for _ in range(2))
        self._best = min(self._best, took)
        return took <= UNTHROTTLED * self._best

    def _timed(self) -> float:
        started = time.perf_counter_ns()
        self._kernel.run(self._steps)
        return float(time.perf_counter_ns() - started)


@cache
def _probe(product: str, threads: int) -> ThrottlingProbe:
    """One for each: what it knows of the machine's best grows."""
    return ThrottlingProbe(product, threads)
