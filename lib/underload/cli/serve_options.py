"""What `underload simulate` and `underload bench serve` have in common: a load, an engine's policies and limits.

add_serving_options    the options, for both; of the load alone: add_source_options, of the engine: add_engine_options
load_of                the plan that is served
policies_of            the scheduler's policies and limits, as its own arguments
pool_of                the blocks
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from underload.cli.queue import number
from underload.cli.workload import add_load_options, planned_load, seconds
from underload.request import UnderloadError

if TYPE_CHECKING:
    from underload.cache import BlockPool
    from underload.scheduling import Admission, Batching, LengthPredictor, Order
    from underload.workload import Planned, Segment

BATCHINGS = ("continuous", "static", "size-or-timeout", "greedy")
PREFILLS = ("decode-first", "mixed", "prefill-first")
ORDERS = ("first-come", "shortest-first", "fair-share", "priority", "deadline")
ADMISSIONS = ("fits-now", "reserve-all", "watermark", "predicted-peak")
VICTIMS = ("last-arrived", "least-computed", "cheapest")

EXAMPLES = """\
Rates are in 1/s. Times are in s, or with a unit: 20ms, 10min. Lengths and limits are in tokens.
The same seed and options give the same load, whatever the policies.
"""


def add_serving_options(parser: argparse.ArgumentParser) -> None:
    """Load, policies, limits, and what is printed."""
    add_source_options(parser)
    add_engine_options(parser)
    output = parser.add_argument_group("what is reported")
    output.add_argument("--slo", metavar="TERMS", help="such as ttft=500ms,tpot=50ms: adds goodput and attainment")
    output.add_argument("--warmup", metavar="S", help="leave the arrivals before S out of the figures (default: 0)")
    output.add_argument("--trace-out", metavar="FILE", help="the run for ui.perfetto.dev: .json or .json.gz")
    output.add_argument("--json", action="store_true", help="print JSON")


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """The load."""
    source = parser.add_argument_group("the load: a trace, or made to order by what follows")
    source.add_argument(
        "--trace", metavar="TRACE", help="a file, a name from `underload workload list`, synthetic:NAME"
    )
    source.add_argument("--speed", metavar="X", help="with --trace: X times as fast (default: 1)")
    source.add_argument("--skip-bad", action="store_true", help="with --trace: leave malformed rows out")
    source.add_argument("--seed", type=int, default=0, metavar="N", help="of the load and its tokens (default: 0)")
    add_load_options(parser, required=False)


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Policies and limits."""
    policy = parser.add_argument_group("the scheduler's policies")
    policy.add_argument("--batching", choices=BATCHINGS, default="continuous", help="(default: continuous)")
    policy.add_argument(
        "--batch-size", type=int, metavar="N", help="static, size-or-timeout, greedy: members of a batch"
    )
    policy.add_argument("--timeout", metavar="S", help="size-or-timeout: a batch leaves so long after its first came")
    policy.add_argument(
        "--chunked-prefill",
        action=argparse.BooleanOptionalAction,
        help="continuous: compute a prompt that is too long for a step in several (default: yes)",
    )
    policy.add_argument("--prefill", choices=PREFILLS, help="continuous: whose tokens go first (default: decode-first)")
    policy.add_argument("--order", choices=ORDERS, default="first-come", help="of the queue (default: first-come)")
    policy.add_argument(
        "--aging", metavar="X", help="what a second of waiting makes up for: shortest-first: tokens; priority: levels"
    )
    policy.add_argument("--weights", metavar="T=W,…", help="fair-share: shares of tenants, as in chat=3,batch=1")
    policy.add_argument("--priorities", metavar="T=P,…", help="priority: of tenants, as in chat=2; larger goes first")
    policy.add_argument("--deadline", metavar="S", help="deadline: so long after its arrival an answer is wanted")
    policy.add_argument("--admission", metavar="RULE", help=f"{', '.join(ADMISSIONS)} (watermark:SHARE)")
    policy.add_argument("--predictor", metavar="P", help="of answers' lengths: max-tokens, oracle, noisy:SIGMA")
    policy.add_argument("--victim", choices=VICTIMS, default="last-arrived", help="(default: last-arrived)")
    policy.add_argument("--preemption", choices=("recompute", "swap"), default="recompute", help="(default: recompute)")
    policy.add_argument("--max-queue", type=int, metavar="N", help="turn away who comes when N wait")
    policy.add_argument("--max-wait", metavar="S", help="drop who has not begun so long after coming")

    limits = parser.add_argument_group("the engine's limits")
    limits.add_argument("--max-num-seqs", type=int, default=256, metavar="N", help="running at once (default: 256)")
    limits.add_argument(
        "--max-num-batched-tokens", type=int, default=2048, metavar="N", help="tokens in a step (default: 2048)"
    )
    limits.add_argument("--max-model-len", type=int, metavar="N", help="tokens of one sequence, prompt and answer")
    limits.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="what each request may generate, as far as the scheduler knows (default: just what it will)",
    )
    limits.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens in a block (default: 16)")
    memory = limits.add_mutually_exclusive_group()
    memory.add_argument("--num-blocks", type=int, metavar="N", help="blocks of the KV cache")
    memory.add_argument("--kv-memory", metavar="SIZE", help="memory of the KV cache, such as 2GB or 512MiB")
    limits.add_argument("--host-blocks", type=int, metavar="N", help="with --preemption swap: blocks on the host")
    limits.add_argument("--no-prefix-caching", action="store_true", help="share no blocks between requests")


# ---- the load ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadPlan:
    """What is to be served.

    name: where it comes from, for people.
    notes: what they should know of it, one sentence each.
    """

    planned: list[Planned]
    name: str
    notes: tuple[str, ...] = ()


def load_of(args: argparse.Namespace) -> LoadPlan:
    """The load that the options name.

    Raises:
        UnderloadError: none or two are named, or a trace that cannot be replayed or leaves no request.
    """
    if (args.trace is None) == (args.rate is None):
        raise UnderloadError(
            "give a load: --trace TRACE, or --rate with --requests or --horizon"
            if args.trace is None
            else "--trace has its own arrivals, and --rate makes some: leave one of them out (--speed replays faster; "
            "--rate with --like TRACE draws the trace's lengths)"
        )
    if args.trace is None:
        for option in ("speed", "skip_bad"):
            if getattr(args, option):
                raise UnderloadError(f"--{option.replace('_', '-')} belongs to --trace; leave it out, or give one")
        if args.requests is None and args.horizon is None:
            raise UnderloadError("--rate never ends: add --requests N, or --horizon S")
        load = LoadPlan(planned_load(args), f"{args.arrivals} arrivals at {args.rate}/s, seed {args.seed}")
    else:
        load = _replayed(args)
    if not load.planned:
        raise UnderloadError(f"{load.name} leaves no request to serve; take a longer horizon, or another limit")
    return replace(load, planned=wished(args, load.planned))


def require_room(load: LoadPlan, max_model_len: int | None, pool_tokens: int) -> None:
    """Refuse a load whose longest requests would be cut off or refused: what is measured should be what was asked for.

    Raises:
        UnderloadError: naming how many they are, their length and the limit.
    """
    # The last token is never fed back: it needs room in the text, and none in the pool.
    for limit, spare, what in (
        (max_model_len, 0, "one sequence may have {:,} tokens"),
        (pool_tokens, 1, "the KV cache holds {:,} tokens (more by --num-blocks or --kv-memory)"),
    ):
        if limit is None:
            continue
        lengths = [one.prompt_tokens + one.output_tokens - spare for one in load.planned]
        if beyond := sum(length > limit for length in lengths):
            raise UnderloadError(
                f"{beyond:,} of {len(lengths):,} requests are longer than the engine takes, up to {max(lengths):,} "
                f"tokens, and {what.format(limit)}; --limit {limit} --beyond truncate shortens them"
            )


def _replayed(args: argparse.Namespace) -> LoadPlan:
    from underload.workload import Measured, Trace, find_trace, load_trace, read_plan

    made = (
        "arrivals burstiness on off swing period prompt output correlation like groups prefix skew turns think system"
    )
    defaults = {"arrivals": "poisson"}
    for option in made.split():
        if getattr(args, option) != defaults.get(option):
            raise UnderloadError(f"--{option} makes a load to order, and --trace is one; leave one of them out")
    speed = 1.0 if args.speed is None else number(args.speed, "--speed")
    if not speed > 0:
        raise UnderloadError(f"--speed must be above 0, got {args.speed}")
    horizon = seconds(args.horizon, "--horizon")
    notes: tuple[str, ...] = ()
    name = str(args.trace)
    if not name.startswith("synthetic:") and _is_plan(find_trace(name)):
        planned = [replace(one, arrival=one.arrival / speed) for one in read_plan(find_trace(name))]
    else:
        record = load_trace(name, skip_bad=args.skip_bad)
        trace = record.trace() if isinstance(record, Measured) else record
        if not isinstance(trace, Trace):
            raise UnderloadError(f"{name} holds laws of single clients and no requests; name a trace of requests")
        planned, notes = trace.plan(speed=speed, seed=args.seed), trace.oddities
        name = trace.name
        if left := len(trace) - len(planned):
            notes += (f"{left:,} of {len(trace):,} rows failed or are empty, and are left out",)
    planned = [one for one in planned if horizon is None or one.arrival < horizon]
    planned, cut = _within(planned, args.limit, args.beyond)
    if cut:
        notes += (f"{cut:,} requests are longer than --limit {args.limit}, and {_CUT[args.beyond]}",)
    planned = [replace(one, index=index) for index, one in enumerate(planned[: args.requests])]
    return LoadPlan(planned, name if speed == 1 else f"{name}, {speed:g} times as fast", notes)


_CUT = {None: "are left out", "truncate": "are shortened to it"}


def _is_plan(path: Path) -> bool:
    """Whether a file is one of `underload workload generate`: it alone keeps think times."""
    import gzip
    import json

    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as text:
            row = json.loads(text.readline())
    except (ValueError, OSError):
        return False  # whoever reads it as a trace will say what is wrong
    return isinstance(row, dict) and {"arrival", "prompt_tokens", "output_tokens"} <= set(row)


def _within(planned: list[Planned], limit: int | None, beyond: str | None) -> tuple[list[Planned], int]:
    """The requests of a trace within a limit on prompt and answer together, and how many were beyond it."""
    if limit is None:
        if beyond is not None:
            raise UnderloadError("--beyond says what happens beyond --limit; give that too, or leave --beyond out")
        return planned, 0
    if limit < 2:
        raise UnderloadError(f"--limit must leave room for a prompt and an answer, 2 tokens at least, got {limit}")
    if beyond == "redraw":
        raise UnderloadError(
            "a trace is replayed, not drawn: --beyond truncate shortens, and without it they are left out"
        )
    kept, cut = [], 0
    for one in planned:
        if one.prompt_tokens + one.output_tokens <= limit:
            kept.append(one)
            continue
        cut += 1
        if beyond == "truncate":
            output = min(one.output_tokens, limit - 1)
            prompt = min(one.prompt_tokens, limit - output)
            kept.append(
                replace(one, prompt_tokens=prompt, output_tokens=output, segments=_leading(one.segments, prompt))
            )
    return kept, cut


def _leading(segments: tuple[Segment, ...], tokens: int) -> tuple[Segment, ...]:
    """The first so many tokens of a prompt's segments."""
    kept: list[Segment] = []
    for segment in segments:
        if tokens <= 0:
            break
        kept.append(segment._replace(tokens=min(segment.tokens, tokens)))
        tokens -= segment.tokens
    return tuple(kept)


# ---- policies ------------------------------------------------------------------------------------------------------


def policies_of(args: argparse.Namespace, planned: list[Planned]) -> dict[str, Any]:
    """The arguments of `scheduling.Scheduler` that the options name, all but the pool.

    Args:
        planned: what an oracle knows.

    Raises:
        UnderloadError: an option missing, out of place or out of range.
    """
    from underload.cache import HostPool
    from underload.scheduling import Cheapest, LastArrived, LeastComputed, Shedding

    predictor = _Predictor(args, planned)
    victim: dict[str, Callable[[], Any]] = dict(zip(VICTIMS, (LastArrived, LeastComputed, Cheapest)))
    options: dict[str, Any] = {
        "batching": _batching(args),
        "order": _order(args, predictor),
        "admission": _admission(args, predictor),
        "victim": victim[args.victim](),
        "shedding": Shedding(max_queue=args.max_queue, max_wait=seconds(args.max_wait, "--max-wait")),
        "max_num_seqs": args.max_num_seqs,
        "max_num_batched_tokens": args.max_num_batched_tokens,
        "max_model_len": args.max_model_len,
    }
    if predictor.unused:
        raise UnderloadError(
            "--predictor is asked by --order shortest-first, --order fair-share and --admission predicted-peak; give "
            "one of them, or leave --predictor out"
        )
    if args.preemption == "swap":
        if args.host_blocks is None:
            raise UnderloadError("--preemption swap needs somewhere to swap to: add --host-blocks N")
        if args.host_blocks < 0:
            raise UnderloadError(f"--host-blocks must be at least 0, got {args.host_blocks}")
        options |= {"preemption": "swap", "host_pool": HostPool(args.host_blocks)}
    elif args.host_blocks is not None:
        raise UnderloadError("--host-blocks belongs to --preemption swap; give that too, or leave --host-blocks out")
    return options


def pool_of(args: argparse.Namespace, num_blocks: int) -> BlockPool:
    """So many blocks, of the size that the options name.

    Raises:
        UnderloadError: no block, or blocks of no token.
    """
    from underload.cache import BlockPool

    return BlockPool(num_blocks, args.block_size, prefix_caching=not args.no_prefix_caching)


def policy_line(args: argparse.Namespace) -> str:
    """The policies in words, for the head of a report."""
    parts = [args.batching]
    if args.batch_size is not None:
        parts.append(f"size {args.batch_size}")
    if args.timeout is not None:
        parts.append(f"timeout {args.timeout}")
    if args.batching == "continuous":
        whole = args.chunked_prefill is False
        parts.append("whole prompts" if whole else f"chunked prefill, {args.prefill or 'decode-first'}")
    parts.append(args.order)
    parts += [args.admission] if args.admission else []
    parts.append(f"victim {args.victim}, {args.preemption}")
    if args.max_queue is not None:
        parts.append(f"queue of {args.max_queue} at most")
    if args.max_wait is not None:
        parts.append(f"wait of {args.max_wait} at most")
    return ", ".join(parts)


def _batching(args: argparse.Namespace) -> Batching:
    from underload.scheduling import Continuous, Greedy, SizeOrTimeout, Static

    continuous = args.batching == "continuous"
    for option, fits in (
        ("batch_size", not continuous),
        ("timeout", args.batching == "size-or-timeout"),
        ("chunked_prefill", continuous),
        ("prefill", continuous),
    ):
        if getattr(args, option) is not None and not fits:
            raise UnderloadError(
                f"--{option.replace('_', '-')} means nothing to --batching {args.batching}; leave it out"
            )
    if continuous:
        return Continuous(chunked_prefill=args.chunked_prefill is not False, prefill=args.prefill or "decode-first")
    if args.batch_size is None:
        raise UnderloadError(f"--batching {args.batching} needs --batch-size N, the members of a batch")
    if args.batching == "static":
        return Static(args.batch_size)
    if args.batching == "greedy":
        return Greedy(args.batch_size)
    timeout = seconds(args.timeout, "--timeout")
    if timeout is None:
        raise UnderloadError("--batching size-or-timeout needs --timeout S, how long a batch waits to be full")
    return SizeOrTimeout(args.batch_size, timeout)


class _Predictor:
    """The predictor that the options name, made when a policy asks for it."""

    def __init__(self, args: argparse.Namespace, planned: list[Planned]) -> None:
        self._args, self._planned = args, planned
        self.unused = args.predictor is not None

    def __call__(self) -> LengthPredictor:
        from underload.scheduling import MaxTokens, Noisy, Oracle

        self.unused = False
        known = {str(one.index): one.output_tokens for one in self._planned}
        kind, _, rest = (self._args.predictor or "max-tokens").partition(":")
        if kind == "max-tokens" and not rest:
            return MaxTokens()
        if kind == "oracle" and not rest:
            return Oracle(known)
        if kind == "noisy" and rest:
            return Noisy(known, number(rest, "--predictor noisy:SIGMA"), self._args.seed)
        raise UnderloadError(f"--predictor takes max-tokens, oracle or noisy:SIGMA, got {self._args.predictor!r}")


def _order(args: argparse.Namespace, predictor: _Predictor) -> Order:
    from underload.scheduling import Deadline, FairShare, FirstCome, Priority, ShortestFirst

    for option, orders in (
        ("aging", ("shortest-first", "priority")),
        ("weights", ("fair-share",)),
        ("priorities", ("priority",)),
        ("deadline", ("deadline",)),
    ):
        if getattr(args, option) is not None and args.order not in orders:
            raise UnderloadError(
                f"--{option} belongs to --order {' or '.join(orders)}, not {args.order}; leave one of them out"
            )
    aging = {} if args.aging is None else {"aging": number(args.aging, "--aging")}
    if args.order == "first-come":
        return FirstCome()
    if args.order == "shortest-first":
        return ShortestFirst(predictor(), **aging)
    if args.order == "priority":
        return Priority(**aging)
    if args.order == "deadline":
        return Deadline()
    return FairShare(_by_tenant(args.weights, "--weights", "WEIGHT"), predictor())


def _by_tenant(text: str | None, option: str, what: str) -> dict[str, float]:
    """A number for each tenant, as in chat=3,batch=1."""
    found = {}
    for part in text.split(",") if text else ():
        tenant, equals, value = part.partition("=")
        if not equals:
            raise UnderloadError(
                f"{option} takes TENANT={what}, separated by commas, as in chat=3,batch=1; got {part!r}"
            )
        found[tenant.strip()] = number(value, option)
    return found


def wished(args: argparse.Namespace, planned: list[Planned]) -> list[Planned]:
    """The plan with the priorities and the deadline that the options name."""
    if args.order not in ("priority", "deadline"):
        return planned  # what has no place is named with the policies
    priorities = _by_tenant(args.priorities, "--priorities", "PRIORITY")
    deadline = seconds(args.deadline, "--deadline")
    if deadline is not None and not deadline > 0:
        raise UnderloadError(f"--deadline must be above 0 s after the arrival, got {args.deadline}")
    if unknown := sorted(priorities.keys() - {one.tenant for one in planned}):
        there = ", ".join(sorted({repr(one.tenant) for one in planned})[:5])
        raise UnderloadError(f"--priorities names {unknown[0]!r}, and the load's tenants are {there}")
    if not priorities and deadline is None:
        return planned
    return [
        replace(one, priority=priorities.get(one.tenant, one.priority), deadline=deadline or one.deadline)
        for one in planned
    ]


def _admission(args: argparse.Namespace, predictor: _Predictor) -> Admission | None:
    from underload.scheduling import FitsNow, PredictedPeak, ReserveAll, Watermark

    if args.admission is None:
        return None  # the batching policy's own
    kind, _, rest = args.admission.partition(":")
    if kind not in ADMISSIONS or (rest and kind != "watermark"):
        raise UnderloadError(f"--admission takes {', '.join(ADMISSIONS)} or watermark:SHARE, got {args.admission!r}")
    if kind == "watermark":
        return Watermark(number(rest, "--admission watermark:SHARE")) if rest else Watermark()
    if kind == "predicted-peak":
        return PredictedPeak(predictor())
    return ReserveAll() if kind == "reserve-all" else FitsNow()
