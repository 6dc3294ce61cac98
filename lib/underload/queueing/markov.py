"""Exponential everything: Poisson arrivals, exponential service, one or many servers, a finite buffer or none."""

import math

import numpy as np

from underload.queueing import arguments
from underload.queueing.measures import Measures, steady, unstable
from underload.queueing.waits import ExponentialWait, Stages, WaitThenExponential


def mm1(arrival_rate: float, service_rate: float) -> Measures:
    """M/M/1: Poisson arrivals, exponential service, one server, first come first served.

    With load rho = arrival_rate / service_rate < 1:
        mean wait      rho / (service_rate - arrival_rate)
        wait           P(W > t) = rho exp(-(service_rate - arrival_rate) t)
        time in system exponential with mean 1 / (service_rate - arrival_rate)
    At rho >= 1 these are infinite. Rates in 1/s, times in s.

    Source: Gross, Shortle, Thompson and Harris, "Fundamentals of Queueing Theory" (4th ed., 2008), section 2.2.

    Raises:
        UnderloadError: a negative arrival rate, a service rate not above 0, or what is no number.
    """
    arrival_rate = arguments.at_least_zero("arrival_rate", arrival_rate, "1/s")
    service_rate = arguments.above_zero("service_rate", service_rate, "1/s")
    drain, load = service_rate - arrival_rate, arrival_rate / service_rate
    if drain <= 0:
        return unstable("M/M/1", arrival_rate, 1 / service_rate)
    return steady(
        "M/M/1",
        arrival_rate,
        1 / service_rate,
        prob_wait=load,
        mean_wait=load / drain,
        wait=ExponentialWait(load, drain),
        sojourn=ExponentialWait(1.0, drain),
    )


def mm1k(arrival_rate: float, service_rate: float, *, buffer: int) -> Measures:
    """M/M/1/K: an M/M/1 where at most `buffer` requests wait, so K = buffer + 1 are inside; more are turned away.

    With rho = arrival_rate / service_rate and p_n proportional to rho^n, n = 0 … K, P(lost) = p_K; waits and times in
    system are those of the requests admitted, who find n < K inside and so n exponential services ahead.
    Stable at every load. `utilisation` is 1 - p_0 and `throughput` arrival_rate (1 - p_K). Rates in 1/s, times in s.

    Source: Gross et al., "Fundamentals of Queueing Theory" (4th ed., 2008), section 2.5.

    Raises:
        UnderloadError: a negative arrival rate, a service rate not above 0, a buffer that is no whole number from 0 to
            10,000,000 (beyond that `mm1` is its limit), or what is no number.
    """
    arrival_rate = arguments.at_least_zero("arrival_rate", arrival_rate, "1/s")
    service_rate = arguments.above_zero("service_rate", service_rate, "1/s")
    most = arguments.whole("buffer", buffer, least=0, most=10_000_000) + 1
    load = arrival_rate / service_rate
    n = np.arange(most + 1)
    if load:
        logs = n * math.log(load)
        weights = np.exp(logs - logs.max())
    else:
        weights = (n == 0).astype(float)
    inside = weights / weights.sum()
    # What an admitted request finds; renormalised from the weights, since 1 - p_K cancels at high load.
    found = weights[:-1] / weights[:-1].sum()
    admitted = weights[:-1].sum() / weights.sum()
    throughput = arrival_rate * float(admitted)
    mean_found = float(n[:-1] @ found)
    at_least = found[::-1].cumsum()[::-1]  # P(N >= j), j = 0 …
    return Measures(
        name=f"M/M/1/{most}",
        arrival_rate=arrival_rate,
        mean_service=1 / service_rate,
        servers=1,
        load=load,
        utilisation=min(1.0, float(inside[1:].sum())),
        stable=True,
        prob_wait=min(1.0, float(found[1:].sum())),
        mean_wait=mean_found / service_rate,
        mean_sojourn=(mean_found + 1) / service_rate,
        mean_queue=throughput * mean_found / service_rate,
        mean_system=float(n @ inside),
        throughput=throughput,
        prob_lost=float(inside[-1]),
        wait=Stages(at_least[1:], service_rate),
        sojourn=Stages(at_least, service_rate),
    )


def mmc(arrival_rate: float, service_rate: float, *, servers: int) -> Measures:
    """M/M/c: Poisson arrivals, exponential service at `service_rate` in each of `servers`, one queue, FCFS.

    With a = arrival_rate / service_rate < servers and C = `erlang_c`(a, servers):
        mean wait      C / (servers service_rate - arrival_rate)
        wait           P(W > t) = C exp(-(servers service_rate - arrival_rate) t)
        time in system the wait and, independent of it, an exponential service
    At a >= servers these are infinite. Rates in 1/s, times in s.

    Source: Gross et al., "Fundamentals of Queueing Theory" (4th ed., 2008), section 2.3.

    Raises:
        UnderloadError: a negative arrival rate, a service rate not above 0, servers that are no whole number from 1,
            or what is no number.
    """
    arrival_rate = arguments.at_least_zero("arrival_rate", arrival_rate, "1/s")
    service_rate = arguments.above_zero("service_rate", service_rate, "1/s")
    servers = arguments.whole("servers", servers, least=1)
    name, drain = f"M/M/{servers}", servers * service_rate - arrival_rate
    if drain <= 0:
        return unstable(name, arrival_rate, 1 / service_rate, servers=servers)
    waits = _erlang_c(arrival_rate / service_rate, servers)
    return steady(
        name,
        arrival_rate,
        1 / service_rate,
        servers=servers,
        prob_wait=waits,
        mean_wait=waits / drain,
        wait=ExponentialWait(waits, drain),
        sojourn=ExponentialWait(1.0, drain) if servers == 1 else WaitThenExponential(waits, drain, service_rate),
    )


def erlang_b(offered_load: float, *, servers: int) -> float:
    """Erlang's loss probability: that all `servers` are busy when requests that find them so go away (M/G/c/c).

        1/B = sum over k = 0 … c of c! / ((c-k)! a^k),   a = `offered_load` in erlangs: arrival rate x mean service

    Exact for Poisson arrivals and any service law. The terms of the sum are built by products, in pieces, so 10,000
    servers are as safe as two; a probability below 1e-308 comes out as 0.

    Source: Erlang 1917; Jagerman, "Some properties of the Erlang loss function", Bell System Technical Journal 53(3),
    1974.

    Raises:
        UnderloadError: a negative offered load, servers that are no whole number from 1, or what is no number.
    """
    offered_load = arguments.at_least_zero("offered_load", offered_load, "erlangs")
    return _erlang_b(offered_load, arguments.whole("servers", servers, least=1))


def erlang_c(offered_load: float, *, servers: int) -> float:
    """Erlang's delay probability: that a request finds all `servers` busy and waits (M/M/c).

        C = c B / (c - a (1 - B)),   B = `erlang_b`, a = `offered_load` in erlangs;   1 at a >= c

    Source: Erlang 1917; Gross et al., "Fundamentals of Queueing Theory" (4th ed., 2008), section 2.3.

    Raises:
        UnderloadError: a negative offered load, servers that are no whole number from 1, or what is no number.
    """
    offered_load = arguments.at_least_zero("offered_load", offered_load, "erlangs")
    return _erlang_c(offered_load, arguments.whole("servers", servers, least=1))


def halfin_whitt(offered_load: float, *, servers: int) -> float:
    """The delay probability of many servers in Halfin and Whitt's limit: an approximation to `erlang_c`.

        P(wait) = 1 / (1 + beta Phi(beta) / phi(beta)),   beta = (c - a) / sqrt(c)

    phi and Phi are the density and the distribution function of the standard normal law. It explains why a spare
    capacity that grows as the square root of the servers keeps the same share waiting. 1 at a >= c.

    Source: Halfin and Whitt, "Heavy-traffic limits for queues with many exponential servers", Operations Research
    29(3), 1981, equation 1.4 and proposition 1.

    Raises:
        UnderloadError: a negative offered load, servers that are no whole number from 1, or what is no number.
    """
    offered_load = arguments.at_least_zero("offered_load", offered_load, "erlangs")
    servers = arguments.whole("servers", servers, least=1)
    beta = (servers - offered_load) / math.sqrt(servers)
    if beta <= 0:
        return 1.0
    density = math.exp(-beta * beta / 2) / math.sqrt(2 * math.pi)
    below = math.erfc(-beta / math.sqrt(2)) / 2
    return density / (density + beta * below)


def _erlang_b(load: float, servers: int) -> float:
    if not load:
        return 0.0
    total, term, done = 1.0, 1.0, 0
    with np.errstate(over="ignore"):
        while done < servers:
            factors = (servers - np.arange(done, min(done + 65_536, servers), dtype=float)) / load
            terms = term * np.cumprod(factors)
            total, term, done = total + float(terms.sum()), float(terms[-1]), done + factors.size
            # Once the factors are below 1 the terms only fall; once infinite, the sum stays so.
            if math.isinf(total) or (factors[-1] < 1 and term * (servers - done + 1) < total * 1e-18):
                break
    return 1 / total


def _erlang_c(load: float, servers: int) -> float:
    if load >= servers:
        return 1.0
    lost = _erlang_b(load, servers)
    return servers * lost / (servers - load * (1 - lost))
