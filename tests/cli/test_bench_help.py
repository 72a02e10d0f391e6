"""What the help of ``bench`` names is what there is."""

from __future__ import annotations

from cpembed.targets.x86.target import openers
from cpembed.workloads.suites import SUITES
from tests.cli.calling import Caller


def test_the_help_names_every_suite_and_baseline(cpembed: Caller) -> None:
    words = cpembed("bench", "--help").out.replace(",", " ").replace(".", " ").split()
    assert {*SUITES, *openers()} <= set(words)
