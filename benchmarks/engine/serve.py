"""A library in a process of its own, which measures itself; `peers` starts it.

Requests and replies are JSON objects, one a line.  ``{"tokens": [...], "begin": n}`` times a pass over tokens that
follow the first n of those read before, all logits computed, and returns the likeliest token after each and ``nats``,
the mean negative log-likelihood of all tokens but the first; ``{"prompt": [...], "limit": n, "ends": [...]}`` times a
greedy answer, which ends before the first of ``ends``.  A reply has ``tokens``, ``wall_ms``, ``cpu_ms`` (of this
process with all its threads) and ``mib``, its peak memory; of an answer ``pass_ms``, the part of ``cpu_ms`` that this
project's passes take, 0 for other libraries.

A library is a class of four methods.  ``__init__(model, threads, size, lookup)``: a file or folder, the most tokens of
a text, and how answers are drafted: "" for not at all, else by the library's own prompt lookup, set up as its
documentation advises for processors, or in this project by the system of that name, or its default.
``forward(tokens, begin)``: logits ``[tokens, vocabulary]``.  ``rewind(begin)``: forget all tokens but the first ones;
called before each pass, not timed.  ``answer(prompt, limit, ends)``: new tokens, at least up to the first of ``ends``.

Every library has an environment of its own, so nothing of this project is imported, except in `CpuEngine`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import cached_property, partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np


class LlamaCpp:
    def __init__(self, model: str, threads: int, size: int, drafts: str) -> None:
        import llama_cpp
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        draft = LlamaPromptLookupDecoding(num_pred_tokens=2) if drafts else None
        sizes = {"n_ctx": size, "n_threads": threads, "n_threads_batch": threads}
        self.llama = llama_cpp.Llama(model, draft_model=draft, verbose=False, **sizes)

    def forward(self, tokens: list[int], begin: int) -> Any:
        self.llama._batch.set_batch(batch=tokens, n_past=begin, logits_all=True)
        self.llama._ctx.decode(self.llama._batch)
        return np.ctypeslib.as_array(self.llama._ctx.get_logits(), shape=(len(tokens), self.llama.n_vocab()))

    def rewind(self, begin: int) -> None:
        self.llama._ctx.kv_cache_seq_rm(-1, begin, -1)

    def answer(self, prompt: list[int], limit: int, ends: list[int]) -> list[int]:
        self.llama.reset()  # else the beginning of the last prompt is used again
        tokens = islice(self.llama.generate(prompt, temp=0.0), limit)
        return list(takewhile(lambda token: token not in ends, tokens))


class OpenVino:
    """Passes by the runtime, answers by the pipeline of `openvino_genai`; each is loaded when it is first used."""

    def __init__(self, model: str, threads: int, size: int, drafts: str) -> None:
        self.model, self.states = model, list[Any]()
        self.settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self.lookup = {"num_assistant_tokens": 5, "max_ngram_size": 3} if drafts else {}

    @cached_property
    def request(self) -> Any:
        import openvino

        path = Path(self.model) / "openvino_model.xml"
        return openvino.Core().compile_model(path, "CPU", self.settings).create_infer_request()

    @cached_property
    def pipeline(self) -> Any:
        import openvino_genai

        drafts = {"prompt_lookup": True} if self.lookup else {}
        return openvino_genai.LLMPipeline(self.model, "CPU", **self.settings, **drafts)

    def forward(self, tokens: list[int], begin: int) -> Any:
        end = begin + len(tokens)
        inputs = {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, end), np.int64)}
        inputs |= {"position_ids": np.arange(begin, end)[None], "beam_idx": np.zeros(1, np.int32)}
        return self.request.infer(inputs, share_outputs=True)["logits"][0]

    def rewind(self, begin: int) -> None:
        import openvino

        if not begin:
            self.request.reset_state()
        elif not self.states:  # a context is read once
            self.states = [(each, openvino.Tensor(each.state.data.copy())) for each in self.request.query_state()]
        for each, data in self.states:
            each.state = data

    def answer(self, prompt: list[int], limit: int, ends: list[int]) -> list[int]:
        import openvino_genai as genai
        from openvino import Tensor

        ids = np.array([prompt])
        settings: Any = {"max_new_tokens": limit, "do_sample": False, "stop_token_ids": set(ends), **self.lookup}
        inputs = genai.TokenizedInputs(Tensor(ids), Tensor(np.ones_like(ids)))
        return list(self.pipeline.generate(inputs, genai.GenerationConfig(**settings)).tokens[0])


class Transformers:
    def __init__(self, model: str, threads: int, size: int, drafts: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.lookup, self.tensor = {"prompt_lookup_num_tokens": int(drafts.split()[-1])} if drafts else {}, torch.tensor
        self.cache: Any = None
        path = Path(model)
        file = {"gguf_file": path.name} if path.is_file() else {}
        folder = path.parent if file else path
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **file)

    def forward(self, tokens: list[int], begin: int) -> Any:
        output = self.model(self.tensor([tokens]), past_key_values=self.cache, use_cache=True)
        self.cache = output.past_key_values
        return output.logits[0]

    def rewind(self, begin: int) -> None:
        if not begin:
            self.cache = None
        elif surplus := self.cache.get_seq_length() - begin:
            self.cache.crop(-surplus)

    def answer(self, prompt: list[int], limit: int, ends: list[int]) -> list[int]:
        settings: dict[str, Any] = {"max_new_tokens": limit, "do_sample": False, "eos_token_id": ends, **self.lookup}
        mask = self.tensor([[1] * len(prompt)])
        tokens = self.model.generate(self.tensor([prompt]), attention_mask=mask, **settings)
        return list(tokens[0, len(prompt) :].tolist())


class CpuEngine:
    """This project. Files of random weights have no tokenizer, so passes over them are the engine's own."""

    def __init__(self, model: str, threads: int, size: int, drafts: str, weights: str | None = None) -> None:
        self.model, self.threads, self.drafts, self.weights = model, threads, drafts, weights

    @cached_property
    def loaded(self) -> Any:
        from latticebpd import load

        return load(self.model, weights=self.weights)

    @cached_property
    def engine(self) -> Any:
        return self.loaded.target.transformer

    @cached_property
    def cache(self) -> Any:
        from latticebpd.cpu import _engine

        return _engine.Cache(self.engine)

    def forward(self, tokens: list[int], begin: int) -> Any:
        parents = np.arange(-1, len(tokens) - 1)
        hidden, _ = self.engine.read([self.cache], [len(tokens)], np.array(tokens), parents, [], self.threads)
        if not begin:
            self.cache.keep(range(len(tokens)))
        return self.engine.logits(hidden, self.threads)

    def rewind(self, begin: int) -> None:
        self.cache.cut(begin)

    @cached_property
    def drafter(self) -> Any:
        return self.loaded.drafter({"": "greedy", "default": None}.get(self.drafts, self.drafts))

    @cached_property
    def passes(self) -> list[float]:
        """Milliseconds of processor time of all passes, and of computing their best tokens."""
        from latticebpd.cpu._engine import Transformer

        spent = list[float]()

        def timed(method: Any) -> Any:
            def call(*arguments: Any) -> Any:
                begin = time.process_time()
                try:
                    return method(*arguments)
                finally:
                    spent.append(1e3 * (time.process_time() - begin))

            return call

        Transformer.read, Transformer.best = timed(Transformer.read), timed(Transformer.best)
        return spent

    def answer(self, prompt: list[int], limit: int, ends: list[int]) -> list[int]:
        self.passes.clear()
        answer = self.loaded.generate(prompt, self.drafter, max_new_tokens=limit, eos_token_id=ends)
        return answer.tokens[0, len(prompt) :].tolist()


LIBRARIES: dict[str, Any] = {
    "llama.cpp": LlamaCpp, "openvino": OpenVino, "transformers": Transformers,
    "latticebpd": CpuEngine, **{f"latticebpd {kind}": partial(CpuEngine, weights=kind) for kind in ("int8", "float32")},
}  # fmt: skip


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no reply
    settings = json.loads(sys.argv[1])
    library = LIBRARIES[settings.pop("library")](**settings)
    for line in sys.stdin:
        request = json.loads(line)
        answers = "prompt" in request
        if not answers:
            library.rewind(request["begin"])
        wall, cpu = time.perf_counter(), time.process_time()
        result = (library.answer if answers else library.forward)(**request)
        wall, cpu = 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)
        if answers:
            result = result[: next((i for i, token in enumerate(result) if token in request["ends"]), None)]
            more = {"pass_ms": sum(getattr(library, "passes", []))}
        else:
            logits, result = np.asarray(result, np.float64), np.asarray(result).argmax(-1).tolist()
            largest, after = logits.max(-1), request["tokens"][1:]
            sums = np.log(np.exp(logits - largest[:, None]).sum(-1)) + largest
            likelihoods = logits[range(len(after)), after] - sums[: len(after)]
            more = {"nats": -float(likelihoods.mean())} if after else {}
        # `getrusage` would count what the parent held before it became this process.
        mib = int(Path("/proc/self/status").read_text(encoding="utf-8").partition("VmHWM:")[2].split()[0]) / 1024
        reply = {"tokens": result, "wall_ms": wall, "cpu_ms": cpu, "mib": mib, **more}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
