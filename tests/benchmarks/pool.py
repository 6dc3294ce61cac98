"""How long the block pool takes: for a token appended, for a prompt looked up, and whether either hangs on its size.

    python tests/benchmarks/pool.py            half a minute, on a quiet machine; prints
    python tests/benchmarks/pool.py --quick    seconds

`paging.py` calls `measure` and stores what it returns beside the times of the kernels. See README.md in this folder.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
from collections.abc import Callable
from hashlib import sha256
from statistics import median
from typing import Any

from underload.cache import BlockChain, BlockPool

BLOCK = 16
PROMPT = 1000
OUTPUT = 1600  # tokens appended to one sequence
SIZES = (1_000, 10_000, 100_000)  # blocks
AIMS = {"append_us": 1.0, "lookup_us": 20.0}


def timed(prepare: Callable[[], Callable[[], object]], count: int, repeats: int) -> dict[str, Any]:
    """Microseconds of one of the `count` things that a run does: median and smallest of the runs, and all of them.

    Of this process's own time on a core: one thread computes, and what else the machine does meanwhile is not counted.
    """
    found = []
    for _ in range(repeats):
        run = prepare()
        gc.collect()
        gc.disable()
        start = time.process_time()
        run()
        found.append((time.process_time() - start) / count * 1e6)
        gc.enable()
    return {"median": median(found), "best": min(found), "all": [round(value, 4) for value in found]}


def ids(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(50_000) for _ in range(count)]


def decoding(pool: BlockPool) -> Callable[[], Callable[[], object]]:
    """One token after another: room for it, and what became full is published. Hashing is part of it."""
    drawn = ids(OUTPUT)

    def prepare() -> Callable[[], object]:
        tokens = [0]
        chain = BlockChain(tokens, BLOCK)
        table = pool.allocate(chain, 1)

        def run() -> None:
            length = 1
            for token in drawn:
                tokens.append(token)
                length += 1
                pool.append(table, length)
                pool.publish(table, chain, length)

        def run_and_free() -> None:
            run()
            pool.free(table)

        return run_and_free

    return prepare


def empty_loop() -> Callable[[], object]:
    """What the loop of `decoding` costs by itself."""
    drawn, tokens = ids(OUTPUT), [0]

    def run() -> None:
        length = 1
        for token in drawn:
            tokens.append(token)
            length += 1

    return run


def filled(num_blocks: int, **how: Any) -> BlockPool:
    """A pool in which everything is cached: every block that is taken is evicted from somebody."""
    pool = BlockPool(num_blocks, BLOCK, **how)
    for seed in range(-(-num_blocks * BLOCK // PROMPT) + 1):
        tokens = ids(PROMPT, seed + 1)
        chain = BlockChain(tokens, BLOCK)
        table = pool.allocate(chain, PROMPT)
        pool.publish(table, chain, PROMPT)
        pool.free(table)
    return pool


def lookups(pool: BlockPool, seed: int, count: int, *, anew: bool) -> Callable[[], Callable[[], object]]:
    """A prompt that is cached, looked up; `anew`: its chain is made for each lookup, as for each new request."""
    tokens = ids(PROMPT, seed)

    def prepare() -> Callable[[], object]:
        chain = BlockChain(tokens, BLOCK)
        assert pool.cached_tokens(chain, PROMPT) == (PROMPT - 1) // BLOCK * BLOCK

        def run() -> None:
            for _ in range(count):
                pool.cached_tokens(BlockChain(tokens, BLOCK) if anew else chain, PROMPT)

        return run

    return prepare


def admissions(pool: BlockPool, seed: int, count: int) -> Callable[[], Callable[[], object]]:
    """A cached prompt asked about, given its blocks, and freed again."""
    tokens = ids(PROMPT, seed)

    def prepare() -> Callable[[], object]:
        chain = BlockChain(tokens, BLOCK)

        def run() -> None:
            for _ in range(count):
                pool.can_allocate(chain, PROMPT)
                pool.free(pool.allocate(chain, PROMPT))

        return run

    return prepare


def hashing(count: int) -> Callable[[], Callable[[], object]]:
    """The least that naming a prompt's blocks can take: SHA-256 of as many bytes, as often, and nothing else."""
    parent, content = bytes(32), bytes(8 * BLOCK)

    def prepare() -> Callable[[], object]:
        def run() -> None:
            for _ in range(count * (PROMPT // BLOCK)):
                sha256(parent + content).digest()

        return run

    return prepare


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Microseconds a token, a lookup and an admission; every figure with all of its repeats."""
    repeats, count = (3, 20) if quick else (15, 300)
    seed = 1 + SIZES[0] * BLOCK // PROMPT  # the prompt that was cached last
    pool = filled(SIZES[0])
    found: dict[str, Any] = {"block_size": BLOCK, "prompt_tokens": PROMPT, "repeats": repeats, "aims": AIMS}
    found["append_us"] = timed(decoding(BlockPool(SIZES[0], BLOCK)), OUTPUT, repeats)
    found["append_evicting_us"] = timed(decoding(pool), OUTPUT, repeats)
    found["append_uncached_us"] = timed(decoding(BlockPool(SIZES[0], BLOCK, prefix_caching=False)), OUTPUT, repeats)
    found["loop_us"] = timed(empty_loop, OUTPUT, repeats)
    pool = filled(SIZES[0])
    found["lookup_us"] = timed(lookups(pool, seed, count, anew=False), count, repeats)
    found["lookup_new_chain_us"] = timed(lookups(pool, seed, count, anew=True), count, repeats)
    found["hashing_us"] = timed(hashing(count), count, repeats)
    found["admission_us"] = timed(admissions(pool, seed, count), count, repeats)
    found["append_evicting_us_by_blocks"] = {
        str(size): timed(decoding(filled(size)), OUTPUT, repeats)["median"] for size in SIZES[: 2 if quick else None]
    }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats")
    found = measure(quick=parser.parse_args().quick)
    for name, value in found.items():
        shown = (
            {key: round(value[key], 3) for key in ("median", "best")}
            if isinstance(value, dict) and "median" in value
            else value
        )
        print(f"{name:32s} {json.dumps(shown)}")


if __name__ == "__main__":
    main()
