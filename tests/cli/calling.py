"""Calling the command line in this process and in one of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from cpembed.cli import main
from cpembed.runtime.worker import IN_PROCESS_VARIABLE

PROGRESS = re.compile(r"^cpembed: .* \(\d+ s\)\n", re.MULTILINE)
"""Lines of a call that takes long, as any may where other work is done too."""


@dataclass(frozen=True)
class Called:
    """What a person and a script see of one call."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def is_one_line_error(self, code: int, *parts: str) -> None:
        """Nothing on stdout, one line on stderr that names what and where."""
        assert (self.code, self.out) == (code, ""), self
        assert self.err.startswith("cpembed: "), self.err
        assert self.err.count("\n") == 1, self.err
        for part in parts:
            assert part in self.err


class Caller:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Called:
        self._capsys.readouterr()
        code = main(arguments)
        captured = self._capsys.readouterr()
        return Called(code, captured.out, PROGRESS.sub("", captured.err))


def in_a_process(*arguments: str, script: str | None = None) -> Called:
    """``python -m cpembed ARGUMENTS``, or a script of Python, as a person calls it: kernels are
    built and run in a worker."""
    how = ["-m", "cpembed"] if script is None else ["-c", script]
    environment = {key: text for key, text in os.environ.items() if key != IN_PROCESS_VARIABLE}
    done = subprocess.run(
        [sys.executable, *how, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**environment, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    return Called(done.returncode, done.stdout, PROGRESS.sub("", done.stderr))
