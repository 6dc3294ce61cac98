"""The recorded run of the lab, and runs of the engine or the simulator, as stories of their requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from underload.cache import BlockPool, HostPool
from underload.engine import Engine
from underload.labs.tail.stories import Row, Story
from underload.metrics import StepShares, e2e, succeeded
from underload.request import SamplingParams, StepRecord, Timeline, UnderloadError
from underload.scheduling import Continuous
from underload.simulation import LinearStepTime, simulate_serving
from underload.workload import Planned

ROWS, BLOCKS = 8, 40  # sequences in a step; blocks of 16 tokens, a few less than eight requests can come to need
_TICK = 1e-7  # s: what instants are rounded to in the recording


@cache
def book() -> dict[str, Any]:
    """What was recorded: machine, date, command, the run."""
    return json.loads(resources.files("underload.labs").joinpath("tail.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Run:
    """The two records of a run: one a request, one a step."""

    timelines: list[Timeline]
    steps: list[StepRecord]

    @classmethod
    def of(cls, engine: Engine) -> Run:
        """The run of an engine that has served a plan (`engine.serve`); requests in the order of the plan."""
        requests = sorted(engine.finished, key=lambda request: int(request.request_id))
        return cls([request.timeline for request in requests], engine.steps)

    @property
    def seconds(self) -> float:
        """s from the beginning of the first step to the end of the last."""
        return self.steps[-1].start + self.steps[-1].duration - self.steps[0].start

    @property
    def latencies(self) -> list[float]:
        """E2E of those that succeeded, in s, in the order in which they came."""
        return [took for line in self.timelines if succeeded(line) and (took := e2e(line)) is not None]

    @property
    def stories(self) -> list[Story]:
        """Those that succeeded, each with its steps; `place` counts the run's requests."""
        shares = StepShares(self.steps)
        return [_story(place, line, shares) for place, line in enumerate(self.timelines) if succeeded(line)]

    def as_data(self) -> dict[str, Any]:
        """Plain data for JSON, in ticks of 0.1 µs since the first arrival or step."""
        zero = min([line.arrival for line in self.timelines] + [step.start for step in self.steps])

        def ticks(instant: float) -> int:
            return round((instant - zero) / _TICK)

        shares = StepShares(self.steps)
        steps, before = [], 0
        for step in self.steps:
            start, end = ticks(step.start), ticks(step.start + step.duration)
            steps.append([start - before, end - start, step.decode_tokens, step.prefill_tokens])
            before = end
        lines = []
        for line in self.timelines:
            computed = shares.ending(at for at, _, _ in line.prefills).tolist()
            assert line.scheduled is not None
            lines.append(
                {
                    "arrival": ticks(line.arrival),
                    "scheduled": ticks(line.scheduled),
                    "prefills": [[step, *entry[1:]] for step, entry in zip(computed, line.prefills)],
                    "preempted": [ticks(at) for at in line.preempted],
                    "tokens": shares.ending(line.token_times).tolist(),
                }
            )
        return {"steps": steps, "requests": lines}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Run:
        """The run that `as_data` wrote down."""
        steps, ends, at = [], [], 0
        for gap, took, decode, prefill in data["steps"]:
            start, at = at + gap, at + gap + took
            ends.append(at * _TICK)
            steps.append(
                StepRecord(
                    start * _TICK, at * _TICK - start * _TICK, decode, prefill_tokens=prefill, decode_tokens=decode
                )
            )
        lines = []
        for one in data["requests"]:
            arrival, times = one["arrival"] * _TICK, [ends[step] for step in one["tokens"]]
            lines.append(
                Timeline(
                    arrival,
                    sent=arrival,
                    scheduled=one["scheduled"] * _TICK,
                    prefills=[(ends[step], start, stop) for step, start, stop in one["prefills"]],
                    preempted=[at * _TICK for at in one["preempted"]],
                    preemptions=len(one["preempted"]),
                    token_times=times,
                    finished=times[-1],
                    prompt_tokens=next(stop for step, _, stop in one["prefills"] if step == one["tokens"][0]),
                    finish_reason="length",
                )
            )
        return cls(lines, steps)


def _story(place: int, line: Timeline, shares: StepShares) -> Story:
    assert line.scheduled is not None and line.sent is not None
    tokens = shares.ending(line.token_times).tolist()
    first = int(np.searchsorted(shares.starts, line.scheduled - 1e-9))
    prefills = dict(zip(shares.ending(at for at, _, _ in line.prefills).tolist(), line.prefills))
    begins = shares.starts.tolist()
    rows, known, away, losses, drawn = [], 0, False, list(line.preempted), 0
    for step in range(first, tokens[-1] + 1):
        start = begins[step]
        while losses and losses[0] <= start + 1e-9:
            away = True
            losses.pop(0)
        token, own, again = step in tokens, 0, 0
        if step in prefills:
            _, begin, stop = prefills[step]
            known = max(known, line.prompt_tokens + drawn - 1 if drawn else 0)
            again = min(max(known - begin, 0), stop - begin)
            own, known = stop - begin - again, max(known, stop)
        if token or own or again:
            away = False
        elif not away:
            raise UnderloadError(
                f"request {place} has its blocks and computes nothing in the step at {start} s; the lab's runs have a "
                "budget of tokens that is large enough for everybody"
            )
        drawn += tokens.count(step) if token else 0
        prompts = int(shares.prefill[step])
        end, base = float(shares.ends[step]), float(shares.base[step])
        rows.append(Row(start, end, base, prompts, own, again, token, away))
    return Story(place, line.arrival, line.sent, begins[first], line.token_times[0], line.token_times[-1], tuple(rows))


@cache
def recorded() -> Run:
    """The run that was recorded."""
    return Run.from_data(book()["run"])


def planned(rate: float, count: int, seed: int = 0) -> list[Planned]:
    """Requests at random instants: nine short prompts and one long one, answers of 16 tokens on average."""
    draw, at, made = default_rng(seed), 0.0, []
    for place in range(count):
        at += float(draw.exponential(1 / rate))
        prompt = int(draw.integers(180, 300)) if draw.random() < 0.1 else int(draw.integers(8, 40))
        answer = min(int(draw.geometric(1 / 16)), 100)
        made.append(Planned(at, prompt, answer, place, sampling=SamplingParams(temperature=0, ignore_eos=True)))
    return made


def simulated(draw: Generator, requests: int = 120, *, swap: bool = False) -> Run:
    """A load on the simulator, near to what it carries and in a pool that is too small for it: somebody is preempted.

    Args:
        swap: whether those who are put back go to the host; else they compute again.
    """
    overhead, per_token = float(draw.uniform(0.005, 0.02)), float(draw.uniform(0.0001, 0.0003))
    carried = ROWS / 16 / (overhead + 2.5 * ROWS * per_token)
    for _ in range(20):
        run = simulate_serving(
            planned(0.9 * carried, requests, int(draw.integers(2**31))),
            LinearStepTime(overhead, per_token),
            pool=BlockPool(BLOCKS, 16, prefix_caching=False),
            batching=Continuous(prefill="mixed" if draw.random() < 0.5 else "decode-first"),
            max_num_seqs=ROWS,
            preemption="swap" if swap else "recompute",
            host_pool=HostPool(200) if swap else None,
        )
        if any(line.preempted for line in run.timelines):
            break
    return Run(run.timelines, run.steps)
