"""The latency budget: one request's end-to-end latency as a sum of named stages."""

from collections.abc import Iterable

from underload.request.records import Timeline

# In the order in which they happen. What follows the last token is not part of E2E.
STAGES = ("client", "tokenise", "queue", "prefill", "decode", "detokenise")


def stages(timeline: Timeline) -> dict[str, float]:
    """Seconds spent in each stage; the parts add up to E2E.

        client      arrival -> sent        the client was late
        tokenise    sent -> queued         text became ids
        queue       queued -> scheduled    it waited for a place in a step
        prefill     scheduled -> first token
        decode      first token -> last token
        detokenise  ids became text: measured in total, taken off prefill (the first token's share) and decode

    `queue_time` is the first three together. An instant that was not recorded has no stage: its time counts to the
    next one. Empty when there is no token yet.
    """
    first, last = timeline.first_token, timeline.last_token
    if first is None or last is None:
        return {}
    parts: dict[str, float] = {}
    since = timeline.arrival
    ends = (
        ("client", timeline.sent),
        ("tokenise", timeline.queued),
        ("queue", timeline.scheduled),
        ("prefill", first),
        ("decode", last),
    )
    for stage, end in ends:
        if end is not None:
            parts[stage] = end - since
            since = end
    # Detokenising happens between the steps that draw the tokens. It cannot have taken longer than there was.
    in_prefill = min(timeline.detokenize_seconds / timeline.output_tokens, parts["prefill"])
    in_decode = min(timeline.detokenize_seconds - in_prefill, parts["decode"])
    parts["prefill"] -= in_prefill
    parts["decode"] -= in_decode
    parts["detokenise"] = in_prefill + in_decode
    return parts


def mean_stages(timelines: Iterable[Timeline]) -> dict[str, float]:
    """The mean of each stage over the requests that have tokens; a stage that a request lacks counts as 0 s of it.

    The parts add up to the mean E2E of the same requests. Empty when none has a token.
    """
    all_parts = [parts for parts in map(stages, timelines) if parts]
    present = [stage for stage in STAGES if any(stage in parts for parts in all_parts)]
    return {stage: sum(parts.get(stage, 0.0) for parts in all_parts) / len(all_parts) for stage in present}
