"""What else the machine was doing while something was timed."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_STAT = Path("/proc/stat")


def _ticks() -> tuple[int, int]:
    """All ticks of all cores since the start, and those in which a core was busy."""
    fields = [int(field) for field in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields), sum(fields) - idle


@contextmanager
def other_load(record: dict, *, own: Callable[[], float] = time.process_time) -> Iterator[None]:
    """Put into `record["other_load"]` the share of all cores that others used meanwhile, 0 to 1; None where unknown.

    Others are all processes but this one, and the host that the machine may be a guest of (stolen time). `own` gives
    the seconds of processor time used so far, where this process has others that work for it.
    """
    if not _STAT.exists():
        yield
        record["other_load"] = None
        return
    total, busy = _ticks()
    before = own()
    yield
    total_after, busy_after = _ticks()
    own_ticks = (own() - before) * os.sysconf("SC_CLK_TCK")
    elapsed = total_after - total
    # Under a tenth of a second a tick is too coarse a unit to say anything.
    record["other_load"] = None if elapsed < 10 else round(max(0.0, busy_after - busy - own_ticks) / elapsed, 3)
