"""The worker as this process sees it: tasks go in, answers come out, silence is noticed."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 120.0
"""Seconds without an answer after which a worker is taken to hang."""

STARTING = 300.0
"""Seconds that a worker has to import torch and open the device."""


@dataclass
class Outcome:
    """Outcome of a layer: the worker's measurements, and the failed or wrong implementations."""

    times: dict[str, Any] = field(default_factory=dict[str, Any])
    about: dict[str, Any] = field(default_factory=dict[str, Any])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    wrong: dict[str, str] = field(default_factory=dict[str, str])
    trouble: str | None = None


class Conversation:
    """Tasks and answers of a worker, which is started again if it ended or hung."""

    def __init__(
        self, command: Sequence[str], patience: float = PATIENCE, starting: float = STARTING
    ) -> None:
        self.command, self.patience, self.starting = command, patience, starting
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str | None] = queue.Queue()

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def device(self, *, ceilings: bool = True) -> dict[str, Any]:
        """Return the device, with the rates that it reaches unless ``ceilings`` is False.

        Raises :class:`RuntimeError` if it cannot be used.
        """
        self._tell({"task": "device", "ceilings": ceilings})
        while True:
            answer = self._answer(self.patience)
            if answer is None:
                raise RuntimeError(f"the device cannot be used: {self._end()}")
            if answer["event"] == "unusable":
                raise RuntimeError(f"the device cannot be used: {answer['reason']}")
            if answer["event"] == "done":
                return {name: value for name, value in answer.items() if name != "event"}

    def layer(self, slug: str) -> Outcome:
        """Measure a layer.

        An implementation with which the worker ends or stays silent is left out, and the others are
        tried again.
        """
        outcome = Outcome()
        while True:
            trying = self._once(slug, outcome)
            if trying is None:
                return outcome
            name, step = trying
            ended = self._end()
            self.stop()
            if name == "" or name in outcome.failed:
                # A failure that the worker told of is no second one.
                if name == "":
                    outcome.trouble = f"{step}: {ended}"
                    return outcome
                continue
            outcome.failed[name] = f"{step}: {ended}"

    def _once(self, slug: str, outcome: Outcome) -> tuple[str, str] | None:
        """Return None if all is done, else what was being tried when the answers ended."""
        skip = [*outcome.failed, *outcome.wrong]
        trying = ("", "starting")
        try:
            self._tell({"task": "layer", "slug": slug, "skip": skip})
        except (OSError, RuntimeError):
            return trying
        trying = ("", "reading the layer")
        while True:
            answer = self._answer(self.patience)
            if answer is None:
                return trying
            event, name = answer["event"], answer.get("name", "")
            if event == "trying":
                trying = (name, answer["what"])
            elif event in ("failed", "wrong"):
                getattr(outcome, event)[name] = answer["reason"]
                trying = (name, trying[1])
            elif event == "unusable":
                return "", answer["reason"]
            elif event == "done":
                outcome.times, outcome.about = answer["times"], answer["about"]
                return None

    def _tell(self, task: dict[str, Any]) -> None:
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()

    def _start(self) -> None:
        self._answers = queue.Queue()
        self._process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        threading.Thread(
            target=_read, args=(self._process.stdout, self._answers), daemon=True
        ).start()
        answer = self._answer(self.starting)
        if answer is None:
            raise RuntimeError(f"the worker does not start: {self._end()}")
        if answer["event"] == "unusable":
            raise RuntimeError(answer["reason"])

    def _answer(self, seconds: float) -> dict[str, Any] | None:
        """Return the next answer; None if there is none in time, or if the worker has ended."""
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            return None
        return None if line is None else json.loads(line)

    def _end(self) -> str:
        """Return how the worker ended."""
        assert self._process is not None
        try:
            status = self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            return f"no answer in {self.patience:g} s"
        if status < 0:
            return f"its process ended by signal {-status}"
        return f"its process ended with status {status}"


def _read(lines: Any, answers: queue.Queue[str | None]) -> None:
    for line in lines:
        answers.put(line)
    answers.put(None)
