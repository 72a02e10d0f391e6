"""`explain --chosen` says that a program is proven: a target's variant must be proven for it."""

from __future__ import annotations

import pytest

from cpembed.driver import explain
from cpembed.driver.explain import ChosenExplanation, explain_chosen
from cpembed.driver.named import workload
from cpembed.driver.plan import Request
from cpembed.errors import InvariantError


def test_the_candidate_that_is_shown_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(workload("gemm m=8 n=16 k=16", "vta_1x16x16"), "vta_1x16x16")
    assert isinstance(explain_chosen(request), ChosenExplanation)

    def reject(target: object, candidate: object) -> None:
        raise InvariantError("not proven")

    monkeypatch.setattr(explain, "require_candidate", reject)
    with pytest.raises(InvariantError, match="not proven"):
        explain_chosen(request)
