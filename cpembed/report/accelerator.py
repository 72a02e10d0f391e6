"""Report of a network on an accelerator, from its document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cpembed.accelerator.cost import POOR, peak_share, unfilled
from cpembed.accelerator.energy import energy_table
from cpembed.blocks import Block, Bullets, Header, Heading, Table
from cpembed.provenance import Provenance
from cpembed.wording import count, duration, plural

if TYPE_CHECKING:
    from cpembed.accelerator.matching import Matching
    from cpembed.accelerator.workload import WorkloadRun
    from cpembed.hw.isa import InstructionSet

_OPERATOR_WIDTH, _REASON_WIDTH = 36, 60


def accelerator_report(document: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the programs with their costs, what the host does and why, and the totals.

    Parameters
    ----------
    document : mapping
        Document of :func:`cpembed.accelerator.document.network_document`.
    """
    programs = [step for step in document["steps"] if step["kind"] == "program"]
    yield Heading(f"On {document['target']}")
    yield Table(
        ("operator", "kind", "instructions", "cycles>", "bound>", "main memory>", "proven"),
        (_program_row(step, document["main_memory"]) for step in programs),
        {"operator": _OPERATOR_WIDTH},
    )
    chains = [step for step in programs if "chain" in step]
    if chains:
        yield ""
        yield Heading("On chip between operators")
        yield Table(
            ("program", "tensor", "memory", "rows>", "bytes>"),
            [
                (step["operator"] if number == 0 else "", *_resident_row(resident))
                for step in chains
                for number, resident in enumerate(step["chain"]["residents"])
            ],
            {"program": _OPERATOR_WIDTH, "tensor": _OPERATOR_WIDTH},
        )
    host = [row for step in document["steps"] for row in _host_rows(step)]
    if host:
        yield ""
        yield Heading("On the host, by estimate")
        yield Table(
            ("operator", "work", "time>", "reason"),
            host,
            {"operator": _OPERATOR_WIDTH, "reason": _REASON_WIDTH},
        )
    refusals = [
        f"{step['operator']}: {step['proof']['refusal']}"
        for step in programs
        if not step.get("proven", True)
    ]
    if refusals:
        yield ""
        yield Heading("Not proven")
        yield Bullets(refusals)
    yield ""
    yield Header(_totals(document))


def workload_report(result: WorkloadRun) -> Iterator[Block]:
    """Yield the programs of one workload with their costs."""
    machine = result.machine
    time = f"{duration(result.cycles / machine.clock_mhz)} at {machine.clock_mhz:,g} MHz"
    matches = [line for plan in result.plans for line in plan.problem.instruction_lines]
    moved = result.total("moved").items()
    main = sum(count for (memory, _), count in moved if memory == machine.main.name)
    tensors = [item for program in result.programs for item in program.tensors.items()]
    packed = ", ".join(name for name, tensor in tensors if tensor.role == "constant")
    rows = [
        ("workload", str(result.workload)),
        ("target", f"{machine.name}, {machine.synchronization}"),
        *((f"program {n}", text) for n, text in enumerate(matches)),
        ("cycles", f"{result.cycles:,.0f}, {Provenance.EMULATED}; {time}"),
        ("estimated", f"{result.estimated_cycles:,.0f} cycles by the plan"),
        ("bound", f"{result.bound:,.0f} cycles of every program with these matches"),
        ("main memory", f"{main:,.0f} bytes" + (f"; {packed} packed ahead" if packed else "")),
        *energy_rows(result.total("energy"), energy_table(machine).sources),
        ("proven", _proofs_text(result)),
        ("verified", _verified_text(result)),
    ]
    yield Header(rows)
    yield ""
    yield Table(
        ("instruction", "executions>"),
        [(name, f"{n:,.0f}") for name, n in result.total("executions").items() if n],
    )
    yield ""
    yield Table(
        ("unit", "busy cycles>", "share>"),
        [
            (unit, f"{busy:,.0f}", f"{busy / result.cycles:.1%}" if result.cycles else "-")
            for unit, busy in result.total("unit_cycles").items()
        ],
    )


def matches_document(
    matching: Matching, machine: InstructionSet, top: int | None
) -> dict[str, Any]:
    """Return the document of ``solve --json`` for an instruction set.

    Parameters
    ----------
    matching : Matching
    machine : InstructionSet
    top : int or None
        Number of matches; None for all.
    """
    return {
        "workload": str(matching.statement.computation),
        "target": machine.name,
        "complete": matching.complete and not matching.left_out,
        "count": len(matching.matches) + matching.left_out,
        "matches": [
            {
                "instruction": match.instruction.name,
                "axes": {name: list(map(str, digits)) for name, digits in match.axes.items()},
                "operands": match.operands,
                "executions": match.executions,
                "cycles": match.cycles,
                "utilization": match.utilization,
                "peak_share": peak_share(match),
                "unfilled": list(unfilled(match)),
                "conditions": list(match.conditions),
            }
            for match in matching.matches[:top]
        ],
        "rejections": [
            {"instruction": rejection.instruction, "reason": rejection.reason}
            for rejection in matching.rejections
        ],
    }


def matches_report(document: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the matches of a workload with their executions.

    Parameters
    ----------
    document : mapping
        Document of :func:`matches_document`.
    """
    ended = "complete" if document["complete"] else "not complete"
    yield Header(
        [
            ("workload", document["workload"]),
            ("target", document["target"]),
            ("matches", f"{document['count']}, {ended}"),
            *_plan_rows(document.get("plan")),
        ]
    )
    yield ""
    yield Table(
        ("instruction", "axes", "executions>", "its cycles>", "of its peak>"),
        [
            (
                match["instruction"],
                ", ".join(f"{n} <- {' '.join(d) or '1'}" for n, d in match["axes"].items()),
                f"{match['executions']:,}",
                f"{match['cycles']:,.0f}",
                f"{match['peak_share']:.1%}",
            )
            for match in document["matches"]
        ],
    )
    best = document["matches"][0]
    if best["peak_share"] < POOR and best["unfilled"]:
        yield ""
        yield Heading(f"What keeps {best['instruction']} from more")
        yield Bullets(best["unfilled"])


def _plan_rows(plan: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return rows with the estimated costs of the planned programs."""
    if plan is None:
        return []
    if "reason" in plan:
        return [("estimated", f"none: {plan['reason']}")]
    time = f"{duration(plan['us'])} at {plan['clock_mhz']:,g} MHz"
    lines = [line for program in plan["programs"] for line in program]
    return [
        ("estimated", f"{plan['cycles']:,.0f} cycles, {time}, moves included"),
        ("bound", f"{plan['bound_cycles']:,.0f} cycles of every program with these matches"),
        *((f"program {n}", text) for n, text in enumerate(lines)),
        *energy_rows(plan["energy_by_level_pj"], plan["energy_sources"]),
    ]


def energy_rows(levels: Mapping[str, float], sources: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return rows with the energy, by level, and the origin of its figures.

    Parameters
    ----------
    levels : mapping of str to float
        Picojoules by memory, and of instructions.
    sources : mapping of str to str
        Origin of each figure (:class:`cpembed.accelerator.energy.EnergyTable`).
    """
    total = sum(levels.values())
    if not total:
        return [("energy", "none is described")]
    shares = ", ".join(f"{name} {pj / total:.0%}" for name, pj in levels.items() if pj)
    origins: dict[str, list[str]] = {}
    for name, source in sources.items():
        origins.setdefault(source, []).append(name)
    figures = "; ".join(f"{', '.join(names)} from {source}" for source, names in origins.items())
    return [("energy", f"{total / 1e6:,.3g} uJ: {shares}"), ("", f"figures: {figures}")]


def _proofs_text(result: WorkloadRun) -> str:
    refusal = next((proof.refusal for proof in result.proofs if not proof.holds), "")
    mechanisms = ", ".join(dict.fromkeys(proof.mechanism for proof in result.proofs))
    return f"no: {refusal}" if refusal else f"yes, by {mechanisms}"


def _verified_text(result: WorkloadRun) -> str:
    if not result.is_right:
        return f"no: largest error {result.error:.3g}"
    if not result.tolerance:
        return "yes, bit for bit equal to the reference"
    return f"yes, largest error {result.error:.3g}, within rounding of the reference"


def _program_row(step: Mapping[str, Any], main_memory: str) -> tuple[str, ...]:
    names = [name for program in step["programs"] for name in program["instructions"]]
    moved = [e["bytes"] for e in step.get("bytes", ()) if e["memory"] == main_memory]
    cycles = step.get("cycles", step["estimated_cycles"])
    return (
        step["operator"],
        step["label"],
        " ".join(dict.fromkeys(names)),
        f"{cycles:,.0f}",
        f"{step['bound_cycles']:,.0f}",
        f"{count(sum(moved))}B" if moved else "-",
        _proven_text(step),
    )


def _resident_row(resident: Mapping[str, Any]) -> tuple[str, ...]:
    first, rows = resident["first_row"], resident["rows"]
    return (
        resident["tensor"],
        resident["memory"],
        f"{first:,} to {first + rows - 1:,}",
        f"{resident['bytes']:,}",
    )


def _proven_text(step: Mapping[str, Any]) -> str:
    if "proven" not in step:
        return "-"
    return ", ".join(step["proof"]["mechanisms"]) if step["proven"] else "no"


def _main_memory_text(totals: Mapping[str, Any]) -> str:
    text = f"{totals['main_bytes']:,} bytes by estimate"
    if totals["chains"]:
        chains = plural(totals["chains"], "chain")
        text += f"; {chains} of operators saved {totals['main_bytes_saved']:,}"
    return text


def _host_rows(step: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the host's work of a step: all of it, or the statements that no program computes."""
    match step["kind"]:
        case "layout":
            yield step["tensor"], "layout", _time_text(step), step["reason"]
        case "host":
            yield step["operator"], step["label"], _time_text(step), step["reason"]
        case "program":
            for part in step["host"]:
                count_of = plural(len(part["statements"]), "statement")
                work = f"{count_of} after program {part['after_programs']}"
                yield step["operator"], work, _time_text(part), part["reason"]
        case _:
            pass


def _time_text(work: Mapping[str, Any]) -> str:
    us = work["estimated_us"]
    return "not described" if us is None else duration(us)


def _totals(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    totals = document["totals"]
    cycles = totals.get("cycles", totals["estimated_cycles"])
    time = f"{duration(cycles / document['clock_mhz'])} at {document['clock_mhz']:,g} MHz"
    on_machine = plural(totals["operators_on_machine"], "operator")
    rows = [
        ("machine", f"{on_machine} in {plural(totals['programs'], 'program')}"),
        (
            "cycles",
            f"{cycles:,.0f}, {document['provenance']}; {time}",
        ),
        (
            "bound",
            f"{totals['bound_cycles']:,.0f} cycles of every plan with the same matches",
        ),
        ("main memory", _main_memory_text(totals)),
        ("products", f"{count(totals['macs'])} multiply-accumulates of the operators"),
    ]
    rows += energy_rows(totals["energy_by_level_pj"], totals["energy_sources"])
    host = f"{plural(totals['host_steps'], 'step')}, {duration(totals['host_us'])} by estimate"
    if totals["host_steps_without_estimate"]:
        host += f"; {totals['host_steps_without_estimate']} without an estimate"
    rows.append(("host", host))
    if "verified" in totals and not totals["programs"]:
        rows.append(("verified", "nothing: no operator is executed by the machine"))
    elif "verified" in totals:
        verdict = "every program equals its specification" if totals["verified"] else "no"
        deviation = totals["largest_deviation"]
        if deviation:
            verdict += f"; at most {deviation:g} from the operator's own definition"
        rows.append(("verified", verdict))
    proven = totals["operators_proven"]
    if any("proven" in step for step in document["steps"]):
        rows.append(("proven", f"{proven} of {on_machine}"))
    return rows
