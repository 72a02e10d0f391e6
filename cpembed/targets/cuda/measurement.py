"""Times of kernels on a GPU of this machine.

A process of its own touches the GPU, the one of :mod:`cpembed.targets.cuda.remote`: a kernel that
fails or does not end takes that process with it, and nothing else.
"""

from __future__ import annotations

import atexit
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from cpembed.codegen.epilogue import Epilogue
from cpembed.cost.ranking import Candidate
from cpembed.errors import BackendUnavailable, InvariantError, LoweringError
from cpembed.files import write_whole
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.steps import step
from cpembed.targets.cuda import compiling
from cpembed.targets.cuda.pack.packing import save_variant
from cpembed.targets.cuda.remote.conversation import Conversation
from cpembed.targets.cuda.saving.cases import cases_of
from cpembed.targets.cuda.saving.folder import save_samples

SECONDS = 1.0
"""Seconds of timing of a kernel, after its results were checked."""

PATIENCE = 60.0
"""Seconds without an answer after which a kernel is taken to hang."""

_STARTING = 30.0
"""Seconds that the process has to open the GPU."""

_WORKER = "cpembed.targets.cuda.remote.worker"
_NAME, _SLUG = "kernel", "layer"


def _conversation(root: Path) -> Conversation:
    """Return the process that measures what lies in a folder, on the first GPU."""
    command = [sys.executable, "-m", _WORKER, str(root), "0", str(SECONDS), "alone"]
    return Conversation(command, PATIENCE, _STARTING)


@cache
def device_facts() -> Mapping[str, Any]:
    """Return the GPU of this machine: its name, compute capability, and multiprocessors.

    Raises :class:`BackendUnavailable` if there is none.
    """
    with _conversation(Path(tempfile.gettempdir())) as process:
        try:
            return process.device(ceilings=False)
        except (RuntimeError, OSError) as error:
            raise BackendUnavailable(f"{error}") from error


class _Layer:
    """A layer whose kernels are measured one after the other: its checks, and the process."""

    def __init__(self, workload: Computation, epilogue: Epilogue | None) -> None:
        self.cases = cases_of(workload, epilogue)
        self.root = Path(tempfile.mkdtemp(prefix="cpembed-gpu-"))
        self.folder = self.root / "layers" / _SLUG
        self.folder.mkdir(parents=True)
        self.samples = save_samples(self.cases, self.folder)
        variant = {"name": _NAME, "folder": _NAME}
        document = {"variants": [variant], "rules": []}
        write_whole(self.folder / "layer.json", json.dumps(document))
        self.process = _conversation(self.root)

    def close(self) -> None:
        """End the process and remove the files."""
        self.process.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    def us(self, target: Any, artifact: Any) -> float:
        """Return the median microseconds of kernels whose results are right."""
        folder = self.folder / _NAME
        shutil.rmtree(folder, ignore_errors=True)
        saved = target.saved(artifact, _NAME, self.cases)
        save_variant(saved, folder, self.samples, _architectures())
        outcome = self.process.layer(_SLUG)
        if _NAME in outcome.wrong:
            raise InvariantError(f"wrong on the GPU: {outcome.wrong[_NAME]}")
        if _NAME in outcome.failed:
            raise LoweringError(f"fails on the GPU: {outcome.failed[_NAME]}")
        if outcome.trouble is not None:
            raise BackendUnavailable(f"the GPU cannot be used: {outcome.trouble}")
        return outcome.times[_NAME]["us"]


def _architectures() -> tuple[str, ...]:
    """Return the architectures of which the GPU here executes an image; none without nvcc."""
    if compiling.compiler() is None:
        return ()
    major, minor = device_facts()["capability"]
    return tuple(dict.fromkeys((compiling.ARCHITECTURES[0], f"sm_{major}{minor}")))


_layers: dict[str, _Layer] = {}
"""The layer that is being tuned, by everything that its checks depend on."""


@atexit.register
def close() -> None:
    """End the process that measures, and remove its files."""
    for layer in _layers.values():
        layer.close()
    _layers.clear()


def measured_us(
    kind: type[Any],
    spec: HardwareSpec,
    candidate: Candidate,
    schedule: Any,
    epilogue: Epilogue | None,
) -> float:
    """Build a schedule, compare its results on the GPU, and time it; called in a worker.

    Parameters
    ----------
    kind : type
        Class of the target.
    spec : HardwareSpec
    candidate : Candidate
    schedule : Any
    epilogue : Epilogue or None
        What is stored of the sums.

    Returns
    -------
    float
        Median of calls in microseconds, the second level cache emptied before each.

    Raises
    ------
    LoweringError
        If there is no such kernel, or it fails or hangs.
    InvariantError
        If its results are wrong.
    BackendUnavailable
        If the GPU cannot be used any more.
    """
    target, workload = kind(spec), candidate.program.unfused
    with step("building a schedule", workload.macs):
        artifact = target.build(target.lower(candidate.program, epilogue), schedule)
    operands = [(operand.dtype, operand.shape) for operand in workload.operands]
    key = f"{workload} {dict(workload.extents)} {operands} {epilogue}"
    if key not in _layers:
        close()
        with step("computing the results to compare with", workload.macs):
            _layers[key] = _Layer(workload, epilogue)
    with step("measuring a schedule", workload.macs):
        return _layers[key].us(target, artifact)
