"""`underload generate`: continue a text, or talk to a model, and see what each answer cost."""

from __future__ import annotations

import argparse
import dataclasses
import io
import sys
from typing import TYPE_CHECKING, Any

from underload import metrics
from underload.cli import print_json
from underload.request import InvalidRequest, SamplingParams, StepRecord, Timeline, UnderloadError

if TYPE_CHECKING:
    from underload.decoder import Ceilings, Completion, Model

EPILOG = """\
examples:
  underload generate "Once upon a time"
  underload generate --model smollm2-135m --chat
  underload generate --model smollm2-135m --chat "Name three rivers." --temperature 0 --max-tokens 60
  cat notes.txt | underload generate --stop "." --seed 1 > next.txt
  underload generate "1, 2, 3," --temperature 0 --json

The text goes to standard output as it is written; the figures after it go to standard error:
  TTFT       time to first token: the whole prompt is computed before it; what is compiled at a first step is not in it
  TPOT       time per output token after the first; its inverse is the speed at which text appears
  bandwidth  bytes of weights and cache that the decode steps had to read, a second, beside what this machine can stream
"""

# A model can write any byte; those that would move a terminal's cursor or change its settings are shown, not obeyed.
_HARMLESS = {code: 0xFFFD for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}

# Options that become SamplingParams as they are: name, type, help.
SAMPLING = (
    ("min_tokens", int, "tokens before the text may end"),
    ("temperature", float, "0 takes the most probable token; larger is more varied"),
    ("top_k", int, "draw among the K most probable tokens; below 1 is off"),
    ("top_p", float, "draw among the most probable tokens that reach this much probability together"),
    ("min_p", float, "leave out tokens less probable than this times the best one"),
    ("repetition_penalty", float, "above 1: makes tokens of prompt and text less probable"),
    ("frequency_penalty", float, "above 0: the more, the more often the token was written"),
    ("presence_penalty", float, "above 0: once for a token that was written"),
    ("seed", int, "the same seed draws the same text"),
    ("logprobs", int, "with --json: list the N most probable tokens of every step"),
)


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `underload generate`."""
    parser = commands.add_parser(
        "generate",
        help="continue a text, or chat, and see the latencies",
        description="Continue a text, or with --chat talk to a model, token by token; then say how fast it was.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompt", nargs="?", help="the text to continue; standard input when left out")
    parser.add_argument("--chat", action="store_true", help="a conversation, by the checkpoint's own template")
    parser.add_argument("--system", metavar="TEXT", help="with --chat: what the model is told before the first message")
    sampling = parser.add_argument_group("how tokens are chosen, and when the text ends")
    sampling.add_argument("--max-tokens", type=int, metavar="N", help="most tokens to write (default: 128; chat 512)")
    for name, kind, text in SAMPLING:
        letter = "N" if kind is int else "X"
        sampling.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=letter, help=text)
    sampling.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; may be repeated")
    sampling.add_argument("--ignore-eos", action="store_true", help="go on past the model's own end of text")
    add_model_options(parser, default="pocket")
    parser.add_argument("--quiet", action="store_true", help="the text and nothing else")
    parser.add_argument("--json", action="store_true", help="one JSON object with text, tokens, timeline and figures")
    parser.set_defaults(run=run)


def add_model_options(
    parser: argparse.ArgumentParser, *, default: str, many_paths: bool = False, positional: bool = False
) -> None:
    """The options that say which model runs, where and how; for every command that loads one. `positional`: the model
    is named without --model."""
    group = parser.add_argument_group("the model")
    names = f"pocket, smollm2-135m, shape:NAME, a folder, a .gguf file, or a hub id (default: {default})"
    if positional:
        group.add_argument("model", nargs="?", default=default, metavar="MODEL", help=names)
    else:
        group.add_argument("--model", default=default, metavar="NAME", help=names)
    group.add_argument("--device", default="auto", help="auto, cpu, or cuda (default: auto)")
    group.add_argument("--dtype", default="auto", help="auto, float32, bfloat16, or float16 (default: auto)")
    paths = "plain (torch), fast (numba, on a CPU), or auto"
    if many_paths:
        group.add_argument("--path", default="auto", metavar="PATHS", help=f"{paths}; several, as in plain,fast")
    else:
        group.add_argument("--path", default="auto", choices=("auto", "plain", "fast"), help=f"{paths} (default: auto)")


def run(args: argparse.Namespace) -> int:
    if args.system is not None and not args.chat:
        raise UnderloadError("--system belongs to a conversation: add --chat, or put the text into the prompt")
    params = sampling_params(args)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character must not end the text
    if args.chat and not args.json and (args.prompt is None or _on_terminal(sys.stdin)):
        from underload.cli.conversation import Conversation

        talk = Conversation(load(args), params, system=args.system, figures=not args.quiet)
        warm_up(talk.model, params)
        return talk.run(first=args.prompt)
    prompt = args.prompt if args.prompt is not None else read_prompt()
    model = load(args)
    if args.chat:
        tokenizer = chat_tokenizer(model)
        system = [] if args.system is None else [{"role": "system", "content": args.system}]
        prompt = tokenizer.apply_chat_template([*system, {"role": "user", "content": prompt}])
    warm_up(model, params)
    answer = Answer(model, prompt, params, show=not args.json)
    if args.json:
        print_json(answer.as_dict())
    else:
        print()
        if not args.quiet:
            answer.print_figures()
    if answer.error is not None:
        raise UnderloadError(answer.error)
    return 0


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """What the options ask for; what they leave out keeps its default.

    Raises:
        InvalidRequest: a value outside its range.
    """
    given = {name: getattr(args, name) for name, _, _ in SAMPLING if getattr(args, name) is not None}
    longest = args.max_tokens if args.max_tokens is not None else 512 if args.chat else 128
    return SamplingParams(max_tokens=longest, stop=tuple(args.stop or ()), ignore_eos=args.ignore_eos, **given)


def read_prompt() -> str:
    """The prompt from standard input, without the line end that `echo` adds.

    Raises:
        UnderloadError: there is none, or it is not text.
    """
    if _on_terminal(sys.stdin):
        print("The text to continue; end it with Ctrl-D (Ctrl-Z and Enter on Windows):", file=sys.stderr)
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UnderloadError(f"standard input is not text in {error.encoding}: {error.reason}") from error
    if not text.strip("\r\n"):
        raise UnderloadError(
            'there is no prompt: give one, as in underload generate "Once upon a time", or pipe one in'
        )
    return text.removesuffix("\n").removesuffix("\r")


def load(args: argparse.Namespace) -> Model:
    """The model of the options, which must have words.

    Raises:
        UnderloadError: it cannot be loaded, or has no tokenizer.
    """
    from underload.decoder import load_model

    model = load_model(args.model, device=args.device, dtype=args.dtype, path=args.path)
    if model.tokenizer is None:
        raise UnderloadError(
            f"{args.model} has random weights and no tokenizer, so it has a speed (underload bench decode --model "
            f"{args.model}) but nothing to say; try --model pocket"
        )
    return model


def warm_up(model: Model, params: SamplingParams) -> None:
    """Write two tokens that nobody sees: what is compiled, read or set up at a first step stays out of the latencies.

    Raises:
        InvalidRequest: `params` that this model cannot serve.
    """
    from underload.decoder.generate import generate

    short = dataclasses.replace(params, max_tokens=2, min_tokens=0, stop=(), ignore_eos=True)
    try:
        generate(model, [[0, 0]], short)
    except InvalidRequest as error:
        raise _of_one_prompt(error) from error


def chat_tokenizer(model: Model) -> Any:
    """The tokenizer of a model that can chat.

    Raises:
        UnderloadError: its checkpoint has no chat template.
    """
    if model.tokenizer is None or model.tokenizer.chat_template is None:
        raise UnderloadError(
            f"{model.shape.name} was not trained to chat (its checkpoint has no chat template): leave out --chat, or "
            "underload model get smollm2-135m and try --model smollm2-135m"
        )
    return model.tokenizer


class Answer:
    """One text, written to standard output as it comes, and what it cost.

    Args:
        show: write the text; otherwise it is only kept.
        lead: characters to leave out at the very start (a template that ends in a space begins the answer with one).

    Attributes:
        text: what was written, also when the answer was interrupted.
        interrupted: Ctrl-C ended it.
        error: why the text broke off, when the model gave no law to draw from; None otherwise.
    """

    def __init__(
        self,
        model: Model,
        prompt: str,
        params: SamplingParams,
        *,
        show: bool,
        lead: str = "",
        interruptible: bool = False,
    ) -> None:
        from underload.decoder import generate

        self.model = model
        self.text = ""
        self.completion: Completion | None = None
        self.timeline: Timeline | None = None
        self.steps: list[StepRecord] = []
        self.interrupted = False
        self._show = show
        self._lead = lead
        try:
            made = generate(model, prompt, params, on_token=self._take)
        except KeyboardInterrupt:
            if not interruptible:
                raise
            self.interrupted = True
            return
        except InvalidRequest as error:
            raise _of_one_prompt(error) from error
        self.completion, self.steps = made[0], made.steps
        self.timeline = self.completion.timeline

    @property
    def error(self) -> str | None:
        return self.completion.error if self.completion is not None else None

    def _take(self, index: int, delta: str, token_id: int, timeline: Timeline) -> None:
        self.timeline = timeline
        if not self.text:
            delta = delta.lstrip(self._lead) if self._lead else delta
        self.text += delta
        if self._show and delta:
            print(delta.translate(_HARMLESS) if _on_terminal(sys.stdout) else delta, end="", flush=True)

    def print_figures(self) -> None:
        """The latencies, then the rates; to standard error, so that a redirected text stays a text."""
        if self.timeline is None or self.timeline.first_token is None:
            return
        print(f"\n{latency_line(self.timeline)}", file=sys.stderr, flush=True)
        if decode := decode_only(self.steps):
            print(rate_line(self.model, decode, ceilings_of(self.model)), file=sys.stderr)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; times in seconds on the clock whose 0 is a moment before the prompt came."""
        made = self.completion
        assert made is not None
        t = made.timeline
        ceilings = ceilings_of(self.model)
        rates = metrics.step_rates(decode_only(self.steps), bandwidth=ceilings.read_bandwidth, flops=ceilings.flops)
        data: dict[str, Any] = {
            "model": self.model.shape.name,
            "path": self.model.path,
            "device": str(self.model.device),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "text": self.text,
            "prompt_ids": made.prompt_ids,
            "token_ids": made.token_ids,
            "finish_reason": str(made.finish_reason),
            "error": made.error,
            "timeline": dataclasses.asdict(t),
            "metrics_s": {
                "queue_time": metrics.queue_time(t),
                "ttft": metrics.ttft(t),
                "tpot": metrics.tpot(t),
                "e2e": metrics.e2e(t),
                "longest_stall": metrics.longest_stall(t),
                "itl": metrics.itl(t),
                "stages": metrics.stages(t),
            },
            "decode_rates": dataclasses.asdict(rates) if rates else None,
            "ceilings": dataclasses.asdict(ceilings),
        }
        if any(draw.logprob is not None for draw in made.draws):
            data["logprobs"] = [{"logprob": d.logprob, "top": d.top_logprobs} for d in made.draws]
        return data


def _of_one_prompt(error: InvalidRequest) -> InvalidRequest:
    """The same, without the number of the prompt: there is one."""
    return InvalidRequest(str(error).removeprefix("prompt 0: "))


def decode_only(steps: list[StepRecord]) -> list[StepRecord]:
    """The steps that computed output tokens and no prompt: those whose time is TPOT."""
    return [step for step in steps if step.decode_tokens and not step.prefill_tokens]


def ceilings_of(model: Model) -> Ceilings:
    """What this machine could do at best; measured at the first call, a second or two."""
    from underload.decoder import ceilings

    return ceilings(model.device, model.dtype)


def latency_line(timeline: Timeline) -> str:
    """TTFT, TPOT and the speed, in one line."""
    first, each = metrics.ttft(timeline), metrics.tpot(timeline)
    assert first is not None
    parts = [f"TTFT {seconds_text(first)} for {count_text(timeline.prompt_tokens, 'prompt token')}"]
    if each:
        parts.append(f"TPOT {seconds_text(each)} ({1 / each:,.3g} tokens/s)")
    reason = f" ({timeline.finish_reason})" if timeline.finish_reason else ""
    parts.append(f"{count_text(timeline.output_tokens, 'token')} in {seconds_text(metrics.e2e(timeline))}{reason}")
    return ", ".join(parts)


def rate_line(model: Model, steps: list[StepRecord], ceilings: Ceilings) -> str:
    """The bandwidth and FLOP/s of decode steps beside the machine's ceilings, in one line."""
    rates = metrics.step_rates(steps, bandwidth=ceilings.read_bandwidth, flops=ceilings.flops)
    if rates is None or rates.bandwidth_fraction is None or rates.flops_fraction is None:
        return "no step took any time: no rate"
    dtype = str(model.dtype).removeprefix("torch.")
    line = (
        f"decode read {rates.bytes_per_second / 1e9:.3g} GB/s, {rates.bandwidth_fraction:.0%} of the "
        f"{ceilings.read_bandwidth / 1e9:.3g} GB/s that this machine streams, and used {rates.flops_fraction:.1%} of "
        f"its {ceilings.flops / 1e9:,.0f} GFLOP/s ({model.path} path, {dtype}, {model.device.type})"
    )
    if rates.bandwidth_fraction > 1:
        line += "; above 100 %: the weights stay in the processor's cache"
    return line


def seconds_text(seconds: float | None) -> str:
    """A time as one would say it."""
    if seconds is None:
        return "–"
    seconds += 0.0  # without the sign of a zero
    size = abs(seconds)
    if size >= 1:
        return f"{seconds:.3g} s" if size < 1000 else f"{seconds:,.0f} s"
    return f"{seconds * 1e3:.3g} ms" if size >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def change_text(share: float) -> str:
    """A relative difference with its sign, as in "+1.2%"; one that rounds to 0 has none."""
    said = f"{share:z.1%}"
    return said if share < 0 or said == "0.0%" else f"+{said}"


def count_text(number: int, noun: str) -> str:
    """ "1 token", "2 tokens"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _on_terminal(stream: Any) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())
