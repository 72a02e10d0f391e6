from __future__ import annotations

import pytest

from tests.experiments.loading import committed, script

run = script("hasco2021/tensorize_choices")


@pytest.mark.parametrize("name, target", run.PAPER)
def test_choices_are_as_many_as_in_the_paper(name: str, target: str) -> None:
    found = run.tensorize_choices(run.WORKLOADS[name], name.split(",", maxsplit=1)[0], target)
    assert len(found) == run.PAPER[name, target][0]


def test_structure_matching_refuses_loops_of_one_index() -> None:
    product = run.WORKLOADS["conv2d"]
    found = run.tensorize_choices(product, "conv2d", "gemm_16x16x16")
    assert run.leaf_subsets(product, "conv2d", "gemm_16x16x16") == 126
    refused = {c for c in found if not run.distinct_indices(product, "conv2d", c)}
    assert refused == {frozenset("kxr"), frozenset("kys")}


def test_committed_results_agree() -> None:
    document = committed("hasco2021/tensorize_choices")
    assert len(document["rows"]) == len(run.WORKLOADS) * len(run.TARGETS)
    assert all(map(run.agrees, document["rows"]))
