"""What comes back: whose it is, which lab it is of, and why not where it is none."""

from __future__ import annotations

import copy
import io
import json
import os
import struct
import zipfile
from pathlib import Path

import nbformat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_lab import queue_lab, solved_by_hand

from underload.course import LabError, handout
from underload.course.source import nbgrader
from underload.course.student import claimed, on_the_list, safe, safe_names
from underload.course.submission import BESIDE_FILES, NOTEBOOK, Found, find, found_at, parse

LAB = "queue-lab"
SOURCE = queue_lab(LAB)
LABS = {LAB: SOURCE}
RIGHT = solved_by_hand(handout(SOURCE))


def data(notebook: nbformat.NotebookNode = RIGHT) -> bytes:
    return json.dumps(notebook).encode()


def lay(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def zipped(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()


def only(folder: Path, **options) -> Found:
    (found,) = find(folder, LABS, **options)
    return found


def told(found: Found) -> str:
    return " ".join([found.said, *found.notes])


# ---- whose ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "student"),
    [
        (f"ann/{LAB}.ipynb", "ann"),
        ("ann/week 2/mine/final FINAL.ipynb", "ann"),
        (f"submitted/ann/{LAB}/{LAB}.ipynb", "ann"),
        (f"ann_{LAB}.ipynb", "ann"),
        (f"ann-{LAB} (2).ipynb", "ann"),
        (f"{LAB}_ann.ipynb", "ann"),
        ("ann.ipynb", "ann"),
        ("ann.ipynb.txt", "ann"),
        (f"leeann_12345_67890_{LAB}-1.ipynb", "leeann_12345"),
        (f"leeann_LATE_12345_67890_{LAB}.ipynb", "leeann_12345"),
        ("Ann Lee_12345_assignsubmission_file_/x.ipynb", "Ann-Lee_12345"),
        ("Ann Lee_12345_assignsubmission_file/x.ipynb", "Ann-Lee_12345"),
        ("Ann Lee_12345_assignsubmission_file_x.ipynb", "Ann-Lee_12345"),
        ("Zoë Ångström/x.ipynb", "Zoë-Ångström"),
        ("ann@example.org/x.ipynb", "ann@example.org"),
    ],
)
def test_a_notebook_is_the_student_s_wherever_it_lies(tmp_path: Path, name: str, student: str) -> None:
    found = only(lay(tmp_path, {name: data()}))
    assert (found.student, found.lab, found.said) == (student, LAB, "")
    assert found.notebook is not None and len(found.notebook.cells) == len(RIGHT.cells)


def test_nbgrader_s_other_folders_and_lists_beside_the_files_are_nobody_s(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            f"submitted/ann/{LAB}/{LAB}.ipynb": data(),
            f"source/{LAB}/{LAB}.ipynb": data(SOURCE),
            f"autograded/ann/{LAB}/{LAB}.ipynb": data(),
            "nbgrader_config.py": b"",
        },
    )
    assert [found.student for found in find(tmp_path, LABS)] == ["ann"]


def test_lists_and_notes_at_the_top_are_nobody_s_submission(tmp_path: Path) -> None:
    lay(tmp_path, {f"ann_{LAB}.ipynb": data(), "class.csv": b"student\nann\n", "readme.md": b"#", "bob.pdf": b"%PDF"})
    assert [(found.student, bool(found.said)) for found in find(tmp_path, LABS)] == [("ann", False), ("bob", True)]


@pytest.mark.parametrize("roster", [["ann.lee", "12345"], ["ann.lee", "LeeAnn"]])
def test_a_roster_gives_the_student_s_name_in_the_course(tmp_path: Path, roster: list[str]) -> None:
    found = only(lay(tmp_path, {f"leeann_12345_67890_{LAB}.ipynb": data()}), roster=roster)
    assert found.student == roster[1] and found.listed


def of(student: str) -> bytes:
    mine = copy.deepcopy(RIGHT)
    mine.metadata["underload"] = {"lab": LAB, "student": student, "seed": 5}
    return data(mine)


def test_a_folder_of_another_name_is_the_student_s_whose_hand_out_lies_in_it(tmp_path: Path) -> None:
    lay(tmp_path, {"Müller Anna/x.ipynb": of("müller.anna"), "bob/x.ipynb": of("bob")})
    found = {one.student: one for one in find(tmp_path, LABS, roster=["müller.anna", "bob", "eve"])}
    assert set(found) == {"müller.anna", "bob"} and all(one.listed for one in found.values())
    [note] = found["müller.anna"].notes
    assert "came under the name 'Müller Anna'" in note and "taken for theirs" in note and not found["bob"].notes


@pytest.mark.parametrize(
    "others",
    [
        {"müller.anna/x.ipynb": of("müller.anna")},  # something came from her
        {"anna 2/x.ipynb": of("müller.anna")},  # two have her hand-out
        {"Müller Anna/y.ipynb": of("bob")},  # two hand-outs in one folder
    ],
    ids=["has her own", "two", "mixed"],
)
def test_where_it_is_not_sure_whose_a_folder_is_it_stays_its_own(tmp_path: Path, others: dict[str, bytes]) -> None:
    lay(tmp_path, {"Müller Anna/x.ipynb": of("müller.anna"), **others})
    found = find(tmp_path, LABS, roster=["müller.anna", "bob"])
    strange = next(one for one in found if one.student == "Müller-Anna")
    assert not strange.listed and strange.named in ("müller.anna", "bob")


def test_a_file_whose_name_says_nothing_is_by_its_metadata_and_a_folder_s_name_says_enough(tmp_path: Path) -> None:
    lay(tmp_path, {"my final version.ipynb": of("eva"), "bob/x.ipynb": of("ann")})
    assert {one.student for one in find(tmp_path, LABS)} == {"eva", "bob"}


def test_the_text_stored_below_a_cell_is_kept_and_cut(tmp_path: Path) -> None:
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["\x1b[31m12.5 ms\n", "3 ms\n"]},
        {"output_type": "stream", "name": "stderr", "text": "a warning"},
        {"output_type": "execute_result", "data": {"text/plain": "<Figure size 1>", "text/html": "<b>no</b>"}},
        {"output_type": "execute_result", "data": {"text/plain": ["0.25"]}},
        {"output_type": "execute_result", "data": {"text/plain": 7}}, "odd",
        {"output_type": "stream", "text": "x" * 9_000},
    ]  # fmt: skip
    cell = {"cell_type": "code", "source": "x", "metadata": {}, "outputs": outputs}
    made = parse(json.dumps({"nbformat": 4, "cells": [cell, {**cell, "outputs": 5}]}).encode())
    text = made.cells[0].outputs[0].text
    assert text.startswith("12.5 ms\n3 ms\n0.25\nxxx") and len(text) == 4_000 and made.cells[1].outputs == []


def test_a_name_that_two_on_the_list_could_have_is_neither_s() -> None:
    claim = claimed("ann/", [LAB], folder=False)
    assert on_the_list(claim, ["ANN", "Ann"]) == claim.student


def test_students_whose_names_differ_in_what_no_folder_can_tell_stay_apart(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {"Ann Lee/x.ipynb": data(), "Ann+ Lee/x.ipynb": data(), "Ann-Lee/x.ipynb": data(), "ann-lee/x.ipynb": data()},
    )
    names = [found.student for found in find(tmp_path, LABS)]
    assert len({name.casefold() for name in names}) == 4 and "Ann+-Lee" in names


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=100), max_size=8))
def test_safe_names_are_folders_of_their_own(students: list[str]) -> None:
    names = safe_names(students)
    assert len({name.casefold() for name in names.values()}) == len(set(students))
    for name in names.values():
        assert name and not set(name) & set('/\\:*?"<>|\0 ') and name[0] != "." and name[-1] != "." and len(name) < 150
        assert name.split(".")[0].casefold() not in {"con", "nul", "aux", "prn", "com1", "lpt9"}


@pytest.mark.parametrize("student", ["ann", "ann.lee", "s-1234567", "ann@example.org", "_x", "ann-", "O+"])
def test_an_id_that_a_roster_takes_is_not_changed(student: str) -> None:
    assert safe(student) == student


# ---- archives ---------------------------------------------------------------------------------------------------


def test_a_student_s_archive_is_a_folder_of_theirs(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {"ann.zip": zipped({"my-labs/x.ipynb": data(), "my-labs/log.csv": b"1,2", "__MACOSX/._x.ipynb": b"x"})},
    )
    lay(tmp_path, {f"bob/{LAB}.zip": zipped({"x.ipynb": data()}), f"leeann_1_2_{LAB}.zip": zipped({"x.ipynb": data()})})
    found = {one.student: one for one in find(tmp_path, LABS)}
    assert sorted(found) == ["ann", "bob", "leeann_1"] and not any(one.said for one in found.values())
    assert found["ann"].path == "ann.zip/my-labs/x.ipynb"
    assert found["ann"].beside["log.csv"].read(100) == b"1,2"


@pytest.mark.parametrize("direct", [True, False])
def test_the_archive_of_a_class_is_as_if_unpacked(tmp_path: Path, direct: bool) -> None:
    whole = zipped({f"ann/{LAB}.ipynb": data(), "bob/b.ipynb": data(), "cy/all.zip": zipped({"c.ipynb": data()})})
    lay(tmp_path, {"all.zip": whole})
    found = find(tmp_path / "all.zip" if direct else tmp_path, LABS)
    assert [(one.student, one.said) for one in found] == [("ann", ""), ("bob", ""), ("cy", "")]


def test_a_download_of_a_learning_platform_is_known_by_the_names_in_it(tmp_path: Path) -> None:
    moodle = zipped({"Ann Lee_1_assignsubmission_file_/x.ipynb": data(), "Bo_2_assignsubmission_file_/y.ipynb": data()})
    lay(tmp_path, {"moodle.zip": moodle, "canvas.zip": zipped({f"cyd_3_44_{LAB}.ipynb": data()})})
    assert [one.student for one in find(tmp_path, LABS)] == ["Ann-Lee_1", "Bo_2", "cyd_3"]


@pytest.mark.parametrize("name", ["../x.ipynb", "a/../../x.ipynb", "/etc/x.ipynb", "..\\x.ipynb"])
def test_an_archive_with_a_way_out_is_refused_and_writes_nothing(tmp_path: Path, name: str) -> None:
    place = lay(tmp_path / "in", {"ann.zip": zipped({name: data()})})
    assert "paths that lead out" in only(place).said
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["ann.zip", "in"]


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    bomb = zipped({"x.ipynb": b" " * (NOTEBOOK + 1)})
    assert len(bomb) < 200_000
    assert "it has 20 MB; at most 20 MB are read" in only(lay(tmp_path, {"ann.zip": bomb})).said
    # one that says that it is small
    size = struct.pack("<I", NOTEBOOK + 1)
    assert bomb.count(size) == 2
    lying = lay(tmp_path / "b", {"ann.zip": bomb.replace(size, struct.pack("<I", 1000))})
    assert only(lying).notebook is None and only(lying).said


def test_archives_in_archives_end_somewhere(tmp_path: Path) -> None:
    made = data()
    for depth in range(6):
        made = zipped({f"{depth}.zip" if depth else "x.ipynb": made})
    assert "archive" in told(only(lay(tmp_path, {"ann.zip": made})))


def test_more_files_than_anybody_hands_in_are_not_looked_at(tmp_path: Path) -> None:
    many = {f"{number:05}.txt": b"" for number in range(2_500)}
    found = only(lay(tmp_path, {"ann.zip": zipped({"00000.ipynb": data(), **many})}))
    assert found.notebook is not None and "2,000 files" in told(found)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut off"])
def test_what_is_no_archive_is_said(tmp_path: Path, content: bytes) -> None:
    assert "no zip archive" in only(lay(tmp_path, {"ann.zip": content})).said


# ---- which lab --------------------------------------------------------------------------------------------------


def other_lab() -> nbformat.NotebookNode:
    made = queue_lab("other")
    for cell in made.cells:
        cell.source = cell.source.replace("waits", "pauses").replace("mine", "yours").replace("the_answer", "it")
    return made


def test_the_lab_is_in_the_notebook_and_not_in_the_file_s_name(tmp_path: Path) -> None:
    labs = {LAB: SOURCE, "other": other_lab()}
    lay(tmp_path, {f"ann/{LAB}.ipynb": data(handout(other_lab())), "ann/other.ipynb": data()})
    found = {one.lab: one.path for one in find(tmp_path, labs)}
    assert found == {"other": f"ann/{LAB}.ipynb", LAB: "ann/other.ipynb"}


def test_without_metadata_the_cells_tell_the_lab_though_labs_share_their_names(tmp_path: Path) -> None:
    stripped = copy.deepcopy(RIGHT)
    del stripped.metadata["underload"]
    lay(tmp_path, {"ann/x.ipynb": data(stripped)})
    assert [one.lab for one in find(tmp_path, {"other": other_lab(), LAB: SOURCE})] == [LAB]
    refused = find(tmp_path, {"other": other_lab()})[0]
    assert refused.notebook is None and "some other notebook" in refused.said


def test_a_notebook_of_another_lab_is_refused_by_name(tmp_path: Path) -> None:
    found = only(lay(tmp_path, {f"ann/{LAB}.ipynb": data(handout(other_lab()))}))
    assert found.notebook is None and found.lab == LAB and "a notebook of the lab 'other'" in found.said


def test_a_stray_notebook_beside_the_lab_s_is_only_named(tmp_path: Path) -> None:
    stray = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1")])
    found = only(lay(tmp_path, {"ann/x.ipynb": data(), "ann/scratch.ipynb": data(stray)}))
    assert found.path == "ann/x.ipynb" and "scratch.ipynb: it has none of the cells" in told(found)


def test_marks_and_ids_that_a_program_dropped_are_found_again(tmp_path: Path) -> None:
    without_marks, without_ids = copy.deepcopy(RIGHT), copy.deepcopy(RIGHT)
    for cell in without_marks.cells:
        cell.metadata = {}
    for cell in without_ids.cells:
        del cell["id"]
    lay(tmp_path, {"ann/x.ipynb": data(without_marks), "bob/x.ipynb": data(without_ids)})
    ann, bob = find(tmp_path, LABS)
    assert ann.notebook is not None and bob.notebook is not None
    names = [nbgrader(cell).get("grade_id") for cell in RIGHT.cells]
    assert [nbgrader(cell).get("grade_id") for cell in ann.notebook.cells] == names
    assert "marks for grading were gone" in told(ann)
    kept = [cell.id for cell in RIGHT.cells if cell.cell_type == "code" and not nbgrader(cell)]
    assert [cell["id"] for cell in bob.notebook.cells if cell.cell_type == "code" and not nbgrader(cell)] == kept


# ---- several, and what lies beside ------------------------------------------------------------------------------


def test_the_newest_of_two_notebooks_counts_and_the_other_is_named(tmp_path: Path) -> None:
    lay(tmp_path, {"ann/a.ipynb": data(handout(SOURCE)), "ann/b.ipynb": data()})
    for name, when in (("a", 2_000_000_000), ("b", 1_000_000_000)):
        os.utime(tmp_path / f"ann/{name}.ipynb", (when, when))
    found = only(tmp_path)
    assert found.path == "ann/a.ipynb"
    assert "2 notebooks of this lab" in told(found) and "ann/b.ipynb (2001-09-" in told(found)


def test_the_same_notebook_twice_is_no_matter(tmp_path: Path) -> None:
    assert only(lay(tmp_path, {"ann/a.ipynb": data(), "ann/b.ipynb": data()})).notes == ()


def test_checkpoints_and_hidden_files_are_not_there(tmp_path: Path) -> None:
    files = {"ann/.ipynb_checkpoints/x-checkpoint.ipynb": data(), "ann/.git/x.ipynb": b"", "ann/x.ipynb": data()}
    found = only(lay(tmp_path, files))
    assert found.path == "ann/x.ipynb" and not found.notes and not found.beside


def test_files_beside_a_notebook_are_kept_within_limits_and_are_nobody_else_s(tmp_path: Path) -> None:
    files = {f"ann/lab/d/{number}.csv": b"1" for number in range(BESIDE_FILES + 5)}
    lay(tmp_path, {"ann/lab/x.ipynb": data(), "ann/else.csv": b"2", **files})
    lay(tmp_path, {f"bob_1_2_{LAB}.ipynb": data(), "bob_1_3_log.csv": b"3", "cy_2_9_log.csv": b"4"})
    ann, bob, cy = find(tmp_path, LABS)
    assert len(ann.beside) == BESIDE_FILES and "d/1.csv" in ann.beside and "and 2 more" in told(ann)
    assert {name: one.read(9) for name, one in bob.beside.items()} == {"log.csv": b"3"}
    assert "no notebook" in cy.said


def test_a_file_beside_changes_the_digest(tmp_path: Path) -> None:
    lay(tmp_path, {"ann/x.ipynb": data(), "ann/log.csv": b"1"})
    before = only(tmp_path).digest
    (tmp_path / "ann/log.csv").write_bytes(b"2")
    assert only(tmp_path).digest != before


# ---- what is no notebook ----------------------------------------------------------------------------------------

NOT_NOTEBOOKS = {
    b"": "the file is empty",
    b" \n ": "the file is empty",
    b"%PDF-1.7\n\x00": "it is a PDF",
    b"PK\x03\x04rest": "a zip archive",
    b"\n<!DOCTYPE html><html>": "a web page",
    b"\x00\x01\x02\xff\xfe": "it is no",
    b"hello": "it is no JSON (line 1)",
    b'{"cells": [': "cut off",
    b'{\n<<<<<<< HEAD\n"cells": []': "merge conflict",
    b"[" * 100_000: "nested too deeply",
    b'{"nbformat": 4, "cells": [], "metadata": {"underload": {"x": ' + b"[" * 700 + b"]" * 700 + b"}}}": "too deeply",
    b"[]": "it has no cells",
    b'{"nbformat": 4}': "it has no cells",
    b'{"nbformat": 4, "cells": 3}': "its cells are no list",
    b'{"nbformat": 4, "cells": [3]}': "its cell 1 is no cell",
    b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": 3}]}': "its cell 1 has no text",
    b'{"nbformat": 4, "cells": []}': "none of the cells",
    b'{"nbformat": 2, "worksheets": []}': "notebook format 2",
    b'{"nbformat": 3, "worksheets": 7}': "notebook format 3 and cannot be read",
    b'{"nbformat": 9, "cells": []}': "notebook format 9",
    json.dumps({"nbformat": 4, "cells": [{"cell_type": "raw", "source": ""}] * 6000}).encode(): "6,000 cells",
    json.dumps({"nbformat": 4, "cells": [{"cell_type": "raw", "source": "x" * 1_100_000}]}).encode(): "1,100,000 char",
}  # fmt: skip


@pytest.mark.parametrize("content", NOT_NOTEBOOKS, ids=lambda content: repr(content[:30]))
def test_what_is_no_notebook_says_what_it_is(tmp_path: Path, content: bytes) -> None:
    found = only(lay(tmp_path, {"ann/x.ipynb": content}))
    assert found.notebook is None and NOT_NOTEBOOKS[content] in found.said and found.student == "ann"


def test_a_huge_file_a_link_a_pipe_and_a_folder_of_that_name(tmp_path: Path) -> None:
    lay(tmp_path, {"ann/x.ipynb": b"", "deep/" + "d/" * 15 + "x.ipynb": data(), "secret.txt": b"s"})
    os.truncate(tmp_path / "ann/x.ipynb", 100_000_000)
    for student in ("bob", "cy"):
        (tmp_path / student).mkdir()
    (tmp_path / "bob/x.ipynb").symlink_to(tmp_path / "secret.txt")
    os.mkfifo(tmp_path / "cy/x.ipynb")
    (tmp_path / "dan").symlink_to(tmp_path)
    (tmp_path / "eve/x.ipynb").mkdir(parents=True)
    lay(tmp_path, {"eve/x.ipynb/y.txt": b""})
    said = {found.student: found.said for found in find(tmp_path, LABS)}
    assert "it has 100 MB; at most 20 MB are read; clear its outputs" in said["ann"]
    assert "links are not followed" in said["bob"] and "a pipe" in said["cy"] and "links" in said["dan"]
    assert "no notebook" in said["eve"] and "deep" in said["deep"]


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tmp_path, {"ann/x.ipynb": data()})

    def refuse(*arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    assert only(tmp_path).said == "it cannot be read: Permission denied"


def test_a_format_3_notebook_is_converted() -> None:
    old = {
        "nbformat": 3,
        "nbformat_minor": 0,
        "metadata": {"name": ""},
        "worksheets": [
            {
                "metadata": {},
                "cells": [
                    {"cell_type": "heading", "level": 2, "metadata": {}, "source": ["Old"]},
                    {"cell_type": "code", "input": ["x = 1\n", "y"], "metadata": {}, "outputs": []},
                ],
            }
        ],
    }  # fmt: skip
    assert [cell.source for cell in parse(json.dumps(old).encode()).cells] == ["## Old", "x = 1\ny"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_other_encodings_are_read(encoding: str) -> None:
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("größer = 'é'")])
    assert parse(json.dumps(made, ensure_ascii=False).encode(encoding)).cells[0].source == "größer = 'é'"


def test_half_a_character_can_be_written_again() -> None:
    made = parse(b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": "x = \'\\ud800\'"}]}')
    made.cells[0].source.encode()


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = ["cell_type", "source", "metadata", "id", "outputs", "attachments"]


@settings(max_examples=60, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "nbformat": st.sampled_from([3, 4, "4", None]),
            "cells": st.lists(st.dictionaries(st.sampled_from(KEYS), anything | st.just("code")), max_size=4),
            "worksheets": anything,
            "metadata": anything | st.fixed_dictionaries({"underload": st.fixed_dictionaries({"lab": anything})}),
        }
    )
)  # fmt: skip
def test_whatever_json_comes_nothing_but_a_reason_is_raised(
    tmp_path_factory: pytest.TempPathFactory, made: dict
) -> None:
    folder = tmp_path_factory.mktemp("any")
    assert only(lay(folder, {"ann/x.ipynb": json.dumps(made).encode()})).said


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=300))
def test_whatever_bytes_come_nothing_but_a_reason_is_raised(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = lay(tmp_path_factory.mktemp("any"), {"ann/x.ipynb": content, "bob.zip": content})
    assert all(found.said for found in find(folder, LABS))


def test_metadata_of_any_shape_are_no_matter() -> None:
    cells = [
        {"cell_type": "code", "source": ["a\n", "b"], "metadata": metadata, "id": identity}
        for metadata, identity in [
            (3, 4),
            ({"nbgrader": 3}, None),
            ({"nbgrader": {"grade_id": 3}}, "x"),
            ({"tags": 1}, []),
        ]
    ]
    made = parse(json.dumps({"nbformat": 4, "metadata": {"underload": 3}, "cells": cells}).encode())
    assert [dict(cell.metadata) for cell in made.cells] == [{}] * 4 and made.cells[0].source == "a\nb"


def test_one_file_is_found_with_what_lies_beside_it(tmp_path: Path) -> None:
    lay(tmp_path, {"sub.ipynb": data(), "log.csv": b"1", "other/x.csv": b"2"})
    found = found_at(tmp_path / "sub.ipynb", LAB, SOURCE, "ann")
    assert found.notebook is not None and set(found.beside) == {"log.csv"} and found.student == "ann"
    assert found_at(tmp_path / "none.ipynb", LAB, SOURCE, "ann").said == "there is no such file"


def test_no_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no folder of submissions"):
        find(tmp_path / "none", LABS)
    lay(tmp_path, {"x.tar": b"no zip"})
    with pytest.raises(LabError, match="give the folder of submissions, or a zip archive"):
        find(tmp_path / "x.tar", LABS)
