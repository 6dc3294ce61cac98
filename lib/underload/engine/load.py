"""A plan of requests into an engine, conversations and all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from underload.engine.engine import Engine
from underload.request import Request, SamplingParams, Timeline
from underload.workload import Planned, PromptIds, Turns

ADDING = 5e-4
"""s allowed for adding one request to an engine on a clock that runs."""


def serve(
    engine: Engine, planned: Iterable[Planned], ids: PromptIds, *, max_tokens: int | None = None
) -> list[Request]:
    """Send each request of a plan when it is due, and step the engine until all are finished.

    Time 0 of the plan is when its requests are there: making the prompts of many takes seconds, in which the first
    would become due. On a virtual clock that is now. A turn of a conversation that has a think time arrives that
    long after the answer before it, and its prompt holds what was really answered; where the plan has no turn
    before it, it comes at its own time. A tenant's name is the salt of its requests: tenants share no cache. A
    deadline counts from the arrival. A request's id is its number in the plan.

    Args:
        ids: makes the prompts, and is told the answers.
        max_tokens: what each request is allowed; its planned length if None. Where it is more than that, the executor
            has to know when an answer ends (`output_tokens`).

    Returns:
        The requests, in the order in which they finished.

    Raises:
        InvalidRequest: a request that could never be served. Those that were sent are cancelled then, as they are when
            anything else ends the run early.
    """
    seen = first = len(engine.finished)
    sent: dict[str, Planned] = {}

    def send(request: Planned, prompt_ids: list[int], arrival: float) -> None:
        name = str(request.index)
        params = request.params if max_tokens is None else replace(request.params, max_tokens=max_tokens)
        engine.add(request_of(request, name, prompt_ids, params, arrival))
        sent[name] = request

    turns = Turns(planned)
    begun = engine.clock.now()
    prompts = [(request, ids(request)) for request in turns.first]
    start = made = engine.clock.now()
    if made > begun:  # a clock that runs, also while they are added
        start = made + (made - begun) + ADDING * len(prompts)
    try:
        for request, prompt_ids in prompts:
            send(request, prompt_ids, start + request.arrival)
        more = True
        while more:
            more = engine.step()
            while seen < len(engine.finished):
                done = engine.finished[seen]
                seen += 1
                answered = sent.get(done.request_id)
                if answered is None:
                    continue  # somebody else's
                ids.answered(answered, done.sequences[0].output_ids)
                if done.timeline.finished is not None and (then := turns.after(answered)) is not None:
                    send(then, ids(then), done.timeline.finished + (then.think or 0.0))
                    more = True
    except BaseException:
        for name in sent:
            engine.cancel(name)
        raise
    return engine.finished[first:]


def request_of(
    planned: Planned,
    name: str,
    prompt_ids: list[int],
    params: SamplingParams,
    arrival: float,
    sent: float | None = None,
) -> Request:
    """A planned request as an engine takes it.

    Args:
        arrival: the instant (s) for which its client meant it, from which its deadline counts.
        sent: the instant at which this copy of it is sent, if that is another.
    """
    return Request(
        name,
        prompt_ids,
        params,
        Timeline(arrival if sent is None else sent),
        salt=planned.tenant,
        tenant=planned.tenant,
        priority=planned.priority,
        deadline=None if planned.deadline is None else arrival + planned.deadline,
    )
