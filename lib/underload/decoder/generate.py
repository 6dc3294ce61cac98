"""The naive loop: prompts one by one, then every sequence a token at a time until it is done.

No scheduler, no sharing, a whole row of cache reserved for each sequence. It is short enough to be believed, which is
its use: whatever serves requests more cleverly must produce the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

from underload.cache import BlockPool
from underload.decoder.batch import Batch
from underload.decoder.continuation import Continuation, check_request
from underload.decoder.drawing import Drawing
from underload.decoder.kv import KVStorage
from underload.decoder.load import free_memory
from underload.decoder.measure import step_record
from underload.decoder.model import Model
from underload.decoder.sampling import BadLogits, Draw
from underload.request import (
    Clock,
    FinishReason,
    InvalidRequest,
    Request,
    SamplingParams,
    Sequence,
    StepRecord,
    Timeline,
    WallClock,
)

Prompt = str | Seq[int]
# Called for every token: index of the completion, text that is now safe to show, the token's id, the timeline so far.
OnToken = Callable[[int, str, int, Timeline], None]


@dataclass
class Completion:
    """One finished sample of one prompt. `token_ids` holds the end-of-text token if there was one, `text` does not."""

    prompt_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: FinishReason
    timeline: Timeline
    prompt_index: int = 0
    sample: int = 0
    draws: list[Draw] = field(default_factory=list)  # one a token, with log-probabilities where they were asked for
    error: str | None = None  # what went wrong, when finish_reason is ERROR


@dataclass
class Run:
    """What `generate` returns: the completions, samples of a prompt side by side, and a record of every step."""

    completions: list[Completion]
    steps: list[StepRecord]

    def __getitem__(self, index: int) -> Completion:
        return self.completions[index]

    def __len__(self) -> int:
        return len(self.completions)

    def __iter__(self) -> Iterator[Completion]:
        return iter(self.completions)


def generate(
    model: Model,
    prompts: Prompt | Seq[Prompt],
    params: SamplingParams | Seq[SamplingParams] | None = None,
    *,
    max_context: int | None = None,
    on_token: OnToken | None = None,
    progress: bool = False,
    clock: Clock | None = None,
) -> Run:
    """Continue every prompt.

    Args:
        prompts: one text or list of token ids, or a list of these; an array of ids is as good as a list.
        params: for all prompts, or one for each; the defaults of `SamplingParams` when None.
        max_context: most tokens (prompt and output) of one sequence; the model's own limit when None.
        on_token: called as each token is handed out, on this thread; what it raises ends the run.
        progress: show a bar of tokens.
        clock: where the timelines' instants come from; the wall when None.

    Raises:
        InvalidRequest: a prompt or parameter that cannot be served, naming which prompt, before anything is computed.
    """
    clock = clock or WallClock()
    limit = model.shape.max_positions if max_context is None else max_context
    jobs = _Jobs(model, clock, limit, on_token, progress)
    for index, (prompt, wishes) in enumerate(_pairs(prompts, params)):
        jobs.add(index, prompt, wishes)
    return jobs.run()


def _pairs(
    prompts: Prompt | Seq[Prompt], params: SamplingParams | Seq[SamplingParams] | None
) -> list[tuple[Prompt, SamplingParams]]:
    listed = [prompts] if isinstance(prompts, str) else _items(prompts, "prompts: text, token ids, or a list of these")
    if listed and all(map(_is_id, listed)):
        listed = [listed]
    if params is None or isinstance(params, SamplingParams):
        return [(prompt, params or SamplingParams()) for prompt in listed]
    wishes = _items(params, "params: one SamplingParams, or a list with one for each prompt")
    if len(wishes) != len(listed):
        raise InvalidRequest(
            f"{len(listed)} prompts but {len(wishes)} sampling parameters; give one for all, or one for each"
        )
    if strange := [item for item in wishes if not isinstance(item, SamplingParams)]:
        raise InvalidRequest(f"params must hold SamplingParams, got {strange[0]!r:.80}")
    return list(zip(listed, wishes, strict=True))


def _items(value: Any, wanted: str) -> list[Any]:
    """The items of a list or of whatever else can be gone through; arrays and tensors become plain numbers and lists.

    Bytes and mappings are refused: going through them yields numbers and keys that nobody meant as token ids.
    """
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, str | bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        raise InvalidRequest(f"{wanted}; got {value!r:.80}")
    return [item.tolist() if hasattr(item, "tolist") else item for item in value]


def _is_id(item: object) -> bool:
    return isinstance(item, Integral) and not isinstance(item, bool)


@dataclass
class _Job:
    """One sequence on its way, with what chooses its tokens and turns them into text."""

    request: Request
    sequence: Sequence
    continuation: Continuation
    timeline: Timeline
    prompt_index: int
    limit: int  # tokens, prompt included
    text: str = ""
    draws: list[Draw] = field(default_factory=list)
    error: str | None = None


class _Jobs:
    def __init__(self, model: Model, clock: Clock, max_context: int, on_token: OnToken | None, progress: bool) -> None:
        if model.device.type == "meta":
            raise InvalidRequest(f"{model.shape.name} is on device 'meta', which holds no weights; load it on 'cpu'")
        if not _is_id(max_context) or not 1 <= max_context <= model.shape.max_positions:
            raise InvalidRequest(
                f"max_context must be 1 to {model.shape.max_positions} ({model.shape.name}), got {max_context!r}"
            )
        self.model = model
        self.clock = clock
        self.max_context = max_context
        self.on_token = on_token
        self.progress = progress
        self.jobs: list[_Job] = []
        self.steps: list[StepRecord] = []

    def add(self, index: int, prompt: Prompt, params: SamplingParams) -> None:
        """Check one prompt and queue its samples."""
        timeline = Timeline(arrival=self.clock.now())
        timeline.sent = timeline.arrival
        tokenizer = self.model.tokenizer
        try:
            if isinstance(prompt, str):
                if tokenizer is None:
                    raise InvalidRequest(f"{self.model.shape.name} has no tokenizer: give token ids instead of text")
                ids = tokenizer.encode(prompt)
            else:
                ids = _items(prompt, "a prompt is a text or a list of token ids")
                if strange := [token for token in ids if not _is_id(token)]:
                    raise InvalidRequest(f"token ids are whole numbers, got {strange[0]!r:.80}")
                ids = [int(token) for token in ids]
            self._check(ids, params)  # before the samples are made: there may be more of them than memory
            request = Request(str(index), ids, params, timeline)
        except InvalidRequest as error:
            raise InvalidRequest(f"prompt {index}: {error}") from error
        timeline.queued = self.clock.now()
        for sequence, continuation in zip(request.sequences, Continuation.of(self.model, request), strict=True):
            own = timeline if sequence.index == 0 else replace(timeline, token_times=[])
            limit = min(len(ids) + params.max_tokens, self.max_context)
            self.jobs.append(_Job(request, sequence, continuation, own, index, limit))

    def _check(self, ids: list[int], params: SamplingParams) -> None:
        check_request(self.model, ids, params)
        if len(ids) >= self.max_context:
            raise InvalidRequest(
                f"the prompt has {len(ids)} tokens and the context holds {self.max_context}, which leaves no room for "
                "an answer: shorten the prompt"
                + ("" if self.max_context == self.model.shape.max_positions else ", or raise max_context")
            )
        self._check_memory(len(self.jobs) + params.n, min(len(ids) + params.max_tokens, self.max_context))

    def _check_memory(self, rows: int, row_tokens: int) -> None:
        """Refuses a cache that cannot fit: every sample reserves a whole row, and running out ends the process."""
        each = row_tokens * self.model.kv_bytes_per_token()
        free = free_memory(self.model.device)
        if free is not None and rows * each > free:
            raise InvalidRequest(
                f"{rows:,} samples reserve {row_tokens:,} tokens of cache each, {rows * each / 1e9:,.1f} GB, and "
                f"{self.model.device.type} has {free / 1e9:,.1f} GB free; ask for fewer prompts, n or max_tokens"
            )

    def run(self) -> Run:
        if not self.jobs:
            return Run([], [])
        row_tokens = max(job.limit for job in self.jobs)
        self._check_memory(len(self.jobs), row_tokens)
        kv = self.model.new_kv(len(self.jobs), row_tokens)
        # One block a sequence, as long as the longest may become: a contiguous cache is the coarsest of paged ones.
        pool = BlockPool(len(self.jobs), row_tokens, prefix_caching=False)
        for job in self.jobs:
            job.sequence.table = pool.allocate(None, row_tokens)
        with _bar(self.progress, sum(job.limit - job.sequence.prompt_len for job in self.jobs)) as bar:
            for job in self.jobs:
                if job.sequence.index == 0:
                    self._prefill(job, kv, bar)
            while running := [job for job in self.jobs if not job.sequence.finished]:
                self._step(running, kv, bar, prefill=False)
        return Run([self._completion(job) for job in self.jobs], self.steps)

    def _prefill(self, job: _Job, kv: KVStorage, bar: Any) -> None:
        """Run a prompt once; its last row yields the first token of every sample, and each gets a copy of its cache."""
        samples = [other for other in self.jobs if other.request is job.request]
        self._step([job], kv, bar, prefill=True, samples=samples)
        for other in samples[1:]:
            assert job.sequence.table is not None and other.sequence.table is not None
            kv.copy_blocks([(job.sequence.table.blocks[0], other.sequence.table.blocks[0])])
            other.sequence.num_computed = job.sequence.num_computed

    def _step(
        self, jobs: list[_Job], kv: KVStorage, bar: Any, *, prefill: bool, samples: list[_Job] | None = None
    ) -> None:
        start = self.clock.now()
        batch = Batch.of([(job.sequence, len(job.sequence.tokens) - job.sequence.num_computed) for job in jobs])
        drawn_for = samples or jobs
        for job in samples or ():
            job.timeline.scheduled = start
        rows = range(len(jobs)) if samples is None else [0] * len(samples)  # samples of a prompt draw from one row
        draws = Drawing(self.model, batch, kv, [job.continuation.state for job in drawn_for], list(rows)).take()
        for job in jobs:
            job.sequence.num_computed = job.sequence.num_scheduled = len(job.sequence.tokens)
        duration = self.clock.now() - start
        self.steps.append(
            step_record(self.model, kv, batch, start, duration, prefill_tokens=batch.num_tokens if prefill else 0)
        )
        for job, drawn in zip(drawn_for, draws, strict=True):
            self._take(job, drawn)
            bar.update(1)

    def _take(self, job: _Job, drawn: Draw | BadLogits) -> None:
        """Append one token, see whether it ends the text, hand out what is safe to show."""
        sequence = job.sequence
        if isinstance(drawn, BadLogits):
            job.error = str(drawn)
            sequence.finish_reason = FinishReason.ERROR
            job.timeline.finished = self.clock.now()
            return
        start = self.clock.now()
        last = len(sequence.tokens) + 1 >= job.limit
        delta, ends = job.continuation.say(drawn.token_id, last=last)
        now = self.clock.now()
        sequence.tokens.append(drawn.token_id)
        job.draws.append(drawn)
        job.text += delta
        if ends or last:
            sequence.finish_reason = FinishReason.STOP if ends else FinishReason.LENGTH
        job.timeline.detokenize_seconds += now - start
        job.timeline.token_times.append(now)
        if self.on_token is not None:
            self.on_token(self.jobs.index(job), delta, drawn.token_id, job.timeline)
        if sequence.finished:
            job.timeline.finished = self.clock.now()
            job.timeline.finish_reason = str(sequence.finish_reason)

    def _completion(self, job: _Job) -> Completion:
        assert job.sequence.finish_reason is not None
        job.timeline.finish_reason = str(job.sequence.finish_reason)
        return Completion(
            prompt_ids=job.request.prompt_ids,
            token_ids=job.sequence.output_ids,
            text=job.text,
            finish_reason=job.sequence.finish_reason,
            timeline=job.timeline,
            prompt_index=job.prompt_index,
            sample=job.sequence.index,
            draws=job.draws,
            error=job.error,
        )


def _bar(show: bool, total: int) -> Any:
    if not show:
        return _NoBar()
    from tqdm.auto import tqdm  # where it is not installed, generating without a bar still works

    return tqdm(total=total, unit="token")


class _NoBar:
    """A progress bar that shows nothing."""

    def __enter__(self) -> _NoBar:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, count: int = 1) -> None:
        pass
