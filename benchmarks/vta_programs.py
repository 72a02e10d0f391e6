"""Programs for VTA by two paths: its instruction set as a description, and its own back end.

    python -m benchmarks.vta_programs

The back end of ``vta_1x16x16`` was written for VTA: blocked layouts, virtual threads, micro-op
kernels, a simulator of the published RTL. The description ``vta_isa`` is a file of text, from which
the general planner makes programs. Each layer is computed by both on the same data: its sums are
shifted right, cut off at the range of int8 and stored. Results are compared bit for bit with each
other. Cycles of the description are emulated by its costs, those of the back end simulated with the
timing of the RTL, so their ratio compares programs only as far as both know the same machine. Both
find inputs and outputs in the blocks that suit them, as layers after each other do.

Writes ``vta_programs.json`` and ``vta_programs.md`` into ``--output``, by default beside this file.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.documents import write_document
from cpembed.accelerator.executor import execute
from cpembed.accelerator.operator_search import OperatorSearch
from cpembed.accelerator.proof import prove
from cpembed.accelerator.specification import Specification, Statement
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.options import RunOptions
from cpembed.driver.run import run
from cpembed.files import write_whole
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.ir.reference import random_inputs, reference
from cpembed.runtime.measurement.environment import provenance, provenance_lines
from cpembed.workloads.naming import parse_workload

FOLDER = Path(__file__).resolve().parent
BACK_END = "vta_1x16x16"
DESCRIPTION = "vta_isa"
LAYERS = (
    *(f"resnet18:{number}" for number in range(1, 11)),
    "gemm m=64 n=64 k=64",
    "gemm m=128 n=256 k=512",
    "gemm m=1 n=1024 k=256",
)
COLUMNS = (
    "layer", "equal", "proven", "GEMM instructions", "cycles described", "bound", "cycles back end",
    "bound", "described / back end", "bytes described", "bytes back end", "planning s of processor",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A layer computed by both paths.

    Attributes
    ----------
    cycles, bound : float
        Emulated cycles of the description's program, and their bound.
    bytes_moved : int
        Bytes of that program to and from main memory.
    native_cycles, native_bound, native_bytes : int
        The same of the back end's program, simulated; its bytes include instructions.
    is_equal : bool
        True if both equal the reference bit for bit.
    executions : int
        Instructions of the GEMM core of the description's program.
    """

    layer: str
    cycles: float
    bound: float
    bytes_moved: int
    native_cycles: int
    native_bound: int
    native_bytes: int
    is_equal: bool
    is_proven: bool
    executions: int
    planning_seconds: float


def requantized(layer: Computation, shift: int) -> tuple[Statement, ...]:
    """Return statements that compute a layer, shift its sums, cut them off and store bytes.

    Parameters
    ----------
    layer : Computation
        Layer with int32 sums.
    shift : int
        Bits by which sums are shifted right.
    """
    store = layer.statement.store
    shape = layer.output.shape
    axes = [f"d{dimension}" for dimension in range(len(shape))]
    extents = dict(zip(axes, shape, strict=True))
    index = f"[{','.join(axes)}]"
    sums = store.operand
    texts = (
        ("shifted", f"shifted{index} = {sums}{index} >> {shift}", sums, "int32"),
        ("below", f"below{index} = min(shifted{index}, 127)", "shifted", "int32"),
        ("above", f"above{index} = max(below{index}, -128)", "below", "int32"),
        ("bytes", f"bytes{index} = cast(above{index}, int8)", "above", "int8"),
    )
    rest = [
        Statement(parse_computation(text, extents, dtypes={name: dtype, source: "int32"}))
        for name, text, source, dtype in texts
    ]
    return (Statement(layer), *rest)


def described(words: str, shift: int, seed: int) -> dict[str, Any]:
    """Return cycles, bytes and result of the program that is planned from the description.

    Parameters
    ----------
    words : str
        Operator with its sizes, separated by blanks.
    shift : int
        Bits by which its sums are shifted right.
    seed : int
        Seed of the inputs.

    Raises
    ------
    SystemExit
        If the operator has no plan, with the reason.
    """
    machine = load_instruction_set(DESCRIPTION)
    parts = words.split()
    # Rows hold 16 channels that are neighbours in main memory.
    layer = parse_workload(parts if parts[0] == "gemm" else [*parts, "layout=NHWC"])
    arrays = random_inputs(layer, seed)
    statements = requantized(layer, shift)
    first, *weights = (operand.name for operand in layer.inputs)
    constants = {name: arrays[name] for name in weights}
    start = time.process_time()
    specification = Specification(words, statements, (first,), ("bytes",), constants)
    alternatives = OperatorSearch(specification, machine).alternatives()
    seconds = time.process_time() - start
    if isinstance(alternatives, str):
        raise SystemExit(f"{words}: {alternatives}")
    plans = min(alternatives, key=lambda plans: sum(plan.cycles for plan in plans))
    contents: dict[str, NDArray[Any]] = dict(arrays)
    cycles = bound = 0.0
    moved = executions = 0
    is_proven = True
    for plan in plans:
        program = plan.program()
        is_proven &= prove(program).holds
        buffers = {n: t.buffer(contents.get(n)) for n, t in program.tensors.items()}
        outcome = execute(program, buffers, seed)
        assert program.specification is not None
        for name in program.specification.outputs:
            contents[name] = program.tensors[name].array(outcome.buffers[name])
        cycles += outcome.cycles
        bound += plan.cycles_bound
        moved += sum(n for (memory, _), n in outcome.moved.items() if memory == machine.main.name)
        executions += plan.cost.executions.get("gemm_step", 0)
    expected = np.clip(reference(layer, arrays) >> shift, -128, 127)
    return {
        "cycles": cycles,
        "bound": bound,
        "bytes_moved": moved,
        "is_equal": bool((contents["bytes"] == expected).all()),
        "is_proven": is_proven,
        "executions": executions,
        "planning_seconds": seconds,
    }


def measured(words: str, seed: int = 1) -> Row:
    """Return the row of a layer.

    Parameters
    ----------
    words : str
        Layer as the command line names it.
    seed : int, default 1
        Seed of the data of both paths.
    """
    spec = hardware_spec(BACK_END)
    options = RunOptions(untuned=True, seed=seed)
    result = run(workload(words, spec), spec, options)
    native = result.to_json()
    counts = described(words, native["output"]["shift"], seed)
    counts["is_equal"] &= native["verified"]
    return Row(
        words,
        native_cycles=native["simulated_cycles"],
        native_bound=native["lower_bound_cycles"],
        native_bytes=sum(native["bytes"].values()),
        **counts,
    )


def page(rows: Sequence[Row], lines: Sequence[str]) -> str:
    """Return the page of the rows."""
    text = ["# Programs for VTA by its description and by its back end", "", *lines, ""]
    text += [(__doc__ or "").split("\n\n")[2], ""]
    text += [f"| {' | '.join(COLUMNS)} |", f"| {' | '.join('---' for _ in COLUMNS)} |"]
    for row in rows:
        cells = (
            row.layer,
            "yes" if row.is_equal else "NO",
            "yes" if row.is_proven else "NO",
            f"{row.executions:,}",
            f"{row.cycles:,.0f}",
            f"{row.bound:,.0f}",
            f"{row.native_cycles:,}",
            f"{row.native_bound:,}",
            f"{row.cycles / row.native_cycles:.2f}",
            f"{row.bytes_moved:,}",
            f"{row.native_bytes:,}",
            f"{row.planning_seconds:.1f}",
        )
        text.append(f"| {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vta_programs", description=__doc__)
    parser.add_argument("--output", type=Path, default=FOLDER)
    parser.add_argument("layers", nargs="*", default=LAYERS)
    options = parser.parse_args()
    rows: list[Row] = []
    for layer in options.layers:
        print(layer, flush=True)
        rows.append(measured(layer))
    document = {**provenance(), "rows": [asdict(row) for row in rows]}
    write_document(options.output / "vta_programs.json", document)
    lines = provenance_lines(document, "emulated and simulated")
    write_whole(options.output / "vta_programs.md", page(rows, lines))


if __name__ == "__main__":
    main()
