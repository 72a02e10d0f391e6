"""Tuning on a VTA: the timed simulator counts cycles."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpembed.api.run_vta import VtaSimulation
from cpembed.api.solve import SolveResult
from cpembed.api.tuning import Task, TuneResult, Tuning
from cpembed.targets.vta.tuning_search import VtaSearch, measure
from cpembed.targets.vta.tuning_space import Machine, Proposal, design_of, distinct
from cpembed.targets.vta.tuning_trials import VtaTrial, key_of, result_form
from cpembed.tuning.database import store_of


@dataclass(frozen=True)
class VtaTuneResult(TuneResult[VtaTrial]):
    """``form`` is what of the output's form cycles depend on."""

    form: str
    clock_mhz: float

    def _about_json(self) -> dict[str, Any]:
        return {"form": self.form}

    def _trial_json(self, trial: VtaTrial) -> dict[str, Any]:
        cycles = trial.cycles or 0
        return {
            **super()._trial_json(trial),
            "us": cycles / self.clock_mhz,
            "lower_bound_ratio": cycles / trial.lower_bound,
            "busiest_module_ratio": cycles / trial.busiest_module,
        }


class VtaTuning(Tuning[VtaTrial, Proposal]):
    """Embeddings whose tile nests differ, in a simulation."""

    def __init__(
        self,
        task: Task,
        simulation: VtaSimulation,
        found: Sequence[SolveResult],
        database: Path,
    ) -> None:
        """``found`` holds embeddings; what runs untuned is the first of them."""
        self.simulation = simulation
        self._machine = Machine(simulation.config, simulation.memory, simulation.tail)
        self.designs = distinct(
            design_of(ranked.candidate, ranked.rank, solved.constraints.name, self._machine)
            for solved in found
            for ranked in solved.embeddings
        )
        key = key_of(task.workload, task.target, simulation.tail, task.constraints)
        store = store_of(database, key, VtaTrial)
        store.open()
        super().__init__(task, VtaSearch(self.designs, self._machine, task.seed), store, VtaTrial)

    def _measure(self, proposal: Proposal) -> VtaTrial:
        return measure(proposal, self._machine)

    def result(self) -> VtaTuneResult:
        best, untuned = self._outcome()
        return VtaTuneResult(
            self.task.workload,
            self.task.target,
            self.task.constraints.name,
            self.task.seed,
            len(self.designs),
            tuple(self.done),
            self.measured,
            self.kept,
            self.stopped,
            best,
            untuned,
            time.perf_counter() - self.task.started,
            self.store.path,
            result_form(self.simulation.tail),
            self.simulation.clock_mhz,
        )
