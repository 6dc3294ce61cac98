"""One server that takes requests in batches, in three rules told apart by name.

    greedy   [1, B]   when free, it takes whoever waits, up to B; with nobody there it starts with the next to come
    full     [B, B]   it starts only with exactly B
    bailey   [0, B]   it never rests: with nobody there it runs empty (a bus by the clock)

In all three nobody joins a batch in service. X, the number waiting when a service ends, is a Markov chain,

    X' = max(X - B, 0) + arrivals during a service of size(X)

and its steady state gives the rest by renewal reward and Little's law. Constant services have Poisson arrivals, and X
has a tail that is geometric soon after B: a banded linear system to there, closed by the exact ratio, is the whole of
it, at every load below 1. With exponential services the number waiting beside a batch of each size is a sum of
geometric terms, and B + 1 equations fix their weights.

Source: Bailey, "On queueing processes with bulk service", JRSS B 16(1), 1954; Chaudhry and Templeton, "A First Course
in Bulk Queues" (1983), chapter 4; Medhi, "Stochastic Models in Queueing Theory" (2nd ed., 2003), chapter 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from underload.queueing import arguments
from underload.queueing.deterministic import decay
from underload.queueing.measures import PERCENTILES, Measures
from underload.queueing.waits import ExponentialWait, Never, Shifted, Wait, invert, poisson_more
from underload.request.errors import UnderloadError

Array = NDArray[np.float64]

#: The largest batch whose chain is solved; a greedy or clocked server may have a larger cap, as long as it is not met.
LARGEST = 1_024

KINDS = ("greedy", "full", "bailey")
LAWS = ("constant", "exponential")


@dataclass(frozen=True)
class BatchMeasures(Measures):
    """The measures of a server that takes batches, and what its batches are like."""

    kind: str = "greedy"
    batch_size: int = 1  # the most it takes
    mean_batch: float = 0.0  # requests in a service; under `bailey` empty ones count
    batch_rate: float = 0.0  # services a second
    mean_left: float = 0.0  # requests waiting when a service ends, just before the next batch is taken

    def rows(self, percentiles: Sequence[float] = PERCENTILES) -> list[tuple[str, str]]:
        """Label and value with unit of each line that `str` prints."""
        return [
            *super().rows(percentiles),
            ("mean batch", f"{self.mean_batch:.6g} of {self.batch_size}"),
            ("batches", f"{self.batch_rate:.6g} /s"),
            ("waiting at an end", f"{self.mean_left:.6g}"),
        ]


def bulk_service(
    arrival_rate: float,
    *,
    batch_size: int,
    overhead: float,
    per_item: float = 0.0,
    kind: str = "greedy",
    service: str = "constant",
) -> BatchMeasures:
    """A server that takes up to `batch_size` = B Poisson arrivals at once; a service of b of them takes o + bt.

    o is `overhead` and t is `per_item`, in s. `kind` is "greedy" (starts with whoever waits, one at least), "full"
    (starts with exactly B) or "bailey" (starts by the clock, empty if need be). With `service` "exponential" o + bt is
    the mean of an exponential time instead of a constant. Stable while arrival_rate (o + Bt) < B; past that the wait is
    infinite. `load` is arrival_rate (o + Bt)/B, `utilisation` the busy fraction, which under "greedy" is far higher.

    Exact. With constant services the laws of the wait and of the time in system come too: in closed form, except the
    time in system where the own batch's size is not known at its start ("greedy" and "bailey" with t > 0), which is a
    quadrature over the instant of arrival. With exponential services they come for batch_size = 1 only.
    Rates in 1/s, times in s. Source: see the module.

    Raises:
        UnderloadError: a negative rate or time, no time at all (o = t = 0; o = 0 for "bailey", which would run empty
            for ever), a batch size that is no whole number from 1 to 10,000, batches of more than 1,024 that do fill,
            an unknown kind or service.
    """
    arrival_rate = arguments.at_least_zero("arrival_rate", arrival_rate, "1/s")
    size = arguments.whole("batch_size", batch_size, least=1, most=10_000)
    overhead = arguments.at_least_zero("overhead", overhead, "s")
    per_item = arguments.at_least_zero("per_item", per_item, "s")
    if kind not in KINDS:
        raise UnderloadError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if service not in LAWS:
        raise UnderloadError(f"service must be one of {', '.join(LAWS)}, got {service!r}")
    if overhead == 0 and (per_item == 0 or kind == "bailey"):
        what = "an empty batch" if per_item else "a service"
        raise UnderloadError(f"overhead is 0 s, so {what} would take no time; give it a duration")

    least = {"greedy": 1, "full": size, "bailey": 0}[kind]
    name = f"{'M/D' if service == 'constant' else 'M/M'}^[{least},{size}]/1 ({kind})"
    times: Array = np.asarray(overhead + per_item * np.arange(size + 1), dtype=np.float64)
    if arrival_rate * times[size] >= size:
        return _grows(name, arrival_rate, times, kind)
    if arrival_rate == 0:
        return _quiet(name, times, kind)
    if service == "constant":
        solved, known = _constant(arrival_rate, times, kind)
    else:
        solved, known = _exponential(arrival_rate, times, kind), times
    wait: Wait | None = None
    sojourn: Wait | None = None
    unknown = "simulate it for a percentile"
    if service == "constant":
        wait = BulkWait(arrival_rate, known, kind, solved.left, solved.ratio, solved.cycle)
        same = kind == "full" or per_item == 0 or (size == 1 and kind == "greedy")
        sojourn = Shifted(wait, float(times[size])) if same else BulkSojourn(wait)
    elif size == 1 and kind != "bailey":
        drain = float(1 / times[1] - arrival_rate)
        wait, sojourn = ExponentialWait(arrival_rate * float(times[1]), drain), ExponentialWait(1.0, drain)
    mean_wait = float(solved.queue / arrival_rate)
    mean_sojourn = mean_wait + float(solved.own_service)
    return BatchMeasures(
        name=name,
        arrival_rate=arrival_rate,
        mean_service=float(solved.own_service),
        servers=1,
        load=arrival_rate * float(times[size]) / size,
        utilisation=1.0 if kind == "bailey" else min(1.0, float(solved.busy)),
        stable=True,
        prob_wait=float(solved.prob_wait),
        mean_wait=mean_wait,
        mean_sojourn=mean_sojourn,
        mean_queue=float(solved.queue),
        mean_system=arrival_rate * mean_sojourn,
        throughput=arrival_rate,
        wait=wait,
        sojourn=sojourn,
        unknown=unknown,
        kind=kind,
        batch_size=size,
        mean_batch=float(arrival_rate * solved.cycle),
        batch_rate=float(1 / solved.cycle),
        mean_left=float(solved.mean_left),
    )


def _grows(name: str, arrival_rate: float, times: Array, kind: str) -> BatchMeasures:
    size, longest = times.size - 1, float(times[-1])
    return BatchMeasures(
        name=name,
        arrival_rate=arrival_rate,
        mean_service=longest,
        servers=1,
        load=arrival_rate * longest / size,
        utilisation=1.0,
        stable=False,
        prob_wait=1.0,
        mean_wait=math.inf,
        mean_sojourn=math.inf,
        mean_queue=math.inf,
        mean_system=math.inf,
        throughput=size / longest,
        wait=Never(),
        sojourn=Never(),
        kind=kind,
        batch_size=size,
        mean_batch=float(size),
        batch_rate=1 / longest,
        mean_left=math.inf,
    )


def _quiet(name: str, times: Array, kind: str) -> BatchMeasures:
    """Nobody comes; the waits are those of one who would."""
    size = times.size - 1
    waits = {"greedy": 0.0, "full": math.inf if size > 1 else 0.0, "bailey": float(times[0]) / 2}[kind]
    own = float(times[size if kind == "full" else 1])
    return BatchMeasures(
        name=name,
        arrival_rate=0.0,
        mean_service=own,
        servers=1,
        load=0.0,
        utilisation=1.0 if kind == "bailey" else 0.0,
        stable=True,
        prob_wait=1.0 if waits else 0.0,
        mean_wait=waits,
        mean_sojourn=waits + own,
        mean_queue=0.0,
        mean_system=0.0,
        throughput=0.0,
        unknown="nobody comes; give an arrival rate above 0",
        kind=kind,
        batch_size=size,
        mean_batch=0.0,
        batch_rate=1 / float(times[0]) if kind == "bailey" else 0.0,
        mean_left=0.0,
    )


@dataclass(frozen=True)
class _Solved:
    left: Array  # P(X = n) at the ends of services, n = 0 … size of the array - 1
    ratio: float  # P(X = n + 1)/P(X = n) from the array's end on
    cycle: float  # s from one end of service to the next
    busy: float
    queue: float  # mean number waiting, over time
    own_service: float  # s, mean, as a request sees it
    prob_wait: float
    mean_left: float


def _sizes(kind: str, size: int) -> NDArray[np.int64]:
    """The batch taken when X = 0 … B wait at the end of a service."""
    waiting = np.arange(size + 1)
    if kind == "full":
        return np.full(size + 1, size)
    return np.maximum(waiting, 1) if kind == "greedy" else waiting


def _constant(rate: float, times: Array, kind: str) -> tuple[_Solved, Array]:
    """The solution, and the times of the batches that happen: a cap that is never met is as good as a lower one."""
    size = times.size - 1
    cap = size if kind == "full" else min(size, 128)
    while True:
        _small(cap)
        known = times[: cap + 1]
        if rate * float(known[cap]) < cap:
            solved = _chain(rate, known, kind)
            full = float(solved.left[cap:].sum()) + float(solved.left[-1]) * solved.ratio / (1 - solved.ratio)
            if cap == size or full < 1e-15:
                return solved, known
        cap = min(2 * cap, size)


def _small(size: int) -> None:
    if size > LARGEST:
        raise UnderloadError(
            f"batches of more than {LARGEST:,} do fill at this load, and the exact chain stops there; "
            f"take a batch_size of at most {LARGEST:,}, or simulate it"
        )


def _chain(rate: float, times: Array, kind: str) -> _Solved:
    size, taken = times.size - 1, _sizes(kind, times.size - 1)
    theta = decay(rate * float(times[size]) / size)
    states = size + 128 + int(rate * times[size] + 12 * math.sqrt(rate * times[size]))
    # Where arrivals and services balance, or the most that one service brings.
    slope = rate * float(times[1] - times[0])
    guess = (
        rate
        * float(times[size if kind == "full" or slope >= 1 else 0])
        / (1 if kind == "full" else max(1 - slope, 0.01))
    )
    while True:
        left = _embedded(rate * times[taken], size, theta, states, min(int(guess), size))
        # The tail is closed as a geometric one; is it one yet where it was cut?
        near, end = left[-2], left[-1]
        if end < 1e-22 or abs(end / near / math.exp(-theta) - 1) < 1e-9:
            break
        if states > 400_000:
            raise UnderloadError(
                f"a batch of {size} at this load needs more than 400,000 states; try a smaller batch_size or overhead"
            )
        states *= 2
    return _renewal(rate, times, kind, left, theta)


def _embedded(means: Array, size: int, theta: float, states: int, guess: int) -> Array:
    """P(X = n), n = 0 … `states`, falling as exp(-theta n) from there on.

    The service that starts with X waiting, X <= B, brings `means[X]` Poisson arrivals.
    """
    from scipy.linalg import solve_banded

    ratio = math.exp(-theta)
    support = max(size, int(means.max() + 12 * math.sqrt(means.max()) + 40))
    arrivals = _poisson(means, np.arange(support + 1))  # row X: P(k arrive)
    last = arrivals[size]

    # Row j says how X' = j comes about, j = 0 … N; column x is what pi_x gives to it.
    lower, upper, n = min(support, states), size, states + 1
    band = np.zeros((lower + upper + 1, n))
    band[upper, :] = 1.0
    for x in range(size + 1):  # these leave nobody behind
        band[upper - x : upper - x + min(lower + x, support) + 1, x] -= arrivals[x][: min(lower + x, support) + 1]
    reach = min(support, lower + upper) + 1
    band[:reach, size + 1 :] -= last[:reach, None]
    # States past the N-th stand for themselves as pi_N ratio^i; they reach down to the last `size` rows.
    for j in range(n - size, n):
        i = np.arange(1, j + size - states + 1)
        reached = last[np.minimum(j - states - i + size, support)] * (j - states - i + size <= support)
        band[upper + j - states, states] -= float(reached @ ratio**i)
    # The equations hold one too many. It makes room for pi_m = 1, at a likely m: next to a state of probability 1e-30
    # the others would be lost in rounding.
    likely = guess
    for _ in range(3):
        fixed = band.copy()
        columns = np.arange(max(0, likely - lower), min(n, likely + upper + 1))
        fixed[upper + likely - columns, columns] = 0.0
        fixed[upper, likely] = 1.0
        right = np.zeros(n)
        right[likely] = 1.0
        left = np.maximum(solve_banded((lower, upper), fixed, right, overwrite_ab=True, check_finite=False), 0.0)
        best = int(left.argmax())
        if left[best] < 1e3:
            break
        likely = best
    return np.asarray(left / (left.sum() + left[-1] / math.expm1(theta)))


def _renewal(rate: float, times: Array, kind: str, left: Array, theta: float) -> _Solved:
    """Means over time from the chain at the ends of constant services."""
    size, taken = times.size - 1, _sizes(kind, times.size - 1)
    rest = -math.expm1(-theta)  # 1 - ratio, with its digits where the load is close to 1
    n = np.arange(left.size)
    chance = left[: size + 1].copy()
    chance[size] = 1 - left[:size].sum()
    beyond, past = left[-1] / math.expm1(theta), left.size - 1
    mean_left = float(n @ left) + beyond * (past + 1 / rest)
    over = float(np.maximum(n - size, 0) @ left) + beyond * (past - size + 1 / rest)
    spent = times[taken]
    service = float(chance @ spent)
    area = float(times[size]) * over + rate * float(chance @ spent**2) / 2
    idle = 0.0
    if kind == "greedy":
        idle = float(chance[0]) / rate
    elif kind == "full":
        short = np.arange(size)
        idle = float(chance[:size] @ (size - short)) / rate
        # With x there, size - x more come one by one: x, x + 1, … size - 1 wait for 1/rate each.
        area += float(chance[:size] @ (size * (size - 1) - short * (short - 1))) / 2 / rate
    cycle = idle + service
    queue = area / cycle
    carried = float(chance @ taken)
    at_once = {"greedy": idle, "bailey": 0.0, "full": float(chance[:size].sum()) / rate}[kind]
    return _Solved(
        left=left,
        ratio=math.exp(-theta),
        cycle=cycle,
        busy=service / cycle,
        queue=queue,
        own_service=float(chance @ (taken * spent)) / carried,
        prob_wait=max(0.0, (idle - at_once + service) / cycle),
        mean_left=mean_left,
    )


def _exponential(rate: float, times: Array, kind: str) -> _Solved:
    _small(times.size - 1 if kind != "full" else 1)
    if kind == "full":
        return _erlang_batches(rate, times)
    size = times.size - 1
    taken = np.arange(1 if kind == "greedy" else 0, size)  # the batches short of B, which leave nobody waiting
    mu, last = 1 / times[taken], 1 / float(times[size])
    x, less = rate / (rate + mu), mu / (rate + mu)  # less: 1 - x
    s = _fall(rate * float(times[size]), size)
    r, rest = math.exp(-s), -math.expm1(-s)  # rest: 1 - r, with its digits at a load close to 1
    # q_b(n), n waiting beside a batch of b < B: A_b x_b^n. Beside a full one: K r^n + sum of kappa_b A_b x_b^n, with
    # kappa from (rate + mu_B) q_B(n) = rate q_B(n - 1) + what services that leave n + B behind bring.
    high = x**size
    # Never 0 but by underflow: with t = 0 it is -1 whatever x is, with t > 0 it is below that in size.
    kappa = np.where(mu == last, -1.0, mu * high / np.minimum((last - mu) - last * high, -1e-300))
    flow = mu + last * kappa  # of each term, to the rate at which services end leaving m: flow A x^m + mu_B K r^m
    unknowns = taken.size + 1
    lhs = np.zeros((unknowns, unknowns))
    for row, b in enumerate(taken):
        lhs[row, :-1] = flow * x**b
        lhs[row, -1] = last * r ** int(b)
        if kind == "greedy" and b == 1:  # an idle server starts with one as well
            lhs[row, :-1] += flow
            lhs[row, -1] += last
        lhs[row, row] -= rate + mu[row]
    # At n = 0 nothing comes from n = -1: the form above, read there, must vanish.
    lhs[-1, :-1] = kappa / x
    lhs[-1, -1] = 1 / r
    total = np.concatenate([(1 + kappa) / less, [1 / rest]])
    if kind == "greedy":
        total = total + np.concatenate([flow, [last]]) / rate
    # The equations of the short batches hold one too many; the first makes room for "all probabilities add up to 1".
    if taken.size:
        lhs[0] = total
    else:  # B = 1, greedy: K alone
        lhs[-1] = total
    right = np.zeros(unknowns)
    right[0] = 1
    weights = np.linalg.solve(lhs, right)
    a, k = weights[:-1], float(weights[-1])
    queue = float(((1 + kappa) * a) @ (x / less**2)) + k * r / rest**2
    busy_short = a / less
    busy_full = float(kappa @ busy_short) + k / rest
    # Added up, as 1 less the idle share has no digits left at a low load.
    busy = min(1.0, max(0.0, float(busy_short.sum()) + busy_full)) if kind == "greedy" else 1.0
    starts = np.append(busy_short * mu, busy_full * last)
    sizes = np.append(taken, size)
    services = float(starts.sum())
    carried = float(starts @ sizes)
    own = float(starts @ (sizes * np.append(1 / mu, 1 / last))) / carried
    mean_left = (float((flow * a) @ (x / less**2)) + last * k * r / rest**2) / services
    return _Solved(
        left=np.zeros(0),
        ratio=r,
        cycle=1 / services,
        busy=busy,
        queue=max(queue, 0.0),
        own_service=own,
        prob_wait=busy,
        mean_left=mean_left,
    )


def _erlang_batches(rate: float, times: Array) -> _Solved:
    """Full batches arrive with Erlang gaps to an exponential server: E_B/M/1, after the wait to fill."""
    size, mean = times.size - 1, float(times[-1])
    fall = size * _fall(rate * mean, size)
    queue_wait = mean * math.exp(-fall) / -math.expm1(-fall)
    queue = rate * ((size - 1) / (2 * rate) + queue_wait)
    # A member goes straight in who completes a batch for an idle server.
    return _Solved(
        left=np.zeros(0),
        ratio=math.exp(-fall),
        cycle=size / rate,
        busy=rate * mean / size,
        queue=queue,
        own_service=mean,
        prob_wait=1 + math.expm1(-fall) / size,
        # What waits at an end of service: whole batches, plus those of the batch that is filling.
        mean_left=_left_behind(rate * mean, size),
    )


def _left_behind(arrivals: float, size: int) -> float:
    """E[X] of X' = max(X - B, 0) + A with A geometric of mean `arrivals`: X is geometric itself, of the ratio r."""
    return 1 / math.expm1(_fall(arrivals, size))


def _fall(arrivals: float, size: int) -> float:
    """s = -ln r > 0 with r + r² + … + r^B = arrivals, `arrivals` = rate / mu_B above 0 and below B."""
    from scipy.optimize import brentq

    k = np.arange(1, size + 1)
    spare = size - arrivals

    def over(s: float) -> float:  # falls; near load 1 the difference to B is what keeps its digits
        if spare < size / 2:
            return spare + float(np.expm1(-k * s).sum())
        return float(np.exp(-k * s).sum()) / arrivals - 1

    # All B terms lie between the first and the last of them: r^B < arrivals / B < r, and r < arrivals.
    low, high = max(2 * spare / size / (size + 1), -math.log(arrivals)), math.log(size / arrivals)
    if low >= high or over(low) <= 0:
        return low
    return high if over(high) >= 0 else float(brentq(over, low, high, xtol=1e-300, rtol=1e-15, maxiter=500))


@dataclass(frozen=True, eq=False)
class BulkWait(Wait):
    """The wait for a batch server with constant services.

    Who comes u seconds into a service of length T and finds n waiting is served after T - u and floor(n/B) full
    batches, and under "full" not before those left over (n mod B), the newcomer and whoever comes next make B. So the
    wait follows from n and u, whose law the chain gives. Tails are good to about 1e-12, absolutely.
    """

    rate: float
    times: Array
    kind: str
    left: Array
    ratio: float
    cycle: float

    @property
    def size(self) -> int:
        return self.times.size - 1

    @property
    def prob_full(self) -> float:
        """P(B or more wait at the end of a service)."""
        known = self.left
        if self.ratio >= 1:
            return 1.0
        beyond = float(known[-1]) * self.ratio ** max(self.size - known.size + 1, 1) / (1 - self.ratio)
        return min(1.0, float(known[self.size :].sum()) + beyond)

    def starts(self, count: int) -> Array:
        """P(a full batch is taken and n stay behind), n = 0 … count - 1, for each service."""
        size, known = self.size, self.left
        if known.size < count + size:
            known = np.concatenate([known, known[-1] * self.ratio ** np.arange(1, count + size - known.size + 1)])
        found = known[size : size + count].copy()
        if self.kind == "full":
            found[0] += known[:size].sum()
        return found

    @cached_property
    def short(self) -> list[tuple[float, float]]:
        """Services of a batch short of B: how many there are for each service, and how long they take."""
        if self.kind == "full":
            return []
        taken = _sizes(self.kind, self.size)[: self.size]
        counts = np.zeros(self.size + 1)
        np.add.at(counts, taken, self.left[: self.size])
        # B = 1 greedy: the batch that an idle server starts is a full one; `whole` adds it.
        return [(float(counts[b]), float(self.times[b])) for b in range(self.size) if counts[b] > 1e-17]

    @property
    def alone(self) -> float:
        """Services that a single request finds an idle server for, where B = 1, for each service."""
        return float(self.left[0]) if self.kind == "greedy" and self.size == 1 else 0.0

    def tail(self, t: float) -> float:
        if t < 0:
            return 1.0
        full, size = float(self.times[-1]), self.size
        if math.isinf(t / full):
            return 0.0
        batches = math.floor(t / full)
        if batches > self.settled:
            return self.tail(t - full * (batches - self.settled)) * self.fall ** (batches - self.settled)
        rest, levels = t - batches * full, (batches + 1) * size
        n = np.arange(levels)
        done = np.ones(levels)
        if self.kind == "full":
            done = poisson_more(self.rate * t, size - 2 - n % size)
        whole, late = self.met(rest, levels)
        edge = batches * size
        within = float(whole[:edge] @ done[:edge] + late[edge:] @ done[edge:])
        if self.kind == "greedy":
            within += float(self.left[0]) / self.rate
        if self.kind == "full":  # those who come while the server waits for a full batch
            j = np.arange(size)
            within += float(np.cumsum(self.left[:size]) @ poisson_more(self.rate * t, size - 2 - j)) / self.rate
        return min(1.0, max(0.0, 1 - within / self.cycle))

    @property
    def settled(self) -> int:
        """Full batches after which the tail falls by the same factor with each more, to double precision."""
        return 16 + 64 // self.size

    @property
    def fall(self) -> float:
        """That factor: P(X > n + B)/P(X > n) for large n."""
        return self.ratio**self.size

    def met(self, rest: float, levels: int) -> tuple[Array, Array]:
        """Seconds a cycle in which n wait beside a service, n = 0 … levels - 1: all of it, and its last `rest` s."""
        whole, late = self._found(self.starts(levels), float(self.times[-1]), rest, levels)
        if self.alone:
            more = self._found(np.array([self.alone]), float(self.times[-1]), rest, levels)
            whole, late = whole + more[0], late + more[1]
        for chance, length in self.short:
            more = self._found(np.array([chance]), length, rest, levels)
            whole, late = whole + more[0], late + more[1]
        return whole, late

    def _found(self, starts: Array, length: float, rest: float, levels: int) -> tuple[Array, Array]:
        """The same for the services of one length, which `starts` say how often leave n behind as they start."""
        n = np.arange(levels)
        ends = poisson_more(self.rate * length, n) / self.rate
        before = poisson_more(self.rate * max(0.0, length - rest), n) / self.rate
        if starts.size == 1:
            return starts[0] * ends, starts[0] * (ends - before)
        made = [_convolve(part, starts)[:levels] for part in (ends, ends - before)]
        return made[0], made[1]

    def isf(self, share: float, within: float = 1e-14) -> float:
        return invert(self.tail, share, float(self.times[-1]), within)


@dataclass(frozen=True, eq=False)
class BulkSojourn(Wait):
    """The time in system where a larger batch takes longer: the wait, and a service that later arrivals lengthen too.

    With the wait w known, the own batch counts who is ahead in it, the request itself, and a Poisson number of mean
    rate x w, up to B. The instant u is integrated over by Gauss's rule, piece by piece between the jumps.
    """

    of: BulkWait

    def tail(self, t: float) -> float:
        law = self.of
        if t < law.times[1]:
            return 1.0
        if math.isinf(t / float(law.times[-1])):
            return 0.0
        batches = math.floor(t / float(law.times[-1])) - law.settled
        if batches > 0:
            return self.tail(t - batches * float(law.times[-1])) * law.fall**batches
        within = float(law.left[0]) / law.rate if law.kind == "greedy" else 0.0  # served at once, in times[1] <= t
        short = [(chance, length) for chance, length in law.short if chance * length > 1e-13 * law.cycle]
        batches = math.floor(t / float(law.times[-1]))
        sure = max(0, batches - 1)  # with fewer full batches to go first, any batch is done in time
        if sure:
            within += float(law.met(0.0, sure * law.size)[0].sum())
        for ahead in range(sure, batches + 1):
            within += self._within(t, ahead, short)
        return min(1.0, max(0.0, 1 - within / law.cycle))

    def _within(self, t: float, ahead: int, short: list[tuple[float, float]]) -> float:
        """Seconds a cycle in which one may come, find `ahead` full batches to go first, and be done t seconds later."""
        law = self.of
        size, rate, full = law.size, law.rate, float(law.times[-1])
        # After the rest of the service, v, and the batches ahead, a batch of s is done in time if v <= spare[s - 1].
        spare = t - ahead * full - law.times[1:]
        end = min(full, float(spare[0]))
        if end <= 0:
            return 0.0
        cuts = np.concatenate([[0.0, end], spare, [length for _, length in short]])
        cuts = np.unique(cuts[(cuts >= 0) & (cuts <= end)])
        steps = np.maximum(1, np.ceil(np.diff(cuts) * rate)).astype(int)
        cuts = np.append(
            np.concatenate([np.linspace(a, b, k, endpoint=False) for a, b, k in zip(cuts, cuts[1:], steps)]), end
        )
        nodes, weights = np.polynomial.legendre.leggauss(5)
        half, middle = np.diff(cuts) / 2, (cuts[1:] + cuts[:-1]) / 2
        left = (middle[:, None] + half[:, None] * nodes).ravel()
        weight = (half[:, None] * weights).ravel()
        allowed = np.searchsorted(-spare, -left, side="right")[:, None]  # the largest batch that is done in time

        # Who waits at those instants: n, of whom ahead x size go first, for each n that happens at all.
        most = rate * full + 12 * math.sqrt(rate * full) + 30
        starts = law.starts((ahead + 1) * size)
        busy = float(starts.sum()) * full > 1e-15 * law.cycle
        n = np.arange(ahead * size, (ahead + 1) * size)
        if not busy:
            n = n[n <= most]
            if not n.size:
                return 0.0
        found = np.zeros((left.size, n.size))
        for chance, length in [*short, (law.alone, full)]:
            rows = np.flatnonzero(left < length) if chance and n[0] <= most else np.zeros(0, dtype=int)
            columns = n <= most
            if rows.size:
                found[np.ix_(rows, columns)] += chance * _poisson(rate * (length - left[rows]), n[columns])
        if busy:
            grown = _poisson(rate * (full - left), np.arange(n[-1] + 1))
            found += _convolve(grown, starts[: n[-1] + 1])[:, n]
        room = allowed - 1 - (n - ahead * size)  # how many may still come and ride along
        more = poisson_more(rate * (left + ahead * full)[:, None], room)
        meets = np.where(allowed == size, 1.0, np.where(room < 0, 0.0, 1 - more))
        return float(weight @ (found * meets).sum(axis=1))

    def isf(self, share: float) -> float:
        from scipy.optimize import brentq

        # The service takes between times[1] and times[B]; a wait that is near enough gives the bracket.
        wait = self.of.isf(share, 1e-3)
        low, high = 0.999 * wait + float(self.of.times[1]), 1.002 * wait + float(self.of.times[-1])
        if self.tail(low) <= share:
            return float(self.of.times[1])  # alone, and at once

        def distance(t: float) -> float:
            return math.log(max(self.tail(t), 1e-300) / share)

        return float(brentq(distance, low, high, xtol=1e-9 * high, rtol=1e-12))


def _convolve(rows: Array, by: Array) -> Array:
    """Each row's sum with an independent number of law `by`, to the row's own length."""
    size = rows.shape[-1]
    spectrum = np.fft.rfft(rows, 2 * size) * np.fft.rfft(by, 2 * size)
    return np.asarray(np.fft.irfft(spectrum, 2 * size)[..., :size])


def _poisson(means: Array, k: NDArray[np.int64]) -> Array:
    """Row i: P(N = k) at each k, for a Poisson number of mean `means[i]`."""
    from scipy.special import gammaln

    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(k == 0, 0.0, k * np.log(means)[:, None])
    return np.asarray(np.exp(logs - means[:, None] - gammaln(k + 1)))
