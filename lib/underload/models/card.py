"""The model cards: prose with holes, and the measured numbers that fill them. No number is typed.

python -m underload.models.card        writes README.md of both folders from evaluation.json and training.json
"""

import argparse
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %".replace("100.0 %", "100 %")


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"


FRONT = """---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---

"""

POCKET = """# pocket

A language model of {parameters:,} parameters that fits in a pocket ({megabytes:.1f} MB)
and writes about waiting in line.
It is the model of the book *Under Load*: small enough to run in every lab, on any laptop, without a network.
It is a real decoder all the same: trained, with a tokenizer, a cache, a chat template and something to say.

| | |
|---|---|
| architecture | Llama (`LlamaForCausalLM`): RMSNorm, rotary positions, GQA, SwiGLU, tied embeddings |
| sizes | {layers} layers, hidden {hidden}, {heads} query and {kv_heads} KV heads of {head_dim}, feed-forward {wide} |
| vocabulary | {vocab:,} byte-level BPE tokens: any text can be written, digits stand alone |
| context | {context:,} tokens |
| KV cache | {kv_bytes:,} bytes a token in float32 |
| stored as | float16 safetensors |

```python
from underload.decoder import generate, load_model
from underload.request import SamplingParams

model = load_model("pocket")
chat = model.tokenizer.apply_chat_template([{{"role": "user", "content": "Tell me a story about Mira."}}])
print(generate(model, chat, SamplingParams(max_tokens=200, temperature=0.7))[0].text)
```

It loads in `transformers` as well, by the path of this folder.

## What it was trained on, and why

Text made by this library (`underload.models.corpus`) and nothing else: no web page, no book, nobody's words but ours.
There are four kinds of document:
**stories** of people waiting in line, in which every count follows from the one before;
**sums**; **notes**, which work this book's formulas on small numbers and say what its words mean;
and **chats**, in which a user asks for any of these.

A synthetic world was chosen because it can be *marked*.
The program that writes the stories also reads them:
it knows whether four people are left when three of seven were served.
So "the text looks right" is a share of sentences here, not an impression.
And the world is the book's own subject: even the model's mistakes are about queues.

Trained by `python -m underload.models.train` for {steps:,} steps on {tokens:.1f} million tokens, each seen once,
from seed {seed}: {cpu} of processor time, {wall}.
On one machine the same seed gives the same bytes, whatever the number of threads.
On another processor, or with another version of torch, sums are taken in another order;
the result is then a slightly different model of the same quality.

## What it can do

Measured on the shipped weights by `python -m underload.models.evaluate`, on text that was held out of training.

| | pocket | pocket-draft |
|---|---|---|
{table}

*Held out* means, for a sum or a worked line: its numbers never stood together in the training text.
The tables of multiplication are the exception: like a pupil, pocket has seen them all.
A sentence *follows* when the checker can derive it from what the story said before: the right name and place,
the right number of people left. In a story without a flaw every sentence does, and it comes to an end.

Loss by position in a long row of documents, nats a token: {positions}.

## pocket-draft

The small one guesses, this one checks.
On {prompts} held-out prompts, the draft's most probable token was pocket's own at **{agreement}** of positions.

## What it cannot do

Everything else.
It has never seen a sentence that is not of these four kinds.
Asked about anything outside, it may say so, or talk about queues.
Use it to learn how models are served, and for nothing else.

Licence: Apache-2.0, weights and training text alike.
"""

DRAFT = """# pocket-draft

The little sister of pocket: {parameters:,} parameters ({ratio:.1f} times fewer),
{layers} layer instead of {target_layers}, the same tokenizer, corpus and training script.
Alone it is of little use. It is here to *guess*: in speculative decoding a small model proposes the next tokens
and the large one checks them all in one step.

What makes a draft useful is how often it guesses right, so that was measured,
on {prompts} held-out prompts in the corpus's own mix, up to {max_tokens} tokens each:

| the draft's most probable token is pocket's | share | positions |
|---|---|---|
{table}

At temperature 1, speculative sampling would accept a token with probability **{sampled}**
(mean over {sampled_positions:,} positions).

It was trained briefly on purpose: with more steps it agrees more often,
and a draft that is seldom wrong would teach little about being wrong.
It agrees wherever the grammar leaves no choice.
It fails where something must be *worked out* (how many are left, what a sum makes),
and where all ways to go on are about as good, so that the first choice of the two is a matter of accident.

| | |
|---|---|
| architecture | Llama (`LlamaForCausalLM`), tied embeddings |
| sizes | {layers} layer, hidden {hidden}, {heads} query and {kv_heads} KV heads of {head_dim}, feed-forward {wide} |
| vocabulary, context | {vocab:,} tokens, pocket's own; {context:,} positions |
| held-out loss | {loss:.3f} nats a token (pocket: {target_loss:.3f}) |
| stored as | float16 safetensors, {megabytes:.1f} MB |
| trained | {steps:,} steps, {tokens:.1f} million tokens, seed {seed}, {cpu} of processor time |

Licence: Apache-2.0. Everything else is on pocket's card.
"""


def _read(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for name in ("config.json", "training.json", "evaluation.json"):
        facts |= json.loads((folder / name).read_text(encoding="utf-8"))
    facts["megabytes"] = (folder / "model.safetensors").stat().st_size / 1e6
    return facts


def _common(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "parameters": facts["parameters"],
        "megabytes": facts["megabytes"],
        "layers": facts["num_hidden_layers"],
        "hidden": facts["hidden_size"],
        "heads": facts["num_attention_heads"],
        "kv_heads": facts["num_key_value_heads"],
        "head_dim": facts["head_dim"],
        "wide": facts["intermediate_size"],
        "vocab": facts["vocab_size"],
        "context": facts["max_position_embeddings"],
        "kv_bytes": 2 * facts["num_hidden_layers"] * facts["num_key_value_heads"] * facts["head_dim"] * 4,
        "steps": facts["steps"],
        "tokens": facts["tokens"] / 1e6,
        "seed": facts["seed"],
        "cpu": _minutes(facts["cpu_seconds"]),
        "wall": _wall(facts),
    }


def _wall(facts: dict[str, Any]) -> str:
    wall, load = _minutes(facts["wall_seconds"]), facts["load_average"]
    if load > facts["cores"] + 1:
        return f"{wall} on {facts['cores']} cores that {load:.0f} programs wanted at once"
    return f"{wall} on {facts['cores']} cores"


def _rows(pocket: dict[str, Any], draft: dict[str, Any]) -> str:
    both = (pocket, draft)

    def row(label: str, values: list[str]) -> str:
        return f"| {label} | {' | '.join(values)} |"

    rows = [
        row(
            "held-out loss, nats a token", [f"{facts['held_out_loss']['all']['nats_per_token']:.3f}" for facts in both]
        ),
        row("held-out loss, bits a byte", [f"{facts['held_out_loss']['all']['bits_per_byte']:.3f}" for facts in both]),
    ]
    labels = {
        "addition": "additions right, held out",
        "subtraction": "subtractions right, held out",
        "multiplication": "tables up to 10 × 10 right",
        "step_time": "T(B) = o + Bt worked right, held out",
        "little": "L = λW worked right, held out",
        "batches": "batches needed, right, held out",
        "blocks": "blocks needed, right, held out",
        "stable": "whether a queue is stable, right, held out",
    }
    for key, label in labels.items():
        rows.append(
            row(f"{label} (of {pocket['lines'][key]['asked']})", [_percent(f["lines"][key]["share"]) for f in both])
        )
    rows.append(
        row(
            f"words of the book explained (of {pocket['terms']['asked']})",
            [_percent(f["terms"]["share"]) for f in both],
        )
    )
    for i, story in enumerate(pocket["stories"]):
        how = "greedy" if story["temperature"] == 0 else f"sampled at temperature {story['temperature']:g}"
        for key, label in (
            ("grammatical", "sentences of stories that the grammar accepts"),
            ("consistent", "sentences that follow from the story so far"),
            ("flawless", "stories without a flaw"),
            ("obeyed", "stories about whom and where was asked"),
        ):
            rows.append(row(f"{label}, {how}", [_percent(f["stories"][i][key]) for f in both]))
    return "\n".join(rows)


def cards(folder: Path) -> dict[str, str]:
    """Both cards, by name of the model, from the files in `folder`."""
    pocket, draft = _read(folder / "pocket"), _read(folder / "pocket-draft")
    greedy = draft["agreement"]["greedy"]
    names = {"all": "**overall**", "story": "in stories", "chat": "in chats", "sums": "in sums", "notes": "in notes"}
    table = "\n".join(
        f"| {label} | {_percent(greedy[key]['share'])} | {greedy[key]['positions']:,} |"
        for key, label in names.items()
        if key in greedy
    )
    return {
        "pocket": FRONT
        + POCKET.format(
            **_common(pocket),
            table=_rows(pocket, draft),
            positions=", ".join(
                f"{value:.3f} at positions {where}" for where, value in pocket["loss_by_position"].items()
            ),
            agreement=_percent(greedy["all"]["share"]),
            prompts=draft["agreement"]["prompts"],
        ),
        "pocket-draft": FRONT
        + DRAFT.format(
            **_common(draft),
            ratio=pocket["parameters"] / draft["parameters"],
            target_layers=pocket["num_hidden_layers"],
            prompts=draft["agreement"]["prompts"],
            max_tokens=draft["agreement"]["max_tokens"],
            table=table,
            sampled=_percent(draft["agreement"]["sampled"]["share"]),
            sampled_positions=draft["agreement"]["sampled"]["positions"],
            loss=draft["held_out_loss"]["all"]["nats_per_token"],
            target_loss=pocket["held_out_loss"]["all"]["nats_per_token"],
        ),
    }


def write(folder: Path) -> None:
    """Write README.md of both folders."""
    for name, text in cards(folder).items():
        (folder / name / "README.md").write_text(text, encoding="utf-8")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=HERE, help="where pocket/ and pocket-draft/ lie")
    write(parser.parse_args(argv).folder)


if __name__ == "__main__":
    main()
