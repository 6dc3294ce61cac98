"""Text to token ids and back, and the bytes that each token stands for.

The splitting is done by the `tokenizers` package; going back is done here, from the raw bytes of each token,
because a stream of text has to be cut between bytes, not between decoded strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from underload.decoder.optional import require
from underload.decoder.weights import CheckpointError
from underload.request import InvalidRequest

if TYPE_CHECKING:
    import tokenizers

    from underload.decoder.chat import ChatTemplate

_MAX_TOKENIZER_BYTES = 200_000_000
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class ChatPrompt(str):
    """A conversation as one text. `Tokenizer.encode` adds nothing around it: the template has written every mark."""

    __slots__ = ()


class Tokenizer:
    """A checkpoint's tokenizer.

    Args:
        backend: the `tokenizers.Tokenizer` that splits text.
        bos_token_id: begins a text where the checkpoint's post-processor says so; also shown to chat templates.
        eos_token_ids: the ids that end a text.
        chat_template: how messages become one prompt; None where the checkpoint has none.

    Raises:
        CheckpointError: ids outside the vocabulary, or a scheme whose tokens have no fixed bytes (WordPiece …).
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None = None,
        eos_token_ids: Iterable[int] = (),
        chat_template: ChatTemplate | None = None,
    ) -> None:
        # A saved tokenizer may carry padding and truncation from its training: both would change prompts silently.
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self._added = dict(backend.get_added_tokens_decoder())
        self._to_bytes = _byte_rule(backend)
        self._bytes: dict[int, bytes] = {}
        self.vocab_size: int = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.base_vocab_size: int = backend.get_vocab_size(with_added_tokens=False)
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        self.chat_template = chat_template
        self.special_ids = frozenset(index for index, token in self._added.items() if token.special)
        self.drops_leading_space = _drops_leading_space(_decoder_steps(backend))
        for index in (*self.eos_token_ids, *(() if bos_token_id is None else (bos_token_id,))):
            if not 0 <= index < self.vocab_size:
                raise CheckpointError(
                    f"a begin or end token has id {index}, outside the tokenizer's vocabulary of {self.vocab_size}"
                )

    @classmethod
    def from_file(cls, path: Path, **options: Any) -> Tokenizer:
        """The tokenizer of a `tokenizer.json`; options as for the class.

        Raises:
            CheckpointError: the file is absent, too large to be one, or not a tokenizer.
        """
        tokenizers = require("tokenizers", "reading a tokenizer")
        if not path.is_file():
            raise CheckpointError(
                f"{path.parent} has no tokenizer.json (a sentencepiece tokenizer.model alone is not read); "
                "save the tokenizer with save_pretrained of a recent transformers to get one"
            )
        if (size := path.stat().st_size) > _MAX_TOKENIZER_BYTES:
            raise CheckpointError(
                f"{path} has {size} bytes; a tokenizer of more than {_MAX_TOKENIZER_BYTES} is not believed"
            )
        try:
            backend = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except BaseException as error:
            # The Rust side raises bare Exception on bad JSON, and a PanicException (a BaseException) on worse.
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            raise CheckpointError(f"{path} is not a tokenizer: {error}") from error
        return cls(backend, **options)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Ids of a text. With `add_special`, what the checkpoint puts around every text (often a begin token) is
        added; but nothing to a `ChatPrompt`, and no second begin token to a text that starts with one.

        Raises:
            InvalidRequest: not a string, or one with half a surrogate pair, which no bytes stand for.
        """
        if not isinstance(text, str):
            raise InvalidRequest(f"a prompt text must be a string, got {type(text).__name__}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"the text holds half a surrogate pair at character {error.start}; it cannot be written as UTF-8"
            ) from error
        add_special = add_special and not isinstance(text, ChatPrompt)
        ids: list[int] = self._backend.encode(str(text), add_special_tokens=add_special).ids
        if add_special and len(ids) > 1 and self.bos_token_id is not None and ids[0] == ids[1] == self.bos_token_id:
            return ids[1:]
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of a whole sequence of ids; bytes that are no character become U+FFFD.

        Where the scheme writes a space before every text (sentencepiece), the one at the start is taken off again.
        """
        kept = [index for index in ids if not (skip_special and index in self.special_ids)]
        raw = b"".join(map(self.id_to_bytes, kept))
        if self.drops_leading_space and raw.startswith(b" "):
            raw = raw[1:]
        return raw.decode("utf-8", errors="replace")

    def id_to_bytes(self, index: int) -> bytes:
        """The raw bytes a token stands for, special tokens as they are spelled; empty for an id that the tokenizer
        has no token for (a vocabulary padded to a round number has some).

        Raises:
            InvalidRequest: a negative id.
        """
        known = self._bytes.get(index)
        if known is None:
            if index < 0:
                raise InvalidRequest(f"token ids start at 0, got {index}")
            if index in self._added:
                known = self._added[index].content.encode("utf-8")
            else:
                piece = self._backend.id_to_token(index)
                known = b"" if piece is None else self._to_bytes(piece)
            self._bytes[index] = known
        return known

    def is_special(self, index: int) -> bool:
        """Whether the token is a mark rather than text: begin, end, or a border between messages."""
        return index in self.special_ids

    def token_to_id(self, token: str) -> int | None:
        """Id of a token by its spelling in the vocabulary, None where there is none."""
        return self._backend.token_to_id(token)

    @cached_property
    def bos_token(self) -> str:
        return (
            "" if self.bos_token_id is None else self.id_to_bytes(self.bos_token_id).decode("utf-8", errors="replace")
        )

    @cached_property
    def eos_token(self) -> str:
        return self.id_to_bytes(self.eos_token_ids[0]).decode("utf-8", errors="replace") if self.eos_token_ids else ""

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **variables: Any
    ) -> ChatPrompt:
        """The prompt text that a conversation becomes, ready for `encode`.

        A message that spells a special token out is not told apart from the template's own: do not give a model more
        trust than the least trusted of the messages deserves.

        Args:
            messages: dicts with "role" and "content" (text), oldest first.
            add_generation_prompt: end with the header of the answer, so that the model writes it.
            variables: more names for the template, where a checkpoint documents them (enable_thinking …).

        Raises:
            InvalidRequest: messages that are not of that form, or that the template refuses.
            CheckpointError: no template, or one that does not compile, loops, grows without end or leaves its sandbox.
        """
        if self.chat_template is None:
            raise InvalidRequest(
                "this checkpoint has no chat template; give it plain text, or use an instruction-tuned model"
            )
        return ChatPrompt(
            self.chat_template.render(
                messages,
                add_generation_prompt=add_generation_prompt,
                bos_token=self.bos_token,
                eos_token=self.eos_token,
                **variables,
            )
        )


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    """The decoder of a tokenizer as a flat list of its steps."""
    if backend.decoder is None:
        return []
    decoder = json.loads(backend.decoder.__getstate__())
    return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]


def _byte_rule(backend: tokenizers.Tokenizer):  # type: ignore[no-untyped-def]
    """The function from a piece of the vocabulary to its bytes, by the decoder's steps."""
    steps = _decoder_steps(backend)
    kinds = {step["type"] for step in steps}
    if kinds == {"ByteLevel"}:
        return _byte_level_bytes
    if unknown := kinds - {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"} or not kinds:
        named = ", ".join(sorted(unknown)) if isinstance(unknown, set) else "none"
        raise CheckpointError(
            f"the tokenizer's decoder ({named}) is not supported; byte-level BPE and sentencepiece-style BPE are"
        )
    replacements: list[tuple[str, str]] = []
    for step in steps:
        if step["type"] == "Metaspace":
            replacements.append((step["replacement"], " "))
        elif step["type"] == "Replace":
            if "String" not in step["pattern"]:
                raise CheckpointError(
                    "the tokenizer's decoder replaces by a regular expression, which is not supported"
                )
            replacements.append((step["pattern"]["String"], step["content"]))
    fallback = "ByteFallback" in kinds

    def rule(piece: str) -> bytes:
        if fallback and (match := _BYTE_TOKEN.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        for old, new in replacements:
            piece = piece.replace(old, new)
        return piece.encode("utf-8")

    return rule


def _drops_leading_space(steps: list[dict[str, Any]]) -> bool:
    """Whether a decoded text loses the one space at its start, which the scheme had put there."""
    return any(
        (step["type"] == "Strip" and step.get("content") == " " and step.get("start", 0) > 0)
        or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        for step in steps
    )


def _byte_alphabet() -> dict[str, int]:
    """The character that byte-level BPE writes for each byte, inverted.

    Printable bytes stand for themselves; the 68 others, in order, for the characters from U+0100 on
    (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, and its released encoder).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + rank): byte for rank, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _byte_level_bytes(piece: str) -> bytes:
    try:
        return bytes(_ALPHABET[char] for char in piece)
    except KeyError:
        # A piece outside the alphabet never comes out of encoding; as text it is at least what its author wrote.
        return piece.encode("utf-8")
