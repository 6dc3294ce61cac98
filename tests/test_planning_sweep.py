"""Sweeps: the same rows on this thread, on processes and on a Dask cluster, in the order of the points."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from underload.metrics import Slo
from underload.planning import System, capacity, sweep, workers
from underload.request import UnderloadError
from underload.simulation import EngineReplica, LinearStepTime
from underload.workload import FixedTokens, GeometricTokens, Lengths, Poisson, Workload

distributed = pytest.importorskip("distributed", reason="Dask distributed is not installed (extra `cluster`)")


def product(a: int, b: int) -> int:
    return a * b


def several(a: int) -> dict[str, int]:
    return {"square": a * a, "process": os.getpid()}


def failing(a: int) -> int:
    if a == 2:
        raise UnderloadError("two is too many; take one")
    return 1 // (3 - a)


@pytest.fixture(scope="module")
def cluster():
    """Two workers in processes of their own, which import this file by its place among the modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[1])  # `pytest` without `python -m` leaves it out
        made = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1")
        yield made
        made.close()


def test_all_combinations_in_order_the_last_name_fastest():
    rows = sweep(product, {"a": [1, 2], "b": range(10, 13)})
    assert [(row["a"], row["b"], row["result"]) for row in rows] == [
        (a, b, a * b) for a in (1, 2) for b in (10, 11, 12)
    ]
    assert sweep(product, [{"a": 5, "b": 6}, {"b": 2, "a": 2}]) == [
        {"a": 5, "b": 6, "result": 30},
        {"a": 2, "b": 2, "result": 4},
    ]


def test_a_mapping_is_merged_into_the_row_and_processes_do_the_work():
    rows = sweep(several, {"a": range(6)}, processes=2)
    assert [row["square"] for row in rows] == [0, 1, 4, 9, 16, 25]
    assert os.getpid() not in {row["process"] for row in rows}
    assert {row["process"] for row in sweep(several, {"a": [1]})} == {os.getpid()}


def test_a_lambda_is_fine_here_and_named_elsewhere():
    assert sweep(lambda a: a + 1, {"a": [1]}) == [{"a": 1, "result": 2}]
    with pytest.raises(UnderloadError, match="cannot be sent to another process"):
        sweep(lambda a: a + 1, {"a": [1]}, processes=2)


def test_a_failure_says_at_which_point():
    with pytest.raises(UnderloadError, match=r"at a = 2: two is too many; take one"):
        sweep(failing, {"a": [1, 2]})
    with pytest.raises(ZeroDivisionError) as told:
        sweep(failing, {"a": [3]})
    assert "at a = 3" in told.value.__notes__


def killing(a: int) -> None:
    os._exit(a)


def test_a_process_that_is_killed_is_told_of():
    with pytest.raises(UnderloadError, match="one of 2 processes ended before its work was done"):
        sweep(killing, {"a": [1, 2]}, processes=2)


@pytest.mark.parametrize("grid", [{}, [], {"a": []}, {"a": 3}, 7, [1], {1: [2]}])
def test_no_grid_is_named(grid):
    if grid == {}:  # the one point of nothing
        assert sweep(lambda: 1, {}) == [{"result": 1}]
        return
    with pytest.raises(UnderloadError, match="a grid"):
        sweep(product, grid)


def test_a_name_that_is_both_is_named():
    with pytest.raises(UnderloadError, match="'square' is a name of the grid and of what"):
        sweep(lambda square: {"square": 1}, {"square": [1]})


@pytest.mark.slow
def test_a_dask_cluster_gives_the_same_rows(cluster):
    address = cluster.scheduler_address
    rows = sweep(several, {"a": range(5)}, scheduler=address)
    assert [row["square"] for row in rows] == [0, 1, 4, 9, 16]
    assert os.getpid() not in {row["process"] for row in rows}
    with pytest.raises(UnderloadError, match=r"at a = 2: two is too many"):
        sweep(failing, {"a": [1, 2]}, scheduler=address)


@pytest.mark.slow
def test_a_capacity_is_the_same_on_a_cluster(cluster):
    load = Workload(Poisson(2.0), Lengths(FixedTokens(40), GeometricTokens(10)))
    system = System(EngineReplica(LinearStepTime(0.01, 0.0005)))
    how = {"requests": 80, "runs": 3, "attainment": 0.9}
    assert capacity(load, Slo(ttft=0.2), system, scheduler=cluster.scheduler_address, **how) == capacity(
        load, Slo(ttft=0.2), system, **how
    )


@pytest.mark.slow
def test_a_scheduler_without_workers_is_named(monkeypatch):
    monkeypatch.setattr(sys.modules["underload.planning.sweep"], "CONNECT_SECONDS", 2.0)
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=None, host="127.0.0.1") as empty,
        pytest.raises(UnderloadError, match=r"has no worker after 2 s; start one \(dask worker"),
    ):
        sweep(several, {"a": [1]}, scheduler=empty.scheduler_address)


def test_both_ways_nobody_there_and_no_address_are_named():
    with pytest.raises(UnderloadError, match="not both"), workers(2, "tcp://127.0.0.1:1"):
        pass
    with pytest.raises(UnderloadError, match="named by its address"), workers(1, 8786):
        pass
    with pytest.raises(UnderloadError, match="processes must be"), workers(0):
        pass


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setattr(sys.modules["underload.planning.sweep"], "CONNECT_SECONDS", 0.5)
    with (
        pytest.raises(UnderloadError, match=r"no Dask scheduler answers at 'tcp://127\.0\.0\.1:1'"),
        workers(scheduler="tcp://127.0.0.1:1"),
    ):
        pass
    with pytest.raises(UnderloadError, match="no Dask scheduler answers"), workers(scheduler="nonsense"):
        pass


def test_without_dask_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UnderloadError, match=r"pip install 'underload\[cluster\]'"), workers(scheduler="tcp://x:1"):
        pass
