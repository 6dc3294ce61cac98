"""What a door is worth, as the leaderboard counts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.random import default_rng

from underload.labs.capacity.checks import DOOR_PLAN
from underload.labs.capacity.service import burst, serve, share_kept


def score_door(made: Callable[[], Any], seed: int) -> float:
    """The share (%) of all requests that kept the promise behind a door, in a burst of three to five times what comes
    otherwise."""
    draw = default_rng(seed)
    requests = burst(draw, float(draw.uniform(3, 5)))
    return 100 * share_kept(serve(requests, DOOR_PLAN, door=made()).timelines)
