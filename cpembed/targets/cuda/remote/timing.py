"""Time implementations so that times can be compared: each runs once a round, in turning order."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

LEAST_ROUNDS, MOST_ROUNDS = 7, 100


@dataclass(frozen=True)
class Samples:
    """Microseconds of each implementation in each round."""

    us: Mapping[str, Sequence[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.us[name])

    def spread(self, name: str) -> float:
        """Return the distance of the quartiles as a part of the median.

        >>> Samples({"a": [1, 2, 3, 4, 5]}).spread("a")
        1.0
        """
        values = self.us[name]
        if len(values) < 2:
            return 0.0
        low, _, high = statistics.quantiles(values, n=4)
        return (high - low) / self.median(name)

    def ratio(self, name: str, base: str) -> float:
        """Return the median over rounds of the time of one as a multiple of another's.

        >>> Samples({"a": [1, 2, 9], "b": [2, 4, 3]}).ratio("b", "a")
        2.0
        """
        rounds = zip(self.us[name], self.us[base], strict=True)
        return statistics.median(a / b for a, b in rounds)


def rounds(
    implementations: Mapping[str, Callable[[], None]],
    clock: Callable[[Callable[[], None]], float],
    seconds: float,
    now: Callable[[], float] = time.monotonic,
) -> Samples:
    """Time as many rounds as ``seconds`` allow, within limits.

    Each round begins with another implementation.

    Parameters
    ----------
    implementations : mapping of str to callable
        Calls by name.
    clock : callable
        Function from a call to its microseconds.
    seconds : float
        Time of all rounds.
    now : callable
        Clock of the limit.
    """
    names = list(implementations)
    times: dict[str, list[float]] = {name: [] for name in names}
    end = now() + seconds
    for number in range(MOST_ROUNDS):
        if number >= LEAST_ROUNDS and now() >= end:
            break
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            times[name].append(clock(implementations[name]))
    return Samples(times)
