"""Servers that each have a queue of their own, behind a router or a fan-out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from underload.queueing import arguments
from underload.queueing.markov import mm1
from underload.queueing.measures import Measures, seconds, steady, unstable
from underload.queueing.waits import Stages
from underload.request.errors import UnderloadError

Array = NDArray[np.float64]
#: That one of two queues is so much longer than the other has a probability that no double can tell from 0.
_APART = 60


def power_of_choices(arrival_rate: float, service_rate: float, *, choices: int) -> Measures:
    """Each request joins the shortest of `choices` queues picked at random, of infinitely many: the supermarket model.

    Poisson arrivals at `arrival_rate` for each server, exponential service, every server with a queue of its own, FCFS.
    With rho = arrival_rate / service_rate < 1, a share rho^((d^k - 1) / (d - 1)) of the servers has k or more inside,
    so that a request finds k or more where it goes with the d-th power of that. One choice is `mm1`. The figures are
    those of one server; a hundred servers are close to infinitely many. Rates in 1/s, times in s.

    Source: Vvedenskaya, Dobrushin and Karpelevich, Problems of Information Transmission 32(1), 1996; Mitzenmacher, "The
    power of two choices in randomized load balancing", IEEE TPDS 12(10), 2001.

    Raises:
        UnderloadError: a negative arrival rate, a service rate not above 0, choices that are no whole number from 1.
    """
    arrival_rate = arguments.at_least_zero("arrival_rate", arrival_rate, "1/s")
    service_rate = arguments.above_zero("service_rate", service_rate, "1/s")
    choices = arguments.whole("choices", choices, least=1)
    if choices == 1:
        return mm1(arrival_rate, service_rate)
    name = f"best of {choices} choices"
    if arrival_rate >= service_rate:
        return unstable(name, arrival_rate, 1 / service_rate)
    load = arrival_rate / service_rate
    finds, power, exponent = [1.0], float(choices), 0.0
    while finds[-1] > 1e-300:  # the exponent grows as choices^k
        exponent, power = exponent + power, power * choices
        finds.append(load**exponent)
    return _found(name, arrival_rate, service_rate, 1, np.array(finds))


def shortest_queue(arrival_rate: float, service_rate: float) -> Measures:
    """Two servers, each with a queue of its own, FCFS; a request joins the shorter, either where they are equal.

    Poisson arrivals, exponential service at `service_rate` in each. Better than two queues chosen at random, worse than
    one queue for both (`mmc`), since a server may be idle while somebody waits at the other. Exact but for rounding:
    the chain of (shorter queue, how much longer the other is) is solved as a quasi-birth-death process. Rates in 1/s,
    times in s.

    Source: Kingman, "Two similar queues in parallel", Annals of Mathematical Statistics 32(4), 1961; Latouche and
    Ramaswami, "A logarithmic reduction algorithm for quasi-birth-death processes", J. Applied Probability 30(3), 1993.

    Raises:
        UnderloadError: a negative arrival rate, a service rate not above 0, what is no number, or a load above 0.9999
            and below 1, where the queues get too long to write down.
    """
    arrival_rate = arguments.at_least_zero("arrival_rate", arrival_rate, "1/s")
    service_rate = arguments.above_zero("service_rate", service_rate, "1/s")
    name, load = "shorter of two queues", arrival_rate / service_rate / 2
    if load >= 1:
        return unstable(name, arrival_rate, 1 / service_rate, servers=2)
    if load > 0.9999:
        raise UnderloadError(
            f"a load of {load:.10g} is too close to 1 for the chain of two queues; it is exact up to 0.9999, and "
            "beyond mmc with servers=2 is as good"
        )
    return _found(name, arrival_rate, service_rate, 2, _shorter(2 * load))


@dataclass(frozen=True)
class ForkJoin:
    """Requests that each send one call to every one of `n` servers, and are answered when the last of them is."""

    n: int
    load: float  # of each server
    mean_sojourn: float  # s, from arrival to the last answer
    exact: bool
    bound: float  # s: the mean is never above it, which it would be if the servers were independent

    def as_dict(self) -> dict[str, Any]:
        """The figures by name, as for JSON."""
        return {name: getattr(self, name) for name in ("n", "load", "mean_sojourn", "exact", "bound")}

    def __str__(self) -> str:
        kind = "exact" if self.exact else "approximation"
        return (
            f"fork-join of {self.n} at load {self.load:.6g}\n  mean time in system   {seconds(self.mean_sojourn)} "
            f"({kind})\n  at most               {seconds(self.bound)}"
        )


def fork_join(arrival_rate: float, service_rate: float, *, n: int) -> ForkJoin:
    """Fan-out with queues: Poisson requests, each with an exponential service at all of `n` servers, FCFS at each.

    With rho = arrival_rate / service_rate < 1, R = 1 / (service_rate - arrival_rate) and H_n = 1 + 1/2 + … + 1/n:
        n = 1, 2  R and R (12 - rho) / 8, exactly
        n to 32   R (12 - rho) / 8 x (H_n / H_2 + 4/11 (1 - H_n / H_2) rho), an approximation to within 5 %
        bound     R H_n: the slowest of n independent queues; they share their arrivals, so they are not
    At rho >= 1 all are infinite. Rates in 1/s, times in s.

    Source: Flatto and Hahn, SIAM J. Applied Mathematics 44(5), 1984; Nelson and Tantawi, "Approximate analysis of
    fork/join synchronization in parallel queues", IEEE Transactions on Computers 37(6), 1988.

    Raises:
        UnderloadError: a negative arrival rate, a service rate not above 0, n that is no whole number from 1 to 32.
    """
    arrival_rate = arguments.at_least_zero("arrival_rate", arrival_rate, "1/s")
    service_rate = arguments.above_zero("service_rate", service_rate, "1/s")
    n = arguments.whole("n", n, least=1, most=32)
    load = arrival_rate / service_rate
    if load >= 1:
        return ForkJoin(n, load, math.inf, True, math.inf)
    one = 1 / (service_rate - arrival_rate)
    harmonic = sum(1 / k for k in range(1, n + 1))
    if n == 1:
        return ForkJoin(n, load, one, True, one)
    ratio = harmonic / 1.5
    mean = one * (12 - load) / 8 * (ratio + 4 / 11 * (1 - ratio) * load)
    return ForkJoin(n, load, mean, n == 2, one * harmonic)


def _found(name: str, arrival_rate: float, service_rate: float, servers: int, finds: Array) -> Measures:
    """The figures where a request finds j or more at the server it joins with probability finds[j]."""
    return steady(
        name,
        arrival_rate,
        1 / service_rate,
        servers=servers,
        prob_wait=float(finds[1]),
        mean_wait=float(finds[1:].sum()) / service_rate,
        wait=Stages(finds[1:], service_rate),
        sojourn=Stages(finds, service_rate),
    )


def _shorter(rate: float) -> Array:
    """P(the shorter of two queues has j or more), j = 0, 1, …, at service rate 1 and arrivals at `rate` < 2 to both."""
    # level: inside at the shorter; phase: how many more at the longer, up to `_APART`
    size = _APART + 1
    up, local, down = np.zeros((size, size)), np.zeros((size, size)), np.zeros((size, size))
    local[0, 1] = rate  # both are equal, and one gets longer
    down[0, 1] = 2.0
    for more in range(1, size):
        up[more, more - 1] = rate
        local[more, more - 1] = 1.0  # the longer serves
        down[more, min(more + 1, _APART)] = 1.0  # the shorter serves
    empty = local.copy()  # of the level at which the shorter is idle
    np.fill_diagonal(empty, -(up + local).sum(axis=1))
    np.fill_diagonal(local, -(up + local + down).sum(axis=1))
    ratio = _rate_matrix(up, local, down)
    # Balance of the lowest level, one of its equations replaced by: the probabilities sum to 1.
    least = (empty + ratio @ down).T
    sums = np.linalg.solve(np.eye(size) - ratio, np.ones(size))
    least[0] = sums
    goal = np.zeros(size)
    goal[0] = 1.0
    level = np.linalg.solve(least, goal)
    finds = []
    while True:
        finds.append(float(level @ sums))
        if not finds[-1] > 1e-18:
            return np.maximum(np.array(finds), 0.0)
        level = level @ ratio


def _rate_matrix(up: Array, local: Array, down: Array) -> Array:
    """R of a quasi-birth-death process: level k + 1 is level k times R (logarithmic reduction)."""
    inverse = np.linalg.inv(-local)
    high, low = inverse @ up, inverse @ down
    first, product = low.copy(), high.copy()
    for _ in range(60):  # each halves the number of digits that are missing
        both = high @ low + low @ high
        rest = np.linalg.inv(np.eye(len(up)) - both)
        high, low = rest @ high @ high, rest @ low @ low
        first += product @ low
        product = product @ high
        if product.max() < 1e-18:
            break
    return np.asarray(up @ np.linalg.inv(-(local + up @ first)), dtype=np.float64)
