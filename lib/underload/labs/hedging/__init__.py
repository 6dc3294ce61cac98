"""Lab 13, "Hedging": what its tasks start from, and checks that say what is wrong with a value.

    stage      Hidden, serve: a policy at a front door before replicas, on a virtual clock
    policies   Second, Budgeted, TwoQueues, FirstToken, Learned: what the tasks ask for
    paper      Task 1: delay_for, left_after: what a budget buys, from measured times alone
    second     Task 2: a second copy; account: what the copies come to
    budget     Task 3: a bucket of tokens, and nobody idle
    tied       Task 4: two copies in two lines
    tokens     Task 5: calls that answer in tokens; at_most: what second copies compute
    learned    Task 6: a delay that is learned
    live       the same objects in front of real engines
    own        a student's objects where they work
    pictures   draw_*: the pictures of the lab

`check_*` raise AssertionError with the wrong value, what it is instead, and what was wanted. Times are in s.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from underload.labs.answers import check_guess
from underload.labs.hedging.budget import (
    check_busy,
    check_down,
    check_idle,
    check_most,
    check_never_above,
    check_quiet,
    check_rules,
    check_share,
    most_above,
    with_second,
)
from underload.labs.hedging.learned import Changing, changing, check_keeps, check_learns
from underload.labs.hedging.live import live
from underload.labs.hedging.own import (
    usable_account,
    usable_budgeted,
    usable_first_token,
    usable_learned,
    usable_number,
    usable_second,
    usable_two_queues,
)
from underload.labs.hedging.paper import check_delay, check_left, delay_for, drawn_times, left_after
from underload.labs.hedging.pictures import draw_calls, draw_delay, draw_loads, draw_tail
from underload.labs.hedging.policies import Budgeted, FirstToken, Learned, Second, TwoQueues
from underload.labs.hedging.second import (
    account,
    check_account,
    check_failed,
    check_gain,
    check_many,
    check_needless,
    check_saves,
    check_two,
    drawn_states,
    hundred,
)
from underload.labs.hedging.stage import (
    Hidden,
    all_answered,
    by_chance,
    by_hand,
    by_itself,
    delay_of,
    drawn_service,
    measured_times,
    once,
    own_work,
    p99,
    serve,
    storm,
)
from underload.labs.hedging.tied import (
    check_both_start,
    check_called_back,
    check_lines,
    check_one_is_enough,
    check_waits,
    mean_wait,
)
from underload.labs.hedging.tokens import (
    Chat,
    at_most,
    chat,
    check_at_most,
    check_chat,
    check_first_wins,
    check_no_need,
    check_paused,
    check_ttft,
    drawn_asks,
    drawn_chat,
    ends,
    extra_tokens,
    first_tokens,
    hedged_calls,
    q,
)

__all__ = [
    "Budgeted",
    "Changing",
    "Chat",
    "FirstToken",
    "Hidden",
    "Learned",
    "Second",
    "TwoQueues",
    "account",
    "all_answered",
    "at_most",
    "book",
    "by_chance",
    "by_hand",
    "by_itself",
    "changing",
    "chat",
    "check_account",
    "check_at_most",
    "check_both_start",
    "check_busy",
    "check_called_back",
    "check_chat",
    "check_delay",
    "check_down",
    "check_failed",
    "check_first_wins",
    "check_gain",
    "check_guess",
    "check_idle",
    "check_keeps",
    "check_learns",
    "check_left",
    "check_lines",
    "check_many",
    "check_most",
    "check_needless",
    "check_never_above",
    "check_no_need",
    "check_one_is_enough",
    "check_paused",
    "check_quiet",
    "check_rules",
    "check_saves",
    "check_share",
    "check_ttft",
    "check_two",
    "check_waits",
    "delay_for",
    "delay_of",
    "draw_calls",
    "draw_delay",
    "draw_loads",
    "draw_tail",
    "drawn_asks",
    "drawn_chat",
    "drawn_service",
    "drawn_states",
    "drawn_times",
    "ends",
    "extra_tokens",
    "first_tokens",
    "hedged_calls",
    "hundred",
    "left_after",
    "live",
    "mean_wait",
    "measured_times",
    "most_above",
    "once",
    "own_work",
    "p99",
    "q",
    "serve",
    "storm",
    "usable_account",
    "usable_budgeted",
    "usable_first_token",
    "usable_learned",
    "usable_number",
    "usable_second",
    "usable_two_queues",
    "with_second",
]


def book() -> dict[str, Any]:
    """What the book's machine gave: `numbers`, `machine`, `date`."""
    path = Path(__file__).parents[1] / "hedging.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
