"""Lab 12, "The tail": what its tasks start from, and checks that say what is wrong with a value.

    order     Tasks 1 and 3: between which places of a sorted sample a percentile lies, how many values that takes, and
              how often it is right
    sketch    Task 2: counts in buckets, which can be merged where percentiles cannot
    stories   Task 4: one request's way through the steps, taken apart into what it waited for
    runs      the recorded run, and a run of the decoder's engine or of the simulator as stories
    further   Tasks 6 and 7: the bootstrap, and pages of many leaves
    own       a student's functions where they work
    pictures  the pictures of the lab

`check_*` raise AssertionError with the wrong value, the slip that gives it, and what was wanted. Times are in s.
Torch-free: the cells that show things bring the real decoder.
"""

from underload.labs.answers import check_guess as check_guess
from underload.labs.tail.further import (
    bootstrap,
    check_bootstrap,
    check_leaf,
    check_shared,
    leaf_percentile,
    shared,
)
from underload.labs.tail.order import (
    chances,
    check_coverage,
    check_interval,
    check_needed,
    check_ranks,
    coverage,
    interval,
    latencies,
    meeting,
    needed,
    queue_latencies,
    ranks,
)
from underload.labs.tail.own import parts_of, tried, usable
from underload.labs.tail.pictures import draw_coverage, draw_interval, draw_parts, draw_servers
from underload.labs.tail.runs import BLOCKS, ROWS, Run, book, planned, recorded, simulated
from underload.labs.tail.sketch import (
    Sketch,
    above_edges,
    check_counts,
    check_merge,
    check_sketch,
    drawn_latencies,
    nearest,
    servers,
)
from underload.labs.tail.stories import (
    PARTS,
    Row,
    Story,
    attribute,
    by_hand,
    check_run,
    check_story,
    drawn_story,
    slowest,
)

__all__ = [
    "BLOCKS",
    "PARTS",
    "ROWS",
    "Row",
    "Run",
    "Sketch",
    "Story",
    "above_edges",
    "attribute",
    "book",
    "bootstrap",
    "by_hand",
    "chances",
    "check_bootstrap",
    "check_counts",
    "check_coverage",
    "check_guess",
    "check_interval",
    "check_leaf",
    "check_merge",
    "check_needed",
    "check_ranks",
    "check_run",
    "check_shared",
    "check_sketch",
    "check_story",
    "coverage",
    "draw_coverage",
    "draw_interval",
    "draw_parts",
    "draw_servers",
    "drawn_latencies",
    "drawn_story",
    "interval",
    "latencies",
    "leaf_percentile",
    "meeting",
    "nearest",
    "needed",
    "parts_of",
    "planned",
    "queue_latencies",
    "ranks",
    "recorded",
    "servers",
    "shared",
    "simulated",
    "slowest",
    "tried",
    "usable",
]
