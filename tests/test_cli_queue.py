"""`underload queue KIND`: a table a person reads, JSON a program reads, and one line for what can be mended."""

import json
import os
import shlex
import subprocess
import sys

import pytest

from underload import queueing
from underload.cli import main
from underload.cli.queue import KINDS, percentiles, time
from underload.request import UnderloadError


def run(capsys, words: str) -> str:
    assert main(["queue", *shlex.split(words)]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_in_each_help_runs_as_a_table_and_as_json(kind, capsys):
    table = run(capsys, f"{kind} {KINDS[kind].example}")
    assert len(table.splitlines()) > 5 and all(line.strip() == line for line in table.splitlines()[:1])
    made = json.loads(run(capsys, f"{kind} {KINDS[kind].example} --json"))
    assert made
    with pytest.raises(SystemExit) as done:
        main(["queue", kind, "--help"])
    assert done.value.code == 0
    assert f"underload queue {kind} {KINDS[kind].example}" in capsys.readouterr().out


def test_the_command_of_the_plan(capsys):
    words = "mmc --arrival-rate 8 --service-rate 1 --servers 10"
    made = json.loads(run(capsys, f"{words} --json"))
    found = queueing.mmc(8, 1, servers=10)
    assert made["mean_wait"] == found.mean_wait == pytest.approx(0.20459007539822177, rel=1e-9)
    assert made["sojourn_quantiles"]["99"] == found.sojourn_quantile(99)
    table = run(capsys, words)
    assert "M/M/10" in table and "204.59 ms" in table and "time in system p99" in table


def test_times_have_units_and_percentiles_are_chosen(capsys):
    made = json.loads(run(capsys, "md1 --arrival-rate 8 --mean-service 100ms --percentile 90,p99.9 --json"))
    assert made["mean_service"] == 0.1 and set(made["wait_quantiles"]) == {"90", "99.9"}
    assert time("300us", "x") == pytest.approx(3e-4) and time("1.5s", "x") == 1.5 and time("2", "x") == 2
    assert percentiles("50, p99.9") == [50, 99.9]


def test_an_unstable_queue_says_so(capsys):
    table = run(capsys, "mm1 --arrival-rate 2 --service-rate 1")
    assert "unstable" in table and "infinite" in table
    made = json.loads(run(capsys, "mm1 --arrival-rate 2 --service-rate 1 --json"))
    assert made["stable"] is False and made["mean_wait"] is None and made["load"] == 2


def test_what_a_formula_does_not_tell_is_null_or_left_out(capsys):
    words = "mg1 --arrival-rate 8 --mean-service 100ms --scv 4"
    assert "wait p99" not in run(capsys, words)
    assert json.loads(run(capsys, f"{words} --json"))["wait_quantiles"]["99"] is None
    both = json.loads(run(capsys, f"gg1 {KINDS['gg1'].example} --json"))
    assert both["bound"]["mean_wait"] > both["approximation"]["mean_wait"] and both["bound"]["prob_wait"] is None
    assert "Kingman" in run(capsys, f"gg1 {KINDS['gg1'].example}")


def test_measured_times_come_from_a_file(tmp_path, capsys):
    values = tmp_path / "times.txt"
    values.write_text("0.1\n0.2\n300ms\n")
    made = json.loads(run(capsys, f"max --n 2 --values {values} --json"))
    assert made["mean"] == pytest.approx((0.1 + 3 * 0.2 + 5 * 0.3) / 9)
    assert made["mean_of_one"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    "law",
    [
        "deterministic",
        "exponential",
        "erlang --phases 3",
        "hyperexponential --scv 4",
        "lognormal --scv 2",
        "pareto --shape 2.5",
    ],
)
def test_every_law_has_the_mean_it_was_given(law, capsys):
    made = json.loads(run(capsys, f"max --n 1 --law {law} --mean 20ms --json"))
    assert made["mean_of_one"] == pytest.approx(0.02) and made["mean"] == pytest.approx(0.02, rel=1e-7)


def test_linear_finds_the_batch_and_the_rate(capsys):
    line = "--overhead 20ms --per-item 1ms"
    alone = json.loads(run(capsys, f"linear {line} --json"))
    assert alone["knee"] == 20 and alone["most"] == 1000 and "load" not in alone
    made = json.loads(run(capsys, f"linear {line} --arrival-rate 100 --rule full --json"))
    assert made["best_batch"] == 4 and made["smallest_stable_batch"] == 3
    made = json.loads(run(capsys, f"linear {line} --batch-size 16 --slo 100ms --json"))
    assert made["capacity"] == pytest.approx(435.2518383860588, rel=1e-6)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("mm1 --arrival-rate x --service-rate 1", "--arrival-rate takes a number, got 'x'"),
        ("mm1 --arrival-rate -1 --service-rate 1", "arrival_rate must be at least 0"),
        ("mmc --arrival-rate 1 --service-rate 1 --servers 0", "servers must be a whole number from 1"),
        ("md1 --arrival-rate 1 --mean-service 10m", "--mean-service takes a time"),
        ("mm1 --arrival-rate 1 --service-rate 2 --percentile 100", "--percentile lies from 0"),
        ("mg1 --arrival-rate 1", "mg1 needs the service"),
        ("mg1 --arrival-rate 1 --law exponential --mean 1s --mean-service 1s", "--mean-service goes with --scv"),
        ("mg1 --arrival-rate 1 --law lognormal --mean 1s", "--law lognormal needs --scv"),
        ("max --n 3", "name one law"),
        ("max --n 3 --values nowhere.txt", "nowhere.txt"),
        ("hedged --law exponential --mean 1s --after soon", "--after takes a time"),
        ("linear --overhead 20ms --per-item 1ms --slo 1s", "--slo needs --batch-size"),
        ("linear --overhead 20ms --per-item 1ms --arrival-rate 2000", "no batch size keeps up"),
    ],
)
def test_what_can_be_mended_is_one_line_and_exit_code_2(words, named, capsys):
    assert main(["queue", *shlex.split(words)]) == 2
    err = capsys.readouterr().err
    assert named in err and err.count("\n") == 1


def test_text_that_is_no_time_is_refused():
    for text in ("", "ms", "1 hour", "--"):
        with pytest.raises(UnderloadError):
            time(text, "--timeout")


@pytest.mark.parametrize("size", ["nan", "inf", "1e400", "2.7", "0", "-1", "1e9"])
def test_a_batch_size_is_a_whole_number_in_every_kind(size, capsys):
    for kind in ("linear --overhead 20ms --per-item 1ms", "bulk --arrival-rate 1 --overhead 20ms"):
        assert main(["queue", *shlex.split(f"{kind} --batch-size={size}")]) == 2
        assert "batch_size must be a" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "mg1 --arrival-rate 1 --law exponential --mean 100ms --scv 4",
        "mg1 --arrival-rate 1 --mean-service 100ms --scv 4 --phases 3",
        "max --n 3 --law lognormal --mean 1s --scv 2 --shape 3",
        "max --n 3 --values nowhere.txt --mean 5s",
    ],
)
def test_an_option_without_effect_is_refused(words, capsys):
    assert main(["queue", *shlex.split(words)]) == 2
    assert "leave it out" in capsys.readouterr().err


def test_percentiles_keep_their_digits(capsys):
    made = json.loads(run(capsys, "mm1 --arrival-rate 1 --service-rate 2 --percentile 99.99999999 --json"))
    assert set(made["wait_quantiles"]) == {"99.99999999"}
    assert "p99.99999999" in run(capsys, "mm1 --arrival-rate 1 --service-rate 2 --percentile 99.99999999")


@pytest.mark.parametrize("redirection", [">&-", "| head -1", ""])
def test_output_that_is_closed_or_knows_no_greek_is_no_failure(redirection):
    command = f"{sys.executable} -m underload queue md1 --arrival-rate 1 --mean-service 30us {redirection}"
    done = subprocess.run(
        ["bash", "-c", command], env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, text=True
    )
    assert done.returncode == 0 and not done.stderr
