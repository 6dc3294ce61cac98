"""Readers of public trace formats; `read_trace` tells them apart by what they look like.

    azure      TIMESTAMP,ContextTokens,GeneratedTokens   wall-clock times with seven decimals
    burstgpt   Timestamp,Model,Request tokens,…          whole seconds; no answer means a failure
    mooncake   {"timestamp", "input_length", "hash_ids"} ms, in steps of 3 s; one hash for each block of 512 tokens
    sharegpt   num_prefill_tokens,num_decode_tokens      lengths only
    servegen   start,rate,CV,family,shape,scale          no header; windows of one client, not requests
    servegen lengths   {start: {input_tokens: {length: share}}}
    vllm       {"input_toks", "queued_ts", …}            a measured run, on two clocks
    underload  {"arrival", "prompt_tokens", …}           what `underload workload generate` writes

Plain or gzip; UTF-8, UTF-16 with a mark, or Latin-1; any line ends. A row that cannot be read is named by its line.
"""

from __future__ import annotations

import ast
import codecs
import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from underload.queueing import arguments
from underload.request import UnderloadError
from underload.workload.lengths import EmpiricalTokens
from underload.workload.planned import Planned, Segment, numbered
from underload.workload.trace import ClientLengths, ClientWindows, Measured, Trace, clock_step, relative, step_oddity

Record = Trace | ClientWindows | ClientLengths | Measured

TOLD = 5  # malformed rows named in a message
# Characters of a line, and of a file that is one object: more is no trace, and would be read into memory all at once.
LONGEST_LINE, LONGEST_OBJECT = 1 << 24, 1 << 28
MOONCAKE_BLOCK = 512
LONGEST_ANSWER = 10_000_000  # tokens, each of which gets an instant


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """The text of a file, unpacked and decoded.

    Raises:
        UnderloadError: no such file, or one that is cut short or no text.
    """
    if "\0" in str(path):
        raise UnderloadError(f"{str(path)!r} is no name of a file; check the name")
    try:
        with path.open("rb") as raw:
            head = raw.read(4)
        packed = head[:2] == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as found:
            binary: Any = found
            start = binary.read(65536)
            binary.seek(0)
            with io.TextIOWrapper(binary, encoding=_encoding(start), errors="strict", newline="") as text:
                yield text
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise UnderloadError(f"{path} is no text or is cut short ({error}); fetch it again, or unpack it") from error
    except OSError as error:
        raise UnderloadError(f"{path} cannot be read: {error.strerror or error}; check the name") from error


def _encoding(start: bytes) -> str:
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    try:
        # a character may be cut at the end of the look ahead
        codecs.getincrementaldecoder("utf-8-sig")().decode(start, final=False)
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8-sig"


class _Rows:
    """Parses rows one by one and keeps account of those that it cannot."""

    def __init__(self, path: Path, skip_bad: bool, most: int | None) -> None:
        self.path = path
        self._skip = skip_bad
        self._most = most
        self.bad: list[tuple[int, str]] = []
        self.cut = False

    def parse(self, rows: Iterable[tuple[int, Any]], parse: Callable[[Any], Any]) -> list[Any]:
        found: list[Any] = []
        for line, row in rows:
            if self._most is not None and len(found) >= self._most:
                self.cut = True
                break
            try:
                found.append(parse(row))
            except KeyError as error:
                self.bad.append((line, f"no {error.args[0]!r}"))
            except (ValueError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
                self.bad.append((line, " ".join(str(error).split())[:80]))
            except UnderloadError as error:
                self.bad.append((line, str(error)[:80]))
        if self.bad and not self._skip:
            raise UnderloadError(
                f"{self.path.name} has {len(self.bad)} malformed rows of {len(self.bad) + len(found)}: {self._told()}; "
                "mend them, or leave them out with skip_bad=True (--skip-bad)"
            )
        if not found:
            raise UnderloadError(f"{self.path.name} has no row that can be read; check that it is the whole file")
        return found

    def _told(self) -> str:
        told = "; ".join(f"line {line}: {why}" for line, why in self.bad[:TOLD])
        return told + (f"; and {len(self.bad) - TOLD} more" if len(self.bad) > TOLD else "")

    @property
    def oddities(self) -> list[str]:
        said = []
        if self.bad:
            said.append(f"{len(self.bad)} malformed rows left out ({self._told()})")
        if self.cut:
            said.append(f"only the first {self._most} rows were read")
        return said


def read_trace(path: str | Path, *, skip_bad: bool = False, most: int | None = None) -> Record:
    """A trace, whatever its format: `Trace`, `ClientWindows`, `ClientLengths` or `Measured`.

    Args:
        skip_bad: leave malformed rows out and say so in `oddities`, instead of failing.
        most: read so many rows at most.

    Raises:
        UnderloadError: a file that is not there, of no known format, or with malformed rows; these are named by line.
    """
    path = Path(path)
    rows = _Rows(path, skip_bad, None if most is None else arguments.whole("most", most, least=1, most=10**12))
    with opened(path) as text:
        first = _first_line(text)
        text.seek(0)
        columns = [name.strip() for name in _cells(first)]
        if first.lstrip().startswith("{"):
            return _json(path, text, first, rows)
        for wanted, read in _CSV.items():
            if set(wanted) <= set(columns):
                return read(path, _table(text), rows)
        if len(columns) == 6 and _is_number(columns[0]) and _is_number(columns[1]):
            return _servegen(path, _table_rows(text), rows)
    raise UnderloadError(
        f"{path.name} is of no known format: it begins {first[:60]!r}; known are Azure, BurstGPT, Mooncake, ShareGPT "
        "lengths, ServeGen, measured vLLM runs, and what `underload workload generate` writes"
    )


def _lines(text: TextIO) -> Iterator[str]:
    """The lines, with their ends.

    Raises:
        UnderloadError: one that is too long to be a row.
    """
    number = 0
    while line := text.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE and line[-1] not in "\r\n":
            raise UnderloadError(f"line {number} is longer than {LONGEST_LINE:,} characters; this is no file of rows")
        yield line


def _numbered_lines(text: TextIO) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(_lines(text), 1) if line.strip())


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:  # a value longer than the module takes: no row of a table
        return []


def _table_rows(text: TextIO) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table, each with its line. No format here has values of several lines: where a quote that is
    never closed joins some, each is taken by itself.

    Raises:
        UnderloadError: one that is none.
    """
    lines = _lines(text)
    number, joined = 0, list[str]()

    def given() -> Iterator[str]:
        for line in lines:
            joined.append(line)
            yield line

    while True:
        try:
            for row in csv.reader(given()):
                if len(joined) > 1:
                    break
                number += 1
                joined.clear()
                yield number, row
            else:
                return
        except csv.Error as error:
            if len(joined) < 2:
                raise UnderloadError(f"line {number + 1}: {error}; mend the file") from error
        for line in joined:
            number += 1
            yield number, _cells(line)
        joined.clear()


def _first_line(text: TextIO) -> str:
    while line := text.readline(_LOOK_AHEAD):
        if line.strip():
            return line.strip()
    return ""


_LOOK_AHEAD = 1 << 20  # characters of a first line that may be one whole object


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # which Python's own numbers may have, and no table's


def _table(text: TextIO) -> Iterator[tuple[int, Mapping[str, Any]]]:
    rows = _table_rows(text)
    names = _header(rows)
    for line, row in rows:
        if row:
            yield line, dict(zip(names, [*row, *[None] * (len(names) - len(row))]))


def _header(rows: Iterable[tuple[int, list[str]]]) -> list[str]:
    """The first row that is not blank."""
    return next((named for _, row in rows if any(named := [name.strip() for name in row])), [])


def _count(value: Any) -> int:
    """A whole number from 0; text like "12.0" is one."""
    if value is None:
        raise ValueError("a value is missing")
    if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
        raise ValueError(f"{value!r:.40} is no number")
    number = float(value)
    if not 0 <= number < 2**53 or number != int(number):  # NaN fails the first
        raise ValueError(f"{value!r} is no count of tokens")
    return int(number)


def _time(value: Any) -> float:
    if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
        raise ValueError(f"{value!r:.40} is no number")
    number = float(value)
    if not -1e15 < number < 1e15:
        raise ValueError(f"{value!r} is no time")
    return number


# ---- tables ------------------------------------------------------------------------------------------------------


def _trace(
    path: Path,
    rows: _Rows,
    times: list[float] | None,
    prompts: list[int],
    outputs: list[int],
    *,
    failed: list[bool] | None = None,
    labels: list[str] | None = None,
    segments: list[tuple[Segment, ...]] | None = None,
    sessions: list[tuple[str | None, int]] | None = None,
    block_size: int | None = None,
    source: str = "",
    more: Iterable[str] = (),
) -> Trace:
    oddities = [*more, *rows.oddities]
    order: NDArray[np.int64] = np.arange(len(prompts))
    instants, step = None, None
    if times is not None:
        instants, order, moved = relative(np.array(times, float))
        if moved:
            oddities.append("rows were not in order of time and have been sorted")
        step = clock_step(instants)
        if step is not None:
            oddities.append(step_oddity(instants, step))
    fails = np.zeros(len(prompts), bool) if failed is None else np.array(failed)[order]
    if fails.any():
        oddities.append(
            f"{int(fails.sum())} rows are failures (no answer); they count as arrivals and are not replayed"
        )
    trace = Trace(
        path.name,
        instants,
        np.array(prompts, np.int64)[order],
        np.array(outputs, np.int64)[order],
        fails,
        labels=tuple(labels[row] for row in order) if labels and any(labels) else (),
        segments=tuple(segments[row] for row in order) if segments and any(segments) else None,
        sessions=tuple(sessions[row] for row in order) if sessions and any(who for who, _ in sessions) else None,
        block_size=block_size,
        step=step,
        oddities=tuple(oddities),
        source=source,
    )
    rest = int((~trace.usable & ~trace.failed).sum())
    if rest:
        more = (*trace.oddities, f"{rest} rows have no prompt or no answer and are not replayed")
        object.__setattr__(trace, "oddities", more)
    return trace


def _azure(path: Path, table: Iterable[tuple[int, Mapping[str, str]]], rows: _Rows) -> Trace:
    def parse(row: Mapping[str, str]) -> tuple[datetime, int, int]:
        # fromisoformat cuts the seventh decimal that strptime's %f refuses
        return datetime.fromisoformat(row["TIMESTAMP"]), _count(row["ContextTokens"]), _count(row["GeneratedTokens"])

    found = rows.parse(table, parse)
    start = found[0][0]
    try:
        times = [(when - start).total_seconds() for when, _, _ in found]
    except TypeError as error:
        raise UnderloadError(f"{path.name} mixes times with and without a zone; give all of them one") from error
    outputs = [row[2] for row in found]
    return _trace(
        path,
        rows,
        times,
        [row[1] for row in found],
        outputs,
        source="Azure LLM inference traces, github.com/Azure/AzurePublicDataset, CC-BY 4.0 (Splitwise, ISCA 2024)",
    )


def _burstgpt(path: Path, table: Iterable[tuple[int, Mapping[str, str]]], rows: _Rows) -> Trace:
    def parse(row: Mapping[str, str]) -> tuple[float, str, int, int]:
        return (
            _time(row["Timestamp"]),
            row["Model"].strip(),
            _count(row["Request tokens"]),
            _count(row["Response tokens"]),
        )

    found = rows.parse(table, parse)
    return _trace(
        path,
        rows,
        [row[0] for row in found],
        [row[2] for row in found],
        [row[3] for row in found],
        failed=[row[3] == 0 for row in found],
        labels=[row[1] for row in found],
        source="BurstGPT, github.com/HPMLL/BurstGPT, CC-BY 4.0 (KDD 2025)",
    )


def _sharegpt(path: Path, table: Iterable[tuple[int, Mapping[str, str]]], rows: _Rows) -> Trace:
    found = rows.parse(table, lambda row: (_count(row["num_prefill_tokens"]), _count(row["num_decode_tokens"])))
    return _trace(
        path,
        rows,
        None,
        [row[0] for row in found],
        [row[1] for row in found],
        source="lengths of ShareGPT conversations, from the traces of Vidur, MIT",
        more=("lengths only: the record has no times",),
    )


_CSV: dict[tuple[str, ...], Callable[[Path, Iterable[tuple[int, Mapping[str, str]]], _Rows], Trace]] = {
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"): _azure,
    ("Timestamp", "Model", "Request tokens", "Response tokens"): _burstgpt,
    ("num_prefill_tokens", "num_decode_tokens"): _sharegpt,
}


def _servegen(path: Path, table: Iterable[tuple[int, list[str]]], rows: _Rows) -> ClientWindows:
    def parse(row: list[str]) -> tuple[float, float, float, str, float]:
        start, rate, cv, family, shape, _ = row
        if family not in ("Gamma", "Weibull", ""):
            raise ValueError(f"{family!r} is no family of ServeGen")
        values = float(start), float(rate), float(cv), family, float(shape)
        if not (values[0] >= 0 and 0 <= values[1] < np.inf and 0 <= values[2] < np.inf):
            raise ValueError("a start, a rate and a CV are at least 0")
        return values

    found = rows.parse(((line, row) for line, row in table if row), parse)
    starts = np.array([row[0] for row in found])
    widths = np.diff(starts)
    width = float(widths[0]) if len(widths) else 600.0
    if len(widths) and (width <= 0 or not np.allclose(widths, width)):
        raise UnderloadError(f"the windows of {path.name} have unlike widths; they should follow each other evenly")
    return ClientWindows(
        path.name,
        width,
        np.array([row[1] for row in found]),
        np.array([row[2] for row in found]),
        tuple(row[3] for row in found),
        np.array([row[4] for row in found]),
        source="ServeGen, github.com/alibaba/ServeGen, Apache-2.0 (arXiv 2505.09999)",
    )


# ---- lines of JSON -----------------------------------------------------------------------------------------------


def _json(path: Path, text: TextIO, first: str, rows: _Rows) -> Record:
    try:
        head = json.loads(first)
    except (ValueError, RecursionError):
        head = None  # an object over several lines, or a broken first row: told apart below
        if first != "{":
            head = _first_object(text)
    if isinstance(head, dict) and not any(isinstance(value, dict) for value in head.values()):
        for wanted, read in _JSON.items():
            if set(wanted) <= set(head):
                return read(path, _numbered_lines(text), rows)
    elif first == "{" or isinstance(head, dict) or len(first) > _LOOK_AHEAD // 2:  # (cut off where looking ended)
        return _servegen_lengths(path, text)
    raise UnderloadError(
        f"{path.name} is JSON of no known format: it begins {first[:60]!r}; known are Mooncake, measured vLLM runs, "
        "lengths of ServeGen, and what `underload workload generate` writes"
    )


def _first_object(text: TextIO) -> dict[str, Any] | None:
    """The first line, of some, that is an object by itself: what the format is told from where the first is broken."""
    found = None
    for line in islice(_lines(text), 100):
        with suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict):
                found = row
                break
    text.seek(0)
    return found


def _mooncake(path: Path, lines: Iterable[tuple[int, str]], rows: _Rows) -> Trace:
    def parse(line: str) -> tuple[float, int, int, tuple[Segment, ...]]:
        row = json.loads(line)
        prompt, output = _count(row["input_length"]), _count(row["output_length"])
        hashes = row["hash_ids"]
        if not isinstance(hashes, list) or not all(type(name) is int for name in hashes):
            raise ValueError(f"hash_ids are whole numbers in a list, got {hashes!r:.40}")
        if len(hashes) != -(-prompt // MOONCAKE_BLOCK):
            raise ValueError(f"{len(hashes)} hashes for {prompt} tokens in blocks of {MOONCAKE_BLOCK}")
        full, rest = divmod(prompt, MOONCAKE_BLOCK)
        sizes = [MOONCAKE_BLOCK] * full + [rest] * (rest > 0)
        return (
            _time(row["timestamp"]) / 1000,
            prompt,
            output,
            tuple(Segment(f"b{name}", size) for name, size in zip(hashes, sizes)),
        )

    found = rows.parse(lines, parse)
    return _trace(
        path,
        rows,
        [row[0] for row in found],
        [row[1] for row in found],
        [row[2] for row in found],
        segments=[row[3] for row in found],
        block_size=MOONCAKE_BLOCK,
        source="Mooncake, github.com/kvcache-ai/Mooncake, Apache-2.0 (FAST 2025)",
    )


def _vllm(path: Path, lines: Iterable[tuple[int, str]], rows: _Rows) -> Measured:
    names = ("arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")

    def parse(line: str) -> tuple[list[float], int, int]:
        row = json.loads(line)
        times = [_time(row[name]) for name in names]
        if not times[1] <= times[2] <= times[3] <= times[4]:
            raise ValueError("its times run backwards")
        prompt, output = _count(row["input_toks"]), _count(row["output_toks"])
        if not prompt or not output:
            raise ValueError("no prompt or no answer")
        if output > LONGEST_ANSWER:
            raise ValueError(f"an answer of {output:,} tokens; {LONGEST_ANSWER:,} at most can have been measured")
        return times, prompt, output

    found = sorted(rows.parse(lines, parse), key=lambda row: row[0][0])
    arrival, queued, scheduled, first, last = np.array([row[0] for row in found]).T
    # Two clocks. The fastest way from client to engine is taken for 0.
    offset = float((queued - arrival).min())
    zero = float(arrival[0])
    # The subtraction of two large numbers leaves rounding; no event may come before its arrival.
    queued, scheduled, first, last = (
        np.maximum(stamp - offset - zero, arrival - zero) for stamp in (queued, scheduled, first, last)
    )
    return Measured(
        path.name,
        arrival - zero,
        queued,
        scheduled,
        first,
        last,
        np.array([row[1] for row in found], np.int64),
        np.array([row[2] for row in found], np.int64),
        source="measured runs of vLLM, github.com/casys-kaist/LLMServingSim, MIT",
    )


def _own(path: Path, lines: Iterable[tuple[int, str]], rows: _Rows) -> Trace:
    found: list[Planned] = rows.parse(lines, lambda line: Planned.of(json.loads(line), 0))
    lost = {
        "think times": any(row.think is not None for row in found),
        "priorities": any(row.priority for row in found),
        "deadlines": any(row.deadline is not None for row in found),
    }
    more = [f"a trace has no {' and no '.join(name for name, any_ in lost.items() if any_)}; read_plan keeps them"]
    return _trace(
        path,
        rows,
        [row.arrival for row in found],
        [row.prompt_tokens for row in found],
        [row.output_tokens for row in found],
        labels=[row.tenant for row in found],
        segments=[row.segments for row in found],
        sessions=[(row.session, row.turn) for row in found],
        source="requests in the format that underload workload generate writes",
        more=more if any(lost.values()) else (),
    )


_JSON: dict[tuple[str, ...], Callable[[Path, Iterable[tuple[int, str]], _Rows], Record]] = {
    ("timestamp", "input_length", "output_length", "hash_ids"): _mooncake,
    ("input_toks", "output_toks", "arrival_time", "queued_ts"): _vllm,
    ("arrival", "prompt_tokens", "output_tokens"): _own,
}


def _servegen_lengths(path: Path, text: TextIO) -> ClientLengths:
    def law(value: Any) -> EmpiricalTokens | None:
        # the file holds its maps as text, in Python's spelling
        shares = ast.literal_eval(value) if isinstance(value, str) else value
        if not isinstance(shares, Mapping):
            raise ValueError(f"{shares!r:.40} is no map of lengths to shares")
        shares = {int(length): float(share) for length, share in shares.items() if int(length) >= 1}
        return EmpiricalTokens(list(shares), list(shares.values())) if any(shares.values()) else None

    try:
        whole = text.read(LONGEST_OBJECT)
        if len(whole) == LONGEST_OBJECT:
            raise ValueError(f"it is longer than {LONGEST_OBJECT:,} characters")
        stretches = sorted(json.loads(whole).items(), key=lambda item: float(item[0]))
        return ClientLengths(
            path.name,
            tuple(float(start) for start, _ in stretches),
            tuple(law(maps["input_tokens"]) for _, maps in stretches),
            tuple(law(maps["output_tokens"]) for _, maps in stretches),
            source="ServeGen, github.com/alibaba/ServeGen, Apache-2.0 (arXiv 2505.09999)",
        )
    except (
        ValueError, TypeError, AttributeError, KeyError, SyntaxError, RecursionError, MemoryError, UnderloadError
    ) as error:  # fmt: skip
        raise UnderloadError(
            f"{path.name} is no ServeGen lengths file ({' '.join(str(error).split())[:80]}); it should map starts to "
            "input_tokens and output_tokens"
        ) from error


def read_plan(path: str | Path) -> list[Planned]:
    """A plan as `write_plan` wrote it, think times and all (a `Trace` of the same file keeps no think times).

    Raises:
        UnderloadError: a file that cannot be read, or a malformed row, named by line.
    """
    path = Path(path)
    rows = _Rows(path, False, None)
    with opened(path) as text:
        return numbered(rows.parse(_numbered_lines(text), lambda line: Planned.of(json.loads(line), 0)))


def read_columns(path: str | Path) -> dict[str, NDArray[Any]]:
    """A table with a header, column by column: numbers where all are, text elsewhere. For series beside a trace.

    Raises:
        UnderloadError: a file that cannot be read, or rows of unlike length, named by line.
    """
    with opened(Path(path)) as text:
        reader = _table_rows(text)
        header = _header(reader)
        if len(set(header)) < len(header):
            raise UnderloadError(f"{Path(path).name} has two columns of one name: {', '.join(header):.80}; rename one")
        table = []
        for line, row in reader:
            if row and len(row) != len(header):
                raise UnderloadError(
                    f"{Path(path).name}, line {line}: {len(row)} values under {len(header)} columns; mend it"
                )
            if row:
                table.append(row)
    columns: dict[str, NDArray[Any]] = {}
    for place, name in enumerate(header):
        values = [row[place] for row in table]
        columns[name] = np.array([float(value) for value in values] if all(map(_is_number, values)) else values)
    return columns
