"""The examples in the help of the commands are commands, and run without a file that nobody ships."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from underload.cli import build_parser
from underload.workload import PUBLIC


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in dict.fromkeys(action.choices.values()):
                yield from parsers(one)


def examples() -> dict[str, str]:
    """Each example that is shown, with where it is; continued lines joined, and without what is said beside it."""
    found: dict[str, str] = {}
    for parser in parsers(build_parser()):
        for text in (parser.description, parser.epilog):
            for line in re.sub(r"\\\n\s*", " ", text or "").splitlines():
                if line.startswith("  underload "):
                    found.setdefault(re.split(r"\s{3,}", line.strip())[0], parser.prog)
    return found


EXAMPLES = examples()


def test_there_are_examples_of_most_commands() -> None:
    assert len(set(EXAMPLES.values())) > 8


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_parses(example: str) -> None:
    args = build_parser().parse_args(shlex.split(example, comments=True)[1:])
    assert callable(args.run)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_needs_no_trace_that_is_not_here(example: str) -> None:
    words = shlex.split(example, comments=True)
    assert not set(words) & set(PUBLIC), f"in {EXAMPLES[example]}: a clone has no such trace; take synthetic:NAME"
