# mypy: ignore-errors
# (numba infers and checks the types of compiled functions, and they are not those of Python)
"""How threads share the pieces of a phase, compiled: one word that says everything.

A ticket holds the phase, how many pieces it has, and the next one to take. A thread that adds 1 to it owns the piece
it then reads, whatever it knew before. So no thread is waited for but one that holds a piece: a thread that sleeps, is
late, or does not exist only helps less.
"""

from numba import njit

from underload.decoder.fast.sync import fetch_add, give_way, load, pause, store
from underload.decoder.fast.team import DONE, END, STOP, TICKET

_SPINS = 2000  # tries before a waiting thread offers its core to others


@njit(inline="always")
def ticket_of(phase: int, pieces: int) -> int:
    return (phase << 48) | (pieces << 24)


@njit(inline="always")
def phase_of(ticket: int) -> int:
    return ticket >> 48


@njit(inline="always")
def pieces_of(ticket: int) -> int:
    return (ticket >> 24) & 0xFFFFFF


@njit(inline="always")
def piece_of(ticket: int) -> int:
    return ticket & 0xFFFFFF


@njit(inline="always")
def offer(control, phase: int, pieces: int) -> None:
    """Open the first phase, or the next: all that was written before is seen by who takes a piece of it."""
    store(control, DONE, 0)
    store(control, TICKET, ticket_of(phase, pieces))


@njit(inline="always")
def last_done(control, ticket: int) -> bool:
    """Hand in a piece; whether it was the last of its phase, so that the caller opens the next one."""
    return fetch_add(control, DONE, 1) + 1 == pieces_of(ticket)


@njit
def take(control, patience: int) -> int:
    """The ticket of a piece that is now the caller's; or -1 once the step is over (patience 0), or when nothing came
    for a while or STOP is set."""
    waited, gave_way = 0, 0
    while True:
        ticket = load(control, TICKET)
        if piece_of(ticket) < pieces_of(ticket):
            ticket = fetch_add(control, TICKET, 1)
            if piece_of(ticket) < pieces_of(ticket):
                return ticket
            continue
        if phase_of(ticket) == END and (patience == 0 or gave_way > patience or load(control, STOP) != 0):
            return -1
        waited += 1
        if waited < _SPINS:
            pause()
        else:
            gave_way += 1
            give_way()
