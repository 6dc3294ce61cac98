"""Lab 6, "Continuous batching": what its tasks start from, and checks that say what is wrong with a value.

    paper      static_steps, continuous_steps: how long a load takes, on paper
    stage      Ask, serve, Run: a policy under the real scheduler, on a virtual clock
    policies   Joining, Chunked, Headroom, Spread, Quick: what the tasks ask for
    joining    Task 2: everybody comes and goes
    chunks     Task 3: decodes first, prompts in chunks
    room       Task 4: who may begin, and who gives up its blocks
    promise    longest_gap, first_token, chunk_for: what a prompt costs the others
    quick      Task 6: who goes first
    own        a student's objects where they work; on pocket
    pictures   draw_*: the pictures of the lab

`check_*` raise AssertionError with the wrong value, what it is instead, and what was wanted. Times are in s.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from underload.labs.answers import check_guess
from underload.labs.continuous_batching.chunks import (
    check_beside,
    check_goes_on,
    check_in_front,
    check_in_order,
    check_in_turn,
    check_limit,
    check_no_stall,
    check_nothing_left,
    check_pieces,
    check_shares,
    prompt_tokens,
)
from underload.labs.continuous_batching.joining import (
    check_all_at_once,
    check_fills,
    check_joins,
    check_leaves,
    check_overtakes,
    check_paper,
    check_put_back,
    check_queue,
    check_small_budget,
)
from underload.labs.continuous_batching.own import (
    answer,
    stall,
    usable_chunked,
    usable_headroom,
    usable_joining,
    usable_quick,
    usable_spread,
    whose,
    words_of,
)
from underload.labs.continuous_batching.paper import (
    answer_lengths,
    check_continuous_steps,
    check_static_steps,
    continuous_steps,
    drawn_lengths,
    static_steps,
)
from underload.labs.continuous_batching.pictures import draw_batches, draw_gaps, draw_room, draw_waits
from underload.labs.continuous_batching.policies import Chunked, Headroom, Joining, Quick, Spread
from underload.labs.continuous_batching.promise import (
    Server,
    check_chunk_for,
    check_first_token,
    check_longest_gap,
    check_my_chunk,
    chunk_for,
    drawn_case,
    drawn_promise,
    first_token,
    longest_gap,
    with_a_prompt,
    your_server,
)
from underload.labs.continuous_batching.quick import (
    LONG,
    SLOTS,
    check_begins,
    check_quicker,
    endless_load,
    mixed_load,
    serve_mixed,
)
from underload.labs.continuous_batching.room import (
    BLOCKS,
    BY_HAND,
    BY_HAND_ROWS,
    LIMIT,
    TYPICAL,
    check_admits,
    check_chooses,
    check_few_preemptions,
    check_quick_enough,
    check_spread,
    drawn_rows,
    drawn_sizes,
    serve_tight,
    tight_load,
)
from underload.labs.continuous_batching.stage import OVERHEAD, PER_TOKEN, Ask, Run, check_steps, drawn_load, serve

__all__ = [
    "BLOCKS",
    "BY_HAND",
    "BY_HAND_ROWS",
    "LIMIT",
    "LONG",
    "OVERHEAD",
    "PER_TOKEN",
    "SLOTS",
    "TYPICAL",
    "Ask",
    "Chunked",
    "Headroom",
    "Joining",
    "Quick",
    "Run",
    "Server",
    "Spread",
    "answer",
    "answer_lengths",
    "book",
    "check_admits",
    "check_all_at_once",
    "check_begins",
    "check_beside",
    "check_chooses",
    "check_chunk_for",
    "check_continuous_steps",
    "check_few_preemptions",
    "check_fills",
    "check_first_token",
    "check_goes_on",
    "check_guess",
    "check_in_front",
    "check_in_order",
    "check_in_turn",
    "check_joins",
    "check_leaves",
    "check_limit",
    "check_longest_gap",
    "check_my_chunk",
    "check_no_stall",
    "check_nothing_left",
    "check_overtakes",
    "check_paper",
    "check_pieces",
    "check_put_back",
    "check_queue",
    "check_quick_enough",
    "check_quicker",
    "check_shares",
    "check_small_budget",
    "check_spread",
    "check_static_steps",
    "check_steps",
    "chunk_for",
    "continuous_steps",
    "draw_batches",
    "draw_gaps",
    "draw_room",
    "draw_waits",
    "drawn_case",
    "drawn_lengths",
    "drawn_load",
    "drawn_promise",
    "drawn_rows",
    "drawn_sizes",
    "endless_load",
    "first_token",
    "longest_gap",
    "mixed_load",
    "prompt_tokens",
    "serve",
    "serve_mixed",
    "serve_tight",
    "stall",
    "static_steps",
    "tight_load",
    "usable_chunked",
    "usable_headroom",
    "usable_joining",
    "usable_quick",
    "usable_spread",
    "whose",
    "with_a_prompt",
    "words_of",
    "your_server",
]


def book() -> dict[str, Any]:
    """What the book's machine gave: `numbers`, `machine`, `date`."""
    path = Path(__file__).parents[1] / "continuous_batching.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
