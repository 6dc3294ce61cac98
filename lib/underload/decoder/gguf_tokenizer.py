"""The tokenizer inside a GGUF file: built again from its vocabulary, merges and named splitting rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from underload.decoder.chat import ChatTemplate
from underload.decoder.optional import require
from underload.decoder.tokenizer import Tokenizer
from underload.decoder.weights import CheckpointError

if TYPE_CHECKING:
    import tokenizers

    from underload.shapes import ModelShape

# Kinds of tokens in `tokenizer.ggml.token_type`.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_MAX_TOKEN = 2000  # characters; every way to cut a token in two is tried

# How text is cut into words before merging, by the name in `tokenizer.ggml.pre`. GPT-2's rule is built into the
# `tokenizers` package; the other two are those of the Llama 3 and Qwen2 tokenizers as published.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}|"
    r" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {
    "gpt-2": None,
    "smollm": "digits",
    "llama-bpe": _WORDS.format(digits="{1,3}"),
    "qwen2": _WORDS.format(digits=""),
}


def tokenizer_from_metadata(metadata: Mapping[str, Any], shape: ModelShape, name: str) -> Tokenizer:
    """The tokenizer that a GGUF file's metadata describes.

    Raises:
        CheckpointError: parts missing or of different lengths, or a kind that is not supported, by name.
    """
    require("tokenizers", "reading a tokenizer")
    where = f"{name}: the GGUF file's tokenizer"
    kind = metadata.get("tokenizer.ggml.model")
    tokens = _strings(metadata, "tokenizer.ggml.tokens", where)
    if len(tokens) > shape.vocab_size:
        raise CheckpointError(f"{where} has {len(tokens)} tokens, but the model's vocabulary is {shape.vocab_size}")
    if len(set(tokens)) < len(tokens):
        twice = Counter(tokens).most_common(1)[0][0]
        raise CheckpointError(f"{where} has the token {twice[:100]!r} twice")
    if (longest := max(map(len, tokens))) > _MAX_TOKEN:
        raise CheckpointError(f"{where} has a token of {longest} characters; more than {_MAX_TOKEN} are not believed")
    kinds = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise CheckpointError(
            f"{where} has {len(tokens)} tokens, but the kinds of {len(kinds) if isinstance(kinds, list) else 'none'}"
        )
    if kind == "gpt2":
        backend = _byte_level(metadata, tokens, where)
    elif kind == "llama":
        backend = _sentencepiece(metadata, tokens, kinds, where)
    else:
        raise CheckpointError(
            f"{where} is of the kind {kind!r}, which is not supported; supported: gpt2 (byte-level BPE), llama"
            " (sentencepiece)"
        )
    _add_marks(backend, tokens, kinds)
    _add_begin_and_end(backend, metadata, tokens, shape, add_bos=kind == "llama")
    template = metadata.get("tokenizer.chat_template")
    return Tokenizer(
        backend,
        bos_token_id=shape.bos_token_id,
        eos_token_ids=shape.eos_token_ids,
        chat_template=ChatTemplate(template) if isinstance(template, str) and template else None,
    )


def _byte_level(metadata: Mapping[str, Any], tokens: list[str], where: str) -> tokenizers.Tokenizer:
    """GPT-2's scheme: text to bytes, bytes to characters that print, those merged by rank."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    rule = metadata.get("tokenizer.ggml.pre", "default")
    if rule not in _SPLITS:
        raise CheckpointError(
            f"{where} cuts words by the rule {rule!r}, which is not supported; supported: {', '.join(_SPLITS)}"
        )
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges: list[tuple[str, str]] = []
    for line in _strings(metadata, "tokenizer.ggml.merges", where):
        left, _, right = line.partition(" ")
        if not right or left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise CheckpointError(f"{where} has the merge {line[:100]!r}, whose parts are not all tokens")
        merges.append((left, right))
    # Llama 3 takes a word that is a token whole, even where the merges would not lead there.
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=rule == "llama-bpe"))
    split = _SPLITS[rule]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule in ("gpt-2", "smollm"))
    if split is None:
        backend.pre_tokenizer = to_bytes
    elif split == "digits":
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), to_bytes])
    else:
        cut = pre_tokenizers.Split(Regex(split), behavior="isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([cut, to_bytes])
    if rule == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(
    metadata: Mapping[str, Any], tokens: list[str], kinds: list[int], where: str
) -> tokenizers.Tokenizer:
    """Sentencepiece's BPE: spaces written as ▁, pieces joined in the order of scores, unknown characters as bytes.

    The format keeps scores and no merges; joining any two pieces that make a third, best third first, is the same.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens) or not all(score == score for score in scores):
        raise CheckpointError(f"{where} lacks a score for each of its {len(tokens)} tokens")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    mergeable = {token for token, kind in zip(tokens, kinds, strict=True) if kind == 1}
    ranked: list[tuple[float, int, str, str]] = []
    for token in mergeable:
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in mergeable and right in mergeable:
                ranked.append((-scores[vocabulary[token]], vocabulary[token], left, right))
    ranked.sort(key=lambda entry: (entry[0], entry[1], vocabulary[entry[2]], vocabulary[entry[3]]))
    unknown = next((token for token, kind in zip(tokens, kinds, strict=True) if kind == _UNKNOWN), None)
    model = models.BPE(
        vocab=vocabulary,
        merges=[(left, right) for _, _, left, right in ranked],
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Tokenizer(model)
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces] if prefix else [spaces])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return backend


def _add_marks(backend: tokenizers.Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Control and user-defined tokens are found in the text before it is cut into words. Their ids stay."""
    from tokenizers import AddedToken

    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind in (_UNKNOWN, _CONTROL) and token]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    defined = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _USER_DEFINED and token]
    backend.add_tokens([AddedToken(token, normalized=False) for token in defined])


def _add_begin_and_end(
    backend: tokenizers.Tokenizer, metadata: Mapping[str, Any], tokens: list[str], shape: ModelShape, *, add_bos: bool
) -> None:
    """The tokens that go around every text, where the file asks for them."""
    from tokenizers import processors

    begin = metadata.get("tokenizer.ggml.add_bos_token", add_bos or metadata.get("tokenizer.ggml.pre") == "llama-bpe")
    end = metadata.get("tokenizer.ggml.add_eos_token", False)
    bos = shape.bos_token_id if begin else None
    eos = shape.eos_token_ids[0] if end and shape.eos_token_ids else None
    marks = [index for index in (bos, eos) if index is not None and index < len(tokens)]
    if marks:
        pattern = [tokens[bos]] if bos is not None else []
        backend.post_processor = processors.TemplateProcessing(
            single=[*pattern, "$A", *([tokens[eos]] if eos is not None else [])],
            special_tokens=[(tokens[index], index) for index in dict.fromkeys(marks)],
        )


def _strings(metadata: Mapping[str, Any], key: str, where: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise CheckpointError(f"{where} lacks {key}, a list of texts")
    return value
