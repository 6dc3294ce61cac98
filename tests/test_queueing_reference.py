"""Every closed form against published or high-precision values, each to its stated tolerance.

`queueing_values.json` holds the numbers with their sources; a value whose id no function below computes fails the test.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import scipy.optimize
import scipy.stats

from underload import queueing as q
from underload.metrics import percentile_interval, samples_needed
from underload.metrics.percentiles import _binomial_cdf
from underload.queueing.bulk import _fall

VALUES = json.loads((Path(__file__).parent / "queueing_values.json").read_text(encoding="utf-8"))
STEP = {"overhead": 0.020, "per_item": 0.001}


def mm1(i: dict[str, Any]) -> q.Measures:
    return q.mm1(i["lambda"], i["mu"])


def mmc(i: dict[str, Any]) -> q.Measures:
    return q.mmc(i["lambda"], i["mu"], servers=i["c"])


def bailey(i: dict[str, Any]) -> q.BatchMeasures:
    return q.bulk_service(i["lambda"], batch_size=i["B"], overhead=i["D"], kind="bailey")


def greedy(i: dict[str, Any]) -> q.BatchMeasures:
    return q.bulk_service(i["lambda"], batch_size=i["B_max"], overhead=i["o_s"], per_item=i["t_s"])


def exponential_batch(i: dict[str, Any]) -> q.BatchMeasures:
    return q.bulk_service(
        i["lambda"], batch_size=i["B"], overhead=1 / i["mu_batch"], kind="greedy", service="exponential"
    )


def timed(i: dict[str, Any]) -> q.Gathering:
    return q.size_or_timeout(i["lambda"], batch_size=i["B"], timeout=i["timeout_s"])


def line(i: dict[str, Any]) -> q.LinearBatch:
    return q.linear_batch(overhead=i["o_s"], per_item=i["t_s"])


def kingman(i: dict[str, Any]) -> float:
    rate = i["rho"] / i["mean_service"]
    made = q.gg1(rate, mean_service=i["mean_service"], arrival_scv=i["ca2"], service_scv=i["cs2"])
    return made.bound.mean_wait


def full_queue_wait(i: dict[str, Any]) -> float:
    found = q.bulk_service(i["lambda"], batch_size=i["B"], overhead=i["o_s"], per_item=i["t_s"], kind="full")
    return found.mean_wait - (i["B"] - 1) / (2 * i["lambda"])


def largest_rate(i: dict[str, Any]) -> float:
    def over(rate: float) -> float:
        return q.mmc(rate, i["mu"], servers=i["c"]).sojourn_quantile(100 * i["p"]) - i["slo_s"]

    return float(scipy.optimize.brentq(over, 1e-3, i["c"] * i["mu"] * (1 - 1e-9), xtol=1e-12, rtol=1e-12))


def fewest_servers(i: dict[str, Any]) -> int:
    rate, servers = i["a_erlangs"] * i["mu"], math.floor(i["a_erlangs"]) + 1
    while q.mmc(rate, i["mu"], servers=servers).wait_tail(i["t"]) > i["target"]:
        servers += 1
    return servers


def best_goodput_rate(i: dict[str, Any]) -> float:
    def lost(rate: float) -> float:
        return -rate * (1 - q.mm1(rate, i["mu"]).sojourn_tail(i["deadline"]))

    return float(
        scipy.optimize.minimize_scalar(lost, bounds=(0.01, 0.99), method="bounded", options={"xatol": 1e-12}).x
    )


def best_room(i: dict[str, Any]) -> int:
    def goodput(room: int) -> float:
        found = q.mm1k(i["lambda"], i["mu"], buffer=room - 1)
        return found.throughput * (1 - found.sojourn_tail(i["deadline"]))

    return max(range(1, 30), key=goodput)


def pooling_gain(i: dict[str, Any]) -> float:
    alone = q.mm1(i["rho"] * i["mu"], i["mu"]).mean_wait
    return alone / q.mmc(i["c"] * i["rho"] * i["mu"], i["mu"], servers=i["c"]).mean_wait


def interval_ranks(i: dict[str, Any]) -> list[int]:
    found = percentile_interval(range(i["n"]), 100 * i["p"], i["conf"])
    assert found is not None
    return list(found.ranks)


def interval_coverage(i: dict[str, Any]) -> float:
    below = _binomial_cdf(i["n"], i["p"])
    return float(below[i["u"] - 1] - below[i["l"] - 1])


def supermarket(i: dict[str, Any]) -> float:
    return q.power_of_choices(i["lambda"], i["mu"], choices=i["d"]).mean_sojourn


COMPUTE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "bailey-L": lambda i: bailey(i).mean_left,
    "bailey-Wq": lambda i: bailey(i).mean_wait,
    "fill-any-p99": lambda i: q.batch_fill(i["lambda"], batch_size=i["B"]).wait_quantile(99),
    "fill-first-p99": lambda i: q.batch_fill(i["lambda"], batch_size=i["B"]).first_wait_quantile(99),
    "fill-first": lambda i: q.batch_fill(i["lambda"], batch_size=i["B"]).mean_first_wait,
    "full-qwait": full_queue_wait,
    "greedy-W": lambda i: greedy(i).mean_sojourn,
    "greedy-b": lambda i: greedy(i).mean_batch,
    "greedy-busy": lambda i: greedy(i).utilisation,
    "lam-slo-greedy": lambda i: line(i).capacity(i["slo_mean_s"], batch_size=i["B_max"]),
    "lin-knee": lambda i: line(i).batch_for_share(i["phi"]),
    "mmB-Wq": lambda i: exponential_batch(i).mean_wait,
    "mmB-idle": lambda i: 1 - exponential_batch(i).utilisation,
    "mmB-root": lambda i: math.exp(-_fall(i["lambda"] / i["mu_batch"], i["B"])),
    "optB": lambda i: line(i).best_batch(i["lambda"], kind="full")[0],
    "optW": lambda i: line(i).best_batch(i["lambda"], kind="full")[1],
    "optW-greedy": lambda i: greedy(i).mean_sojourn,
    "tmo-full": lambda i: timed(i).prob_full,
    "tmo-size": lambda i: timed(i).mean_size,
    "tmo-wait": lambda i: timed(i).mean_wait,
    "dm1-Wq": lambda i: q.gm1(q.Deterministic(1 / i["rho"] / i["mu"]), i["mu"]).mean_wait,
    "e2m1-Wq": lambda i: q.gm1(q.Erlang(1 / i["rho"] / i["mu"], i["k"]), i["mu"]).mean_wait,
    "erlB": lambda i: q.erlang_b(i["a_erlangs"], servers=i["c"]),
    "erlC": lambda i: q.erlang_c(i["a_erlangs"], servers=i["c"]),
    "hw": lambda i: q.halfin_whitt(i["a_erlangs"], servers=i["c"]),
    "kingman-ub": kingman,
    "md1-cdf": lambda i: 1 - q.md1(i["lambda"], mean_service=i["D"]).wait_tail(i["t"]),
    "md1-waitq": lambda i: q.md1(i["lambda"], mean_service=i["D"]).wait_quantile(100 * i["p"]),
    "mg1-logn": lambda i: q.mg1(i["lambda"], q.Lognormal(i["mean_service"], i["cv2"])).mean_wait,
    "mm1-L": lambda i: mm1(i).mean_system,
    "mm1-W": lambda i: mm1(i).mean_sojourn,
    "mm1-Wq": lambda i: mm1(i).mean_wait,
    "mm1-sojq": lambda i: mm1(i).sojourn_quantile(100 * i["p"]),
    "mm1-waitq": lambda i: mm1(i).wait_quantile(100 * i["p"]),
    "mm1k-W": lambda i: q.mm1k(i["lambda"], i["mu"], buffer=i["K_system"] - 1).mean_sojourn,
    "mmc-L": lambda i: mmc(i).mean_system,
    "mmc-Wq": lambda i: mmc(i).mean_wait,
    "mmc-p99soj": lambda i: mmc(i).sojourn_quantile(99),
    "pool": pooling_gain,
    "ps-W": lambda i: q.mg1_ps(i["rho"] / i["mean_service"], mean_service=i["mean_service"]).mean_sojourn,
    "goodput-lam": best_goodput_rate,
    "shed-K": best_room,
    "slo-mmc": largest_rate,
    "staff": fewest_servers,
    "jsq2": lambda i: q.shortest_queue(i["lambda"], i["mu"]).mean_sojourn,
    "pow": supermarket,
    "ci": interval_ranks,
    "ci-cov": interval_coverage,
    "nmin": lambda i: samples_needed(100 * i["p"], i["conf"], two_sided=False),
    "fj2": lambda i: q.fork_join(i["rho"] * i["mu"], i["mu"], n=2).mean_sojourn,
    "nt": lambda i: q.fork_join(i["rho"] * i["mu"], i["mu"], n=i["n"]).mean_sojourn,
    "fan": lambda i: q.prob_any(i["p_slow"], n=i["n"]),
    "hedge-exp": lambda i: q.hedged(q.Exponential(1.0), percentile=95).quantile(100 * i["p"]),
    "hedge-load": lambda i: q.hedged(q.Exponential(1.0), percentile=100 * i["quantile"]).extra_load,
    "hedge-logn": lambda i: q.hedged(scipy.stats.lognorm(1.0), percentile=95).quantile(100 * i["p"]),
    "maxexp-q": lambda i: q.max_of_n(q.Exponential(1.0), n=i["n"]).quantile(100 * i["p"]),
    "maxexp-var": lambda i: q.max_of_n(q.Exponential(1.0), n=i["n"]).variance,
    "maxlogn-p99": lambda i: q.max_of_n(scipy.stats.lognorm(i["sigma"]), n=i["n"]).quantile(99),
    "static-exp": lambda i: 1 / q.max_of_n(q.Exponential(1.0), n=i["B"]).mean,
    "static-uni": lambda i: 0.5 / q.max_of_n(scipy.stats.uniform(), n=i["B"]).mean,
}


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value["id"])
def test_a_formula_gives_the_published_value(value):
    name = max((name for name in COMPUTE if value["id"].startswith(name)), key=len)
    found = COMPUTE[name](value["inputs"])
    tolerance = {"rel": 0, "abs": 0} | value["tolerance"]
    # "hedge-load" is exact on paper; 1 - 0.95 is not, in doubles.
    if value["id"].startswith("hedge-load"):
        tolerance["abs"] = 1e-15
    assert found == pytest.approx(value["value"], **tolerance), value["source"]


def test_no_value_goes_untested_and_no_computation_unused():
    used = {max((name for name in COMPUTE if value["id"].startswith(name)), key=len) for value in VALUES}
    assert used == set(COMPUTE)


@pytest.mark.parametrize(
    ("rate", "servers", "prob_wait", "mean_wait"),
    [(1.5, 2, 0.642857, 1.285714), (2.4, 3, None, 1.078652), (450, 500, 0.0122089, 2.44178e-4)],
)
def test_trap_a47_stable_many_server_queues(rate, servers, prob_wait, mean_wait):
    found = q.mmc(rate, 1, servers=servers)
    assert found.mean_wait == pytest.approx(mean_wait, rel=2e-6)
    assert prob_wait is None or found.prob_wait == pytest.approx(prob_wait, rel=2e-6)


@pytest.mark.parametrize("servers", [3, 2])
def test_trap_a47_at_load_one_and_above_a_wait_is_infinite_and_never_negative(servers):
    found = q.mmc(3, 1, servers=servers)
    assert not found.stable and found.mean_wait == found.mean_queue == found.wait_quantile(1) == math.inf
    assert found.prob_wait == found.utilisation == 1 and found.throughput == servers
    assert found.load == pytest.approx(3 / servers)


def test_the_coverage_list_is_right():
    """Claims of the book that are arithmetic on these formulas."""
    # p99 latency is not the mean service plus the p99 of the wait: at 5 % load that is far too low.
    quiet = q.mm1(0.05, 1.0)
    assert (1 + quiet.wait_quantile(99)) / quiet.sojourn_quantile(99) == pytest.approx(1 - 0.44, abs=0.01)
    assert q.prob_any(0.01, n=100) == pytest.approx(0.63397, abs=5e-6)
    line = q.linear_batch(**STEP)
    assert line.load(600, 16) > 1 > line.load(600, 64)
    # Greedy batches beat every full batch here, and lose to no batching at all where the overhead is nothing.
    for rate in (100, 200, 400, 600):
        assert line.best_batch(rate, kind="full")[1] > line.latency(rate, batch_size=256)
    bare = q.linear_batch(overhead=0.0, per_item=1.0)
    assert bare.latency(0.9, batch_size=1) == pytest.approx(5.5)
    assert bare.latency(0.9, batch_size=256) == pytest.approx(145 / 19, rel=1e-4)
    assert bare.best_batch(0.9, largest=32)[0] == 1
