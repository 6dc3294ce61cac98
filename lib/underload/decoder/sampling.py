"""From logits to a token: one law, and one draw from it.

`probabilities` is the exact law a token is drawn from; `sample` draws. Whatever else needs the law (the tests,
speculative decoding's acceptance ratio) calls the same function, so the two cannot drift apart.

The draw is the inverse of the law's distribution function at one uniform number, and that number is a function of
(seed, sample, position) alone: a counter-based generator, Philox (Salmon et al., "Parallel Random Numbers: As Easy
as 1, 2, 3", SC 2011), keyed by seed and sample and counting positions. Nothing is carried from token to token. So a
seeded request draws the same tokens whoever its neighbours are, and one that was preempted, recomputed or moved to
another machine goes on exactly where it stopped.
"""

import secrets
from collections import Counter
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from underload.request import InvalidRequest, SamplingParams, Sequence, UnderloadError

# A set of tokens has reached `top_p` when its mass is this close to it. float32 logits know a probability to about
# 1e-6 (half a unit in the last place of a logit of 20), so an exact sum such as .5 + .25 = .75 must not, by
# rounding, take one token more.
TOP_P_RESOLUTION = 1e-6


class BadLogits(UnderloadError):
    """One request's logits hold no law to draw from (NaN, infinity, or every token banned); its neighbours' may."""


@dataclass(slots=True)
class Draw:
    """One chosen token.

    logprob and top_logprobs are raw: log-softmax of the model's logits, before penalties, temperature and filters.
    They are filled in when `SamplingParams.logprobs` asks for them; the chosen token is always listed.
    """

    token_id: int
    logprob: float | None = None
    top_logprobs: dict[int, float] = field(default_factory=dict)  # token id -> logprob, most probable first


class SamplingState:
    """What choosing the next token of one sequence depends on: its parameters, its tokens so far, its random key.

    It reads `sequence.tokens` as they are at each call and keeps nothing of its own between calls.

    Args:
        params: the request's wishes.
        sequence: prompt and output so far; `sequence.index` is the sample's number in the random key.
        eos_token_ids: the model's own end-of-text tokens.
        seed: used when `params.seed` is None, so that several samples may share one; without it a fresh one is drawn.
        name: how errors call this request.
    """

    def __init__(
        self,
        params: SamplingParams,
        sequence: Sequence,
        *,
        eos_token_ids: Iterable[int] = (),
        seed: int | None = None,
        name: str = "",
    ) -> None:
        self.params = params
        self.sequence = sequence
        self.name = name
        chosen = params.seed if params.seed is not None else seed
        self.seed: int = chosen if chosen is not None else secrets.randbits(63)
        self.eos_token_ids = tuple(eos_token_ids)
        ends = () if params.ignore_eos else self.eos_token_ids
        self.stop_ids: frozenset[int] = frozenset(ends) | frozenset(params.stop_token_ids)
        self._prompt_ids: frozenset[int] | None = None
        # Asked for each row of each step, so what does not change is settled here.
        penalised = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) != (1, 0, 0)
        self._edits_always = bool(penalised or params.logit_bias)
        self._edits_until = params.min_tokens if self.stop_ids else 0
        self._argmax_if_unedited = params.temperature == 0 and params.logprobs is None

    @property
    def position(self) -> int:
        """Which output token comes next: 0 for the first."""
        return len(self.sequence.tokens) - self.sequence.prompt_len

    @property
    def edits_logits(self) -> bool:
        """Whether anything changes the logits before temperature: penalties, biases, or a ban by min_tokens."""
        return self._edits_always or (self._edits_until > 0 and self.position < self._edits_until)

    @property
    def takes_argmax(self) -> bool:
        """Whether the next token is the plain argmax of the logits, so that a fused head need not write them out."""
        return self._argmax_if_unedited and not self.edits_logits

    def ends(self, token_id: int) -> bool:
        """Whether `token_id`, drawn at the present position, ends the text. Ask before appending it."""
        return token_id in self.stop_ids and self.position >= self.params.min_tokens

    def uniform(self, stream: int = 0) -> float:
        """The number in [0, 1) of this (seed, sample, position); `stream` tells several at one position apart."""
        return uniform(self.seed, self.sequence.index, self.position, stream)

    def after(self, token_ids: Iterable[int]) -> "SamplingState":
        """This state as it would be had `token_ids` been appended; this one and its sequence stay as they are."""
        longer = replace(self.sequence, tokens=[*self.sequence.tokens, *token_ids])
        return SamplingState(self.params, longer, eos_token_ids=self.eos_token_ids, seed=self.seed, name=self.name)

    def prompt_ids(self) -> frozenset[int]:
        """The distinct tokens of the prompt."""
        if self._prompt_ids is None:
            self._prompt_ids = frozenset(self.sequence.tokens[: self.sequence.prompt_len])
        return self._prompt_ids


def uniform(seed: int, sample: int, position: int, stream: int = 0) -> float:
    """A number in [0, 1) that depends on its four arguments and nothing else. Seeds count modulo 2**64."""
    # As uint64 by hand: from a list NumPy would make floats of seeds beyond 2**63, and neighbours would meet.
    key = np.array([seed % 2**64, sample], dtype=np.uint64)
    philox = np.random.Philox(key=key, counter=[position, stream, 0, 0])
    # 52 bits, so that u * total < total also after rounding: the draw can never run off the end of the law.
    return (int(philox.random_raw()) >> 12) / 2.0**52


def validate(params: SamplingParams, vocab_size: int) -> None:
    """Check what `SamplingParams` could not know: that its token ids are in this model's vocabulary.

    Raises:
        InvalidRequest: an id of `logit_bias` or `stop_token_ids` is outside [0, vocab_size), or `logprobs` is larger.
    """
    named: tuple[tuple[str, Collection[int]], ...] = (
        ("logit_bias", params.logit_bias),
        ("stop_token_ids", params.stop_token_ids),
    )
    for name, ids in named:
        for token_id in ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequest(
                    f"{name} names token {token_id}, but the vocabulary has {vocab_size} tokens: "
                    f"use ids from 0 to {vocab_size - 1}"
                )
    if params.logprobs is not None and params.logprobs > vocab_size:
        raise InvalidRequest(f"logprobs asks for {params.logprobs} tokens, but the vocabulary has {vocab_size}")


def sample(logits: Tensor, rows: Seq[SamplingState]) -> list[Draw | BadLogits]:
    """Choose the next token of each row.

    Rows without wishes beyond temperature 0 cost one shared argmax. The others are handled together, kind by kind.
    A row whose logits cannot be drawn from yields its error, in its place, and no token; the others are unaffected.

    Args:
        logits: [rows, vocab], any floating dtype and device; not changed.
        rows: one state a row. Nothing is appended to their sequences.
    """
    _check(logits, rows)
    if not rows:
        return []
    raw = logits.float()
    edited = _edit(raw, rows)
    # One pass finds the argmax and the rows that hold no law: the maximum of a row with a NaN in it is NaN.
    best, ids = edited.max(dim=-1)
    sound = best.isfinite().tolist()

    random = [r for r, state in enumerate(rows) if state.params.temperature > 0 and sound[r]]
    if random:
        where = torch.tensor(random, device=raw.device)
        chosen = edited if len(random) == len(rows) else edited[where]
        law = _law(chosen, [rows[r].params for r in random])
        points = torch.tensor([rows[r].uniform() for r in random], dtype=torch.float64, device=raw.device)
        ids = ids.index_copy(0, where, _invert(law, points))

    token_ids = ids.tolist()
    draws: list[Draw | BadLogits] = [
        Draw(token_ids[r]) if sound[r] else _complaint(raw[r], edited[r], state) for r, state in enumerate(rows)
    ]
    listed = [r for r, state in enumerate(rows) if state.params.logprobs is not None and sound[r]]
    if listed:
        wanted = [rows[r].params.logprobs or 0 for r in listed]
        for r, draw in zip(listed, _logprobs(raw[listed], [token_ids[r] for r in listed], wanted), strict=True):
            draws[r] = draw
    return draws


def probabilities(logits: Tensor, rows: Seq[SamplingState]) -> Tensor:
    """The law that `sample` draws from, row by row: float64 [rows, vocab], each row summing to 1.

    In order: penalties, `logit_bias`, `min_tokens`; temperature; `top_k`, `top_p`, `min_p`, each on what the one before
    left, renormalised. At temperature 0 all mass lies on the argmax. Ties go to the lower id everywhere, so that
    `top_k=1`, `top_p=0` and temperature 0 are one and the same token.

    Raises:
        BadLogits: a row holds no law; the message names its request.
    """
    _check(logits, rows)
    raw = logits.float()
    edited = _edit(raw, rows)
    for r, sound in enumerate(edited.amax(dim=-1).isfinite().tolist()):
        if not sound:
            raise _complaint(raw[r], edited[r], rows[r])
    return _law(edited, [state.params for state in rows])


def _check(logits: Tensor, rows: Seq[SamplingState]) -> None:
    if logits.dim() != 2 or logits.shape[0] != len(rows):
        raise ValueError(
            f"logits must be [rows, vocab] with one row for each of {len(rows)} states, got {tuple(logits.shape)}"
        )


def _complaint(raw: Tensor, edited: Tensor, state: SamplingState) -> BadLogits:
    """Say what is wrong with one row. raw, edited: [vocab]."""
    who = f"request {state.name!r}" if state.name else f"the sequence of sample {state.sequence.index}"
    at = f"{who}, output token {state.position}: no token was drawn,"
    nans, infs = int(raw.isnan().sum()), int((raw == float("inf")).sum())
    if nans or infs:
        return BadLogits(
            f"{at} since {nans} of its {raw.numel()} logits are NaN and {infs} are infinite. "
            "The activations overflowed or the weights are damaged: try dtype float32, or fetch the weights again"
        )
    if bool((edited == float("-inf")).all()):
        return BadLogits(f"{at} since all {raw.numel()} tokens are banned by logit_bias and min_tokens: ban fewer")
    return BadLogits(
        f"{at} since penalties and logit_bias raised a logit beyond float32: bring repetition_penalty "
        f"({state.params.repetition_penalty}) and the biases closer to their neutral values"
    )


# ---- before temperature -------------------------------------------------------------------------------------------


def _edit(logits: Tensor, rows: Seq[SamplingState]) -> Tensor:
    """Penalties, biases and bans. Returns `logits` itself when no row asks for any, a changed copy otherwise.

    Only the tokens that are named are touched: a gather, a little arithmetic and a scatter for all rows together.
    """
    if not any(state.edits_logits for state in rows):
        return logits
    row_of: list[int] = []
    id_of: list[int] = []
    factor: list[float] = []  # divides a positive logit, multiplies a negative one
    offset: list[float] = []  # added afterwards
    for r, state in enumerate(rows):
        for token_id, (scale, shift) in _edits(state).items():
            row_of.append(r)
            id_of.append(token_id)
            factor.append(scale)
            offset.append(shift)
    logits = logits.clone()
    if row_of:
        device = logits.device
        at = (torch.tensor(row_of, device=device), torch.tensor(id_of, device=device))
        factors = torch.tensor(factor, dtype=torch.float32, device=device)
        value = logits[at]
        value = torch.where(value > 0, value / factors, value * factors)
        logits[at] = value + torch.tensor(offset, dtype=torch.float32, device=device)
    return logits


def _edits(state: SamplingState) -> dict[int, tuple[float, float]]:
    """Token id -> (repetition factor, what is added), for every token this row touches."""
    params = state.params
    edits: dict[int, tuple[float, float]] = {}
    if params.repetition_penalty != 1 or params.frequency_penalty != 0 or params.presence_penalty != 0:
        if params.repetition_penalty != 1:
            edits = dict.fromkeys(state.prompt_ids(), (params.repetition_penalty, 0.0))
        for token_id, count in Counter(state.sequence.output_ids).items():
            edits[token_id] = (params.repetition_penalty, -count * params.frequency_penalty - params.presence_penalty)
    for token_id, bias in params.logit_bias.items():
        scale, shift = edits.get(token_id, (1.0, 0.0))
        edits[token_id] = (scale, shift + bias)
    if state.position < params.min_tokens:
        for token_id in state.stop_ids:
            edits[token_id] = (1.0, float("-inf"))
    return edits


# ---- temperature and filters --------------------------------------------------------------------------------------


def _law(logits: Tensor, params: Seq[SamplingParams]) -> Tensor:
    """[rows, vocab] edited logits -> float64 probabilities. Every row has a finite maximum."""
    device, vocab = logits.device, logits.shape[1]

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)[:, None]

    greedy = [p.temperature == 0 for p in params]
    top_k = [p.top_k if 1 <= p.top_k < vocab else vocab for p in params]
    top_k = [1 if g else k for g, k in zip(greedy, top_k, strict=True)]

    # In place on a fresh copy: at this width the memory for each further one costs more than the arithmetic.
    x = logits.to(torch.float64, copy=True)
    # The maximum goes to 0 before the division, so that a temperature of 1e-30 gives argmax and not inf - inf.
    x -= x.amax(dim=-1, keepdim=True)
    x /= column([1.0 if g else p.temperature for g, p in zip(greedy, params, strict=True)])
    if min(top_k) < vocab:
        k = torch.tensor(top_k, device=device)
        x.masked_fill_(~_largest(x, k, _descending(x, max(k for k in top_k if k < vocab))), float("-inf"))
    law = x.softmax(dim=-1)
    if any(p.top_p < 1 for p in params):
        law = _nucleus(law, column([p.top_p for p in params]))
    if any(p.min_p > 0 for p in params):
        min_p = column([p.min_p for p in params])
        law = _restricted(law, law >= min_p * law.amax(dim=-1, keepdim=True), min_p == 0)
    return law


def _nucleus(law: Tensor, top_p: Tensor) -> Tensor:
    """Keep the smallest set of most probable tokens whose mass reaches top_p; renormalise. top_p: [rows, 1].

    Only sorted values are needed, not the order of the tokens, and usually only the first few: the head of the law is
    sorted first, and the whole of it when some row's mass is not reached there.
    """
    vocab = law.shape[1]
    reach = torch.where(top_p < 1, top_p - TOP_P_RESOLUTION, float("inf"))  # a row with top_p = 1 keeps everything
    off = reach.isinf()  # [rows, 1]
    for width in sorted({min(64, vocab), min(1024, vocab), vocab}):
        values = _descending(law, width)
        mass = values.cumsum(dim=-1)
        if width == vocab or bool((off | (mass[:, -1:] >= reach)).all()):
            break
    keep = (1 + (mass < reach).sum(dim=-1)).clamp(max=width)
    return _restricted(law, off | _largest(law, keep, values), off)


def _descending(x: Tensor, width: int) -> Tensor:
    """The `width` largest values of each row, largest first."""
    if width < x.shape[1] // 8:
        return x.topk(width, dim=-1).values
    return x.sort(dim=-1, descending=True).values[:, :width]


def _largest(x: Tensor, count: Tensor, values: Tensor) -> Tensor:
    """Mask of the `count` largest entries of each row; of equal ones the lower ids.

    Args:
        x: [rows, vocab].
        count: [rows] int64, each >= 1; a row whose count is the vocabulary (or more) keeps everything.
        values: [rows, width] each row's largest values in descending order, as many as any count below the vocabulary.
    """
    everything = (count >= x.shape[1])[:, None]
    last = values.gather(1, (count.clamp(max=values.shape[1]) - 1)[:, None])  # the smallest value kept
    above = x > last
    ties = x == last
    room = count[:, None] - above.sum(dim=-1, keepdim=True)
    return everything | above | (ties & (ties.cumsum(dim=-1) <= room))


def _restricted(law: Tensor, keep: Tensor, off: Tensor) -> Tensor:
    """The law given that the token is one of `keep` [rows, vocab]; rows with `off` [rows, 1] stay, bit by bit.

    That they do is what makes a row independent of its neighbours' filters.
    """
    kept = law.masked_fill(~keep, 0.0)
    # The last of the running sum, not sum(): its order of addition does not depend on how many rows there are.
    return torch.where(off, law, kept / kept.cumsum(dim=-1)[:, -1:])


def _invert(law: Tensor, points: Tensor) -> Tensor:
    """The first token at which the running sum exceeds the point. law: [rows, vocab], points: [rows] in [0, 1).

    That token's probability is above 0, since the running sum grew there.
    """
    running = law.cumsum(dim=-1)
    return torch.searchsorted(running, (points * running[:, -1])[:, None], right=True).squeeze(-1)


# ---- log-probabilities --------------------------------------------------------------------------------------------


def _logprobs(raw: Tensor, token_ids: list[int], wanted: list[int]) -> list[Draw]:
    """Draws with raw log-probabilities. raw: [rows, vocab]; wanted: how many tokens each row lists."""
    logprobs = raw.log_softmax(dim=-1).clamp(max=0.0)
    chosen = logprobs.gather(1, torch.tensor(token_ids, device=raw.device)[:, None]).squeeze(-1).tolist()
    top = logprobs.topk(min(max(wanted), raw.shape[1]), dim=-1)
    draws = []
    for token_id, logprob, count, ids, values in zip(
        token_ids, chosen, wanted, top.indices.tolist(), top.values.tolist(), strict=True
    ):
        listing = dict(zip(ids[:count], values[:count], strict=True))
        listing.setdefault(token_id, logprob)
        draws.append(Draw(token_id, logprob, listing))
    return draws
