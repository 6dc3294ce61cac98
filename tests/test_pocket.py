"""pocket and pocket-draft: what is shipped is what the cards say, the text is what the corpus is, training repeats."""

import itertools
import json
import random
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from underload.decoder import Batch, generate, load_model
from underload.models import card, corpus, evaluate, network, notes, train
from underload.models.network import POCKET, POCKET_DRAFT
from underload.models.optimise import orthogonalised
from underload.models.stories import NUMBER, WORDS, check, story
from underload.request import BlockTable, SamplingParams, Sequence

FOLDER = Path(train.__file__).parent
PAIR = {"pocket": POCKET, "pocket-draft": POCKET_DRAFT}


@pytest.fixture(scope="module")
def pocket():
    with load_model("pocket", device="cpu", path="plain") as model:
        yield model


@pytest.fixture(scope="module")
def pair():
    return {name: evaluate.Loaded.read(FOLDER / name, shape) for name, shape in PAIR.items()}


# ---- the files ----


def test_all_that_is_shipped_stays_below_ten_megabytes():
    sizes = [file.stat().st_size for name in PAIR for file in (FOLDER / name).rglob("*") if file.is_file()]
    assert sum(sizes) < 10_000_000


@pytest.mark.parametrize("name", PAIR)
def test_the_checkpoint_loads_as_the_shape_that_was_trained(name):
    with load_model(name, device="cpu", path="plain") as model:
        shape = model.shape
        assert shape == PAIR[name]
        assert shape.num_heads >= 2 * shape.num_kv_heads  # grouped queries
        assert all(
            size % 16 == 0 for size in (shape.hidden_size, shape.head_dim, shape.intermediate_size, shape.vocab_size)
        )
        assert all(torch.isfinite(tensor).all() for tensor in load_file(FOLDER / name / "model.safetensors").values())


def test_the_draft_is_five_to_ten_times_smaller():
    assert 5 <= POCKET.num_parameters / POCKET_DRAFT.num_parameters <= 10


def test_the_two_share_one_tokenizer():
    assert (FOLDER / "pocket/tokenizer.json").read_bytes() == (FOLDER / "pocket-draft/tokenizer.json").read_bytes()


@pytest.mark.parametrize("name", PAIR)
def test_the_card_is_what_the_measurements_say(name):
    assert (FOLDER / name / "README.md").read_text(encoding="utf-8") == card.cards(FOLDER)[name]


@pytest.mark.parametrize("name", PAIR)
def test_the_measurements_are_of_these_weights(name):
    """The files belong together: weights, the training that made them, and the evaluation that read them."""
    stated = json.loads((FOLDER / name / "evaluation.json").read_text())
    assert stated["weights_sha256"] == evaluate.fingerprint(FOLDER / name / "model.safetensors")
    assert stated["parameters"] == PAIR[name].num_parameters
    training = json.loads((FOLDER / name / "training.json").read_text())
    assert (training["steps"], training["tokens"]) == (train.PLANS[name].steps, train.PLANS[name].tokens)


def test_transformers_computes_the_same_logits():
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(FOLDER / "pocket", dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER / "pocket")
    text = corpus.chat([corpus.Turn("What is 12 + 30?", "12 + 30 = 42.")])
    ids = tokenizer(text)["input_ids"]
    ours = evaluate.Loaded.read(FOLDER / "pocket", POCKET)
    assert ids == ours.encode(text)
    messages = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Hello!"}]
    assert tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    ) == ours.model.tokenizer.apply_chat_template(messages)
    with torch.no_grad():
        want = theirs(torch.tensor([ids])).logits[0].log_softmax(-1)
    torch.testing.assert_close(ours.log_probabilities(ids), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("path", ["plain", "auto"])
def test_the_decoder_computes_what_the_training_pass_computes(path, pair):
    loaded = pair["pocket"]
    ids = loaded.encode(story(random.Random(5)))
    with load_model("pocket", device="cpu", path=path) as model:
        kv = model.new_kv(1, len(ids))
        sequence = Sequence(prompt_len=len(ids), tokens=ids, table=BlockTable(len(ids), [0]))
        got = model.forward(Batch.of([(sequence, len(ids))], all_logits=True), kv).log_softmax(-1)
    torch.testing.assert_close(got, loaded.log_probabilities(ids), rtol=1e-4, atol=1e-4)


# ---- the tokenizer and the chat ----


@given(st.text(max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_text_comes_back_from_its_tokens(pocket, text):
    assert pocket.tokenizer.decode(pocket.tokenizer.encode(text), skip_special=False) == text


def test_digits_stand_alone_and_marks_are_one_token(pocket):
    pieces = [pocket.tokenizer.id_to_bytes(token) for token in pocket.tokenizer.encode("1024 + 7")]
    assert pieces == [b"1", b"0", b"2", b"4", b" +", b" ", b"7"]
    assert [pocket.tokenizer.encode(mark) for mark in corpus.SPECIAL_TOKENS] == [
        [i] for i in range(len(corpus.SPECIAL_TOKENS))
    ]
    assert set(pocket.tokenizer.eos_token_ids) == {0, 4} == set(POCKET.eos_token_ids)


def test_the_chat_template_writes_what_the_model_was_trained_on(pocket):
    messages = [
        {"role": "system", "content": "Answer briefly."},
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": "Good day."},
        {"role": "user", "content": "What is 1 + 1?"},
    ]
    turns = [corpus.Turn("Hello!", "Good day."), corpus.Turn("What is 1 + 1?", "")]
    assert pocket.tokenizer.apply_chat_template(messages) == corpus.chat(turns, "Answer briefly.", answered=False)


# ---- the corpus and its checker ----


@given(st.integers(0, 10**9))
@settings(max_examples=150, deadline=None)
def test_every_story_that_is_written_is_accepted(seed):
    verdict = check(story(random.Random(seed)))
    assert verdict.flawless and verdict.grammatical == verdict.sentences >= 6


@given(st.integers(0, 10**9))
@settings(max_examples=100, deadline=None)
def test_a_wrong_count_is_noticed(seed):
    """Change one count that follows from others: the sentence still reads well, and is refused."""
    text = story(random.Random(seed))
    found = re.search(r"(\w+) (?:are left|are waiting)(?=[,.])", text)
    if found is None or found.group(1) not in NUMBER:
        return
    wrong = WORDS[NUMBER[found.group(1)] + 1 if NUMBER[found.group(1)] < 20 else 2]
    verdict = check(text[: found.start(1)] + wrong + text[found.end(1) :])
    assert verdict.grammatical == verdict.sentences
    assert verdict.consistent < verdict.sentences and not verdict.flawless


@pytest.mark.parametrize(
    ("sentence", "why"),
    [
        ("Ben goes home happy.", "another hero"),
        ("He hums a song on the way home.", "another pronoun"),
        ("Mira sighs and counts the clouds.", "no sentence of the grammar"),
    ],
)
def test_an_ending_that_does_not_belong_is_noticed(sentence, why):
    start = (
        "Mira goes to the bakery at noon to buy a plum cake. There are two people in front of her. "
        "Soon the last two are served. Now it is Mira's turn. She buys a plum cake and thanks the baker. "
    )
    assert check(start + "Mira goes home happy.").flawless
    assert not check(start + sentence).flawless, why


def test_text_that_was_cut_off_is_not_counted_against_the_model():
    verdict = check("Mira goes to the bakery at noon to buy a plum cake. There are two peo")
    assert (verdict.sentences, verdict.consistent, verdict.finished) == (1, 1, False)


def test_what_is_held_out_never_occurs_in_training():
    rng = random.Random(0)
    held_out = {
        notes.draw(rng, (make,), held_out=True).text
        for make in (notes.addition, notes.subtraction)
        for _ in range(2000)
    }
    stems = {text.partition("=")[0] for text in held_out}
    stems |= {
        f"{b} + {a} "
        for a, b in (stem.split(" + ") for stem in stems if "+" in stem)
        for a in [a.strip()]
        for b in [b.strip()]
    }
    assert len(stems) > 300
    for _, text in itertools.islice(corpus.documents(train.SEED), 4000):
        for stem in re.findall(r"\d+ [+-] \d+ (?==)", text):
            assert stem not in stems, f"{stem} is held out, and stands in {text!r}"


def expected(maker: str, numbers: list[int]) -> str:
    """What an answer must end with, by a second, plainer computation."""
    if maker == "stable":
        return " is stable." if numbers[0] < numbers[1] else " grows without end."
    if maker == "addition":
        return f" {numbers[0] + numbers[1]}."
    if maker == "subtraction":
        return f" {numbers[0] - numbers[1]}."
    if maker in ("multiplication", "little"):
        return f" {sum(numbers[0] for _ in range(numbers[1]))}."
    if maker == "step_time":
        batch, overhead, again, each = numbers
        assert batch == again
        return f" {overhead + sum(each for _ in range(batch))} ms."
    assert maker in ("batches", "blocks")
    return f", so {len(range(0, numbers[0], numbers[1]))} {maker}."


@pytest.mark.parametrize("make", [*dict.fromkeys(notes.SUMS), *notes.WORKED])
def test_lines_are_right(make):
    rng = random.Random(1)
    for _ in range(50):
        line = make(rng)
        stem, answer = line.text[: line.stem], line.text[line.stem :]
        assert answer.endswith(expected(make.__name__, [int(n) for n in re.findall(r"\d+", stem)]))
        if chain := re.search(r"\d[\d +×=-]*=[\d +×=-]*\d", line.text):  # 47 + 38 = 70 + 15 = 85: equal all along
            assert len({eval(side.replace("×", "*")) for side in chain.group().split("=")}) == 1, line.text


# ---- training ----


def test_training_repeats_bit_for_bit_whatever_the_threads():
    tokenizer = train.train_tokenizer(3, 60)
    runs = [train.train(train.QUICK["pocket-draft"], tokenizer, 3, threads=threads) for threads in (1, 2, 2)]
    other = train.train(train.QUICK["pocket-draft"], tokenizer, 4)
    for parameters, losses in runs[1:]:
        assert losses == runs[0][1]
        assert all(torch.equal(parameters[name], tensor) for name, tensor in runs[0][0].items())
    assert losses[-1] < losses[0] - 0.5  # it learns
    assert other[1] != losses  # and the seed matters


def test_the_tokenizer_is_learnt_the_same_twice():
    assert train.train_tokenizer(3, 60).to_str() == train.train_tokenizer(3, 60).to_str()


def test_rows_of_a_batch_follow_one_another():
    stream = train.Stream(train.train_tokenizer(3, 60), 3)
    first, second = stream.take(2, 8), stream.take(2, 8)
    assert first.shape == (2, 9)
    assert first[0, -1] == first[1, 0] and first[1, -1] == second[0, 0]


def test_the_training_pass_is_causal():
    parameters = network.initialise(POCKET_DRAFT, 0)
    parameters = {
        name: p + 0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
        for name, p in parameters.items()
    }
    ids = torch.arange(12)[None] + 5
    changed = ids.clone()
    changed[0, 8] = 900
    a, b = (network.logits(POCKET_DRAFT, parameters, x) for x in (ids, changed))
    torch.testing.assert_close(a[:, :8], b[:, :8])
    assert (a[:, 8:] - b[:, 8:]).abs().max() > 1e-3


@pytest.mark.parametrize("size", [(24, 40), (40, 24)])
def test_orthogonalised_has_singular_values_near_one(size):
    values = torch.linalg.svdvals(orthogonalised(torch.randn(*size, generator=torch.Generator().manual_seed(0))))
    assert values.min() > 0.6 and values.max() < 1.3


# ---- what the shipped weights can do, on a small sample ----


def test_pocket_tells_stories_that_the_grammar_accepts(pair):
    told = evaluate.stories_right(pair["pocket"], 12, temperature=0.0)
    assert told["sentences"] >= 60
    assert told["grammatical"] >= 0.97
    assert told["consistent"] >= 0.85


def test_pocket_answers_as_often_as_its_card_says(pair):
    stated = json.loads((FOLDER / "pocket/evaluation.json").read_text())["lines"]
    for make in ("addition", "multiplication"):
        right = evaluate.lines_right(pair["pocket"], 40, only=make)[make]["share"]
        assert right >= stated[make]["share"] - 0.2


def test_pocket_explains_the_books_words(pocket):
    prompt = pocket.tokenizer.apply_chat_template([{"role": "user", "content": "What is the KV cache?"}])
    assert generate(pocket, prompt, SamplingParams(max_tokens=60, temperature=0))[0].text == notes.TERMS["the KV cache"]


def test_the_draft_agrees_as_often_as_its_card_says(pair):
    stated = json.loads((FOLDER / "pocket-draft/evaluation.json").read_text())["agreement"]
    assert 0.60 <= stated["greedy"]["all"]["share"] <= 0.85  # below, drafts are wasted; above, little is left to learn
    sample = evaluate.agreement(pair["pocket"], pair["pocket-draft"], 24, max_tokens=48)
    assert abs(sample["greedy"]["all"]["share"] - stated["greedy"]["all"]["share"]) < 0.15
    assert abs(sample["sampled"]["share"] - stated["sampled"]["share"]) < 0.15
