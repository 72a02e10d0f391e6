"""Orders of tiles: each stage of each tile exactly once, and the text of a kernel agrees."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from cpembed.errors import LoweringError
from cpembed.targets.cuda.warp_specialized.tiles import (
    TileOrder,
    WorkItem,
    multicast_mask,
    streamed_tiles,
    wave_reads,
)


class Script:
    """The functions of TVMScript that orders use."""

    @staticmethod
    def Select(condition: bool, yes: int, no: int) -> int:
        return yes if condition else no

    min, max = staticmethod(min), staticmethod(max)

    @staticmethod
    def shift_left(value: int, bits: int) -> int:
        return value << bits


def executed(lines: list[str], **values: int) -> dict[str, Any]:
    scope: dict[str, Any] = {"T": Script, **values}
    for line in lines:
        name, expression = line.split(" = ", 1)
        scope[name] = eval(expression, scope)
    return scope


def orders() -> list[TileOrder]:
    found: list[TileOrder] = []
    sizes = [(1, 1, 1), (3, 4, 1), (5, 3, 2), (7, 2, 1), (4, 4, 3)]
    for (rows, columns, batch), workers, group, cluster, steps in itertools.product(
        sizes, (1, 2, 5, 8), (1, 2, 4), ((1, 1), (2, 1), (1, 2), (2, 2)), (1, 3, 7)
    ):
        order = TileOrder(
            rows=rows,
            columns=columns,
            batch=batch,
            steps=steps,
            workers=workers,
            group=group,
            cluster=cluster,
        )
        found.append(order)
        found += [replace(order, splits=splits) for splits in (2, 3) if splits <= steps]
        for streamed in {streamed_tiles(order.tiles, workers), order.tiles, order.tiles // 2}:
            if streamed and streamed * steps >= workers:
                found.append(replace(order, streamed=streamed))
    return found


ORDERS = orders()


def all_items(order: TileOrder) -> list[tuple[int, WorkItem]]:
    return [(worker, item) for worker in range(order.workers) for item in order.items(worker)]


def test_every_stage_of_every_tile_is_computed_once() -> None:
    assert len(ORDERS) > 1000
    for order in ORDERS:
        done = Counter[tuple[int, int, int, int]]()
        for _, item in all_items(order):
            for row, column in itertools.product(*map(range, order.cluster)):
                place = item.row + row, item.column + column, item.batch
                if place[0] < order.rows and place[1] < order.columns:
                    done.update((*place, step) for step in range(item.first, item.last))
        everything = itertools.product(
            *map(range, (order.rows, order.columns, order.batch, order.steps))
        )
        assert done == Counter(everything), order


def test_ranges_of_a_tile_are_its_parts_in_their_order() -> None:
    for order in ORDERS:
        ranges: dict[int, list[WorkItem]] = {}
        for _, item in all_items(order):
            ranges.setdefault(item.tile, []).append(item)
        slots: list[int] = []
        for tile, items in ranges.items():
            items.sort(key=lambda item: item.part)
            assert [item.part for item in items] == list(range(items[0].parts))
            assert {item.parts for item in items} == {len(items)}
            assert items[0].first == 0
            assert items[-1].last == order.steps
            assert all(a.last == b.first for a, b in itertools.pairwise(items))
            assert len({(item.row, item.column, item.batch) for item in items}) == 1
            if tile < order.streamed:
                slots += [item.slot for item in items]
        assert len(set(slots)) == len(slots)
        assert all(0 <= slot < order.slots for slot in slots)


def test_parts_of_streamed_tiles_are_counted() -> None:
    for order in ORDERS:
        streamed = [item for _, item in all_items(order) if item.tile < order.streamed]
        assert order.streamed_parts == sum(item.parts > 1 for item in streamed)


def test_streamed_stages_are_divided_evenly() -> None:
    for order in ORDERS:
        if not order.streamed:
            continue
        loads = Counter[int]()
        for worker, item in all_items(order):
            if item.tile < order.streamed:
                assert item.first < item.last
                loads[worker] += item.last - item.first
        assert len(loads) == order.workers
        assert max(loads.values()) - min(loads.values()) <= 1


def test_the_text_of_the_kernel_computes_the_same_items() -> None:
    rng = random.Random(3)
    for order in rng.sample(ORDERS, 400):
        lines, active = order.script("worker", "turn")
        lines += order.part_script("worker")
        for worker, turn in itertools.product(range(order.workers), range(order.turns)):
            scope = executed(lines, worker=worker, turn=turn)
            item = order.item(worker, turn)
            assert bool(eval(active, scope)) == (item is not None), order
            if item is None:
                continue
            assert scope["tile"] == item.tile
            assert (scope["first_step"], scope["last_step"]) == (item.first, item.last)
            assert scope.get("part", 0) == item.part
            if order.streamed:
                assert scope["parts"] == item.parts
                assert item.tile >= order.streamed or scope["part_slot"] == item.slot
            for rank in range(order.cluster[0] * order.cluster[1]):
                place = executed(order.place_script("rank"), tile=item.tile, rank=rank)
                row, column = divmod(rank, order.cluster[1])
                assert place["row_block"] == item.row + row
                assert place["column_block"] == item.column + column
                assert place.get("batch", 0) == item.batch


def test_no_worker_is_idle_when_the_last_turn_is_streamed() -> None:
    for tiles, workers in itertools.product(range(1, 60), (1, 4, 7, 16)):
        streamed = streamed_tiles(tiles, workers)
        assert (tiles - streamed) % workers == 0
        assert streamed < 2 * workers
        if streamed:
            order = TileOrder(rows=tiles, columns=1, steps=32, workers=workers, streamed=streamed)
            loads = [sum(i.last - i.first for i in order.items(w)) for w in range(workers)]
            assert max(loads) - min(loads) <= 1
            # A tile that many workers share needs many parts: only where there are few tiles.
            parts = [item.parts for _, item in all_items(order)]
            assert max(parts) <= 3 or tiles < workers


def test_blocks_of_a_cluster_that_share_an_image() -> None:
    for cluster in ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (2, 4)):
        rows, columns = cluster
        for number, rank in itertools.product((0, 1), range(rows * columns)):
            mask = eval(multicast_mask(cluster, number), {"T": Script, "rank": rank})
            place = divmod(rank, columns)[number]
            same = [n for n in range(rows * columns) if divmod(n, columns)[number] == place]
            assert mask == sum(1 << n for n in same)
            assert cluster[1 - number] == len(same)


def test_a_group_of_rows_reads_fewer_columns_together() -> None:
    order = TileOrder(rows=64, columns=32, steps=4, workers=128)
    assert counts(order)[0] == (4, 32)
    assert counts(replace(order, group=8))[0] == (8, 16)
    assert counts(replace(order, group=8, cluster=(2, 1), workers=64))[0] == (8, 8)


def test_turns_read_the_rows_and_columns_of_their_tiles() -> None:
    for order in ORDERS:
        if order.streamed or order.splits > 1:
            continue
        rows, columns = wave_reads(order)
        assert len(rows) == len(columns) == order.turns
        for turn in range(order.turns):
            items = [order.item(worker, turn) for worker in range(order.workers)]
            places = [(item.row, item.column, item.batch) for item in items if item is not None]
            assert rows[turn].sum() == len({(row, batch) for row, _, batch in places})
            assert columns[turn].sum() == len({(column, batch) for _, column, batch in places})


def counts(order: TileOrder) -> list[tuple[int, int]]:
    rows, columns = (read.sum(axis=1).tolist() for read in wave_reads(order))
    return list(zip(rows, columns, strict=True))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"rows": 0}, "count from 1"),
        ({"streamed": 13}, "streamed tiles up to 12"),
        ({"streamed": 2, "splits": 2}, "not both"),
        ({"splits": 5}, "5 parts"),
        ({"streamed": 1, "workers": 8}, "4 stages for 8 workers"),
        ({"streamed": 12, "workers": 2**14, "steps": 2**14}, "exceed 32 bits"),
    ],
)
def test_orders_that_there_are_not(changes: dict[str, int], message: str) -> None:
    order = TileOrder(rows=3, columns=4, steps=4, workers=2)
    with pytest.raises(LoweringError, match=message):
        replace(order, **changes)
