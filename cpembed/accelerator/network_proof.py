"""Proofs of a network's programs, with what each passes on to the next."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from cpembed.accelerator.host import copy_us
from cpembed.accelerator.network_steps import AcceleratorNetwork, LayoutStep, ProgramStep, Step
from cpembed.accelerator.proof import ProgramProof, prove
from cpembed.hw.isa import InstructionSet
from cpembed.steps import Progress, silent


@dataclass(frozen=True)
class StepProof:
    """Proofs of the programs of one step."""

    step: ProgramStep
    proofs: tuple[ProgramProof, ...]

    @property
    def holds(self) -> bool:
        """True if every program computes its statements."""
        return all(proof.holds for proof in self.proofs)

    @property
    def refusal(self) -> str:
        """Reason of the first program that is not proven; empty if all are."""
        return next((proof.refusal for proof in self.proofs if not proof.holds), "")

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Mechanisms that followed values through the memories."""
        return tuple(dict.fromkeys(proof.mechanism for proof in self.proofs if proof.holds))


@dataclass(frozen=True)
class ProvenNetwork:
    """Network with the proofs of its programs by step.

    ``network`` has a change of layout more for each tensor whose margins a program may have
    overwritten, before the next program that reads them.
    """

    network: AcceleratorNetwork
    proofs: Mapping[str, StepProof]


def prove_network(network: AcceleratorNetwork, progress: Progress = silent) -> ProvenNetwork:
    """Prove every program of a network.

    Returns
    -------
    ProvenNetwork
        A program that is not proven is a result, with the reason.
    """
    proofs: dict[str, StepProof] = {}
    steps: list[Step] = []
    # Graph tensors whose margins a program may have overwritten.
    spoiled: set[str] = set()
    for number, step in enumerate(network.steps):
        if isinstance(step, ProgramStep):
            progress(f"proving {step.name}", number, len(network.steps))
            for repair in _repairs(step, spoiled, network.machine):
                steps.append(repair)
                spoiled.discard(repair.tensor)
            proof, overwritten = _prove_step(step)
            proofs[step.name] = proof
            spoiled.update(overwritten)
        steps.append(step)
    return ProvenNetwork(replace(network, steps=tuple(steps)), proofs)


def _repairs(
    step: ProgramStep, spoiled: Collection[str], machine: InstructionSet
) -> Iterator[LayoutStep]:
    """Yield the changes of layout that restore the margins which a step reads."""
    for name in filter(step.has, step.form.specification.inputs):
        tensor, layout = step.form.tensors[name], step.layout(name, is_read=True)
        if tensor.name in spoiled and any((*layout.before, *layout.after)):
            reason = f"{step.name} reads margins, which may be overwritten"
            yield LayoutStep(tensor.name, layout, reason, copy_us(layout.elements, machine))


def _prove_step(step: ProgramStep) -> tuple[StepProof, set[str]]:
    """Prove the programs of a step; return also the graph's tensors with overwritten margins."""
    outcomes: list[ProgramProof] = []
    inside: set[str] = set()
    for program in step.programs:
        proof = prove(program, spoiled_margins={n for n in program.tensors if n in inside})
        outcomes.append(proof)
        inside.update(proof.spoiled_margins)
    tensors = step.form.tensors
    return StepProof(step, tuple(outcomes)), {tensors[n].name for n in inside if n in tensors}
