"""What a pool's memory holds while requests wait: shares against what can be worked out by hand."""

from __future__ import annotations

import pytest

from underload.cache import BlockPool, ReservingPool
from underload.request import UnderloadError
from underload.simulation import LinearStepTime, Occupancy, serve_backlog

STEADY = LinearStepTime(1.0, 0.0)  # every step takes as long
PARTS = ("stored", "reserved", "internal", "external", "free")


def parts(run: Occupancy) -> list[float]:
    return [getattr(run, name) for name in PARTS]


def test_equal_requests_in_rows_hold_what_the_formula_says() -> None:
    # One row of 16 places for a prompt of 4 and an answer of 9: 4, 5, ..., 12 tokens, 8 on average; 12 in the end.
    pool = ReservingPool(4, 4)
    run = serve_backlog(pool, [(4, 9)] * 10, STEADY, max_model_len=16, reserve=lambda p, m: 16, look_every=1)
    assert run.batch == 1.0 and run.throughput == pytest.approx(1.0)
    assert parts(run) == pytest.approx([8 / 16, 4 / 16, 4 / 16, 0, 0])
    assert (run.preemptions, run.recomputed) == (0, 0)
    assert pool.num_used == 0


def test_rounding_to_a_power_of_two_is_external_and_so_is_a_gap_too_short() -> None:
    # An oracle asks for 12 places, 3 blocks; buddies give 4 of the pool's 6, and the 2 left are too few for the next.
    run = serve_backlog(
        ReservingPool(6, 4), [(4, 8)] * 8, STEADY, max_model_len=16, reserve=lambda p, m: p + m, look_every=1
    )
    stored, final = 4 + 3.5, 11
    assert parts(run) == pytest.approx([stored / 24, (final - stored) / 24, 1 / 24, (4 + 8) / 24, 0])


def test_first_fit_gives_what_was_asked_for() -> None:
    run = serve_backlog(
        ReservingPool(6, 4, placement="first-fit"),
        [(4, 8)] * 8,
        STEADY,
        max_model_len=16,
        reserve=lambda p, m: p + m,
        look_every=1,
    )
    assert run.batch == 2.0
    assert parts(run) == pytest.approx([2 * 7.5 / 24, 2 * 3.5 / 24, 2 / 24, 0, 0])


def test_blocks_hold_more_sequences_than_rows_and_waste_less_than_a_block_each() -> None:
    requests = [(3 + place % 5, 1 + place * 7 % 23) for place in range(120)]
    rows = serve_backlog(ReservingPool(16, 4), requests, STEADY, max_model_len=32, reserve=lambda p, m: 32)
    pool = BlockPool(16, 4, prefix_caching=False)
    blocks = serve_backlog(pool, requests, STEADY, max_model_len=32)
    assert rows.batch == pytest.approx(2.0)
    assert blocks.batch > 2 * rows.batch and blocks.stored > 2 * rows.stored
    assert blocks.external == 0 and blocks.reserved + blocks.internal < blocks.batch * 4 / 64
    assert blocks.preemptions > 0 and blocks.recomputed > 0
    for run in (rows, blocks):
        assert sum(parts(run)) == pytest.approx(1.0)
    assert pool.num_free == 16


def test_the_scheduler_does_not_learn_how_long_an_answer_gets() -> None:
    asked: list[tuple[int, int]] = []
    serve_backlog(
        ReservingPool(4, 4), [(4, 2)] * 6, STEADY, max_model_len=16, reserve=lambda p, m: asked.append((p, m)) or 99
    )
    assert set(asked) == {(4, 2)}  # whoever looks at the second is an oracle; more than the limit is never reserved


@pytest.mark.parametrize(
    ("requests", "says"),
    [
        ([], "0 requests"),
        ([(0, 3)], "at least 1 token"),
        ([(3, 0)], "at least 1 token"),
        ([(9, 8)], "max_model_len = 16"),
    ],
)
def test_requests_that_cannot_be_served_are_refused(requests: list[tuple[int, int]], says: str) -> None:
    with pytest.raises(UnderloadError, match=says):
        serve_backlog(BlockPool(16, 4), requests, STEADY, max_model_len=16)


def test_no_queue_no_average() -> None:
    with pytest.raises(UnderloadError, match="nobody waited any more"):
        serve_backlog(BlockPool(64, 4), [(2, 2)] * 3, STEADY, max_model_len=16)
