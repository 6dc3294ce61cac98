"""Offline: many prompts into an engine at once, their requests back in order.

    generate   prompts (token ids) in, finished requests out

What a caller can rely on: the requests come back in the order of the prompts, every one of them finished, and one that
fails takes no other with it, also where the executor cannot compute a step because of it: whoever was in such steps
goes on one at a time (`Scheduler(max_aborts=…)`), until the one to blame has failed, by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from underload.engine.engine import Engine
from underload.engine.progress import progress_bar
from underload.request import FinishReason, InvalidRequest, Request, SamplingParams, SequenceState, Timeline


def generate(
    engine: Engine,
    prompts: Iterable[Seq[int]],
    params: SamplingParams | Iterable[SamplingParams] | None = None,
    *,
    progress: bool | None = None,
) -> list[Request]:
    """Answer every prompt; all arrive now, and the engine's scheduler decides who runs with whom.

        requests = generate(engine, prompts, SamplingParams(max_tokens=64, temperature=0))
        answers = [request.sequences[0].output_ids for request in requests]

    A prompt that this engine cannot serve (too long for its context or its pool, ids outside the vocabulary) comes back
    as a request that failed, with `error` saying why, like one that fails under way; the others are answered. So look
    at `request.error` before using an answer. What is no prompt at all is the caller's slip, and raises before anything
    is computed.

    Ctrl-C, or whatever else ends the run early, cancels what is unfinished: the engine can be used again.

    Args:
        prompts: token ids, one list (or array) for each prompt.
        params: for all prompts, or one for each; the defaults of `SamplingParams` when None.
        progress: a bar of finished requests on standard error: True, False, or None for "where that is a terminal".

    Returns:
        A request for each prompt, in their order. Its samples are `request.sequences`.

    Raises:
        InvalidRequest: a prompt that is empty or not token ids, or another number of parameters than of prompts.
    """
    requests = _requests(engine, prompts, params)
    unfinished = set()
    seen = len(engine.finished)
    for request in requests:
        try:
            engine.add(request)
        except InvalidRequest as error:
            _fail(request, error, engine.clock.now())
        else:
            unfinished.add(request)
    try:
        with progress_bar(progress, len(requests)) as bar:
            for request in requests:
                if request not in unfinished:
                    bar.finish(request)
            more = True
            while unfinished and more:
                more = engine.step()
                for request in engine.finished[seen:]:
                    if request in unfinished:
                        unfinished.remove(request)
                        bar.finish(request)
                seen = len(engine.finished)
                bar.draw()
    except BaseException:
        for request in unfinished:
            engine.cancel(request.request_id)
        raise
    return requests


def _requests(
    engine: Engine, prompts: Iterable[Seq[int]], params: SamplingParams | Iterable[SamplingParams] | None
) -> list[Request]:
    listed = list(prompts)
    if params is None or isinstance(params, SamplingParams):
        wishes = [params or SamplingParams()] * len(listed)
    else:
        wishes = list(params)
        if len(wishes) != len(listed):
            raise InvalidRequest(
                f"{len(listed)} prompts but {len(wishes)} sampling parameters; give one for all, or one for each"
            )
        if strange := [item for item in wishes if not isinstance(item, SamplingParams)]:
            raise InvalidRequest(f"params must hold SamplingParams, got {strange[0]!r:.80}")
    now = engine.clock.now()
    made: list[Request] = []
    for index, (prompt, wish) in enumerate(zip(listed, wishes)):
        name = str(index)
        while engine.is_live(name):  # somebody else's, or one that an interrupted run left behind
            name += "'"
        try:
            made.append(Request(name, prompt, wish, Timeline(now)))  # type: ignore[arg-type]
        except InvalidRequest as error:
            raise InvalidRequest(
                f"prompt {index} of {len(listed)}: {error} (nothing was computed; prompts are lists of token ids)"
            ) from error
    return made


def _fail(request: Request, error: InvalidRequest, now: float) -> None:
    """A request that never got into the engine, in the form of one that failed in it."""
    request.error = str(error)
    for sequence in request.sequences:
        sequence.state = SequenceState.FINISHED
        sequence.finish_reason = FinishReason.ERROR
    timeline = request.timeline
    timeline.sent = timeline.arrival
    timeline.finished = now
    timeline.finish_reason = str(FinishReason.ERROR)
