"""The demonstration: drafting systems on the prompts of one model, side by side, in one run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import fst
from fst.processors import ignore
from latticebpd._version import __version__
from latticebpd.decoding.loop import Generated
from latticebpd.drafters import bundled
from latticebpd.drafters.drafter import Drafter
from latticebpd.drafters.lattice_drafter import OracleDrafter
from latticebpd.drafters.system_names import CALIBRATED
from latticebpd.lattices.values import as_numpy
from latticebpd.loading import Loaded
from latticebpd.machine import machine_settings
from latticebpd.models.catalogue import BUNDLED, CATALOGUE
from latticebpd.models.engine.engine_model import EngineModel
from latticebpd.models.load_target import load_stock
from latticebpd.models.weight_kinds import EXACT
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.rescoring import as_scorer, as_tuned, is_calibrated

if TYPE_CHECKING:
    from latticebpd.models.transformers.transformers_model import TransformersModel

DEFAULT, GREEDY, ORACLE, GENERATE = "default", "greedy", "oracle", "generate()"
"""Systems by name; the last one is no drafting system but ``transformers`` itself."""
SMALL = 16
"""Nodes of the small trees, and of copies."""
SHOWN = "### -Value\n\nSpecifies the name of the"
"""What the bundled model continues before the table: a beginning in the style of its training text, chosen among
thousands for the readability of the greedy text that follows. The table's prompts are others, held-out passages."""
SHOWN_TITLE = "The beginning of a help page, which the model continues; the table has other prompts"
SHOWN_TOKENS = 55
"""Where that text's block ends; then the model begins to repeat itself."""
SHOWN_TASK = "question"
"""Of the questions, the one that is shown to be answered: by its passage, from which drafts can copy."""
QUESTIONS = bundled.ASSETS / "questions.jsonl"


@dataclass(frozen=True)
class Settings:
    """How to decode.

    max_new_tokens: per prompt. k: arcs per slot of all systems but the default. p: drafts of the p-best systems; None
    leaves these out. num_nodes: of the tree. threads: for the model; None takes what PyTorch would. num_prompts: of
    those that there are, the first. every_system: False leaves out those that say least.
    """

    max_new_tokens: int
    k: int
    p: int | None
    num_nodes: int
    threads: int | None
    num_prompts: int
    every_system: bool


TOY = Settings(max_new_tokens=64, k=16, p=16, num_nodes=64, threads=1, num_prompts=8, every_system=True)
"""For the bundled model, which is so small that one thread is as fast as two."""
REAL = Settings(
    max_new_tokens=64, k=32, p=None, num_nodes=SMALL, threads=None, num_prompts=4, every_system=False
)  # fmt: skip
"""For any other: what a model of 135M parameters decodes in half a minute on two cores, and on busy ones in 90 s."""


@dataclass(frozen=True)
class DemoPrompt:
    """What a model is to continue or to answer: where it is from, and its text as the model gets it."""

    title: str
    text: str
    ids: list[int]


def prompts_of(loaded: Loaded) -> list[DemoPrompt]:
    """Passages that nothing was trained on, for the bundled model; else a question of each of six tasks."""
    if loaded.name == BUNDLED:
        return [DemoPrompt(each.id, each.text, loaded.encode(each.text)) for each in bundled.load_prompts()]
    questions = [json.loads(line) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    return [DemoPrompt(each["task"], each["text"], loaded.prompts.prompt([each["text"]])) for each in questions]


def about(loaded: Loaded) -> str:
    """In one line, what model it is."""
    if loaded.name == BUNDLED:
        training = "trained for 90 minutes on public-domain and openly licensed English text and code"
        return f"The bundled model is a toy: 6M parameters, {training}."
    title = CATALOGUE[loaded.name].title if loaded.name in CATALOGUE else loaded.name
    millions = loaded.target.num_parameters / 1e6
    without = "no heads, so that drafts come from the text" + " and an n-gram model" * (loaded.lm is not None)
    heads = without if loaded.source is None else f"{loaded.source.num_slots} heads"
    return f"{title}: {millions:,.0f}M parameters, {heads}."


@dataclass(frozen=True)
class SystemResult:
    """One system over all prompts.

    block_efficiency: ``tokens / calls``.
    verified_tokens_per_call: drafted nodes in the verification pass, mean.
    tokens_per_second: new tokens over wall time, prefill and drafting included.
    calls, tokens: forward passes that committed tokens, and the tokens they committed (a prefill, which commits
        a prompt's first token, is counted in neither).
    """

    name: str
    block_efficiency: float
    verified_tokens_per_call: float
    tokens_per_second: float
    calls: int
    tokens: int


@dataclass(frozen=True)
class Demo:
    """Results of a demo run.

    default: what the default system is, in words.
    generate_tokens_per_second: ``transformers``' own ``generate(do_sample=False)`` on the same prompts; None: not run.
    texts_equal: whether every system's text was that of greedy decoding with the same weights, token for token.
    texts_of_generate: of how many prompts that text is also ``generate()``'s, which computes with float32 weights.
    seconds, processor_seconds: of all decodes: by the clock, and of the thread that decodes.
    """

    signature: dict[str, Any]
    default: str
    generate_tokens_per_second: float | None
    texts_equal: bool
    texts_of_generate: int | None
    left_out: tuple[str, ...]
    seconds: float
    processor_seconds: float
    systems: list[SystemResult]

    @property
    def machine_busy(self) -> bool:
        """Whether the decodes waited for the processor for more than a fifth of the time that they ran."""
        return self.seconds > 1.2 * self.processor_seconds


def system_names(loaded: Loaded, settings: Settings) -> dict[str, str | None]:
    """The systems of the table, as readers and as `Loaded.drafter` call them; the default, None, is the first.

    Those of the bundled model's table draft from the heads only, but for the default and "copies + tree", which also
    copy from the context: no part of blockwise decoding, but what one would run.
    """
    names: dict[str, str | None] = {DEFAULT: None, GREEDY: GREEDY}
    every, p = settings.every_system, settings.p
    if loaded.source is not None:
        order = f"{_ngram_model(loaded.lm).order}-gram" if loaded.lm else None
        calibrated = is_calibrated(loaded.lm)
        if every:
            names |= {"vanilla BPD": "vanilla"} | ({order: "1-best"} if order else {})
        if p:
            names |= {f"{p}-best 0-gram": f"{p}-best:0-gram"} | ({f"{p}-best {order}": f"{p}-best"} if order else {})
        if every or not calibrated:
            names |= {f"{nodes}-node tree": f"{nodes}-tree" for nodes in (settings.num_nodes, SMALL)}
        if calibrated:
            names[f"{SMALL}-node calibrated tree"] = f"{SMALL}-calibrated"
        if every:
            names["copies + tree"] = f"copies+{SMALL}-tree"
    if loaded.name != BUNDLED:
        names[f"{SMALL}-node copies"] = f"{SMALL}-copies"
    if loaded.source is not None and every:
        names[ORACLE] = ORACLE
    is_cut = loaded.costs is not None
    return {label: name for label, name in names.items() if is_cut or name != loaded.default_system()}


def default_in_words(loaded: Loaded) -> str:
    """What the default system is."""
    name = loaded.default_system()
    drafts = f"--system {name}"
    if name.endswith(CALIBRATED):
        parts = ["heads"] * (loaded.source is not None) + ["n-gram model"] * (loaded.lm is not None)
        drafts = f"calibrated trees of {', '.join(parts)}{' and ' * bool(parts)}copies of the text ({drafts})"
    return drafts + ", cut at every call to the drafts that pay off on this machine" * (loaded.costs is not None)


def drafter_of(loaded: Loaded, settings: Settings, label: str, continuation: Sequence[int] = ()) -> Drafter:
    """The drafter of one of the systems; continuation: greedy decoding's text after the prompt, for the oracle."""
    name = system_names(loaded, settings)[label]
    if name == ORACLE:
        return OracleDrafter(loaded.lattice_source(settings.k), continuation)
    return loaded.drafter() if name is None else loaded.drafter(name, k=settings.k)


def show(loaded: Loaded, prompt: DemoPrompt, settings: Settings, streamer: Any, name: str) -> Generated:
    """Decode one prompt with a system of the table, block by block into ``streamer``."""
    drafter = drafter_of(loaded, settings, name)
    return loaded.generate(prompt.ids, drafter, max_new_tokens=settings.max_new_tokens, streamer=streamer)


def shown_decode(loaded: Loaded, settings: Settings) -> tuple[DemoPrompt, Settings]:
    """The prompt whose decode is shown, and how to decode it: of the bundled model at most `SHOWN_TOKENS`."""
    if loaded.name != BUNDLED:
        return next(prompt for prompt in prompts_of(loaded) if prompt.title == SHOWN_TASK), settings
    prompt = DemoPrompt(SHOWN_TITLE, SHOWN, loaded.encode(SHOWN))
    return prompt, replace(settings, max_new_tokens=min(settings.max_new_tokens, SHOWN_TOKENS))


def runs_generate(loaded: Loaded, settings: Settings) -> bool:
    """Whether ``transformers`` decodes too: with the same weights, or with every system; its float32 weights of a
    quantized model take the longest of all to load and to decode with."""
    return settings.every_system or loaded.weights in EXACT


def run_demo(loaded: Loaded, settings: Settings, on_run: Callable[[str], object] = ignore) -> Demo:
    """Decode the prompts with every system.

    The systems take turns on each prompt, so that a drift of the machine's speed meets all alike.

    on_run: called with the system's name before each decode.
    """
    prompts, names = prompts_of(loaded)[: settings.num_prompts], system_names(loaded, settings)
    stock = _stock(loaded) if runs_generate(loaded, settings) else None
    seconds = dict.fromkeys([*names, GENERATE], 0.0)
    results: dict[str, list[Generated]] = {name: [] for name in names}
    exact, generate_texts, generate_tokens = True, 0, 0
    for name in names:  # warms up, as the next line does
        loaded.generate(prompts[0].ids, drafter_of(loaded, settings, name, [0]), max_new_tokens=4)
    if stock is not None:
        _reference(loaded, stock, prompts[0], 4)
    begun, begun_processor = time.perf_counter(), time.thread_time()
    for prompt in prompts:
        written: list[int] = []
        for name in names:
            on_run(name)
            drafter = drafter_of(loaded, settings, name, written)
            started = time.perf_counter()
            out = loaded.generate(prompt.ids, drafter, max_new_tokens=settings.max_new_tokens)
            seconds[name] += time.perf_counter() - started
            results[name].append(out)
            written = out.tokens[0, out.prompt_length :].tolist() if name == GREEDY else written
        texts = [results[name][-1].tokens for name in names]
        exact &= all(np.array_equal(text, texts[0]) for text in texts)
        if stock is not None:
            on_run(GENERATE)
            started = time.perf_counter()
            reference = _reference(loaded, stock, prompt, settings.max_new_tokens)
            seconds[GENERATE] += time.perf_counter() - started
            generate_tokens += reference.shape[1] - (1 if stock.is_encoder_decoder else len(prompt.ids))
            generate_texts += np.array_equal(texts[0], reference)
    took = (time.perf_counter() - begun, time.thread_time() - begun_processor)
    every = [*system_names(loaded, replace(settings, every_system=True)), GENERATE]
    left_out = tuple(name for name in every if name not in names and (stock is None or name != GENERATE))
    exact &= generate_texts == len(prompts) or loaded.weights not in EXACT
    return Demo(
        signature=_signature(loaded, len(prompts), settings),
        default=default_in_words(loaded),
        generate_tokens_per_second=None if stock is None else generate_tokens / seconds[GENERATE],
        texts_equal=exact,
        texts_of_generate=None if stock is None else generate_texts,
        left_out=left_out,
        seconds=took[0],
        processor_seconds=took[1],
        systems=[_summarise(name, outs, seconds[name]) for name, outs in results.items()],
    )


def _stock(loaded: Loaded) -> TransformersModel:
    """The model as ``transformers`` has it, whose ``generate()`` the demo compares with."""
    from latticebpd.models.transformers.transformers_model import TransformersModel

    target = load_stock(loaded.path) if isinstance(loaded.target, EngineModel) else loaded.target
    return TransformersModel.of(target)


def _reference(loaded: Loaded, stock: TransformersModel, prompt: DemoPrompt, max_new_tokens: int) -> np.ndarray:
    """``[1, length]``: what `generate()` writes."""
    import torch

    ids = torch.tensor([prompt.ids], device=stock.device)
    options: Any = {"do_sample": False, "max_new_tokens": max_new_tokens, "pad_token_id": stock.pad_id or 0}
    options |= {"eos_token_id": loaded.prompts.eos_ids} if loaded.in_chat else {}
    return as_numpy(stock.model.generate(ids, attention_mask=torch.ones_like(ids), **options))


def _ngram_model(lm: Path) -> fst.NgramModel:
    """The n-gram model of a file, which the scorers keep: so its n-grams are counted once."""
    scorer = as_scorer(lm)
    if not isinstance(scorer, NgramScorer) or scorer.lm is None:
        raise ValueError(f"{lm}: expected an n-gram model, got {type(scorer).__name__}")
    return scorer.lm


def _summarise(name: str, outs: list[Generated], seconds: float) -> SystemResult:
    calls, new_tokens = sum(out.num_calls for out in outs), sum(out.num_tokens for out in outs)
    tokens = new_tokens - sum(sum(out.prefilled) for out in outs)
    verified = sum(out.verified_tokens for out in outs)
    return SystemResult(name, tokens / calls, verified / calls, new_tokens / seconds, calls, tokens)


def _signature(loaded: Loaded, prompts: int, settings: Settings) -> dict[str, Any]:
    lm = {}
    if loaded.source is not None:
        lm = {"heads": loaded.source.num_slots + 1, "k": settings.k, "lm": "none"}
    if loaded.source is not None and loaded.lm is not None:
        counted = _ngram_model(loaded.lm)
        lm["lm"] = f"{counted.order}-gram, {sum(counted.num_ngrams)} n-grams"
        lm["alpha"] = ", ".join(f"{tuning.system} {tuning.alpha:g}" for tuning in as_tuned(loaded.lm).tunings)
    return {
        "version": __version__,
        "model": loaded.name,
        "parameters": loaded.target.num_parameters,
        **lm,
        "prompts": prompts,
        "max_new_tokens": settings.max_new_tokens,
        "weights": loaded.weights,
        "dtype": str(loaded.target.dtype).removeprefix("torch."),
        "device": str(loaded.target.device),
        **machine_settings(),
    }
