"""The model of Tensor Core kernels beside the A100 times that AMOS's authors published.

    python -m experiments.a100_schedules.run                        # the committed table
    python -m experiments.a100_schedules.run --data FILE.csv --output FOLDER

Writes ``results.json`` and ``results.md`` into ``--output``, by default beside this file; README.md
says what is counted and which columns a table has.
"""

from __future__ import annotations

import argparse
import json
import math
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
from experiments.a100_schedules.adapter import work_of
from experiments.a100_schedules.judge import Judgement, Order, by_layer, judge
from experiments.a100_schedules.schedules import DATA, Schedule, read
from experiments.vta_evaluation.rows import geometric_mean

SPECIFICATION, MACHINE = "wmma_f16_f16_8x32x16", "a100"

Rows = Sequence[Schedule]


def _unit(found: Gpu, **figures: float) -> Gpu:
    return replace(found, unit=structs.replace(found.unit, **figures))


CHANGED: dict[str, Callable[[Gpu], Gpu]] = {
    "as published": lambda found: found,
    "latency of L2 by half more": lambda found: replace(found, l2_cycles=found.l2_cycles * 1.5),
    "latency of L2 by a quarter less": lambda found: replace(
        found, l2_cycles=found.l2_cycles * 0.75
    ),
    "latency of a product by half more": lambda found: replace(
        found, product_latency=found.product_latency * 1.5
    ),
    "bytes of L2 a cycle: half": lambda found: replace(
        found, l2_bytes_each=found.l2_bytes_each / 2
    ),
    "empty kernel: 1.5 us instead of 2.7": lambda found: _unit(found, launch_us=1.5),
    "empty kernel: 4 us": lambda found: _unit(found, launch_us=4.0),
    "integer instruction: 3 cycles instead of 2": lambda found: _unit(found, integer_cycles=3.0),
}
"""Published figures and others in their place: what the results owe to a figure's very value."""


def times(rows: Rows, found: Gpu) -> list[float]:
    """Microseconds of each row by the model."""
    return [estimate(work_of(row, found), found).us for row in rows]


def products(row: Schedule, found: Gpu) -> float:
    """Of the instruction, padding included: what counts the arithmetic alone."""
    return row.products


def occupied(row: Schedule, found: Gpu) -> float:
    """Products of a block's busiest tensor core, times rounds of blocks."""
    blocks = math.prod(axis.blocks for axis in row.spatial)
    warps = math.prod(axis.warps for axis in row.spatial)
    rounds = math.ceil(blocks / found.multiprocessors)
    return rounds * row.products / blocks / min(warps, found.unit.schedulers)


def judged(rows: Rows, estimates: Sequence[float]) -> list[Judgement]:
    return [judge(layer, items) for layer, items in by_layer(rows, estimates).items()]


def summary(judgements: Sequence[Judgement]) -> dict[str, float]:
    """Of all layers: pairs together, the recall's mean, losses in the geometric mean."""
    schedules = sum((one.schedules for one in judgements), Order(0, 0))
    mappings = sum((one.mappings for one in judgements), Order(0, 0))
    return {
        "schedules": schedules.share,
        "mappings": mappings.share,
        "recall": sum(one.recall for one in judgements) / len(judgements),
        "mapping_loss": geometric_mean(one.mapping_loss for one in judgements),
        "schedule_loss": geometric_mean(one.schedule_loss for one in judgements),
    }


def results(rows: Rows, found: Gpu) -> dict[str, Any]:
    """All tables of the document."""
    known = all(row.other is not None for row in rows)
    bare = [replace(row, other=None) for row in rows]
    without = times(bare, found)
    model = times(rows, found) if known else without
    by_model = judged(rows, model)
    measures = {
        "products, padding included": [products(row, found) for row in rows],
        "products of the busiest tensor core": [occupied(row, found) for row in rows],
        "the model, other kernels not known": without,
    }
    document: dict[str, Any] = {
        "rows": len(rows),
        "other_kernels_known": known,
        "layers": [_layer(one, rows, model) for one in by_model],
        "measures": {name: summary(judged(rows, value)) for name, value in measures.items()},
        "changed": {},
    }
    if known:
        document["measures"]["the model, all numbers of a schedule"] = summary(by_model)
        # What the other kernels alone put out of order: the model against itself.
        imagined = [replace(row, ms=us / 1e3) for row, us in zip(rows, model, strict=True)]
        document["hidden"] = summary(judged(imagined, without))
    document["changed"] = {
        name: summary(judged(rows, times(rows, change(found)))) for name, change in CHANGED.items()
    }
    return document


def _layer(one: Judgement, rows: Rows, model: Sequence[float]) -> dict[str, Any]:
    ratios = [
        us / row.ms / 1e3 for row, us in zip(rows, model, strict=True) if row.layer == one.layer
    ]
    spread = math.exp(_deviation([math.log(ratio) for ratio in ratios]))
    return {
        "layer": str(one.layer),
        "rows": one.rows,
        "schedules": one.schedules.share,
        "mappings": one.mappings.share,
        "recall": one.recall,
        "mapping_loss": one.mapping_loss,
        "schedule_loss": one.schedule_loss,
        "ratio": geometric_mean(ratios),
        "spread": spread,
    }


def _deviation(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))


COLUMNS = ("schedules", "mappings", "recall", "mapping_loss", "schedule_loss")
HEADS = "pairs | pairs of mappings | recall | mapping | schedule"


def markdown(document: dict[str, Any]) -> list[str]:
    """The tables; README.md says what the columns mean."""
    lines = [
        "# Estimates beside AMOS's measured schedules on an A100",
        "",
        "Written by `run.py`; README.md says what is counted.",
        "",
        f"| {document['rows']:,} rows ordered by | {HEADS} |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_line(name, row) for name, row in document["measures"].items()),
    ]
    if "hidden" in document:
        lines += [
            "",
            "The same model without the other kernels' numbers, if its times with them were what",
            "was measured: what these numbers alone can put out of order.",
            "",
            f"| | {HEADS} |",
            "| --- | --- | --- | --- | --- | --- |",
            _line("the model against itself", document["hidden"]),
        ]
    lines += [
        "",
        f"| layer | rows | {HEADS} | estimate over measured | spread |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in document["layers"]:
        cells = [f"`{row['layer']}`", str(row["rows"]), *_cells(row)]
        cells += [f"{row['ratio']:.2f}", f"{row['spread']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"| figures | {HEADS} |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [_line(name, row) for name, row in document["changed"].items()]
    about = f"{document['rows']:,} rows in {document['seconds']:.0f} s"
    return [*lines, "", *provenance_lines(document, about)]


def _line(name: str, row: dict[str, float]) -> str:
    return f"| {' | '.join([name, *_cells(row)])} |"


def _cells(row: dict[str, float]) -> list[str]:
    shares = [f"{row[name]:.1%}" for name in COLUMNS[:3]]
    return shares + [f"{row[name]:.3f}" for name in COLUMNS[3:]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--data", type=Path, default=DATA, help="a table of schedules")
    parser.add_argument("--output", type=Path, default=DATA.parent, help="folder of results")
    given = parser.parse_args(arguments)
    started = time.perf_counter()
    try:
        rows = read(given.data)
        found = gpu(load_hardware_spec(SPECIFICATION), MACHINE)
        document = results(rows, found)
    except (CpembedError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    seconds = round(time.perf_counter() - started, 1)
    document = {**document, "seconds": seconds, **provenance()}
    given.output.mkdir(parents=True, exist_ok=True)
    (given.output / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    (given.output / "results.md").write_text("\n".join(markdown(document)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
