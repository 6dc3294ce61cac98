"""What the README shows works: its commands are ones, its Python runs, its pages and packages are there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from underload.cli import COMMANDS as COMMAND_NAMES
from underload.cli import build_parser
from underload.course.outline import outline
from underload.course.source import read_notebook
from underload.decoder.fetch import FETCHABLE
from underload.shapes import shape

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


def test_every_command_there_is_is_shown() -> None:
    shown = {shlex.split(command, comments=True)[1] for command in COMMANDS}
    assert shown == set(COMMAND_NAMES)


def test_a_lab_takes_as_long_as_the_labs_say() -> None:
    said = re.search(r"(\d+) to (\d+) minutes of your time for the core of a lab", README)
    assert said
    labs = [outline(read_notebook(lab)) for lab in (ROOT / "labs").glob("*.ipynb")]
    minutes = [lab.minutes or 0 for lab in labs if lab.parts]
    assert (min(minutes), max(minutes)) == (int(said[1]), int(said[2]))


def test_the_environment_is_as_large_in_all_texts() -> None:
    places = ("README.md", "make.py", "chapters/back/for-students.md", "chapters/back/teaching.md",
              "lib/underload/course/student_readme.md")  # fmt: skip
    for place in places:
        text = (ROOT / place).read_text(encoding="utf-8")
        sizes = re.findall(r"([\d.]+ GB) of disk|about ([\d.]+ GB) (?:into|the first time)", text, re.IGNORECASE)
        assert {one or other for one, other in sizes} == {"3 GB"}, place


def test_a_real_model_is_as_large_as_what_is_fetched() -> None:
    said = re.search(r"(\d+) MB to download, or (\d+) MB where the Hugging Face hub answers", README)
    assert said
    name = "smollm2-135m"
    # The hub's weights are bfloat16: two bytes a parameter.
    assert [int(size) for size in said.groups()] == [
        round(size / 1e6) for size in (FETCHABLE[name].size, 2 * shape(name).num_parameters)
    ]


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
