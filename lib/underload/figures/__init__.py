"""Figures of book and labs: the house plotting style, the figure that moves, diagrams drawn by code.

    fig, ax = figures.axes(xlabel="batch size", ylabel="step time", yunit="ms")     # matplotlib, in the house style
    ax.plot(batches, times, **figures.look("measurement"), label="measured")
    figures.show(fig, alt="…", caption="…", data={"batch size": batches, "step time (ms)": times})

    figures.moving_figure(frame, [figures.Slider("batch", "Batch size", [1, 2, 4, 8])], title="…", alt="…", panels=[…])

    figures.request_life()                                                          # a diagram

Each returns a `Picture`, which a notebook cell shows: HTML that follows the page's theme, fits a phone, prints, and
carries its text alternative and its data. The same input gives the same bytes. Nothing here imports torch, and
matplotlib is imported on first use.
"""

from underload.figures.blocks import BlockRecording, block_pool, fork_and_copy, named_blocks
from underload.figures.diagrams import decode_step, kv_filling, ragged_batch, request_life, stage_bar, token_strip
from underload.figures.fanout import fan_out, slow_answers
from underload.figures.gantt import BatchRecording, batch_gantt
from underload.figures.goodput import goodput_against_load, refusing_at_the_door
from underload.figures.hedge import Copy, copies_in_time, hedge_delay
from underload.figures.landing import collision
from underload.figures.loops import open_and_closed
from underload.figures.memory import Kept, kv_memory, reserved_and_paged, waste_bars
from underload.figures.moving import (
    Band,
    Bar,
    Choice,
    Commit,
    Curve,
    Frame,
    Mark,
    Number,
    Rule,
    Slider,
    moving_figure,
)
from underload.figures.paging import attention_times, parts_and_merge, softmax_in_blocks, tables_and_pool, token_lookup
from underload.figures.palette import COLORS, FAMILIES, LOOKS, FigureError, Look, look
from underload.figures.pen import Pen, drawing
from underload.figures.plot import Axis, Panel
from underload.figures.queues import inspection, layouts_of_servers, two_ways, watch_queue
from underload.figures.still import Picture
from underload.figures.style import axes, show, style, svg_file
from underload.figures.tradeoff import batching_trade_off, rules_in_time
from underload.figures.wording import number, quantity

__all__ = [
    "COLORS",
    "FAMILIES",
    "LOOKS",
    "Axis",
    "Band",
    "Bar",
    "BatchRecording",
    "BlockRecording",
    "Choice",
    "Commit",
    "Copy",
    "Curve",
    "FigureError",
    "Frame",
    "Kept",
    "Look",
    "Mark",
    "Number",
    "Panel",
    "Pen",
    "Picture",
    "Rule",
    "Slider",
    "attention_times",
    "axes",
    "batch_gantt",
    "batching_trade_off",
    "block_pool",
    "collision",
    "copies_in_time",
    "decode_step",
    "drawing",
    "fan_out",
    "fork_and_copy",
    "goodput_against_load",
    "hedge_delay",
    "inspection",
    "kv_filling",
    "kv_memory",
    "layouts_of_servers",
    "look",
    "moving_figure",
    "named_blocks",
    "number",
    "open_and_closed",
    "parts_and_merge",
    "quantity",
    "ragged_batch",
    "refusing_at_the_door",
    "request_life",
    "reserved_and_paged",
    "rules_in_time",
    "show",
    "slow_answers",
    "softmax_in_blocks",
    "stage_bar",
    "style",
    "svg_file",
    "tables_and_pool",
    "token_lookup",
    "token_strip",
    "two_ways",
    "waste_bars",
    "watch_queue",
]
