"""Train pocket and pocket-draft:  python -m underload.models.train

From one seed to the two folders that ship: write the corpus, learn the tokenizer, train both models, evaluate what was
saved, write the cards. Twice on one machine gives the same bytes: every random choice comes from the seed, every
sum is taken in a fixed order. Work is split into a fixed number of slices that threads take in turn, each thread
computing alone, so the number of threads changes the time and not the result. Another CPU, or another version of
torch, adds in another order: there the losses agree to a few digits and the texts differ.

--quick trains for seconds, for tests.
"""

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from underload.decoder.measure import device_name
from underload.models import network
from underload.models.corpus import CHAT_TEMPLATE, END_OF_TEXT, END_OF_TURN, SPECIAL_TOKENS, documents
from underload.models.network import POCKET, POCKET_DRAFT, Parameters
from underload.models.optimise import Optimiser
from underload.shapes import ModelShape

HERE = Path(__file__).parent
SEED = 14
SLICES = 4  # of every batch, each on one thread; fixed, because it fixes the order of sums
THREADS = 2


@dataclass(frozen=True)
class Plan:
    """How long to train, on what.

    Rows are short, because attention over long ones is dear; every eighth step takes long ones, without which the
    model would never see tokens far apart, and lose its way past the length of a short row.
    """

    shape: ModelShape
    steps: int
    short: tuple[int, int] = (16, 256)  # rows, tokens of a row
    long: tuple[int, int] = (2, 2048)
    long_every: int = 8
    muon: float = 0.04
    adam: float = 0.015
    weight_decay: float = 0.5  # of Muon's matrices
    warmup: int = 20
    decay: float = 0.7  # share of the steps over which the learning rate falls to nothing

    def rows(self, step: int) -> tuple[int, int]:
        """Rows of a step, and tokens of a row."""
        return self.long if step % self.long_every == self.long_every - 1 else self.short

    @property
    def tokens(self) -> int:
        return sum(rows * tokens for rows, tokens in map(self.rows, range(self.steps)))

    def rate(self, step: int) -> float:
        """The learning rate's scale at a step: up, level, down to zero."""
        left = (self.steps - step) / (self.decay * self.steps)
        return min(1.0, (step + 1) / self.warmup, left)


PLANS = {
    "pocket": Plan(POCKET, 700),
    # Briefly, on purpose: with more steps it agrees with pocket more often than a draft does in practice.
    "pocket-draft": Plan(POCKET_DRAFT, 180),
}
QUICK = {name: replace(plan, steps=8, short=(8, 64), long=(2, 128), warmup=2) for name, plan in PLANS.items()}


def train_tokenizer(seed: int, count: int = 8000) -> Any:
    """A byte-level BPE of 1,024 tokens: any text can be written in it, this corpus in few tokens.

    Digits stand alone, so that a sum is carried out digit by digit and not one table of pairs.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=POCKET.vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [text for _, text in itertools.islice(documents(seed), count)]
    # Special tokens are cut out before the merges are learnt.
    pieces = [piece for text in texts for piece in _without_specials(text)]
    tokenizer.train_from_iterator(pieces, trainer)
    return tokenizer


def _without_specials(text: str) -> list[str]:
    for token in SPECIAL_TOKENS:
        text = text.replace(token, "\0")
    return [piece for piece in text.split("\0") if piece]


class Stream:
    """The corpus as one endless row of token ids, cut into batches."""

    def __init__(self, tokenizer: Any, seed: int) -> None:
        self._documents = documents(seed)
        self._tokenizer = tokenizer
        self._end = tokenizer.token_to_id(END_OF_TEXT)
        self._ids: list[int] = [self._end]

    def take(self, rows: int, tokens: int) -> Tensor:
        """The next rows of tokens + 1 ids [rows, tokens + 1]; the last id of a row is the first of the next."""
        needed = rows * tokens + 1
        while len(self._ids) < needed:
            texts = [text for _, text in itertools.islice(self._documents, 200)]
            for encoded in self._tokenizer.encode_batch(texts):
                self._ids += encoded.ids
                self._ids.append(self._end)
        flat = torch.tensor(self._ids[:needed])
        self._ids = self._ids[needed - 1 :]
        return torch.stack([flat[i * tokens : (i + 1) * tokens + 1] for i in range(rows)])


def gradients(
    shape: ModelShape, parameters: Parameters, ids: Tensor, pool: ThreadPoolExecutor
) -> tuple[float, Parameters]:
    """Mean loss and its gradients over a batch, slice by slice, summed in the order of the slices."""

    def one(part: Tensor) -> tuple[float, tuple[Tensor, ...]]:
        loss = network.loss(shape, parameters, part)
        return loss.item(), torch.autograd.grad(loss, list(parameters.values()))

    parts = ids.chunk(SLICES)
    results = list(pool.map(one, parts))
    shares = [len(part) / len(ids) for part in parts]
    loss = sum(value * share for (value, _), share in zip(results, shares, strict=True))
    total = [
        sum(
            (grads[i] * share for (_, grads), share in zip(results[1:], shares[1:], strict=True)),
            results[0][1][i] * shares[0],
        )
        for i in range(len(parameters))
    ]
    return loss, dict(zip(parameters, total, strict=True))


def train(
    plan: Plan,
    tokenizer: Any,
    seed: int,
    *,
    threads: int = THREADS,
    on_step: Callable[[int, float, Parameters], None] = lambda step, loss, parameters: None,
) -> tuple[Parameters, list[float]]:
    """Train one model; returns its parameters (float32) and the loss of every step."""
    torch.set_num_threads(1)  # each slice computes alone: no barrier inside an operation, no order left open
    parameters = network.initialise(plan.shape, seed)
    for parameter in parameters.values():
        parameter.requires_grad_()
    optimiser = Optimiser(parameters, muon=plan.muon, adam=plan.adam, decay=plan.weight_decay)
    stream = Stream(tokenizer, seed)
    losses: list[float] = []
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for step in range(plan.steps):
            ids = stream.take(*plan.rows(step))
            loss, grads = gradients(plan.shape, parameters, ids, pool)
            optimiser.step(grads, plan.rate(step))
            losses.append(loss)
            on_step(step + 1, loss, parameters)
    return {name: parameter.detach() for name, parameter in parameters.items()}, losses


class Progress:
    """Says, every fifty steps, how the loss falls and what it has cost."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.losses: list[float] = []
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def __call__(self, step: int, loss: float, parameters: Parameters) -> None:
        self.losses.append(loss)
        if step % 50 == 0 or step == self.plan.steps:
            recent = sum(self.losses[-50:]) / len(self.losses[-50:])
            cpu, wall = time.process_time() - self.cpu, time.perf_counter() - self.wall
            print(
                f"{self.plan.shape.name} step {step:4d}/{self.plan.steps}  loss {recent:.4f}  "
                f"cpu {cpu:.0f} s  wall {wall:.0f} s",
                flush=True,
            )


def save(folder: Path, shape: ModelShape, parameters: Parameters, tokenizer: Any) -> None:
    """Write a Hugging Face checkpoint: float16 weights, config, tokenizer, chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    half = {name: parameter.to(torch.float16).contiguous() for name, parameter in parameters.items()}
    save_file(half, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_positions,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": shape.tied,
        "bos_token_id": shape.bos_token_id,
        "eos_token_id": list(shape.eos_token_ids),
        "torch_dtype": "float16",
    }
    special = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TURN, "pad_token": END_OF_TEXT}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": shape.max_positions,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
        **special,
    }
    for name, content in (
        ("config.json", config),
        ("generation_config.json", {"bos_token_id": shape.bos_token_id, "eos_token_id": list(shape.eos_token_ids)}),
        ("tokenizer_config.json", tokenizer_config),
    ):
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE, help="where the folders pocket/ and pocket-draft/ go")
    parser.add_argument("--only", choices=list(PLANS), help="train one of the two")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--threads", type=int, default=THREADS, help="changes the time, not the result")
    parser.add_argument("--quick", action="store_true", help="a few steps: shows that it runs and repeats")
    arguments = parser.parse_args(argv)
    out: Path = arguments.out
    tokenizer = train_tokenizer(arguments.seed, 500 if arguments.quick else 8000)
    plans = QUICK if arguments.quick else PLANS
    for name, plan in plans.items():
        if arguments.only in (None, name):
            start, cpu = time.perf_counter(), time.process_time()
            parameters, losses = train(
                plan, tokenizer, arguments.seed, threads=arguments.threads, on_step=Progress(plan)
            )
            save(out / name, plan.shape, parameters, tokenizer)
            record = {
                "seed": arguments.seed,
                "steps": plan.steps,
                "tokens": plan.tokens,
                "last_loss": losses[-1],
                "cpu_seconds": round(time.process_time() - cpu),
                "wall_seconds": round(time.perf_counter() - start),
                "threads": arguments.threads,
                "cores": os.cpu_count(),
                "load_average": round(_load(), 1),
                "machine": device_name(torch.device("cpu")),
                "torch": torch.__version__,
            }
            (out / name / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if not arguments.quick and arguments.only is None:
        from underload.models import card, evaluate

        evaluate.evaluate(out)
        card.write(out)


def _load() -> float:
    """How many programs wanted a core in the last minute: the wall time means nothing without it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")


if __name__ == "__main__":
    main()
