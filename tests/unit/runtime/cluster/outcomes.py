"""Outcomes of tasks that all kinds of workers have to give."""

from __future__ import annotations

import os

import pytest

from cpembed.errors import LoweringError, WorkloadError
from cpembed.runtime.cluster import Task
from cpembed.runtime.cluster.executors import Workers
from tests.unit.runtime.cluster import tasks


def assert_all_work(workers: Workers, seconds: float) -> None:
    """Check that every task has one outcome, and that two other processes share the work."""
    assert workers.count == 2
    outcomes = list(workers.outcomes(tasks.squares(range(8), seconds)))
    assert sorted(int(outcome.task.key) for outcome in outcomes) == list(range(8))
    assert all(outcome.result[0] == int(outcome.task.key) ** 2 for outcome in outcomes)
    assert len({outcome.result[1] for outcome in outcomes} - {os.getpid()}) == 2


def assert_errors_are_outcomes(workers: Workers) -> None:
    """Check that errors of the package are outcomes of their tasks, and that bugs are raised."""
    three = [
        Task("a", tasks.refuse, (), "refusing"),
        Task("b", tasks.refuse_words, (), "refusing"),
        Task("c", tasks.square, (3,), "squaring"),
    ]
    outcomes = {outcome.task.key: outcome for outcome in workers.outcomes(three)}
    refused, worded, squared = (outcomes[key] for key in "abc")
    assert (type(refused.error), refused.error.exit_code) == (LoweringError, 5)
    assert (type(worded.error), str(worded.error)) == (WorkloadError, "the words are wrong")
    assert (squared.error, squared.result[0]) == (None, 9)
    with pytest.raises(KeyError, match="a bug") as caught:
        list(workers.outcomes([Task("d", tasks.fail, (), "failing")]))
    assert any("in fail" in note for note in caught.value.__notes__)
