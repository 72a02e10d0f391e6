"""Q-learning over schedules, as FlexTensor and HASCO have it, in numpy.

FlexTensor (Zheng et al., ASPLOS 2020, section 5) keeps all points that were tried; those from
which it goes on are chosen at random, each with a probability that grows with exp of its
performance over the best's. At such a point a network of four fully connected layers gives a value
to each direction, which is a knob and a way to change it; the best is taken, or now and then a
random one. The reward is the relative gain. Every few rounds the network is trained on what was
tried, towards the reward and the discounted value of the next point by an earlier state of it (Mnih
et al. 2015), by AdaDelta.

HASCO (ISCA 2021, section VI) does the same for each embedding; here a point is of one of several
embeddings. The first points are random, or the best of each embedding by estimate: there the
project's tuner begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import LoweringError
from cpembed.ir.computation import AxisKind
from cpembed.targets.vta.schedule import Schedule, check_schedule
from cpembed.targets.vta.space import FEWEST_SLOTS, MOST_SLOTS, Nest, VtaSpace, canonical

Floats = NDArray[np.float64]

WIDTH = 64
"""Units of a hidden layer."""
START, ROUND = 8, 4
"""Points to begin with, and points from which a round goes on."""
TRAINED_EVERY, REPLACED_EVERY, BATCH, STEPS = 2, 8, 64, 8
"""Rounds between trainings, and between copies of the network as the earlier state; transitions of
a step, and steps of a training."""
GAMMA, DISCOUNT = 2.0, 0.9
EXPLORING = 0.3
"""Probability of a random direction."""
REFUSED = -1.0
"""The reward of a direction to what does not fit."""

Simulate = Callable[[Nest, Schedule], int | None]
"""Cycles; None where there is no program."""


class Network:
    """Four fully connected layers with rectifiers between them."""

    def __init__(self, inputs: int, outputs: int, random: np.random.Generator) -> None:
        sizes = [inputs, WIDTH, WIDTH, WIDTH, outputs]
        self.weights = [
            random.normal(0, np.sqrt(2 / a), (a, b)) for a, b in itertools.pairwise(sizes)
        ]
        self.biases = [np.zeros(b) for b in sizes[1:]]
        self._squares = [np.zeros_like(w) for w in (*self.weights, *self.biases)]
        self._moves = [np.zeros_like(w) for w in (*self.weights, *self.biases)]

    def copy_from(self, other: Network) -> None:
        self.weights = [w.copy() for w in other.weights]
        self.biases = [b.copy() for b in other.biases]

    def layers(self, states: Floats) -> list[Floats]:
        found = [states]
        for number, (weights, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            out = found[-1] @ weights + bias
            found.append(out if number == len(self.weights) - 1 else np.maximum(out, 0))
        return found

    def values(self, states: Floats) -> Floats:
        return self.layers(states)[-1]

    def train(self, states: Floats, actions: NDArray[np.int64], targets: Floats) -> None:
        """A step of AdaDelta on the squared error of the values of the actions that were taken."""
        layers = self.layers(states)
        rows = np.arange(len(states))
        error = np.zeros_like(layers[-1])
        error[rows, actions] = (layers[-1][rows, actions] - targets) / len(states)
        weights: list[Floats] = []
        biases: list[Floats] = []
        for number in reversed(range(len(self.weights))):
            weights.insert(0, layers[number].T @ error)
            biases.insert(0, error.sum(axis=0))
            if number:
                error = (error @ self.weights[number].T) * (layers[number] > 0)
        parameters = (*self.weights, *self.biases)
        for k, gradient in enumerate((*weights, *biases)):
            self._squares[k] = 0.9 * self._squares[k] + 0.1 * gradient**2
            move = gradient * np.sqrt((self._moves[k] + 1e-6) / (self._squares[k] + 1e-6))
            self._moves[k] = 0.9 * self._moves[k] + 0.1 * move**2
            parameters[k][...] -= move


@dataclass(frozen=True, eq=False)
class Point:
    """A schedule of one of the nests, and the program's cycles."""

    which: int
    schedule: Schedule
    cycles: int

    @property
    def performance(self) -> float:
        return 1 / self.cycles


@dataclass(eq=False)
class Learner:
    """A search of the schedules of ``nests``."""

    nests: Sequence[Nest]
    simulate: Simulate
    seed: int
    best: list[int] = field(default_factory=list[int])
    """The fewest cycles after each simulated program."""

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._loops = max(len(nest.nest.loops) for nest in self.nests)
        actions = 3 * self._loops + 5
        self._network = Network(self._features(), actions, self._random)
        self._earlier = Network(self._features(), actions, self._random)
        self._points: dict[str, Point] = {}
        self._transitions: list[tuple[Floats, int, float, Floats]] = []

    def run(self, trials: int, begin: Sequence[tuple[int, Schedule]]) -> list[int]:
        """``begin``: nests by number, with schedules, to try first."""
        for which, schedule in begin:
            if len(self.best) < min(START, trials):
                self._try(which, schedule)
        rounds = 0
        while len(self.best) < trials and rounds < 50 * trials:
            rounds += 1
            for point in self._chosen():
                if len(self.best) < trials:
                    self._go_on(point)
            if rounds % TRAINED_EVERY == 0:
                self._train()
            if rounds % REPLACED_EVERY == 0:
                self._earlier.copy_from(self._network)
        return self.best

    def _try(self, which: int, schedule: Schedule) -> tuple[Point | None, bool]:
        """The point, and whether it was not there before; None where nothing fits."""
        nest = self.nests[which]
        named = canonical(nest.nest, schedule)
        key = f"{which} {named!r}"
        if key in self._points:
            return self._points[key], False
        try:
            check_schedule(nest.nest, named)
        except LoweringError:
            return None, False
        cycles = self.simulate(nest, named)
        if cycles is None:
            return None, False
        point = self._points[key] = Point(which, named, cycles)
        self.best.append(min([cycles, *self.best[-1:]]))
        return point, True

    def _chosen(self) -> list[Point]:
        points = list(self._points.values())
        top = max(point.performance for point in points)
        weights = np.exp(-GAMMA * np.array([(top - p.performance) / top for p in points]))
        at = self._random.choice(len(points), ROUND, p=weights / weights.sum())
        return [points[k] for k in at]

    def _go_on(self, point: Point) -> None:
        state = self._state(point)
        values = self._network.values(state[None])[0]
        action = int(np.argmax(values))
        if self._random.random() < EXPLORING:
            action = int(self._random.integers(len(values)))
        changed = self._changed(point, action)
        found = None if changed is None else self._try(point.which, changed)[0]
        if found is None:
            self._transitions.append((state, action, REFUSED, state))
            return
        gain = (found.performance - point.performance) / point.performance
        self._transitions.append((state, action, gain, self._state(found)))

    def _changed(self, point: Point, action: int) -> Schedule | None:
        """For each loop: more parts, fewer parts, one place outwards; then more or fewer slots of
        INP, of WGT, the next thread loop."""
        nest, schedule = self.nests[point.which].nest, point.schedule
        knob, number = divmod(action, self._loops)
        if knob < 3:
            if number >= len(nest.loops):
                return None
            name = nest.loops[number].name
            if knob == 2:
                return _outwards(schedule, name, {loop.name: loop.kind for loop in nest.loops})
            extent, size = nest.extents[name], schedule.tiles[name]
            parts = -(-extent // size) + (1 if knob == 0 else -1)
            new = -(-extent // parts) if parts else extent
            if new == size:
                new = size - 1 if knob == 0 else size + 1
            return replace(schedule, tiles={**schedule.tiles, name: min(max(new, 1), extent)})
        which = action - 3 * self._loops
        if which < 4:
            slots = list(schedule.slots)
            slots[which // 2] += 1 if which % 2 else -1
            if not FEWEST_SLOTS <= slots[which // 2] <= MOST_SLOTS:
                return None
            return replace(schedule, slots=(slots[0], slots[1]))
        loops = [
            None,
            *(
                loop.name
                for loop in nest.loops
                if loop.kind is AxisKind.SPATIAL and nest.extents[loop.name] > 1
            ),
        ]
        at = loops.index(schedule.thread_loop) if schedule.thread_loop in loops else 0
        slots = (max(2, schedule.slots[0]), max(2, schedule.slots[1]))
        return replace(schedule, threads=2, thread_loop=loops[(at + 1) % len(loops)], slots=slots)

    def _features(self) -> int:
        return len(self.nests) + 4 * self._loops + 3

    def _state(self, point: Point) -> Floats:
        """The embedding; of each loop extent, tile, place, and whether threads share it; slots,
        threads."""
        nest, schedule = self.nests[point.which].nest, point.schedule
        found = np.zeros(self._features())
        found[point.which] = 1
        for k, loop in enumerate(nest.loops):
            at = len(self.nests) + 4 * k
            found[at] = np.log2(loop.extent) / 8
            found[at + 1] = np.log2(schedule.tiles[loop.name]) / 8
            found[at + 2] = schedule.order.index(loop.name) / self._loops
            found[at + 3] = loop.name == schedule.thread_loop
        found[-3:] = (*(s / MOST_SLOTS for s in schedule.slots), schedule.threads - 1)
        return found

    def _train(self) -> None:
        for _ in range(STEPS):
            at: list[int] = self._random.integers(len(self._transitions), size=BATCH).tolist()
            taken = [self._transitions[k] for k in at]
            states = np.array([state for state, _, _, _ in taken])
            actions = np.array([action for _, action, _, _ in taken])
            rewards = np.array([reward for _, _, reward, _ in taken])
            following = np.array([state for _, _, _, state in taken])
            later = self._earlier.values(following).max(axis=1)
            self._network.train(states, actions, rewards + DISCOUNT * later)


def _outwards(schedule: Schedule, name: str, kinds: dict[str, AxisKind]) -> Schedule | None:
    at = schedule.order.index(name)
    if at == 0 or kinds[schedule.order[at - 1]] is not kinds[name]:
        return None
    order = list(schedule.order)
    order[at - 1], order[at] = order[at], order[at - 1]
    return replace(schedule, order=tuple(order))


def estimated_beginnings(nests: Sequence[Nest]) -> list[tuple[int, Schedule]]:
    """The best by estimate of each nest, the least estimate first."""
    best = [(VtaSpace(nest).best(), k) for k, nest in enumerate(nests)]
    return [(k, item.schedule) for item, k in sorted(best, key=lambda pair: pair[0].cost)]


def random_beginnings(nests: Sequence[Nest], seed: int) -> list[tuple[int, Schedule]]:
    """Schedules of random tiles, orders and slots that fit: more than a search begins with, as some
    have no program."""
    random = np.random.default_rng(seed)
    found: list[tuple[int, Schedule]] = []
    while len(found) < 4 * START:
        which = int(random.integers(len(nests)))
        nest = nests[which].nest
        order = sorted(
            (loop.name for loop in nest.loops),
            key=lambda name: (_is_reduction(nests[which], name), random.random()),
        )
        tiles = {loop.name: int(random.integers(1, loop.extent + 1)) for loop in nest.loops}
        slots = (int(random.integers(2, 5)), int(random.integers(2, 5)))
        schedule = Schedule(tiles, tuple(order), 2, None, slots)
        with suppress(LoweringError):
            check_schedule(nest, schedule)
            found.append((which, schedule))
    return found


def _is_reduction(nest: Nest, name: str) -> bool:
    return any(loop.name == name and loop.kind is AxisKind.REDUCTION for loop in nest.nest.loops)
