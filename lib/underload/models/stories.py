"""A small world of people waiting in line: it writes stories, and checks whether a text is one of them.

A story is a walk through a `World`: who is waiting for what, where, and how many are ahead. Every
sentence belongs to a *kind* (an arrival, a batch served together, somebody giving up ...), and every
kind is one function that says which words the world allows. Writing picks a choice and prints it;
checking reads the choice back out of the sentence and asks the same function whether every other word
follows. So "The baker serves three of them together, and four are left." is accepted after seven
people were waiting, and refused after eight.

The words are this book's own subject, so that a reader of the text sees a queue; the counts give a
small model something to keep track of, and something to get wrong.
"""

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Slots = dict[str, str]


def _words(text: str) -> list[str]:
    return text.split()


WORDS = _words(
    "no one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
)
NUMBER = {word: number for number, word in enumerate(WORDS) if number > 0}

SHE = _words("Mira Ada Dana Fatima Hana Lena Nadia Petra Rosa Tove Uma Wanda Yara Zoë Ines Greta")
HE = _words("Tomas Ben Chidi Emil Goran Ivo Jun Kofi Milo Omar Sami Viktor André Pavel Hugo Nils")
NAMES = SHE + HE

WHEN = [
    "in the morning",
    "at noon",
    "after work",
    "before breakfast",
    "in the rain",
    "after school",
    *(f"on {day}" for day in ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")),
]


@dataclass(frozen=True)
class Place:
    """Where people wait: who serves them, and what they come for."""

    name: str
    server: str
    verb: str
    items: tuple[str, ...]


def _each(pattern: str, fillers: str) -> tuple[str, ...]:
    return tuple(pattern.format(filler) for filler in fillers.split())


PLACES = {
    place.name: place
    for place in (
        Place("bakery", "baker", "buy", ("a loaf of rye", "a bag of rolls", "a plum cake", "a nut cake")),
        Place("market", "farmer", "buy", _each("a basket of {}", "apples pears plums beans onions")),
        Place("station", "clerk", "buy", _each("a ticket to {}", "Riga Porto Turin Bergen Split")),
        Place("post office", "postman", "send", ("a letter", "a parcel", "a card", "a box of books")),
        Place("library", "librarian", "borrow", _each("a book about {}", "bees whales clocks bridges volcanoes")),
        Place("pharmacy", "nurse", "fetch", ("a bottle of drops", "a tin of salve", "a roll of gauze")),
        Place("café", "cook", "order", _each("a pot of {} soup", "bean onion lentil pumpkin")),
        Place("workshop", "mechanic", "collect", _each("a mended {}", "clock lamp radio bicycle kettle")),
    )
}

MORALS = [
    "Serving people together makes a line short.",
    "Waiting is easier when the line moves.",
    "Whoever comes early waits little.",
    "A line is long when everybody comes at once.",
    "A quiet hour is the best hour.",
    "One slow customer is felt by everybody behind.",
    "The last in line pays for all the others.",
]


@dataclass
class World:
    """What a story has said so far; every kind reads it, and its sentence changes it."""

    hero: str = ""
    place: Place | None = None
    item: str = ""
    ahead: int | None = None  # people waiting in front of the hero
    friend: str = ""
    said: list[str] = field(default_factory=list)  # the kinds of sentence so far

    @property
    def she(self) -> str:
        return "she" if self.hero in SHE else "he"

    @property
    def her(self) -> str:
        return "her" if self.hero in SHE else "him"

    @property
    def server(self) -> str:
        return self.place.server if self.place else ""


class Inconsistent(Exception):
    """The world does not allow this sentence now."""


def _require(condition: bool) -> None:
    if not condition:
        raise Inconsistent


def _count(number: int) -> str:
    _require(0 < number < len(WORDS))
    return WORDS[number]


def _left(number: int) -> str:
    _require(number >= 0)
    return {0: "nobody is left", 1: "only one is left"}.get(number) or f"{_count(number)} are left"


def _waiting(number: int) -> str:
    return "one is waiting" if number == 1 else f"{_count(number)} are waiting"


# ---- the kinds of sentence: (world, what was chosen) -> every slot of the sentence; raises Inconsistent ----


def _open(world: World, choice: Mapping[str, str]) -> Slots:
    place, item = PLACES[choice["place"]], choice["item"]
    _require(not world.said and item in place.items)
    world.hero, world.place, world.item = choice["hero"], place, item
    return {**choice, "verb": place.verb, "she": world.she}


def _line(world: World, choice: Mapping[str, str]) -> Slots:
    _require(world.said == ["open"])
    world.ahead = NUMBER[choice["n"]]
    _require(world.ahead >= 2)
    return {**choice, "she": world.she, "her": world.her}


def _pace(world: World, choice: Mapping[str, str]) -> Slots:
    _require(world.said == ["open", "line"] and world.ahead is not None)
    minutes = NUMBER[choice["m"]]
    _require(minutes >= 2)
    total = _count(minutes * (world.ahead or 0))
    return {**choice, "she": world.she, "server": world.server, "total": total}


def _change(world: World, change: int) -> int:
    _require(world.ahead is not None and world.ahead + change >= 0 and "turn" not in world.said)
    world.ahead = (world.ahead or 0) + change
    return world.ahead


def _arrive(world: World, choice: Mapping[str, str]) -> Slots:
    more = NUMBER[choice["k"]]
    waiting = _waiting(_change(world, more))
    return {
        **choice,
        "come": "comes" if more == 1 else "come",
        "join": "joins" if more == 1 else "join",
        "waiting": waiting,
    }


def _serve(world: World, choice: Mapping[str, str]) -> Slots:
    return {**choice, "server": world.server, "left": _left(_change(world, -1))}


def _batch(world: World, choice: Mapping[str, str]) -> Slots:
    together = NUMBER[choice["b"]]
    _require(together >= 2)
    return {**choice, "server": world.server, "left": _left(_change(world, -together))}


def _leave(world: World, choice: Mapping[str, str]) -> Slots:
    gone = NUMBER[choice["k"]]
    left = _left(_change(world, -gone))
    return {**choice, "give": "gives" if gone == 1 else "give", "go": "goes" if gone == 1 else "go", "left": left}


def _friend(world: World, choice: Mapping[str, str]) -> Slots:
    _require(
        not world.friend and choice["friend"] != world.hero and world.ahead is not None and "turn" not in world.said
    )
    world.friend = choice["friend"]
    return {**choice, "her": world.her}


def _talk(world: World, choice: Mapping[str, str]) -> Slots:
    _require(bool(world.friend) and world.said[-1:] != ["talk"] and "turn" not in world.said)
    return {**choice, "friend": world.friend, "hero": world.hero, "n": _count(world.ahead or 0)}


def _finish(world: World, choice: Mapping[str, str]) -> Slots:
    last = world.ahead or 0
    _require(last > 0)
    _change(world, -last)
    return {**choice, "server": world.server, "last": "one is" if last == 1 else f"{_count(last)} are"}


def _turn(world: World, choice: Mapping[str, str]) -> Slots:
    _require(world.ahead == 0 and "turn" not in world.said)
    return {**choice, "hero": world.hero, "hers": "her" if world.hero in SHE else "his"}


def _get(world: World, choice: Mapping[str, str]) -> Slots:
    _require(world.said[-1:] == ["turn"] and world.place is not None)
    verb = world.place.verb if world.place else ""
    gets = verb + ("es" if verb.endswith("ch") else "s")
    return {"hero": world.hero, "she": world.she, "gets": gets, "item": world.item, "server": world.server}


def _end(world: World, choice: Mapping[str, str]) -> Slots:
    _require(world.said[-1:] == ["get"])
    return {**choice, "hero": world.hero, "she": world.she, "friend": world.friend or _fail()}


def _fail() -> str:
    raise Inconsistent


def _home(world: World, choice: Mapping[str, str]) -> Slots:
    _require(world.said[-1:] == ["get"])
    return {**choice, "hero": world.hero, "she": world.she}


def _moral(world: World, choice: Mapping[str, str]) -> Slots:
    _require(world.said[-1:] in (["end"], ["home"]))
    return {**choice}


@dataclass(frozen=True)
class Kind:
    """A kind of sentence: the words it chooses, the rule for all others, and the ways to say it."""

    rule: Callable[[World, Mapping[str, str]], Slots]
    choices: tuple[str, ...]
    phrasings: tuple[str, ...]


# A slot that starts with a capital is the same word, capitalised.
KINDS: dict[str, Kind] = {
    "open": Kind(
        _open,
        ("hero", "place", "item", "when"),
        (
            "{hero} goes to the {place} {when} to {verb} {item}.",
            "{When}, {hero} goes to the {place} to {verb} {item}.",
            "{hero} wants to {verb} {item}, so {she} walks to the {place} {when}.",
        ),
    ),
    "line": Kind(
        _line,
        ("n",),
        (
            "{N} people are waiting in line.",
            "There are {n} people in front of {her}.",
            "{She} sees {n} people in line.",
        ),
    ),
    "pace": Kind(
        _pace,
        ("m",),
        (
            "Each of them takes {m} minutes, so {she} will wait {total} minutes.",
            "The {server} needs {m} minutes for each, which makes {total} minutes.",
        ),
    ),
    "arrive": Kind(
        _arrive,
        ("k",),
        (
            "{K} more {come} in, and now {waiting}.",
            "{K} more {join} the line, so {waiting}.",
        ),
    ),
    "serve": Kind(
        _serve,
        (),
        (
            "The {server} serves one of them, and {left}.",
            "The first of them is served, so {left}.",
        ),
    ),
    "batch": Kind(
        _batch,
        ("b",),
        (
            "The {server} serves {b} of them together, and {left}.",
            "Then {b} are served at once, so {left}.",
        ),
    ),
    "leave": Kind(_leave, ("k",), ("{K} of them {give} up and {go} home, so {left}.",)),
    "friend": Kind(
        _friend,
        ("friend",),
        (
            "{friend} comes in and stands behind {her}.",
            "Behind {her} stands {friend} with a wet coat.",
            "Behind {her} stands {friend} with a small dog.",
        ),
    ),
    "talk": Kind(
        _talk,
        (),
        (
            '"How many are still waiting?" asks {friend}, and {hero} says, "{N}."',
            '"{N} more," says {hero}, and {friend} sighs.',
        ),
    ),
    "finish": Kind(
        _finish,
        (),
        (
            "Soon the last {last} served.",
            "The {server} works fast, and soon nobody is left.",
        ),
    ),
    "turn": Kind(_turn, (), ("Now it is {hero}'s turn.", "At last it is {hers} turn.")),
    "get": Kind(
        _get,
        (),
        (
            "{She} {gets} {item} and thanks the {server}.",
            "The {server} smiles, and {hero} {gets} {item}.",
        ),
    ),
    "home": Kind(
        _home,
        (),
        (
            "{hero} goes home happy.",
            "{She} hums a song on the way home.",
            "Then {she} runs home through the rain.",
        ),
    ),
    "end": Kind(
        _end,
        (),
        (
            "{She} waves to {friend} and goes home.",
            '"Good luck," {she} says to {friend}.',
        ),
    ),
    "moral": Kind(_moral, ("moral",), ("{moral}",)),
}


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _fill(phrasing: str, slots: Slots) -> str:
    return phrasing.format(**slots, **{_capital(name): _capital(text) for name, text in slots.items()})


# ---- writing ----


def _say(rng: random.Random, world: World, kind: str, **choice: str) -> str:
    slots = KINDS[kind].rule(world, choice)
    world.said.append(kind)
    return _fill(rng.choice(KINDS[kind].phrasings), slots)


def story(rng: random.Random, hero: str | None = None, place: str | None = None) -> str:
    """One story, consistent from its first sentence to its last; a hero or a place can be asked for."""
    world = World()
    hero = hero or rng.choice(NAMES)
    place = place or rng.choice(list(PLACES))
    item = rng.choice(PLACES[place].items)
    lines = [_say(rng, world, "open", hero=hero, place=place, item=item, when=rng.choice(WHEN))]
    lines.append(_say(rng, world, "line", n=WORDS[rng.randint(2, 12)]))
    assert world.ahead is not None
    pace = [m for m in (2, 3, 4, 5) if m * world.ahead <= 20]
    if pace and rng.random() < 0.4:
        lines.append(_say(rng, world, "pace", m=WORDS[rng.choice(pace)]))
    for _ in range(rng.randint(2, 5)):
        ahead = world.ahead
        options = ["arrive"] * 2 if ahead <= 16 else []
        options += ["serve"] * 2 + ["batch"] * 3 if ahead >= 4 else ["serve"] if ahead >= 2 else []
        options += ["leave"] if ahead >= 4 else []
        options += ["friend"] * 2 if not world.friend else []
        options += ["talk"] * 2 if world.friend and ahead and world.said[-1] != "talk" else []
        kind = rng.choice(options)
        choice = {
            "arrive": {"k": WORDS[rng.randint(1, 4)]},
            "batch": {"b": WORDS[rng.randint(2, max(2, min(6, ahead - 1)))]},
            "leave": {"k": WORDS[rng.randint(1, 2)]},
            "friend": {"friend": rng.choice([name for name in NAMES if name != hero])},
        }.get(kind, {})
        lines.append(_say(rng, world, kind, **choice))
    if world.ahead:
        lines.append(_say(rng, world, "finish"))
    lines.append(_say(rng, world, "turn"))
    lines.append(_say(rng, world, "get"))
    lines.append(_say(rng, world, "end" if world.friend and rng.random() < 0.6 else "home"))
    if rng.random() < 0.4:
        lines.append(_say(rng, world, "moral", moral=rng.choice(MORALS)))
    return " ".join(lines)


# ---- checking ----

_ITEMS = sorted({item for place in PLACES.values() for item in place.items}, key=len, reverse=True)
_SERVERS = [place.server for place in PLACES.values()]
_COUNTS = sorted(NUMBER, key=len, reverse=True)
_LEXICON: dict[str, list[str]] = {
    "hero": NAMES,
    "friend": NAMES,
    "place": list(PLACES),
    "item": _ITEMS,
    "when": WHEN,
    "verb": sorted({place.verb for place in PLACES.values()}),
    "gets": [verb + ("es" if verb.endswith("ch") else "s") for verb in sorted({p.verb for p in PLACES.values()})],
    "server": _SERVERS,
    "she": ["she", "he"],
    "her": ["her", "him"],
    "hers": ["her", "his"],
    "come": ["comes", "come"],
    "join": ["joins", "join"],
    "give": ["gives", "give"],
    "go": ["goes", "go"],
    "waiting": ["one is waiting", *(f"{word} are waiting" for word in _COUNTS)],
    "left": ["nobody is left", "only one is left", *(f"{word} are left" for word in _COUNTS)],
    "last": ["one is", *(f"{word} are" for word in _COUNTS)],
    "moral": MORALS,
    **dict.fromkeys(("n", "m", "k", "b", "total"), _COUNTS),
}


def _pattern(phrasing: str) -> re.Pattern[str]:
    def group(match: re.Match[str]) -> str:
        name = match.group(1)
        words = _LEXICON[name] if name in _LEXICON else [_capital(word) for word in _LEXICON[name.lower()]]
        return f"(?P<{name}>{'|'.join(map(re.escape, words))})"

    parts = re.split(r"(\{\w+\})", phrasing)
    return re.compile(
        "".join(group(m) if (m := re.fullmatch(r"\{(\w+)\}", part)) else re.escape(part) for part in parts)
    )


_PATTERNS = [(name, _pattern(phrasing)) for name, kind in KINDS.items() for phrasing in kind.phrasings]
_LOWER = {
    _capital(word): word for words in _LEXICON.values() for word in words if word not in NAMES and word not in MORALS
}


def _follows(world: World, kind: str, found: Mapping[str, str]) -> bool:
    """Whether the world allows this sentence here; the world then knows it, allowed or not."""
    slots = {name.lower(): word if name.islower() else _LOWER.get(word, word) for name, word in found.items()}
    choice = {name: slots[name] for name in KINDS[kind].choices}
    try:
        expected = KINDS[kind].rule(world, choice)
        right = all(expected.get(name) == word for name, word in slots.items())
    except Inconsistent:
        right = False
    world.said.append(kind)
    return right


@dataclass(frozen=True)
class Verdict:
    """What the checker found in a text."""

    sentences: int  # complete sentences
    grammatical: int  # of which some phrasing of the grammar reads so
    consistent: int  # of which follow from what the story said before
    finished: bool  # the story came to its end

    @property
    def flawless(self) -> bool:
        return self.finished and self.sentences == self.consistent > 0


def check(text: str) -> Verdict:
    """Read one story and hold every sentence against the grammar and against the story so far.

    A last sentence without its full stop (the text was cut off) is not counted.
    """
    world, sentences, grammatical, consistent = World(), 0, 0, 0
    text = text.strip()
    position = 0
    while position < len(text):
        for kind, pattern in _PATTERNS:
            if match := pattern.match(text, position):
                sentences, grammatical = sentences + 1, grammatical + 1
                consistent += _follows(world, kind, match.groupdict())
                position = match.end()
                break
        else:
            stop = re.compile(r'[.!?]"?(?=\s|$)').search(text, position)
            if stop is None:
                break
            sentences, position = sentences + 1, stop.end()
        while position < len(text) and text[position].isspace():
            position += 1
    return Verdict(sentences, grammatical, consistent, bool({"end", "home"} & set(world.said)))
