"""What this machine can do at best, by the fastest code that is known here: the register tile itself.

A ceiling that the decoder passes is none. Summing a large array in torch reads at two thirds of what the tile reads on
some machines, since it keeps fewer requests in flight.
"""

import threading
import time

import numpy as np
from numba import njit

from underload.decoder.fast.tile import LANES, MAX_ROWS, panels_at_once, product
from underload.decoder.fast.version import digest

_INNER = 1024


def _compiled(version: int):  # type: ignore[no-untyped-def]
    def sweep(w, x, out, rows, panels, together, ahead, repeats):  # type: ignore[no-untyped-def]
        if version:
            for _ in range(repeats):
                for panel in range(0, panels, together):
                    product(
                        w,
                        panel * LANES * _INNER,
                        together,
                        x,
                        0,
                        _INNER + LANES,
                        rows,
                        out,
                        0,
                        4 * LANES,
                        _INNER,
                        ahead,
                    )

    try:
        return njit(nogil=True, cache=True)(sweep)
    except RuntimeError:  # no folder to keep compiled code in
        return njit(nogil=True)(sweep)


def measure(threads: int, megabytes: int = 512, runs: int = 7) -> tuple[float, float]:
    """The best of several runs: bytes/s read with no cache to help, and FLOP/s with all in the cache."""
    sweep = _compiled(digest())
    panels = megabytes * 2**20 // (4 * LANES * _INNER) // (4 * threads) * 4
    arrays = [np.ones(panels * LANES * _INNER, dtype=np.float32) for _ in range(threads)]
    x = np.ones(MAX_ROWS * (_INNER + LANES), dtype=np.float32)

    def best(rows: int, panels: int, together: int, ahead: int, repeats: int) -> float:
        """Seconds."""

        def one(array: np.ndarray) -> None:
            sweep(array, x, np.zeros(MAX_ROWS * 4 * LANES, dtype=np.float32), rows, panels, together, ahead, repeats)

        fastest = float("inf")
        for _ in range(runs + 1):
            workers = [threading.Thread(target=one, args=(array,)) for array in arrays[1:]]
            start = time.perf_counter()
            for worker in workers:
                worker.start()
            one(arrays[0])
            for worker in workers:
                worker.join()
            fastest = min(fastest, time.perf_counter() - start)
        return fastest

    bandwidth = threads * panels * 4 * LANES * _INNER / best(1, panels, 4, 256, 1)
    few, repeats = panels_at_once(MAX_ROWS), 800
    flops = threads * repeats * few * 2 * MAX_ROWS * LANES * _INNER / best(MAX_ROWS, few, few, 0, repeats)
    return bandwidth, flops
