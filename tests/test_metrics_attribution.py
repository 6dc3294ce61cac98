"""What a request waited for: the parts add up to its latency, and each is what really went on in the steps."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underload import metrics
from underload.cache import BlockPool, HostPool
from underload.engine import Engine
from underload.metrics import PARTS, StepShares, attribute, slowest
from underload.request import Request, SamplingParams, StepRecord, Timeline, UnderloadError, VirtualClock
from underload.scheduling import Continuous, Greedy, LeastComputed, Scheduler, SizeOrTimeout, Static
from underload.simulation import CostModelExecutor, LinearStepTime

STEP_TIME = LinearStepTime(1.0, 0.1)  # s: a step of n tokens takes 1 + n/10

POLICIES = {
    "chunked": Continuous,
    "mixed": lambda: Continuous(prefill="mixed"),
    "prefill-first": lambda: Continuous(prefill="prefill-first"),
    "whole prompts": lambda: Continuous(chunked_prefill=False),
    "static": lambda: Static(3),
    "size or timeout": lambda: SizeOrTimeout(3, 2.0),
    "greedy": lambda: Greedy(3),
}


class Faulty(CostModelExecutor):
    """Fails in some steps, and takes no time for it."""

    def __init__(self, *args, failing=(), **more):
        super().__init__(*args, **more)
        self.failing, self.asked = failing, 0

    def execute(self, plan):
        self.asked += 1
        if self.asked in self.failing:
            raise RuntimeError("a fault")
        return super().execute(plan)


def ask(name, prompt, tokens, arrival=0.0, n=1, ids=None) -> Request:
    params = SamplingParams(max_tokens=tokens, n=n, ignore_eos=True)
    return Request(name, ids or [ord(name[0])] * prompt, params, Timeline(arrival))


def serve(requests, *, step_time=STEP_TIME, blocks=10_000, size=4, host=0, caching=False, failing=(), **options):
    """The engine after it has served them, and the plan of each step."""
    if host:
        options |= {"preemption": "swap", "host_pool": HostPool(host)}
    plans = []
    engine = Engine(
        Scheduler(BlockPool(blocks, size, prefix_caching=caching), max_aborts=100, **options),
        Faulty(step_time, failing=failing),
        VirtualClock(),
        on_step=lambda plan, result, record: plans.append(plan),
    )
    for one in requests:
        engine.add(one)
    engine.run()
    return engine, plans


def parts(**found) -> dict:
    names = {name.replace(" ", "_").replace("'", ""): name for name in PARTS}
    return dict.fromkeys(PARTS, 0.0) | {names[key]: value for key, value in found.items()}


def total(found) -> float:
    return math.fsum(found.values())


# ---- by hand ------------------------------------------------------------------------------------------------------


def test_a_decode_waits_for_the_prompt_in_its_step_and_not_for_its_neighbours():
    # Steps: 0-2 a's 10 tokens; 2-5.1 a's second token and b's 20; 5.1-6.3 and 6.3-7.5 both decode; 7.5-8.6 b alone.
    a, b = ask("a", 10, 4), ask("b", 20, 4, arrival=1.5)
    engine, _ = serve([a, b])
    assert a.timeline.token_times == pytest.approx([2.0, 5.1, 6.3, 7.5])
    found = attribute(a.timeline, engine.steps)
    assert found == pytest.approx(parts(own_prefill=2.0, own_decode=1.1 + 1.2 + 1.2, others_prefill=2.0))
    found = attribute(b.timeline, engine.steps)
    assert found == pytest.approx(parts(queue=0.5, own_prefill=3.1, own_decode=1.2 + 1.2 + 1.1))
    assert attribute(b.timeline, engine.steps, of="TTFT") == pytest.approx(parts(queue=0.5, own_prefill=3.1))


def test_two_prompts_in_a_step_share_what_they_add_by_their_tokens():
    # 0-4: 10 and 20 tokens. The base, what a decode of one takes, is 1.1; the other 2.9 are for 30 tokens.
    a, b = ask("a", 10, 2), ask("b", 20, 1)
    engine, _ = serve([a, b])
    found = attribute(a.timeline, engine.steps)
    assert found == pytest.approx(parts(own_prefill=1.1 + 2.9 / 3, others_prefill=2.9 * 2 / 3, own_decode=1.1))
    assert attribute(b.timeline, engine.steps)["own prefill"] == pytest.approx(1.1 + 2.9 * 2 / 3)


def test_where_prompts_go_first_those_who_decode_wait_for_all_of_their_step():
    a, b = ask("a", 10, 3), ask("b", 20, 1, arrival=1.0)
    engine, _ = serve([a, b], batching=Continuous(prefill="prefill-first"))
    assert a.timeline.token_times == pytest.approx([2.0, 6.1, 7.2])  # b's prompt: 2-5
    assert attribute(a.timeline, engine.steps) == pytest.approx(
        parts(own_prefill=2.0, others_prefill=3.0, own_decode=2.2)
    )


def test_a_budget_that_is_too_small_passes_some_over():
    # Three samples of one prompt take turns in steps of two: the first is in two steps of three.
    fan = ask("fan", 2, 5, n=3)
    engine, _ = serve([fan], max_num_batched_tokens=2)
    assert fan.timeline.token_times == pytest.approx([1.2, 3.6, 4.8, 7.2, 8.4])
    assert attribute(fan.timeline, engine.steps) == pytest.approx(
        parts(own_prefill=1.2, own_decode=4 * 1.2, passed_over=2 * 1.2)
    )


def test_a_static_batch_makes_its_first_wait_for_company_and_pays_for_padding():
    # a, b and c leave together at 4. Prompts of 2, 6 and 6, padded to 18 tokens: 4-6.8. a ends there, and its row is
    # kept: two decode steps of 3 rows, 1.3 each.
    a, b, c = ask("a", 2, 1), ask("b", 6, 3, arrival=1.0), ask("c", 6, 3, arrival=4.0)
    engine, _ = serve([a, b, c], batching=Static(3))
    assert c.timeline.token_times == pytest.approx([6.8, 8.1, 9.4])
    shares = StepShares(engine.steps, step_time=STEP_TIME)
    assert attribute(a.timeline, shares) == pytest.approx(
        parts(fill=4.0, own_prefill=1.1 + 1.7 * 2 / 18, others_prefill=1.7 * 12 / 18, padding=1.7 * 4 / 18)
    )
    found = attribute(b.timeline, shares)
    assert found["fill"] == pytest.approx(3.0)
    assert found["own decode"] == pytest.approx(2 * 1.2)
    assert found["padding"] == pytest.approx(1.7 * 4 / 18 + 2 * 0.1)


def test_a_token_that_is_computed_again_alone_is_no_decode():
    # Three tokens a step: the first of three samples comes back while two sequences decode, and has one for itself.
    fan, other = ask("fan", 9, 15, arrival=6.0, n=3), ask("other", 1, 21)
    engine, plans = serve(
        [other, fan], blocks=15, caching=True, victim=LeastComputed(), max_num_batched_tokens=3, max_num_seqs=6
    )
    steps = {(start, stop): at for at, start, stop in fan.timeline.prefills}
    assert {(9, 10), (10, 11)} <= set(steps) and fan.timeline.preemptions == 1
    shares = StepShares(engine.steps, step_time=STEP_TIME)
    record = engine.steps[int(shares.ending([steps[9, 10]])[0])]
    assert (record.decode_tokens, record.prefill_tokens) == (2, 1)
    expected = by_the_plans(fan, engine, plans)
    assert attribute(fan.timeline, shares) == pytest.approx({part: expected[part] for part in PARTS})


def preempted_pair(**how):
    """Two requests in a pool that has room for both prompts, and not for both answers: b goes, and comes back."""
    a, b = ask("a", 8, 12), ask("b", 8, 12, arrival=0.0)
    engine, _ = serve([a, b], blocks=6, max_num_seqs=2, **how)
    assert (a.timeline.preemptions, b.timeline.preemptions) == (0, 1)
    return engine, a, b


def test_a_preempted_request_waits_to_come_back_and_computes_again():
    engine, a, b = preempted_pair()
    when, back = b.timeline.preempted[0], b.timeline.prefills[1]
    found = attribute(b.timeline, engine.steps)
    # Away until a is done, then its 8 + 4 tokens and the one drawn last go through one step of 13 tokens: what is over
    # a step that decodes one is preemption.
    assert back[1:] == (0, 13) and a.timeline.last_token == pytest.approx(back[0] - 2.3)
    assert found["preemption"] == pytest.approx(a.timeline.last_token - when + 1.2 * 12 / 13)
    assert found["own decode"] == pytest.approx(4 * 1.2 + 1.1 + 1.2 / 13 + 6 * 1.1)
    assert total(found) == pytest.approx(metrics.e2e(b.timeline))
    assert attribute(a.timeline, engine.steps)["preemption"] == 0
    assert attribute(b.timeline, engine.steps, of="TTFT")["preemption"] == 0


def test_one_that_was_swapped_out_computes_nothing_again():
    engine, a, b = preempted_pair(host=10)
    assert len(b.timeline.prefills) == 1
    found = attribute(b.timeline, engine.steps)
    assert found["preemption"] == pytest.approx(a.timeline.last_token - b.timeline.preempted[0])
    assert found["own decode"] == pytest.approx(4 * 1.2 + 7 * 1.1)
    assert total(found) == pytest.approx(metrics.e2e(b.timeline))


def test_a_late_client_is_no_queue():
    late = ask("a", 4, 1, arrival=3.0)
    late.timeline.sent = 3.0
    engine, _ = serve([late])
    late.timeline.arrival = 1.0
    assert attribute(late.timeline, engine.steps) == pytest.approx(parts(client=2.0, own_prefill=1.4))


def test_what_lies_between_two_steps_is_a_gap():
    line = Timeline(0.0, sent=0.0, scheduled=1.0, prompt_tokens=4, prefills=[(2.0, 0, 4)], token_times=[2.0, 4.0])
    steps = [StepRecord(1.0, 1.0, 1, prefill_tokens=4), StepRecord(2.5, 1.5, 1, decode_tokens=1)]
    assert attribute(line, steps) == pytest.approx(parts(fill=1.0, own_prefill=1.0, gaps=0.5, own_decode=1.5))


def test_the_base_of_a_mixed_step_is_the_median_of_like_steps_near_it():
    def step(start, took, rows, prefill=0):
        return StepRecord(start, took, rows + bool(prefill), prefill_tokens=prefill, decode_tokens=rows)

    steps = [step(float(i), [0.30, 0.40, 0.50][i % 3], 4) for i in range(30)]
    steps += [step(30.0 + i, 0.10, 4) for i in range(12)] + [step(50.0, 0.9, 5, prefill=7)]
    assert StepShares(steps).base[-1] == pytest.approx(0.10)
    steps[3] = step(3.0, 0.95, 4, prefill=7)
    assert StepShares(steps).base[3] == pytest.approx(0.40)
    steps[3] = step(3.0, 0.25, 4, prefill=7)
    assert StepShares(steps).base[3] == 0.25  # no base is longer than its step
    steps.insert(0, step(-1.0, 0.7, 9))
    assert StepShares(steps).base[-1] == pytest.approx(0.10)  # four rows are nearer to five than nine


@given(
    decoding=st.lists(st.integers(1, 400), min_size=1, max_size=9),
    prompts=st.integers(1, 4),
    tokens=st.integers(2, 50),
    cached=st.integers(0, 300),
)
def test_of_prompts_of_one_length_a_record_tells_which_keys_were_theirs(decoding, prompts, tokens, cached):
    each = cached + tokens
    step = StepRecord(
        0.0,
        5.0,
        len(decoding) + prompts,
        prefill_tokens=prompts * tokens,
        decode_tokens=len(decoding),
        context_tokens=sum(decoding) + prompts * each,
        score_pairs=sum(decoding) + prompts * sum(range(cached + 1, each + 1)),
        logit_rows=len(decoding) + prompts,
    )
    asked = []

    def model(size):
        asked.append((size.batch_size, size.decode_tokens, size.prefill_tokens, size.context_tokens, size.score_pairs))
        return 2.0 if size is step else 0.5

    assert StepShares([step], step_time=model).base[0] == 5.0 * 0.5 / 2.0
    rows, context = len(decoding), asked[1][3]
    assert asked[1] == (rows, rows, 0, context, context) and abs(context - sum(decoding)) <= 1


# ---- whatever the policy ------------------------------------------------------------------------------------------


def by_the_plans(request, engine, plans) -> Counter:
    """The parts of E2E as the plans have them, for `STEP_TIME`; of the timeline only its ends and preemptions."""
    timeline, sequence, found = request.timeline, request.sequences[0], Counter()
    found["client"] = timeline.sent - timeline.arrival
    away, known, drawn, previous = False, 0, 0, None
    clock = timeline.sent
    losses = list(timeline.preempted)
    for record, plan in zip(engine.steps, plans):
        start, end = record.start, record.start + record.duration
        if start >= timeline.last_token - 1e-9:
            break
        begun = start >= timeline.scheduled - 1e-9
        if losses and start >= losses[0] - 1e-9:
            away = True
            losses.pop(0)
            losses = [at for at in losses if at > start + 1e-9]
        gap = max(start - max(previous or 0.0, timeline.sent), 0.0)
        if not begun:
            found["fill"] += gap
            found["queue"] += max(end - max(start, timeline.sent), 0.0)
            previous = end
            continue
        found["fill" if clock is not None else "preemption" if away else "gaps"] += gap
        clock, previous = None, end
        work = next((one for one in plan.work if one.sequence is sequence), None)
        decode, prefill, padding = record.decode_tokens, record.prefill_tokens, record.padding_tokens
        base = 1.0 + 0.1 * max(decode, 1) if prefill + padding else record.duration
        rest = record.duration - base
        own = again = 0
        if work is not None:
            away = False
            token = bool(work.samples)
            later = token and drawn > 0
            if work.num_tokens > 1 or work.start < sequence.prompt_len or not token:
                again = min(max(max(known, drawn and sequence.prompt_len + drawn - 1) - work.start, 0), work.num_tokens)
                own = work.num_tokens - again
            known = max(known, work.stop)
            drawn += token
            part = "own decode" if later else "own prefill" if own else "preemption"
            found[part] += base
        elif away:
            found["preemption"] += record.duration
            continue
        else:
            found["passed over" if decode or not prefill else "others' prefill"] += base
        if prefill + padding:
            each = rest / (prefill + padding)
            found["own decode" if work is not None and later else "own prefill"] += each * own
            found["preemption"] += each * again
            found["others' prefill"] += each * (prefill - own - again)
            found["padding"] += each * padding
    return found


LOADS = st.lists(
    st.tuples(
        st.integers(1, 14),  # prompt
        st.integers(1, 30),  # answer
        st.floats(0, 12),  # arrival
        st.sampled_from([1, 1, 2, 3]),  # samples
        st.booleans(),  # shares a prompt's beginning with others
    ),
    min_size=3,
    max_size=9,
)


@given(
    load=LOADS,
    policy=st.sampled_from(sorted(POLICIES)),
    blocks=st.sampled_from([11, 15, 1000]),  # the longest request needs 11
    budget=st.sampled_from([44, 64]),
    small=st.sampled_from([3, 8]),
    host=st.sampled_from([0, 0, 30]),
    caching=st.booleans(),
    failing=st.sets(st.integers(1, 30), max_size=3),
    victim=st.sampled_from([None, LeastComputed]),
)
@settings(max_examples=250, deadline=None)
def test_the_parts_are_those_of_the_plans_and_add_up(
    load, policy, blocks, budget, small, host, caching, failing, victim
):
    requests = [
        ask(str(i), prompt, tokens, arrival, n, ids=[(1 if shared else 100 * (i + 1)) + k for k in range(prompt)])
        for i, (prompt, tokens, arrival, n, shared) in enumerate(load)
    ]
    chunked = policy in ("chunked", "mixed", "prefill-first")
    engine, plans = serve(
        requests,
        blocks=blocks,
        host=host,
        caching=caching,
        failing=failing,
        batching=POLICIES[policy](),
        victim=victim and victim(),
        max_num_batched_tokens=small if chunked else budget,
        max_num_seqs=6,
    )
    assert all(one.finished for one in requests)
    shares, own = StepShares(engine.steps, step_time=STEP_TIME), StepShares(engine.steps)
    for one in requests:
        for found in (attribute(one.timeline, shares), attribute(one.timeline, own)):
            assert total(found) == pytest.approx(metrics.e2e(one.timeline), rel=1e-9, abs=1e-9)
            assert min(found.values()) >= -1e-9
        for found in (attribute(one.timeline, each, of="TTFT") for each in (shares, own)):
            assert total(found) == pytest.approx(metrics.ttft(one.timeline), rel=1e-9, abs=1e-9)
            assert min(found.values()) >= -1e-9
        found = attribute(one.timeline, shares)
        expected = by_the_plans(one, engine, plans)
        assert found == pytest.approx({part: expected[part] for part in PARTS}, rel=1e-6, abs=1e-6)
        waited = found["client"] + found["queue"] + found["fill"]
        assert waited == pytest.approx(metrics.queue_time(one.timeline), abs=1e-9)
        if not failing:
            assert (found["preemption"] > 0) == bool(one.timeline.preemptions)


def test_steps_that_were_taken_at_once_say_the_same():
    def run(join):
        requests = [ask(str(i), 5 + i, 12, 2.0 * i) for i in range(6)]
        engine = Engine(Scheduler(BlockPool(14, 4)), CostModelExecutor(STEP_TIME), VirtualClock())
        engine.join_steps = join
        for one in requests:
            engine.add(one)
        engine.run()
        return [attribute(one.timeline, engine.steps) for one in requests], requests

    (one_by_one, requests), (joined, others) = run(False), run(True)
    assert one_by_one == joined
    assert [one.timeline for one in requests] == [one.timeline for one in others]
    assert any(one.timeline.preempted for one in requests)


# ---- the slowest --------------------------------------------------------------------------------------------------


def crowd():
    requests = [ask(f"{i}", 30 if i % 10 == 3 else 3, 6, 1.3 * i) for i in range(60)]
    engine, _ = serve(requests)
    return requests, engine


def test_the_slowest_waited_for_what_the_table_says():
    requests, engine = crowd()
    lines = [one.timeline for one in requests]
    lines.append(Timeline(0.0, finished=0.01, finish_reason="refused"))
    found = slowest(lines, engine.steps, share=0.05)
    took = sorted((metrics.e2e(line) for line in lines[:-1]), reverse=True)
    assert (found.requests, found.left_out, len(found.slow)) == (60, 1, 3)
    assert [one.latency for one in found.slow] == pytest.approx(took[:3])
    assert found.threshold == pytest.approx(took[2])
    assert all(total(one.parts) == pytest.approx(one.latency) for one in found.slow)
    assert total(found.slow_parts) == pytest.approx(math.fsum(took[:3]) / 3)
    assert total(found.all_parts) == pytest.approx(math.fsum(took) / 60)
    assert total(found.excess) == pytest.approx(math.fsum(took[:3]) / 3 - math.fsum(took) / 60)
    said = str(found)
    assert "slowest 3 of 60 requests" in said and "1 others did not succeed" in said
    assert "own prefill" in said and "padding" not in said
    assert found.as_dict()["slow"][0]["latency_s"] == found.slow[0].latency
    ttft = slowest(lines, StepShares(engine.steps), share=1, of="TTFT")
    assert len(ttft.slow) == 60 and total(ttft.slow_parts) == pytest.approx(
        math.fsum(metrics.ttft(line) for line in lines[:-1]) / 60
    )


def test_a_run_in_which_nobody_succeeded_has_no_slowest():
    found = slowest([Timeline(0.0, finished=0.01, finish_reason="error")], [])
    assert found.slow == () and found.threshold is None and "no request succeeded" in str(found)


# ---- what is refused ----------------------------------------------------------------------------------------------


def test_what_cannot_be_attributed_is_refused():
    requests, engine = crowd()
    line = requests[5].timeline
    assert attribute(Timeline(0.0), engine.steps) == {}
    with pytest.raises(UnderloadError, match="the one that the engine kept"):
        attribute(Timeline(0.0, token_times=[1.0]), engine.steps)
    with pytest.raises(UnderloadError, match="no step ended at"):
        attribute(line, engine.steps[:3])
    with pytest.raises(UnderloadError, match="no step ended at"):
        attribute(line, [])
    with pytest.raises(UnderloadError, match="steps of one engine"):
        attribute(line, engine.steps[::-1])
    with pytest.raises(UnderloadError, match="one of E2E, TTFT"):
        attribute(line, engine.steps, of="TPOT")
    with pytest.raises(UnderloadError, match="cut up already"):
        attribute(line, StepShares(engine.steps), step_time=STEP_TIME)
    with pytest.raises(UnderloadError, match="it must take some"):
        StepShares(engine.steps, step_time=lambda step: 0.0)
    for share in (0, 1.5, math.nan):
        with pytest.raises(UnderloadError, match="share"):
            slowest([line], engine.steps, share=share)
