"""The pool that reserves runs, where it puts them, and what memory goes to waste in either pool."""

from __future__ import annotations

import random
from typing import Any

import pytest

from underload.cache import BlockChain, BlockPool, BlockState, Pool, ReservingPool, waste
from underload.cache.placement import PLACEMENTS, Buddies, FirstFit, Placement
from underload.request import BlockTable, OutOfBlocks, UnderloadError

# ---- gaps --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLACEMENTS)
@pytest.mark.parametrize("num_blocks", [1, 13, 64, 100])
def test_runs_never_overlap_and_gaps_join_again(name: str, num_blocks: int) -> None:
    placement: Placement = PLACEMENTS[name](num_blocks)
    whole = placement.gaps()
    rng = random.Random(num_blocks)
    runs: list[tuple[int, int]] = []
    refusals = 0
    for _ in range(4000):
        if runs and rng.random() < 0.5:
            placement.give(*runs.pop(rng.randrange(len(runs))))
        else:
            length = rng.randint(1, max(num_blocks // 4, 1))
            fits = placement.fits(length)
            long_enough = [gap for _, gap in placement.gaps() if gap >= placement.rounded(length)]
            start = placement.take(length)
            assert (start is not None) == fits == bool(long_enough)
            if start is None:
                refusals += 1
            else:
                runs.append((start, placement.rounded(length)))
        taken = sorted([*runs, *placement.gaps()])
        assert [start for start, _ in taken] == [sum(length for _, length in taken[:i]) for i in range(len(taken))]
        assert sum(length for _, length in taken) == num_blocks
        assert placement.free == sum(length for _, length in placement.gaps())
        if name == "first-fit":  # no two gaps touch
            starts = {start for start, _ in placement.gaps()}
            assert not starts & {start + length for start, length in placement.gaps()}
        else:
            assert all(length & (length - 1) == 0 and start % length == 0 for start, length in runs)
    assert refusals > 0
    while runs:
        placement.give(*runs.pop())
    assert placement.gaps() == whole


def test_buddies_round_up_to_a_power_of_two_and_first_fit_does_not() -> None:
    assert [Buddies(64).rounded(length) for length in (1, 2, 3, 5, 8, 9, 33)] == [1, 2, 4, 8, 8, 16, 64]
    assert FirstFit(64).rounded(33) == 33
    assert Buddies(12).gaps() == [(0, 8), (8, 4)] and not Buddies(12).fits(9) and Buddies(12).take(9) is None
    assert not Buddies(4).fits(100) and Buddies(4).take(100) is None


# ---- the pool ----------------------------------------------------------------------------------------------------


def places(pool: Pool) -> tuple[int, int, int]:
    return pool.num_free, pool.num_cached, pool.num_used


def test_a_run_is_contiguous_and_reserved_to_its_end() -> None:
    pool = ReservingPool(32, 4)
    table = pool.allocate(None, 6, reserve=40)
    assert table.blocks == list(range(table.blocks[0], table.blocks[0] + 2)) and table.num_hashed == 0
    assert places(pool) == (16, 0, 16)  # ten blocks, rounded up
    assert pool.can_append(table, 64) and not pool.can_append(table, 65)
    pool.append(table, 64)
    assert table.blocks == list(range(table.blocks[0], table.blocks[0] + 16))
    with pytest.raises(OutOfBlocks, match="65 tokens do not fit into the 16 blocks of 4 that were reserved"):
        pool.append(table, 65)
    assert len(table.blocks) == 16 and pool.write(table, 60, 64) == []
    pool.trim(table, 5)
    assert len(table.blocks) == 2 and places(pool) == (16, 0, 16)
    pool.free(table)
    assert table.blocks == [] and places(pool) == (32, 0, 0)
    with pytest.raises(UnderloadError, match="freed before"):
        pool.free(table)


def test_enough_free_blocks_in_gaps_too_short_are_not_enough() -> None:
    pool = ReservingPool(12, 1, placement="first-fit")
    tables = [pool.allocate(None, 3) for _ in range(4)]
    pool.free(tables[0])
    pool.free(tables[2])
    before = pool.snapshot()
    assert pool.num_free == 6 and not pool.can_allocate(None, 4) and pool.can_allocate(None, 1, reserve=3)
    with pytest.raises(OutOfBlocks, match=r"a run of 4 blocks is wanted, and the longest gap among 6 free .* has 3"):
        pool.allocate(None, 1, reserve=4)
    assert pool.snapshot() == before == [BlockState(*state) for state in 2 * ([("free",)] * 3 + [("used", 1)] * 3)]
    assert pool.usable(3) == 6 and pool.usable(4) == 0


def test_more_tokens_than_reserved_count() -> None:
    pool = ReservingPool(16, 4)
    assert len(pool.granted(pool.allocate(None, 9, reserve=1))) == 4


def test_nothing_is_found_again() -> None:
    pool = ReservingPool(16, 4)
    chain = BlockChain(list(range(9)), 4)
    table = pool.allocate(chain, 9)
    pool.announce(table, chain, 9)
    pool.publish(table, chain, 9)
    assert pool.cached_tokens(chain, 9) == 0 and table.num_hashed == 0
    pool.retract(table, 0)
    pool.free(table)
    assert places(pool) == (16, 0, 0)


def test_a_fork_owes_its_copies_once_and_they_are_still_there() -> None:
    pool = ReservingPool(16, 4)
    first = pool.allocate(None, 6, reserve=16)
    left, right = pool.fork(first), pool.fork(first)
    assert places(pool) == (4, 0, 12) and len(pool.tables) == 3
    with pytest.raises(OutOfBlocks):
        pool.allocate(None, 20)
    source = list(first.blocks)
    pool.free(first)
    assert places(pool) == (4, 0, 12)  # until both have been copied
    pool.append(left, 9)
    assert pool.write(left, 6, 9) == list(zip(source, left.blocks)) and len(left.blocks) == 3
    assert pool.write(left, 6, 9) == [] and places(pool) == (4, 0, 12)
    pool.append(right, 9)
    again = pool.fork(right)  # has nothing of its own yet: copies from where right would, and as much
    assert len(source) == 2 and len(again.blocks) == 3
    assert pool.write(right, 6, 7) == list(zip(source, right.blocks))
    assert pool.write(again, 6, 7) == list(zip(source, again.blocks))
    assert places(pool) == (4, 0, 12) and pool.counters.copies == 6
    for table in (left, right, again):
        pool.free(table)
    assert places(pool) == (16, 0, 0)


def test_a_fork_that_goes_unwritten_lets_its_source_go() -> None:
    pool = ReservingPool(16, 4)
    first = pool.allocate(None, 16)
    fork = pool.fork(first)
    pool.free(first)
    pool.free(fork)
    assert places(pool) == (16, 0, 0)
    first = pool.allocate(None, 64)
    with pytest.raises(OutOfBlocks):
        pool.fork(first)
    pool.free(first)
    assert places(pool) == (16, 0, 0)


def test_wrong_arguments_are_refused_by_name() -> None:
    with pytest.raises(UnderloadError, match=r"placement must be one of buddy, first-fit, got 'best'"):
        ReservingPool(4, 4, placement="best")
    with pytest.raises(UnderloadError, match="got 0 blocks of 4"):
        ReservingPool(0, 4)
    pool = ReservingPool(8, 4)
    table = pool.allocate(None, 4)
    other = BlockTable(4, [0])
    calls: list[Any] = [
        lambda: pool.allocate(None, 0),
        lambda: pool.cached_tokens(None, 0),
        lambda: pool.write(table, 3, 5),
        lambda: pool.can_write(table, 3, 5),
        lambda: pool.trim(table, 0),
        lambda: pool.free(other),
        lambda: pool.fork(other),
        lambda: pool.append(other, 5),
    ]
    for call in calls:
        with pytest.raises(UnderloadError):
            call()
    assert places(pool) == (7, 0, 1) and len(table.blocks) == 1


# ---- waste -------------------------------------------------------------------------------------------------------


def test_the_waste_of_a_reserved_run_by_hand() -> None:
    """20 blocks of 4: a run for 20 tokens that will hold 11 and holds 6, in first fit and in buddies."""
    for placement, granted in (("first-fit", 20), ("buddy", 32)):
        pool = ReservingPool(20, 4, placement=placement)
        table = pool.allocate(None, 6, reserve=20)
        found = waste(pool, [(table, 6)], [11])
        assert (found.stored, found.reserved, found.internal) == (6, 5, granted - 11)
        assert (found.external, found.free) == (0, 80 - granted) and found.slots == 80


def test_gaps_too_short_for_the_one_that_waits_are_external() -> None:
    pool = ReservingPool(12, 1, placement="first-fit")
    tables = [pool.allocate(None, 3) for _ in range(4)]
    pool.free(tables.pop(0))
    held = [(table, 3) for table in tables]
    pool.free(tables[1])
    held.pop(1)
    assert waste(pool, held, waiting=3).free == 6 and waste(pool, held).external == 0
    found = waste(pool, held, waiting=4)
    assert (found.stored, found.external, found.free) == (6, 6, 0)


def test_a_paged_pool_wastes_less_than_a_block_for_each_sequence() -> None:
    pool = BlockPool(20, 4)
    first, second = pool.allocate(None, 6), pool.allocate(None, 8)
    found = waste(pool, [(first, 6), (second, 8)], [11, 8], waiting=40)
    assert (found.stored, found.reserved, found.internal, found.external, found.free) == (14, 2, 0, 0, 64)
    assert waste(pool, [(first, 6), (second, 8)]).internal == 2
    assert waste(pool, [(first, 6), (second, 8)], [7, 8]).internal == 1


def test_shared_slots_count_once() -> None:
    pool = BlockPool(20, 4)
    first = pool.allocate(None, 6)
    second = pool.fork(first)
    pool.append(second, 9)
    found = waste(pool, [(first, 6), (second, 9)], [6, 12])
    assert (found.stored, found.reserved, found.internal, found.free) == (9, 3, 0, 68)


@pytest.mark.parametrize("make", [BlockPool, ReservingPool])
def test_the_parts_are_all_of_the_pool(make: Any) -> None:
    rng = random.Random(4)
    pool = make(40, 4)
    held: list[tuple[BlockTable, int, int]] = []  # table, tokens stored, in the end
    for step in range(600):
        final = rng.randint(1, 40)
        tokens = rng.randint(1, final)
        if rng.random() < 0.6 and pool.can_allocate(None, tokens, reserve=final):
            held.append((pool.allocate(None, tokens, reserve=final), tokens, final))
        elif held and rng.random() < 0.3:
            source, tokens, final = rng.choice(held)
            if pool.can_allocate(None, final):
                held.append((pool.fork(source), tokens, final))
        elif held:
            pool.free(held.pop(rng.randrange(len(held)))[0])
        pairs, finals = [(table, tokens) for table, tokens, _ in held], [final for _, _, final in held]
        found = waste(pool, pairs, finals, waiting=final if step % 2 else None)
        assert found.slots == 160 and min(vars(found).values()) >= 0
        assert found.free + found.external == 4 * (pool.num_free + pool.num_cached)
        if make is ReservingPool:
            assert found.stored == sum(tokens for _, tokens in pairs)
            assert not step % 2 or (found.free > 0) == pool.can_allocate(None, final)
        else:
            assert found.external == 0


def test_the_waste_of_tables_that_are_not_all_is_refused() -> None:
    pool = BlockPool(8, 4)
    first, second = pool.allocate(None, 4), pool.allocate(None, 4)
    both = [(first, 4), (second, 4)]
    for tables, finals, message in (
        ([(first, 4)], None, "handed out 2 tables, got 1"),
        ([(first, 4), (first, 4)], None, "give each of them once"),
        ([(first, 4), (BlockTable(4, [3]), 4)], None, "does not hold this table"),
        (both, [4], "2 tables and 1 final lengths"),
        (both, [4, 3], "final length of 3 cannot hold 4 tokens"),
        ([(first, 5), (second, 4)], None, "table of 4 slots .* cannot hold 5 tokens"),
    ):
        with pytest.raises(UnderloadError, match=message):
            waste(pool, tables, finals)
