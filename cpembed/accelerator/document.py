"""Documents of networks on accelerators, as ``cpembed network --json`` prints them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from cpembed.accelerator.energy import EnergyTable, energy_table
from cpembed.accelerator.network import (
    AcceleratorNetwork,
    HostStep,
    LayoutStep,
    ProgramStep,
    Step,
    ViewStep,
)
from cpembed.accelerator.network_proof import StepProof
from cpembed.accelerator.network_run import NetworkRun, StepRun
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
        Proofs of its programs by operator.
    """
    machine = network.machine
    runs = {} if run is None else {s.step.operator.name: s for s in run.steps}
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
            "operators_on_machine": len(network.programs),
            "operators_proven": sum(proof.holds for proof in proofs.values()),
            "host_steps": len(network.on_host),
            "estimated_cycles": network.cycles,
            "bound_cycles": network.bound_cycles,
            "macs": sum(_macs(step) for step in network.programs),
            "host_us": math.fsum(us for us in host if us is not None),
            "host_steps_without_estimate": unknown,
        },
    }
    table = energy_table(machine)
    levels = _sum(step_energy(step, table) for step in network.programs)
    if run is not None:
        levels = _sum(each.energy for step in run.steps for each in step.runs)
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
    """Return the estimated picojoules by level of an operator's programs.

    Parameters
    ----------
    step : ProgramStep
    table : EnergyTable
        Energies of the machine.
    """
    return _sum(table.by_level(plan.cost.executions, plan.cost.moved) for plan in step.plans)


def _sum(mappings: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for mapping in mappings:
        for name, value in mapping.items():
            total[name] = total.get(name, 0.0) + value
    return total


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
    entry: dict[str, Any] = {"operator": step.operator.name, "label": step.operator.kind.label}
    if isinstance(step, ViewStep):
        return {"kind": "view", **entry}
    if isinstance(step, HostStep):
        return {"kind": "host", **entry, "reason": step.reason, "estimated_us": step.us}
    name = step.operator.name
    document = {"kind": "program", **entry, **_program(step, runs.get(name))}
    if name in proofs:
        proof = proofs[name]
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
                "instructions": [match.instruction.name for match in plan.problem.matches],
                "conditions": [c for match in plan.problem.matches for c in match.conditions],
                "estimated_cycles": plan.cost.cycles,
                "bound_cycles": plan.cycles_bound,
                "tilings": plan.compared,
            }
            for plan in step.plans
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
            "bytes": [
                {"memory": memory, "direction": direction, "bytes": count}
                for (memory, direction), count in outcome.total("moved").items()
            ],
            "executions": outcome.total("executions"),
            "energy_pj": outcome.energy_pj,
            "verified": outcome.is_right,
            "error": outcome.error,
            "measured_deviation": outcome.deviation,
        }
    return entry


def _macs(step: ProgramStep) -> int:
    """Return the multiply-accumulates of the operator itself."""
    kind = step.operator.kind
    return kind.computation.macs if isinstance(kind, Product) else 0
