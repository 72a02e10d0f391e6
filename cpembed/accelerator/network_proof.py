"""Proofs of a network's programs, with what each passes on to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cpembed.accelerator.network import AcceleratorNetwork, ProgramStep
from cpembed.accelerator.proof import ProgramProof, prove
from cpembed.steps import Progress, silent


@dataclass(frozen=True)
class StepProof:
    """Proofs of the programs of one operator."""

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


def prove_network(
    network: AcceleratorNetwork, progress: Progress = silent
) -> Mapping[str, StepProof]:
    """Prove every program of a network.

    Parameters
    ----------
    network : AcceleratorNetwork
    progress : Progress, optional
        Told each operator by its name.

    Returns
    -------
    mapping of str to StepProof
        Proofs by operator. A program that is not proven is a result, with the reason.
    """
    proofs: dict[str, StepProof] = {}
    # Graph tensors whose margins a program may have overwritten.
    spoiled: set[str] = set()
    steps = network.programs
    for number, step in enumerate(steps):
        progress(f"proving {step.operator.name}", number, len(steps))
        of_graph = {name: tensor.name for name, tensor in step.form.tensors.items()}
        outcomes: list[ProgramProof] = []
        inside: set[str] = set()
        for program in step.programs:
            margins = {n for n in program.tensors if n in inside or of_graph.get(n) in spoiled}
            proof = prove(program, spoiled_margins=margins)
            outcomes.append(proof)
            inside.update(proof.spoiled_margins)
        spoiled.update(of_graph[name] for name in inside if name in of_graph)
        proofs[step.operator.name] = StepProof(step, tuple(outcomes))
    return proofs
