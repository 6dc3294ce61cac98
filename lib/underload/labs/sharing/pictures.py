"""The pictures of the lab."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from underload import figures
from underload.labs.sharing.pool import HEAD, OTHER, Held, Pool, Trial
from underload.labs.sharing.serving import Served


def draw_names(
    prompts: Mapping[str, tuple[Sequence[str], Sequence[Any]]], *, name: str, caption: str
) -> figures.Picture:
    """Blocks of some prompts under their names: (what is in each block, its name) by prompt; equal names look alike."""
    counts: dict[Any, int] = defaultdict(int)
    prompts = {words: (texts, list(names)) for words, (texts, names) in prompts.items()}
    for _, names in prompts.values():
        for one in names:
            counts[one] += 1

    def short(one: Any) -> str:
        return (one.hex() if isinstance(one, bytes) else str(one))[:6]

    def draw(pen: figures.Pen) -> None:
        y = 22.0
        for words, (texts, names) in prompts.items():
            pen.text(4, y, words, bold=True)
            step = (pen.width - 8) / max(len(names), 1)
            for place, (text, one) in enumerate(zip(texts, names)):
                look = "kv" if counts[one] > 1 else "quiet"
                room = max(3, int(step / 7.5))
                body = text if len(text) <= room else text[: room - 1] + "…"
                pen.box(4 + place * step, y + 8, step - 4, 42, f"{body}\n{short(one)}", look=look, small=True)
            y += 82

    shared = sum(count > 1 for count in counts.values())
    alt = f"The blocks of {len(prompts)} prompts with the first digits of their names; {shared} occur more than once."
    data: dict[str, list[Any]] = {"prompt": [], "block": [], "name": []}
    for words, (texts, names) in prompts.items():
        for text, one in zip(texts, names):
            data["prompt"].append(words)
            data["block"].append(text)
            data["name"].append(short(one))
    return figures.drawing(alt, draw, caption=caption, name=name, data=data)


def history(pool: Callable[[int, int], Any]) -> list[tuple[str, tuple[int, ...], list[int]]]:
    """A small day in a pool of eight blocks: (call, counts, holders of each block) after each call."""
    trial = Trial(pool, 8, 4)
    rows: list[tuple[str, tuple[int, ...], list[int]]] = []

    def note(call: str) -> None:
        states = [
            trial.holders(block) if trial.holders(block) else -1 if block in trial.cached else 0 for block in range(8)
        ]
        rows.append((call, trial.counts(), states))

    def come(who: str, text: Sequence[int]) -> Held:
        held = trial.admit(who, text)
        assert held is not None, f"{who} does not fit"
        trial.publish(held)
        note(f"{who}: {len(text)} tokens")
        return held

    one = come("A", HEAD[:14])
    two = come("B", HEAD[:8] + OTHER[:5])
    trial.drop(one)
    note("A ends")
    trial.drop(two)
    note("B ends")
    three = come("C", HEAD[:14])
    four = come("D", OTHER[50:65])
    trial.drop(four)
    note("D ends")
    trial.drop(three)
    note("C ends")
    return rows


def draw_history(rows: Sequence[tuple[str, tuple[int, ...], list[int]]], *, name: str, caption: str) -> figures.Picture:
    """The blocks of a pool after each call: how many hold them, cached, or free."""

    def draw(pen: figures.Pen) -> None:
        left, size = (108.0, 28.0) if pen.narrow else (180.0, 44.0)
        for line, (call, _, states) in enumerate(rows):
            y = 8 + line * 32
            pen.text(4, y + 19, call, size="small")
            for block, state in enumerate(states):
                text = str(state) if state > 0 else "c" if state else ""
                look = "kv" if state > 0 else "waste" if state else "free"
                pen.box(
                    left + block * size, y, size - 3, 26, text, look=look, dashed=not state, solid=state > 0, small=True
                )
        pen.text(
            4, 8 + len(rows) * 32 + 14, "a number: so many hold it; c: cached; dashed: free", size="small", look="quiet"
        )

    alt = "The eight blocks of a pool after each call: " + "; ".join(
        f"{call}: {counts[0]} free, {counts[1]} cached, {counts[2]} used" for call, counts, _ in rows
    )
    data = {
        "call": [call for call, _, _ in rows],
        "free": [counts[0] for _, counts, _ in rows],
        "cached": [counts[1] for _, counts, _ in rows],
        "used": [counts[2] for _, counts, _ in rows],
    }
    return figures.drawing(alt + ".", draw, caption=caption, name=name, data=data)


def held_by_samples(
    fork: Callable[..., Any], write: Callable[..., Any], samples: int, prompt: int, answer: int, size: int = 16
) -> list[int]:
    """Blocks used after each token of `samples` answers to one prompt that fork from it."""
    pool = Pool(samples * -(-(prompt + answer) // size) + samples, size)
    first, _ = pool.allocate([], prompt)
    lists = [first, *(list(fork(pool, first)) for _ in range(samples - 1))]
    used = []
    for position in range(prompt, prompt + answer):
        for blocks in lists:
            pool.append(blocks, position + 1)
            write(pool, blocks, position, position + 1)
        used.append(pool.counts()[2])
    return used


def draw_samples(used: Mapping[str, Sequence[int]], *, name: str, caption: str) -> figures.Picture:
    """Blocks used against tokens of the answers."""
    fig, ax = figures.axes(xlabel="tokens of each answer", ylabel="blocks used")
    for place, (words, values) in enumerate(used.items()):
        kind = "simulation" if not place else "quiet"
        more: dict[str, Any] = {"marker": "", "linestyle": "-" if not place else "--"}
        ax.plot(range(1, len(values) + 1), values, **figures.look(kind, **more), label=words)
    ax.set_ylim(bottom=0)
    ax.legend()
    alt = "Blocks used while several answers to one prompt grow: " + "; ".join(
        f"{words} from {values[0]} to {values[-1]}" for words, values in used.items()
    )
    longest = max(map(len, used.values()))
    every = range(0, longest, max(1, longest // 60))
    data = {"tokens": [at + 1 for at in every]} | {
        words: [values[at] for at in every] for words, values in used.items()
    }
    return figures.show(fig, alt=alt + ".", caption=caption, name=name, data=data)


def draw_break_even(
    again: Callable[[int], float], copied: Callable[[int], float], at: int | None, most: int, *, name: str, caption: str
) -> figures.Picture:
    """Both ways of coming back, against length."""
    lengths = sorted({*range(1, most + 1, max(1, most // 120)), most, *([at] if at else [])})
    fig, ax = figures.axes(xlabel="tokens of the sequence", ylabel="cost", yunit="ms")
    looks = {"recompute": figures.look("prediction", marker=""), "swap": figures.look("quiet", marker="", variant=1)}
    rows = {
        "recompute": [1e3 * float(again(tokens)) for tokens in lengths],
        "swap": [1e3 * float(copied(tokens)) for tokens in lengths],
    }
    for words, values in rows.items():
        ax.plot(lengths, values, **looks[words], label=words)
    if at:
        ax.plot([at], [1e3 * float(again(at))], **figures.look("choice"), label=f"from {at:,} tokens on")
    ax.set_ylim(bottom=0)
    ax.legend()
    alt = (
        f"The cost of coming back against length, up to {most:,} tokens: recompute reaches {rows['recompute'][-1]:.3g} "
        f"ms and swap {rows['swap'][-1]:.3g} ms; "
        + (f"from {at:,} tokens on swap is quicker." if at else "there is no length from which on swap is quicker.")
    )
    data = {"tokens": lengths} | {f"{words} (ms)": [round(v, 4) for v in values] for words, values in rows.items()}
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_blocks(served: Served, *, name: str, caption: str) -> figures.Picture:
    """Blocks used, cached and free against time, from the engine's records."""
    steps = served.engine.steps
    times = [step.start for step in steps]
    fig, ax = figures.axes(xlabel="time", xunit="s", ylabel="blocks")
    rows = {
        "used": [step.blocks_used for step in steps],
        "used or cached": [step.blocks_used + step.blocks_cached for step in steps],
    }
    ax.plot(times, rows["used"], **figures.look("kv", marker=""), label="used")
    ax.plot(times, rows["used or cached"], **figures.look("waste", marker="", variant=1), label="used or cached")
    ax.axhline(served.pool.num_blocks, **figures.look("limit", marker=""), label="all")
    ax.set_ylim(bottom=0)
    ax.legend()
    alt = (
        f"Blocks of a pool of {served.pool.num_blocks} over {times[-1]:.1f} s: at most {max(rows['used'])} in use, and "
        f"{rows['used or cached'][-1]} used or cached at the end; {served.preemptions} preemptions."
    )
    every = range(0, len(times), max(1, len(times) // 100))
    data = {"time (s)": [round(times[at], 3) for at in every]} | {
        words: [values[at] for at in every] for words, values in rows.items()
    }
    return figures.show(fig, alt=alt, caption=caption, name=name, data=data)


def draw_policies(
    sizes: Sequence[int], rows: Mapping[str, Sequence[float]], *, name: str, caption: str
) -> figures.Picture:
    """The share of blocks found against the size of the cache, by policy."""
    looks = ("simulation", "quiet", "prediction")
    fig, ax = figures.axes(xlabel="blocks of the cache", ylabel="blocks found", yunit="%")
    for place, (words, values) in enumerate(rows.items()):
        more: dict[str, Any] = {} if not place else {"marker": "", "linestyle": ("-", "--", ":")[place % 3]}
        ax.plot(sizes, [100 * value for value in values], **figures.look(looks[place % 3], **more), label=words)
    ax.set_ylim(bottom=0)
    ax.legend()
    alt = "The share of blocks found against the size of the cache: " + "; ".join(
        f"{words} {values[0]:.0%} with {sizes[0]} blocks and {values[-1]:.0%} with {sizes[-1]}"
        for words, values in rows.items()
    )
    data = {"blocks": list(sizes)} | {words: [round(value, 4) for value in values] for words, values in rows.items()}
    return figures.show(fig, alt=alt + ".", caption=caption, name=name, data=data)
