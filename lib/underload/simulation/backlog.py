"""What a pool's memory holds while a queue stands before it: one scheduler and one loop, whichever pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from underload.cache import Pool, waste
from underload.engine import Engine
from underload.request import Request, SamplingParams, StepRecord, Timeline, UnderloadError, VirtualClock
from underload.scheduling import Plan, Scheduler
from underload.simulation.modelled import CostModelExecutor
from underload.simulation.step_time import StepTime


@dataclass(frozen=True)
class Occupancy:
    """Shares of a pool's token slots, averaged over time while somebody waits; they sum to 1.

    Named as in Kwon et al. (SOSP 2023), Fig. 2. What a buddy allocator adds to a run, to make it a power of two, is
    external there and here: no token will ever lie in it, and that is known before the sequence starts.

    stored: hold the keys and values of a token.
    reserved: empty still, and will be filled by their sequence.
    internal: asked for, for a sequence that will not fill them.
    external: never asked for: what rounding adds, and gaps too short for the next sequence.
    free: could be had now, and were not.
    batch: sequences in a step, by time.
    throughput: tokens/s drawn for all sequences together.
    preemptions: how often a sequence was put back, in the whole run.
    recomputed: prompt tokens computed in the whole run over those that came, less 1; what preemption costs.
    steps: all of the run, those included that no average counts.
    """

    stored: float
    reserved: float
    internal: float
    external: float
    free: float
    batch: float
    throughput: float
    preemptions: int
    recomputed: float
    steps: list[StepRecord] = field(repr=False)


def serve_backlog(
    pool: Pool,
    requests: Sequence[tuple[int, int]],
    step_time: StepTime | Callable[[Plan], float],
    *,
    max_model_len: int,
    reserve: Callable[[int, int], int] | None = None,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 2048,
    settle: float = 0.2,
    look_every: int = 8,
) -> Occupancy:
    """Serve requests that all wait at the start, and say what the memory held meanwhile.

    The scheduler knows prompts and `max_model_len`; how long an answer gets, only the executor knows.

    Args:
        pool: a fresh one.
        requests: tokens of prompt and answer, in the order of the queue.
        step_time: s that a plan takes.
        max_model_len: tokens of one sequence at most, prompt and answer.
        reserve: for a reserving pool: the tokens to reserve, by prompt and answer; whoever looks at the answer is an
            oracle.
        settle: the share of the requests that finish before the averages begin: at first all sequences are equally
            young.
        look_every: steps from one look at the memory to the next.

    Raises:
        UnderloadError: no request, one beyond `max_model_len`, a `settle` outside [0, 1), a `look_every` below 1, or a
            queue that is empty before the averages begin.
    """
    if not requests or not all(p >= 1 <= m and p + m <= max_model_len for p, m in requests):
        raise UnderloadError(
            f"{len(requests)} requests; give at least one, each with a prompt and an answer of at least 1 token and at "
            f"most max_model_len = {max_model_len} in all"
        )
    if not 0 <= settle < 1 or look_every < 1:
        raise UnderloadError(
            f"settle must be at least 0 and below 1, and look_every at least 1 step, got {settle} and {look_every}"
        )
    outputs = {str(place): output for place, (_, output) in enumerate(requests)}

    def wanted(request: Request) -> int:
        assert reserve is not None
        return min(reserve(len(request.prompt_ids), outputs[request.request_id]), max_model_len)

    scheduler = Scheduler(
        pool,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        reserve=wanted if reserve is not None else None,
    )
    seen = _Seen(scheduler, outputs, wanted if reserve is not None else None, look_every)

    def timed(plan: Plan) -> float:
        seconds = step_time(plan)
        if len(outputs) - len(scheduler.requests) >= settle * len(outputs) and plan.queue_length:
            seen.add(plan, seconds)
        return seconds

    engine = Engine(scheduler, CostModelExecutor(timed, output_tokens=outputs), VirtualClock())
    for place, (prompt, _) in enumerate(requests):
        params = SamplingParams(max_tokens=max_model_len - prompt)
        # Tokens of its own for each prompt: what is shared is another question.
        engine.add(Request(str(place), [place] * prompt, params, Timeline(0.0)))
    finished = engine.run()
    if not seen.looks:
        raise UnderloadError(
            f"nobody waited any more when {settle:.0%} of {len(requests)} requests had finished; give more requests, "
            "or a smaller pool"
        )
    prompts = sum(prompt for prompt, _ in requests)
    stored, reserved, internal, external, free = (part / seen.looked for part in seen.parts)
    return Occupancy(
        stored=stored,
        reserved=reserved,
        internal=internal,
        external=external,
        free=free,
        batch=seen.sequences / seen.seconds,
        throughput=seen.tokens / seen.seconds,
        preemptions=sum(request.timeline.preemptions for request in finished),
        recomputed=sum(step.prefill_tokens for step in engine.steps) / prompts - 1,
        steps=engine.steps,
    )


class _Seen:
    """Sums over the steps that count."""

    def __init__(
        self, scheduler: Scheduler, outputs: dict[str, int], reserve: Callable[[Request], int] | None, every: int
    ) -> None:
        self.scheduler = scheduler
        self.outputs = outputs
        self.reserve = reserve
        self.every = every
        self.seconds = self.sequences = self.tokens = 0.0
        self.looks, self.looked, self.parts = 0, 0.0, [0.0] * 5
        self._steps = 0

    def add(self, plan: Plan, seconds: float) -> None:
        self.seconds += seconds
        self.sequences += len(plan.work) * seconds
        self.tokens += sum(work.samples for work in plan.work)
        if self._steps % self.every == 0:
            self._look(seconds)
        self._steps += 1

    def _look(self, seconds: float) -> None:
        """While a step runs: its blocks are taken, its tokens count as stored."""
        pool, held, finals, beyond = self.scheduler.pool, [], [], 0
        for sequence in self.scheduler.running:
            request = sequence.request
            assert request is not None and sequence.table is not None
            held.append((sequence.table, sequence.num_scheduled))
            # The last token is never fed back.
            finals.append(max(sequence.prompt_len + self.outputs[request.request_id] - 1, sequence.num_scheduled))
            if self.reserve is not None:
                asked = -(-max(self.reserve(request), finals[-1]) // pool.block_size)
                beyond += max(len(pool.granted(sequence.table)) - asked, 0) * pool.block_size
        first = self.scheduler.waiting[0]
        assert first.request is not None
        waiting = len(first.tokens) if self.reserve is None else max(self.reserve(first.request), len(first.tokens))
        found = waste(pool, held, finals, waiting=waiting)
        parts = (found.stored, found.reserved, found.internal - beyond, found.external + beyond, found.free)
        self.parts = [sum_ + part / found.slots * seconds for sum_, part in zip(self.parts, parts)]
        self.looked += seconds
        self.looks += 1
