"""The process that touches the device: it reads a layer as a line of JSON, and answers in lines.

Before it begins with an implementation it says so: if it ends or stays silent, whoever reads its
answers knows which one it was.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpembed.targets.cuda.remote.check import (
    Memory,
    Timer,
    device_facts,
    difference,
    generated,
)
from cpembed.targets.cuda.remote.load import CudaError, Device, Driver, Kernels
from cpembed.targets.cuda.remote.timing import Samples, rounds

Answer = Callable[[dict[str, Any]], None]

POISONED = 3
"""Exit status if a kernel failed: no other can run in this process after it."""

COPY_BYTES = 1 << 29
"""Number of bytes that are copied to measure the bandwidth of main memory."""
REPEATS = 9
WARM_UP_SECONDS = 0.2
"""Maximum seconds of calls before those that are timed."""


class WrongResultError(Exception):
    """A result that is not right."""


@dataclass(frozen=True)
class Implementation:
    """An implementation of a layer.

    ``run`` starts it, ``check`` runs it on all cases and raises :class:`WrongResultError`,
    ``check_timed`` does so for what timed calls have left, and ``free`` releases its memory.
    """

    run: Callable[[], None]
    check: Callable[[], None]
    check_timed: Callable[[], None]
    free: Callable[[], None]
    about: Mapping[str, Any] | None = None


class Worker:
    """Checks and times the implementations of layers.

    ``clock`` times a call; ``libraries`` is the module of other libraries' calls, None without
    torch.
    """

    def __init__(
        self,
        root: Path,
        seconds: float,
        say: Answer,
        device: Device,
        clock: Callable[[Callable[[], None]], float],
        libraries: Any = None,
    ) -> None:
        self.root, self.seconds, self.say = root, seconds, say
        self.device, self.clock, self.libraries = device, clock, libraries

    def layer(self, slug: str, skip: list[str]) -> None:
        """Check and time a layer's implementations but those in ``skip``."""
        folder = self.root / "layers" / slug
        layer = json.loads((folder / "layer.json").read_text(encoding="utf-8"))
        right: dict[str, Implementation] = {}
        for name, make in self._makers(folder, layer).items():
            if name not in skip:
                implementation = self._checked(name, make)
                if implementation is not None:
                    right[name] = implementation
        samples = self._timed(right)
        for name, implementation in list(right.items()):
            try:
                implementation.check_timed()
            except WrongResultError as error:
                self.say({"event": "wrong", "name": name, "reason": f"after timing: {error}"})
                implementation.free()
                del right[name]
        samples = Samples({name: samples.us[name] for name in right})
        abouts = {name: i.about for name, i in right.items() if i.about is not None}
        for implementation in right.values():
            implementation.free()
        self.say({"event": "done", "times": times(samples), "about": abouts})

    def _makers(
        self, folder: Path, layer: Mapping[str, Any]
    ) -> dict[str, Callable[[], Implementation]]:
        """Return how each implementation is made, by name."""
        makers: dict[str, Callable[[], Implementation]] = {}
        for variant in (*layer["variants"], *(r for r in layer["rules"] if "folder" in r)):
            path = folder / variant["folder"]
            makers[variant["name"]] = lambda path=path: self._packed(path)
        if self.libraries is None:
            return makers
        path = folder / layer["variants"][0]["folder"]
        kernels = Kernels(path, self.device)
        operands = self._operands(kernels)
        for name, call in self.libraries.calls(layer, operands).items():
            makers[name] = lambda call=call: self._library(call, kernels)
        return makers

    def _operands(self, kernels: Kernels) -> list[Any]:
        """Return the factors of a layer as tensors of torch."""
        case, manifest = kernels.manifest["cases"][0], kernels.manifest
        inputs = [b for b in manifest["buffers"] if b["role"] == "input"]
        inputs.sort(key=lambda buffer: manifest["operands"].index(buffer["tensor"]))
        data = {
            b["name"]: generated(case["inputs"][b["name"]], b["elements"], b["itemsize"])
            for b in inputs
        }
        return self.libraries.operands_on(inputs, data, f"cuda:{self.device.index}")

    def _packed(self, folder: Path) -> Implementation:
        """Return kernels of the pack. Raises :class:`CudaError` if they cannot be loaded."""
        kernels = Kernels(folder, self.device)
        memory = Memory(kernels)

        def run() -> None:
            kernels.launch(memory.addresses, kernels.computes)

        cases = kernels.manifest["cases"]

        def require(case: Mapping[str, Any]) -> None:
            self.device.synchronize()
            fault = memory.fault(case)
            if fault is not None:
                raise WrongResultError(f"{case['name']}: {fault}")

        def check() -> None:
            for case in cases:
                memory.write_inputs(case)
                kernels.launch(memory.addresses)
                require(case)
            # Timed calls have to write the result again, of ordinary numbers, behind a first one.
            memory.write_inputs(cases[0])
            kernels.launch(memory.addresses)
            memory.erase_results()

        def free() -> None:
            memory.free()
            kernels.unload()

        about = {"image": kernels.image["file"], "kernels": kernels.attributes()}
        return Implementation(run, check, lambda: require(cases[0]), free, about)

    def _library(self, call: Callable[[], Any], kernels: Kernels) -> Implementation:
        """Return a call of a library, which allocates its result itself."""
        last: list[Any] = []
        (output,) = (b for b in kernels.manifest["buffers"] if b["role"] == "output")
        expected = kernels.manifest["cases"][0]["expected"][output["name"]]

        def run() -> None:
            last[:] = [call()]

        def check_last() -> None:
            result = last[0].contiguous().cpu()
            if str(result.dtype) != f"torch.{output['dtype']}":
                # It stores another type, so only the sample is compared.
                result = result.to(getattr(self.libraries.torch, output["dtype"]))
            data = ctypes.string_at(result.data_ptr(), output["elements"] * output["itemsize"])
            sample = (kernels.folder / expected["sample"]).read_bytes()
            fault = difference(data, output, loosened(expected), sample)
            if fault is not None:
                raise WrongResultError(fault)

        def check() -> None:
            run()
            check_last()

        return Implementation(run, check, check_last, last.clear)

    def _checked(self, name: str, make: Callable[[], Implementation]) -> Implementation | None:
        """Return an implementation whose result is right; None if it is wrong or not loaded."""
        self.say({"event": "trying", "name": name, "what": "checking"})
        try:
            implementation = make()
        except (CudaError, OSError) as error:
            self.say({"event": "failed", "name": name, "reason": str(error)})
            return None
        try:
            implementation.check()
        except WrongResultError as error:
            implementation.free()
            self.say({"event": "wrong", "name": name, "reason": str(error)})
            return None
        except (RuntimeError, CudaError) as error:
            raise self._poisoned(name, error) from error
        self.say({"event": "right", "name": name})
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
        runs = {name: noting(name, i.run) for name, i in right.items()}
        try:
            # Until the clocks have risen.
            end = time.monotonic() + min(WARM_UP_SECONDS, self.seconds)
            while True:
                for run in runs.values():
                    self.clock(run)
                if time.monotonic() >= end:
                    break
            return rounds(runs, self.clock, self.seconds)
        except (RuntimeError, CudaError) as error:
            raise self._poisoned(current, error) from error

    def _poisoned(self, name: str, error: Exception) -> SystemExit:
        reason = str(error).strip().splitlines()[0]
        self.say({"event": "failed", "name": name, "reason": reason})
        return SystemExit(POISONED)


def loosened(expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rule for libraries, which may add in the stored type and transform operands."""
    return {**expected, "rule": "tolerance", "absolute": 2.0, "relative": 2.0**-6}


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


def ceilings(
    root: Path, device: Device, clock: Callable[[Callable[[], None]], float]
) -> dict[str, float]:
    """Return the device's rates.

    These are bytes a second of a copy (read and written), multiply-adds a second of each
    instruction on operands in registers, and microseconds that events see of nothing.

    Parameters
    ----------
    root : Path
        Folder of the pack.
    device : Device
    clock : callable
        Function from a call to its microseconds.
    """
    size = ctypes.c_size_t(COPY_BYTES)
    source, target = device.allocate(COPY_BYTES), device.allocate(COPY_BYTES)
    addresses = ctypes.c_uint64(target), ctypes.c_uint64(source)

    def copy() -> None:
        device.driver.call("cuMemcpyDtoDAsync_v2", *addresses, size, None)

    rates = {"copy_bytes_per_s": 2 * COPY_BYTES / _median_us(clock, copy) * 1e6}
    device.free(source)
    device.free(target)
    rates["nothing_us"] = _median_us(clock, lambda: None)
    for folder in sorted((root / "ceilings").glob("*")):
        rates[f"{folder.name}_macs_per_s"] = _multiplying(folder, device, clock)
    return rates


def _median_us(clock: Callable[[Callable[[], None]], float], run: Callable[[], Any]) -> float:
    for _ in range(3):
        clock(run)
    return statistics.median(clock(run) for _ in range(REPEATS))


def _multiplying(
    folder: Path, device: Device, clock: Callable[[Callable[[], None]], float]
) -> float:
    """Return the multiply-adds a second of a kernel that does nothing else."""
    try:
        kernels = Kernels(folder, device)
    except CudaError:
        # The device has other instructions.
        return 0.0
    (kernel,) = kernels.manifest["kernels"]
    blocks = 4 * device.multiprocessors
    kernel["grid"] = [blocks, 1, 1]
    addresses = {name: device.allocate(b.bytes) for name, b in kernels.buffers.items()}
    for name, address in addresses.items():
        # Halves a little above 1, and small bytes: ordinary numbers, which decide the power.
        device.fill(address, kernels.buffers[name].bytes, 0x3C)
    us = _median_us(clock, lambda: kernels.launch(addresses))
    for address in addresses.values():
        device.free(address)
    kernels.unload()
    return blocks * kernels.manifest["macs"] / us * 1e6


def _libraries(device: int) -> Any:
    """Return the module of other libraries' calls; None if torch is missing, or has no GPU."""
    try:
        from cpembed.targets.cuda.baselines import libraries

        torch: Any = libraries.torch
        if not torch.cuda.is_available():
            return None
        torch.cuda.set_device(device)
    except (ImportError, RuntimeError):
        return None
    torch.backends.cudnn.benchmark = True
    return libraries


def main(arguments: list[str]) -> int:
    """Run ``worker ROOT DEVICE SECONDS [alone]``; tasks come by standard input.

    With ``alone`` other libraries are not looked for.
    """
    root, number, seconds = Path(arguments[0]), int(arguments[1]), float(arguments[2])
    # What libraries print is no answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        device = Device(Driver(), number)
        timer = Timer(device)
    except CudaError as error:
        say({"event": "unusable", "reason": str(error)})
        return 1
    libraries = None if "alone" in arguments[3:] else _libraries(number)
    versions: dict[str, Any] = {} if libraries is None else libraries.versions()
    worker = Worker(root, seconds, say, device, timer, libraries)
    say({"event": "ready"})
    for line in sys.stdin:
        task = json.loads(line)
        try:
            if task["task"] == "device":
                rates = ceilings(root, device, timer) if task["ceilings"] else {}
                say({"event": "done", **device_facts(device), **versions, "ceilings": rates})
            else:
                worker.layer(task["slug"], task["skip"])
        except CudaError as error:
            say({"event": "unusable", "reason": str(error)})
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
