"""Time `cpembed build` of models, without and with a cache, by stage.

    python -m benchmarks.compile_time MODEL.onnx [MODEL.onnx ...] [--rounds N] [--json FILE]

Each build is a process of its own, on the cores of this one, into a folder of its own. The first
build of a round has an empty cache (*cold*), the second one the first one's kernels but not its
library (*kernels*), the third one all of it (*warm*). Printed are the least wall time and processor
time of the rounds; the latter is that of the process and all its workers. A stage lasts from its
first announcement to that of the next one. Calibrations and tuning records are those of the user.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.documents import write_document
from cpembed.network.kernel_cache import FOLDER_VARIABLE
from cpembed.runtime.measurement.environment import provenance, provenance_lines

CACHES = ("cold", "kernels", "warm")
"""States of the cache in the order of the builds of a round."""

_STARTED = "CPEMBED_BENCHMARK_STARTED"
"""Environment variable with the time at which a build's process was started."""

_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Time the builds of the models that the command line names."""
    parser = argparse.ArgumentParser(description="Time `cpembed build` of models by stage.")
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder is not None:
        print(json.dumps(_build(arguments.models[0], arguments.folder)))
        return
    rows = [row for model in arguments.models for row in measured(model, arguments.rounds)]
    document = {"rows": rows, "rounds": arguments.rounds, **provenance()}
    print("\n".join([*provenance_lines(document, "one process a build"), "", *table(rows)]))
    if arguments.json is not None:
        write_document(arguments.json, document)


def measured(model: Path, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each state of the cache, with the least times of some rounds."""
    best: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="cpembed-") as scratch:
            for state in CACHES:
                cache = Path(scratch) / "cache"
                if state == "kernels":
                    for entry in cache.glob("*.library"):
                        shutil.rmtree(entry)
                result = _in_process(model, Path(scratch) / state, cache)
                if state not in best or result["wall_s"] < best[state]["wall_s"]:
                    best[state] = {"model": model.name, "cache": state, **result}
    return list(best.values())


def _in_process(model: Path, folder: Path, cache: Path) -> dict[str, Any]:
    """Build in a process of its own and return its times."""
    environment = {**os.environ, FOLDER_VARIABLE: str(cache), _STARTED: repr(time.time())}
    command = [sys.executable, "-m", "benchmarks.compile_time", str(model), "--folder", str(folder)]
    started = time.perf_counter()
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(f"{model}: {process.stderr.strip().splitlines()[-1:]}")
    # From outside, so that the start and the end of the interpreter count.
    return {"wall_s": time.perf_counter() - started, **json.loads(process.stdout)}


class Stages:
    """Wall time and processor time by stage, of this process and its workers."""

    def __init__(self, started: float) -> None:
        self.seconds: dict[str, tuple[float, float]] = {}
        self._name, self._wall, self._processor = "starting", started, 0.0

    def __call__(self, stage: str, *_: object) -> None:
        """End the present stage if this is another one."""
        if stage == self._name:
            return
        wall, processor = time.time(), processor_seconds(os.getpid())
        before = self.seconds.get(self._name, (0.0, 0.0))
        spent = wall - self._wall, processor - self._processor
        self.seconds[self._name] = before[0] + spent[0], before[1] + spent[1]
        self._name, self._wall, self._processor = stage, wall, processor


def processor_seconds(process: int) -> float:
    """Return the processor time of a process and its living and former children."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        # Each thread lists the processes that it has started.
        lists = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/children")]
        children = [child for text in lists for child in text.split()]
    except OSError:
        return 0.0
    # User and system time, its own and that of children that it has waited for.
    ticks = sum(map(int, stat[11:15]))
    return ticks / _TICKS + sum(processor_seconds(int(child)) for child in children)


def _build(model: Path, folder: Path) -> dict[str, Any]:
    """Build a model as `cpembed build` does and return its times by stage."""
    stages = Stages(float(os.environ[_STARTED]))
    from cpembed.frontends import load_model
    from cpembed.network.inputs import random_inputs
    from cpembed.network.service import NetworkRequest, network

    stages("reading")
    graph = load_model(model)
    inputs = random_inputs(graph, 0)
    stages("preparing")
    request = NetworkRequest(folder=folder, times=False, reuses=True)
    result = network(graph, request, inputs, stages)
    result.require()
    stages("end")
    return {
        "processor_s": sum(processor for _, processor in stages.seconds.values()),
        "stages": {
            name: {"wall_s": round(wall, 2), "processor_s": round(processor, 2)}
            for name, (wall, processor) in stages.seconds.items()
        },
    }


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the rows as a table in Markdown."""
    lines = ["| model | cache | wall s | processor s | stages: wall s / processor s |"]
    lines.append("| --- | --- | --: | --: | --- |")
    for row in rows:
        stages = ", ".join(
            f"{name} {times['wall_s']:.1f} / {times['processor_s']:.1f}"
            for name, times in row["stages"].items()
        )
        lines.append(
            f"| {row['model']} | {row['cache']} | {row['wall_s']:.1f} | {row['processor_s']:.1f} | "
            f"{stages} |"
        )
    return lines


if __name__ == "__main__":
    main()
