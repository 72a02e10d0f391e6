"""Compare whole quantized networks with other runtimes, on the same ONNX files.

    python -m tests.models resnet18 --int8 -o MODELS/resnet18_int8.onnx
    cpembed build MODELS/resnet18_int8.onnx -o BUILT/resnet18_int8
    python -m benchmarks.networks MODELS --built BUILT [--python openvino=OTHER/bin/python]

Every ``MODELS/*_int8.onnx``, or those that ``--only`` names, on one thread and on two. Each runtime
has a process of its own, and they take turns: in each round every runtime computes the network for
about ``--round-ms``, every other round backwards; each turn begins with calls that are not timed
and ends when the process's threads sleep. A call is counted from arrays of numpy to arrays of
numpy, one image or one sequence. Rounds in which other processes had more than a fifth of a core
are repeated, up to ``--tries`` rounds, and left out if enough others remain. Ratios are another
runtime's time over ours (over ONNX Runtime's if there is no library of ours) in the same round,
medians of rounds: above 1 we are faster. *Difference*: between a runtime's first output and that of
ONNX Runtime without optimizations, in parts of its length.

Runtimes that are not installed are left out and named: onnxruntime, openvino, torch with torchao.
``--python`` gives one, and its variants, another interpreter, which needs onnx too for torch.
Writes ``networks.json`` after every network and ``networks.md`` into ``--output``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from benchmarks.documents import write_document
from benchmarks.network_runtimes import PLAIN, RUNTIMES
from benchmarks.network_tables import CPEMBED, markdown
from cpembed.files import write_whole
from cpembed.runtime.measurement.environment import provenance
from cpembed.runtime.measurement.interleaved import BUSY, ENOUGH

FOLDER = Path(__file__).resolve().parent
REFERENCE = "onnxruntime"
MOST_CALLS = 2000

Row = dict[str, Any]


@dataclass
class Server:
    """A process of ``network_runtimes.py``."""

    process: subprocess.Popen[str]
    version: str
    outputs: Mapping[str, Any]
    calls: int = 1
    samples: list[float] = field(default_factory=list[float])

    def turn(self, calls: int) -> Row:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(calls, file=self.process.stdin, flush=True)
        return answered(self.process.stdout)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("models", type=Path)
    parser.add_argument("--built", type=Path, help="folder of libraries, each named as its model")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--runtimes", nargs="*", default=list(RUNTIMES), choices=RUNTIMES)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--tries", type=int, default=33, help="rounds, the disturbed ones included")
    parser.add_argument("--round-ms", type=float, default=150.0)
    parser.add_argument("--python", nargs="*", default=[], metavar="RUNTIME=PROGRAM")
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args()
    programs = dict(each.split("=", 1) for each in options.python)
    files = sorted(options.models.glob("*_int8.onnx"))
    if options.only:
        files = [options.models / f"{name}.onnx" for name in options.only]
    rows: list[Row] = []
    for file in files:
        for threads in options.threads:
            paths = dict.fromkeys(options.runtimes, file)
            if CPEMBED in paths:
                paths[CPEMBED] = (options.built or Path("no-libraries")) / file.stem
            rows.append(
                measured(
                    file, threads, paths, programs, options.rounds, options.round_ms, options.tries
                )
            )
            document = {**provenance(), "round_ms": options.round_ms, "rows": rows}
            write_document(options.output / "networks.json", document)
            write_whole(options.output / "networks.md", markdown(document))
            print_row(rows[-1])
    print(markdown(document))


def measured(
    model: Path,
    threads: int,
    paths: Mapping[str, Path],
    programs: Mapping[str, str],
    rounds: int,
    round_ms: float,
    tries: int,
) -> Row:
    """Measure all runtimes on one network.

    Parameters
    ----------
    model : Path
        File of the network.
    threads : int
        Number of threads.
    paths : mapping of str to Path
        File or folder to open, by runtime.
    programs : mapping of str to str
        Interpreters of runtimes that have their own.
    rounds : int
        Number of undisturbed rounds.
    round_ms : float
        Milliseconds of a turn.
    tries : int
        Maximum number of rounds.
    """
    servers: dict[str, Server] = {}
    missing: dict[str, str] = {}
    expected: Mapping[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        np.savez(folder / "inputs.npz", **inputs_of(model))

        def start(name: str, path: Path) -> AbstractContextManager[Server | str]:
            family = name.partition("_")[0]
            program = programs.get(name) or programs.get(family) or sys.executable
            call = [name, path, threads, folder / "inputs.npz", folder / f"{name}.npz"]
            return serving(program, [str(part) for part in call])

        with start(PLAIN, model) as plain:
            if not isinstance(plain, str):
                expected = plain.outputs
        for name, path in paths.items():
            started = stack.enter_context(start(name, path))
            if isinstance(started, str):
                missing[name] = started
            else:
                servers[name] = started
        quiet = take_samples(servers, rounds, round_ms, tries)
        return {
            "model": model.stem, "threads": threads, "missing": missing, "rounds": quiet,
            "of": rounds, **compared(servers, expected),
        }  # fmt: skip


def inputs_of(model: Path) -> dict[str, Any]:
    """Return random inputs of a network."""
    import onnx

    from tests.models.quantization import samples

    return samples(onnx.load(model, load_external_data=False), 1)[0]


@contextmanager
def serving(program: str, call: list[str]) -> Iterator[Server | str]:
    """Start a runtime; yield it when it is ready, or the reason why there is none."""
    process = subprocess.Popen(
        [program, str(FOLDER / "network_runtimes.py"), *call],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        ready = answered(process.stdout)
        if "missing" in ready:
            yield ready["missing"]
        else:
            with np.load(call[-1]) as file:
                outputs = {key: file[key] for key in file.files}
            yield Server(process, ready["version"], outputs)
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def answered(stream: TextIO) -> Row:
    """Return the next line of JSON; runtimes print other things, too."""
    for line in stream:
        if line.startswith("{"):
            return json.loads(line)
    return {"missing": "its process ended without an answer"}


def take_samples(
    servers: Mapping[str, Server], rounds: int, round_ms: float, tries: int = 0
) -> int:
    """Fill in the samples, round by round; return the number of undisturbed rounds.

    Disturbed rounds are kept only if too few others remain.

    Parameters
    ----------
    servers : mapping of str to Server
        Runtimes.
    rounds : int
        Number of undisturbed rounds to reach.
    round_ms : float
        Milliseconds of a turn.
    tries : int
        Maximum number of rounds; 0 for as many as ``rounds``.
    """
    for server in servers.values():
        for calls in (1, 3):
            seconds = server.turn(calls)["seconds"]
        server.calls = min(MOST_CALLS, max(1, round(round_ms / 1e3 / seconds)))
    quiet: list[bool] = []
    for turn in range(tries or rounds):
        if sum(quiet) == rounds:
            break
        order = list(servers.values())
        answers = [(s, s.turn(s.calls)) for s in (order if turn % 2 == 0 else order[::-1])]
        for server, answer in answers:
            server.samples.append(answer["seconds"])
        quiet.append(all(a["rested"] and a["elsewhere"] <= BUSY for _, a in answers))
    if sum(quiet) >= rounds * ENOUGH:
        for server in servers.values():
            server.samples = [
                s for s, is_quiet in zip(server.samples, quiet, strict=True) if is_quiet
            ]
    return sum(quiet)


def compared(servers: Mapping[str, Server], expected: Mapping[str, Any]) -> Row:
    """Return times, ratios and differences of the runtimes.

    ``expected``: outputs, if they are known.
    """
    versions = {name: server.version for name, server in servers.items()}
    times = {
        name: dict(zip(("low", "median", "high"), quartiles(server.samples), strict=True))
        for name, server in servers.items()
    }
    base = CPEMBED if CPEMBED in servers else REFERENCE
    over = servers[base].samples if base in servers else []
    ratios = {
        name: float(np.median(np.divide(server.samples, over)))
        for name, server in servers.items()
        if over and name != base
    }
    medians = {name: times[name]["median"] for name in servers if name != CPEMBED}
    fastest = min(medians, key=lambda name: medians[name]) if medians else None
    return {
        "versions": versions, "seconds": times, "over": base, "ratios": ratios,
        "fastest": fastest, "difference": differences(servers, expected),
    }  # fmt: skip


def quartiles(samples: list[float]) -> list[float]:
    """Return the quartiles of samples."""
    return [float(value) for value in np.quantile(samples, (0.25, 0.5, 0.75))]


def differences(servers: Mapping[str, Server], expected: Mapping[str, Any]) -> dict[str, float]:
    """Return the relative differences of the first output."""
    by_runtime: dict[str, float] = {}
    for name, right in list(expected.items())[:1]:
        for runtime, server in servers.items():
            if name in server.outputs:
                difference = np.linalg.norm((server.outputs[name] - right).ravel())
                by_runtime[runtime] = float(difference / np.linalg.norm(right.ravel()))
    return by_runtime


def print_row(row: Row) -> None:
    """Print a row."""
    times = ", ".join(f"{n} {t['median'] * 1e3:.3f} ms" for n, t in row["seconds"].items())
    print(f"{row['model']}, {row['threads']} threads: {times}", file=sys.stderr, flush=True)
    for name, why in row["missing"].items():
        print(f"  {name} is left out: {why}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
