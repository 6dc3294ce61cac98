"""The text that pocket is trained on: documents of stories, sums, notes and chats, from one seed.

Documents are endless: they are written on demand from a seed, so a training run sees each one once.
What is held out is held out by construction: stories and chats by another seed, lines (a sum, a worked
formula) by their own checksum, whatever document they would have stood in.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from underload.models import notes
from underload.models.stories import NAMES, PLACES, story

END_OF_TEXT = "<|endoftext|>"
SYSTEM, USER, ASSISTANT, END_OF_TURN = "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL_TOKENS = (END_OF_TEXT, SYSTEM, USER, ASSISTANT, END_OF_TURN)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)

SYSTEM_PROMPTS = (
    "You are pocket, a very small model. Answer in one sentence.",
    "You are pocket, a very small model that came with a book about waiting in line.",
    "Answer briefly.",
    "Be kind to whoever waits.",
)

KindOfDocument = Literal["story", "chat", "sums", "notes"]
# Shares of documents, not of tokens: a story is the longest.
MIX: dict[KindOfDocument, float] = {"story": 0.33, "chat": 0.34, "sums": 0.22, "notes": 0.11}


@dataclass(frozen=True)
class Turn:
    """A question and its answer; `line` when the answer can be marked."""

    question: str
    answer: str
    line: notes.Line | None = None


def ask_line(rng: random.Random, line: notes.Line) -> Turn:
    if "?" in line.ask:
        question = line.ask
    else:
        question = rng.choice(("What is {}?", "How much is {}?", "{} = ?")).format(line.ask)
    return Turn(question, line.text, line)


def ask_term(rng: random.Random, term: str) -> Turn:
    return Turn(rng.choice(("What is {}?", "Explain {}.", "Tell me what {} is.")).format(term), notes.TERMS[term])


def ask_story(rng: random.Random) -> Turn:
    """Asks for a story with a hero, a place, both or neither, and gets one that obeys."""
    hero, place = rng.choice(NAMES), rng.choice(list(PLACES))
    asked = rng.choice(("hero", "place", "both", "any"))
    about = {
        "hero": f" about {hero}",
        "place": f" about the {place}",
        "both": f" about {hero} and the {place}",
        "any": "",
    }[asked]
    text = story(rng, hero if asked in ("hero", "both") else None, place if asked in ("place", "both") else None)
    return Turn(f"Tell me a story{about}.", text)


def _turn(rng: random.Random) -> Turn:
    draw = rng.random()
    if draw < 0.38:
        return ask_line(rng, notes.draw(rng, notes.SUMS))
    if draw < 0.56:
        return ask_line(rng, notes.draw(rng, notes.WORKED))
    if draw < 0.76:
        return ask_term(rng, rng.choice(list(notes.TERMS)))
    if draw < 0.88:
        return ask_story(rng)
    if draw < 0.95:
        return Turn(*rng.choice(list(notes.SMALL_TALK.items())))
    return Turn(rng.choice(notes.OUT_OF_SCOPE).format(rng.choice(notes.SUBJECTS)), notes.UNKNOWN)


def chat(turns: list[Turn], system: str | None = None, answered: bool = True) -> str:
    """The text of a chat as `CHAT_TEMPLATE` writes it; unanswered, it ends where the model's answer begins."""
    text = f"{SYSTEM}{system}{END_OF_TURN}" if system else ""
    for turn in turns[:-1]:
        text += f"{USER}{turn.question}{END_OF_TURN}{ASSISTANT}{turn.answer}{END_OF_TURN}"
    last = turns[-1]
    return text + f"{USER}{last.question}{END_OF_TURN}{ASSISTANT}" + (f"{last.answer}{END_OF_TURN}" if answered else "")


def document(rng: random.Random, kind: KindOfDocument) -> str:
    """One document of the training side, without its end-of-text token."""
    if kind == "story":
        return story(rng)
    if kind == "sums":
        return "\n".join(notes.draw(rng, notes.SUMS).text for _ in range(rng.randint(4, 10)))
    if kind == "notes":
        lines = [
            notes.draw(rng, notes.WORKED).text if rng.random() < 0.6 else rng.choice(list(notes.TERMS.values()))
            for _ in range(rng.randint(3, 6))
        ]
        return "\n".join(lines)
    system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.35 else None
    return chat([_turn(rng) for _ in range(rng.choice((1, 1, 2, 3)))], system)


def documents(seed: int) -> Iterator[tuple[KindOfDocument, str]]:
    """Documents without end, the same ones for the same seed."""
    rng = random.Random(f"underload corpus {seed}")
    kinds, shares = list(MIX), list(MIX.values())
    while True:
        kind = rng.choices(kinds, shares)[0]
        yield kind, document(rng, kind)
