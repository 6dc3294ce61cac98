"""The engines of `peers.py` serving a mixed load: requests of many lengths at once, at most `slots` of them at a time.

    python tests/benchmarks/servers.py ENGINE CHECKPOINT THREADS

answers lines like peers.py: {"prompts": [[id, ...], ...], "new": [n, ...], "slots": k} asks for n[i] greedy tokens
after prompt i, past any end of text, and gets {"seconds", "tokens", "first", "last", "other_load"}. All requests arrive
when the clock starts, in the order of the prompts; `first` and `last` are when each had its first and its last token,
in seconds from there. Building caches and contexts, and words for ids where an engine takes words, is not timed.

    underload            this library's engine, scheduler, block pool and executor
    transformers         static batches in order of arrival, padded on the left; a batch ends with its longest answer
    transformers continuous   its own continuous batching
    ctranslate2          static batches of prompts of similar length, as it orders them itself; finished rows leave
    llama.cpp            its batch interface, with a loop of continuous batching around it: no HTTP, no text
    llama-server         its own server, which batches continuously, over HTTP
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import peers
from peers import Prompts

LONGEST = 512  # tokens of a prompt and its answer


class Stopwatch:
    """When the first and the last token of each request came, in seconds from when it was made."""

    def __init__(self, requests: int) -> None:
        self.first, self.last = [0.0] * requests, [0.0] * requests
        self.start = time.perf_counter()

    def token(self, request: int) -> None:
        """Request `request` has one more token."""
        self.last[request] = time.perf_counter() - self.start
        self.first[request] = self.first[request] or self.last[request]

    def answer(self, tokens: Prompts) -> dict[str, Any]:
        return {
            "seconds": time.perf_counter() - self.start, "tokens": tokens,
            "first": [round(x, 6) for x in self.first], "last": [round(x, 6) for x in self.last],
        }  # fmt: skip


class Server(peers.Engine):
    """Loads a checkpoint; `serve` answers requests that all arrive now."""

    def serve(self, prompts: Prompts, new: list[int], slots: int) -> dict[str, Any]:
        raise NotImplementedError

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.serve(request["prompts"], request["new"], request["slots"])


class Underload(peers.Underload, Server):
    """The engine as it comes, but for prefix caching: it would know the prompts from the round before."""

    engine: Any = None

    def serve(self, prompts: Prompts, new: list[int], slots: int) -> dict[str, Any]:
        from underload.decoder import decoder_engine
        from underload.request import Request, SamplingParams, Timeline

        if self.engine is None:
            self.engine = decoder_engine(
                self.model, num_blocks=slots * LONGEST // 16, block_size=16, max_num_seqs=slots, prefix_caching=False
            )
        watch, arrival = Stopwatch(len(prompts)), self.engine.clock.now()
        requests = []
        for i, (ids, tokens) in enumerate(zip(prompts, new, strict=True)):
            params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
            requests.append(Request(str(i), ids, params, Timeline(arrival)))
            self.engine.add(requests[-1])
        self.engine.run()
        answer = watch.answer([request.sequences[0].output_ids for request in requests])
        for key, place in (("first", 0), ("last", -1)):
            answer[key] = [round(request.timeline.token_times[place] - arrival, 6) for request in requests]
        return answer


class UnderloadHalf(Underload):
    dtype, weights = "float16", "float16"


class Transformers(peers.Transformers, Server):
    def serve(self, prompts: Prompts, new: list[int], slots: int) -> dict[str, Any]:
        import torch

        tokens: Prompts = []
        watch = Stopwatch(len(prompts))
        for at in range(0, len(prompts), slots):
            batch, wanted = prompts[at : at + slots], new[at : at + slots]
            longest = max(map(len, batch))
            ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in batch])
            mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in batch])

            def stop(
                input_ids: Any, scores: Any, at: int = at, wanted: list[int] = wanted, start: int = longest
            ) -> Any:
                """Called after each token of the batch; says which rows have enough."""
                done = input_ids.shape[1] - start
                for row, most in enumerate(wanted):
                    if done <= most:
                        watch.token(at + row)
                return torch.tensor([done >= most for most in wanted])

            with torch.inference_mode():
                out = self.model.generate(
                    ids, attention_mask=mask, do_sample=False, min_new_tokens=max(wanted), max_new_tokens=max(wanted),
                    pad_token_id=0, stopping_criteria=[stop],
                )  # fmt: skip
            tokens += [row[:most] for row, most in zip(out[:, longest:].tolist(), wanted, strict=True)]
        return watch.answer(tokens)


class TransformersContinuous(peers.Transformers, Server):
    page, budget = 256, 256  # its default page; tokens in a step

    def __init__(self, folder: Path, threads: int) -> None:
        super().__init__(folder, threads)
        self.manager: Any = None

    def serve(self, prompts: Prompts, new: list[int], slots: int) -> dict[str, Any]:
        if self.manager is None:
            self._begin(slots)
        watch = Stopwatch(len(prompts))
        names = [
            self.manager.add_request(ids, max_new_tokens=tokens, eos_token_id=-1, record_timestamps=True)
            for ids, tokens in zip(prompts, new, strict=True)
        ]
        done: dict[str, Any] = {}
        while len(done) < len(prompts):
            result = self.manager.get_result(timeout=30)
            if result is None or result.error:
                raise RuntimeError("continuous batching gave no answer" if result is None else result.error)
            if result.is_finished():
                done[result.request_id] = result
        answer = watch.answer([done[name].generated_tokens for name in names])
        for key, place in (("first", 0), ("last", -1)):
            answer[key] = [round(done[name].timestamps[place] - watch.start, 6) for name in names]
        return answer

    def _begin(self, slots: int) -> None:
        from transformers import ContinuousBatchingConfig

        config = self.model.generation_config
        config.do_sample, config.eos_token_id = False, -1
        self.manager = self.model.init_continuous_batching(
            generation_config=config,
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=self.page, num_blocks=(slots + 1) * -(-LONGEST // self.page), max_batch_tokens=self.budget,
                max_requests_per_batch=slots, allow_block_sharing=False, auto_switch_to_flash=False,
            ),
        )  # fmt: skip
        self.manager.start()

    def close(self) -> None:
        if self.manager is not None:
            self.manager.stop(block=True)


class CTranslate2(peers.CTranslate2, Server):
    most = 16  # rows of a batch

    def serve(self, prompts: Prompts, new: list[int], slots: int) -> dict[str, Any]:
        texts = [[f"t{token}" for token in ids] for ids in prompts]
        tokens: Prompts = [[] for _ in prompts]
        size = min(slots, self.most)
        watch = Stopwatch(len(prompts))
        # Tokens beyond the shortest prompt of a batch are fed one by one, so it pays to keep like with like.
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        for at in range(0, len(order), size):
            batch = order[at : at + size]

            def seen(step: Any, batch: list[int] = batch) -> bool:
                request = batch[step.batch_id]
                watch.token(request)
                tokens[request].append(step.token_id)
                return len(tokens[request]) == new[request]  # True ends this row

            self.generator.generate_batch(
                [texts[i] for i in batch], beam_size=1, sampling_topk=1, max_length=max(new[i] for i in batch),
                suppress_sequences=[["t0"]], include_prompt_in_result=False, callback=seen,
            )  # fmt: skip
        return watch.answer(tokens)


class CTranslate2Small(CTranslate2):
    most = 8


class LlamaCpp(peers.LlamaCpp, Server):
    budget = 512  # tokens in a step, its own default
    unified = True  # one cache for all sequences, as its server has it: rows of any length share a step

    def serve(self, prompts: Prompts, new: list[int], slots: int) -> dict[str, Any]:
        lib = self.lib
        settings = lib.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max, settings.kv_unified = slots * LONGEST, slots, self.unified
        settings.n_batch = settings.n_ubatch = self.budget
        settings.n_threads = settings.n_threads_batch = self.threads
        context = lib.llama_init_from_model(self.model, settings)
        batch = lib.llama_batch_init(self.budget, 0, 1)
        try:
            return self._loop(context, batch, prompts, new, slots)
        finally:
            lib.llama_batch_free(batch)
            lib.llama_free(context)

    def _loop(self, context: Any, batch: Any, prompts: Prompts, new: list[int], slots: int) -> dict[str, Any]:
        """Running requests first, one token each; then prompts, in order of arrival, as far as the step has room."""
        lib = self.lib
        as_array = np.ctypeslib.as_array
        token, position = as_array(batch.token, (self.budget,)), as_array(batch.pos, (self.budget,))
        wanted, count = as_array(batch.logits, (self.budget,)), as_array(batch.n_seq_id, (self.budget,))
        count[:] = 1
        memory = lib.llama_get_memory(context)
        outputs: Prompts = [[] for _ in prompts]
        free, waiting = list(range(slots)), list(range(len(prompts)))[::-1]
        running: dict[int, int] = {}  # request -> slot, in order of arrival
        computed = [0] * len(prompts)
        watch = Stopwatch(len(prompts))
        while running or waiting:
            while free and waiting:
                running[waiting.pop()] = free.pop()
            rows, picks = 0, []
            for request in sorted(running, key=lambda i: not outputs[i]):
                ids = prompts[request] if not outputs[request] else outputs[request][-1:]
                start = computed[request] if not outputs[request] else 0
                n = min(len(ids) - start, self.budget - rows)
                if not n:
                    break
                token[rows : rows + n] = ids[start : start + n]
                position[rows : rows + n] = range(computed[request], computed[request] + n)
                wanted[rows : rows + n] = 0
                for row in range(rows, rows + n):
                    batch.seq_id[row][0] = running[request]
                computed[request] += n
                rows += n
                if start + n == len(ids):
                    wanted[rows - 1] = 1
                    picks.append((request, rows - 1))
            batch.n_tokens = rows
            if lib.llama_decode(context, batch) != 0:
                raise RuntimeError("llama_decode failed")
            for request, row in picks:
                logits = as_array(lib.llama_get_logits_ith(context, row), (self.vocabulary,))
                outputs[request].append(int(logits.argmax()))
                watch.token(request)
                if len(outputs[request]) == new[request]:
                    slot = running.pop(request)
                    lib.llama_memory_seq_rm(memory, slot, -1, -1)
                    free.append(slot)
        return watch.answer(outputs)


class LlamaCppHalf(LlamaCpp):
    weights = "float16"


class LlamaServer(Server):
    """Over HTTP, each request on a connection of its own. The first token is `predicted_ms` before the answer came."""

    needs, kv = "llama-server", "float16"
    slots = 16

    def __init__(self, folder: Path, threads: int) -> None:
        binary = find_llama_server()
        assert binary is not None
        about = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
        self.version = (about.stderr + about.stdout).strip().split("\n")[0]
        file = folder / f"{self.weights}.gguf"
        if not file.exists():
            peers.write_gguf(folder, file, self.weights)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed with the process
        self._process = subprocess.Popen(
            [binary, "--model", str(file), "--host", "127.0.0.1", "--port", str(port), "--threads", str(threads),
             "--threads-batch", str(threads), "--parallel", str(self.slots), "--ctx-size", str(self.slots * LONGEST),
             "--kv-unified", "--no-warmup", "--offline"],
            stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self._address = f"http://127.0.0.1:{port}"
        self._senders = ThreadPoolExecutor(128)
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.perf_counter() + 120
        while True:
            try:
                with self._opener.open(f"{self._address}/health", timeout=5):
                    return
            except OSError:
                if time.perf_counter() > deadline or self._process.poll() is not None:
                    self._log.seek(0)
                    raise RuntimeError(f"llama-server did not start:\n{self._log.read()[-2000:]}") from None
                time.sleep(0.1)

    def serve(self, prompts: Prompts, new: list[int], slots: int) -> dict[str, Any]:
        if slots != self.slots:
            raise ValueError(f"this server was started with {self.slots} slots, not {slots}")
        watch = Stopwatch(len(prompts))

        def ask(request: int) -> list[int]:
            body = {
                "prompt": prompts[request], "n_predict": new[request], "ignore_eos": True, "cache_prompt": False,
                "return_tokens": True, "samplers": ["top_k"], "top_k": 1, "temperature": 0,
            }  # fmt: skip
            message = urllib.request.Request(
                f"{self._address}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with self._opener.open(message, timeout=600) as response:
                answer = json.loads(response.read())
            watch.token(request)
            watch.first[request] = watch.last[request] - answer["timings"]["predicted_ms"] / 1000
            return answer["tokens"]

        return watch.answer(list(self._senders.map(ask, range(len(prompts)))))

    def cpu_seconds(self) -> float:
        """Of this process and the server."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)


class LlamaServerHalf(LlamaServer):
    weights = "float16"


SERVERS: dict[str, type[Server]] = {
    "underload": Underload,
    "underload f16": UnderloadHalf,
    "transformers": Transformers,
    "transformers continuous": TransformersContinuous,
    "ctranslate2": CTranslate2,
    "ctranslate2 by 8": CTranslate2Small,
    "llama.cpp": LlamaCpp,
    "llama.cpp f16": LlamaCppHalf,
    "llama-server": LlamaServer,
    "llama-server f16": LlamaServerHalf,
}


def find_llama_server() -> str | None:
    """LLAMA_SERVER names it, or it is on the path."""
    return os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")


def missing(name: str) -> str | None:
    """What server `name` lacks here, or None."""
    if not name.startswith("llama-server"):
        return peers.missing(name, SERVERS)
    return "llama-server" if find_llama_server() is None else None if importlib.util.find_spec("gguf") else "gguf"


if __name__ == "__main__":
    peers.listen(SERVERS[sys.argv[1]], Path(sys.argv[2]), int(sys.argv[3]))
