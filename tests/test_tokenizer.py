"""Text to ids and back: the same ids as the reference, and bytes that add up to the text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import CHAT_TEMPLATE, tiny_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from underload.decoder.folder import FolderCheckpoint
from underload.decoder.gguf_file import GgufCheckpoint
from underload.decoder.gguf_tokenizer import tokenizer_from_metadata
from underload.decoder.tokenizer import Tokenizer
from underload.decoder.weights import CheckpointError
from underload.request import InvalidRequest
from underload.shapes import shape

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two spaces, a tab\tand\n\n\nthree line ends  ",
    "12345 and 3.14159, 1,000,000",
    "it's, we'll, I'M, DON'T",
    "café, naïve, größer, Ελληνικά, русский, 日本語, العربية",
    "😀👩‍👩‍👧‍👦🇳🇱 and \u0301 alone",
    "def f(x):\n    return x**2  # code\n",
    "<|im_start|>user\nHi<|im_end|>\n",
    "\x00\x01\x7f \ufeff\u200b\u2028",
    "a" * 300,
]


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint) -> Tokenizer:
    return FolderCheckpoint(tiny_checkpoint("llama")).tokenizer()


def test_ids_are_those_of_the_reference(tokenizer, tiny_checkpoint):
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(tiny_checkpoint("llama"))
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == reference.encode(text), text
        assert tokenizer.decode(ids, skip_special=False) == reference.decode(ids, clean_up_tokenization_spaces=False), (
            text
        )


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(text):
    tokenizer = _BYTE_LEVEL()
    ids = tokenizer.encode(text)
    assert b"".join(map(tokenizer.id_to_bytes, ids)) == text.encode()
    assert tokenizer.decode(ids, skip_special=False) == text


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 319), max_size=20))
def test_any_ids_decode_as_the_backend_decodes_them(ids):
    tokenizer = _BYTE_LEVEL()
    assert tokenizer.decode(ids, skip_special=True) == tokenizer._backend.decode(ids, skip_special_tokens=True)
    assert tokenizer.decode(ids, skip_special=False) == tokenizer._backend.decode(ids, skip_special_tokens=False)


_MADE: list[Tokenizer] = []


def _BYTE_LEVEL() -> Tokenizer:
    if not _MADE:
        _MADE.append(Tokenizer(tiny_tokenizer(), bos_token_id=1, eos_token_ids=[2]))
    return _MADE[0]


def test_special_tokens_are_marks_not_text(tokenizer):
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2,))
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|start|>", "<|end|>")
    ids = tokenizer.encode("<|start|>hi<|end|>")
    assert ids[0] == 1
    assert ids[-1] == 2
    assert tokenizer.decode(ids) == "hi"
    assert tokenizer.decode(ids, skip_special=False) == "<|start|>hi<|end|>"
    assert tokenizer.id_to_bytes(2) == b"<|end|>"
    assert tokenizer.is_special(2)
    assert not tokenizer.is_special(3)


def test_ids_without_a_token_stand_for_nothing(tokenizer):
    assert tokenizer.id_to_bytes(tokenizer.vocab_size + 5) == b""
    assert tokenizer.decode([tokenizer.vocab_size + 5]) == ""
    with pytest.raises(InvalidRequest, match="-1"):
        tokenizer.id_to_bytes(-1)


def test_text_that_cannot_be_encoded_is_refused(tokenizer):
    with pytest.raises(InvalidRequest, match="character 2"):
        tokenizer.encode("ab\ud800")
    with pytest.raises(InvalidRequest, match="bytes"):
        tokenizer.encode(b"bytes")


def test_padding_and_truncation_saved_with_a_tokenizer_do_not_act(tiny_checkpoint, tmp_path):
    from tokenizers import Tokenizer as Backend

    folder = tmp_path / "padded"
    shutil.copytree(tiny_checkpoint("llama"), folder)
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(folder / "tokenizer.json"))
    ids = FolderCheckpoint(folder).tokenizer().encode("a text of more than four tokens, and fewer than sixty-four")
    assert 4 < len(ids) < 64


def with_bos(backend):
    from tokenizers import processors

    backend.post_processor = processors.TemplateProcessing(
        single=["<|start|>", "$A"], special_tokens=[("<|start|>", 1)]
    )
    return backend


def test_a_text_that_begins_with_the_begin_token_does_not_get_another():
    tokenizer = Tokenizer(with_bos(tiny_tokenizer()), bos_token_id=1)
    plain = tokenizer.encode("hi", add_special=False)
    assert tokenizer.encode("hi") == [1, *plain]
    assert tokenizer.encode("<|start|>hi") == [1, *plain]
    assert tokenizer.encode("<|start|><|start|>hi") == [1, 1, *plain]
    assert tokenizer.encode("") == [1]
    assert tokenizer.encode("", add_special=False) == []


def test_nothing_is_added_around_a_chat_prompt():
    from underload.decoder.chat import ChatTemplate

    plain = ChatTemplate("{{ messages[0].content }}")
    with_begin = ChatTemplate("{{ bos_token }}{{ messages[0].content }}")
    for template, begin in ((plain, []), (with_begin, [1])):
        tokenizer = Tokenizer(with_bos(tiny_tokenizer()), bos_token_id=1, chat_template=template)
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
        assert tokenizer.encode(prompt) == [*begin, *tokenizer.encode("hi", add_special=False)]


def test_begin_and_end_tokens_outside_the_vocabulary_are_refused():
    with pytest.raises(CheckpointError, match="id 999.*320"):
        Tokenizer(tiny_tokenizer(), eos_token_ids=[2, 999])


def test_a_scheme_without_fixed_bytes_is_refused_by_name():
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models

    backend = Backend(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(CheckpointError, match="WordPiece"):
        Tokenizer(backend)
    backend.decoder = None
    with pytest.raises(CheckpointError, match="none"):
        Tokenizer(backend)


# --- sentencepiece-style ---------------------------------------------------------------------------------------------

PIECES = [
    "▁",
    "h",
    "e",
    "l",
    "o",
    "w",
    "r",
    "d",
    "▁h",
    "el",
    "lo",
    "▁hel",
    "▁hello",
    "wo",
    "▁wo",
    "rld",
    "▁wor",
    "▁world",
    "ld",
]


def spm_metadata(prefix: bool = True) -> dict:
    """A vocabulary as a llama GGUF carries it: specials, 256 bytes, then pieces with falling scores."""
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *PIECES]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(PIECES))],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(PIECES)],
        "tokenizer.ggml.add_space_prefix": prefix,
    }


def spm_tokenizer(prefix: bool = True) -> Tokenizer:
    return tokenizer_from_metadata(spm_metadata(prefix), shape("llama-2-7b"), "spm")


def test_sentencepiece_style_writes_spaces_and_falls_back_to_bytes():
    tokenizer = spm_tokenizer()
    ids = tokenizer.encode("hello world")
    assert ids[0] == tokenizer.bos_token_id == 1
    assert [tokenizer.id_to_bytes(i) for i in ids[1:]] == [b" hello", b" world"]
    assert tokenizer.decode(ids) == "hello world"
    emoji = tokenizer.encode("hé 😀\n", add_special=False)
    assert b"".join(map(tokenizer.id_to_bytes, emoji)) == " hé 😀\n".encode()
    assert tokenizer.decode(emoji) == "hé 😀\n"
    assert tokenizer.id_to_bytes(3 + 0x0A) == b"\n"


def test_the_space_before_a_text_is_taken_off_once():
    tokenizer = spm_tokenizer()
    assert tokenizer.drops_leading_space
    assert tokenizer.decode(tokenizer.encode("  hello")) == "  hello"
    plain = spm_tokenizer(prefix=False)
    assert not plain.drops_leading_space
    assert plain.decode(plain.encode(" hello")) == " hello"


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("helowrd é\n😀"), max_size=30))
def test_sentencepiece_style_round_trip(text):
    tokenizer = spm_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_sentencepiece_style_equals_sentencepiece(tmp_path):
    spm = pytest.importorskip("sentencepiece")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(
        "\n".join(["the train waits for the slowest of its passengers", "queues, batches and pages: 12 of 144"] * 20)
    )
    spm.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(tmp_path / "m"), model_type="bpe", vocab_size=330, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
    )  # fmt: skip
    reference = spm.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    count = reference.get_piece_size()
    kinds = [
        2 if reference.is_unknown(i) else 3 if reference.is_control(i) else 6 if reference.is_byte(i) else 1
        for i in range(count)
    ]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [reference.id_to_piece(i) for i in range(count)],
        "tokenizer.ggml.scores": [reference.get_score(i) for i in range(count)],
        "tokenizer.ggml.token_type": kinds,
    }
    tokenizer = tokenizer_from_metadata(metadata, shape("llama-2-7b"), "spm")
    for text in [t for t in TEXTS if t.strip() and "\x00" not in t and "▁" not in t] + [
        "the queues of passengers, 44 pages"
    ]:
        assert tokenizer.encode(text, add_special=False) == reference.encode(text), text


# --- inside GGUF files -----------------------------------------------------------------------------------------------


def test_the_tokenizer_in_a_gguf_file_is_that_of_the_folder(tokenizer, tiny_gguf):
    from_gguf = GgufCheckpoint(tiny_gguf("llama")).tokenizer()
    for text in TEXTS:
        assert from_gguf.encode(text) == tokenizer.encode(text), text
    messages = [{"role": "user", "content": "Hi"}]
    assert from_gguf.apply_chat_template(messages) == tokenizer.apply_chat_template(messages)
    assert from_gguf.special_ids == tokenizer.special_ids


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, "bert.*gpt2"),
        ({"tokenizer.ggml.pre": "falcon"}, "falcon.*smollm"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "'a' twice"),
        ({"tokenizer.ggml.tokens": ["a", "b" * 3000]}, "3000 characters"),
        ({"tokenizer.ggml.tokens": []}, "lacks tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "lacks tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.merges": ["a z"]}, "'a z'"),
        ({"tokenizer.ggml.merges": ["ab"]}, "'ab'"),
        ({"tokenizer.ggml.token_type": [1]}, "kinds of 1"),
        ({"tokenizer.ggml.tokens": [f"t{i}" for i in range(40_000)]}, "40000 tokens.*32000"),
    ],
)
def test_metadata_that_makes_no_tokenizer_is_refused(changes, message):
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "</s>", "ab"],
        "tokenizer.ggml.token_type": [1, 1, 3, 1],
        "tokenizer.ggml.merges": ["a b"],
    } | changes
    with pytest.raises(CheckpointError, match=message):
        tokenizer_from_metadata(metadata, shape("llama-2-7b"), "broken")


@pytest.mark.parametrize(
    ("rule", "text", "pieces"),
    [
        ("gpt-2", "in 2024", ["in", " 2024"]),
        ("smollm", "in 2024", ["in", " ", "2", "0", "2", "4"]),
        ("llama-bpe", "in 2024x", ["in", " ", "202", "4", "x"]),
        ("qwen2", "in 2024", ["in", " ", "2", "0", "2", "4"]),
    ],
)
def test_words_are_cut_by_the_named_rule(rule, text, pieces):
    alphabet = sorted(set("in 2024x".replace(" ", "Ġ")))
    merges = ["i n", "2 0", "20 2", "202 4", "Ġ 2024"]
    tokens = [*alphabet, "in", "20", "202", "2024", "Ġ2024", "</s>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": rule,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 1) + [3],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": False,
    }
    tokenizer = tokenizer_from_metadata(metadata, shape("llama-2-7b"), rule)
    assert [tokenizer.id_to_bytes(i).decode() for i in tokenizer.encode(text)] == pieces


def test_smollm2_splits_as_llama_cpp_does(smollm2):
    llama_cpp = pytest.importorskip("llama_cpp")
    reference = llama_cpp.Llama(str(smollm2), vocab_only=True, verbose=False)
    tokenizer = GgufCheckpoint(smollm2).tokenizer()
    for text in TEXTS:
        if "\x00" not in text:  # a C string ends there
            assert tokenizer.encode(text) == reference.tokenize(text.encode(), add_bos=False, special=True), text


# Recorded from transformers 5.24 reading the same GGUF file.
SMOLLM2_IDS = {
    "Hello world, 12345! café": [19556, 905, 28, 216, 33, 34, 35, 36, 37, 17, 37366],
    "a1b22 3.14": [81, 33, 82, 34, 34, 216, 35, 30, 33, 36],
}


def test_smollm2_ids_and_chat_prompt(smollm2):
    tokenizer = GgufCheckpoint(smollm2).tokenizer()
    for text, ids in SMOLLM2_IDS.items():
        assert tokenizer.encode(text) == ids
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.encode(prompt)[:3] == [1, 9690, 198]
    assert tokenizer.eos_token == "<|im_end|>"


# --- chat templates in a folder --------------------------------------------------------------------------------------


def settings_of(folder: Path, **changes) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_where_a_folder_keeps_its_chat_template(tiny_checkpoint, tmp_path):
    messages = [{"role": "user", "content": "Hi"}]
    folder = tmp_path / "chat"
    shutil.copytree(tiny_checkpoint("llama"), folder)
    expected = "<|start|>user\nHi<|end|>\n<|start|>assistant\n"
    assert FolderCheckpoint(folder).tokenizer().apply_chat_template(messages) == expected
    settings_of(
        folder, chat_template=[{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHAT_TEMPLATE}]
    )
    assert FolderCheckpoint(folder).tokenizer().apply_chat_template(messages) == expected
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
    assert FolderCheckpoint(folder).tokenizer().apply_chat_template(messages) == "<|start|>Hi<|end|>"
    (folder / "chat_template.jinja").unlink()
    settings_of(folder, chat_template=None, bos_token={"content": "<|endoftext|>"})
    tokenizer = FolderCheckpoint(folder).tokenizer()
    assert tokenizer.bos_token_id == 0
    with pytest.raises(InvalidRequest, match="no chat template"):
        tokenizer.apply_chat_template(messages)
    settings_of(folder, chat_template=5)
    with pytest.raises(CheckpointError, match="chat_template"):
        FolderCheckpoint(folder).tokenizer()
