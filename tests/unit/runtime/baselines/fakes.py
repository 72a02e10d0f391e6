"""A baseline that needs no library: the reference itself, at a pace that a test sets."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from cpembed.ir.reference import reference
from cpembed.runtime.baselines import Arrays, Contender, NotCovered, Primitives, Subject


@dataclass
class FakeForm:
    """``seconds`` a call; ``primitive_us`` is what it says of itself."""

    form: str
    result: NDArray[Any]
    seconds: float = 1e-4
    primitive_us: float | None = None
    reorder_us: float = 0.0
    calls: int = 0

    def run(self) -> None:
        self.calls += 1
        time.sleep(self.seconds)

    def output(self) -> NDArray[Any]:
        return self.result

    def primitives(self, calls: int) -> Primitives | None:
        if self.primitive_us is None:
            return None
        self.calls += calls
        return Primitives(self.primitive_us, self.reorder_us, 0.0, ("fake:isa",))


def right_form(subject: Subject, inputs: Arrays) -> Sequence[Contender] | NotCovered:
    return [FakeForm("right", reference(subject.workload, inputs), primitive_us=100.0)]


@dataclass
class FakeBaseline:
    forms: Callable[[Subject, Arrays], Sequence[Contender] | NotCovered] = right_form
    version: str = "1"
    name: str = "fake"
    pool: str = "fake"
    subjects: list[Subject] = field(default_factory=list[Subject])

    def identity(self) -> dict[str, str | None]:
        return {"version": self.version}

    def contenders(self, subject: Subject, inputs: Arrays) -> Sequence[Contender] | NotCovered:
        self.subjects.append(subject)
        return self.forms(subject, inputs)
