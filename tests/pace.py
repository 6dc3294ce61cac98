"""How slow this machine is now, for the few tests that a flood of work would make wait: they compare a processor's
seconds with a limit that is generous on the machine of `make.py` and as much longer on a slower one."""

from __future__ import annotations

import runpy
from pathlib import Path

MAKE = Path(__file__).resolve().parents[1] / "make.py"


def slowness() -> float:
    """How many times as long as there a fixed piece of Python takes here, now; at least 1. Takes a quarter second."""
    make = runpy.run_path(str(MAKE))
    return max(1.0, float(make["yardstick"]() / make["YARDSTICK"]))
