"""The process that touches the device: it reads a layer as a line of JSON, and answers in lines.

Before it begins with an implementation it says so: if it ends or stays silent, whoever reads its
answers knows which one it was.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.remote import data, implementations, reference
from benchmarks.gpu.remote.device import Clock, ceilings, description, warm_up
from benchmarks.gpu.remote.driver import Driver, DriverError, architecture
from benchmarks.gpu.remote.implementations import Implementation
from benchmarks.gpu.remote.timing import Samples, rounds

import torch  # isort: skip

Answer = Callable[[dict[str, Any]], None]

POISONED = 3
"""Exit status if a kernel failed: no other can run in this process after it."""


class Worker:
    """Checks and times the implementations of layers.

    ``where`` is torch's device of operands and results, ``clock`` times a call.
    """

    def __init__(
        self,
        root: Path,
        seconds: float,
        say: Answer,
        driver: Driver,
        clock: Callable[[Callable[[], None]], float],
        cubin: str,
        where: str = "cuda",
    ) -> None:
        self.root, self.seconds, self.say = root, seconds, say
        self.driver, self.clock, self.cubin, self.where = driver, clock, cubin, where

    def layer(self, slug: str, skip: list[str]) -> None:
        path = self.root / "layers" / f"{slug}.json"
        layer = json.loads(path.read_text(encoding="utf-8"))
        arrays = data.inputs(layer)
        operands = implementations.operands_on(arrays, self.where)
        exact = reference.exact(layer, arrays, self.where)
        right: dict[str, Implementation] = {}
        for name, make in self._all(layer, operands).items():
            if name not in skip:
                implementation = self._checked(name, make, exact, layer)
                if implementation is not None:
                    right[name] = implementation
        samples = self._timed(right)
        self.say({"event": "done", "times": times(samples), "about": abouts(right)})

    def _all(
        self, layer: Mapping[str, Any], operands: Mapping[str, torch.Tensor]
    ) -> dict[str, Callable[[], Implementation]]:
        """Return how each implementation is made, by name."""
        makers: dict[str, Callable[[], Implementation]] = {}
        for variant in (*layer["variants"], *(r for r in layer["rules"] if "folder" in r)):
            makers[variant["name"]] = lambda variant=variant: implementations.packed(
                layer, variant, self.root, self.driver, self.cubin, operands
            )
        calls = implementations.libraries(layer, operands)
        if layer["kind"] == "gemm":
            try:
                from benchmarks.gpu.remote.triton_product import product
            except ImportError:
                pass
            else:
                first, second = (operands[operand["name"]] for operand in layer["inputs"])
                calls["Triton"] = lambda: product(first, second)
        for name, call in calls.items():
            makers[name] = lambda name=name, call=call: implementations.library(name, call)
        return makers

    def _checked(
        self,
        name: str,
        make: Callable[[], Implementation],
        exact: data.Exact,
        layer: Mapping[str, Any],
    ) -> Implementation | None:
        """Return an implementation whose result is right; None if it is wrong or not loaded."""
        self.say({"event": "trying", "name": name, "what": "checking"})
        try:
            implementation = make()
        except (DriverError, ValueError, OSError) as error:
            self.say({"event": "failed", "name": name, "reason": str(error)})
            return None
        except RuntimeError as error:
            raise self._poisoned(name, error) from error
        try:
            implementation.run()
            self._finish()
            judged = data.judge(implementation.result(), exact, layer, loose=implementation.loose)
        except ValueError as error:
            self.say({"event": "wrong", "name": name, "reason": str(error)})
            return None
        except (RuntimeError, DriverError) as error:
            raise self._poisoned(name, error) from error
        if not judged.right:
            self.say({"event": "wrong", "name": name, "reason": str(judged)})
            return None
        self.say({"event": "right", "name": name, "worst": judged.worst})
        return implementation

    def _timed(self, right: Mapping[str, Implementation]) -> Samples:
        if not right:
            return Samples({})
        current = ""

        def noting(name: str, run: Callable[[], None]) -> Callable[[], None]:
            def noted() -> None:
                nonlocal current
                current = name
                run()

            return noted

        self.say({"event": "trying", "name": "", "what": "timing"})
        if self.where == "cuda":
            warm_up(50.0)
        runs = {name: noting(name, i.run) for name, i in right.items()}
        try:
            for run in runs.values():
                self.clock(run)
            return rounds(runs, self.clock, self.seconds)
        except (RuntimeError, DriverError) as error:
            raise self._poisoned(current, error) from error

    def _finish(self) -> None:
        """Wait for the device: what went wrong on it is told now."""
        if self.where == "cuda":
            torch.cuda.synchronize()

    def _poisoned(self, name: str, error: Exception) -> SystemExit:
        reason = str(error).strip().splitlines()[0]
        self.say({"event": "failed", "name": name, "reason": reason})
        return SystemExit(POISONED)


def times(samples: Samples) -> dict[str, dict[str, Any]]:
    """Return the times of each implementation."""
    return {
        name: {
            "us": samples.median(name),
            "spread": samples.spread(name),
            "samples": [round(value, 3) for value in samples.us[name]],
        }
        for name in samples.us
    }


def abouts(right: Mapping[str, Implementation]) -> dict[str, Any]:
    """Return the facts of each implementation that has some."""
    return {name: i.about for name, i in right.items() if i.about is not None}


def main(arguments: list[str]) -> int:
    """Run ``worker ROOT DEVICE SECONDS``; tasks come by standard input."""
    root, device, seconds = Path(arguments[0]), int(arguments[1]), float(arguments[2])
    # What libraries print is no answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    torch.cuda.set_device(device)
    torch.zeros(1, device="cuda")
    torch.backends.cudnn.benchmark = True
    driver, clock = Driver(), Clock()
    cubin = architecture(torch.cuda.get_device_capability())
    warm_up()
    worker = Worker(root, seconds, say, driver, clock, cubin)
    say({"event": "ready"})
    for line in sys.stdin:
        task = json.loads(line)
        if task["task"] == "device":
            rates = ceilings(root, driver, clock)
            say({"event": "done", **description(driver), "ceilings": rates})
        else:
            worker.layer(task["slug"], task["skip"])
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
