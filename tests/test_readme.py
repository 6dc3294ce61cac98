"""What the README shows works: its commands are ones, its Python runs, its pages and packages are there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from underload.cli import build_parser

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


# Continued lines joined.
SHELL = [line for block in blocks("sh") for line in block.replace("\\\n", " ").splitlines()]
COMMANDS = [line for line in SHELL if line.startswith("underload ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shown_is_one(command: str) -> None:
    args = build_parser().parse_args(shlex.split(command, comments=True)[1:])
    assert callable(args.run)


def test_the_commands_that_answer_a_question_are_shown() -> None:
    shown = {shlex.split(command, comments=True)[1] for command in COMMANDS}
    assert {"queue", "workload", "bench", "simulate", "capacity", "compare"} <= shown


def test_a_lab_takes_as_long_as_the_labs_say() -> None:
    said = re.search(r"(\d+) to (\d+) minutes of your time for the core of a lab", README)
    assert said
    labs = [lab.read_text(encoding="utf-8") for lab in (ROOT / "labs").glob("*.ipynb")]
    minutes = [int(found[1]) for lab in labs if (found := re.search(r"about (\d+) minutes for the \w+ tasks", lab))]
    assert (min(minutes), max(minutes)) == (int(said[1]), int(said[2]))


def test_the_python_said_to_need_no_torch_runs_without_it() -> None:
    code = next(block for block in blocks("python") if "underload.queueing" in block)
    code += "\nimport sys\nassert 'torch' not in sys.modules\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "4.00 s by formula" in done.stdout and "0.95 confidence" in done.stdout


def test_the_prompts_say_the_same_alone_and_through_the_serving_loop() -> None:
    code = "".join(block for block in blocks("python") if "underload.decoder" in block)
    code += "\nsaid = [model.tokenizer.decode(request.sequences[0].tokens) for request in engine.finished]"
    code += "\nprompts = ['Mira goes to the bakery', '7 + 5 =']"
    code += "\nassert said == [prompt + one.text for prompt, one in zip(prompts, run)], said\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_packages_are_all_there_is_in_order_of_their_rows() -> None:
    from book.library import PACKAGES

    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", README, re.MULTILINE)
    named = re.findall(r"`(\w+)`", " ".join(rows))
    there = [name for name in PACKAGES if (ROOT / "lib/underload" / name / "__init__.py").is_file() and name != "cli"]
    assert named == there
