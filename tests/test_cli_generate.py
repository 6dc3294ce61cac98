"""`underload generate`: the text and nothing but the text on one stream, the figures on the other; conversations."""

import io
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

import underload.decoder
from underload.cli import main
from underload.cli.generate import change_text, seconds_text
from underload.decoder import Ceilings, generate, load_model
from underload.request import SamplingParams

GREEDY = ("--temperature", "0", "--max-tokens", "12")


@pytest.fixture
def tiny(tiny_checkpoint, monkeypatch):
    """The options that load a tiny model, with ceilings that need no measuring."""
    monkeypatch.setattr(underload.decoder, "ceilings", lambda *_: Ceilings(1e9, 1e10, "float32", "a test", 1))
    return ["generate", "--model", str(tiny_checkpoint("llama")), "--path", "plain"]


@pytest.fixture
def model(tiny_checkpoint):
    return load_model(tiny_checkpoint("llama"), path="plain")


@pytest.fixture
def asked(monkeypatch):
    """The prompts that `generate` was given, in order."""
    prompts = []

    def recording(model, prompt, params, **options):
        prompts.append(prompt)
        return generate(model, prompt, params, **options)

    monkeypatch.setattr(underload.decoder, "generate", recording)
    return prompts


def pipe(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def expected(model, prompt, **wishes):
    return generate(model, prompt, SamplingParams(**{"temperature": 0, "max_tokens": 12, **wishes}))[0]


def test_the_text_goes_to_stdout_and_the_figures_to_stderr(tiny, model, capsys):
    assert main([*tiny, *GREEDY, "The train"]) == 0
    out, err = capsys.readouterr()
    assert out == expected(model, "The train").text + "\n"
    for word in ("TTFT", "TPOT", "tokens/s", "12 tokens", "GB/s", "plain path"):
        assert word in err


@pytest.mark.parametrize("more", [[], ["--chat"]])
def test_what_a_first_step_sets_up_is_not_in_the_figures(tiny, model, monkeypatch, more):
    events = []

    def seen(what, function):
        def recording(*args, **options):
            events.append(what)
            return function(*args, **options)

        return recording

    model.forward = seen("step", model.forward)
    monkeypatch.setattr(underload.decoder, "load_model", lambda *_, **__: model)
    monkeypatch.setattr(underload.decoder, "generate", seen("clock", generate))
    pipe(monkeypatch, "One\nTwo\n")
    assert main([*tiny, "--max-tokens", "4", "--ignore-eos", *more]) == 0
    first = events.index("clock")
    assert events[:first] == ["step", "step"]  # a prompt and a token after it
    assert events[first + 1 :].count("step") == 4 * (1 + len(more))  # and none later


@pytest.mark.parametrize(
    ("share", "says"),
    [(0.0, "0.0%"), (-0.0, "0.0%"), (-0.0004, "0.0%"), (0.0004, "0.0%"), (-0.012, "-1.2%"), (0.012, "+1.2%")],
)
def test_a_difference_that_rounds_to_0_has_no_sign(share, says):
    assert change_text(share) == says


def test_a_time_of_0_has_no_sign():
    assert seconds_text(-0.0) == seconds_text(0.0) == "0 µs"


def test_quiet_is_the_text_alone(tiny, model, capsys):
    assert main([*tiny, *GREEDY, "--quiet", "The train"]) == 0
    assert capsys.readouterr() == (expected(model, "The train").text + "\n", "")


def test_json_holds_text_tokens_and_figures_that_agree(tiny, model, capsys):
    assert main([*tiny, *GREEDY, "--json", "--logprobs", "2", "The train"]) == 0
    data = json.loads(capsys.readouterr().out)
    wanted = expected(model, "The train")
    assert (data["text"], data["token_ids"], data["finish_reason"]) == (wanted.text, wanted.token_ids, "length")
    m, t = data["metrics_s"], data["timeline"]
    assert m["e2e"] == pytest.approx(m["ttft"] + sum(m["itl"])) == pytest.approx(sum(m["stages"].values()))
    assert len(m["itl"]) == len(t["token_times"]) - 1 == 11
    assert data["decode_rates"]["bandwidth_fraction"] > 0
    assert len(data["logprobs"]) == 12
    for token, step in zip(data["token_ids"], data["logprobs"], strict=True):
        assert len(step["top"]) == 2 and step["top"][str(token)] == step["logprob"]


def test_the_prompt_may_come_through_a_pipe(tiny, model, capsys, monkeypatch, asked):
    pipe(monkeypatch, "The train\n")
    assert main([*tiny, *GREEDY, "--quiet"]) == 0
    assert asked == ["The train"]  # without the line end that echo adds
    assert capsys.readouterr().out == expected(model, "The train").text + "\n"


@pytest.mark.parametrize("piped", ["", "\n"])
def test_no_prompt_at_all_says_how_to_give_one(tiny, capsys, monkeypatch, piped):
    pipe(monkeypatch, piped)
    assert main(tiny) == 2
    assert "there is no prompt" in capsys.readouterr().err


def test_options_become_sampling_parameters(tiny, model, capsys):
    options = ["--temperature", "1.5", "--top-k", "9", "--top-p", "0.9", "--min-p", "0.01", "--seed", "3"]
    options += ["--repetition-penalty", "1.2", "--frequency-penalty", "0.1", "--presence-penalty", "0.2"]
    options += ["--max-tokens", "20", "--min-tokens", "4", "--stop", "e", "--stop", "zz", "--ignore-eos"]
    assert main([*tiny, *options, "--quiet", "The train"]) == 0
    wishes = {
        "temperature": 1.5, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "seed": 3, "repetition_penalty": 1.2,
        "frequency_penalty": 0.1, "presence_penalty": 0.2, "max_tokens": 20, "min_tokens": 4, "stop": ("e", "zz"),
        "ignore_eos": True,
    }  # fmt: skip
    assert capsys.readouterr().out == expected(model, "The train", **wishes).text + "\n"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--temperature", "-1"], "temperature"),
        (["--max-tokens", "0"], "max_tokens"),
        (["--stop", ""], "stop"),
        (["--system", "Be brief."], "--chat"),
        (["--logprobs", "1000"], "1000"),
        (["--model", "shape:bench-s"], "no tokenizer"),
    ],
)
def test_what_can_be_mended_is_one_line_and_exit_code_2(tiny, capsys, options, named):
    assert main([*tiny, *options, "The train"]) == 2
    err = capsys.readouterr().err
    assert named in err and err.count("\n") == 1 and "Traceback" not in err


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(tiny, capsys):
    assert main([*tiny, "a " * 2000]) == 2
    assert "512" in capsys.readouterr().err


def test_a_model_that_breaks_says_so_after_what_it_wrote(tiny, model, capsys, monkeypatch):
    model.weights.norm.fill_(torch.nan)
    monkeypatch.setattr(underload.decoder, "load_model", lambda *_, **__: model)
    assert main([*tiny, "The train"]) == 2
    assert "NaN" in capsys.readouterr().err


# ---- conversations ------------------------------------------------------------------------------------------------


def chat(message, *before):
    return (
        "".join(f"<|start|>{role}\n{text}<|end|>\n" for role, text in (*before, ("user", message)))
        + "<|start|>assistant\n"
    )


def test_a_message_goes_through_the_checkpoints_template(tiny, model, capsys, asked, monkeypatch):
    pipe(monkeypatch, "never read\n")
    assert main([*tiny, *GREEDY, "--json", "--chat", "--system", "Be brief.", "Hello"]) == 0
    assert asked == [chat("Hello", ("system", "Be brief."))]
    assert json.loads(capsys.readouterr().out)["text"] == expected(model, asked[0]).text


def test_a_piped_conversation_keeps_its_history(tiny, capsys, asked, monkeypatch):
    pipe(monkeypatch, "One\n\nTwo\n/help\n/reset\nThree\n/quit\nnever read\n")
    assert main([*tiny, *GREEDY, "--quiet", "--chat"]) == 0
    first = expected(load_model(tiny[2], path="plain"), chat("One")).text.lstrip(" ")
    assert asked == [chat("One"), chat("Two", ("user", "One"), ("assistant", first)), chat("Three")]
    out, err = capsys.readouterr()
    assert out.startswith(first + "\n")
    assert "Ctrl-C" in err and "forgotten" in err  # /help and /reset


def test_a_conversation_ends_with_its_input(tiny, asked, monkeypatch):
    pipe(monkeypatch, "One")  # no line end
    assert main([*tiny, *GREEDY, "--chat"]) == 0
    assert asked == [chat("One")]


def test_ctrl_c_stops_an_answer_and_not_the_conversation(tiny, capsys, monkeypatch):
    prompts = []

    def interrupted(model, prompt, params, *, on_token):
        prompts.append(prompt)
        if len(prompts) > 1:
            return generate(model, prompt, params, on_token=on_token)
        made = generate(model, prompt, params)[0]
        on_token(0, "half an", 5, made.timeline)
        raise KeyboardInterrupt

    monkeypatch.setattr(underload.decoder, "generate", interrupted)
    pipe(monkeypatch, "One\nTwo\n")
    assert main([*tiny, *GREEDY, "--chat"]) == 0
    assert prompts[1] == chat("Two", ("user", "One"), ("assistant", "half an"))
    out, err = capsys.readouterr()
    assert out.startswith("half an\n") and "(stopped)" in err


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_ctrl_c_at_a_terminal():
    import pty
    import select
    import time

    # Seconds of answer, so that the key is pressed before its end also where this process waits for its turn.
    command = ["generate", "--model", "pocket", "--path", "plain", "--chat"]
    command += ["--max-tokens", "1900", "--ignore-eos", "--seed", "1"]
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "dumb"}
    process = subprocess.Popen(
        [sys.executable, "-m", "underload.cli", *command], stdin=theirs, stdout=theirs, env=env,
        stderr=theirs, start_new_session=True, preexec_fn=_take_terminal,
    )  # fmt: skip
    os.close(theirs)
    seen = b""

    def read_until(done):
        nonlocal seen
        limit = time.monotonic() + 120
        while not done(seen):
            assert time.monotonic() < limit, seen
            if select.select([ours], [], [], 0.5)[0]:
                seen += os.read(ours, 4096)
        text, seen = seen, b""
        return text

    try:
        read_until(lambda text: text.endswith(b"> "))
        os.write(ours, b"Hello\n")
        read_until(lambda text: len(text) > 60)
        os.write(ours, b"\x03")
        answer = read_until(lambda text: text.endswith(b"> "))  # asked again: the conversation goes on
        assert b"(stopped)" in answer and b"\x1b" not in answer
        os.write(ours, b"/quit\n")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _take_terminal():
    import fcntl
    import signal
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it, and so would their children
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C reaches this process as a signal


def test_a_conversation_that_outgrows_its_context_forgets_its_oldest_part(tiny, capsys, asked, monkeypatch):
    pipe(monkeypatch, "".join(f"message {i} " + "word " * 20 + "\n" for i in range(8)))
    assert main([*tiny, "--chat", "--temperature", "0", "--max-tokens", "40", "--system", "Stay."]) == 0
    assert len(asked) == 8
    tokenizer = load_model(tiny[2], path="plain").tokenizer
    assert all(len(tokenizer.encode(prompt)) + 40 <= 512 for prompt in asked)
    assert "message 0" in asked[0] and "message 0" not in asked[-1] and "message 6" in asked[-1]
    assert all(prompt.startswith("<|start|>system\nStay.") for prompt in asked)
    assert "forgotten" in capsys.readouterr().err


def test_a_message_that_is_too_long_is_refused_alone(tiny, capsys, asked, monkeypatch):
    pipe(monkeypatch, "word " * 600 + "\nHello\n")
    assert main([*tiny, *GREEDY, "--chat"]) == 2
    assert asked[-1] == chat("Hello")
    assert "512" in capsys.readouterr().err


def test_a_model_without_a_template_cannot_chat(tiny, tmp_path, capsys):
    plain = shutil.copytree(tiny[2], tmp_path / "plain")
    (plain / "tokenizer_config.json").unlink()
    for extra in (["Hello"], []):
        assert main(["generate", "--model", str(plain), "--path", "plain", "--chat", *extra]) == 2
        assert "no chat template" in capsys.readouterr().err


def test_help_and_wrong_options_need_no_torch():
    code = "import sys; from underload.cli import build_parser; build_parser(); sys.exit('torch' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=env).returncode == 0
