"""Lab 7: what a wrong answer is told, what the tasks start from, and the inputs that checks draw.

What solutions, hand-outs and wrong answers earn is `underload course verify`'s to say, from tests/course.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import numpy as np
import pytest
from lab_source import LABS, assert_library_is_there, assert_points, told

from underload.cache import BlockPool, ReservingPool, waste
from underload.labs import kv_cache as lab
from underload.shapes import ModelShape, sequences_that_fit, shape

SOURCE = LABS / "kv-cache.ipynb"


# ------------------------------------------------------------------ the notebook


def test_points_and_tasks(source: Any) -> None:
    assert_points(source, 20, 3, 85)


def test_what_an_answer_may_not_use_is_there(source: Any) -> None:
    functions = copy.deepcopy(source)
    for task in functions.metadata["underload"]["tasks"].values():
        task["library"] = [name for name in task["library"] if "ModelShape." not in name]
    assert_library_is_there(functions)
    assert callable(ModelShape.kv_bytes_per_token)


def test_what_the_text_says_by_hand(solved: dict[str, Any]) -> None:
    llama = lab.sizes("llama-2-7b")
    assert solved["bytes_per_token"](llama) == 2 * 32 * 32 * 128 * 2 == 524_288
    assert solved["fits"](llama, 24e9, 2048) == 7
    assert llama.num_parameters * 2 == pytest.approx(13.5e9, rel=0.01)
    assert 24e9 * 0.9 - llama.num_parameters * 2 == pytest.approx(8.1e9, rel=0.01)

    row = solved["FirstFit"](16)
    assert [row.take(6), row.take(4), row.take(2)] == [0, 6, 10]
    row.give(0)
    assert row.gaps() == [(0, 6), (12, 4)] and row.take(8) is None and row.take(3) == 0
    row.give(6)
    assert row.gaps() == [(3, 7), (12, 4)]

    row = solved["Buddy"](16)
    assert row.take(3) == 0 and row.gaps() == [(4, 4), (8, 8)]
    assert row.take(2) == 4 and row.gaps() == [(6, 2), (8, 8)]
    assert row.take(5) == 8
    row.give(0)
    assert row.gaps() == [(0, 4), (6, 2)] and row.take(1) == 6 and row.gaps() == [(0, 4), (7, 1)]
    row.give(4)
    assert row.gaps() == [(0, 4), (4, 2), (7, 1)]
    row.give(6)
    assert row.gaps() == [(0, 8)]

    blocks = solved["Blocks"](6, 4)
    table = blocks.allocate(9)
    assert len(table) == 3 and blocks.num_free() == 3
    assert blocks.append(table, 12) is True and blocks.num_free() == 3
    assert blocks.append(table, 13) is True and blocks.num_free() == 2
    assert blocks.allocate(9) is None and blocks.num_free() == 2
    blocks.free(table)
    assert table == [] and blocks.num_free() == 6
    with pytest.raises(ValueError, match="freed before"):
        blocks.free(table)

    moment = lab.by_hand()
    assert moment == lab.Moment(20, ((8, 5, 6), (6, 2, 6)), (2, 4), 3)
    assert solved["divide"](20, [(8, 5, 6), (6, 2, 6)], [2, 4], 3) == {
        "stored": 7,
        "reserved": 5,
        "internal": 2,
        "external": 2,
        "free": 4,
    }

    four, six = dict.fromkeys(range(1, 5), 1 / 4), dict.fromkeys(range(1, 7), 1 / 6)
    mean, best = solved["expected_waste"], solved["best_block"]
    assert [mean(four, b) for b in (1, 2, 4)] == [0, 0.5, 1.5] and mean(six, 4) == pytest.approx(11 / 6)
    assert [lab._cost(four, b, 0.5) for b in (1, 2, 4)] == [1.25, 1.25, 2] and best(four, [1, 2, 4], 0.5) == 1
    assert [lab._cost(four, b, 2) for b in (1, 2, 4)] == [5, 3.5, 3.5] and best(four, [1, 2, 4], 2) == 2


def test_the_solutions_agree_with_the_library(solved: dict[str, Any]) -> None:
    for name in ("llama-2-7b", "llama-3-8b", "qwen3-0.6b", "llama-2-70b"):
        model = lab.sizes(name)
        assert solved["bytes_per_token"](model, 2) == shape(name).kv_bytes_per_token(2) == lab.bytes_per_token(model)
        for memory, context in ((24e9, 300), (141e9, 2048)):
            right = sequences_that_fit(shape(name), context, memory=memory)
            assert solved["fits"](model, memory, context) == right == lab.fits(model, memory, context)
    jobs = lab.trace(3)
    for mine, theirs in ((solved["FirstFit"], lab.FirstFit), (solved["Buddy"], lab.Buddy)):
        assert lab.replay(jobs, mine(lab.SLOTS), divide=solved["divide"]) == lab.replay(jobs, theirs(lab.SLOTS))
    mine = lab.replay(jobs, solved["Blocks"](128, 16), block_size=16, divide=solved["divide"])
    right = lab.replay(jobs, lab.Blocks(128, 16), block_size=16)
    assert (mine.parts, mine.batch, mine.steps, mine.preempted) == (
        right.parts,
        right.batch,
        right.steps,
        right.preempted,
    )
    draw = np.random.default_rng(1)
    for _ in range(5):
        law = lab.drawn_law(draw)
        assert sum(law.values()) == pytest.approx(1)
        for size in (3, 16):
            assert solved["expected_waste"](law, size) == pytest.approx(lab.expected_waste(law, size))
        assert solved["best_block"](law, [8, 2, 32], 1.0) == lab.best_block(law, [8, 2, 32], 1.0)


@pytest.mark.parametrize("seed", range(4))
def test_an_account_is_the_library_s_own(seed: int) -> None:
    """What `divide` says of a moment is what `cache.waste` says of the same tables in the library's pools."""
    draw = np.random.default_rng(seed)
    for pool, size in ((ReservingPool(256, 1, placement="first-fit"), 1), (BlockPool(32, 8, prefix_caching=False), 8)):
        held, finals, running = [], [], []
        for job in lab.drawn_jobs(draw, 40):
            if not pool.can_allocate(None, job.prompt, reserve=job.most):
                break
            now = int(draw.integers(job.prompt, job.final + 1))
            table = pool.allocate(None, job.prompt, reserve=job.most)
            if not pool.can_append(table, now):
                now = job.prompt
            pool.append(table, now)
            held.append((table, now))
            finals.append(job.final)
            running.append((len(pool.granted(table)) * size, now, job.final))
        gaps = [8] * pool.num_free if size == 8 else [length for _, length in pool._gaps.gaps()]  # type: ignore[union-attr]
        found, mine = waste(pool, held, finals, waiting=40), lab.divide(256, running, gaps, 40 if size == 1 else 8)
        assert mine == {part: getattr(found, part) for part in lab.PARTS}


def test_the_stored_run_shows_what_the_text_says(source: Any) -> None:
    said = {
        cell.id: "".join(output.get("text", "") for output in cell.outputs)
        for cell in source.cells
        if cell.cell_type == "code"
    }
    assert "8 of 8 texts are the same as generate's" in said["task-4-real"]
    assert "the same tokens and blocks" in said["task-4-real"]
    model_answer = next(cell.source for cell in source.cells if cell.id == "task-5-open")
    shares = {
        name: lab.replay(lab.trace(), make(lab.SLOTS)).shares()
        for name, make in (("first", lab.FirstFit), ("buddy", lab.Buddy))
    }
    blocks = lab.replay(lab.trace(), lab.Blocks(128, 16), block_size=16)
    known = {
        name: lab.replay(lab.trace(asks="exactly what comes"), make(lab.SLOTS)).shares()
        for name, make in (("first", lab.FirstFit), ("buddy", lab.Buddy))
    }
    numbers = {
        f"{100 * shares['first']['external']:.0f} % of the slots",
        f"buddies {100 * shares['buddy']['external']:.0f} %",
        f"{100 * blocks.shares()['internal']:.1f} % with blocks",
        f"{100 * shares['first']['internal']:.0f} % under first fit",
        f"{100 * shares['buddy']['internal']:.0f} % under buddies",
        f"only {100 * known['first']['stored']:.0f} % of the slots store",
        f"because {100 * known['first']['reserved']:.0f} % are reserved",
        f"and {100 * known['first']['external']:.0f} % are in gaps",
        f"between {100 * shares['first']['stored']:.0f} % and {100 * known['first']['stored']:.0f} % stored",
        f"another {100 * known['buddy']['internal']:.0f} % there",
        f"happened {blocks.preempted} times",
    }
    assert [one for one in numbers if one not in model_answer] == []
    assert known["first"]["internal"] == 0 and blocks.shares()["external"] == 0
    answer = re.findall(r"stored ([\d.]+) %, you wrote ([\d.]+)", said["task-5-answer"])
    assert [float(share) for share, _ in answer] == [
        pytest.approx(100 * share["stored"], abs=0.051) for share in (*shares.values(), blocks.shares())
    ]


# ------------------------------------------------------------------ what the tasks start from


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_every_students_requests_are_as_hard_as_the_others(seed: int) -> None:
    jobs = lab.your_trace(seed)
    assert len(jobs) == 80 and all(1 <= job.prompt < job.final <= job.most < lab.SLOTS // 2 for job in jobs)
    rows, blocks = lab.replay(jobs, lab.FirstFit(lab.SLOTS)), lab.replay(jobs, lab.Blocks(128, 16), block_size=16)
    assert 0.15 < rows.shares()["stored"] < 0.4 and 0.8 < blocks.shares()["stored"] < 0.95
    for result in (rows, blocks):
        assert all(sum(parts.values()) == lab.SLOTS for parts in result.parts)
        assert min(min(parts.values()) for parts in result.parts) >= 0
    lab.check_my_share(round(rows.shares()["stored"], 3), "mine", "first fit", jobs)
    lab.check_my_share(round(blocks.shares()["stored"], 3), "mine", "blocks", jobs)


def test_what_users_ask_for_changes_neither_prompts_nor_outputs() -> None:
    asked = [lab.trace(5, asks=asks) for asks in ("each its own", "all the longest", "exactly what comes")]
    assert len({tuple((job.prompt, job.final) for job in jobs) for jobs in asked}) == 1
    assert all(job.most == job.final for job in asked[2])
    assert all(job.most == job.prompt + 512 for job in asked[1])
    assert {job.most - job.prompt for job in asked[0]} == {64, 128, 256, 512}
    with pytest.raises(ValueError, match="nobody asks for"):
        lab.trace(5, asks="nothing")


def test_a_run_goes_as_its_docstring_says() -> None:
    jobs = [lab.Job(3, 6, 5), lab.Job(2, 4, 4), lab.Job(4, 4, 4)]
    run = lab.replay(jobs, lab.FirstFit(10))
    # steps 0 to 2: jobs 0 and 1 in [0, 6) and [6, 10); both have their final tokens in step 2 and leave after it
    assert run.batch == [2, 2, 2] and run.steps == 4
    assert [parts["stored"] for parts in run.parts] == [5, 7, 9]
    assert [parts["internal"] for parts in run.parts] == [1, 1, 1]
    assert [(one.owner, one.start, one.begin, one.end) for one in run.lives] == [
        (0, 0, 0, 3),
        (1, 6, 0, 3),
        (2, 0, 3, 4),
    ]
    # in 3 blocks of 2, where job 0 has two and job 1 one: in step 0 job 1 wants one more and is put back, in step 1
    # it is there again and has to go for job 0, which leaves in step 2; from step 3 on it has the memory to itself
    paged = lab.replay(jobs[:2], lab.Blocks(3, 2), block_size=2)
    assert paged.preempted == 2 and paged.steps == 6
    with pytest.raises(AssertionError, match="a block for its token number 7 is refused"):
        lab.replay([lab.Job(2, 8, 8)], lab.Blocks(3, 2), block_size=2)
    with pytest.raises(AssertionError, match="nothing is in the memory of 4 slots"):
        lab.replay([lab.Job(2, 8, 8)], lab.FirstFit(4))


def test_what_does_not_work_is_replaced_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    class Unwritten:
        def __init__(self, slots: int) -> None:
            raise NotImplementedError("Task 2")

    class Broken(lab.FirstFit):
        def take(self, length: int) -> int:
            raise IndexError("no such slot")

    right = lab.replay(lab.trace(), lab.FirstFit(lab.SLOTS))
    assert lab.run(lab.trace(), Unwritten, lab.FirstFit, lab.SLOTS) == right
    assert lab.run(lab.trace(), Broken, lab.FirstFit, lab.SLOTS) == right
    out = capsys.readouterr().out
    assert "Unwritten is not written yet: the library's was taken" in out
    assert "Broken raised IndexError: no such slot: the library's" in out


def test_a_run_by_an_account_that_is_none_is_replaced_and_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    def unwritten(*moment: Any) -> Any:
        raise NotImplementedError("Task 5")

    def in_debt(slots: int, running: Any, gaps: Any, wanted: int) -> Any:
        reserved, internal = sum(f - s for _, s, f in running), sum(h - f for h, _, f in running)
        return lab.divide(slots, running, gaps, wanted) | {"reserved": reserved, "internal": internal}

    right = lab.replay(lab.trace(), lab.Blocks(128, 16), block_size=16)
    for wrong, words in (
        (unwritten, "unwritten() is not written yet"),
        (lambda *_: (7, 5, 2, 2, 4), "must return a dictionary, got (7, 5, 2, 2, 4)"),
        (lambda *_: {"stored": 7}, "'reserved' is missing"),
        (lambda *_: dict.fromkeys(lab.PARTS, "x"), "stored must be a number, got 'x'"),
        (lambda *_: [][0], "IndexError"),
        (in_debt, "slots, which is less than none"),
    ):
        parts = lab.account_by(wrong)
        for _ in range(2):
            assert lab.run(lab.trace(), lab.Blocks, lab.Blocks, 128, 16, divide=parts).parts == right.parts
        out = capsys.readouterr().out
        assert words in out and out.count("the library's was taken in its place") == 1
    assert lab.run(lab.trace(), lab.Blocks, lab.Blocks, 128, 16, divide=lab.account_by(lab.divide)).parts == right.parts


def test_of_what_a_run_prints_the_first_lines_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def talks(*moment: Any) -> Any:
        print("wanted", moment[3])
        return lab.divide(*moment)

    steps = len(lab.run(lab.trace(), lab.FirstFit, lab.FirstFit, lab.SLOTS, divide=lab.account_by(talks)).parts)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9 and lines[0].startswith("wanted ") and lines[-1] == f"… and {steps - 8:,} lines more"


def test_a_memory_of_the_other_kind_is_named() -> None:
    with pytest.raises(TypeError, match="gives out blocks: write replay.*block_size"):
        lab.replay(lab.trace(), lab.Blocks(128, 16))
    with pytest.raises(TypeError, match="gives out runs: write replay.* without block_size=16"):
        lab.replay(lab.trace(), lab.FirstFit(2048), block_size=16)


@pytest.mark.parametrize("seed", range(20))
def test_drawn_inputs_are_what_their_checks_are_about(seed: int) -> None:
    draw = np.random.default_rng(seed)
    models = lab.drawn_models(draw)
    assert len({model.name for model in models}) >= 3 and all(one.num_heads > one.num_kv_heads for one in models)
    for kind, rule in (("first fit", lab.FirstFit), ("buddy", lab.Buddy)):
        program = lab.drawn_program(draw, kind)
        assert program[0][1] & (program[0][1] - 1) == 0, "a power of two comes first"
        assert len(lab._drive(rule(512), kind, 512, program)) >= 4
        refused = [lab._drive(rule(512), kind, 512, program[: place + 1]) for place in range(len(program))]
        takes = [place for place, (what, _) in enumerate(program) if what == "take"]
        assert any(place and refused[place] == refused[place - 1] for place in takes), "somebody is refused"
        moments = lab.drawn_moments(draw, kind)
        assert all(sum(lab.divide(*lab._arguments(moment)).values()) == 512 for moment in moments)
        accounts = [lab.divide(*lab._arguments(moment)) for moment in moments]
        assert any(account["external"] and account["free"] for account in accounts)
        assert any(account["reserved"] and account["internal"] for account in accounts)
    moments = lab.drawn_moments(draw, "blocks")
    assert any(held < final for moment in moments for held, _, final in moment.running)
    assert any(moment.gaps and moment.gaps[0] == moment.wanted for moment in moments), "gaps that are just long enough"
    jobs = lab.drawn_jobs(draw, 30)
    for size in (4, 8):
        assert lab.replay(jobs, lab.Blocks(160 // size, size), block_size=size).preempted


class _BestFit:
    """Runs in the tightest gap: what first fit must be told from."""

    def __init__(self, slots: int) -> None:
        self.slots, self.runs = slots, dict[int, int]()

    def take(self, length: int) -> int | None:
        fitting = [(gap, start) for start, gap in self.gaps() if gap >= length]
        if not fitting:
            return None
        self.runs[min(fitting)[1]] = length
        return min(fitting)[1]

    def give(self, start: int) -> None:
        if start not in self.runs:
            raise ValueError(start)
        del self.runs[start]

    def gaps(self) -> list[tuple[int, int]]:
        return lab._free_runs(self.slots, self.runs, "first fit")


@pytest.mark.parametrize("seed", range(20))
def test_drawn_requests_tell_first_fit_from_best_fit(seed: int) -> None:
    draw, said = np.random.default_rng(seed), []
    for _ in range(3):
        program = lab.drawn_program(draw, "first fit")
        lab.check_gaps(_BestFit, "first fit", 512, program)
        try:
            lab.check_starts(_BestFit, "first fit", 512, program)
        except AssertionError as error:
            said.append(str(error))
    assert any("the tightest gap was taken; the first one" in one for one in said)


# ------------------------------------------------------------------ what a wrong answer is told


def test_what_bytes_are_told() -> None:
    heads = lambda model, width: 2 * model.num_layers * model.num_heads * model.head_dim * width  # noqa: E731
    said = told(lab.check_bytes, heads, lab.sizes("llama-3-8b"))
    assert "takes 131,072 bytes" in said and "the query heads were counted" in said
    assert "both are cached" in told(lab.check_bytes, lambda m, w: lab.bytes_per_token(m, w) / 2, lab.sizes("qwen3-8b"))
    assert "whatever `width` is" in told(
        lab.check_bytes, lambda m, w: lab.bytes_per_token(m, 2), lab.sizes("qwen3-8b"), width=1
    )
    assert "must be a number, got None" in told(lab.check_bytes, lambda m, w: None, lab.sizes("qwen3-8b"))
    llama = lab.sizes("llama-2-7b")
    for value, why in (
        (20, "the weights take room too"),
        (9, "only a part is usable"),
        (8, "the usable part was taken of what the weights leave, not of the memory; or rounded up"),
        (7.56, ""),
        (-1, "it is 0"),
    ):
        assert why in told(lab.check_fits, lambda *_, value=value: value, llama, 24e9, 2048)


def test_what_first_fit_is_told() -> None:
    program = [("take", 6), ("take", 4), ("take", 2), ("give", 0), ("take", 3)]

    said = told(lab.check_starts, _BestFit, "first fit", 16, program)
    assert "slots 6 to 9, 10 to 11 taken of 16, take(3) gave 12; it should be 0: the tightest gap was taken" in said

    class Says(lab.FirstFit):
        answer: Any = None

        def take(self, length: int) -> Any:
            super().take(length)
            return type(self).answer

    for answer, why in (
        (None, "the gap of 16 slots at 0 is long enough"),
        (12, "the row ends at 15"),
        ("x", "must be a number"),
        (0.5, "whole numbers"),
        (4, "a run begins where its gap begins, at 0"),
    ):
        Says.answer = answer
        assert why in told(lab.check_starts, Says, "first fit", 16, [("take", 6)])
    Says.answer = 0
    assert "slot 0 belongs to the run that begins at 0" in told(
        lab.check_starts, Says, "first fit", 16, [("take", 6), ("take", 4)]
    )
    assert "slot 0 belongs to the run" in told(lab.check_gaps, Says, "first fit", 16, [("take", 6), ("take", 4)])

    class Unjoined(lab.FirstFit):
        def gaps(self) -> list[tuple[int, int]]:
            return [piece for start, gap in super().gaps() for piece in ((start, 1), (start + 1, gap - 1))]

    said = told(lab.check_gaps, Unjoined, "first fit", 16, program[:3])
    assert "gaps() gave [(6, 1), (7, 9)]; it should be [(6, 10)]; the gaps at 6 and 7 touch" in said

    class Nothing(lab.FirstFit):
        def gaps(self) -> Any:
            return None

    assert "must return a list of (start, length), got None" in told(
        lab.check_gaps, Nothing, "first fit", 16, program[:3]
    )

    class Leaks(lab.FirstFit):
        def take(self, length: int) -> int | None:
            start = super().take(length)
            if start is None:
                super().take(1)
            return start

        def give(self, start: int) -> None:
            if start in self._runs:
                super().give(start)

    assert "a refusal leaves no trace" in told(lab.check_refused_take, Leaks, "first fit", 16, program)
    assert "a second give(0) must raise a ValueError" in told(lab.check_wrong_give, Leaks, "first fit", 16, program)


def test_what_buddies_are_told() -> None:
    class Takes(lab.Buddy):
        answers: list[int | None]

        def take(self, length: int) -> int | None:
            super().take(length)
            return self.answers.pop(0)

    for answers_, program, why in (
        ([2], [("take", 3)], "a run of 4 begins at a multiple of 4 (3 are rounded up to 4)"),
        ([8], [("take", 3)], "of the two halves the first is taken"),
        ([0, 8], [("take", 3), ("take", 4)], "is longer than need be; there is one of 4"),
        ([0, 0], [("take", 3), ("take", 4)], "slot 0 belongs to the run that begins at 0"),
        ([None], [("take", 3)], "the gap of 16 slots at 0 is long enough (3 are rounded up to 4)"),
    ):
        Takes.answers = list(answers_)
        assert why in told(lab.check_starts, Takes, "buddy", 16, program)

    class Lazy(lab.Buddy):
        def give(self, start: int) -> None:
            self._free.add((start, self._runs.pop(start)))

    said = told(lab.check_gaps, Lazy, "buddy", 16, [("take", 4), ("take", 4), ("give", 0), ("give", 1)])
    assert "those at 0 and 4 are buddies and both free, so they are one" in said

    class Eager(lab.Buddy):
        def gaps(self) -> list[tuple[int, int]]:
            return lab._free_runs(16, self._runs, "first fit")

    said = told(lab.check_gaps, Eager, "buddy", 16, [("take", 4)] * 4 + [("give", 1), ("give", 2)])
    assert "only if they are the halves of one" in said
    lab.check_gaps(Lazy, "buddy", 16, [("take", 3), ("take", 2)], back=False)


def test_what_blocks_are_told() -> None:
    class Wrong(lab.Blocks):
        def allocate(self, tokens: int) -> Any:
            return self.first(super().allocate(tokens))

        def first(self, table: Any) -> Any:
            return table

    def allocating(change: Any) -> type[lab.Blocks]:
        return type("Some", (Wrong,), {"first": staticmethod(change)})

    for change, why in (
        (lambda table: [*table, 5], "there are 4 blocks of 4 tokens in the table; it should be 3"),
        (lambda table: tuple(table), "a block table is a list"),
        (lambda table: None, "it needs 3 blocks of 4 and 6 are free"),
        (lambda table: [0, 0, 1], "gave a block twice"),
        (lambda table: [0, 1, 6], "blocks are numbered from 0 to 5"),
    ):
        assert why in told(lab.check_allocate, allocating(change), 6, 4, [9])
    assert "gave block 0, which another table has" in told(
        lab.check_allocate, allocating(lambda table: [0]), 6, 4, [3, 3]
    )

    class Added(lab.Blocks):
        def append(self, table: list[int], tokens: int) -> Any:
            return super().append(table, len(table) * 4 + tokens)

    assert "not those that are added" in told(lab.check_append, Added, 12, 4, 9, 18)

    class Silent(lab.Blocks):
        def append(self, table: list[int], tokens: int) -> Any:
            super().append(table, tokens)

    assert "gave None: 0 more are needed" in told(lab.check_append, Silent, 12, 4, 9, 18)

    class Keeps(lab.Blocks):
        def free(self, table: list[int]) -> None:
            super().free(table)
            table.append(0)

    assert "it is empty then" in told(lab.check_free, Keeps, 6, 4, [9, 4, 5])

    class Greedy(lab.Blocks):
        def append(self, table: list[int], tokens: int) -> bool:
            while len(table) * self._pool.block_size < tokens:
                if not super().append(table, (len(table) + 1) * self._pool.block_size):
                    return False
            return True

    assert "was refused, and left" in told(lab.check_out_of_blocks, Greedy, 6, 4, 7)

    class Drops(lab.Blocks):
        def allocate(self, tokens: int) -> list[int] | None:
            table = super().allocate(tokens)
            return super().allocate(4) and None if table is None else table

    said = told(lab.check_allocate, Drops, 6, 4, [9, 4, 1, 5])
    assert said.startswith("num_free() is 0 after allocate(5), which was refused; 5 of 6 blocks are in tables")
    assert said.endswith("so it should be 1")

    class Trusting(lab.Blocks):
        def free(self, table: list[int]) -> None:
            if id(table) in self._tables:
                super().free(table)

    assert "a second free(table)" in told(lab.check_second_free, Trusting, 10, 4, 5)

    class Partly:
        def __init__(self, num_blocks: int, block_size: int) -> None:
            self.unused, self.size = list(range(num_blocks)), block_size

        def num_free(self) -> int:
            return len(self.unused)

        def allocate(self, tokens: int) -> list[int]:
            return [self.unused.pop() for _ in range(-(-tokens // self.size))]

        def free(self, table: list[int]) -> None:
            if not table:
                raise ValueError
            for block in list(table):
                if block in self.unused:
                    raise ValueError
                self.unused.append(block)
                table.remove(block)

    assert "was refused, and yet it changed something" in told(lab.check_second_free, Partly, 10, 4, 5)


def test_what_an_account_is_told() -> None:
    def with_(**changed: float) -> Any:
        return lambda *moment: lab.divide(*moment) | changed

    hand = lab.by_hand()
    for part, value, why in (
        ("stored", 14, "the slots that are kept"),
        ("reserved", 7, "some of it will never be filled"),
        ("internal", 7, "some of it will be filled"),
        ("external", 6, "long ones can be had"),
        ("external", 1, "gaps were counted, not their slots"),
        ("free", 6, "short ones cannot be had"),
    ):
        said = told(lab.check_divide, with_(**{part: value}), hand, part)
        assert why in said and f"{part} is {value} slots" in said
    paged = lab.Moment(64, ((16, 16, 40), (8, 3, 5)), (8, 8), 8)
    negative = with_(internal=-21)
    assert "counts as less than nothing" in told(lab.check_divide, negative, paged, "internal")
    assert "every gap was counted; long ones can be had; or a gap that is just long enough" in told(
        lab.check_divide, with_(external=16), paged, "external"
    )
    assert "the parts sum to 21, and there are 20 slots" in told(lab.check_sum, with_(stored=8), hand)
    assert "'free' is missing" in told(lab.check_divide, lambda *_: dict.fromkeys(lab.PARTS[:4], 0), hand)
    assert "must return a dictionary, got None" in told(lab.check_divide, lambda *_: None, hand)
    jobs = lab.your_trace(0)
    share = lab.replay(jobs, lab.FirstFit(lab.SLOTS)).shares()["stored"]
    other = lab.replay(jobs, lab.Blocks(128, 16), block_size=16).shares()["stored"]
    assert "in percent" in told(lab.check_my_share, 100 * share, "mine", "first fit", jobs)
    assert "is 0.26 (write three digits after the point); it should be 0.2571" in told(
        lab.check_my_share, 0.26, "mine", "first fit", jobs
    )
    assert "the other allocator's" in told(lab.check_my_share, other, "mine", "first fit", jobs)
    with pytest.raises(NotImplementedError, match="mine is still None"):
        lab.check_my_share(None, "mine", "first fit", jobs)


def test_what_block_sizes_are_told() -> None:
    six = dict.fromkeys(range(1, 7), 1 / 6)
    assert "(b − 1)/2, which holds only" in told(lab.check_waste, lambda law, b: (b - 1) / 2, six, 4)
    skewed = {1: 0.7, 5: 0.3}
    equally = lambda law, b: sum(-n % b for n in law) / len(law)  # noqa: E731
    assert "every length counts the same" in told(lab.check_waste, equally, {1: 0.7, 6: 0.3}, 4)
    assert "a full last block counts as empty" in told(
        lab.check_waste, lambda law, b: sum(p * (b - n % b) for n, p in law.items()), six, 2
    )
    assert "of a mean nothing is rounded" in told(lab.check_waste, lambda law, b: 4 - 2.2, skewed, 4)
    four = dict.fromkeys(range(1, 5), 1 / 4)
    assert "the table was forgotten" in told(lab.check_best, lambda *_: 1, four, [1, 2, 4], 0.6)
    assert "the waste was forgotten" in told(lab.check_best, lambda *_: 4, four, [1, 2, 4], 0.6)
    assert "2 costs as little, and is smaller" in told(lab.check_best, lambda *_: 4, four, [4, 2, 1], 2)
    assert "none of [1, 2, 4]" in told(lab.check_best, lambda *_: 3, four, [1, 2, 4], 2)
