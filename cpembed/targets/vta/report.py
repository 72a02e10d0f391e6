"""Rows of reports and JSON documents on runs and trials on a VTA."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cpembed.targets.base import Details, Row
from cpembed.targets.vta.bounds import Bounds
from cpembed.targets.vta.lower import LoweredVta
from cpembed.targets.vta.program import VtaProgram
from cpembed.targets.vta.schedule import Schedule
from cpembed.targets.vta.tail import Requantized, form_of
from cpembed.targets.vta.timing import Timing
from cpembed.targets.vta.tuning import VtaTrial
from cpembed.wording import data_size, duration, plural


@dataclass(frozen=True)
class VtaDetails(Details):
    """Program with the inputs in its memory, its simulated cycles and their lower bounds;
    ``seconds`` is the wall time by phase.
    """

    lowered: LoweredVta
    program: VtaProgram
    timing: Timing
    bounds: Bounds
    clock_mhz: float
    seconds: dict[str, float]

    @property
    def microseconds(self) -> float:
        """Simulated cycles at the target's clock."""
        return self.timing.cycles / self.clock_mhz

    @property
    def gops(self) -> float:
        """Operations per nanosecond of simulated time: two for each multiply-accumulate of the
        workload, without padding.
        """
        return 2 * self.lowered.program.unfused.macs / (self.microseconds * 1e3)

    @property
    def lower_bound_ratio(self) -> float:
        """Cycles over the larger of GEMM and DMA cycles."""
        return self.timing.cycles / self.bounds.gemm_or_dma

    @property
    def busiest_module_ratio(self) -> float:
        """Cycles over those that the busiest module needs."""
        return self.timing.cycles / self.bounds.busiest_module

    def to_json(self) -> dict[str, Any]:
        tail = self.lowered.tail
        return {
            "output": {"form": form_of(tail), "dtype": tail.dtype, **asdict(tail)},
            **self._cycle_figures(),
            "busiest_module_cycles": self.bounds.busiest_module,
            "bounds": asdict(self.bounds),
            "bytes": dict(self.timing.bytes),
            "modules": {name: asdict(module) for name, module in self.timing.modules.items()},
            "memory": asdict(self.timing.memory),
            "instructions": len(self.program.instructions),
            "micro_ops": len(self.lowered.uops),
            "seconds": dict(self.seconds),
        }

    def bench_json(self) -> dict[str, Any]:
        tail = self.lowered.tail
        shift = {"shift": tail.shift} if isinstance(tail, Requantized) else {}
        return {"output": form_of(tail), **shift, **self._cycle_figures()}

    def _cycle_figures(self) -> dict[str, Any]:
        return {
            "simulated_cycles": self.timing.cycles,
            "clock_mhz": self.clock_mhz,
            "simulated_us": self.microseconds,
            "simulated_gops": self.gops,
            "gemm_utilisation": self.timing.gemm_utilisation,
            "lower_bound_cycles": self.bounds.gemm_or_dma,
            "lower_bound_ratio": self.lower_bound_ratio,
            "busiest_module_ratio": self.busiest_module_ratio,
        }

    def rows(self) -> list[Row]:
        timing, bounds = self.timing, self.bounds
        time = f"{duration(self.microseconds)} at {self.clock_mhz:g} MHz"
        size = f"{len(self.program.instructions):,} instructions"
        parts = f"GEMM {bounds.gemm:,}, reading {bounds.read:,}, writing {bounds.write:,}"
        least = f"{bounds.gemm_or_dma:,} cycles, the most of {parts}"
        transferred = (f"{name} {data_size(size)}" for name, size in timing.bytes.items())
        return [
            ("output", str(self.lowered.tail)),
            ("program", f"{size}, {len(self.lowered.uops):,} micro-ops"),
            ("simulated", f"{timing.cycles:,} cycles, {time}, {self.gops:.1f} GOPS"),
            ("", f"GEMM core busy {timing.gemm_utilisation:.1%} of them"),
            ("at least", f"{least}; the program takes {self.lower_bound_ratio:.3f} times that"),
            *self._with_alu(),
            ("moved", "  ".join(transferred)),
        ]

    def _with_alu(self) -> list[Row]:
        """Return the bound with resets and the ALU, if it is larger than that without."""
        bounds = self.bounds
        if bounds.busiest_module == bounds.gemm_or_dma:
            return []
        least = f"{bounds.busiest_module:,} cycles with GEMM's resets and the ALU"
        return [("", f"{least}, which share a module; {self.busiest_module_ratio:.3f} times")]


def schedule_text(schedule: Schedule) -> str:
    """Return a line such as ``tiles k.o:2  p.o:14; two threads along q.o; 2 regions of INP, 2 of
    WGT``.
    """
    sizes = "  ".join(f"{name}:{schedule.tiles[name]}" for name in schedule.order)
    along = f" along {schedule.thread_loop}" if schedule.thread_loop is not None else ""
    threads = f"two threads{along}" if schedule.threads == 2 else "one thread"
    regions = f"{plural(schedule.slots[0], 'region')} of INP, {schedule.slots[1]} of WGT"
    return f"tiles {sizes}; {threads}; {regions}"


def schedule_json(schedule: Schedule) -> dict[str, Any]:
    return {
        "tiles": {name: schedule.tiles[name] for name in schedule.order},
        "threads": schedule.threads,
        "thread_loop": schedule.thread_loop,
        "slots": {"inp": schedule.slots[0], "wgt": schedule.slots[1]},
    }


def tuning_rows(best: VtaTrial, untuned: VtaTrial, clock_mhz: float) -> list[Row]:
    """Return the rows that compare two trials.

    Parameters
    ----------
    best
        Trial of the fewest cycles.
    untuned
        Trial of the default schedule.
    clock_mhz
        Clock frequency of the target in MHz.
    """
    speedup = (untuned.cycles or 0) / (best.cycles or 1)
    return [
        ("untuned", f"{_cycles(untuned)}, {_ratios(untuned)}"),
        ("tuned", f"{_cycles(best)}, {_ratios(best)}; {speedup:.3f} times as fast"),
        ("", f"{duration((best.cycles or 0) / clock_mhz)} at the target's clock"),
    ]


def _cycles(trial: VtaTrial) -> str:
    return f"{trial.cycles or 0:,} cycles"


def _ratios(trial: VtaTrial) -> str:
    cycles = trial.cycles or 0
    least = f"{cycles / trial.lower_bound:.3f} times what GEMM or DMA alone takes"
    if trial.busiest_module == trial.lower_bound:
        return least
    return f"{least}, {cycles / trial.busiest_module:.3f} times with resets and the ALU"
