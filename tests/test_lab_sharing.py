"""Lab 9: what a wrong answer is told, what the tasks start from, and the inputs that checks draw.

What solutions, hand-outs and wrong answers earn is `underload course verify`'s to say, from tests/course.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from lab_source import LABS, assert_library_is_there, assert_points, benchmark, told

from underload.cache import BlockChain, BlockPool
from underload.labs import sharing as lab
from underload.request import OutOfBlocks
from underload.shapes import prefill_cost

SOURCE = LABS / "sharing.ipynb"


# ------------------------------------------------------------------ the notebook


def test_points_and_tasks(source: Any) -> None:
    assert_points(source, 20, 3, 85)


def test_what_an_answer_may_not_use_is_there(source: Any) -> None:
    assert_library_is_there(source)


def test_names_by_hand(solved: dict[str, Any]) -> None:
    nine = list(range(1, 10))
    names = solved["digests"](nine, 4)
    assert len(names) == 2 and names == solved["digests"]([*nine, 10, 11], 4)
    assert lab.thin_digests([65, 3, 1000], 3) == lab.thin_digests([321, 259, 744], 3)
    lab.check_collision(lambda tokens: [321, 259, 744], [65, 3, 1000], 3)
    index = {b"0": lab.Entry(5, 1, (1, 2), ("", "")), b"1": lab.Entry(3, 2, (8, 9), (5, 1))}
    for confirmed in (solved["confirmed"], lab.confirmed):
        assert confirmed(index, [b"0", b"1"], [(1, 2), (8, 9)], ("", "")) == [5, 3]
        filled = index | {b"0": lab.Entry(5, 2, (1, 2), ("", ""))}
        assert confirmed(filled, [b"0", b"1"], [(1, 2), (8, 9)], ("", "")) == [5]


def test_the_pool_by_hand(solved: dict[str, Any]) -> None:
    for made in (solved["Pool"], lab.Pool):
        pool = made(6, 4)
        a_text = list(range(10))
        b_text = [*range(8), 50, 51, 52, 53, 54]
        a, hits = pool.allocate(lab.digests(a_text, 4), 10)
        assert (len(a), hits) == (3, 0)
        pool.publish(a, lab.digests(a_text, 4))
        b, hits = pool.allocate(lab.digests(b_text, 4), 13)
        assert (len(b), hits, b[:2]) == (4, 2, a[:2]) and pool.counts() == (1, 0, 5)
        pool.publish(b, lab.digests(b_text, 4))
        kept, tail = list(a[:2]), b[2]
        pool.free(a)
        assert pool.counts() == (2, 0, 4)
        pool.free(b)
        assert pool.counts() == (3, 3, 0)
        c, hits = pool.allocate(lab.digests(list(range(70, 87)), 4), 17)
        assert hits == 0 and {tail, kept[1]} < {*c} and kept[0] not in c and pool.counts() == (0, 1, 5)
        assert pool.find(lab.digests(a_text, 4), 10) == kept[:1]


def test_the_fork_by_hand(solved: dict[str, Any]) -> None:
    for fork, write in ((solved["fork"], solved["write"]), (lab.fork, lab.write)):
        pool = lab.Pool(4, 4)
        pool.free_blocks.reverse()  # it gives out block 0 first
        a, _ = pool.allocate([], 6)
        b = fork(pool, a)
        assert a == [0, 1] and [tuple(copy) for copy in write(pool, a, 6, 7)] == [(1, 2)] and a == [0, 2]
        assert write(pool, b, 6, 7) == [] and b == [0, 1] and pool.refs == [2, 1, 1, 0]


def test_the_break_even_by_hand(solved: dict[str, Any]) -> None:
    for even in (solved["break_even"], lab.break_even):
        assert even(lambda n: n, lambda n: 4 + 3 * -(-n // 4), 200) == 26
        assert even(lambda n: n, lambda n: n, 200) is None and even(lambda n: n, lambda n: 0, 200) == 1
    assert [4 + 3 * -(-n // 4) for n in (20, 21)] == [19, 22]


def test_victim_by_hand(solved: dict[str, Any]) -> None:
    for victim in (solved["victim"], lab.victim):
        assert victim((lab.Cached(3, 0, 9), lab.Cached(0, 6, 2))) == 0
        assert victim((lab.Cached(0, 6, 9), lab.Cached(3, 0, 2))) == 1
        assert victim((lab.Cached(0, 50, 400), lab.Cached(0, 1, 3))) == 0


def test_the_solutions_agree_with_the_library(solved: dict[str, Any]) -> None:
    shape, device = lab.shape("llama-2-7b"), lab.device("a100-80gb")
    for tokens in (1, 777):
        right = prefill_cost(shape, tokens).flops - 2.0 * shape.embedding_parameters
        for recompute in (solved["recompute"], lab.recompute):
            assert recompute(tokens, shape, device) == pytest.approx(right / device.flops)
        assert solved["swap"](tokens, shape, 32e9, 16, 1e-5) == pytest.approx(lab.swap(tokens, shape, 32e9, 16, 1e-5))
    load = lab.conversations(sessions=12)
    for blocks in (60, 100):
        pool = lab.Adapted(solved["Pool"](blocks, 16), blocks, 16, fork=solved["fork"], write=solved["write"])
        mine, right_one = lab.serve(pool, load), lab.serve(BlockPool(blocks, 16), load)
        assert str(mine) == str(right_one) and mine.hit_rate > 0.1
        assert mine.answered == right_one.answered > 0.9 * len(load) and pool.num_used == 0
        assert mine.preemptions > 0 or blocks > 60
    assert lab.serve(BlockPool(60, 16), load, host_blocks=500).prefilled < lab.serve(BlockPool(60, 16), load).prefilled


def test_an_adapted_pool_names_and_confirms() -> None:
    tokens = list(range(8))
    twin = lab.collide(tokens)
    for confirm, hits in ((None, 1), (lab.confirmed, 0)):
        pool = lab.Adapted(lab.Pool(8, 4), 8, 4, names=lab.thin_digests, confirm=confirm)
        mine, theirs = (BlockChain(list(ids), 4) for ids in (tokens, twin))
        for chain, wanted in ((mine, 0), (theirs, hits), (mine, 1)):
            table = pool.allocate(chain, 8)
            assert table.num_hashed == wanted
            pool.publish(table, chain, 8)
            pool.free(table)
        assert pool.num_used == 0


def test_a_pool_that_is_not_written_is_replaced(capsys: pytest.CaptureFixture[str], solved: dict[str, Any]) -> None:
    class Unwritten:
        def __init__(self, num_blocks: int, block_size: int) -> None:
            raise NotImplementedError

    assert lab.usable(Unwritten) is lab.Pool and "not written yet" in capsys.readouterr().out
    assert lab.usable(solved["Pool"]) is solved["Pool"] and capsys.readouterr().out == ""
    assert lab.usable_functions(lambda *_: None, lab.write) == (lab.fork, lab.write)
    assert "do not pass" in capsys.readouterr().out
    never = lab.or_none(lambda *_: None, lab.break_even)
    assert never(lambda n: n, lambda n: n, 9) is None and capsys.readouterr().out == ""


def test_the_stored_run_shows_what_the_text_says(said: dict[str, str]) -> None:
    leak = said["task-1-leak"].splitlines()
    viktor, salad = (line.partition("…")[2].strip() for line in leak[:2])
    trusted, sure, named = (line.strip() for line in leak[3::2])
    assert trusted == viktor != salad and sure == named == salad and "nurse" in viktor
    served = {line[:22].strip(): line[22:].strip() for line in said["task-3-serve"].splitlines()}
    for blocks in (150, 400):
        assert served[f"your pool, {blocks} blocks"] == served[f"the library's, {blocks}"]
    decoder = said["task-3-decoder"]
    assert decoder.startswith("16 of 16") and all(
        int(n) > 0 for n in re.findall(r"(\d+) (?:tokens|blocks|pre)", decoder)
    )


def test_the_open_answer_has_the_numbers_of_the_run(source: Any, said: dict[str, str]) -> None:
    runs = [re.findall(r"([\d,]+) computed,.*TTFT +([\d.]+) ms", line)[0] for line in said["task-4-serve"].splitlines()]
    text = next(cell.source for cell in source.cells if cell.id == "task-4-open")
    small, large = runs[4:6], runs[2:4]
    assert f"({float(small[1][1]):.0f} ms against {float(small[0][1]):.0f} ms without a prefix cache)" in text
    assert f"({float(large[1][1]):.0f} ms against {float(large[0][1]):.0f} ms)" in text
    less = int(large[0][0].replace(",", "")) - int(large[1][0].replace(",", ""))
    assert f"computes {less:,} tokens less" in text
    first, second = re.findall(r"from ([\d,]+) tokens on", said["task-4-answer"])
    assert f"from {first} tokens on in blocks of 16, and from {second} tokens on in blocks of 64" in text


# ------------------------------------------------------------------ inputs that are drawn


def test_a_drawn_server_has_a_break_even_that_attention_moves() -> None:
    for seed in range(12):
        server = lab.your_server(seed)
        where = server.shape, server.link, server.block_size, server.per_block
        again = partial(lab.recompute, shape=server.shape, device=server.device)
        right = lab.break_even(again, lambda n, where=where: lab.swap(n, *where), lab.MOST)  # type: ignore[misc]
        assert right == server.break_even() and 300 < right < lab.MOST
        assert server.first() <= right


@pytest.mark.parametrize("seed", range(12))
def test_every_check_lets_the_right_answer_pass(solved: dict[str, Any], seed: int) -> None:
    draw = np.random.default_rng(seed)
    lab.check_whole_ids(solved["digests"], draw)
    lab.check_root(solved["digests"], draw)
    lab.check_pool(solved["Pool"], draw, "counts", "hits", "order", "refusals", calls=150)
    lab.check_holds(solved["Pool"], draw)
    lab.check_forgets(solved["Pool"], draw)
    lab.check_served(solved["Pool"], draw)
    lab.check_forks(solved["fork"], solved["write"], draw, "copies", "refs", "trace")
    lab.check_no_room(solved["fork"], solved["write"], draw)
    lab.check_break_even(solved["break_even"], *lab.drawn_stairs(draw))
    lab.check_beats(solved["victim"], [lab.scans(draw), lab.scans(draw)])
    lab.check_keeps_up(solved["victim"], [lab.moves(draw), lab.moves(draw)])


def test_nobody_finds_more_than_who_knows_the_future() -> None:
    for seed in range(3):
        load = lab.scans(np.random.default_rng(seed))
        assert lab.cache_hits(lab.least_recent, load) < lab.cache_hits(lab.victim, load) <= lab.most_hits(load)
        assert lab.cache_hits(lambda cached: 0, load) == lab.cache_hits(lab.least_recent, load)
        assert lab.cache_hits(lambda cached: cached[0], load) == lab.cache_hits(lab.least_recent, load)


# ------------------------------------------------------------------ what a wrong answer is told


def test_what_names_are_told() -> None:
    def alone(tokens: Any, size: int, salt: str = "", adapter: str = "") -> list[bytes]:
        return [name for at in range(0, len(tokens), size) for name in lab.digests(tokens[at : at + size], size)]

    said = told(lab.check_differ, alone, [1, 2, 3, 4], [9, 2, 3, 4], 2)
    assert "block 1" in said and "put the name of the block before into the name" in said
    assert "its low" not in told(lab.check_differ, lab.thin_digests, [65], [321], 1, why="one low byte")
    assert "one low byte" in told(lab.check_whole_ids, lab.thin_digests, np.random.default_rng(1))
    assert "salt and adapter do not both count" in told(
        lab.check_root, lambda tokens, size, *_: lab.digests(tokens, size), np.random.default_rng(1)
    )
    assert "which is int; a name is bytes" in told(lab.check_names, lambda *_: [1, 2], [1, 2, 3, 4], 2)
    assert "fill 2 blocks of 2" in told(lab.check_names, lambda *_: [b"a"], [1, 2, 3, 4, 5], 2)
    length = lambda tokens, size: lab.digests(tokens, size, str(len(tokens)))  # noqa: E731
    assert "changes its name when the sequence grows" in told(lab.check_names, length, [1, 2, 3, 4], 2)
    assert "is 5 in both prompts" in told(lab.check_collision, lambda tokens: list(tokens), [5, 6, 7, 8])
    said = told(lab.check_collision, lambda tokens: [token + 1 for token in tokens], [5, 6, 7, 8])
    assert "block 0 has another thin name" in said and "modulo 256" in said
    assert "from 0 to 1023" in told(lab.check_collision, lambda tokens: [t + 256 for t in tokens], [1000] * 4)


def test_what_confirmed_is_told() -> None:
    digest_only = lambda index, digests, contents, root: [index[d].block for d in digests if d in index]  # noqa: E731
    for what, why in (
        ("tokens", "a block with other tokens"),
        ("parent", "its parent is no block of this prompt"),
        ("generation", "its generation is not"),
        ("salt", "under another salt"),
        ("missing", "is not in the index"),
    ):
        assert why in told(lab.check_confirmed, digest_only, lab.lookup(what))
    entries = lambda index, digests, *_: [index[d] for d in digests]  # noqa: E731
    assert "entry.block" in told(lab.check_confirmed, entries, lab.lookup())


def changed(**methods: Callable[..., Any]) -> type:
    return type("Changed", (lab.Pool,), methods)


def test_what_a_pool_is_told() -> None:
    def greedy(self: Any, digests: Any, tokens: int) -> list[int]:
        return lab.Pool.find(self, digests, tokens + self.block_size)

    assert "last token's block is never one of them" in told(lab.check_last, changed(find=greedy))

    def heads_first(self: Any, blocks: Any) -> None:
        lab.Pool.free(self, list(reversed(blocks)))

    assert "its tail goes before its head" in told(lab.check_tails, changed(free=heads_first))

    def half_way(self: Any, digests: Any, tokens: int) -> Any:
        return [self.take() for _ in range(-(-tokens // self.block_size))], 0

    assert "has left a trace" in told(lab.check_refuses, changed(allocate=half_way))

    def newest(self: Any) -> int:
        if self.cached and not self.free_blocks:
            self.cached = type(self.cached)(reversed(self.cached.items()))
        return lab.Pool.take(self)

    assert "those longest out of use are" in told(lab.check_oldest, changed(take=newest))

    def eager(self: Any, blocks: Any) -> None:
        for block in blocks:
            self.refs[block] = 0
            self.free_blocks.append(block)

    said = told(lab.check_pool, changed(free=eager), np.random.default_rng(3), "counts")
    assert "was given out as a new one, and request" in said or "counts() says" in said

    def unheld(self: Any, digests: Any, tokens: int) -> Any:
        found = self.find(digests, tokens)
        new = [self.take() for _ in range(-(-tokens // self.block_size) - len(found))]
        return found + new, len(found)

    said = told(lab.check_holds, changed(allocate=unheld), np.random.default_rng(1))
    assert "stands twice in the list" in said or "has left a trace" in said

    def skips(self: Any, digests: Any, tokens: int) -> list[int]:
        return [self.known[name] for name in digests[: (tokens - 1) // self.block_size] if name in self.known]

    assert "1 of the blocks are hits" in told(lab.check_forgets, changed(find=skips), np.random.default_rng(1))

    def refuses(self: Any, *_: Any) -> Any:
        raise OutOfBlocks("no")

    assert "it was refused, though 2 new blocks are needed and 8 could be had" in told(
        lab.check_grows, changed(allocate=refuses)
    )
    assert "must return (blocks, hits)" in told(lab.check_grows, changed(allocate=lambda *_: None))


def test_what_a_fork_is_told() -> None:
    assert "the very list it was given" in told(lab.check_fork, lambda pool, table: table)
    uncounted = lambda pool, table: list(table)  # noqa: E731
    assert "has the count 1, and 2 lists hold it" in told(lab.check_fork, uncounted)
    assert "reads" in told(lab.check_own_words, uncounted, lab.write)
    said = told(lab.check_own_words, lab.fork, lambda pool, table, start, stop: [])
    assert "A reads B's at position 6" in said

    def everything(pool: Any, table: list[int], start: int, stop: int) -> Any:
        return lab.write(pool, table, 0, stop)

    assert "are copied; those that are about to be written" in told(lab.check_copies, lab.fork, everything)

    def takes(pool: Any, table: list[int], start: int, stop: int) -> Any:
        size, owed = pool.block_size, []
        for place in range(start // size, -(-stop // size)):
            if pool.refs[table[place]] > 1:
                source, table[place] = table[place], pool.take()
                pool.refs[source] -= 1
                owed.append((source, table[place]))
        return owed

    assert "count before you take" in told(lab.check_no_room, lab.fork, takes, np.random.default_rng(2))


def test_what_formulas_are_told() -> None:
    case = lab.drawn_swap(np.random.default_rng(4)) | {"tokens": 3001}
    linear = lambda tokens, shape, device: lab.recompute(1, shape, device) * tokens  # noqa: E731
    assert "as many times the cost of one token" in told(lab.check_recompute, linear, **case)
    one_way = lambda *values: lab.swap(*values) / 2  # noqa: E731
    assert "one way only" in told(lab.check_swap, one_way, **case)
    stairs = (lambda n: n, lambda n: 4 + 3 * -(-n // 4), 200)
    assert "the first such length" in told(lab.check_break_even, lambda *_: 20, *stairs)
    assert "which is None" in told(lab.check_break_even, lambda *_: 0, lambda n: n, lambda n: n + 1, 50)
    server = lab.your_server(1)
    assert "not that of your server" in told(lab.check_my_break_even, 1, server)
    with pytest.raises(NotImplementedError, match="my_break_even"):
        lab.check_my_break_even(None, server)


def test_what_a_policy_is_told() -> None:
    loads = [lab.scans(np.random.default_rng(5))]
    assert "LRU finds" in told(lab.check_beats, lambda cached: 0, loads)
    assert "return a place from 0" in told(lab.check_beats, lambda cached: len(cached), loads)
    fewest = lambda cached: min(range(len(cached)), key=lambda at: (cached[at].hits, at))  # noqa: E731
    assert "must go at last" in told(lab.check_keeps_up, fewest, [lab.moves(np.random.default_rng(5))])


# ------------------------------------------------------------------ the benchmark


def test_the_benchmark_names_cells_that_are_there(source: Any) -> None:
    bench = benchmark("sharing_lab", source)
    cells = {cell.id: cell.source for cell in source.cells}
    assert bench.PRINTED in cells["end"]
    assert set(re.findall(r'^    "([^"]+)": ', cells["end"], re.M)) == set(lab.book()["numbers"])
