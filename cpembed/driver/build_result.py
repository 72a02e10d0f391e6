"""What a build wrote, and of what."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpembed.driver.plan import MethodChoice, Selection
from cpembed.driver.run_result import RunResult
from cpembed.ir.computation import Computation
from cpembed.measure.runner import Quantiles
from cpembed.measure.verification import Verification
from cpembed.targets.choice import Choice


@dataclass(frozen=True)
class BuildResult:
    """What was written into ``folder``: ``files``, by name. ``chosen`` is what they compute and
    ``choice`` how. ``linked``: there is a library, of whose calls ``verification`` and ``call_us``
    are, from the inputs' layouts to the output's; None where this processor lacks something.
    Otherwise there is what a library is made of elsewhere, or a program, and what executes those
    here verified them. ``run``: of a target without libraries.
    ``method``: by which a convolution is computed, None for the implicit one; ``chosen`` is then
    its product."""

    chosen: Selection
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
        """What the library computes."""
        return self.chosen.solved.workload if self.method is None else self.method.workload

    @property
    def missing(self) -> tuple[str, ...]:
        """What kept the target's instruction from being used."""
        return self.chosen.plan.missing

    def to_json(self) -> dict[str, Any]:
        """The document of ``build --json``."""
        chosen, verification = self.chosen, self.verification
        asked = chosen.solved if chosen.instead is None else chosen.instead.solved
        return {
            "workload": str(self.workload),
            "target": asked.target.name,
            "executed": chosen.solved.target.name,
            "native": chosen.plan.native,
            "missing": list(self.missing),
            "candidate": self.choice.candidate.identifier,
            "stored": chosen.plan.target.stored_type(chosen.solved.workload, chosen.plan.epilogue),
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
