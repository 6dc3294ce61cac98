"""Lab 14, "SLOs, goodput and capacity": what its tasks start from, and checks that say what is wrong with a value.

    service      the load, the promise, a plan, and a run of all of it on the virtual clock (`serve`, `attained`)
    mechanisms   what the tasks build, as the library has it: `meets` and `goodput` (task 1), `largest` and `capacity`
                 (2), `binds` (3), `cheapest` (4), `Open`, `Shed` and
                 `Frugal` (5)
    checks       raise AssertionError with the wrong value, the slip that gives it, and what was wanted
    score        `score_door`: what the leaderboard counts
    usable       usable_*: a student's work where it can be shown, the library's where it cannot
    frontdoor    the same door in front of a real engine
    pictures     draw_*

Times are in s, loads in requests a second. Torch-free: the cells that show things bring the real decoder.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from underload.labs.answers import check_guess
from underload.labs.capacity.checks import (
    BOUND,
    DOOR_PLAN,
    FLEET,
    LIMITS,
    OPTIONS,
    WINDOWS,
    bound_run,
    by_hand,
    check_binds,
    check_burst,
    check_capacity,
    check_cheapest,
    check_goodput,
    check_largest,
    check_meets,
    check_my_plan,
    check_quiet,
    check_reopens,
    check_room,
    check_router,
    drawn_options,
    drawn_service,
    drawn_timelines,
    fleet,
    six,
    timeline,
    windows,
    your_trace,
)
from underload.labs.capacity.frontdoor import answer
from underload.labs.capacity.mechanisms import (
    Frugal,
    Limits,
    Open,
    Shed,
    binds,
    capacity,
    cheapest,
    goodput,
    interval,
    largest,
    meets,
    student,
)
from underload.labs.capacity.pictures import draw_burst, draw_options, draw_rates, draw_search, draw_shares
from underload.labs.capacity.score import score_door
from underload.labs.capacity.service import (
    PLAN,
    PROMISE,
    Asked,
    Plan,
    Promise,
    at_once,
    attained,
    burst,
    kept,
    load,
    planned,
    serve,
    share_kept,
    short_load,
)
from underload.labs.capacity.usable import usable_binds, usable_capacity, usable_door, usable_goodput, usable_route

__all__ = [
    "BOUND",
    "DOOR_PLAN",
    "FLEET",
    "LIMITS",
    "OPTIONS",
    "PLAN",
    "PROMISE",
    "WINDOWS",
    "Asked",
    "Frugal",
    "Limits",
    "Open",
    "Plan",
    "Promise",
    "Shed",
    "answer",
    "at_once",
    "attained",
    "binds",
    "book",
    "bound_run",
    "burst",
    "by_hand",
    "capacity",
    "cheapest",
    "check_binds",
    "check_burst",
    "check_capacity",
    "check_cheapest",
    "check_goodput",
    "check_guess",
    "check_largest",
    "check_meets",
    "check_my_plan",
    "check_quiet",
    "check_reopens",
    "check_room",
    "check_router",
    "draw_burst",
    "draw_options",
    "draw_rates",
    "draw_search",
    "draw_shares",
    "drawn_options",
    "drawn_service",
    "drawn_timelines",
    "fleet",
    "goodput",
    "interval",
    "kept",
    "largest",
    "load",
    "meets",
    "planned",
    "score_door",
    "serve",
    "share_kept",
    "short_load",
    "six",
    "student",
    "timeline",
    "usable_binds",
    "usable_capacity",
    "usable_door",
    "usable_goodput",
    "usable_route",
    "windows",
    "your_trace",
]


@cache
def book() -> dict[str, Any]:
    """What the lab's own cells gave when they were recorded: machine, date, command, numbers."""
    return json.loads(resources.files("underload.labs").joinpath("capacity.json").read_text(encoding="utf-8"))
