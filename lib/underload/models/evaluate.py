"""What the shipped weights can do, measured:  python -m underload.models.evaluate

Reads the folders as any reader would (float16 weights, the library's decoder), asks them held-out questions, marks the
answers with the checkers of `stories` and `notes`, and writes `evaluation.json` beside the weights. The model cards are
made from that file and from nothing else.
"""

import argparse
import hashlib
import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from underload.decoder import Model, generate, load_model
from underload.models import network, notes
from underload.models.corpus import END_OF_TEXT, MIX, Turn, ask_line, ask_story, ask_term, chat, document, documents
from underload.models.network import POCKET, POCKET_DRAFT, Parameters
from underload.models.stories import check
from underload.request import SamplingParams
from underload.shapes import ModelShape

HERE = Path(__file__).parent
HELD_OUT_SEED = 1_000_003  # a seed no training run uses


@dataclass
class Loaded:
    """A checkpoint twice: as the decoder's model, and as parameters for whole-sequence passes."""

    shape: ModelShape
    model: Model
    parameters: Parameters

    @classmethod
    def read(cls, folder: Path, shape: ModelShape) -> "Loaded":
        stored = load_file(folder / "model.safetensors")
        parameters = {name: tensor.float() for name, tensor in stored.items()}
        return cls(shape, load_model(str(folder), device="cpu", path="plain"), parameters)

    def encode(self, text: str) -> list[int]:
        assert self.model.tokenizer is not None
        return self.model.tokenizer.encode(text)

    @torch.no_grad()
    def log_probabilities(self, ids: Sequence[int]) -> Tensor:
        """Log-probability of every token at every position [tokens, vocab]."""
        return F.log_softmax(network.logits(self.shape, self.parameters, torch.tensor([list(ids)]))[0], dim=-1)

    def answers(self, prompts: Sequence[str], max_tokens: int, temperature: float = 0.0) -> list[str]:
        """The text after each prompt, in batches of 64; prompt i is sampled with seed i."""
        texts: list[str] = []
        for start in range(0, len(prompts), 64):
            part = prompts[start : start + 64]
            params = [
                SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=start + i) for i in range(len(part))
            ]
            texts += [completion.text for completion in generate(self.model, list(part), params)]
        return texts


def fingerprint(path: Path) -> str:
    """SHA-256 of a file: ties an evaluation to the weights it read."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---- how well it predicts ----


def losses(loaded: Loaded, count: int) -> dict[str, Any]:
    """Held-out loss in nats a token and bits a byte, by kind of document."""
    end = loaded.encode(END_OF_TEXT)
    nats: dict[str, float] = {}
    tokens: dict[str, int] = {}
    octets: dict[str, int] = {}
    for kind, text in itertools.islice(documents(HELD_OUT_SEED), count):
        ids = end + loaded.encode(text) + end
        rows = loaded.log_probabilities(ids[:-1])
        loss = -rows.gather(1, torch.tensor(ids[1:])[:, None]).sum().item()
        for key in (kind, "all"):
            nats[key] = nats.get(key, 0.0) + loss
            tokens[key] = tokens.get(key, 0) + len(ids) - 1
            octets[key] = octets.get(key, 0) + len(text.encode()) + 1
    return {
        key: {
            "nats_per_token": round(nats[key] / tokens[key], 4),
            "bits_per_byte": round(nats[key] / octets[key] / 0.6931471805599453, 4),
            "tokens": tokens[key],
        }
        for key in ("all", *MIX)
    }


def loss_by_position(loaded: Loaded, rows: int) -> dict[str, float]:
    """Held-out loss of long rows of documents, by where in the row: does the far end still work?"""
    stream = documents(HELD_OUT_SEED + 1)
    end = loaded.encode(END_OF_TEXT)
    edges = (0, 256, 1024, loaded.shape.max_positions)
    sums = [0.0] * (len(edges) - 1)
    for _ in range(rows):
        ids: list[int] = list(end)
        while len(ids) <= edges[-1]:
            ids += loaded.encode(next(stream)[1]) + end
        ids = ids[: edges[-1] + 1]
        loss = -loaded.log_probabilities(ids[:-1]).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        for i, (low, high) in enumerate(itertools.pairwise(edges)):
            sums[i] += loss[low:high].mean().item() / rows
    return {
        f"{low}-{high}": round(value, 4) for (low, high), value in zip(itertools.pairwise(edges), sums, strict=True)
    }


# ---- how right it is ----


def lines_right(loaded: Loaded, count: int, only: str | None = None) -> dict[str, Any]:
    """Share of lines answered exactly right in a chat, greedily; held-out ones, but for the tables of multiplication.

    Args:
        only: the name of one maker of `notes`; all of them when None.
    """
    result: dict[str, Any] = {}
    for make in (*dict.fromkeys(notes.SUMS), *notes.WORKED):
        if only not in (None, make.__name__):
            continue
        rng = random.Random(f"lines {make.__name__}")
        held_out = make is not notes.multiplication
        drawn = {line.key: line for line in (notes.draw(rng, (make,), held_out) for _ in range(count * 3))}
        turns = [ask_line(rng, line) for line in list(drawn.values())[:count]]
        answers = loaded.answers([chat([turn], answered=False) for turn in turns], 40)
        right = sum(answer == turn.answer for answer, turn in zip(answers, turns, strict=True))
        result[make.__name__] = {
            "asked": len(turns),
            "right": right,
            "share": round(right / len(turns), 4),
            "held_out": held_out,
        }
    return result


def terms_right(loaded: Loaded) -> dict[str, Any]:
    """Share of the book's words that it explains word for word as it learnt them."""
    rng = random.Random("terms")
    turns = [ask_term(rng, term) for term in notes.TERMS]
    answers = loaded.answers([chat([turn], answered=False) for turn in turns], 60)
    right = sum(answer == turn.answer for answer, turn in zip(answers, turns, strict=True))
    return {"asked": len(turns), "right": right, "share": round(right / len(turns), 4)}


def stories_right(loaded: Loaded, count: int, temperature: float) -> dict[str, Any]:
    """What the checker says of stories asked for in a chat."""
    rng = random.Random("stories")
    turns = [ask_story(rng) for _ in range(count)]
    texts = loaded.answers([chat([turn], answered=False) for turn in turns], 260, temperature)
    verdicts = [check(text) for text in texts]
    sentences = sum(verdict.sentences for verdict in verdicts)
    obeyed = sum(_obeys(turn.question, text) for turn, text in zip(turns, texts, strict=True))
    return {
        "temperature": temperature,
        "stories": count,
        "sentences": sentences,
        "grammatical": round(sum(verdict.grammatical for verdict in verdicts) / sentences, 4),
        "consistent": round(sum(verdict.consistent for verdict in verdicts) / sentences, 4),
        "flawless": round(sum(verdict.flawless for verdict in verdicts) / count, 4),
        "obeyed": round(obeyed / count, 4),
    }


def _obeys(question: str, text: str) -> bool:
    """Whether the hero and the place that were asked for open the story."""
    opening = text.split(".")[0]
    wanted = question.removeprefix("Tell me a story").removesuffix(".").removeprefix(" about ")
    return all(part.removeprefix("the ") in opening for part in wanted.split(" and ") if part)


# ---- how alike the pair is ----


def held_out_prompts(count: int) -> list[tuple[str, str]]:
    """Beginnings of held-out documents, in the corpus's own mix: (kind, text)."""
    rng = random.Random("agreement")
    prompts: list[tuple[str, str]] = []
    for kind in rng.choices(list(MIX), list(MIX.values()), k=count):
        if kind == "chat":
            turn = Turn("", "")
            while not turn.question or (turn.line is not None and not turn.line.held_out):
                turn = _any_turn(rng)
            prompts.append((kind, chat([turn], answered=False)))
            continue
        text = document(rng, kind)
        cut = text.find(". ") + 1 if kind == "story" else text.find("\n") + 1
        prompts.append((kind, text[:cut]))
    return prompts


def _any_turn(rng: random.Random) -> Turn:
    makers = (notes.SUMS, notes.WORKED)
    return rng.choice(
        (
            lambda: ask_story(rng),
            lambda: ask_term(rng, rng.choice(list(notes.TERMS))),
            lambda: ask_line(rng, notes.draw(rng, makers[0], held_out=True)),
            lambda: ask_line(rng, notes.draw(rng, makers[1], held_out=True)),
        )
    )()


def agreement(pocket: Loaded, draft: Loaded, count: int, max_tokens: int = 64) -> dict[str, Any]:
    """How often pocket-draft would have written the same.

    `greedy`: over the positions of pocket's greedy continuations, the share where the draft's most probable token is
    pocket's. `sampled`: over pocket's continuations sampled at temperature 1, the mean of sum(min(p, q)), which is the
    probability that speculative sampling accepts one token (Leviathan et al., "Fast Inference from Transformers via
    Speculative Decoding", ICML 2023, section 3.1).
    """
    prompts = held_out_prompts(count)
    same: dict[str, int] = {}
    positions: dict[str, int] = {}
    overlap, drawn = 0.0, 0
    for temperature in (0.0, 1.0):
        params = [SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=i) for i in range(count)]
        for start in range(0, count, 64):
            run = generate(pocket.model, [text for _, text in prompts[start : start + 64]], params[start : start + 64])
            for completion in run:
                kind = prompts[start + completion.prompt_index][0]
                ids = completion.prompt_ids + completion.token_ids
                first = len(completion.prompt_ids) - 1
                q = draft.log_probabilities(ids[:-1])[first:]
                if temperature == 0:
                    equal = int((q.argmax(-1) == torch.tensor(completion.token_ids)).sum())
                    for key in (kind, "all"):
                        same[key] = same.get(key, 0) + equal
                        positions[key] = positions.get(key, 0) + len(completion.token_ids)
                else:
                    p = pocket.log_probabilities(ids[:-1])[first:]
                    overlap += torch.minimum(p.exp(), q.exp()).sum().item()
                    drawn += len(completion.token_ids)
    return {
        "prompts": count,
        "max_tokens": max_tokens,
        "greedy": {key: {"share": round(same[key] / positions[key], 4), "positions": positions[key]} for key in same},
        "sampled": {"share": round(overlap / drawn, 4), "positions": drawn},
    }


# ---- all of it ----


def evaluate(folder: Path, quick: bool = False) -> dict[str, Any]:
    """Measure the pair in `folder`, write both `evaluation.json`, return them by name."""
    pair = {shape.name: Loaded.read(folder / shape.name, shape) for shape in (POCKET, POCKET_DRAFT)}
    scale = 10 if quick else 1
    results: dict[str, Any] = {}
    for name, loaded in pair.items():
        results[name] = {
            "weights_sha256": fingerprint(folder / name / "model.safetensors"),
            "parameters": loaded.shape.num_parameters,
            "held_out_loss": losses(loaded, 400 // scale),
            "loss_by_position": loss_by_position(loaded, 8 // min(scale, 8)),
            "lines": lines_right(loaded, 200 // scale),
            "terms": terms_right(loaded),
            "stories": [stories_right(loaded, 120 // scale, temperature) for temperature in (0.0, 0.8)],
        }
    results["pocket-draft"]["agreement"] = agreement(pair["pocket"], pair["pocket-draft"], 200 // scale)
    for name, result in results.items():
        (folder / name / "evaluation.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return results


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=HERE, help="where pocket/ and pocket-draft/ lie")
    parser.add_argument("--quick", action="store_true", help="a tenth of the questions")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(2)
    print(json.dumps(evaluate(arguments.folder, arguments.quick), indent=2))


if __name__ == "__main__":
    main()
