"""One server and a service law that is not exponential: M/D/1, M/G/1, processor sharing, G/M/1, G/G/1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from underload.queueing import arguments
from underload.queueing.deterministic import DeterministicWait
from underload.queueing.ladder import LadderWait
from underload.queueing.measures import Measures, steady, unstable
from underload.queueing.service import Deterministic, Exponential, Service, law_of
from underload.queueing.waits import ExponentialWait, Shifted, Wait
from underload.request.errors import UnderloadError


def md1(arrival_rate: float, *, mean_service: float) -> Measures:
    """M/D/1: Poisson arrivals, every service takes exactly `mean_service` seconds, one server, FCFS.

    With rho = arrival_rate x mean_service < 1:
        mean wait      rho mean_service / (2 (1 - rho)), half of M/M/1's
        wait           exact at every load (module `deterministic`); the time in system is the wait plus the service
    At rho >= 1 these are infinite. Rates in 1/s, times in s.

    Source: Gross et al., "Fundamentals of Queueing Theory" (4th ed., 2008), section 5.1; Franx, Operations Research
    Letters 29(5), 2001, for the law of the wait.

    Raises:
        UnderloadError: a negative arrival rate, a mean service not above 0, or what is no number.
    """
    arrival_rate = arguments.at_least_zero("arrival_rate", arrival_rate, "1/s")
    mean_service = arguments.above_zero("mean_service", mean_service, "s")
    return _mg1("M/D/1", arrival_rate, mean_service, 0.0, Deterministic(mean_service))


def mg1(
    arrival_rate: float, service: Any = None, *, mean_service: float | None = None, scv: float | None = None
) -> Measures:
    """M/G/1: Poisson arrivals, any service law, one server, FCFS (Pollaczek and Khinchine).

    Give the service as a law (`Lognormal(0.02, scv=4)`, `Empirical(measured)`, a frozen scipy.stats distribution) or by
    `mean_service` in s and `scv`, its squared coefficient of variation. With rho = arrival_rate x mean < 1:

        mean wait      rho mean (1 + scv) / (2 (1 - rho)); infinite where the variance is
        wait           from a law only: exact for constant and exponential service, else numerical, to a relative error
                       of 1e-4 in P(W > t) or an error (module `ladder`; 1e-6 and better for smooth laws)

    At rho >= 1 these are infinite. Rates in 1/s, times in s.

    Source: Gross et al., "Fundamentals of Queueing Theory" (4th ed., 2008), section 5.1; Asmussen, "Applied Probability
    and Queues" (2nd ed., 2003), section VIII.5, for the law of the wait.

    Raises:
        UnderloadError: both or neither way of giving the service, a negative arrival rate or scv, a mean service not
            above 0, or what is no number.
    """
    arrival_rate = arguments.at_least_zero("arrival_rate", arrival_rate, "1/s")
    if (service is None) == (mean_service is None and scv is None) or (mean_service is None) != (scv is None):
        raise UnderloadError(
            "mg1 needs the service either as a law, as in mg1(8, Lognormal(0.1, scv=4)), or by both numbers, as in "
            "mg1(8, mean_service=0.1, scv=4)"
        )
    if service is not None:
        law = law_of(service)
        return _mg1("M/G/1", arrival_rate, law.mean, law.scv, law)
    mean = arguments.above_zero("mean_service", mean_service, "s")
    spread = arguments.at_least_zero("scv", scv, "")
    # No variance leaves one law only; any other scv fits many.
    return _mg1("M/G/1", arrival_rate, mean, spread, None if spread else Deterministic(mean))


def _mg1(name: str, arrival_rate: float, mean: float, scv: float, law: Service | None) -> Measures:
    load = arrival_rate * mean
    if load >= 1:
        return unstable(name, arrival_rate, mean)
    wait: Wait | None
    sojourn: Wait | None
    if isinstance(law, Exponential):
        drain = 1 / mean - arrival_rate
        wait, sojourn = ExponentialWait(load, drain), ExponentialWait(1.0, drain)
    elif law is None:
        wait = sojourn = None
    elif load == 0:
        wait, sojourn = ExponentialWait(0.0, 1.0), ServiceAlone(law)
    elif isinstance(law, Deterministic):
        wait = DeterministicWait(load, mean)
        sojourn = Shifted(wait, mean)
    else:
        wait, sojourn = LadderWait(load, law), LadderWait(load, law, served=True)
    return steady(
        name,
        arrival_rate,
        mean,
        prob_wait=load,
        mean_wait=load * mean * (1 + scv) / 2 / (1 - load) if load else 0.0,
        wait=wait,
        sojourn=sojourn,
        unknown="a percentile needs the whole service law: pass one, as in mg1(rate, Lognormal(0.1, scv=4))",
    )


@dataclass(frozen=True)
class ServiceAlone(Wait):
    """The time in system of a request that meets nobody."""

    law: Service

    def tail(self, t: float) -> float:
        return float(self.law.tail(t)) if t >= 0 else 1.0

    def isf(self, share: float) -> float:
        return float(self.law.isf(share))


def mg1_ps(arrival_rate: float, *, mean_service: float) -> Measures:
    """M/G/1-PS: Poisson arrivals, one server that all requests inside share evenly (a first picture of a GPU).

    With rho = arrival_rate x mean_service < 1:
        mean time in system    mean_service / (1 - rho), whatever the service law
        of a request of x s    x / (1 - rho): `slowdown` is 1 / (1 - rho) for short and long alike

    `mean_service` is the time alone. Nobody queues, so here `mean_wait` is what sharing costs, time in system minus
    time alone; `prob_wait` is rho, the probability of meeting company. At rho >= 1 the times are infinite. Rates in
    1/s, times in s.

    Source: Kleinrock, "Queueing Systems" vol. 2 (1976), section 4.4; Sakata, Noguchi and Oizumi, Operations Research
    19(2), 1971.

    Raises:
        UnderloadError: a negative arrival rate, a mean service not above 0, or what is no number.
    """
    arrival_rate = arguments.at_least_zero("arrival_rate", arrival_rate, "1/s")
    mean_service = arguments.above_zero("mean_service", mean_service, "s")
    load = arrival_rate * mean_service
    if load >= 1:
        return unstable("M/G/1-PS", arrival_rate, mean_service)
    return steady(
        "M/G/1-PS",
        arrival_rate,
        mean_service,
        prob_wait=load,
        mean_wait=mean_service * load / (1 - load),
        unknown="the mean alone does not depend on the service law; simulate processor sharing for a percentile",
    )


def gm1(arrivals: Any, service_rate: float) -> Measures:
    """G/M/1: independent gaps of any law between arrivals, exponential service, one server, FCFS; exact.

    `arrivals` is the law of the gap in s, as `Deterministic(0.1)` for ten evenly spaced requests a second or
    `Erlang(0.1, phases=2)` for every second one of a Poisson stream. With sigma the root in (0, 1) of
    sigma = A(service_rate (1 - sigma)), A the gap's Laplace–Stieltjes transform:

        mean wait      sigma / (service_rate (1 - sigma));   P(has to wait) = sigma, which is not rho
        wait           P(W > t) = sigma exp(-service_rate (1 - sigma) t)

    At rho >= 1 these are infinite. Rates in 1/s, times in s.

    Source: Gross et al., "Fundamentals of Queueing Theory" (4th ed., 2008), section 5.3.

    Raises:
        UnderloadError: what is no law, a service rate not above 0, or a load so near to 1 that rounding hides the root.
    """
    law = law_of(arrivals, "arrivals")
    service_rate = arguments.above_zero("service_rate", service_rate, "1/s")
    arrival_rate = 1 / law.mean
    if arrival_rate >= service_rate or service_rate * law.mean <= 1:
        return unstable("G/M/1", arrival_rate, 1 / service_rate)

    from scipy.optimize import brentq

    # Sought as free = 1 - sigma, which keeps its digits as the load nears 1, and divided by it, which removes the
    # trivial root at 0: (1 - A(service_rate free)) / free falls from 1/rho, through 1. In logarithms, since free may be
    # tiny: with heavy-tailed gaps it is a high power of 1 - rho.
    def surplus(log_free: float) -> float:
        free = math.exp(log_free)
        return law.lst_rest(service_rate * free) / free - 1

    low = math.log(1e-3 * (1 - arrival_rate / service_rate))
    while surplus(low) <= 0:
        low *= 2
        if low < math.log(arguments.TINIEST):
            raise UnderloadError(
                f"at load {arrival_rate / service_rate!r} rounding hides how long one waits; lower the load a little"
            )
    free = math.exp(float(brentq(surplus, low, 0.0, xtol=1e-15, rtol=1e-14))) if surplus(0.0) < 0 else 1.0
    drain = service_rate * free
    waits = 1 - free if free < 0.5 else law.lst(drain)  # the same number, by the root's own equation; more digits
    return steady(
        "G/M/1",
        arrival_rate,
        1 / service_rate,
        prob_wait=waits,
        mean_wait=waits / drain,
        wait=ExponentialWait(waits, drain),
        sojourn=ExponentialWait(1.0, drain),
    )


@dataclass(frozen=True)
class Estimates:
    """What two moments say about G/G/1: a limit that holds, and a guess that is close."""

    bound: Measures  # Kingman's: no G/G/1 with these moments waits longer on average
    approximation: Measures  # VUT: exact for M/G/1, else a guess to either side

    def __str__(self) -> str:
        return f"{self.bound}\n{self.approximation}"


def gg1(arrival_rate: float, *, mean_service: float, arrival_scv: float, service_scv: float) -> Estimates:
    """G/G/1 from two moments: Kingman's upper bound and the VUT approximation, which are not the same.

    Independent gaps with squared coefficient of variation `arrival_scv`, independent services, one server, FCFS,
    rho = arrival_rate x mean_service < 1:

        bound          mean wait <= arrival_rate (var of gap + var of service) / (2 (1 - rho))
        approximation  mean wait ~  (arrival_scv + service_scv)/2 x rho/(1 - rho) x mean_service
                                    variability           V       x utilisation U x time T

    They part most at low load (arrival variance counts rho^2 times less in VUT) and meet as rho nears 1. VUT is exact
    for M/G/1; for other arrivals it may lie on either side of the truth. Both give means only, and prob_wait is None.
    Nobody arrives at rate 0, so there both are 0. At rho >= 1 they are infinite. Rates in 1/s, times in s.

    Source: Kingman, "Some inequalities for the queue GI/G/1", Biometrika 49, 1962; Hopp and Spearman, "Factory Physics"
    (2nd ed., 2000), section 8.6.

    Raises:
        UnderloadError: a negative arrival rate or scv, a mean service not above 0, or what is no number.
    """
    arrival_rate = arguments.at_least_zero("arrival_rate", arrival_rate, "1/s")
    mean_service = arguments.above_zero("mean_service", mean_service, "s")
    arrival_scv = arguments.at_least_zero("arrival_scv", arrival_scv, "")
    service_scv = arguments.at_least_zero("service_scv", service_scv, "")
    names = ("G/G/1, Kingman's upper bound", "G/G/1, VUT approximation")
    load = arrival_rate * mean_service
    if load >= 1:
        return Estimates(*(unstable(name, arrival_rate, mean_service) for name in names))
    bound = approximation = 0.0
    if load:
        bound = (arrival_scv / arrival_rate + load * mean_service * service_scv) / 2 / (1 - load)
        approximation = (arrival_scv + service_scv) / 2 * load / (1 - load) * mean_service
    why = "two moments do not fix one: take mg1 or gm1 with a law, or simulate it"
    return Estimates(
        *(
            steady(name, arrival_rate, mean_service, prob_wait=None, mean_wait=mean_wait, unknown=why)
            for name, mean_wait in zip(names, (bound, approximation))
        )
    )
