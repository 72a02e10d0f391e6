"""Result of a build: the files that were written, with their verification."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpembed.blocks import Displayed
from cpembed.driver.plan import MethodChoice, Selection
from cpembed.driver.run_result import RunResult
from cpembed.ir.computation import Computation
from cpembed.runtime.measurement.runner import Quantiles
from cpembed.runtime.measurement.verification import Verification
from cpembed.targets.choice import Choice
from cpembed.targets.outputs import stored_type


@dataclass(frozen=True, repr=False)
class BuildResult(Displayed):
    """Files that were written, with their verification.

    Parameters
    ----------
    selection : Selection
        Search and candidate that the files implement; of a method, those of its product.
    choice : Choice
        Candidate and schedule that were compiled.
    name : str
        Name of the library, or of the folder with the program.
    folder : Path
        Folder that was written.
    files : tuple of str
        Names of the files, relative to ``folder``.
    verification : Verification, optional
        Verification of the library, or by an emulator or simulator; None if this processor lacks a
        feature that the library needs.
    call_us : Quantiles, optional
        Microseconds of one call of the library on inputs and output in their own layouts.
    linked : bool
        True if there is a library; False if there are only its objects for another machine, or the
        program of a target without libraries.
    features : tuple of str
        CPU features that the library needs.
    run : RunResult, optional
        Run that verified the program of a target without libraries.
    method : MethodChoice, optional
        Method that computes a convolution; None for the implicit one.
    """

    selection: Selection
    choice: Choice
    name: str
    folder: Path
    files: tuple[str, ...]
    verification: Verification | None = None
    call_us: Quantiles | None = None
    linked: bool = True
    features: tuple[str, ...] = ()
    run: RunResult | None = field(default=None, repr=False)
    method: MethodChoice | None = None

    @property
    def workload(self) -> Computation:
        """Computation of the library."""
        return self.selection.solved.workload if self.method is None else self.method.workload

    @property
    def missing(self) -> tuple[str, ...]:
        """Reasons why the target's instruction is not used."""
        return self.selection.plan.missing

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``build --json``."""
        selection, verification = self.selection, self.verification
        requested = selection.requested
        return {
            "workload": str(self.workload),
            "target": requested.target.name,
            "executed": selection.solved.target.name,
            "native": selection.plan.native,
            "missing": list(self.missing),
            "candidate": self.choice.ranked.identifier,
            "stored": stored_type(
                selection.plan.target, selection.solved.workload, selection.plan.epilogue
            ),
            "name": self.name,
            "folder": str(self.folder),
            "files": list(self.files),
            "linked": self.linked,
            "cpu_features": list(self.features),
            "verified": None if verification is None else verification.verified,
            "max_error": None if verification is None else verification.max_error,
            "special_values": None if verification is None else verification.special_values,
            **({} if self.method is None else {"method": self._method()}),
            "call_us": None if self.call_us is None else self.call_us.median,
        }

    def _method(self) -> dict[str, Any]:
        assert self.method is not None
        return {"name": self.method.method.name, **self.method.to_json()}
