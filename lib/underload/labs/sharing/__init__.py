"""Lab 9, "Sharing, and running out": what its tasks start from, and checks that say what is wrong with a value.

    names       digests, thin_digests, collide, Entry, confirmed: names of blocks, and how far they can be trusted
    pool        Pool; Trial: a student's pool beside what it should do, every call looked at
    forks       fork, write; Writers: sequences that part ways, and read what they wrote
    returning   recompute, swap, break_even: what it costs to come back
    serving     Adapted, serve, say, together: a student's pool under the real scheduler, and on pocket
    eviction    victim, cache_hits: which block goes
    pictures    draw_*: the pictures of the lab

`check_*` raise AssertionError with the wrong value, what it is instead, and what was wanted. Times are in s.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from underload.labs.answers import check_guess
from underload.labs.sharing.eviction import (
    CACHE,
    Cached,
    Load,
    cache_hits,
    check_beats,
    check_keeps_up,
    generator,
    least_recent,
    most_hits,
    moves,
    scans,
    victim,
)
from underload.labs.sharing.forks import (
    Writer,
    Writers,
    check_copies,
    check_fork,
    check_forks,
    check_no_room,
    check_own_words,
    fork,
    write,
)
from underload.labs.sharing.names import (
    VOCABULARY,
    Entry,
    Lookup,
    check_collision,
    check_confirmed,
    check_differ,
    check_names,
    check_root,
    check_whole_ids,
    collide,
    confirmed,
    digests,
    drawn_tokens,
    lookup,
    thin_digests,
)
from underload.labs.sharing.pictures import (
    draw_blocks,
    draw_break_even,
    draw_history,
    draw_names,
    draw_policies,
    draw_samples,
    held_by_samples,
    history,
)
from underload.labs.sharing.pool import (
    Held,
    Pool,
    Trial,
    check_finds,
    check_forgets,
    check_grows,
    check_holds,
    check_last,
    check_oldest,
    check_pool,
    check_refuses,
    check_tails,
    drawn_texts,
)
from underload.labs.sharing.returning import (
    BLOCK,
    LINK,
    MOST,
    PER_BLOCK,
    Server,
    break_even,
    check_break_even,
    check_my_break_even,
    check_recompute,
    check_swap,
    drawn_stairs,
    drawn_swap,
    or_none,
    recompute,
    swap,
    your_server,
)
from underload.labs.sharing.serving import (
    Adapted,
    Served,
    check_served,
    conversations,
    say,
    serve,
    step_time,
    together,
    usable,
    usable_functions,
)
from underload.shapes import device, shape

__all__ = [
    "BLOCK",
    "CACHE",
    "LINK",
    "MOST",
    "PER_BLOCK",
    "VOCABULARY",
    "Adapted",
    "Cached",
    "Entry",
    "Held",
    "Load",
    "Lookup",
    "Pool",
    "Served",
    "Server",
    "Trial",
    "Writer",
    "Writers",
    "book",
    "break_even",
    "cache_hits",
    "check_beats",
    "check_break_even",
    "check_collision",
    "check_confirmed",
    "check_copies",
    "check_differ",
    "check_finds",
    "check_forgets",
    "check_fork",
    "check_forks",
    "check_grows",
    "check_guess",
    "check_holds",
    "check_keeps_up",
    "check_last",
    "check_my_break_even",
    "check_names",
    "check_no_room",
    "check_oldest",
    "check_own_words",
    "check_pool",
    "check_recompute",
    "check_refuses",
    "check_root",
    "check_served",
    "check_swap",
    "check_tails",
    "check_whole_ids",
    "collide",
    "confirmed",
    "conversations",
    "device",
    "digests",
    "draw_blocks",
    "draw_break_even",
    "draw_history",
    "draw_names",
    "draw_policies",
    "draw_samples",
    "drawn_stairs",
    "drawn_swap",
    "drawn_texts",
    "drawn_tokens",
    "fork",
    "generator",
    "held_by_samples",
    "history",
    "least_recent",
    "lookup",
    "most_hits",
    "moves",
    "or_none",
    "recompute",
    "say",
    "scans",
    "serve",
    "shape",
    "step_time",
    "swap",
    "thin_digests",
    "together",
    "usable",
    "usable_functions",
    "victim",
    "write",
    "your_server",
]


def book() -> dict[str, Any]:
    """What the book's machine gave: `numbers`, `machine`, `date`."""
    found: dict[str, Any] = json.loads((Path(__file__).parents[1] / "sharing.json").read_text(encoding="utf-8"))
    return found
