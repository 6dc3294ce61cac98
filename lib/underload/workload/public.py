"""Public traces by name: where they lie, where they come from, and what to take when they are not here.

Nothing is shipped: the traces keep their own licences, and come from their publishers. A folder is named by
UNDERLOAD_TRACES; without it, `shared/traces` beside the project is looked at.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from underload.queueing import arguments
from underload.request import UnderloadError
from underload.workload.lengths import GeometricTokens, Lengths, LognormalTokens
from underload.workload.mix import Workload
from underload.workload.planned import Planned
from underload.workload.prompts import Conversations
from underload.workload.readers import MOONCAKE_BLOCK, Record, read_trace
from underload.workload.renewal import Poisson
from underload.workload.streams import Streams
from underload.workload.trace import Trace, clock_step, relative, step_oddity
from underload.workload.varying import OnOff


@dataclass(frozen=True)
class Public:
    """A trace that others published."""

    files: tuple[str, ...]  # names that it goes by; .gz does as well
    origin: str
    about: str
    stand_in: Callable[[Streams], Trace] | None = None


def find_trace(name: str | Path) -> Path:
    """The file of a public trace (`PUBLIC` has the names), or the file itself if it is one.

    Raises:
        UnderloadError: not found; the message says where was looked, and where the trace comes from.
    """
    try:
        path = Path(os.path.expanduser(name))  # which leaves a user that is not there as it stands
        if path.is_file():
            return path
    except (OSError, TypeError, ValueError) as error:
        raise UnderloadError(f"{str(name)!r:.60} is no name of a file or a trace ({error!s:.60}); give one") from None
    public = PUBLIC.get(str(name))
    wanted = public.files if public else (path.name,)
    folders = trace_folders()
    if public or path.parent == Path("."):
        for folder in folders:
            for file in wanted:
                for candidate in (folder / file, folder / f"{file}.gz"):
                    if candidate.is_file():
                        return candidate
    looked = ", ".join(str(folder) for folder in folders)
    if public is None:
        raise UnderloadError(
            f"{str(name)!r} is neither a file nor a known trace (looked in {looked}); known are {', '.join(PUBLIC)}"
        )
    stand_in = f", or take a synthetic stand-in: synthetic:{name}" if public.stand_in else ""
    raise UnderloadError(
        f"no {' or '.join(wanted)} in {looked}; it comes from {public.origin}: put it there, or set "
        f"UNDERLOAD_TRACES to its folder{stand_in}"
    )


def trace_folders() -> list[Path]:
    """Where traces are looked for: UNDERLOAD_TRACES (folders as in PATH), else shared/traces beside the project."""
    if named := os.environ.get("UNDERLOAD_TRACES"):
        return [Path(os.path.expanduser(part)) for part in named.split(os.pathsep) if part]
    return [Path(__file__).resolve().parents[3].parent / "shared" / "traces"]


def load_trace(name: str | Path, *, skip_bad: bool = False, most: int | None = None, stand_in: bool = False) -> Record:
    """A trace by name, by file, or made here: "azure-conv", "my.csv", "synthetic:azure-conv".

    Args:
        skip_bad: leave malformed rows out, and say so.
        most: read so many rows at most.
        stand_in: where the trace is not here, take the synthetic one. It says so in its name and notes.

    Raises:
        UnderloadError: not found, or no trace.
    """
    text = str(name)
    if text.startswith("synthetic:"):
        return _first(synthetic(text.removeprefix("synthetic:")), most)
    try:
        path = find_trace(name)
    except UnderloadError:
        if stand_in and text in PUBLIC:
            return _first(synthetic(text), most)
        raise
    return read_trace(path, skip_bad=skip_bad, most=most)


def _first(trace: Trace, most: int | None) -> Trace:
    """The first `most` rows of a trace, as reading a file would have stopped there."""
    if most is None or len(trace) <= arguments.whole("most", most, least=1, most=10**12):
        return trace
    return replace(
        trace,
        instants=None if trace.instants is None else trace.instants[:most],
        prompt_tokens=trace.prompt_tokens[:most],
        output_tokens=trace.output_tokens[:most],
        failed=trace.failed[:most],
        labels=trace.labels[:most],
        segments=trace.segments and trace.segments[:most],
        sessions=trace.sessions and trace.sessions[:most],
        oddities=(*trace.oddities, f"only the first {most} rows were read"),
    )


def synthetic(name: str, seed: int = 0) -> Trace:
    """A stand-in for a public trace: drawn from a model that was set to its published rate, unevenness and lengths.

    It resembles the trace in these and in nothing else; a result from it says so.

    Raises:
        UnderloadError: no such trace, or one that cannot be made up (a measurement).
    """
    public = PUBLIC.get(name)
    if public is None or public.stand_in is None:
        able = ", ".join(key for key, other in PUBLIC.items() if other.stand_in)
        raise UnderloadError(f"there is no stand-in for {name!r}; there are some for {able}")
    trace = public.stand_in(Streams(seed).under(name))
    note = f"a synthetic stand-in for {public.about}: drawn to match its rate, unevenness and lengths, not recorded"
    return replace(
        trace,
        name=f"synthetic {name}",
        oddities=(note, *trace.oddities),
        source=f"made here; the real one: {public.origin}",
        synthetic=True,
    )


def _of(planned: list[Planned], *, step: float | None = None, failing: float = 0.0, rng: np.random.Generator) -> Trace:
    """A trace of a plan, its times cut to a coarse clock, a share of its rows made failures."""
    times = np.array([request.arrival for request in planned])
    instants, _, _ = relative(times if step is None else np.floor(times / step) * step)
    failed = rng.random(len(planned)) < failing
    found = clock_step(instants)
    shared = any(len(request.segments) > 1 for request in planned)
    oddities = [] if found is None else [step_oddity(instants, found)]
    if failed.any():
        oddities.append(f"{int(failed.sum())} rows are failures (no answer)")
    return Trace(
        "",
        instants,
        np.array([request.prompt_tokens for request in planned], np.int64),
        np.where(failed, 0, np.array([request.output_tokens for request in planned], np.int64)),
        failed,
        segments=tuple(request.segments for request in planned) if shared else None,
        sessions=tuple((request.session, request.turn) for request in planned) if shared else None,
        step=found,
        oddities=tuple(oddities),
    )


# The figures below are set to what the records show: mean rate, index of dispersion at 1, 10 and 60 s, and the median
# and 99th percentile of the lengths, from which sigma = ln(p99/p50) / 2.326.


def _azure_conv(streams: Streams) -> Trace:
    lengths = Lengths(LognormalTokens(1020, 0.60), LognormalTokens(129, 0.66))
    arrivals = OnOff(6.8, 4.26, 278.0, 278.0)
    return _of(Workload(arrivals, lengths).plan(streams, horizon=3500.0), rng=streams["failures"])


def _azure_code(streams: Streams) -> Trace:
    lengths = Lengths(LognormalTokens(1469, 0.70), LognormalTokens(13, 1.27), limit=8192, beyond="redraw")
    arrivals = OnOff(10.5, 0.0, 14.4, 44.4)
    return _of(Workload(arrivals, lengths).plan(streams, horizon=3436.0), rng=streams["failures"])


def _burstgpt(streams: Streams) -> Trace:
    lengths = Lengths(LognormalTokens(232, 0.92), LognormalTokens(203, 0.84))
    planned = Workload(Poisson(0.0604), lengths).plan(streams, horizon=3259.0)
    return _of(planned, step=1.0, failing=0.04, rng=streams["failures"])


def _mooncake(streams: Streams) -> Trace:
    lengths = Lengths(LognormalTokens(4300, 1.15), LognormalTokens(350, 0.5))
    chats = Conversations(GeometricTokens(1.6), think=60.0, system=512, limit=130_000)
    planned = Workload(Poisson(2.06), lengths, chats).plan(streams, horizon=1872.0)
    return replace(_of(planned, step=3.0, rng=streams["failures"]), block_size=MOONCAKE_BLOCK)


def _sharegpt(streams: Streams) -> Trace:
    lengths = Lengths(LognormalTokens(35, 1.89), LognormalTokens(286, 0.54), limit=8192, beyond="redraw")
    prompts, outputs = lengths.draw(streams["lengths"], 10_000)
    return Trace(
        "", None, prompts, outputs, np.zeros(len(prompts), bool), oddities=("lengths only: the record has no times",)
    )


_AZURE = "github.com/Azure/AzurePublicDataset (data/AzureLLMInferenceTrace_{}.csv, CC-BY 4.0)"
_SERVEGEN = "github.com/alibaba/ServeGen ({}, Apache-2.0)"
_VLLM = "github.com/casys-kaist/LLMServingSim (bench/examples/{}/vllm/requests.jsonl, MIT)"

#: Names of public traces.
PUBLIC: dict[str, Public] = {
    "azure-conv": Public(
        ("azure_llm_2023_conv.csv", "AzureLLMInferenceTrace_conv.csv"),
        _AZURE.format("conv"),
        "an hour of a chat service (Azure, 2023)",
        _azure_conv,
    ),
    "azure-code": Public(
        ("azure_llm_2023_code.csv", "AzureLLMInferenceTrace_code.csv"),
        _AZURE.format("code"),
        "an hour of a code-completion service (Azure, 2023)",
        _azure_code,
    ),
    "burstgpt": Public(
        ("burstgpt_1_busy54min.csv", "BurstGPT_1.csv"),
        "github.com/HPMLL/BurstGPT (data/BurstGPT_1.csv, CC-BY 4.0)",
        "GPT-3.5 and GPT-4 use on a campus, with failures (BurstGPT)",
        _burstgpt,
    ),
    "mooncake-conversation": Public(
        ("mooncake_conversation_head6000.jsonl", "conversation_trace.jsonl"),
        "github.com/kvcache-ai/Mooncake (FAST25-release/traces/conversation_trace.jsonl, Apache-2.0)",
        "chat with long contexts and prefix hashes (Mooncake)",
        _mooncake,
    ),
    "sharegpt-lengths": Public(
        ("sharegpt_10k_lengths_llama2.csv", "sharegpt_val_10k_llama2.csv"),
        "github.com/AKafakA/vidur_opt_scheduler (data/trace_data/sharegpt/sharegpt_val_10k_llama2.csv, MIT)",
        "lengths of shared ChatGPT conversations",
        _sharegpt,
    ),
    "servegen-m-small-14": Public(
        ("servegen_m-small_client14_trace.csv", "chunk-14-trace.csv"),
        _SERVEGEN.format("data/language/m-small/chunk-14-trace.csv"),
        "a very bursty client over two weeks (ServeGen)",
    ),
    "servegen-m-large-142": Public(
        ("servegen_m-large_client142_trace.csv", "chunk-142-trace.csv"),
        _SERVEGEN.format("data/language/m-large/chunk-142-trace.csv"),
        "a steady client over two weeks (ServeGen)",
    ),
    "servegen-deepseek-r1-1": Public(
        ("servegen_deepseek-r1_client1_trace.csv", "chunk-1-trace.csv"),
        _SERVEGEN.format("data/reason/deepseek-r1/chunk-1-trace.csv"),
        "a client of a reasoning model over a day (ServeGen)",
    ),
    "servegen-deepseek-r1-1-lengths": Public(
        ("servegen_deepseek-r1_client1_dataset.json", "chunk-1-dataset.json"),
        _SERVEGEN.format("data/reason/deepseek-r1/chunk-1-dataset.json"),
        "its lengths, for each six hours",
    ),
    "vllm-rtx4090-llama31-8b": Public(
        ("vllm_measured_rtx4090_llama31-8b.jsonl",),
        _VLLM.format("<hardware>/<model>"),
        "a measured overload of vLLM 0.19.0, 300 requests",
    ),
    "vllm-rtxpro6000-qwen3-32b": Public(
        ("vllm_measured_rtxpro6000_qwen3-32b.jsonl",),
        _VLLM.format("<hardware>/<model>"),
        "a measured overload of vLLM 0.19.0, 300 requests",
    ),
}
