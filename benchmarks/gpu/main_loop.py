"""Count the instructions of a kernel's main loop in its machine code, layer by layer.

    python -m benchmarks.gpu.main_loop -o loop.json
    python -m benchmarks.gpu.main_loop --schedules loop.json -o later.json
    python -m benchmarks.gpu.main_loop --machine rtx_5090 --bulk -o bulk.json
    python -m benchmarks.gpu.main_loop --compare loop.json later.json

Needs nvcc and nvdisasm, and no GPU. Of each layer the best candidate of the widest set is taken
with the schedule of the least estimate (``--schedules``: with those of an earlier call) of the
kernels whose warps copy, or with ``--bulk`` of those that bulk copies feed. A row has
the instructions in the loop over stages by kind, the registers of a thread and the bytes that are
spilled. Integer instructions are all that are neither products, loads of fragments, copies nor
barriers and branches.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from benchmarks.gpu.suites import layers
from cpembed.driver.bench_pack import PackItem
from cpembed.driver.solve import solve
from cpembed.errors import BackendUnavailable, LoweringError
from cpembed.files import write_whole
from cpembed.targets.cuda.lower import lower
from cpembed.targets.cuda.model import gpu
from cpembed.targets.cuda.multistage.schedule import KernelSchedule, Plan
from cpembed.targets.cuda.target import AnySchedule, CudaTarget
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan, SpecializedSchedule

KERNEL = "product_kernel"

_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*)")
_LABEL = re.compile(r"\s*(\.L_\w+):")

# Between the products of sm_120 ptxas puts additions of zeros, as it puts NOPs elsewhere.
_PADDING = re.compile(r"UIADD3\s+URZ, UPT, UPT, URZ, URZ, URZ")

KINDS = {
    "products": r"[HIQ]G?MMA\.",
    "fragments": r"LDSM",
    "copies": r"LDGSTS|UTMALDG|UBLKCP",
    "memory": r"(LD|ST)[GSL]?(\.|$)|U?LDCU?|S2U?R",
    "barriers": r"(BAR|DEPBAR|LDGDEPBAR|SYNCS|WARPGROUP|FENCE|MEMBAR|ERRBAR)(\.|$)",
    "control": r"(BRA|NOP|BSYNC|BSSY|WARPSYNC|EXIT|NANOSLEEP|BPT)(\.|$)",
}
"""Patterns of the opcodes of each kind; all others are integer instructions."""


def tool(name: str) -> str:
    """Return a command of the toolkit, from the path or from NVIDIA's package of that command.

    Raises :class:`BackendUnavailable` if there is none.
    """
    command = shutil.which(name)
    if command is not None:
        return command
    try:
        import nvidia
    except ImportError:
        folders = []
    else:
        folders = [Path(folder) for folder in nvidia.__path__]
    for folder in folders:
        for file in sorted(folder.glob(f"**/bin/{name}")):
            return str(file)
    raise BackendUnavailable(f"{name} is not there: pip install nvidia-cuda-{name}")


def listing(cubin: Path) -> str:
    """Return the machine code of a cubin as text."""
    command = [tool("nvdisasm"), "-c", str(cubin)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@dataclass(frozen=True)
class Instruction:
    """An instruction of machine code: its opcode, and its operands as text."""

    opcode: str
    operands: str

    @property
    def registers(self) -> list[int]:
        """Numbers of the registers, the destination first."""
        return [int(number) for number in re.findall(r"\bR(\d+)", self.operands)]


def kernels(text: str) -> dict[str, str]:
    """Return the listing of each kernel of an output of ``nvdisasm -c``."""
    sections = re.split(r"(?m)^\s*\.section\s+\.text\.(\w+)", text)
    return dict(zip(sections[1::2], sections[2::2], strict=True))


@dataclass
class Block:
    """Instructions without a branch among them, and the numbers of the blocks that can follow."""

    code: list[Instruction]
    following: list[int]


def blocks(body: str) -> list[Block]:
    """Return the blocks of a kernel's listing in order."""
    parts: list[tuple[list[Instruction], list[str], bool]] = [([], [], True)]
    labels: dict[str, int] = {}
    for line in body.splitlines():
        if label := _LABEL.match(line):
            if parts[-1][0]:
                parts.append(([], [], True))
            labels[label[1]] = len(parts) - 1
        elif instruction := _INSTRUCTION.search(line):
            code, targets, _ = parts[-1]
            code.append(Instruction(instruction[1], instruction[2]))
            target = re.search(r"`\((\.L_\w+)\)", instruction[2])
            if instruction[1].startswith("BRA") or instruction[1] == "EXIT":
                targets += [target[1]] if target else []
                # A branch under a predicate can be passed: in front, or as an operand.
                passed = "@" in line or re.match(r"\s*!?U?P\d", instruction[2]) is not None
                parts[-1] = (code, targets, passed or instruction[1] not in ("BRA", "EXIT"))
                parts.append(([], [], True))
    last = len(parts) - 1
    return [
        Block(
            code,
            [labels[target] for target in targets if target in labels]
            + [number + 1] * (passed and number < last),
        )
        for number, (code, targets, passed) in enumerate(parts)
    ]


def loops(body: str, opcodes: str = "") -> list[list[Instruction]]:
    """Return the code of each natural loop that has no other loop inside.

    Blocks are in the order of the listing, which has those that wait at its end.

    Parameters
    ----------
    body
        Listing of a kernel.
    opcodes
        Pattern of opcodes: loops without any of them do not count, as those that wait for a
        barrier object.
    """
    graph = blocks(body)
    dominators = _dominators(graph)
    natural: dict[int, set[int]] = {}
    for number, block in enumerate(graph):
        for head in block.following:
            if head in dominators.get(number, ()):
                natural.setdefault(head, set()).update(_natural_loop(graph, head, number))
    bodies = [
        members
        for members in natural.values()
        if any(re.match(opcodes, i.opcode) for number in members for i in graph[number].code)
    ]
    inner = [m for m in bodies if not any(body < m for body in bodies)]
    return [[i for number in sorted(m) for i in graph[number].code] for m in inner]


def usual_turn(body: str, opcodes: str) -> list[Instruction]:
    """Return what a turn of a kernel's main loop executes where every branch is the usual one.

    That is the path through the loop with most of the instructions of a pattern, of these with most
    copies, and of these the shortest: what is executed in few turns alone is passed.

    Parameters
    ----------
    body
        Listing of a kernel.
    opcodes
        Pattern of the opcodes by which the main loop is known.
    """
    graph = blocks(body)
    dominators = _dominators(graph)

    def weight(number: int) -> tuple[int, int, int]:
        code = graph[number].code
        matching = sum(re.match(opcodes, i.opcode) is not None for i in code)
        return -matching, -kinds(code)["copies"], len(code)

    turns: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for tail, block in enumerate(graph):
        for head in block.following:
            if head not in dominators.get(tail, ()):
                continue
            members = _natural_loop(graph, head, tail)
            paths: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {
                head: (weight(head), (head,))
            }
            # As often as a path is long: blocks that wait are behind the others in the listing.
            for _ in members:
                for number, (cost, path) in list(paths.items()):
                    for after in set(graph[number].following) & members - set(path):
                        further = tuple(map(sum, zip(cost, weight(after), strict=True)))
                        if after not in paths or further < paths[after][0]:
                            paths[after] = further, (*path, after)
            if tail in paths:
                turns.append(paths[tail])
    _, best = min(turns)
    return [instruction for number in best for instruction in graph[number].code]


def _dominators(graph: Sequence[Block]) -> dict[int, set[int]]:
    """Return the blocks through which each way to a block leads, of blocks that are reached."""
    before: dict[int, list[int]] = {}
    for number, block in enumerate(graph):
        for target in block.following:
            before.setdefault(target, []).append(number)
    dominators: dict[int, set[int]] = {0: {0}}
    changed = True
    while changed:
        changed = False
        for number in range(1, len(graph)):
            reached = [dominators[b] for b in before.get(number, ()) if b in dominators]
            if not reached:
                continue
            dominating = reached[0].intersection(*reached[1:]) | {number}
            if dominators.get(number) != dominating:
                dominators[number], changed = dominating, True
    return dominators


def _natural_loop(graph: Sequence[Block], head: int, tail: int) -> set[int]:
    """Return the blocks from which the tail is reached without the head, and the head."""
    members, stack = {head, tail}, [tail]
    while stack:
        number = stack.pop()
        if number == head:
            continue
        for before, block in enumerate(graph):
            if number in block.following and before not in members:
                members.add(before)
                stack.append(before)
    return members


def kind(instruction: Instruction) -> str:
    """Return the kind of an instruction."""
    opcode = instruction.opcode
    if _PADDING.match(f"{opcode} {instruction.operands}"):
        return "control"
    return next((name for name, pattern in KINDS.items() if re.match(pattern, opcode)), "integer")


def kinds(code: Sequence[Instruction]) -> Counter[str]:
    """Count instructions by kind."""
    return Counter(map(kind, code))


def products_between(loop: Sequence[Instruction]) -> list[int]:
    """Return the products between each load of fragments and the first product that reads it.

    The loop is followed into its next iteration. Fragments of one set have none in between, as each
    load is waited for; of two sets, most products of a depth.
    """
    turns = [*loop, *loop]
    distances: list[int] = []
    for place, instruction in enumerate(loop):
        if kind(instruction) != "fragments":
            continue
        count = int(instruction.opcode[-1]) if instruction.opcode[-1].isdigit() else 1
        first = instruction.registers[0]
        between = 0
        for later in turns[place + 1 :]:
            if kind(later) != "products":
                continue
            # Sums are read where they are written; the factors are between them.
            if any(first <= register < first + count for register in later.registers[1:3]):
                distances.append(between)
                break
            between += 1
    return distances


def main_loop(text: str, kernel: str = KERNEL) -> list[Instruction] | None:
    """Return the code of the loop that multiplies and copies; None if it was unrolled."""
    counted = [(kinds(loop), loop) for loop in loops(kernels(text)[kernel])]
    copying = [loop for count, loop in counted if count["products"] and count["copies"]]
    # Copies shorter than those that are asynchronous are loads.
    copying = copying or [loop for count, loop in counted if count["products"]]
    return max(copying, key=len, default=None)


@dataclass(frozen=True)
class MachineCode:
    """Report of ptxas on a kernel, and its listing."""

    registers: int
    spilled_bytes: int
    text: str


def compiled(source: str, architecture: str, kernel: str = KERNEL) -> MachineCode:
    """Compile a text by nvcc and read a kernel's machine code.

    Parameters
    ----------
    source
        CUDA C++.
    architecture
        Nvcc's name of the architecture.
    kernel
        Name of the kernel.
    """
    if shutil.which("nvcc") is None:
        raise BackendUnavailable("nvcc is not on the path: install CUDA's toolkit")
    with tempfile.TemporaryDirectory() as folder:
        text, cubin = Path(folder) / "kernel.cu", Path(folder) / "kernel.cubin"
        text.write_text(source)
        command = ["nvcc", "-cubin", f"-arch={architecture}", "-std=c++17", "-O3", "-Xptxas", "-v"]
        process = subprocess.run(
            [*command, "-o", str(cubin), str(text)], capture_output=True, text=True, check=True
        )
        report = re.search(
            rf"entry function '{kernel}'.*?(\d+) bytes spill stores, (\d+) bytes spill loads"
            r".*?Used (\d+) registers",
            process.stderr,
            re.S,
        )
        assert report is not None
        return MachineCode(int(report[3]), int(report[1]) + int(report[2]), listing(cubin))


@dataclass(frozen=True)
class Selection:
    """Kernels that are counted."""

    machine: str = "a100"
    """GPU whose model chooses schedules."""
    bulk: bool = False
    """True for warps that bulk copies feed."""


def kernel_of(
    layer: PackItem, schedule: KernelSchedule | None, selection: Selection
) -> tuple[Plan | SpecializedPlan, str]:
    """Return the best candidate of a layer with a schedule, and its text.

    Parameters
    ----------
    layer : PackItem
    schedule : KernelSchedule or None
        Schedule of the kernel; by default the best by the model.
    selection : Selection
        GPU, and kind of kernels.

    Raises
    ------
    LoweringError
        If the layer has no kernel of the kind.
    """
    spec, epilogue = layer.spec.for_machine(selection.machine), layer.layer(1).epilogue
    ranked = solve(layer.workload, spec, constraints=layer.constraints, top=1).embeddings[0]
    product = lower(ranked.candidate.program, spec, epilogue)
    target = CudaTarget(spec)
    best: AnySchedule | None = schedule
    if best is None:
        candidates = (item.schedule for item in target.space(product).ranked())
        fits = (
            each for each in candidates if isinstance(each, SpecializedSchedule) == selection.bulk
        )
        best = next(fits, None)
    if best is None:
        raise LoweringError("no bulk copies load its factors")
    artifact = target.build(product, best)
    return cast("Plan | SpecializedPlan", artifact.plan), artifact.text.source


def layer_counts(
    layer: PackItem, schedule: KernelSchedule | None, selection: Selection
) -> dict[str, Any]:
    """Return the counts of a layer's kernel.

    Parameters
    ----------
    layer : PackItem
        Layer with its target.
    schedule : KernelSchedule or None
        Schedule of the kernel; None for the best by the model.
    selection : Selection
        Machine, whose architecture nvcc compiles for, and kind of kernels.
    """
    plan, source = kernel_of(layer, schedule, selection)
    code = compiled(source, gpu(layer.spec, selection.machine).architecture)
    loop = main_loop(code.text)
    return {
        "layer": layer.name,
        "words": layer.words,
        "schedule": plan.schedule.__dict__,
        "registers": code.registers,
        "estimated_registers": plan.registers,
        "spilled_bytes": code.spilled_bytes,
        "loop": None if loop is None else dict(kinds(loop)),
    }


def measure(schedules: Path | None, selection: Selection, output: Path) -> None:
    """Write the counts of each layer of every suite.

    Parameters
    ----------
    schedules : Path or None
        File of an earlier run, whose schedules are taken; None for the best by the model.
    selection : Selection
        Machine and kind of kernels.
    output : Path
        File of JSON, written after each layer.
    """
    earlier: dict[str, Any] = {}
    if schedules is not None:
        earlier = {entry["layer"]: entry["schedule"] for entry in json.loads(schedules.read_text())}
    rows: list[dict[str, Any]] = []
    for layer in layers():
        fields = earlier.get(layer.name)
        # Tuples are lists in JSON.
        schedule = None if fields is None else msgspec.convert(fields, KernelSchedule)
        try:
            rows.append(layer_counts(layer, schedule, selection))
        except LoweringError as error:
            print(f"{layer.name}: {error}", flush=True)
            continue
        print(rows[-1], flush=True)
        write_whole(output, json.dumps(rows, indent=1) + "\n")


def ratio(entry: dict[str, Any]) -> float | None:
    """Return the integer instructions for 32 products of a row."""
    loop = entry["loop"]
    return None if loop is None else 32 * loop["integer"] / loop["products"]


def compare(before: Path, after: Path) -> str:
    """Return a table of two files of rows with the same schedules."""
    later = {entry["layer"]: entry for entry in json.loads(after.read_text())}
    lines = [
        "| layer | workload | integer instructions on 32 products | registers | spilled bytes |",
        "| --- | --- | --- | --- | --- |",
    ]
    for entry in json.loads(before.read_text()):
        if entry["layer"] not in later:
            continue
        pair = (entry, later[entry["layer"]])
        counts = ["unrolled" if (r := ratio(e)) is None else f"{r:.0f}" for e in pair]
        registers = " → ".join(str(e["registers"]) for e in pair)
        spilled = " → ".join(str(e["spilled_bytes"]) for e in pair)
        lines.append(
            f"| {entry['layer']} | `{entry['words']}` | {' → '.join(counts)} | {registers} "
            f"| {spilled} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Count the instructions of main loops.")
    parser.add_argument("-o", "--output", type=Path, default=Path("main_loop.json"))
    parser.add_argument("--schedules", type=Path, help="rows of an earlier call")
    parser.add_argument("--machine", default="a100", help="GPU whose model chooses schedules")
    parser.add_argument("--bulk", action="store_true", help="kernels that bulk copies feed")
    parser.add_argument("--compare", type=Path, nargs=2, help="two files: print a table")
    arguments = parser.parse_args()
    if arguments.compare:
        print(compare(*arguments.compare), end="")
    else:
        selection = Selection(arguments.machine, arguments.bulk)
        measure(arguments.schedules, selection, arguments.output)


if __name__ == "__main__":
    main()
