"""Ids to text: whatever the token borders, streamed text is the decoded text, and nothing sent is taken back."""

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from underload.decoder.detokenize import Detokenizer, StopString, detokenize
from underload.request import InvalidRequest


class Pieces:
    """A tokenizer whose vocabulary is a list of byte strings."""

    def __init__(self, pieces, special=(), drops_leading_space=False):
        self.pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self.special = set(special)
        self.drops_leading_space = drops_leading_space

    def id_to_bytes(self, index):
        return self.pieces[index]

    def is_special(self, index):
        return index in self.special

    def decode(self, ids):
        raw = b"".join(self.pieces[i] for i in ids if i not in self.special)
        if self.drops_leading_space and raw.startswith(b" "):
            raw = raw[1:]
        return raw.decode("utf-8", errors="replace")


def stream(pieces, stop=(), **options):
    """(deltas, what finish gave, the detokenizer) of pieces pushed one by one; stops when a stop string is complete."""
    detokenizer = Detokenizer(Pieces(pieces, **options), stop)
    deltas = []
    for index in range(len(pieces)):
        deltas.append(detokenizer.push(index))
        if detokenizer.stopped_by is not None:
            break
    return deltas, detokenizer.finish(), detokenizer


def test_the_start_of_a_stop_string_is_not_sent_before_it_is_known_to_be_none():
    deltas, rest, detokenizer = stream(["ABC", "DEF", "G", "HI", "J"], ["DEFGHIJ"])
    assert (deltas, rest) == (["ABC", "", "", "", ""], "")
    assert (detokenizer.text, detokenizer.stopped_by) == ("ABC", "DEFGHIJ")

    deltas, rest, detokenizer = stream(["ABC", "DEF", "G", "HI", "K"], ["DEFGHIJ"])
    assert "".join(deltas) + rest == detokenizer.text == "ABCDEFGHIK"
    assert detokenizer.stopped_by is None


@pytest.mark.parametrize("cuts", [[2], [1, 2, 3], [3]])
def test_a_character_split_over_tokens_comes_out_whole(cuts):
    raw = "😀".encode()
    borders = [0, *cuts, 4]
    pieces = [raw[a:b] for a, b in itertools.pairwise(borders)]
    deltas, rest, _ = stream(pieces)
    assert deltas == [""] * (len(pieces) - 1) + ["😀"] and rest == ""


def test_a_character_that_never_ends_is_replaced_only_once_nothing_can_follow():
    deltas, rest, detokenizer = stream(["a", "😀".encode()[:3]])
    assert (deltas, rest, detokenizer.text) == (["a", ""], "�", "a�")
    assert detokenizer.finish() == ""


def test_impossible_bytes_are_replaced_as_soon_as_they_are_certain():
    assert stream([b"a\xff", b"b"])[0] == ["a�", "b"]


def test_the_unfinished_start_of_a_stop_string_is_text_in_the_end():
    deltas, rest, detokenizer = stream(["see </", "s"], ["</s>"])
    assert (deltas, rest) == (["see ", ""], "</s")
    assert detokenizer.text == "see </s"


def test_text_before_a_false_start_goes_out_as_soon_as_it_is_free():
    # "abab" is held for "ababc"; with "a" it can still become it from the third character on.
    assert stream(["abab", "a", "bc!"], ["ababc"])[0] == ["", "ab", ""]


def test_the_stop_string_that_completes_first_wins_and_the_longest_of_a_tie():
    assert stream(["abcd"], ["abcd", "bc"])[2].text == "a"  # as it would be, had the text come character by character
    assert stream(["xabc"], ["bc", "abc", "c"])[2].text == "x"
    assert stream(["xabc"], ["bc", "abc", "c"])[2].stopped_by == "abc"


def test_nothing_follows_a_stop_string():
    detokenizer = Detokenizer(Pieces(["a.b", "c"]), ["."])
    assert detokenizer.push(0) == "a"
    assert detokenizer.push(1) == "" and detokenizer.finish() == "" and detokenizer.text == "a"


def test_a_lone_stop_string_is_one_string_and_not_its_letters():
    assert stream(["b", "ab"], "ab")[2].text == "b"


@pytest.mark.parametrize("stop", [[""], ["", "x"]])
def test_an_empty_stop_string_is_refused(stop):
    with pytest.raises(InvalidRequest, match="empty"):
        Detokenizer(Pieces([]), stop)


@pytest.mark.parametrize(("min_tokens", "text"), [(0, "a"), (1, "a"), (2, "a.b"), (4, "a.b.c"), (5, "a.b.c.")])
def test_a_stop_string_within_min_tokens_is_text(min_tokens, text):
    # Tokens: "a" | "." | "b." | "c" | "." ; the first stop string completes with token 2, the next with tokens 3 and 5.
    pieces = Pieces(["a", ".", "b.", "c", "."])
    assert detokenize(pieces, range(5), ["."], min_tokens=min_tokens)[0] == text


def test_a_stop_string_may_begin_before_min_tokens_and_end_after():
    assert detokenize(Pieces(["a<", "e", "nd>b"]), range(3), ["<end>"], min_tokens=2) == ("a", "<end>")


def test_special_tokens_are_left_out_unless_wanted():
    pieces = Pieces(["a", "<|end|>", "b"], special=[1])
    assert detokenize(pieces, range(3)) == ("ab", None)
    # Also in the middle of a character, and never as part of a stop string.
    raw = "é".encode()
    assert detokenize(Pieces([raw[:1], "<|end|>", raw[1:]], special=[1]), range(3), ["end"]) == ("é", None)
    kept = Detokenizer(pieces, skip_special=False)
    assert [kept.push(i) for i in range(3)] == ["a", "<|end|>", "b"]


def test_the_space_that_a_scheme_writes_before_every_text_is_dropped_once():
    pieces = Pieces(["<s>", b"", " Hello", " world"], special=[0], drops_leading_space=True)
    assert detokenize(pieces, range(4)) == ("Hello world", None)
    going_on = Detokenizer(pieces, continues=True)
    assert "".join(going_on.push(i) for i in range(4)) == " Hello world"


def test_a_refused_id_leaves_the_text_as_it_was():
    class Strict(Pieces):
        def id_to_bytes(self, index):
            if index < 0:
                raise InvalidRequest("token ids start at 0")
            return super().id_to_bytes(index)

    detokenizer = Detokenizer(Strict(["a", "b"]), ["ab"])
    detokenizer.push(0)
    with pytest.raises(InvalidRequest):
        detokenizer.push(-1)
    assert detokenizer.num_tokens == 1
    detokenizer.push(1)
    assert detokenizer.stopped_by == "ab"


def test_the_work_for_a_token_does_not_grow_with_the_text():
    class Counting(Pieces):
        asked = 0

        def id_to_bytes(self, index):
            self.asked += 1
            return super().id_to_bytes(index)

    pieces = Counting(["ab", "c "])
    detokenizer = Detokenizer(pieces, ["cab!"])
    for step in range(2000):
        detokenizer.push(step % 2)
        assert len(detokenizer.held) < 4  # what is held never outgrows the stop string
    assert pieces.asked == 2000


# ---- any bytes, any borders, any stop strings ---------------------------------------------------------------------

# A small alphabet, with characters of 1 to 4 bytes, so that stop strings are met, overlap, and begin falsely.
texts = st.text(alphabet="abé€😀 ", max_size=40)
stop_strings = st.lists(st.text(alphabet="abé€😀 ", min_size=1, max_size=5), max_size=3)
cut_points = st.lists(st.integers(0, 200), max_size=30)


def cut(raw: bytes, points) -> list[bytes]:
    borders = [0, *sorted({p % (len(raw) + 1) for p in points}), len(raw)]
    return [raw[a:b] for a, b in itertools.pairwise(borders)]


def first_stop(text: str, stops) -> str:
    """The text before the stop string that completes first, the longest of those: by trying every end."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - len(max(complete, key=len))]
    return text


@settings(max_examples=500, deadline=None)
@given(texts, stop_strings, cut_points)
@example("aab", ["ab"], [1, 2])
def test_streamed_is_decoded_up_to_the_stop_wherever_tokens_end(text, stops, points):
    pieces = cut(text.encode(), points)
    deltas, rest, detokenizer = stream(pieces, stops)
    assert "".join(deltas) + rest == detokenizer.text == first_stop(text, stops)
    assert "�" not in "".join(deltas)
    assert (detokenizer.stopped_by is None) == (first_stop(text, stops) == text and not any(s in text for s in stops))


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=40), cut_points, st.booleans())
def test_any_bytes_at_all_come_out_as_decoding_them_at_once_gives(raw, points, drops):
    pieces = Pieces(cut(raw, points), drops_leading_space=drops)
    assert detokenize(pieces, range(len(pieces.pieces)))[0] == pieces.decode(range(len(pieces.pieces)))


@settings(max_examples=300, deadline=None)
@given(texts, stop_strings, cut_points)
def test_nothing_is_held_back_without_need(text, stops, points):
    detokenizer = Detokenizer(Pieces(pieces := cut(text.encode(), points)), stops)
    for index in range(len(pieces)):
        detokenizer.push(index)
        held = detokenizer.held
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab", min_size=1, max_size=6), st.text(alphabet="ab", max_size=60))
def test_a_stop_string_is_found_at_each_place_where_it_ends(needle, text):
    searcher = StopString(needle)
    found = [end for end, character in enumerate(text, 1) if searcher.advance(character)]
    assert found == [end for end in range(1, len(text) + 1) if text[:end].endswith(needle)]


# ---- a real tokenizer ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint):
    from underload.decoder.tokenizer import Tokenizer

    return Tokenizer.from_file(tiny_checkpoint("llama") / "tokenizer.json", eos_token_ids=[2])


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=4), max_size=2))
def test_a_real_tokenizers_ids_come_out_as_their_text(tokenizer, text, stops):
    ids = tokenizer.encode(text, add_special=False)
    assert detokenize(tokenizer, ids, stops)[0] == first_stop(tokenizer.decode(ids), stops)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 319), max_size=20))
def test_any_ids_of_a_real_tokenizer_come_out_as_it_decodes_them(tokenizer, ids):
    # What an untrained model writes: bytes that are no characters, special tokens anywhere.
    assert detokenize(tokenizer, ids)[0] == tokenizer.decode(ids)
