"""The tables of ``cpembed bench``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table

from cpembed.driver.bench import Bench
from cpembed.driver.bench_rows import BenchRow, RunRow, SolvedRow
from cpembed.driver.bench_summary import RATIOS_OVER_BOUNDS
from cpembed.report.bench_baselines import comparisons, summary_lines
from cpembed.report.blocks import bullets, header, heading, table
from cpembed.wording import duration, plural

_SOLVED = ("#>", "layer", "strict", "model+solve s>", "best", "used>")
_RAN = ("verified", "latency us>", "p10>", "packing us>", "unpacking us>", "GOPS>")
_PEAK = "of peak>"
"""Only where the machine is calibrated."""
_SIMULATED = (
    *("verified", "simulated cycles>", "simulated us>", "GOPS>", "GEMM busy>"),
    *("of the least>", "packing us>", "unpacking us>"),
)
_FOLDED = 40
"""Reasons and errors fold, so that a few long ones do not push the other columns apart."""

_WIDE = 160

_LISTED = 12
"""Layer numbers that are listed before the rest is only counted."""


def report(bench: Bench) -> Iterator[RenderableType]:
    """One row a layer, then what they come to."""
    yield _Layers(bench)
    yield from comparisons(bench.finished())
    yield from _summary(bench)


class _Layers:
    """The rows: one table where the lines are long enough, else the searches, then the runs."""

    def __init__(self, bench: Bench) -> None:
        self.rows = bench.finished()
        self.ran = bench.maker.backend is not None
        self.simulated = any(
            row.run is not None and row.run.cycles is not None for row in self.rows
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns, ran = (_SIMULATED, _ran_simulated) if self.simulated else (_RAN, _ran)
        if any(row.run is not None and row.run.peak_share is not None for row in self.rows):
            columns = (*columns, _PEAK)
        if not self.ran:
            yield self._table(_SOLVED, _solved)
        elif options.max_width >= _WIDE:
            yield self._table((*_SOLVED, *columns), lambda row: [*_solved(row), *ran(row)])
        else:
            yield self._table(_SOLVED, _solved)
            yield self._table((_SOLVED[0], *columns), lambda row: [str(row.index), *ran(row)])

    def _table(self, columns: Sequence[str], cells: Callable[[BenchRow], list[str]]) -> Table:
        result = table(columns, map(cells, self.rows))
        for column in result.columns:
            column.max_width = _FOLDED if column.header in ("strict", "best", "verified") else None
        return result


def _solved(row: BenchRow) -> list[str]:
    strict, best = row.strict, row.best
    used = "" if best is None or best.embedding is None else f"{best.embedding.utilisation:.1%}"
    seconds = "" if strict is None else f"{strict.seconds.model + strict.seconds.solve:.3f}"
    label = row.label.removeprefix("conv2d ")
    return [str(row.index), label, _mapping(strict), seconds, _mapping(best), used]


def _mapping(found: SolvedRow | None) -> str:
    """The mapping, or why there is none."""
    if found is None:
        return ""
    if found.embedding is not None:
        return found.embedding.mapping
    return found.status if found.reason is None else f"no: {found.reason.text}"


def _verified(row: BenchRow) -> str:
    """Whether and by what, or why not."""
    if row.error is not None:
        return f"{'WRONG' if row.failed_verification else row.error.type}: {row.error.message}"
    run = row.run
    if run is None:
        return "not run"
    by = run.backend if run.instead is None else f"{run.backend}, instead: {run.instead}"
    verified = f"yes ({by})" if run.verified else "NO"
    verified += "; padding spreads NaN" if run.spreads_nan else ""
    return verified + (", noisy" if run.noisy else "") + "".join(f"; {why}" for why in run.missing)


def _ran_simulated(row: BenchRow) -> list[str]:
    run = row.run
    if run is None or run.cycles is None:
        return [_verified(row)]
    own = run.own
    formats = {
        "simulated_gops": "{:.1f}",
        "gemm_utilisation": "{:.1%}",
        "lower_bound_ratio": "x{:.3f}",
    }
    return [
        _verified(row),
        f"{run.cycles:,}",
        f"{run.simulated_us:,.1f}",
        *(form.format(own[name]) if name in own else "" for name, form in formats.items()),
        *_moves(run),
    ]


def _ran(row: BenchRow) -> list[str]:
    run = row.run
    if run is None:
        return [_verified(row)]
    return [
        _verified(row),
        *_latency(run),
        *_moves(run),
        *([f"{run.gops:.1f}"] if run.gops is not None else []),
        *([f"{run.peak_share:.1%}"] if run.peak_share is not None else []),
    ]


def _moves(run: RunRow) -> list[str]:
    """Packing and unpacking; empty cells where they were not timed."""
    return ["" if us is None else f"{us:.1f}" for us in (run.packing_us, run.unpacking_us)]


def _latency(run: RunRow) -> list[str]:
    """Median and p10."""
    if run.latency_us is not None:
        return [f"{us:.1f}" for us in (run.latency_us.median, run.latency_us.p10)]
    if run.generic_latency_us is None:
        return ["", ""]
    # Portable code's time is not the instruction's.
    return [f"({us:.1f})" for us in (run.generic_latency_us.median, run.generic_latency_us.p10)]


def _summary(bench: Bench) -> Iterator[RenderableType]:
    summary = bench.summary()
    rows = [(f"{bench.suite} on {bench.maker.spec.name}", plural(summary["layers"], "layer"))]
    if bench.maker.epilogue is not None:
        rows.append(("stored", str(bench.maker.epilogue)))
    for name in ("strict", "best"):
        found = summary[name]
        if found["constraints"] is not None:
            rows.append((found["constraints"], _searches(found, summary["layers"])))
    if bench.maker.backend is not None:
        rows += _runs(summary["run"])
    if bench.missing:
        rows.append(("not run", "; ".join(bench.missing)))
    yield header(rows)
    for name in ("strict", "best"):
        if summary[name]["reasons"]:
            yield ""
            yield heading(f"Not embedded under {summary[name]['constraints']}")
            yield bullets(_reason(group) for group in summary[name]["reasons"])
    if summary["errors"]:
        yield ""
        yield heading("Errors")
        yield bullets(f"layer {e['index']}: {e['type']}: {e['message']}" for e in summary["errors"])


def _searches(found: dict[str, Any], layers: int) -> str:
    seconds = found["seconds"]
    longest = f"longest {seconds['max'] * 1e3:.0f} ms (layer {seconds['max_layer']})"
    parts = [
        f"{found['embedded']}/{layers} embedded",
        f"model+solve median {seconds['median'] * 1e3:.0f} ms, {longest}",
    ]
    if found["mean_utilisation"] is not None:
        parts.append(f"mean utilisation {found['mean_utilisation']:.1%}")
    return "; ".join(parts)


def _runs(run: dict[str, Any]) -> list[tuple[str, str]]:
    backends = ", ".join(f"{count} {name}" for name, count in run["backends"].items())
    words = f"{run['verified']}" + (f" ({backends})" if backends else "")
    if run["failed_verification"]:
        words += f"; WRONG: layers {_numbers(run['failed_verification'])}"
    rows = [("verified", words)]
    if run["gops_geometric_mean"] is not None:
        mean, packing = run["gops_geometric_mean"], run["gops_with_packing_geometric_mean"]
        words = f"{mean:.1f} GOPS on packed operands; {packing:.1f} GOPS with packing of the data"
        rows.append(("geometric mean", f"{words} and unpacking (weights packed ahead)"))
    if run["total_us"] is not None:
        each, packed = (duration(run[name]) for name in ("total_us", "total_with_packing_us"))
        layers = plural(run["timed_layers"], "layer")
        rows.append(("in all", f"{each}; {packed} with packing and unpacking ({layers}, by count)"))
    if run["simulated"] is not None:
        rows += _simulations(run["simulated"])
    rows += summary_lines(run["baselines"])
    if run["noisy"]:
        disturbed = f"{plural(len(run['noisy']), 'layer')} ({_numbers(run['noisy'])})"
        rows.append(("noisy", f"{disturbed}: other work on the machine disturbed the times"))
    return rows


def _simulations(found: dict[str, Any]) -> list[tuple[str, str]]:
    cycles, layers = f"{found['total_cycles']:,} cycles", plural(found["layers"], "layer")
    rows = [("simulated", f"{cycles}, {duration(found['total_us'])} ({layers}, by count)")]
    if found["gops_geometric_mean"] is not None:
        rate = f"{found['gops_geometric_mean']:.1f} GOPS on packed operands"
        rows.append(("geometric mean", rate))
    if not all(f"{name}_max" in found for name in RATIOS_OVER_BOUNDS):
        return rows
    ratio, worst = (found[f"lower_bound_ratio_{name}"] for name in ("geometric_mean", "max"))
    where = f"layer {found['lower_bound_ratio_max_layer']}"
    busy, most = (found[f"busiest_module_ratio_{name}"] for name in ("geometric_mean", "max"))
    least = f"x{ratio:.3f} in the geometric mean, at most x{worst:.3f} ({where})"
    rows.append(("cycles over the least", f"{least}; the least is what GEMM or DMA alone takes"))
    if (busy, most) != (ratio, worst):
        both = f"x{busy:.3f}, at most x{most:.3f}"
        rows.append(("", f"{both} with resets and the ALU in the least"))
    return rows


def _reason(group: dict[str, Any]) -> str:
    layers = group["layers"]
    return f"{plural(len(layers), 'layer')} ({_numbers(layers)}): for example {group['text']}"


def _numbers(layers: list[int]) -> str:
    listed = ", ".join(map(str, layers[:_LISTED]))
    more = len(layers) - _LISTED
    return listed + (f" and {more} more" if more > 0 else "")
