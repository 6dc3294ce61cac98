"""`underload bench serve`: a load through the real engine and decoder, reported as `underload simulate` reports one."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from underload.cli import print_json
from underload.cli.generate import add_model_options
from underload.cli.model import parse_size
from underload.cli.report import print_report, report_of, slo_of
from underload.cli.serve_options import (
    EXAMPLES,
    LoadPlan,
    add_serving_options,
    load_of,
    policies_of,
    policy_line,
    require_room,
)
from underload.cli.workload import seconds, summary_line
from underload.request import FinishReason, Request, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping

    from underload.decoder import Model
    from underload.engine import Engine, Executor
    from underload.scheduling import Plan, StepResult
    from underload.workload import Planned

EPILOG = (
    """\
examples:
  underload bench serve --rate 20 --requests 200 --prompt 32 --output geometric:24
  underload bench serve --rate 20 --requests 200 --prompt 32 --output geometric:24 --batching static --batch-size 8
  underload bench serve --model smollm2-135m --rate 1 --horizon 2min --prompt lognormal:mean=100,cv=1 --output 40 \\
      --kv-memory 2GB --slo ttft=1s,tpot=100ms --trace-out run.json.gz
  underload bench serve --model pocket --trace synthetic:azure-conv --limit 256 --beyond truncate \\
      --requests 300 --speed 10

"""
    + EXAMPLES
    + """\
Prompts are random ids, and answers are as long as the load says, whatever the model writes. It takes as long as the
load lasts. Other programs disturb the figures: look at the load average.
"""
)


def register(benches: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `underload bench serve`."""
    parser = benches.add_parser(
        "serve",
        help="serve a load with the real engine",
        description="Serve a load with the engine and a real decoder, in real time. The options are those of "
        "underload simulate, but for the model, which takes the place of its step times.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_options(parser, default="pocket")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="X", help="of the sampling (default: 0)")
    add_serving_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    slo, warmup = slo_of(args.slo), seconds(args.warmup, "--warmup") or 0.0
    load = load_of(args)
    sampling = SamplingParams(temperature=args.temperature, seed=args.seed)
    planned = [replace(one, sampling=sampling) for one in load.planned]
    options = policies_of(args, planned)
    if args.max_tokens is not None:
        options["lookahead"] = 0  # `PlannedLengths` executes one plan after the other
    memory = None if args.kv_memory is None else parse_size(args.kv_memory)

    from underload.decoder import decoder_engine, load_model, machine
    from underload.engine import write_chrome_trace

    model = load_model(args.model, device=args.device, dtype=args.dtype, path=args.path)
    engine = decoder_engine(
        model,
        kv_memory=memory,
        num_blocks=args.num_blocks,
        block_size=args.block_size,
        prefix_caching=not args.no_prefix_caching,
        **options,
    )
    pool = engine.scheduler.pool
    require_room(load, engine.scheduler.max_model_len, pool.num_blocks * pool.block_size)
    if args.max_tokens is not None:
        engine.executor = PlannedLengths(engine.executor, {str(one.index): one.output_tokens for one in planned})
    about = {
        "model": args.model,
        "path": model.path,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": model.device.type,
        "machine": machine(),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }
    start, requests = serve_measured(engine, model, planned, args)
    report = report_of(requests, engine.steps, block_size=args.block_size, start=start, warmup=warmup, slo=slo)
    model.close()
    if args.json:
        print_json(
            {
                **about,
                "load": {"name": load.name, "requests": len(load.planned)},
                "policies": policy_line(args),
                "notes": load.notes,
                **report,
            }
        )
    else:
        _print(args, load, about, report)
    if args.trace_out:  # last: a place that cannot be written costs no figures
        write_chrome_trace(args.trace_out, engine.steps, requests)


def _print(args: argparse.Namespace, load: LoadPlan, about: dict[str, Any], report: dict[str, Any]) -> None:
    here = about["machine"]
    busy = "" if about["load_before"] is None else f"; load average before: {about['load_before']:.2f}"
    print(f"load         {load.name}: {summary_line(load.planned)}")
    print(f"engine       {policy_line(args)}; {args.model} ({about['dtype']}, {about['path']} path)")
    print(f"machine      {here['cpu']}, {here['cores']} cores, torch {here['torch']}, {about['device']}{busy}")
    for note in load.notes:
        print(f"note         {note}")
    print()
    print_report(report)


def serve_measured(
    engine: Engine, model: Model, planned: list[Planned], args: argparse.Namespace
) -> tuple[float, list[Request]]:
    """Serve the plan, after a few requests that are not measured: what a machine does for the first time takes longer.

    Returns:
        The instant of the plan's time 0, and the requests in its order. `engine.steps` are those of the plan.
    """
    from underload.engine import generate, serve
    from underload.engine.progress import progress_bar
    from underload.workload import PromptIds

    first = [[3 + i % 7] * min(max(one.prompt_tokens for one in planned), 64) for i in range(4)]
    generate(engine, first, SamplingParams(max_tokens=4, temperature=args.temperature, ignore_eos=True), progress=False)
    engine.steps.clear()
    engine.finished.clear()
    ids = PromptIds(model.shape.vocab_size, seed=args.seed)
    with progress_bar(False if args.json else None, len(planned)) as bar:
        told = 0

        def show(*_: Any) -> None:
            nonlocal told
            for request in engine.finished[told:]:
                bar.finish(request)
            told = len(engine.finished)
            bar.draw()

        engine.on_step = show
        requests = serve(engine, planned, ids, max_tokens=args.max_tokens)
    requests.sort(key=lambda request: int(request.request_id))
    due = {str(one.index): one.arrival for one in planned if one.think is None}
    starts = (one.timeline.arrival - due[one.request_id] for one in requests if one.request_id in due)
    return next(starts, engine.clock.now()), requests


class PlannedLengths:
    """An executor whose answers end where a plan says, although the scheduler was told of more (`engine.Executor`)."""

    def __init__(self, executor: Executor, output_tokens: Mapping[str, int]) -> None:
        self._executor = executor
        self._output_tokens = output_tokens
        self.max_model_len = executor.max_model_len

    def check(self, request: Request) -> None:
        self._executor.check(request)

    def execute(self, plan: Plan) -> StepResult:
        result = self._executor.execute(plan)
        for work, sampled in zip(plan.work, result.sampled):
            sequence, request = work.sequence, work.sequence.request
            assert request is not None
            most = self._output_tokens.get(request.request_id)
            if most is not None and len(sequence.tokens) - sequence.prompt_len + 1 >= most:
                sampled[:] = [replace(one, finish_reason=one.finish_reason or FinishReason.STOP) for one in sampled]
        return result

    def release(self, request: Request) -> None:
        self._executor.release(request)
