"""Last writes before reads, against an enumeration of all instances."""

from __future__ import annotations

from random import Random

import islpy as isl
import pytest

from cpembed.accelerator.proof.last_writes import last_writes

Instance = tuple[str, int, int]


class RandomText:
    """Reads and writes ``M[a*i + b*j + c]`` in nests of two loops, one nest after the other."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.reads, self.writes, self.times = list[str](), list[str](), list[str]()
        self.places: dict[Instance, int] = {}
        self.order: dict[Instance, tuple[int, int, int]] = {}
        self.read_instances: set[Instance] = set()
        count = random.randint(2, 5)
        for number in range(count):
            is_read = number == count - 1 or (number > 0 and random.random() < 0.4)
            name = f"{'R' if is_read else 'W'}{number}"
            extents = random.randint(1, 4), random.randint(1, 9)
            outer, inner, base = (
                random.choice(values) for values in ((9, 3, 1), (1, 3, 2), (0, 1))
            )
            bounds = f"0 <= i < {extents[0]} and 0 <= j < {extents[1]}"
            (self.reads if is_read else self.writes).append(
                f"{name}[i, j] -> M[{outer}i + {inner}j + {base}] : {bounds}"
            )
            self.times.append(f"{name}[i, j] -> T[{number}, i, j] : {bounds}")
            for i in range(extents[0]):
                for j in range(extents[1]):
                    instance = name, i, j
                    self.places[instance] = outer * i + inner * j + base
                    self.order[instance] = number, i, j
                    if is_read:
                        self.read_instances.add(instance)

    def expected(self) -> tuple[set[tuple[Instance, Instance]], set[Instance]]:
        """Return pairs of a write and a read of what it wrote, and reads of nothing."""
        pairs, unwritten = set[tuple[Instance, Instance]](), set[Instance]()
        for read in self.read_instances:
            writes = [
                other
                for other, place in self.places.items()
                if other not in self.read_instances
                and place == self.places[read]
                and self.order[other] < self.order[read]
            ]
            if writes:
                pairs.add((max(writes, key=self.order.__getitem__), read))
            else:
                unwritten.add(read)
        return pairs, unwritten


def instance(point: isl.Set) -> Instance:
    values = point.sample_point()
    first, second = (
        values.get_coordinate_val(isl.dim_type.set, number).to_python() for number in range(2)
    )
    return point.get_tuple_name(), first, second


def points(union: isl.UnionSet) -> set[Instance]:
    members = set[Instance]()
    union.foreach_point(lambda point: members.add(instance(isl.Set.from_point(point))))
    return members


@pytest.mark.parametrize("seed", range(40))
def test_last_writes_equal_an_enumeration(seed: int) -> None:
    text = RandomText(seed)
    reads, writes, times = (
        isl.UnionMap(f"{{ {'; '.join(parts)} }}") for parts in (text.reads, text.writes, text.times)
    )
    result = last_writes(reads, writes, times)
    pairs, unwritten = text.expected()
    assert points(result.unwritten) == unwritten
    assert points(result.dependence.range()) == {read for _, read in pairs}
    for write, read in pairs:
        name, i, j = read
        source = result.dependence.intersect_range(isl.UnionSet(f"{{ {name}[{i}, {j}] }}"))
        assert points(source.domain()) == {write}


def test_places_between_those_that_are_written_have_no_source() -> None:
    reads = isl.UnionMap("{ R[i, e] -> M[9i + e] : 0 <= e <= 8 and 0 <= i <= 2 }")
    writes = isl.UnionMap("{ W[i, j] -> M[3i + 9j] : 0 <= i <= 2 and 0 <= j <= 2 }")
    times = isl.UnionMap("{ R[i, e] -> T[1, i, 0]; W[i, j] -> T[0, i, j] }")
    unwritten = points(last_writes(reads, writes, times).unwritten)
    assert unwritten == {("R", i, e) for i in range(3) for e in range(9) if e % 3}
