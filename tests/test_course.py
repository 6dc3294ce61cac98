"""What is made from a lab's source: hand-out, page, answers, copies; and that nothing of a solution gets through."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from sample_lab import grading, sample_lab

from underload.course import (
    LabError,
    faults,
    find_labs,
    handout,
    lab_page,
    read_notebook,
    refresh_copies,
    secrets,
    solution,
    tasks,
    write_notebook,
)
from underload.course.marks import regions, strip


def by_id(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    return next(cell for cell in notebook.cells if cell.id == name)


# ---- marks -------------------------------------------------------------------------------------------------------


def test_a_stub_keeps_the_indentation_of_the_solution_it_replaces() -> None:
    source = "def f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION\n\nprint(f())"
    assert strip(source, "cell") == "def f():\n    raise NotImplementedError\n\nprint(f())"


def test_an_author_s_stub_replaces_the_default_one() -> None:
    source = "### STUB: a = 0\n### STUB: b = 0\n### BEGIN SOLUTION\na = 1\nb = 2\n### END SOLUTION"
    assert strip(source, "cell") == "a = 0\nb = 0"


def test_hidden_tests_leave_nothing_behind() -> None:
    source = "assert f(1) == 1\n### BEGIN HIDDEN TESTS\nassert f(2) == 4\n### END HIDDEN TESTS\n"
    assert strip(source, "cell") == "assert f(1) == 1"
    assert strip("### BEGIN HIDDEN TESTS\nassert f(2) == 4\n### END HIDDEN TESTS", "cell") == ""


def test_several_solutions_in_one_cell_each_get_a_stub() -> None:
    source = "### BEGIN SOLUTION\na = 1\n### END SOLUTION\nmiddle()\n### BEGIN SOLUTION\nb = 1\n### END SOLUTION"
    assert strip(source, "cell").splitlines() == ["raise NotImplementedError", "middle()", "raise NotImplementedError"]


@pytest.mark.parametrize(
    "source",
    [
        "### BEGIN SOLUTION\na = 1",
        "a = 1\n### END SOLUTION",
        "### BEGIN SOLUTION\n### BEGIN HIDDEN TESTS\n### END HIDDEN TESTS\n### END SOLUTION",
        "### BEGIN SOLUTION\na = 1\n### END HIDDEN TESTS",
        "# begin solution\na = 1\n# end solution",
        "### BEGIN SOLUTIONS\na = 1\n### END SOLUTIONS",
        "###BEGIN_SOLUTION\na = 1",
        "### STUB: a = 0\nb = 1",
        "### STUB a = 0\n### BEGIN SOLUTION\n### END SOLUTION",
        "### STUB: a = 0",
    ],
)
def test_a_mark_that_is_misspelt_or_unbalanced_is_refused_and_named(source: str) -> None:
    with pytest.raises(LabError, match=r"^cell 3 \(t1\)"):
        list(regions(source, "cell 3 (t1)"))


# ---- the hand-out ------------------------------------------------------------------------------------------------


def test_a_hand_out_has_stubs_no_hidden_tests_no_outputs_and_no_widget_state() -> None:
    source = sample_lab()
    before = copy.deepcopy(source)
    made = handout(source)
    assert source == before, "the source was changed"
    assert by_id(made, "t1").source == 'def double(x):\n    """Twice x."""\n    return 0\n\nprint(double(2))'
    assert by_id(made, "t1-check").source.startswith("assert double(3) == 6")
    assert "HIDDEN" not in by_id(made, "t1-check").source
    assert by_id(made, "t2").source == 'raise NotImplementedError("Task 2")'
    assert by_id(made, "guess").source == "my_guess_ms = None\nmy_other_guess = None"
    assert by_id(made, "why").source == "Why?\n\n*Your answer here.*"
    for cell in made.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None
    assert "widgets" not in made.metadata
    assert by_id(made, "t1-check").metadata.nbgrader == by_id(source, "t1-check").metadata.nbgrader


def test_run_all_goes_on_past_an_answer_that_is_not_written_yet() -> None:
    source = sample_lab()
    source.cells[1].metadata.tags.append("show")
    made = handout(source)
    assert "raises-exception" in by_id(made, "setup").metadata.tags
    assert "raises-exception" in by_id(made, "t2").metadata.tags
    assert "raises-exception" not in by_id(made, "t1-check").metadata.tags
    assert all("raises-exception" not in cell.metadata.get("tags", []) for cell in source.cells)
    source.cells[1].metadata.tags.append("raises-exception")
    assert by_id(handout(source), "setup").metadata.tags.count("raises-exception") == 1, "a hand-out checks itself"


def test_a_hand_out_contains_nothing_that_only_the_solution_knows() -> None:
    text = json.dumps(handout(sample_lab()))
    for word in ("secret_factor", "2_469_134", "42.195", "17.5", "waiting is work", "BEGIN SOLUTION"):
        assert word not in text


def test_a_solution_cell_without_marks_is_refused_rather_than_handed_out() -> None:
    cell = new_code_cell("answer = 42", metadata={"nbgrader": grading("task-1", solution=True)})
    with pytest.raises(LabError, match="task-1"):
        handout(new_notebook(cells=[cell]))


def test_what_is_handed_out_is_told_apart_by_its_digest() -> None:
    source = sample_lab()
    first = handout(source).metadata.underload.handout
    assert handout(source).metadata.underload.handout == first
    by_id(source, "t1").outputs = []
    assert handout(source).metadata.underload.handout == first, "stored outputs are not part of a hand-out"
    by_id(source, "t1-text").source += " Twice."
    assert handout(source).metadata.underload.handout != first


# ---- the page in the book ----------------------------------------------------------------------------------------


def test_the_page_has_the_hand_out_s_code_and_the_source_s_pictures() -> None:
    source = sample_lab()
    page, given = lab_page(source), handout(source)
    assert [cell.source for cell in page.cells] == [cell.source for cell in given.cells]
    (picture,) = by_id(page, "t2").outputs
    assert set(picture.data) == {"image/png"}, "the text beside a picture is left out"
    assert by_id(page, "panel").outputs == [], "a live cell shows nothing"
    assert by_id(page, "t1").outputs == [] and by_id(page, "setup").outputs == []


def test_the_page_keeps_text_only_where_a_cell_asks_for_it() -> None:
    (table,) = by_id(lab_page(sample_lab()), "table").outputs
    assert "batch  ms" in table.text


def test_the_page_folds_the_result_of_a_prediction() -> None:
    result = by_id(lab_page(sample_lab()), "result")
    assert result.outputs and "hide-output" in result.metadata.tags
    assert by_id(handout(sample_lab()), "result").outputs == []


def test_a_picture_in_html_stays_and_other_html_goes() -> None:
    outputs = [
        new_output("display_data", {"text/html": "<figure><svg></svg></figure>"}),
        new_output("execute_result", {"text/html": "<b>the answer</b>", "text/plain": "the answer"}, execution_count=1),
        new_output("error", ename="E", evalue="v", traceback=[]),
    ]
    cell = new_code_cell("x", metadata={"tags": ["recorded"]}, outputs=outputs)
    (kept,) = lab_page(new_notebook(cells=[cell])).cells[0].outputs
    assert "svg" in kept.data["text/html"]


# ---- secrets -----------------------------------------------------------------------------------------------------


def test_secrets_are_found_in_text_that_was_broken_up_and_not_in_the_hand_out() -> None:
    kept = secrets(sample_lab())
    assert "secret_factor" in kept.names and "my_guess_ms" not in kept.names
    assert kept.lines_in("x  return   secret_factor\n * x") == ["returnsecret_factor*x"]
    assert kept.lines_in("assert double(1_234_567) == 2_469_134")
    assert kept.lines_in("Because waiting is work.")
    given = "\n".join(cell.source for cell in handout(sample_lab()).cells)
    assert kept.lines_in(given) == []


# ---- answers -----------------------------------------------------------------------------------------------------


def test_the_answer_to_a_task_is_its_cells_without_marks_and_hidden_tests() -> None:
    source = sample_lab()
    assert tasks(source) == ["1", "2", "3"]
    assert str(solution(source, 1)) == (
        'def double(x):\n    """Twice x."""\n    secret_factor = 2\n    return secret_factor * x\n\nprint(double(2))'
    )
    assert "halved" in str(solution(source, "2"))
    assert "waiting is work" in str(solution(source, "3"))


def test_asking_for_a_task_that_is_not_there_lists_those_that_are() -> None:
    with pytest.raises(LabError, match="'7'.*1, 2, 3"):
        solution(sample_lab(), 7)


# ---- copies on disk ----------------------------------------------------------------------------------------------


def test_copies_are_made_once_never_overwritten_and_told_when_the_lab_has_changed(tmp_path: Path) -> None:
    labs, mine = tmp_path / "labs", tmp_path / "my-labs"
    source = sample_lab()
    write_notebook(source, labs / "sample.ipynb")
    assert [one.state for one in refresh_copies(labs, mine)] == ["made"]
    worked = read_notebook(mine / "sample.ipynb")
    worked.cells[0].source = "# mine"
    write_notebook(worked, mine / "sample.ipynb")
    assert [one.state for one in refresh_copies(labs, mine)] == ["kept"]
    by_id(source, "t1-text").source = "Treble a number."
    write_notebook(source, labs / "sample.ipynb")
    (one,) = refresh_copies(labs, mine)
    assert one.state == "changed" and "has changed" in str(one)
    assert read_notebook(mine / "sample.ipynb").cells[0].source == "# mine", "the reader's work was overwritten"


@pytest.mark.parametrize("content", ["", "{}", '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'])
def test_a_file_of_the_reader_s_that_is_no_hand_out_is_left_alone(tmp_path: Path, content: str) -> None:
    write_notebook(sample_lab(), tmp_path / "labs" / "sample.ipynb")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sample.ipynb").write_text(content)
    assert [one.state for one in refresh_copies(tmp_path / "labs", tmp_path / "mine")] == ["unknown"]
    assert (tmp_path / "mine" / "sample.ipynb").read_text() == content


def test_labs_are_found_from_below_and_the_failure_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNDERLOAD_LABS", raising=False)
    (tmp_path / "labs").mkdir()
    (tmp_path / "_toc.yml").touch()
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert find_labs(tmp_path / "a" / "b") == tmp_path / "labs"
    monkeypatch.setenv("UNDERLOAD_LABS", str(tmp_path / "nowhere"))
    with pytest.raises(LabError, match="UNDERLOAD_LABS"):
        find_labs()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"nbformat": 3, "nbformat_minor": 0, "worksheets": []}', "\x00"])
def test_what_is_no_notebook_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken.ipynb"
    path.write_text(content)
    with pytest.raises(LabError, match=r"broken\.ipynb"):
        read_notebook(path)
    with pytest.raises(LabError, match="no notebook at"):
        read_notebook(tmp_path / "missing.ipynb")


# ---- faults ------------------------------------------------------------------------------------------------------


def sound(**changes: object) -> nbformat.NotebookNode:
    cell = new_code_cell("print(1)", id="a", metadata={"tags": ["nbval-check-output"]}, execution_count=1)
    cell.outputs = [new_output("stream", text="1\n")]
    cell.update(changes)
    return new_notebook(cells=[cell], metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})


def test_a_sound_lab_has_no_faults() -> None:
    assert faults(sound()) == []


@pytest.mark.parametrize(
    ("tags", "told"),
    [
        ([], "exactly one"),
        (["recorded", "live"], "exactly one"),
        (["recorded", "raises-exception"], "assert what should happen"),
        (["live"], "stored output"),
    ],
)
def test_each_code_cell_has_exactly_one_treatment(tags: list[str], told: str) -> None:
    (fault,) = faults(sound(metadata=nbformat.from_dict({"tags": tags})))
    assert told in fault and "(a)" in fault


def test_a_cell_stored_without_being_run_is_a_fault_because_nothing_would_be_compared() -> None:
    (fault,) = faults(sound(execution_count=None, outputs=[]))
    assert "never run" in fault


def test_stored_errors_stderr_widget_state_and_repeated_ids_are_faults() -> None:
    lab = sound()
    lab.cells[0].outputs = [
        new_output("error", ename="ValueError", evalue="v", traceback=[]),
        new_output("stream", name="stderr", text="!"),
    ]
    lab.metadata.widgets = {}
    lab.cells += [new_markdown_cell("x", id="m"), new_markdown_cell("y", id="m")]
    text = "\n".join(faults(lab))
    for told in ("ValueError", "stderr", "widget state", "cell id 'm' occurs 2 times"):
        assert told in text


def test_grading_metadata_must_agree_with_the_marks() -> None:
    lab = sound()
    lab.cells[0].source = "### BEGIN SOLUTION\nx = 1\n### END SOLUTION"
    assert "no nbgrader metadata" in faults(lab)[0]
    lab.cells[0].source = "### BEGIN HIDDEN TESTS\nx = 1\n### END HIDDEN TESTS"
    assert "earns no points" in faults(lab)[0]
    lab.cells[0].source = "### BEGIN SOLUTION\nx = 1"
    assert "never closed" in faults(lab)[0]


# ---- the command line --------------------------------------------------------------------------------------------


def test_the_command_line_lists_labs_and_unfolds_one_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from underload.cli import main

    write_notebook(sample_lab(), tmp_path / "sample.ipynb")
    monkeypatch.setenv("UNDERLOAD_LABS", str(tmp_path))
    assert main(["labs", "list"]) == 0
    assert capsys.readouterr().out == "sample  A sample lab  tasks 1, 2, 3\n"
    assert main(["labs", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "labs": [{"lab": "sample", "title": "A sample lab", "tasks": ["1", "2", "3"]}]
    }
    assert main(["labs", "solution", "sample.ipynb", "1"]) == 0
    assert "secret_factor" in (shown := capsys.readouterr().out) and "double(1_234_567)" not in shown
    assert main(["labs", "solution", "sample", "9"]) == 2
    assert "1, 2, 3" in capsys.readouterr().err
    assert main(["labs", "solution", "other", "1"]) == 2
    assert "there are: sample" in capsys.readouterr().err
    assert main(["labs", "copy", str(tmp_path / "mine")]) == 0
    assert "made    sample.ipynb" in capsys.readouterr().out and (tmp_path / "mine" / "sample.ipynb").is_file()
