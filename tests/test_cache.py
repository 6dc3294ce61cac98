"""The block pool by its behaviours: sharing, copying, pending blocks, eviction, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from underload.cache import BlockChain, BlockPool, HostPool, PoolCounters, ReservingPool, block_digest
from underload.request import BlockTable, OutOfBlocks, UnderloadError

ROOT = Path(__file__).resolve().parents[1]


def compute(pool: BlockPool, tokens: list[int], **domain: str) -> tuple[BlockTable, BlockChain]:
    """A sequence whose tokens have all been computed."""
    chain = BlockChain(tokens, pool.block_size, **domain)
    table = pool.allocate(chain, len(tokens))
    pool.publish(table, chain, len(tokens))
    return table, chain


def run(pool: BlockPool, tokens: list[int], **domain: str) -> int:
    """Compute a sequence and let it go; how many tokens were cached."""
    before = pool.counters.hits
    table, _ = compute(pool, tokens, **domain)
    pool.free(table)
    return pool.counters.hits - before


def found(pool: BlockPool, tokens: list[int], **domain: str) -> int:
    """Cached tokens of a prompt that has one token more."""
    return pool.cached_tokens(BlockChain([*tokens, 0], pool.block_size, **domain), len(tokens) + 1)


def places(pool: BlockPool) -> tuple[int, int, int]:
    return pool.num_free, pool.num_cached, pool.num_used


# ---- names -------------------------------------------------------------------------------------------------------


def test_blocks_are_named_by_all_that_is_before_them_and_by_whole_token_ids() -> None:
    def last(tokens: list[int], block_size: int = 4, **domain: str) -> bytes:
        chain = BlockChain(tokens, block_size, **domain)
        return chain.digest(len(chain) - 1)

    different = [
        last([65] * 4),
        last([321] * 4),  # the same as [65] * 4 in the low byte
        last([65_601] * 4),  # and in the low two
        last([65 + 2**32] * 4),
        last([1, 23, 4, 5]),
        last([12, 3, 4, 5]),
        last([0] * 4 + [65] * 4),
        last([65] * 8),
        last([65] * 4, salt="a"),
        last([65] * 4, adapter="a"),
        last([65] * 4, salt="ab", adapter="c"),
        last([65] * 4, salt="a", adapter="bc"),
        last([65] * 8, block_size=8),
        last([-65] * 4),
    ]
    assert len(set(different)) == len(different)
    assert last([65] * 4) == last([65] * 4) and all(len(name) == 32 for name in different)


def test_a_chain_follows_its_tokens_and_computes_each_name_once() -> None:
    calls = []

    def digest(parent: bytes, content: bytes) -> bytes:
        calls.append(content)
        return block_digest(parent, content)

    tokens = [1, 2, 3]
    chain = BlockChain(tokens, 2, digest=digest)
    assert len(chain) == 1 and calls == []
    first = chain.digest(0)
    tokens += [4, 5]
    assert len(chain) == 2 and chain.digest(0) == first
    assert chain.digest(1) == BlockChain([1, 2, 3, 4], 2).digest(1)
    assert chain.content(1) == bytes([3] + 7 * [0] + [4] + 7 * [0])
    assert len(calls) == 3  # the root and two blocks
    with pytest.raises(UnderloadError, match=r"5 tokens fill 2 blocks of 2, got a request for 3"):
        chain.digest(2)
    with pytest.raises(UnderloadError, match="counted from 0, got -1"):
        chain.digest(-1)


@pytest.mark.parametrize("token", [2**63, 1.5, "1", None])
def test_a_token_id_that_cannot_be_kept_whole_is_refused(token: object) -> None:
    with pytest.raises(UnderloadError, match="whole numbers of at most 64 bits"):
        BlockChain([token], 1).digest(0)  # type: ignore[list-item]


def test_names_are_the_same_in_another_process() -> None:
    code = "from underload.cache import BlockChain; print(BlockChain([7, 2**40], 1, salt='é').digest(1).hex())"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": str(ROOT / "lib"), "PYTHONHASHSEED": seed},
        )
        assert done.stdout.strip() == BlockChain([7, 2**40], 1, salt="é").digest(1).hex()


# ---- hits --------------------------------------------------------------------------------------------------------


def test_a_prompt_that_is_cached_to_its_end_has_its_last_block_computed_again() -> None:
    pool = BlockPool(8, 4)
    prompt = list(range(8))
    assert run(pool, prompt) == 0
    assert run(pool, prompt) == 4  # never the last token
    assert run(pool, [*prompt, 8, 9, 10, 11]) == 8
    assert places(pool) == (5, 3, 0)  # and the second computation left no second copy


@pytest.mark.parametrize(("length", "cached"), [(3, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8)])
def test_a_hit_ends_before_the_last_token(length: int, cached: int) -> None:
    pool = BlockPool(8, 4)
    run(pool, list(range(12)))
    assert pool.cached_tokens(BlockChain(list(range(length)), 4), length) == cached


def test_a_hit_goes_as_far_as_the_tokens_asked_for() -> None:
    """A long prompt whose first chunk alone is given blocks."""
    pool = BlockPool(8, 4)
    run(pool, list(range(16)))
    chain = BlockChain(list(range(16)), 4)
    assert pool.cached_tokens(chain, 9) == 8 and pool.cached_tokens(chain, 16) == 12


def test_ids_that_differ_in_high_bits_only_share_nothing() -> None:
    pool = BlockPool(8, 4)
    run(pool, [65] * 5)
    assert run(pool, [321] * 5) == 0 and run(pool, [65_601] * 5) == 0 and run(pool, [65] * 5) == 4


def test_other_salts_and_adapters_share_nothing() -> None:
    pool = BlockPool(16, 4)
    prompt = list(range(5))
    for domain in ({}, {"adapter": "x"}, {"adapter": "y"}, {"salt": "x"}, {"salt": "x", "adapter": "y"}):
        assert run(pool, prompt, **domain) == 0
        assert run(pool, prompt, **domain) == 4


def test_equal_digests_of_different_prompts_are_a_miss() -> None:
    def seven(parent: bytes, content: bytes) -> bytes:
        return b"7"

    pool = BlockPool(8, 4)
    for tokens, salt in (([1] * 9, ""), ([2] * 9, ""), ([1] * 9, "other")):
        chain = BlockChain(tokens, 4, salt=salt, digest=seven)
        table = pool.allocate(chain, 9)
        assert table.num_hashed == 0
        pool.publish(table, chain, 9)
        pool.free(table)
    # Its own first block would be right, and is no longer the one under that digest.
    assert pool.cached_tokens(BlockChain([1] * 9, 4, digest=seven), 9) == 0


def test_a_block_whose_tokens_agree_and_whose_parent_does_not_is_a_miss() -> None:
    def content_only(parent: bytes, content: bytes) -> bytes:
        return content

    pool = BlockPool(8, 2)
    first = BlockChain([1, 1, 5, 5, 0], 2, digest=content_only)
    table = pool.allocate(first, 5)
    pool.publish(table, first, 5)
    # Its own first block, the same second one.
    other = BlockChain([2, 2, 5, 5, 0], 2, digest=content_only)
    second = pool.allocate(other, 5)
    pool.publish(second, other, 2)
    assert pool.cached_tokens(other, 5) == 2
    assert pool.cached_tokens(first, 5) == 4


def test_a_parent_that_came_back_as_another_block_is_another_parent() -> None:
    """Its child is confirmed by the identity of the block that was there when it was computed."""
    pool = BlockPool(4, 1)
    first, chain = compute(pool, [1, 2])
    pool.free(first)  # cached: 2, then 1
    child = pool.allocate(BlockChain([1, 2, 3], 1), 3)  # holds both
    again = BlockChain([1, 2], 1)
    second = pool.allocate(again, 2)  # shares 1, computes 2 again
    pool.publish(second, again, 2)
    assert pool.snapshot()[second.blocks[1]].ref_count == 1
    pool.free(child)
    pool.free(second)
    assert pool.cached_tokens(BlockChain([1, 2, 3], 1), 3) == 2
    pool.index.forget(pool.index.find(chain, 1)[0])  # as an eviction would
    other = pool.allocate(None, 1)
    assert pool.cached_tokens(BlockChain([1, 2, 3], 1), 3) == 0
    pool.free(other)


# ---- eviction ----------------------------------------------------------------------------------------------------


def test_an_evicted_block_is_found_no_more() -> None:
    pool = BlockPool(4, 4)
    run(pool, [1] * 16)
    run(pool, [2] * 16)
    assert found(pool, [1] * 16) == 0 and found(pool, [2] * 16) == 16
    assert pool.counters.evictions == 4


def test_admission_holds_what_it_found_before_it_evicts() -> None:
    pool = BlockPool(4, 4)
    first, second = list(range(8)), list(range(100, 108))
    run(pool, first)
    run(pool, second)
    assert places(pool) == (0, 4, 0)
    chain = BlockChain([*first, *range(8, 16)], 4)
    assert pool.can_allocate(chain, 16)
    table = pool.allocate(chain, 16)
    assert table.num_hashed == 2 and len(set(table.blocks)) == 4
    assert found(pool, first) == 8 and found(pool, second) == 0


def test_what_was_found_is_no_room_for_the_rest() -> None:
    pool = BlockPool(4, 4)
    run(pool, list(range(8)))
    other = pool.allocate(None, 8)
    chain = BlockChain(list(range(20)), 4)
    before = pool.snapshot()
    assert not pool.can_allocate(chain, 13)  # two found, two more wanted: only the two found are not in use
    with pytest.raises(OutOfBlocks, match=r"2 blocks are wanted, and 0 of the pool's 4 are free or cached"):
        pool.allocate(chain, 13)
    assert pool.snapshot() == before and pool.counters.queries == 8
    pool.free(other)
    assert pool.allocate(chain, 13).num_hashed == 2


def test_tails_go_before_their_heads_and_the_longest_out_of_use_first() -> None:
    pool = BlockPool(6, 2)
    run(pool, [1, 1, 2, 2, 3, 3])
    run(pool, [4, 4, 5, 5, 6, 6])
    run(pool, [1, 1, 2, 2, 0])  # uses the first two blocks of the first prompt again; takes one of the six
    lengths = []
    for _ in range(5):
        lengths.append((found(pool, [1, 1, 2, 2, 3, 3]), found(pool, [4, 4, 5, 5, 6, 6])))
        pool.allocate(None, 2)
    # A free block was taken first. Then 6 6, 5 5, 4 4, and only then 2 2.
    assert lengths == [(4, 6), (4, 6), (4, 4), (4, 2), (4, 0)]
    assert found(pool, [1, 1, 2, 2, 3, 3]) == 2


def test_free_blocks_are_taken_before_cached_ones() -> None:
    pool = BlockPool(3, 1)
    run(pool, [1, 2])
    assert places(pool) == (1, 2, 0)
    pool.allocate(None, 1)
    assert found(pool, [1, 2]) == 2 and pool.counters.evictions == 0


def test_the_same_content_twice_is_kept_once_and_what_follows_is_found() -> None:
    pool = BlockPool(8, 2)
    prompt = [1, 1, 2, 2]
    first, _ = compute(pool, prompt)
    tokens = list(prompt)
    chain = BlockChain(tokens, 2)
    second = pool.allocate(chain, 4)  # its last block is computed again
    pool.publish(second, chain, 4)
    tokens += [3, 3, 4]
    pool.append(second, 7)
    pool.publish(second, chain, 7)
    assert first.blocks[0] == second.blocks[0] and first.blocks[1] != second.blocks[1]
    longer = BlockChain([*prompt, 3, 3, 9], 2)
    assert pool.cached_tokens(longer, 7) == 6
    third = pool.allocate(longer, 7)
    assert third.blocks[:3] == [first.blocks[0], first.blocks[1], second.blocks[2]]
    for table in (third, first):
        pool.free(table)
    pool.free(second)
    assert places(pool) == (5, 3, 0) and pool.cached_tokens(longer, 7) == 6


def test_a_second_block_of_the_same_content_stands_in_for_the_first() -> None:
    pool = BlockPool(5, 2)
    first, _ = compute(pool, [1, 1, 2, 2])
    chain = BlockChain([1, 1, 2, 2, 3, 3, 0], 2)
    second = pool.allocate(chain, 4)
    pool.publish(second, chain, 4)
    pool.append(second, 7)
    pool.publish(second, chain, 7)
    pool.free(first)  # 2 2 is cached now, and second has its own
    pool.allocate(None, 2)  # evicts it
    assert pool.counters.evictions == 1 and found(pool, [1, 1, 2, 2]) == 2
    pool.free(second)
    assert pool.cached_tokens(chain, 7) == 6  # also 3 3, which was computed after the second one


# ---- copy on write -----------------------------------------------------------------------------------------------


def test_a_forked_tail_is_copied_once_and_the_full_block_is_shared() -> None:
    pool = BlockPool(8, 4)
    left, chain = compute(pool, list(range(6)))
    right = pool.fork(left)
    shared, tail = left.blocks
    assert [pool.snapshot()[number].ref_count for number in (shared, tail)] == [2, 2]
    assert pool.can_write(right, 6, 7)
    assert pool.write(right, 6, 7) == [(tail, right.blocks[1])] and right.blocks[1] != tail
    assert pool.write(left, 6, 7) == [] and left.blocks == [shared, tail]
    assert pool.write(right, 6, 7) == []
    assert pool.snapshot()[shared].ref_count == 2 and pool.counters.copies == 1
    held = list(left.blocks)
    pool.free(right)
    assert left.blocks == held and pool.snapshot()[shared].ref_count == 1
    assert pool.owners(shared) == [left]
    assert chain.digest(0)  # still there to be found
    assert found(pool, list(range(4))) == 4


def test_a_copy_that_finds_no_block_leaves_no_trace() -> None:
    pool = BlockPool(2, 4)
    left, _ = compute(pool, list(range(6)))
    right = pool.fork(left)
    before = pool.snapshot(), list(right.blocks)
    assert not pool.can_write(right, 6, 7)
    with pytest.raises(OutOfBlocks):
        pool.write(right, 6, 7)
    assert (pool.snapshot(), right.blocks) == before
    pool.free(left)
    assert pool.write(right, 6, 7) == []


def test_blocks_are_there_before_each_write_and_never_more_than_the_tokens_need() -> None:
    for prompt in (3, 4, 5):
        pool = BlockPool(8, 4)
        tokens = list(range(prompt))
        chain = BlockChain(tokens, 4)
        table = pool.allocate(chain, prompt)
        pool.publish(table, chain, prompt)
        for step in range(8):
            tokens.append(step)
            pool.append(table, len(tokens))
            assert pool.write(table, len(tokens) - 1, len(tokens)) == []
            assert len(table.blocks) == -(-len(tokens) // 4)
            pool.publish(table, chain, len(tokens))
            assert table.num_hashed == len(tokens) // 4


def test_a_block_that_others_can_find_is_never_written() -> None:
    pool = BlockPool(4, 4)
    table, _ = compute(pool, list(range(6)))
    with pytest.raises(UnderloadError, match="of positions from 0, can be found by others"):
        pool.write(table, 3, 6)
    pool.append(table, 8)
    longer = BlockChain(list(range(8)), 4)
    pool.announce(table, longer, 8)
    with pytest.raises(UnderloadError, match="of positions from 4, can be found by others"):
        pool.write(table, 7, 8)
    pool.retract(table, 6)
    assert pool.write(table, 7, 8) == []


# ---- pending blocks ----------------------------------------------------------------------------------------------


def pending(pool: BlockPool, prompt: list[int]) -> tuple[BlockTable, BlockChain]:
    chain = BlockChain(prompt, pool.block_size)
    table = pool.allocate(chain, len(prompt))
    pool.announce(table, chain, len(prompt))
    return table, chain


def test_two_equal_prompts_in_one_plan_share_their_blocks() -> None:
    pool = BlockPool(8, 4)
    first, chain = pending(pool, list(range(9)))
    assert [pool.snapshot()[number].pending for number in first.blocks] == [True, True, False]
    second, other = pending(pool, list(range(9)))
    assert second.blocks[:2] == first.blocks[:2] and second.num_hashed == 2 and first.num_hashed == 0
    pool.publish(first, chain, 9)
    pool.publish(second, other, 9)
    assert not any(state.pending for state in pool.snapshot())
    pool.free(first)
    pool.free(second)
    assert places(pool) == (6, 2, 0)


def test_a_chunk_announces_what_it_fills_and_no_more() -> None:
    pool = BlockPool(8, 4)
    chain = BlockChain(list(range(16)), 4)
    table = pool.allocate(chain, 16)
    pool.announce(table, chain, 10)
    assert found(pool, list(range(16))) == 8
    pool.announce(table, chain, 16)  # a second plan, before the first one is committed
    assert found(pool, list(range(16))) == 16
    pool.retract(table, 10)
    assert found(pool, list(range(16))) == 8
    pool.publish(table, chain, 10)
    pool.announce(table, chain, 16)
    pool.publish(table, chain, 16)
    assert table.num_hashed == 4 and found(pool, list(range(16))) == 16


@pytest.mark.parametrize("end", ["retract", "free"])
def test_a_promise_that_is_not_kept_takes_the_block_out_of_the_index(end: str) -> None:
    pool = BlockPool(8, 4)
    writer, _ = pending(pool, list(range(9)))
    sharer, other = pending(pool, [*range(8), 50, 51, 52, 53, 54])
    number = writer.blocks[0]
    if end == "retract":
        pool.retract(writer, 0)
    else:
        pool.free(writer)
    # Nobody finds it, nobody else is given it, and what was named after it is found no more either.
    assert found(pool, list(range(8))) == 0
    assert pool.snapshot()[number].ref_count == (2 if end == "retract" else 1)
    later = pool.allocate(None, 4 * (pool.num_free + pool.num_cached))
    assert number not in later.blocks
    # What the sharer publishes after a block that was never filled is not taken.
    pool.publish(sharer, other, 13)
    assert sharer.num_hashed == 2
    pool.free(sharer)
    pool.free(later)
    assert found(pool, [*range(8), 50, 51, 52, 53]) == 0


def test_a_sharer_that_goes_breaks_nothing() -> None:
    pool = BlockPool(8, 4)
    writer, chain = pending(pool, list(range(9)))
    sharer, _ = pending(pool, list(range(9)))
    pool.retract(sharer, 8)
    pool.free(sharer)
    assert found(pool, list(range(8))) == 8
    pool.publish(writer, chain, 9)
    pool.free(writer)
    assert places(pool) == (6, 2, 0)


def test_pending_blocks_that_nobody_waits_for_are_free_at_once() -> None:
    pool = BlockPool(4, 4)
    table, _ = pending(pool, list(range(9)))
    pool.free(table)
    assert places(pool) == (4, 0, 0) and found(pool, list(range(8))) == 0


def test_a_promise_takes_no_valid_blocks_place() -> None:
    pool = BlockPool(4, 4)
    run(pool, list(range(8)))
    table, _ = pending(pool, list(range(8)))  # computes the second block again
    pool.free(table)  # and does not come to it
    assert found(pool, list(range(8))) == 8


# ---- giving back -------------------------------------------------------------------------------------------------


def test_a_second_free_raises_and_changes_nothing() -> None:
    pool = BlockPool(4, 4)
    table, _ = compute(pool, list(range(9)))
    fork = pool.fork(table)
    same = BlockTable(4, list(table.blocks), table.num_hashed)
    pool.free(table)
    assert table.blocks == [] and table.num_hashed == 0
    before = pool.snapshot()
    for gone in (table, same):
        with pytest.raises(UnderloadError, match="does not hold this table"):
            pool.free(gone)
    assert pool.snapshot() == before
    pool.free(fork)
    assert places(pool) == (2, 2, 0)


def test_trim_gives_back_drafts_and_no_block_that_others_can_find() -> None:
    pool = BlockPool(8, 4)
    table, _ = compute(pool, list(range(6)))
    pool.append(table, 17)
    pool.trim(table, 6)
    assert len(table.blocks) == 2 and places(pool) == (6, 0, 2)
    pool.trim(table, 8)
    assert len(table.blocks) == 2
    twelve, chain = compute(pool, list(range(100, 112)))
    with pytest.raises(UnderloadError, match=r"past the table's first 8 tokens, can be found by others"):
        pool.trim(twelve, 8)
    assert len(twelve.blocks) == 3 and chain.digest(2)


def test_a_shared_draft_block_stays_with_its_other_holder() -> None:
    pool = BlockPool(8, 4)
    table = pool.allocate(None, 8)
    fork = pool.fork(table)
    pool.trim(table, 4)
    assert [pool.snapshot()[number].ref_count for number in fork.blocks] == [2, 1]


# ---- without a prefix cache, and what is refused -----------------------------------------------------------------


def test_without_a_prefix_cache_nothing_is_hashed_or_kept() -> None:
    def never(parent: bytes, content: bytes) -> bytes:
        raise AssertionError("a digest was computed")

    pool = BlockPool(8, 4, prefix_caching=False)
    chain = BlockChain(list(range(9)), 4, digest=never)
    assert pool.can_allocate(chain, 9) and pool.cached_tokens(chain, 9) == 0
    table = pool.allocate(chain, 9)
    pool.announce(table, chain, 9)
    pool.publish(table, chain, 9)
    fork = pool.fork(table)
    assert len(pool.write(fork, 8, 9)) == 1
    pool.free(fork)
    pool.retract(table, 0)
    pool.free(table)
    assert places(pool) == (8, 0, 0) and table.num_hashed == 0
    assert pool.counters == PoolCounters(allocations=4, copies=1)


def test_counters_count_tokens_looked_up_and_found() -> None:
    pool = BlockPool(4, 4)
    run(pool, list(range(9)))
    run(pool, list(range(9)))
    pool.free(pool.allocate(None, 3))
    assert pool.counters == PoolCounters(queries=18, hits=8, allocations=5)


POOL = "a pool needs at least one block of one token, got "


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda pool, table, chain: BlockPool(0, 4), POOL + "0 blocks of 4"),
        (lambda pool, table, chain: BlockPool(4, 0), POOL + "4 blocks of 0"),
        (
            lambda pool, table, chain: BlockPool(10**12, 4),
            "at most 16,777,216 blocks, got 1,000,000,000,000 of 4 tokens",
        ),
        (lambda pool, table, chain: ReservingPool(10**12, 4), "at most 16,777,216 blocks, got 1,000,000,000,000"),
        (lambda pool, table, chain: HostPool(10**30), "a host pool has 0 to 16,777,216 blocks, got 1,000,0"),
        (lambda pool, table, chain: BlockChain([1], 0), "block_size must be at least 1 token, got 0"),
        (lambda pool, table, chain: pool.allocate(chain, 0), "at least 1 token, got 0"),
        (lambda pool, table, chain: pool.can_allocate(chain, -1), "at least 1 token, got -1"),
        (lambda pool, table, chain: pool.cached_tokens(chain, 0), "at least 1 token, got 0"),
        (lambda pool, table, chain: pool.trim(table, 0), "at least 1 token, got 0"),
        (lambda pool, table, chain: pool.allocate(BlockChain([1], 3), 1), "blocks of 3 tokens .* blocks of 4"),
        (
            lambda pool, table, chain: pool.publish(table, BlockChain([1] * 8, 2), 6),
            "blocks of 2 tokens .* blocks of 4",
        ),
        (lambda pool, table, chain: pool.write(table, 7, 9), "from 7 up to 9 are not within the 8 of .* 2 blocks of 4"),
        (lambda pool, table, chain: pool.write(table, -1, 1), "from -1 up to 1 are not within"),
        (lambda pool, table, chain: pool.write(table, -1, 0), "from -1 up to 0 are not within"),
        (lambda pool, table, chain: pool.write(table, 8, 9), "from 8 up to 9 are not within"),
        (lambda pool, table, chain: pool.retract(table, -1), "from 0 up to -1 are not within"),
        (lambda pool, table, chain: pool.publish(table, BlockChain([1] * 12, 4), 12), "from 0 up to 12 are not within"),
        (lambda pool, table, chain: pool.publish(table, chain, 8), "6 tokens fill 1 blocks of 4, got a request for 2"),
        (lambda pool, table, chain: pool.append(BlockTable(4), 1), "does not hold this table of 0 blocks"),
        (lambda pool, table, chain: pool.grow([table, BlockTable(4)]), "does not hold this table of 0 blocks"),
        (lambda pool, table, chain: pool.grow([table] * 3), "3 blocks are wanted, and 2 of the pool's 4"),
        (lambda pool, table, chain: pool.append(table, 100), "23 blocks are wanted, and 2 of the pool's 4"),
    ],
)
def test_wrong_arguments_are_refused_by_name_and_change_nothing(
    call: Callable[[BlockPool, BlockTable, BlockChain], object], message: str
) -> None:
    pool = BlockPool(4, 4)
    chain = BlockChain(list(range(6)), 4)
    table = pool.allocate(chain, 6)
    before = pool.snapshot(), list(table.blocks), vars(pool.counters).copy()
    with pytest.raises(UnderloadError, match=message):
        call(pool, table, chain)
    assert (pool.snapshot(), table.blocks, vars(pool.counters)) == before


def test_a_table_of_another_pool_is_refused() -> None:
    table = BlockPool(4, 4).allocate(None, 4)
    with pytest.raises(UnderloadError, match="comes from another pool"):
        BlockPool(4, 4).free(table)
    assert len(table.blocks) == 1


# ---- the host ----------------------------------------------------------------------------------------------------


def test_host_blocks_are_given_and_taken_back_once() -> None:
    pool = HostPool(4)
    first, second = pool.allocate(3), pool.allocate(1)
    assert sorted(first + second) == [0, 1, 2, 3] and (pool.num_free, pool.num_used) == (0, 4)
    with pytest.raises(OutOfBlocks, match="1 host blocks are wanted, and 0 of 4 are free"):
        pool.allocate(1)
    pool.free(first)
    for wrong in (first, [second[0], second[0]], [second[0], first[0]], [9]):
        with pytest.raises(UnderloadError, match="not all in use"):
            pool.free(wrong)
        assert (pool.num_free, pool.num_used) == (3, 1)
    assert pool.allocate(0) == [] and sorted(pool.allocate(3)) == sorted(first)


def test_a_host_pool_may_be_empty_but_not_less() -> None:
    with pytest.raises(OutOfBlocks):
        HostPool(0).allocate(1)
    with pytest.raises(UnderloadError, match="0 to 16,777,216 blocks, got -1"):
        HostPool(-1)
    with pytest.raises(UnderloadError, match="at least 0, got -1"):
        HostPool(1).allocate(-1)


# ---- injected failures -------------------------------------------------------------------------------------------


def test_a_digest_that_fails_leaves_no_trace_and_can_be_asked_again() -> None:
    fails = False

    def digest(parent: bytes, content: bytes) -> bytes:
        if fails and content[0] == 2:
            raise RuntimeError("injected")
        return block_digest(parent, content)

    pool, undisturbed = BlockPool(8, 1), BlockPool(8, 1)
    results = []
    for each in (pool, undisturbed):
        table: BlockTable | None = None
        for call in (
            lambda: each.can_allocate(BlockChain([1, 2, 3, 4], 1, digest=digest), 9),  # noqa: B023, called below
            lambda: each.allocate(chain, 4),  # noqa: B023
            lambda: each.announce(table, chain, 2),  # noqa: B023
            lambda: each.publish(table, chain, 4),  # noqa: B023
        ):
            # A chain of its own for each call, so that each has names to compute, and fails halfway.
            chain = BlockChain([1, 2, 3, 4], 1, digest=digest)
            if each is pool:
                before = pool.snapshot(), vars(pool.counters).copy(), len(pool.index), len(pool.tables)
                held = None if table is None else (list(table.blocks), table.num_hashed)
                fails = True
                with pytest.raises(RuntimeError, match="injected"):
                    call()
                fails = False
                assert (pool.snapshot(), vars(pool.counters), len(pool.index), len(pool.tables)) == before
                assert table is None or (table.blocks, table.num_hashed) == held
            made = call()
            table = made if isinstance(made, BlockTable) else table
        results.append((each.snapshot(), each.counters, table))
    assert results[0] == results[1] and found(pool, [1, 2, 3, 4]) == 4


def test_a_prompt_with_an_id_that_cannot_be_named_is_refused_for_itself_alone() -> None:
    pool = BlockPool(8, 2)
    run(pool, [1, 1, 2, 2])
    before = pool.snapshot(), vars(pool.counters).copy()
    with pytest.raises(UnderloadError, match="at most 64 bits"):
        pool.allocate(BlockChain([1, 1, 2**64, 2, 3], 2), 5)
    assert (pool.snapshot(), vars(pool.counters)) == before and run(pool, [1, 1, 2, 2, 3]) == 4
