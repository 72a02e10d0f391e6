"""Times that can be compared: rounds in which every contender runs once, in turning order."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

LEAST_ROUNDS, MOST_ROUNDS = 7, 100


@dataclass(frozen=True)
class Samples:
    """Microseconds of each contender in each round."""

    us: Mapping[str, Sequence[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.us[name])

    def spread(self, name: str) -> float:
        """The distance of the quartiles as a part of the median.

        >>> Samples({"a": [1, 2, 3, 4, 5]}).spread("a")
        1.0
        """
        values = self.us[name]
        if len(values) < 2:
            return 0.0
        low, _, high = statistics.quantiles(values, n=4)
        return (high - low) / self.median(name)

    def ratio(self, one: str, other: str) -> float:
        """Median over rounds of the time of one as a multiple of the other's.

        >>> Samples({"a": [1, 2, 9], "b": [2, 4, 3]}).ratio("b", "a")
        2.0
        """
        rounds = zip(self.us[one], self.us[other], strict=True)
        return statistics.median(a / b for a, b in rounds)


def rounds(
    contenders: Mapping[str, Callable[[], None]],
    clock: Callable[[Callable[[], None]], float],
    seconds: float,
    now: Callable[[], float] = time.monotonic,
) -> Samples:
    """As many rounds as ``seconds`` allow, within limits; ``clock`` times one call, in
    microseconds. Each round begins with another contender.
    """
    names = list(contenders)
    found: dict[str, list[float]] = {name: [] for name in names}
    end = now() + seconds
    for number in range(MOST_ROUNDS):
        if number >= LEAST_ROUNDS and now() >= end:
            break
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            found[name].append(clock(contenders[name]))
    return Samples(found)


def geometric_mean(values: Sequence[float]) -> float:
    """
    >>> geometric_mean([2.0, 8.0])
    4.0
    """
    return statistics.geometric_mean(values)
