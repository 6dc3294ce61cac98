"""One sequence's output as it is made: what chooses its next token, and what turns it into text."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

from underload.decoder.detokenize import Detokenizer
from underload.decoder.model import Model
from underload.decoder.sampling import SamplingState, validate
from underload.request import InvalidRequest, Request, SamplingParams

if TYPE_CHECKING:
    from underload.decoder.tokenizer import Tokenizer


def check_request(model: Model, prompt_ids: Seq[int], params: SamplingParams) -> None:
    """Refuse what this model cannot continue: once it is in a batch, it would take its neighbours with it.

    Raises:
        InvalidRequest: a token id outside the vocabulary (of the prompt or of a parameter), or a stop string for a
            model without a tokenizer.
    """
    vocab = model.shape.vocab_size
    if outside := [token for token in prompt_ids if not 0 <= token < vocab]:
        raise InvalidRequest(f"token id {outside[0]} is outside the vocabulary of {vocab} (0 to {vocab - 1})")
    if params.stop and model.tokenizer is None:
        raise InvalidRequest(f"{model.shape.name} has no tokenizer, so stop strings cannot be seen; use stop_token_ids")
    validate(params, vocab)


class Continuation:
    """The next token of one sequence, and the text so far.

    All that it keeps follows from the sequence's tokens, so a step may fail after it has advanced: where it does not
    stand at the sequence's end, it reads the output again.
    """

    def __init__(self, state: SamplingState, tokenizer: Tokenizer | None) -> None:
        self.state = state
        self._tokenizer = tokenizer
        self._detokenizer: Detokenizer | None = None
        self._position = -1  # where in the output the detokenizer stands

    @classmethod
    def of(cls, model: Model, request: Request) -> list[Continuation]:
        """One for each sample of a request. Its samples share a seed and differ by their index."""
        eos = model.shape.eos_token_ids if model.tokenizer is None else model.tokenizer.eos_token_ids
        made: list[Continuation] = []
        for sequence in request.sequences:
            seed = made[0].state.seed if made else None
            state = SamplingState(request.params, sequence, eos_token_ids=eos, seed=seed, name=request.request_id)
            made.append(cls(state, model.tokenizer))
        return made

    def say(self, token_id: int, *, last: bool = False) -> tuple[str, bool]:
        """The text that is safe to show with `token_id` as the next token, and whether it ends the text. The sequence
        is not changed: the caller appends.

        Args:
            last: there is no room for a token after this one, so nothing need be held back.

        Raises:
            InvalidRequest: the tokenizer does not know the token.
        """
        ends = self.state.ends(token_id)
        if self._tokenizer is None:
            return "", ends
        position = self.state.position
        if self._detokenizer is None or self._position != position:
            self._detokenizer = self._reread(self._tokenizer)
        self._position = position + 1  # at once: where the rest fails, the sequence stays behind, and this shows it
        text = "" if ends else self._detokenizer.push(token_id)
        ends = ends or self._detokenizer.stopped_by is not None
        if ends or last:
            text += self._detokenizer.finish()
        return text, ends

    def _reread(self, tokenizer: Tokenizer) -> Detokenizer:
        params, sequence = self.state.params, self.state.sequence
        detokenizer = Detokenizer(tokenizer, params.stop, min_tokens=params.min_tokens, continues=True)
        for token_id in sequence.output_ids:
            detokenizer.push(token_id)
        return detokenizer
