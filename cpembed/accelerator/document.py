"""Documents of networks on accelerators, as ``cpembed network --json`` prints them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cpembed.accelerator.cost import moved_entries, summed
from cpembed.accelerator.energy import EnergyTable, energy_table
from cpembed.accelerator.lowering import OperatorPlan
from cpembed.accelerator.matching import Match
from cpembed.accelerator.network_proof import StepProof
from cpembed.accelerator.network_run import NetworkRun, StepRun
from cpembed.accelerator.network_steps import (
    AcceleratorNetwork,
    Chain,
    LayoutStep,
    ProgramStep,
    Step,
    ViewStep,
)
from cpembed.graph.kinds import Product
from cpembed.provenance import Provenance


def network_document(
    network: AcceleratorNetwork,
    run: NetworkRun | None = None,
    proofs: Mapping[str, StepProof] | None = None,
) -> dict[str, Any]:
    """Return the document of a planned network, with what a run counted and what was proven.

    Parameters
    ----------
    network : AcceleratorNetwork
    run : NetworkRun, optional
        Outcome of a run of the same network.
    proofs : mapping of str to StepProof, optional
        Proofs of its programs by step.
    """
    machine = network.machine
    runs = {} if run is None else {s.step.name: s for s in run.steps}
    proofs = proofs or {}
    host = [step.us for step in network.on_host]
    unknown = sum(us is None for us in host)
    document: dict[str, Any] = {
        "network": network.graph.name,
        "target": machine.name,
        "main_memory": machine.main.name,
        "clock_mhz": machine.clock_mhz,
        "provenance": (Provenance.ESTIMATED if run is None else Provenance.EMULATED).value,
        "steps": [_step(step, runs, proofs) for step in network.steps],
        "totals": {
            "programs": sum(len(step.programs) for step in network.programs),
            "operators_on_machine": sum(len(step.operators) for step in network.programs),
            "operators_proven": sum(
                len(proof.step.operators) for proof in proofs.values() if proof.holds
            ),
            "chains": sum(step.chain is not None for step in network.programs),
            "main_bytes": network.main_bytes,
            "main_bytes_saved": sum(_saved_bytes(step) for step in network.programs),
            "host_steps": len(network.on_host),
            "estimated_cycles": network.cycles,
            "bound_cycles": network.bound_cycles,
            "macs": sum(_macs(step) for step in network.programs),
            "host_us": math.fsum(us for us in host if us is not None),
            "host_steps_without_estimate": unknown,
        },
    }
    table = energy_table(machine)
    levels = summed(step_energy(step, table) for step in network.programs)
    if run is not None:
        levels = summed(each.energy for step in run.steps for each in step.runs)
    document["totals"] |= {
        "energy_pj": math.fsum(levels.values()),
        "energy_by_level_pj": levels,
        "energy_sources": dict(table.sources),
    }
    if run is not None:
        document["totals"] |= {
            "cycles": run.cycles,
            "us": run.cycles / machine.clock_mhz,
            "verified": run.is_right,
            "largest_deviation": max((step.deviation for step in run.steps), default=0.0),
        }
    return document


def step_energy(step: ProgramStep, table: EnergyTable) -> dict[str, float]:
    """Return the estimated picojoules by level of an operator's programs."""
    return summed(table.by_level(cost.executions, cost.moved) for cost in step.costs)


def _step(
    step: Step, runs: Mapping[str, StepRun], proofs: Mapping[str, StepProof]
) -> dict[str, Any]:
    if isinstance(step, LayoutStep):
        return {
            "kind": "layout",
            "tensor": step.tensor,
            "reason": step.reason,
            "estimated_us": step.us,
        }
    if isinstance(step, ProgramStep):
        return _program_step(step, runs.get(step.name), proofs.get(step.name))
    entry: dict[str, Any] = {"operator": step.operator.name, "label": step.operator.kind.label}
    if isinstance(step, ViewStep):
        return {"kind": "view", **entry}
    return {"kind": "host", **entry, "reason": step.reason, "estimated_us": step.us}


def _program_step(
    step: ProgramStep, outcome: StepRun | None, proof: StepProof | None
) -> dict[str, Any]:
    labels = ", ".join(dict.fromkeys(operator.kind.label for operator in step.operators))
    document: dict[str, Any] = {
        "kind": "program",
        "operator": step.name,
        "operators": [operator.name for operator in step.operators],
        "label": labels,
        **_program(step, outcome),
    }
    if step.chain is not None:
        document["chain"] = _chain(step, step.chain)
    if proof is not None:
        document |= {
            "proven": proof.holds,
            "proof": {
                "mechanisms": list(proof.mechanisms),
                "refusal": proof.refusal,
                "assumptions": list(
                    dict.fromkeys(a for outcome in proof.proofs for a in outcome.assumptions)
                ),
            },
        }
    return document


def _program(step: ProgramStep, outcome: StepRun | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "programs": [
            {
                "instructions": [match.instruction.name for match in _matches(plans)],
                "conditions": [c for match in _matches(plans) for c in match.conditions],
                "estimated_cycles": cost.cycles,
                "bound_cycles": math.fsum(plan.cycles_bound for plan in plans),
                "main_bytes": cost.main_bytes,
                "tilings": sum(plan.compared for plan in plans),
                "rows": _most_rows(plans),
            }
            for plans, cost in zip(step.plans_of_programs, step.costs, strict=True)
        ],
        "estimated_cycles": step.cycles,
        "bound_cycles": step.cycles_bound,
        "macs": _macs(step),
        "deviation": step.form.specification.deviation,
        "host": [
            {
                "after_programs": part.after,
                "statements": [str(s.computation) for s in part.specification.statements],
                "reason": part.reason,
                "estimated_us": part.us,
            }
            for part in step.host
        ],
    }
    if outcome is not None:
        entry |= {
            "cycles": outcome.cycles,
            "unit_cycles": outcome.total("unit_cycles"),
            "bytes": moved_entries(outcome.total("moved")),
            "executions": outcome.total("executions"),
            "energy_pj": outcome.energy_pj,
            "verified": outcome.is_right,
            "error": outcome.error,
            "measured_deviation": outcome.deviation,
        }
    return entry


def _most_rows(plans: Sequence[OperatorPlan]) -> dict[str, int]:
    """Return the most rows of each memory that a plan works in."""
    memories = dict.fromkeys(name for plan in plans for name in plan.rows)
    return {m: max(plan.rows.get(m, 0) for plan in plans) for m in memories}


def _matches(plans: Sequence[OperatorPlan]) -> Iterator[Match]:
    return (match for plan in plans for match in plan.problem.matches)


def _chain(step: ProgramStep, chain: Chain) -> dict[str, Any]:
    return {
        "residents": [
            {
                "tensor": resident.tensor,
                "memory": resident.memory,
                "first_row": resident.row,
                "rows": resident.rows,
                "bytes": resident.bytes,
            }
            for resident in chain.residents
        ],
        "estimated_cycles_apart": chain.cycles_apart,
        "main_bytes_apart": chain.bytes_apart,
        "main_bytes_saved": _saved_bytes(step),
        "selected_cycles": chain.selected_cycles,
        "selected_cycles_bound": chain.selected_bound,
        "selection_optimal": chain.is_optimal,
        "selection_gap": chain.gap,
    }


def _saved_bytes(step: ProgramStep) -> int:
    """Return the bytes of main memory that tensors on chip save; 0 for one operator."""
    return 0 if step.chain is None else step.chain.bytes_apart - step.main_bytes


def _macs(step: ProgramStep) -> int:
    """Return the multiply-accumulates of the operators themselves."""
    kinds = (operator.kind for operator in step.operators)
    return sum(kind.computation.macs for kind in kinds if isinstance(kind, Product))
