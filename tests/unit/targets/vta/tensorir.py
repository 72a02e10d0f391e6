"""A schedule as a TensorIR function that calls VTA's runtime.

The function is the nest of outer loops; its calls are the operations of
:class:`~cpembed.targets.vta.lower.Emitter`, which is the runtime: it decides what is in SRAM
already, caches micro-ops and places tokens. Compiled and run, it records the instructions that
:func:`~cpembed.targets.vta.lower.emit` makes by walking the same steps itself. That is the way
taken: compiling the function takes longer than making the program.
"""
# pyright: basic

from __future__ import annotations

import re

from cpembed.codegen import runtime
from cpembed.codegen.plan import HEADER, KernelPlan, Script, buffer
from cpembed.ir.computation import AxisKind
from cpembed.targets.vta.lower import Addresses, Emitted, Emitter
from cpembed.targets.vta.schedule import Schedule, check_schedule, paired_loop
from cpembed.targets.vta.tail import Tail
from cpembed.targets.vta.tiles import TileNest

PREFIX = "cpembed.vta."
"""Of the runtime's functions: reset, load, multiply, finish."""


def tensorir_source(nest: TileNest, schedule: Schedule) -> str:
    """TVMScript of a schedule.

    Every call has a thread, and the first value and the size of each loop's tile, in the order of
    the nest's loops; ``load`` has the number of the factor (INP, WGT) in place of the thread.

    Raises :class:`LoweringError` where the schedule does not belong to the nest or does not fit.
    """
    check_schedule(nest, schedule)
    return _Writer(nest, schedule).text()


def emit_through_tensorir(
    nest: TileNest, schedule: Schedule, tail: Tail, addresses: Addresses
) -> Emitted:
    """The program that the compiled TensorIR function records; see :func:`emit`."""
    import tvm_ffi

    emitter = Emitter(nest, schedule, tail, addresses)
    names = list(nest.extents)

    def tile(values: tuple[int, ...]) -> dict[str, tuple[int, int]]:
        pairs = zip(values[::2], values[1::2], strict=True)
        return dict(zip(names, pairs, strict=True))

    operations = {
        "reset": lambda thread, *values: emitter.reset(thread, tile(values)),
        "load": lambda factor, *values: emitter.load(nest.factors[factor], tile(values)),
        "multiply": lambda thread, *values: emitter.multiply(thread, tile(values)),
        "finish": lambda thread, *values: emitter.finish(thread, tile(values)),
    }
    for name, operation in operations.items():
        tvm_ffi.register_global_func(PREFIX + name, operation, override=True)
    function = runtime.compile_plan(KernelPlan("vta", tensorir_source(nest, schedule)))
    function(runtime.empty(1, "int8"))
    return emitter.emitted()


class _Writer:
    def __init__(self, nest: TileNest, schedule: Schedule) -> None:
        self.nest = nest
        self.schedule = schedule
        self.paired = paired_loop(nest, schedule)
        self.variables = {
            name: f"{re.sub(r'[^A-Za-z0-9_]', '_', name)}_{k}"
            for k, name in enumerate(nest.extents)
        }
        self.trips = {
            name: -(-extent // schedule.tiles[name]) for name, extent in nest.extents.items()
        }
        kinds = {loop.name: loop.kind for loop in nest.loops}
        self.reduction = [n for n in schedule.order if kinds[n] is AxisKind.REDUCTION]

    def text(self) -> str:
        # A function has a buffer, so that it is called as every other kernel is.
        script = Script()
        script.line(HEADER)
        pair = self.paired
        with script.nested(f"def main({buffer('Nothing', 1, 'int8')}):"):
            script.line('T.func_attr({"global_symbol": "main"})')
            headers = [self._loop(name) for name in self.schedule.order]
            if pair is not None:
                headers += [
                    "for thread in T.serial(2):",
                    f"if {self._index(pair)} < {self.trips[pair]}:",
                ]
            with script.nested(*headers):
                self._step(script)
        return script.text()

    def _loop(self, name: str) -> str:
        trips = self.trips[name]
        trips = -(-trips // 2) if name == self.paired else trips
        return f"for {self.variables[name]} in T.serial({trips}):"

    def _index(self, name: str) -> str:
        """Which tile of a loop a step has."""
        variable = self.variables[name]
        return f"({variable} * 2 + thread)" if name == self.paired else variable

    def _step(self, script: Script) -> None:
        tile = ", ".join(self._interval(name) for name in self.nest.extents)
        thread = self._thread()

        def call(operation: str, first: str) -> str:
            return f'T.evaluate(T.call_packed("{PREFIX}{operation}", {first}, {tile}))'

        with script.nested(f"if {self._at(last=False)}:"):
            script.line(call("reset", thread))
        for factor in range(len(self.nest.factors)):
            script.line(call("load", str(factor)))
        script.line(call("multiply", thread))
        with script.nested(f"if {self._at(last=True)}:"):
            script.line(call("finish", thread))

    def _interval(self, name: str) -> str:
        size, extent = self.schedule.tiles[name], self.nest.extents[name]
        first = f"{self._index(name)} * {size}"
        whole = extent % size == 0
        return f"{first}, {size if whole else f'T.min({size}, {extent} - {first})'}"

    def _at(self, *, last: bool) -> str:
        """Whether a step is the first or the last of its output tile."""
        ends = [
            f"{self.variables[name]} == {self.trips[name] - 1 if last else 0}"
            for name in self.reduction
        ]
        return " and ".join(ends) or "True"

    def _thread(self) -> str:
        """Neighbours along the thread loop, else consecutive output tiles, take turns."""
        if self.paired is not None:
            return "thread"
        number = "0"
        for name in self.schedule.order:
            if name not in self.reduction:
                number = f"({number} * {self.trips[name]} + {self.variables[name]})"
        return f"{number} % {self.schedule.threads}"
