"""How fast to send at something real, so that a lab ends."""

from __future__ import annotations

WITHIN = 20.0  # s


def rate_for(load: float, service: float, requests: int, within: float = WITHIN) -> float:
    """Requests a second that put `load` on a server which takes `service` s for each, as far as was measured.

    Never so few that sending `requests` takes longer than `within` s: a service time that was measured while the
    machine had something else to do would stretch the schedule to minutes, in which a lab sleeps and seems to hang.
    """
    return max(load / service, requests / within)
