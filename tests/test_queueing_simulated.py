"""The formulas against two independent ways to the same numbers: short simulations, and truncated chains solved whole.

Each simulation is a few lines of its own that knows none of the formulas; an interval comes from batch means, since
neighbours in a queue depend on each other. Seeds are fixed: a test that passes passes always.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest

from underload import queueing as q
from underload.queueing.bulk import KINDS

Array = np.ndarray
CUSTOMERS = 400_000


def lindley(gaps: Array, services: Array) -> Array:
    """Waits in one FCFS queue: W' = max(W + S - A, 0), through the running minimum of the random walk."""
    walk = np.concatenate([[0.0], np.cumsum(services[:-1] - gaps[1:])])
    return walk - np.minimum.accumulate(walk)


def many_servers(gaps: Array, services: Array, servers: int) -> Array:
    """Waits in a FCFS queue with many servers: the next goes to the one that is free first."""
    free, now, waits = np.zeros(servers), 0.0, np.empty(gaps.size)
    for i, (gap, service) in enumerate(zip(gaps.tolist(), services.tolist())):
        now += gap
        first = int(free.argmin())
        start = max(now, free[first])
        waits[i] = start - now
        free[first] = start + service
    return waits


def batched(arrivals: list[float], size: int, time: Callable[[int], float], kind: str) -> tuple[Array, Array]:
    """Waits and times in system at a server that takes batches."""
    waits, sojourns, now, i = [], [], 0.0, 0
    while i + size <= len(arrivals):
        j = i
        if kind == "full":
            now, j = max(now, arrivals[i + size - 1]), i + size
        else:
            if kind == "greedy":
                now = max(now, arrivals[i])
            while j < i + size and arrivals[j] <= now:
                j += 1
        done = now + time(j - i)
        waits += [now - a for a in arrivals[i:j]]
        sojourns += [done - a for a in arrivals[i:j]]
        now, i = done, j
    return np.array(waits), np.array(sojourns)


def agrees(samples: Array, expected: float, percentile: float | None = None) -> None:
    """The expected mean (or percentile) lies within 3.5 standard errors of batch means, after a warm-up cut."""
    kept = samples[samples.size // 20 :]
    parts = np.array_split(kept, 20)
    found = [float(part.mean() if percentile is None else np.percentile(part, percentile)) for part in parts]
    error = float(np.std(found, ddof=1)) / math.sqrt(len(found))
    # A percentile of a part is biased by about its own variance; a fiftieth of the value covers it.
    # An event so rare (or so common) that no part differs is within a few of its kind.
    slack = 4 / kept.size if percentile is None else 0.02 * expected
    assert abs(float(np.mean(found)) - expected) <= 3.5 * error + slack, (np.mean(found), expected, error)


def draw(law: q.Service, rng: np.random.Generator, size: int = CUSTOMERS) -> Array:
    return np.asarray(law.isf(rng.random(size)), dtype=float)


@pytest.mark.parametrize(
    "law",
    [
        q.Exponential(1.0),
        q.Deterministic(1.0),
        q.Erlang(1.0, 3),
        q.Hyperexponential.of(1.0, 4.0),
        q.Lognormal(1.0, 2.0),
        q.BoundedPareto(0.2, 20.0, 1.2),
        q.Empirical([0.2, 0.5, 0.5, 3.0]),
    ],
    ids=lambda law: type(law).__name__,
)
def test_one_server_with_poisson_arrivals(law):
    rng = np.random.default_rng(7)
    rate = 0.7 / law.mean
    services = draw(law, rng)
    waits = lindley(rng.exponential(1 / rate, CUSTOMERS), services)
    found = q.mg1(rate, law)
    agrees(waits, found.mean_wait)
    agrees(waits > 1e-12, found.prob_wait)
    agrees(waits, found.wait_quantile(99), 99)
    agrees(waits + services, found.sojourn_quantile(99), 99)
    agrees(waits > found.mean_wait, found.wait_tail(found.mean_wait))
    agrees(waits + services > 2 * law.mean, found.sojourn_tail(2 * law.mean))


@pytest.mark.parametrize("gaps", [q.Deterministic(1.25), q.Erlang(1.25, 2), q.Hyperexponential.of(1.25, 4.0)])
def test_one_exponential_server_with_other_arrivals(gaps):
    rng = np.random.default_rng(8)
    services = rng.exponential(1.0, CUSTOMERS)
    waits = lindley(draw(gaps, rng), services)
    found = q.gm1(gaps, 1.0)
    agrees(waits, found.mean_wait)
    agrees(waits > 0, found.prob_wait)
    agrees(waits + services, found.sojourn_quantile(99), 99)
    both = q.gg1(0.8, mean_service=1.0, arrival_scv=gaps.scv, service_scv=1)
    assert waits.mean() < both.bound.mean_wait


def test_many_servers():
    rng = np.random.default_rng(9)
    found = q.mmc(3.4, 1.0, servers=4)
    services = rng.exponential(1.0, 150_000)
    waits = many_servers(rng.exponential(1 / 3.4, services.size), services, 4)
    agrees(waits, found.mean_wait)
    agrees(waits > 0, found.prob_wait)
    agrees(waits, found.wait_quantile(99), 99)
    agrees(waits + services, found.sojourn_quantile(99), 99)


def test_a_finite_buffer():
    rng = np.random.default_rng(10)
    found = q.mm1k(1.3, 1.0, buffer=4)
    now, ends, sojourns, lost = 0.0, [], [], []
    for gap, service in zip(rng.exponential(1 / 1.3, 150_000).tolist(), rng.exponential(1.0, 150_000).tolist()):
        now += gap
        while ends and ends[0] <= now:
            ends.pop(0)
        lost.append(len(ends) == 5)
        if not lost[-1]:
            ends.append((ends[-1] if ends else now) + service)
            sojourns.append(ends[-1] - now)
    agrees(np.array(lost), found.prob_lost)
    agrees(np.array(sojourns), found.mean_sojourn)
    agrees(np.array(sojourns), found.sojourn_quantile(99), 99)


def test_processor_sharing_does_not_mind_the_service_law():
    rng = np.random.default_rng(11)
    found = q.mg1_ps(0.6, mean_service=1.0)
    for law in (q.Exponential(1.0), q.Hyperexponential.of(1.0, 5.0)):
        works, gaps = draw(law, rng, 60_000).tolist(), rng.exponential(1 / 0.6, 60_000).tolist()
        # In attained service per head ("virtual time") everybody leaves at arrival + own work.
        import heapq

        clock = virtual = 0.0
        inside: list[tuple[float, float]] = []
        sojourns = []
        for gap, work in zip(gaps, works):
            arrives = clock + gap
            while inside and clock + (inside[0][0] - virtual) * len(inside) <= arrives:
                clock += (inside[0][0] - virtual) * len(inside)
                virtual, began = inside[0][0], heapq.heappop(inside)[1]
                sojourns.append(clock - began)
            virtual += (arrives - clock) / len(inside) if inside else 0.0
            clock = arrives
            heapq.heappush(inside, (virtual + work, clock))
        agrees(np.array(sojourns), found.mean_sojourn)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rate", "size", "overhead", "per_item"), [(400, 32, 0.02, 0.001), (80, 4, 0.02, 0.004), (30, 1, 0.02, 0.004)]
)
def test_a_server_that_takes_batches(kind, rate, size, overhead, per_item):
    rng = np.random.default_rng(12)
    arrivals = np.cumsum(rng.exponential(1 / rate, 150_000)).tolist()
    waits, sojourns = batched(arrivals, size, lambda b: overhead + b * per_item, kind)
    found = q.bulk_service(rate, batch_size=size, overhead=overhead, per_item=per_item, kind=kind)
    agrees(waits, found.mean_wait)
    agrees(sojourns, found.mean_sojourn)
    agrees(waits > 1e-12, found.prob_wait)
    for percentile in (25, 50, 99):
        agrees(waits, found.wait_quantile(percentile), percentile)
        agrees(sojourns, found.sojourn_quantile(percentile), percentile)
    if kind == "full" and size > 1:  # the fill alone is a lower limit, and the queue for the server comes on top
        assert found.mean_wait > q.batch_fill(rate, batch_size=size).mean_wait


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_takes_batches_for_exponential_times(kind):
    rng = np.random.default_rng(13)
    arrivals = np.cumsum(rng.exponential(1 / 2.0, 200_000)).tolist()
    waits, sojourns = batched(arrivals, 4, lambda b: rng.exponential(0.6 + 0.2 * b), kind)
    found = q.bulk_service(2.0, batch_size=4, overhead=0.6, per_item=0.2, kind=kind, service="exponential")
    agrees(waits, found.mean_wait)
    agrees(sojourns, found.mean_sojourn)
    agrees(waits > 1e-12, found.prob_wait)


def test_size_or_timeout():
    rng = np.random.default_rng(14)
    for rate, size, timeout in ((200, 32, 0.1), (200, 8, 0.1), (50, 8, 0.05)):
        found = q.size_or_timeout(rate, batch_size=size, timeout=timeout)
        arrivals = np.cumsum(rng.exponential(1 / rate, 200_000)).tolist()
        waits, firsts, full, i = [], [], [], 0
        while i + size < len(arrivals):
            leaves = min(arrivals[i] + timeout, arrivals[i + size - 1])
            j = i
            while j < i + size and arrivals[j] <= leaves:
                j += 1
            waits += [leaves - a for a in arrivals[i:j]]
            firsts.append(leaves - arrivals[i])
            full.append(j - i == size)
            i = j
        agrees(np.array(waits), found.mean_wait)
        agrees(np.array(firsts), found.mean_first_wait)
        agrees(np.array(full), found.prob_full)
        for t in (0.01, 0.04):
            agrees(np.array(waits) > t, found.wait_tail(t))
            agrees(np.array(firsts) > t, found.first_wait.tail(t))


def test_fan_out_and_hedging():
    rng = np.random.default_rng(15)
    law = q.Lognormal(1.0, 2.0)
    times = draw(law, rng, 200_000)
    slowest = q.max_of_n(law, n=8)
    agrees(times.reshape(-1, 8).max(axis=1), slowest.mean)
    agrees((times.reshape(-1, 8).max(axis=1) - slowest.mean) ** 2, slowest.variance)
    hedge = q.hedged(law, percentile=90, backup=q.Exponential(0.5))
    backup = rng.exponential(0.5, times.size)
    answers = np.where(times > hedge.delay, np.minimum(times, hedge.delay + backup), times)
    agrees(answers, hedge.mean)
    agrees(times > hedge.delay, hedge.extra_load)
    agrees(answers, hedge.quantile(99), 99)


# ---- brute force -----------------------------------------------------------------------------------------------


def stationary(step: Array) -> Array:
    """pi with pi P = pi, of a truncated chain whose rows are made to add up to 1 in the last state."""
    step = step.copy()
    step[:, -1] += 1 - step.sum(axis=1)
    system = np.vstack([(step.T - np.eye(len(step)))[:-1], np.ones(len(step))])
    return np.linalg.solve(system, np.append(np.zeros(len(step) - 1), 1.0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("service", ["constant", "exponential"])
def test_the_number_left_at_the_end_of_a_service_against_linear_algebra(kind, service):
    rate, size, overhead, per_item, states = 2.4, 5, 0.9, 0.15, 300
    step = np.zeros((states, states))
    for x in range(states):
        taken = {"greedy": max(1, min(x, size)), "full": size, "bailey": min(x, size)}[kind]
        mean = rate * (overhead + per_item * taken)
        k = np.arange(states)
        logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, states)))])
        law = (
            np.exp(k * math.log(mean) - mean - logs) if service == "constant" else (mean / (1 + mean)) ** k / (1 + mean)
        )
        left = max(0, x - size)
        step[x, left:] = law[: states - left]
    pi = stationary(step)
    found = q.bulk_service(rate, batch_size=size, overhead=overhead, per_item=per_item, kind=kind, service=service)
    assert found.mean_left == pytest.approx(float(np.arange(states) @ pi), rel=1e-9)


def test_exponential_batches_against_the_rates_of_the_whole_chain():
    """Greedy, with a mean that depends on the batch: states (in service, waiting), all balance equations at once."""
    rate, size, room = 1.7, 3, 160
    mean = [0.0, 0.9, 1.1, 1.3]
    index = {(0, 0): 0} | {(b, n): 1 + (b - 1) * room + n for b in range(1, size + 1) for n in range(room)}
    flow = np.zeros((len(index), len(index)))
    for (b, n), here in index.items():
        if b == 0:
            flow[here, index[1, 0]] += rate
            continue
        if n + 1 < room:
            flow[here, index[b, n + 1]] += rate
        taken = min(n, size)
        flow[here, index[(taken, n - taken) if taken else (0, 0)]] += 1 / mean[b]
    flow -= np.diag(flow.sum(axis=1))
    system = np.vstack([flow.T[:-1], np.ones(len(index))])
    pi = np.linalg.solve(system, np.append(np.zeros(len(index) - 1), 1.0))
    found = q.bulk_service(rate, batch_size=size, overhead=0.7, per_item=0.2, service="exponential")
    waiting = sum(n * pi[here] for (b, n), here in index.items() if b)
    assert found.mean_queue == pytest.approx(waiting, rel=1e-8)
    assert 1 - found.utilisation == pytest.approx(pi[0], rel=1e-8)
    inside = waiting + sum(b * pi[here] for (b, n), here in index.items())
    assert found.mean_system == pytest.approx(inside, rel=1e-8)


def test_erlang_c_and_the_finite_buffer_against_birth_and_death():
    def birth_and_death(births: list[float], deaths: list[float]) -> Array:
        weights = np.concatenate([[1.0], np.cumprod(np.array(births) / np.array(deaths))])
        return weights / weights.sum()

    servers, rate = 6, 5.1
    pi = birth_and_death([rate] * 900, [float(min(n, servers)) for n in range(1, 901)])
    found = q.mmc(rate, 1.0, servers=servers)
    assert found.prob_wait == pytest.approx(float(pi[servers:].sum()), rel=1e-10)
    assert found.mean_system == pytest.approx(float(np.arange(901) @ pi), rel=1e-10)
    pi = birth_and_death([1.4] * 7, [1.0] * 7)
    lossy = q.mm1k(1.4, 1.0, buffer=6)
    assert lossy.prob_lost == pytest.approx(float(pi[-1]), rel=1e-12)
    assert lossy.mean_system == pytest.approx(float(np.arange(8) @ pi), rel=1e-12)
    assert q.erlang_b(rate, servers=servers) == pytest.approx(
        float(birth_and_death([rate] * servers, [float(n) for n in range(1, servers + 1)])[-1]), rel=1e-12
    )
