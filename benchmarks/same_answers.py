"""Compare the answers of two checkouts: embeddings, rankings, choices, cycles and emitted kernels.

    git worktree add ../before COMMIT
    python -m benchmarks.same_answers ../before . [--suites unit16 deepbench] [--layers 0,5,9]

A change of the package's structure must change no answer. Every command runs in both checkouts with
``--json``; the documents are compared member by member, without times and paths. Kernels are
compared by the text that ``build`` writes for targets of another machine, and for Tensor Cores and
scratchpads by the text that ``run --save`` writes. Exits with 1 and lists each difference where an
answer differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpembed.targets.x86.features import ASSUME_VARIABLE
from cpembed.workloads.suites import suite

VOLATILE = frozenset(
    [
        "seconds",
        "total_seconds",
        "measured",
        "calibrated",
        "store",
        "commit",
        "git_commit",
        "packing_us",
        "unpacking_us",
        "noisy",
        "versions",
        "machine",
        "time",
        "elapsed",
        "path",
        "paths",
        "taken_from_store",
        "folder",
        "created",
        "search",
        "doubts",
        "package",
        "source",
        "load_average",
        "cpu",
        "python",
        "date",
    ]
)
"""Members of documents that differ from run to run or from folder to folder."""

ASSUMED = (
    *("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16"),
    *("amx_tile", "amx_int8", "amx_bf16"),
)
"""CPU features that targets of the comparison need."""

SUITES = ("unit16", "resnet18", "resnet50", "deepbench")
TARGETS = ("avx512_vnni", "amx_int8", "avx2_int8", "vta_1x16x16", "wmma_f16", "gemmini_16x16")
LAYERS_PER_SUITE = 6


@dataclass(frozen=True)
class Case:
    """One command that both checkouts answer.

    Parameters
    ----------
    arguments : tuple of str
        Arguments of ``cpembed``, without ``--json``.
    saves : bool
        True if the command writes files into ``{out}``, which are compared byte for byte.
    """

    arguments: tuple[str, ...]
    saves: bool = False

    def __str__(self) -> str:
        return " ".join(self.arguments)


def cases(suites: Sequence[str], targets: Sequence[str], count: int) -> Iterator[Case]:
    """Yield the commands: layers spread evenly over each suite, on every target.

    Parameters
    ----------
    suites, targets : sequence of str
        Names of suites and targets.
    count : int
        Number of layers of each suite.
    """
    for name in suites:
        layers = suite(name)
        step = max(1, len(layers) // count)
        for target in targets:
            for layer in layers[::step][:count]:
                workload = f"{name}:{layer.index}"
                yield Case(("solve", workload, "--target", target, "--top", "20"))
                yield Case(("explain", workload, "--target", target, "--chosen"))
            if target.startswith("vta"):
                yield Case(("bench", name, "--target", target, "--untuned", "--layers", "0"))
    gemm = ("gemm", "m=64", "n=64", "k=64")
    yield Case(("build", *gemm, "--target", "arm_sdot", "-o", "{out}"), saves=True)
    yield Case(("shape", "resnet50", "--macs", "256"))
    yield Case(("solve", *gemm, "--target", "vta_1x16x16", "--estimate"))


def answer(checkout: Path, case: Case) -> dict[str, Any]:
    """Return what a checkout answers: exit code, document, last line of an error, files written."""
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as nothing:
        arguments = [part.replace("{out}", out) for part in case.arguments]
        environment = {
            **os.environ,
            "PYTHONPATH": str(checkout),
            "CPEMBED_TUNE_DIR": nothing,
            "CPEMBED_CALIBRATION_DIR": nothing,
            # Choices are made as on a machine that has every instruction; nothing executes them.
            ASSUME_VARIABLE: ",".join(ASSUMED) if case.arguments[0] == "explain" else "",
        }
        process = subprocess.run(
            [sys.executable, "-m", "cpembed", *arguments, "--json"],
            cwd=checkout, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        files = {
            str(path.relative_to(out)): path.read_bytes().hex()
            for path in sorted(Path(out).rglob("*"))
            if path.is_file() and path.suffix not in (".so", ".json")
        }
    try:
        document = json.loads(process.stdout)
    except ValueError:
        document = None
    lines = process.stderr.strip().splitlines()
    return {
        "exit_code": process.returncode,
        "document": document,
        "error": lines[-1] if lines and document is None else None,
        "files": files,
    }


def differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Yield the places at which two documents differ, volatile members left out.

    Parameters
    ----------
    before, after : Any
        Documents of JSON's types.
    place : str
        Path of the documents in those that contain them.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after} - VOLATILE):
            if key not in before or key not in after:
                yield f"{place}.{key}: only {'before' if key in before else 'after'}"
            else:
                yield from differences(before[key], after[key], f"{place}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (left, right) in enumerate(zip(before, after, strict=True)):
            yield from differences(left, right, f"{place}[{number}]")
    elif before != after:
        yield f"{place}: {str(before)[:80]} became {str(after)[:80]}"


def main() -> int:
    """Compare two checkouts and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--suites", nargs="*", default=SUITES)
    parser.add_argument("--targets", nargs="*", default=TARGETS)
    parser.add_argument("--count", type=int, default=LAYERS_PER_SUITE, help="layers of each suite")
    options = parser.parse_args()
    before, after = options.before.resolve(), options.after.resolve()
    total = different = 0
    for case in cases(options.suites, options.targets, options.count):
        total += 1
        places = list(differences(answer(before, case), answer(after, case)))
        if places:
            different += 1
            print(f"{case}\n" + "\n".join(f"    {place}" for place in places[:10]), flush=True)
    print(f"{total} commands, {different} with another answer")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
