"""How the next token is chosen, and when to stop."""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import NoReturn

from underload.request.errors import InvalidRequest

# Beyond it a biased logit could leave float32. It is a force, not a nudge, long before.
MAX_LOGIT_BIAS = 1e30
MAX_SAMPLES = 16_384


@dataclass(frozen=True)
class SamplingParams:
    """One request's wishes; checked when made, so that an engine never meets a bad one.

    Names and neutral values are those of vLLM's `SamplingParams`. In the order they act on the logits:
    penalties and `logit_bias`, `min_tokens` (bans the stop tokens), `temperature`, then `top_k`, `top_p`, `min_p`.

    Args:
        max_tokens: tokens to generate at most, >= 1.
        min_tokens: tokens before a stop token or stop string may end the text, 0 <= min_tokens <= max_tokens.
        temperature: 0 is argmax; larger is flatter.
        top_k: keep the k most probable tokens, the lower ids of a tie; below 1 (or >= vocabulary) means off.
        top_p: keep the smallest set of most probable tokens whose probabilities reach top_p (Holtzman et al.,
            "The Curious Case of Neural Text Degeneration", ICLR 2020); 1 is off, 0 keeps the most probable one.
        min_p: drop tokens less probable than min_p times the most probable one; 0 is off (Nguyen et al., "Turning Up
            the Heat: Min-p Sampling", ICLR 2025).
        repetition_penalty: divides positive (multiplies negative) logits of tokens seen in prompt or output
            (Keskar et al., "CTRL", 2019, section 4.1); 1 is off.
        frequency_penalty: subtracted once per earlier occurrence in the output.
        presence_penalty: subtracted once if the token occurs in the output.
        logit_bias: token id -> added to its logit, after the penalties; -inf bans the token.
        stop: strings that end the text; they are not part of it.
        stop_token_ids: token ids that end the text, besides the model's own end-of-text tokens.
        ignore_eos: go on past the model's own end-of-text tokens (for measurements).
        seed: makes the samples reproducible, whatever else is in the batch; None draws a fresh one.
        logprobs: list that many most probable tokens beside the chosen one, at each step; None lists none.
        n: samples (independent continuations) of the prompt, `MAX_SAMPLES` at most.

    Raises:
        InvalidRequest: a value outside its range; the message names the value and the range.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        # A lone string is the commonest slip: ("abc") would otherwise become three one-letter stops.
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids"):
            value = getattr(self, name)
            if not (value is None or isinstance(value, list | tuple | Set)):
                self._refuse(name, "a list")
            object.__setattr__(self, name, tuple(value or ()))
        if not (self.logit_bias is None or isinstance(self.logit_bias, Mapping)):
            self._refuse("logit_bias", "a mapping")
        object.__setattr__(self, "logit_bias", dict(self.logit_bias or {}))  # the caller may change theirs later
        # Types first: these values come out of JSON as often as out of code, and must not fail as a comparison.
        for name in ("max_tokens", "min_tokens", "top_k", "n"):
            if not _is_whole(getattr(self, name)):
                self._refuse(name, "a whole number")
        for name in ("seed", "logprobs"):
            value = getattr(self, name)
            if not (value is None or _is_whole(value)):
                self._refuse(name, "a whole number or None")
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"):
            if not _is_number(getattr(self, name)):
                self._refuse(name, "a number")
        if not all(isinstance(text, str) for text in self.stop):
            self._refuse("stop", "strings")
        if not all(map(_is_whole, self.stop_token_ids)):
            self._refuse("stop_token_ids", "token ids (whole numbers)")
        if not all(map(_is_whole, self.logit_bias)):
            self._refuse("logit_bias", "keyed by token id (a whole number)")

        if not self.max_tokens >= 1:
            self._refuse("max_tokens", "at least 1")
        if not 0 <= self.min_tokens <= self.max_tokens:
            self._refuse("min_tokens", f"between 0 and max_tokens ({self.max_tokens})")
        if not 0 <= self.temperature < math.inf:
            self._refuse("temperature", "0 (argmax) or a finite positive number")
        if not 0 <= self.top_p <= 1:
            self._refuse("top_p", "between 0 and 1")
        if not 0 <= self.min_p <= 1:
            self._refuse("min_p", "between 0 and 1")
        if not 0 < self.repetition_penalty < math.inf:
            self._refuse("repetition_penalty", "a finite number above 0 (1 is off)")
        for name in ("frequency_penalty", "presence_penalty"):
            if not math.isfinite(getattr(self, name)):
                self._refuse(name, "finite")
        for bias in self.logit_bias.values():
            if not (_is_number(bias) and (bias == -math.inf or abs(bias) <= MAX_LOGIT_BIAS)):
                self._refuse(
                    "logit_bias", f"numbers from -{MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g}, or -inf to ban a token"
                )
        if not all(self.stop):
            self._refuse("stop", "non-empty strings (an empty one would stop at once)")
        if not (self.logprobs is None or self.logprobs >= 0):
            self._refuse("logprobs", "None or at least 0")
        if not 1 <= self.n <= MAX_SAMPLES:  # each is an object before anybody can ask whether it fits
            self._refuse("n", f"at least 1 and at most {MAX_SAMPLES:,}")

    def _refuse(self, name: str, wanted: str) -> NoReturn:
        raise InvalidRequest(f"{name} must be {wanted}, got {getattr(self, name)!r}")


def _is_whole(value: object) -> bool:
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def _is_number(value: object) -> bool:
    return type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))
