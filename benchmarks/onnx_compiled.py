"""Compile the cases of ONNX's backend suite and compare their results with the suite's.

    python -m benchmarks.onnx_compiled [--target NAME] [-o RESULTS.jsonl] [--every N] [--offset K]
        [--together N] [--only TEXT] [--seconds S] [--any-version] [--markdown FILE.md]

Cases are read in the first form that is computed (:data:`benchmarks.onnx_operators.FORMS`). Many
are compiled as one network of parts that share nothing, so that planning, linking and starting
processes count once for all of them; where such a network is not compiled, ends its process, or has
a wrong result, its halves are, down to single cases.

A line of JSON a case is appended to the file as it comes, and the same command goes on where it was
stopped. Lines of other versions of the package are counted with ``--any-version`` only.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.onnx_operators import FORMS, Array, Case, cases, outcome, result_difference
from cpembed.errors import CpembedError
from cpembed.graph.graph import Graph, Operator
from cpembed.runtime.measurement.environment import provenance, provenance_lines, source_digest

_STEPS = 8
"""Number of passes over the suite, each over every eighth case."""
RIGHT, NOT_READ, CRASH = "right", "not read", "CRASH"


@dataclass(frozen=True)
class Part:
    """Case of the suite with its graph and inputs."""

    case: Case
    graph: Graph
    inputs: Mapping[str, Array]


def part_of(case: Case) -> Part | None:
    """Return a case in the first form that is read, or None if there is none."""
    with tempfile.TemporaryDirectory() as folder:
        for form in FORMS:
            read = outcome(case, form, Path(folder))
            if read.graph is not None:
                return Part(case, read.graph, read.inputs)
    return None


def joined(graphs: Sequence[Graph]) -> Graph:
    """Return a network of parts that share nothing; a tensor ``x`` of part k is ``k:x``."""
    inputs: dict[str, Any] = {}
    constants: dict[str, Array] = {}
    operators: list[Operator] = []
    outputs: list[str] = []
    for number, graph in enumerate(graphs):
        inputs |= {named(number, name): kind for name, kind in graph.inputs.items()}
        constants |= {named(number, name): array for name, array in graph.constants.items()}
        outputs += [named(number, name) for name in graph.outputs]
        operators += [
            replace(
                operator,
                name=named(number, operator.name),
                inputs=tuple(named(number, name) for name in operator.inputs),
                outputs=tuple(named(number, name) for name in operator.outputs),
            )
            for operator in graph.operators
        ]
    return Graph("parts", inputs, tuple(outputs), constants, tuple(operators))


def named(number: int, name: str) -> str:
    """Return the name of a part's tensor in the network of all parts."""
    return f"{number}:{name}"


def compiled_results(parts: Sequence[Part], target: str) -> list[str]:
    """Compile parts as one network and return the result of each.

    Parameters
    ----------
    parts : sequence of Part
    target : str
        Name of the target.

    Returns
    -------
    list of str
        ``right``, or the difference from the suite's result.

    Raises
    ------
    CpembedError
        If the network is not compiled.
    """
    from cpembed.network.build import compile_network

    graph = joined([part.graph for part in parts])
    inputs = {named(k, n): a for k, part in enumerate(parts) for n, a in part.inputs.items()}
    with (
        tempfile.TemporaryDirectory() as folder,
        compile_network(graph, target, Path(folder)).open() as network,
    ):
        outputs = network.run(inputs)
    results: list[str] = []
    for number, part in enumerate(parts):
        values = [outputs[named(number, name)] for name in part.graph.outputs]
        message = result_difference(part.case, values)
        results.append(f"WRONG: {message}" if message else RIGHT)
    return results


class Compiler:
    """Process that compiles and runs networks, and is replaced when one ends it."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._connection: Connection | None = None

    def results(self, parts: Sequence[Part]) -> Iterator[tuple[Part, str]]:
        """Yield every part with its result, by halves where not all of them are right."""
        texts = self._joint_results(parts)
        if len(parts) == 1 or all(text == RIGHT for text in texts):
            yield from zip(parts, texts, strict=True)
            return
        if len(texts) == len(parts):
            # Those that are right are so together with others.
            pairs = list(zip(parts, texts, strict=True))
            yield from (pair for pair in pairs if pair[1] == RIGHT)
            for part, text in pairs:
                if text != RIGHT:
                    yield from self._single_result(part, text)
            return
        middle = len(parts) // 2
        yield from self.results(parts[:middle])
        yield from self.results(parts[middle:])

    def _single_result(self, part: Part, text: str) -> Iterator[tuple[Part, str]]:
        """Yield a part that was wrong, with its result in a network of its own."""
        (result,) = self._joint_results([part])
        yield part, f"{text}, among other parts" if result == RIGHT else result

    def _joint_results(self, parts: Sequence[Part]) -> list[str]:
        """Return the results of parts in one network; a single reason if there are none."""
        if self._connection is None:
            # A copy of this process has read the suite, and has not started anything yet.
            context = get_context("fork")
            self._connection, remote = context.Pipe()
            arguments = remote, self._connection, self.target
            context.Process(target=_serve, args=arguments).start()
            remote.close()
        try:
            self._connection.send(parts)
            return self._connection.recv()
        except (EOFError, ConnectionError):
            self._connection = None
            return [CRASH]

    def close(self) -> None:
        """End the process."""
        if self._connection is not None:
            self._connection.close()


def _serve(connection: Connection, copy: Connection, target: str) -> None:
    """Compile what comes until the connection is closed, of whose other end this is a copy."""
    copy.close()
    warnings.simplefilter("ignore")
    with suppress(EOFError):
        while True:
            parts = connection.recv()
            try:
                results = compiled_results(parts, target)
            except CpembedError as error:
                results = [f"not compiled: {error}"]
            except Exception as error:  # A bug of the package, which is a result as well.
                results = [f"BUG: {type(error).__name__}: {error}"]
            connection.send(results)


def case_results(
    selected: Sequence[Case], target: str, group_size: int, seconds: float
) -> Iterator[tuple[Case, str]]:
    """Yield each case with its result.

    Parameters
    ----------
    selected : sequence of Case
    target : str
        Name of the target.
    group_size : int
        Maximum number of cases in a network.
    seconds : float
        Time after which no network is begun.
    """
    end = time.monotonic() + seconds
    compiler = Compiler(target)
    try:
        for first in range(0, len(selected), group_size):
            if time.monotonic() > end:
                break
            parts: list[Part] = []
            for case in selected[first : first + group_size]:
                part = part_of(case)
                if part is None:
                    yield case, NOT_READ
                else:
                    parts.append(part)
            if parts:
                for part, text in compiler.results(parts):
                    yield part.case, text
    finally:
        compiler.close()


def _stored(path: Path, key: Sequence[str]) -> dict[str, str]:
    """Return earlier results by case, of a version and target, or of a target if it is alone."""
    results: dict[str, str] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        # The last line is a part where the command was stopped in it.
        with suppress(ValueError):
            entry = json.loads(line)
            if entry["key"][-len(key) :] == [*key]:
                results[entry["case"]] = entry["result"]
    return results


_HEAD = (
    "# Cases of ONNX's backend suite, compiled",
    "",
    "Written by `python -m benchmarks.onnx_compiled --markdown benchmarks/onnx_compiled.md`. Each",
    "case is read in the first form that is computed",
    "([onnx-operators.md](../docs/onnx-operators.md)), compiled, run, and compared with what the",
    "suite expects.",
    "",
)


def report(results: Mapping[str, str]) -> list[str]:
    """Return the counts of results, those that are not right by name, and the provenance."""
    counts = Counter(text.partition(":")[0] for text in results.values())
    total = f"{counts.total():,} of {len(cases()):,} cases: "
    lines = [total + ", ".join(f"{count:,} {word}" for word, count in counts.most_common()) + "."]
    failures = [
        f"- {name}: {text}" for name, text in results.items() if text not in (RIGHT, NOT_READ)
    ]
    lines += ["", *failures] if failures else []
    return [*lines, "", *provenance_lines(provenance(), "the suite's inputs")]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--target", default="native")
    parser.add_argument("-o", "--output", type=Path, default=Path("onnx_compiled.jsonl"))
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each Nth case only")
    parser.add_argument("--offset", type=int, default=0, metavar="K", help="begin at this case")
    parser.add_argument("--together", type=int, default=32, metavar="N", help="cases in a network")
    parser.add_argument("--only", default="", help="cases with this text in their names")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing afterwards")
    parser.add_argument("--any-version", action="store_true", help="count all stored results")
    parser.add_argument("--markdown", type=Path, help="write the counts to this file")
    options = parser.parse_args()
    key = [source_digest(), options.target]
    results = _stored(options.output, key[1:] if options.any_version else key)
    selected = cases()[options.offset :: options.every]
    # Neighbours are alike: what is compiled before the command is stopped is spread over the suite.
    spread = (case for step in range(_STEPS) for case in selected[step::_STEPS])
    selected = [case for case in spread if options.only in case.name]
    remaining = [case for case in selected if case.name not in results]
    with options.output.open("a") as file:
        for case, text in case_results(
            remaining, options.target, options.together, options.seconds
        ):
            results[case.name] = text
            file.write(json.dumps({"case": case.name, "result": text, "key": key}) + "\n")
            file.flush()
            if text not in (RIGHT, NOT_READ):
                print(f"{case.name}: {text}", flush=True)
    lines = report({case.name: results[case.name] for case in selected if case.name in results})
    print("\n".join(lines))
    if options.markdown:
        text = "\n".join([*_HEAD, *lines])
        options.markdown.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
