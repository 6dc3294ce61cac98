"""Token ids to text, one token at a time, sending nothing that would have to be taken back.

Two things make a token's text unsafe to send the moment it is drawn:

    bytes   61 62 F0 9F | 98 80        a character may end in a later token: its first bytes wait
    text    ...DEF | GHIJ              the start of a stop string may turn out to be one: it waits too

What is sent is sent for good, and all deltas together are exactly what decoding all ids at once would have given, cut
before the stop string. Each token costs its own length times the number of stop strings, however long the text is.
"""

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from underload.request import InvalidRequest


class TokenBytes(Protocol):
    """What detokenising needs of a tokenizer."""

    @property
    def drops_leading_space(self) -> bool:
        """Whether the one space that begins a text is the scheme's own, and not text."""
        ...

    def id_to_bytes(self, index: int) -> bytes:
        """The raw bytes a token stands for."""
        ...

    def is_special(self, index: int) -> bool:
        """Whether the token is a mark rather than text."""
        ...


class Detokenizer:
    """The text of one sequence as it grows.

    Args:
        tokenizer: knows each token's bytes.
        stop: strings that end the text. The one that completes first wins; of those that complete at one character,
            the longest. The rule looks at characters only, so the text does not depend on where tokens end.
        min_tokens: a stop string that is complete within the first `min_tokens` tokens is text like any other.
        skip_special: leave special tokens out of the text.
        continues: the text goes on from a prompt, so that a leading space is a space between words; otherwise a
            scheme that writes one before every text (sentencepiece) has it taken off, as decoding all ids does.

    Raises:
        InvalidRequest: an empty stop string.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        stop: Sequence[str] = (),
        *,
        min_tokens: int = 0,
        skip_special: bool = True,
        continues: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._stops = [StopString(stop)] if isinstance(stop, str) else [StopString(text) for text in stop]
        self._min_tokens = min_tokens
        self._skip_special = skip_special
        self._drop_space = tokenizer.drops_leading_space and not continues
        # An incomplete character stays inside the decoder; an impossible one becomes U+FFFD once it is certain.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""  # decoded, and perhaps the start of a stop string
        self._sent: list[str] = []
        self._finished = False
        self.num_tokens = 0
        self.stopped_by: str | None = None

    @property
    def text(self) -> str:
        """All that was sent so far."""
        if len(self._sent) > 1:
            self._sent = ["".join(self._sent)]
        return self._sent[0] if self._sent else ""

    @property
    def held(self) -> str:
        """Characters kept back because they may begin a stop string."""
        return self._held

    def push(self, token_id: int) -> str:
        """Take one more token; return the text that is now safe to send, which is often empty and never taken back.

        Once a stop string is complete (`stopped_by` names it) the text has ended, and further tokens add nothing.

        Raises:
            InvalidRequest: an id that the tokenizer refuses; the text is as it was.
        """
        if self.stopped_by is not None or self._finished:
            return ""
        raw = b""
        if not (self._skip_special and self._tokenizer.is_special(token_id)):
            raw = self._tokenizer.id_to_bytes(token_id)
        self.num_tokens += 1
        if raw and self._drop_space:
            self._drop_space = False
            raw = raw.removeprefix(b" ")
        return self._release(self._decoder.decode(raw))

    def finish(self) -> str:
        """No token comes any more: return what was held back. A character that never got its last bytes is U+FFFD, as
        it is when all ids are decoded at once. A second call returns nothing."""
        if self.stopped_by is not None or self._finished:
            return ""
        delta = self._release(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        self._finished = True
        return delta + self._send(held)

    def _release(self, text: str) -> str:
        """Append decoded text to what is held; cut at a stop string; return all but a possible beginning of one."""
        if not self._stops:
            return self._send(text)
        counts = self.num_tokens > self._min_tokens
        pending = self._held + text
        start = len(self._held)
        for end, character in enumerate(text, start + 1):
            complete = [stop for stop in self._stops if stop.advance(character)]
            if complete and counts:
                longest = max(complete, key=lambda stop: len(stop.text))
                self.stopped_by = longest.text
                self._held = ""
                return self._send(pending[: end - len(longest.text)])
        keep = max(stop.matched for stop in self._stops)
        safe = len(pending) - keep
        self._held = pending[safe:]
        return self._send(pending[:safe])

    def _send(self, delta: str) -> str:
        if delta:
            self._sent.append(delta)
        return delta


class StopString:
    """Searches for one string in a text that arrives character by character, looking at each once
    (Knuth, Morris and Pratt, "Fast Pattern Matching in Strings", SIAM J. Comput. 6, 1977).

    `matched` is the length of the longest beginning of the string that the text so far ends in (short of all of it).
    """

    def __init__(self, text: str) -> None:
        if not text:
            raise InvalidRequest("a stop string must not be empty: it would end the text at once")
        self.text = text
        self.matched = 0
        # border[j]: the longest proper beginning of text[:j] that is also its end; where to go on after a mismatch.
        self._border = [0, 0]
        for j in range(1, len(text)):
            k = self._border[j]
            while k and text[j] != text[k]:
                k = self._border[k]
            self._border.append(k + 1 if text[j] == text[k] else 0)

    def advance(self, character: str) -> bool:
        """Take the next character; whether the string is complete with it."""
        while self.matched and self.text[self.matched] != character:
            self.matched = self._border[self.matched]
        if self.text[self.matched] == character:
            self.matched += 1
        if self.matched < len(self.text):
            return False
        self.matched = self._border[self.matched]
        return True


def detokenize(
    tokenizer: TokenBytes, token_ids: Iterable[int], stop: Sequence[str] = (), *, min_tokens: int = 0
) -> tuple[str, str | None]:
    """The whole text of `token_ids`, and the stop string that ended it (or None): a stream's result at once."""
    detokenizer = Detokenizer(tokenizer, stop, min_tokens=min_tokens)
    for token_id in token_ids:
        detokenizer.push(token_id)
    detokenizer.finish()
    return detokenizer.text, detokenizer.stopped_by
