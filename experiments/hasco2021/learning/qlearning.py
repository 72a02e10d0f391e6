"""Q-learning over schedules, after FlexTensor, in numpy.

FlexTensor (Zheng et al., ASPLOS 2020, section 5) keeps all points that were tried; those from which
it goes on are chosen at random, with probabilities that grow with exp of their performance. At such
a point a network of four fully connected layers gives a value to each direction, which is a knob
and a change of it; the best is taken, or with a probability that decays a random one. The reward
grows with the gain. Every few rounds the network is trained on what was tried, towards the reward
and the discounted value of the next point by an earlier state of it (Mnih et al. 2015), by
AdaDelta. HASCO (ISCA 2021, section VI) does the same for each embedding; here a point is of one of
several embeddings. ``codesign.md`` lists what is done otherwise than there.

The first points are random, or the best of each embedding by estimate: there the project's tuner
begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import LoweringError
from cpembed.ir.computation import AxisKind
from cpembed.targets.vta.schedule import Schedule, check_schedule
from cpembed.targets.vta.tuning import MAX_SLOTS, Nest, VtaSpace, canonical
from experiments.hasco2021.learning.directions import directions

Floats = NDArray[np.float64]

WIDTH = 64
"""Number of units of a hidden layer."""
START, ROUND = 8, 4
"""Points to begin with, and points from which a round goes on."""
TRAINED_EVERY, REPLACED_EVERY, BATCH, STEPS = 2, 8, 64, 8
"""Rounds between trainings, and between copies of the network as the earlier state; transitions of
a step, and steps of a training."""
GAMMA, DISCOUNT = 2.0, 0.9
"""A point of median performance is chosen exp(-GAMMA) times as often as the best."""
DECAYING = (0.8, 0.1)
"""Probability of a random direction, at the first and at the last program."""
ALWAYS = (1.0, 1.0)
"""The same for a search that learns nothing."""
REFUSED = -1.0
"""Reward of a direction to a schedule that does not fit."""
ATTEMPTS = 10_000
"""Maximum number of random schedules that are drawn."""

Simulate = Callable[[Nest, Schedule], int | None]
"""Cycles of a schedule; None if there is no program."""


class Network:
    """Four fully connected layers with rectifiers between them."""

    def __init__(self, inputs: int, outputs: int, random: np.random.Generator) -> None:
        sizes = [inputs, WIDTH, WIDTH, WIDTH, outputs]
        self.weights = [
            random.normal(0, np.sqrt(2 / a), (a, b)) for a, b in itertools.pairwise(sizes)
        ]
        self.biases = [np.zeros(b) for b in sizes[1:]]
        self._squares = [np.zeros_like(w) for w in (*self.weights, *self.biases)]
        self._updates = [np.zeros_like(w) for w in (*self.weights, *self.biases)]

    def copy_from(self, source: Network) -> None:
        self.weights = [w.copy() for w in source.weights]
        self.biases = [b.copy() for b in source.biases]

    def layers(self, states: Floats) -> list[Floats]:
        outputs = [states]
        for number, (weights, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            out = outputs[-1] @ weights + bias
            outputs.append(out if number == len(self.weights) - 1 else np.maximum(out, 0))
        return outputs

    def values(self, states: Floats) -> Floats:
        return self.layers(states)[-1]

    def train(self, states: Floats, actions: NDArray[np.int64], targets: Floats) -> None:
        """Make a step of AdaDelta on the squared error of the values of the chosen actions."""
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
            move = gradient * np.sqrt((self._updates[k] + 1e-6) / (self._squares[k] + 1e-6))
            self._updates[k] = 0.9 * self._updates[k] + 0.1 * move**2
            parameters[k][...] -= move


@dataclass(frozen=True, eq=False)
class Trial:
    """A schedule of one of the nests, and the program's cycles."""

    which: int
    schedule: Schedule
    cycles: int

    @property
    def performance(self) -> float:
        return 1 / self.cycles


@dataclass(eq=False)
class Learner:
    """A search of the schedules of ``nests``.

    ``exploring``: probabilities of a random direction, as :data:`DECAYING`.
    """

    nests: Sequence[Nest]
    simulate: Simulate
    seed: int
    exploring: tuple[float, float] = DECAYING
    best: list[int] = field(default_factory=list[int])
    """The fewest cycles after each simulated program."""

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._loops = max(len(nest.nest.loops) for nest in self.nests)
        self._directions = directions(self._loops)
        self._network = Network(self._features(), len(self._directions), self._random)
        self._earlier = Network(self._features(), len(self._directions), self._random)
        self._trials: list[Trial] = []
        self._visited: set[str] = set()
        self._transitions: list[tuple[Floats, int, float, Floats]] = []

    def run(self, trials: int, begin: Sequence[tuple[int, Schedule]]) -> list[int]:
        """Search; return the fewest cycles after each program.

        ``begin``: nests by number, with schedules, to try first. Fewer than ``trials`` programs if
        all that can be reached is tried.
        """
        for which, schedule in begin:
            if len(self.best) < min(START, trials):
                named = self._new(which, schedule)
                if named is not None:
                    self._try(which, named)
        rounds = 0
        while self._trials and len(self.best) < trials and rounds < 50 * trials:
            rounds += 1
            for trial in self._drawn():
                if len(self.best) < trials:
                    self._go_on(trial, len(self.best) / trials)
            if self.exploring != ALWAYS:
                self._learn(rounds)
        return self.best

    def _new(self, which: int, schedule: Schedule) -> Schedule | None:
        """Return a schedule under its canonical name; None if it was met before."""
        named = canonical(self.nests[which].nest, schedule)
        key = f"{which} {named!r}"
        if key in self._visited:
            return None
        self._visited.add(key)
        return named

    def _try(self, which: int, schedule: Schedule) -> Trial | None:
        """Simulate a schedule; return None if it does not fit, or has no program."""
        nest = self.nests[which]
        try:
            check_schedule(nest.nest, schedule)
        except LoweringError:
            return None
        cycles = self.simulate(nest, schedule)
        if cycles is None:
            return None
        trial = Trial(which, schedule, cycles)
        self._trials.append(trial)
        self.best.append(min([cycles, *self.best[-1:]]))
        return trial

    def _drawn(self) -> list[Trial]:
        weights = chances(np.array([trial.performance for trial in self._trials]))
        at = self._random.choice(len(weights), ROUND, p=weights)
        return [self._trials[k] for k in at]

    def _go_on(self, trial: Trial, progress: float) -> None:
        """Go in the best direction, or a random one, of those that lead to a new schedule."""
        state = self._state(trial)
        first, last = self.exploring
        if self._random.random() < first + (last - first) * progress:
            order = self._random.permutation(len(self._directions))
        else:
            order = np.argsort(-self._network.values(state[None])[0], kind="stable")
        nest = self.nests[trial.which].nest
        numbers: list[int] = order.tolist()
        for number in numbers:
            changed = self._directions[number].changed(nest, trial.schedule)
            named = None if changed is None else self._new(trial.which, changed)
            if named is not None:
                self._go(trial, state, number, named)
                return

    def _go(self, trial: Trial, state: Floats, direction: int, named: Schedule) -> None:
        next_trial = self._try(trial.which, named)
        if next_trial is None:
            self._transitions.append((state, direction, REFUSED, state))
            return
        gain = (next_trial.performance - trial.performance) / trial.performance
        reward = float(np.tanh(max(0.0, gain)))
        self._transitions.append((state, direction, reward, self._state(next_trial)))

    def _features(self) -> int:
        return len(self.nests) + 4 * self._loops + 3

    def _state(self, trial: Trial) -> Floats:
        """Return the features of a point.

        These are the embedding; of each loop extent, tile, place, and whether threads share it;
        slots, threads.
        """
        nest, schedule = self.nests[trial.which].nest, trial.schedule
        features = np.zeros(self._features())
        features[trial.which] = 1
        for k, loop in enumerate(nest.loops):
            at = len(self.nests) + 4 * k
            features[at] = np.log2(loop.extent) / 8
            features[at + 1] = np.log2(schedule.tiles[loop.name]) / 8
            features[at + 2] = schedule.order.index(loop.name) / self._loops
            features[at + 3] = loop.name == schedule.thread_loop
        features[-3:] = (*(s / MAX_SLOTS for s in schedule.slots), schedule.threads - 1)
        return features

    def _learn(self, rounds: int) -> None:
        if rounds % TRAINED_EVERY == 0 and self._transitions:
            self._train()
        if rounds % REPLACED_EVERY == 0:
            self._earlier.copy_from(self._network)

    def _train(self) -> None:
        for _ in range(STEPS):
            at: list[int] = self._random.integers(len(self._transitions), size=BATCH).tolist()
            sample = [self._transitions[k] for k in at]
            states = np.array([state for state, _, _, _ in sample])
            actions = np.array([action for _, action, _, _ in sample])
            rewards = np.array([reward for _, _, reward, _ in sample])
            following = np.array([state for _, _, _, state in sample])
            later = self._earlier.values(following).max(axis=1)
            self._network.train(states, actions, rewards + DISCOUNT * later)


def chances(performances: Floats) -> Floats:
    """Return the probabilities to go on from points.

    Performances differ by percents: their scale is from the best to the median, so that a few bad
    points do not make all others equal.
    """
    behind = performances.max() - performances
    scale = float(np.median(behind))
    weights = np.exp(-GAMMA * behind / scale) if scale else np.where(behind > 0, np.exp(-GAMMA), 1)
    return weights / weights.sum()


def estimated_beginnings(nests: Sequence[Nest]) -> list[tuple[int, Schedule]]:
    """Return the best schedule of each nest by estimate, the least estimate first."""
    best = [(VtaSpace(nest).best(), k) for k, nest in enumerate(nests)]
    return [(k, item.schedule) for item, k in sorted(best, key=lambda pair: pair[0].cost)]


def random_beginnings(nests: Sequence[Nest], seed: int) -> list[tuple[int, Schedule]]:
    """Return schedules of random tiles, orders and slots that fit the buffers.

    They are more than a search begins with, as some have no program.
    """
    random = np.random.default_rng(seed)
    beginnings: list[tuple[int, Schedule]] = []
    for _ in range(ATTEMPTS):
        if len(beginnings) == 4 * START:
            break
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
            beginnings.append((which, schedule))
    if not beginnings:
        raise LoweringError(f"none of {ATTEMPTS:,} random schedules fits the buffers")
    return beginnings


def _is_reduction(nest: Nest, name: str) -> bool:
    return any(loop.name == name and loop.kind is AxisKind.REDUCTION for loop in nest.nest.loops)
