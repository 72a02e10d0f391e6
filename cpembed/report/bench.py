"""Tables of ``cpembed bench``: layers, the comparison with baselines, the summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cpembed.blocks import Block, Bullets, Header, Heading, Table
from cpembed.driver.bench import Bench
from cpembed.driver.bench_across import Across
from cpembed.driver.bench_baselines import BaselineRow
from cpembed.driver.bench_rows import BenchRow, RunRow, SolvedRow
from cpembed.driver.bench_summary import RATIOS_OVER_BOUNDS
from cpembed.driver.candidate_time import modelled_target
from cpembed.report.messages import LEGEND, layer_numbers, layer_table, target_table
from cpembed.runtime.measurement.runner import Quantiles
from cpembed.wording import duration, plural

_SEARCH_COLUMNS = ("#>", "layer", "strict", "model+solve s>", "best", "used>")
_RUN_COLUMNS = ("verified", "latency us>", "p10>", "packing us>", "unpacking us>", "GOPS>")
# Column that only a calibrated machine has.
_PEAK_COLUMN = "of peak>"
_SIMULATED_COLUMNS = (
    *("verified", "simulated cycles>", "simulated us>", "GOPS>", "GEMM busy>"),
    *("of the least>", "packing us>", "unpacking us>"),
)
_ESTIMATED_COLUMNS = ("verified", "estimated us>")
# Maximum width of reasons and errors: a few long ones do not push the other columns apart.
_REASON_WIDTH = 40

_BASELINE_COLUMNS = (
    *("#>", "primitive us>", "call us>", "ours us>", "with packing>"),
    *("primitive/ours>", "with packing>", "call/ours>", "with packing>", "chosen"),
)

_RATIOS = {
    "primitive_ratio": "its primitive over ours",
    "primitive_ratio_with_packing": "its primitive over ours, our packing included",
    "call_ratio": "its call over ours",
    "call_ratio_with_packing": "its call over ours, our packing included",
}


def report(bench: Bench) -> Iterator[Block]:
    """Yield a row for each layer, the comparisons with baselines, and the summary."""
    rows = bench.finished()
    yield _layers(rows, ran=bench.maker.backend is not None)
    yield from _baselines(rows)
    yield from _summary(bench)


def _layers(rows: Sequence[BenchRow], *, ran: bool) -> Table:
    # A suite has one kind of times: one row decides on the columns of all.
    is_simulated = any(row.run is not None and row.run.cycles is not None for row in rows)
    has_peak = any(row.run is not None and row.run.peak_share is not None for row in rows)
    columns, run_cells = _RUN_COLUMNS, _run_cells
    if is_simulated:
        columns, run_cells = _SIMULATED_COLUMNS, _simulated_cells
    elif _are_estimated(rows):
        columns, run_cells = _ESTIMATED_COLUMNS, _estimated_cells
    if has_peak:
        columns = (*columns, _PEAK_COLUMN)
    if not ran:
        columns = ()
    cells = ([*_search_cells(row), *(run_cells(row) if ran else ())] for row in rows)
    count = len(_SEARCH_COLUMNS) + len(columns)
    return Table(
        (*_SEARCH_COLUMNS, *columns),
        # A layer that failed has no cells after its error.
        ([*row, *[""] * (count - len(row))] for row in cells),
        dict.fromkeys(("strict", "best", "verified"), _REASON_WIDTH),
        breaks=(len(_SEARCH_COLUMNS),),
    )


def _search_cells(row: BenchRow) -> list[str]:
    strict, best = row.strict, row.best
    used = "" if best is None or best.embedding is None else f"{best.embedding.utilisation:.1%}"
    seconds = "" if strict is None else f"{strict.seconds.model + strict.seconds.solve:.3f}"
    # Most suites consist of these: the name would only widen the column.
    label = row.label.removeprefix("conv2d ")
    return [str(row.index), label, _mapping(strict), seconds, _mapping(best), used]


def _mapping(solved: SolvedRow | None) -> str:
    """Return the mapping, or why there is none."""
    if solved is None:
        return ""
    if solved.embedding is not None:
        return solved.embedding.mapping
    return solved.status if solved.reason is None else f"no: {solved.reason.text}"


def _verified(row: BenchRow) -> str:
    """Return whether the run is verified and on which back end, or why not."""
    if row.error is not None:
        return f"{'WRONG' if row.failed_verification else row.error.type}: {row.error.message}"
    run = row.run
    if run is None:
        return "not run"
    backend = run.backend if run.instead is None else f"{run.backend}, instead: {run.instead}"
    verified = f"yes ({backend})" if run.verified else "NO"
    verified += "; padding spreads NaN" if run.spreads_nan else ""
    return verified + (", noisy" if run.noisy else "") + "".join(f"; {why}" for why in run.missing)


def _simulated_cells(row: BenchRow) -> list[str]:
    run = row.run
    if run is None or run.cycles is None:
        return [_verified(row)]
    formats = {
        "simulated_gops": "{:.1f}",
        "gemm_utilisation": "{:.1%}",
        "lower_bound_ratio": "x{:.3f}",
    }
    return [
        _verified(row),
        f"{run.cycles:,}",
        f"{run.simulated_us:,.1f}",
        *(
            form.format(run.details[key]) if key in run.details else ""
            for key, form in formats.items()
        ),
        *_packing_cells(run),
    ]


def _are_estimated(rows: Sequence[BenchRow]) -> bool:
    """True if no row has a time of its own, and some have the estimate that chose the kernel."""
    runs = [row.run for row in rows if row.run is not None]
    timed = any(run.latency_us is not None or run.generic_latency_us is not None for run in runs)
    return not timed and any(_estimated_cell(run) for run in runs)


def _estimated_cells(row: BenchRow) -> list[str]:
    return [_verified(row), "" if row.run is None else _estimated_cell(row.run)]


def _estimated_cell(run: RunRow) -> str:
    selection = run.selection
    return "" if selection is None or selection.unit != "us" else f"{selection.estimated:,.2f}"


def _run_cells(row: BenchRow) -> list[str]:
    run = row.run
    if run is None:
        return [_verified(row)]
    return [
        _verified(row),
        *_latency_cells(run),
        *_packing_cells(run),
        "" if run.gops is None else f"{run.gops:.1f}",
        *([] if run.peak_share is None else [f"{run.peak_share:.1%}"]),
    ]


def _packing_cells(run: RunRow) -> list[str]:
    return ["" if us is None else f"{us:.1f}" for us in (run.packing_us, run.unpacking_us)]


def _latency_cells(run: RunRow) -> list[str]:
    """Return the median and p10."""
    if run.latency_us is not None:
        return [f"{us:.1f}" for us in (run.latency_us.median, run.latency_us.p10)]
    if run.generic_latency_us is None:
        return ["", ""]
    # Parentheses: portable code's time is not the instruction's.
    return [f"({us:.1f})" for us in (run.generic_latency_us.median, run.generic_latency_us.p10)]


# -- baselines ------------------------------------------------------------------------------------


def _baselines(rows: Sequence[BenchRow]) -> Iterator[Block]:
    names = dict.fromkeys(name for row in rows if row.run for name in row.run.baselines)
    for name in names:
        yield Heading(f"Compared with {name} (a ratio above 1: ours is faster)")
        yield Table(
            _BASELINE_COLUMNS,
            [
                [str(row.index), *_baseline_cells(row.run.baselines[name])]
                for row in rows
                if row.run is not None and name in row.run.baselines
            ],
            {"chosen": _REASON_WIDTH},
        )


def _baseline_cells(row: BaselineRow) -> list[str]:
    if row.missing is not None:
        return [""] * (len(_BASELINE_COLUMNS) - 2) + [f"not compared: {row.missing}"]
    times = (row.primitive_us, row.call_us, row.ours_us, row.ours_with_packing_us)
    ratios = (
        row.primitive_ratio,
        row.primitive_ratio_with_packing,
        row.call_ratio,
        row.call_ratio_with_packing,
    )
    implementations = " ".join(row.implementations)
    name = f"{implementations} ({row.form})" if implementations and row.form else ""
    return [
        *(_median(us, ".1f") for us in times),
        *(_median(ratio, ".2f") for ratio in ratios),
        (name or implementations or row.form or "") + (", noisy" if row.noisy else ""),
    ]


def _median(times: Quantiles | None, form: str) -> str:
    return "" if times is None else format(times.median, form)


def _baseline_rows(summaries: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, summary in summaries.items():
        parts = [f"{plural(summary['compared'], 'layer')} compared"]
        if summary["noisy"]:
            parts.append(f"{len(summary['noisy'])} disturbed and left out")
        left_out = sum(len(group["layers"]) for group in summary["not_compared"])
        if left_out:
            parts.append(f"{left_out} not compared")
        rows.append((f"against {name}", "; ".join(parts)))
        rows += [("", _ratio(text, summary[key])) for key, text in _RATIOS.items() if summary[key]]
    return rows


def _ratio(text: str, ratio: Mapping[str, Any]) -> str:
    not_slower = f"ours is not slower in {ratio['ours_not_slower']} of {ratio['layers']}"
    return (
        f"{text}: x{ratio['geometric_mean']:.2f} in the geometric mean, "
        f"worst x{ratio['worst']:.2f} (layer {ratio['worst_layer']}), {not_slower}"
    )


# -- summary --------------------------------------------------------------------------------------


def _summary(bench: Bench) -> Iterator[Block]:
    summary = bench.summary()
    rows = [(f"{bench.suite} on {bench.maker.spec.name}", plural(summary["layers"], "layer"))]
    if bench.maker.epilogue is not None:
        rows.append(("epilogue", str(bench.maker.epilogue)))
    searches = [summary[name] for name in ("strict", "best")]
    rows += [
        (search["constraints"], _search_text(search, summary["layers"]))
        for search in searches
        if search["constraints"] is not None
    ]
    if bench.maker.backend is not None:
        rows += _run_rows(summary["run"])
    if _are_estimated(bench.finished()):
        target = modelled_target(bench.maker.spec)
        machine = None if target is None else target.described_machine
        text = "packing and unpacking included, but for what is packed ahead"
        rows.append(("estimated", f"for {machine}, {text}" if machine else text))
    if bench.missing:
        rows.append(("not run", "; ".join(bench.missing)))
    yield Header(rows)
    for search in searches:
        if search["reasons"]:
            yield ""
            yield Heading(f"Not embedded under {search['constraints']}")
            yield Bullets(map(_reason_text, search["reasons"]))
    if summary["errors"]:
        yield ""
        yield Heading("Errors")
        yield Bullets(f"layer {e['index']}: {e['type']}: {e['message']}" for e in summary["errors"])


def _search_text(search: Mapping[str, Any], layers: int) -> str:
    seconds = search["seconds"]
    longest = f"longest {seconds['max'] * 1e3:.0f} ms (layer {seconds['max_layer']})"
    parts = [
        f"{search['embedded']}/{layers} embedded",
        f"model+solve median {seconds['median'] * 1e3:.0f} ms, {longest}",
    ]
    if search["mean_utilisation"] is not None:
        parts.append(f"mean utilisation {search['mean_utilisation']:.1%}")
    return "; ".join(parts)


def _run_rows(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    backends = ", ".join(f"{count} {name}" for name, count in run["backends"].items())
    verified = f"{run['verified']}" + (f" ({backends})" if backends else "")
    if run["failed_verification"]:
        verified += f"; WRONG: layers {layer_numbers(run['failed_verification'])}"
    rows = [("verified", verified)]
    if run["gops_geometric_mean"] is not None:
        mean, packing = run["gops_geometric_mean"], run["gops_with_packing_geometric_mean"]
        rates = f"{mean:.1f} GOPS on packed operands; {packing:.1f} GOPS with packing of the data"
        rows.append(("geometric mean", f"{rates} and unpacking (weights packed ahead)"))
    if run["total_us"] is not None:
        kernels, packed = (duration(run[key]) for key in ("total_us", "total_with_packing_us"))
        layers = plural(run["timed_layers"], "layer")
        total = f"{kernels}; {packed} with packing and unpacking ({layers}, by count)"
        rows.append(("total", total))
    if run["simulated"] is not None:
        rows += _simulation_rows(run["simulated"])
    rows += _baseline_rows(run["baselines"])
    if run["noisy"]:
        disturbed = f"{plural(len(run['noisy']), 'layer')} ({layer_numbers(run['noisy'])})"
        rows.append(("noisy", f"{disturbed}: other work on the machine disturbed the times"))
    return rows


def _simulation_rows(simulated: Mapping[str, Any]) -> list[tuple[str, str]]:
    cycles, layers = f"{simulated['total_cycles']:,} cycles", plural(simulated["layers"], "layer")
    rows = [("simulated", f"{cycles}, {duration(simulated['total_us'])} ({layers}, by count)")]
    if simulated["gops_geometric_mean"] is not None:
        rate = f"{simulated['gops_geometric_mean']:.1f} GOPS on packed operands"
        rows.append(("geometric mean", rate))
    # A simulated target need not know bounds on its cycles.
    if not all(f"{name}_max" in simulated for name in RATIOS_OVER_BOUNDS):
        return rows
    keys = ("geometric_mean", "max")
    ratio, worst = (simulated[f"lower_bound_ratio_{key}"] for key in keys)
    busy, most = (simulated[f"busiest_module_ratio_{key}"] for key in keys)
    layer = f"layer {simulated['lower_bound_ratio_max_layer']}"
    least = f"x{ratio:.3f} in the geometric mean, at most x{worst:.3f} ({layer})"
    rows.append(("cycles over the least", f"{least}; the least is what GEMM or DMA alone takes"))
    # Only if resets or the ALU bound some layer: else both lines would say the same.
    if (busy, most) != (ratio, worst):
        both = f"x{busy:.3f}, at most x{most:.3f}"
        rows.append(("", f"{both} with resets and the ALU in the least"))
    return rows


def _reason_text(group: Mapping[str, Any]) -> str:
    layers = group["layers"]
    return f"{plural(len(layers), 'layer')} ({layer_numbers(layers)}): for example {group['text']}"


# -- several targets -----------------------------------------------------------------------------


def across_report(result: Across) -> Iterator[Block]:
    """Yield the report of ``cpembed bench`` on several targets."""
    rows = [(str(number), label) for number, label in enumerate(result.layers)]
    yield layer_table(rows, ("#>", "layer"), result.targets, result.figures)
    yield ""
    yield target_table(result.lines)
    yield ""
    yield from _across_reasons(result)
    yield LEGEND


def _across_reasons(result: Across) -> Iterator[Block]:
    """Yield why layers are not embedded, once for each reason."""
    for target in result.targets:
        reasons: dict[str, list[int]] = {}
        for number, figure in enumerate(result.figures[target]):
            if figure is not None and figure.embedded_on is None:
                reasons.setdefault(figure.reason or "unknown reason", []).append(number)
        if reasons:
            yield Heading(f"Not embedded on {target}")
            yield Bullets(
                f"layer{'s' * (len(layers) > 1)} {layer_numbers(layers)}: {reason}"
                for reason, layers in reasons.items()
            )
            yield ""
