"""The model of Tensor Core kernels against the A100 times that AMOS's authors published.

    python -m experiments.amos2022.a100_schedules.run                        # the committed table
    python -m experiments.amos2022.a100_schedules.run --data FILE.csv --output FOLDER

Writes ``results.json`` and ``results.md`` into ``--output``, by default beside this file; README.md
says what is counted and which columns a table has.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

from cpembed.errors import CpembedError
from cpembed.hw.loader import load_hardware_spec
from cpembed.runtime.measurement.environment import provenance, provenance_lines
from cpembed.targets.cuda.model import Gpu, estimate, gpu
from experiments.amos2022.a100_schedules.adapter import work_of
from experiments.amos2022.a100_schedules.judge import (
    DISTANCES,
    Judgement,
    Order,
    by_layer,
    judge,
    losses,
)
from experiments.amos2022.a100_schedules.schedules import DATA, Schedule, read
from experiments.common import geometric_mean, results_parser, write_results

SPECIFICATION, MACHINE = "wmma_f16_f16_8x32x16", "a100"

Rows = Sequence[Schedule]


def _unit(device: Gpu, **figures: float) -> Gpu:
    return replace(device, unit=structs.replace(device.unit, **figures))


CHANGED: dict[str, Callable[[Gpu], Gpu]] = {
    "as published": lambda device: device,
    "latency of L2 by half more": lambda device: replace(device, l2_cycles=device.l2_cycles * 1.5),
    "latency of L2 by a quarter less": lambda device: replace(
        device, l2_cycles=device.l2_cycles * 0.75
    ),
    "latency of a product by half more": lambda device: replace(
        device, product_latency=device.product_latency * 1.5
    ),
    "bytes of L2 a cycle: half": lambda device: replace(
        device, l2_bytes_each=device.l2_bytes_each / 2
    ),
    "empty kernel: 1.5 us instead of 2.7": lambda device: _unit(device, launch_us=1.5),
    "empty kernel: 4 us": lambda device: _unit(device, launch_us=4.0),
    "integer instruction: 3 cycles instead of 2": lambda device: _unit(device, integer_cycles=3.0),
}
"""Published figures and others in their place: what results owe to a figure's value."""


def times(rows: Rows, device: Gpu) -> list[float]:
    """Return microseconds of each row by the model."""
    return [estimate(work_of(row, device), device).us for row in rows]


def products(row: Schedule, device: Gpu) -> float:
    """Return the products of the instruction, padding included: a measure of arithmetic alone."""
    return row.products


def occupied(row: Schedule, device: Gpu) -> float:
    """Return the products of a block's busiest tensor core, times rounds of blocks."""
    blocks = math.prod(axis.blocks for axis in row.spatial)
    warps = math.prod(axis.warps for axis in row.spatial)
    rounds = math.ceil(blocks / device.multiprocessors)
    return rounds * row.products / blocks / min(warps, device.unit.schedulers)


def layer_judgements(rows: Rows, estimates: Sequence[float]) -> list[Judgement]:
    """Return the judgement of each layer."""
    return [judge(layer, items) for layer, items in by_layer(rows, estimates).items()]


def summary(judgements: Sequence[Judgement]) -> dict[str, float]:
    """Summarise all layers: shares of all pairs, the mean recall, losses in the geometric mean."""
    schedules = sum((judgement.schedules for judgement in judgements), Order(0, 0))
    mappings = sum((judgement.mappings for judgement in judgements), Order(0, 0))
    return {
        "schedules": schedules.share,
        "mappings": mappings.share,
        "recall": sum(judgement.recall for judgement in judgements) / len(judgements),
        "mapping_loss": geometric_mean(judgement.losses.mapping for judgement in judgements),
        "schedule_loss": geometric_mean(judgement.losses.schedule for judgement in judgements),
        "measured_loss": geometric_mean(judgement.losses.measured for judgement in judgements),
    }


HALVES = 60
"""Number of random halves of each layer's rows that choices are made among."""


def half_losses(rows: Rows, estimates: Sequence[float]) -> dict[str, float]:
    """Return the losses among random halves of a layer's rows, in the geometric mean.

    A choice among all rows is one row of a layer; among halves there are many choices.
    """
    chance = random.Random(0)
    halves = [
        losses(chance.sample(items, len(items) // 2))
        for items in by_layer(rows, estimates).values()
        for _ in range(HALVES)
        if len(items) > 1
    ]
    return {
        "mapping_loss": geometric_mean(half.mapping for half in halves),
        "measured_loss": geometric_mean(half.measured for half in halves),
    }


def distances(judgements: Sequence[Judgement]) -> list[dict[str, Any]]:
    """Return the share of pairs in the right order by the ratio of their measured times."""
    orders = [judgement.distances for judgement in judgements]
    totals = [sum(column, Order(0, 0)) for column in zip(*orders, strict=True)]
    bounds = itertools.pairwise((1.0, *DISTANCES, None))
    return [
        {"above": above, "up_to": up_to, "pairs": total.pairs, "right": total.share}
        for (above, up_to), total in zip(bounds, totals, strict=True)
    ]


def results(rows: Rows, device: Gpu) -> dict[str, Any]:
    """Return all tables of the document."""
    auxiliary_known = all(row.auxiliary is not None for row in rows)
    bare = [replace(row, auxiliary=None) for row in rows]
    times_without_auxiliary = times(bare, device)
    model = times(rows, device) if auxiliary_known else times_without_auxiliary
    by_model = layer_judgements(rows, model)
    measures = {
        "products, padding included": [products(row, device) for row in rows],
        "products of the busiest tensor core": [occupied(row, device) for row in rows],
        "the model, other kernels not known": times_without_auxiliary,
    }
    document: dict[str, Any] = {
        "rows": len(rows),
        "other_kernels_known": auxiliary_known,
        "layers": [_layer(judgement, rows, model) for judgement in by_model],
        "measures": {
            name: summary(layer_judgements(rows, value)) for name, value in measures.items()
        },
        "distances": distances(by_model),
        "halves": {
            "products of the busiest tensor core": half_losses(
                rows, [occupied(row, device) for row in rows]
            ),
            "the model": half_losses(rows, model),
        },
        "changed": {},
    }
    if auxiliary_known:
        document["measures"]["the model, all numbers of a schedule"] = summary(by_model)
        # What the other kernels alone put out of order: the model against itself.
        imagined = [replace(row, ms=us / 1e3) for row, us in zip(rows, model, strict=True)]
        document["hidden"] = summary(layer_judgements(imagined, times_without_auxiliary))
    document["changed"] = {
        name: summary(layer_judgements(rows, times(rows, change(device))))
        for name, change in CHANGED.items()
    }
    return document


def _layer(judgement: Judgement, rows: Rows, model: Sequence[float]) -> dict[str, Any]:
    ratios = [
        us / row.ms / 1e3
        for row, us in zip(rows, model, strict=True)
        if row.layer == judgement.layer
    ]
    spread = math.exp(_deviation([math.log(ratio) for ratio in ratios]))
    return {
        "layer": str(judgement.layer),
        "rows": judgement.rows,
        "schedules": judgement.schedules.share,
        "mappings": judgement.mappings.share,
        "recall": judgement.recall,
        "mapping_loss": judgement.losses.mapping,
        "schedule_loss": judgement.losses.schedule,
        "measured_loss": judgement.losses.measured,
        "ratio": geometric_mean(ratios),
        "spread": spread,
    }


def _deviation(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))


COLUMNS = ("schedules", "mappings", "recall", "mapping_loss", "schedule_loss", "measured_loss")
HEADS = "pairs | pairs of mappings | recall | mapping | schedule | best of three"


def markdown(document: dict[str, Any]) -> list[str]:
    """Return the tables; README.md says what the columns mean."""
    lines = [
        "# Estimates beside AMOS's measured schedules on an A100",
        "",
        "Written by `run.py`; README.md says what is counted.",
        "",
        f"| {document['rows']:,} rows ordered by | {HEADS} |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(_line(name, row) for name, row in document["measures"].items()),
    ]
    if "hidden" in document:
        lines += [
            "",
            "The same model without the other kernels' numbers, if its times with them were what",
            "was measured: what these numbers alone can put out of order.",
            "",
            f"| | {HEADS} |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            _line("the model against itself", document["hidden"]),
        ]
    lines += [
        "",
        f"| layer | rows | {HEADS} | estimate over measured | spread |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in document["layers"]:
        cells = [f"`{row['layer']}`", str(row["rows"]), *_cells(row)]
        cells += [f"{row['ratio']:.2f}", f"{row['spread']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "| choices among random halves | mapping | best of three |",
        "| --- | --- | --- |",
    ]
    for name, row in document["halves"].items():
        lines.append(f"| {name} | {row['mapping_loss']:.3f} | {row['measured_loss']:.3f} |")
    lines += ["", "| measured times of a pair | pairs | right |", "| --- | --- | --- |"]
    for row in document["distances"]:
        above, up_to = row["above"], row["up_to"]
        distance = f"more than {above} x" if up_to is None else f"{above} to {up_to} x"
        lines.append(f"| {distance} apart | {row['pairs']:,} | {row['right']:.1%} |")
    lines += ["", f"| figures | {HEADS} |", "| --- | --- | --- | --- | --- | --- | --- |"]
    lines += [_line(name, row) for name, row in document["changed"].items()]
    about = f"{document['rows']:,} rows in {document['seconds']:.0f} s"
    return [*lines, "", *provenance_lines(document, about)]


def _line(name: str, row: dict[str, float]) -> str:
    return f"| {' | '.join([name, *_cells(row)])} |"


def _cells(row: dict[str, float]) -> list[str]:
    shares = [f"{row[name]:.1%}" for name in COLUMNS[:3]]
    return shares + [f"{row[name]:.3f}" for name in COLUMNS[3:]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = results_parser(__doc__, DATA.parent)
    parser.add_argument("--data", type=Path, default=DATA, help="a table of schedules")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    try:
        rows = read(options.data)
        device = gpu(load_hardware_spec(SPECIFICATION), MACHINE)
        document = results(rows, device)
    except (CpembedError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    seconds = round(time.perf_counter() - started, 1)
    document = {**document, "seconds": seconds, **provenance()}
    write_results(options.output, document, "\n".join(markdown(document)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
