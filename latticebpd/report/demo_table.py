"""The demonstration: drafting systems on the prompts of one model, side by side, in one run."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

import fst
from latticebpd._version import __version__
from latticebpd.decoding.loop import Generated, generate
from latticebpd.drafters import Drafter, HeadLattices, OracleDrafter, bundled, drafter_named
from latticebpd.drafters.default_systems import lattice_shape
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.drafters.pretrained import lm_beside, load_model, load_tokenizer
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.rescoring import as_scorer, is_calibrated, tunings_of
from latticebpd.target.catalogue import CATALOGUE
from latticebpd.target.chat import prompt_format
from latticebpd.target.stock_model import BaseModel, Model

SMALL = 16
"""Nodes of the small tree: what a processor reads about as fast as one token."""
SHOWN = 6
"""The bundled prompt whose continuation is shown: of all, the one that repeats itself least."""
QUESTIONS = bundled.ASSETS / "questions.jsonl"


@dataclass(frozen=True)
class Settings:
    """How to decode.

    max_new_tokens: per prompt. k: arcs per slot. p: drafts of the p-best systems; None leaves these out. num_nodes: of
    the tree. threads: for the model; None takes what PyTorch would.
    """

    max_new_tokens: int
    k: int
    p: int | None
    num_nodes: int
    threads: int | None


TOY = Settings(max_new_tokens=64, k=16, p=16, num_nodes=64, threads=1)
"""For the bundled model, which is so small that one thread is as fast as two."""
REAL = Settings(max_new_tokens=48, k=64, p=None, num_nodes=SMALL, threads=None)
"""For any other."""


@dataclass(frozen=True)
class DemoPrompt:
    """What a model is to continue or to answer: where it is from, and its text as the model gets it."""

    title: str
    text: str
    ids: list[int]


@dataclass(frozen=True, eq=False)
class Subject:
    """Everything that a demo needs.

    about: in one line, what model it is.
    lm: the n-gram model's file, used with the weights that are stored beside it; None where there is none.
    eos_ids: tokens that end an answer; None for the model's own.
    shown: number of the prompt whose decode is shown.
    in_chat: whether prompts are questions, not the beginnings of texts.
    """

    name: str
    about: str
    model: Model
    lm: Path | None
    tokenizer: Any
    prompts: list[DemoPrompt]
    eos_ids: list[int] | None = None
    shown: int = 0
    in_chat: bool = False

    @property
    def has_heads(self) -> bool:
        return isinstance(self.model, BlockwiseLM)


def bundled_subject() -> Subject:
    """The bundled model, which continues passages that nothing was trained on."""
    found = bundled.load_bundle()
    prompts = [DemoPrompt(each.id, each.text, found.tokenizer.encode(each.text).ids) for each in found.prompts]
    about = (
        "The bundled model is a toy: 6M parameters, trained for 90 minutes on public-domain and openly licensed English"
        " text and code."
    )
    tokenizer = load_tokenizer(bundled.MODEL)
    return Subject("bundled", about, found.model, found.lm_file, tokenizer, prompts, shown=SHOWN)


def subject_named(name: str | os.PathLike[str]) -> Subject:
    """Any model, with a question of each task, in its chat template where it has one.

    Raises:
        ValueError: there is no such model, or it cannot be read.
    """
    model, tokenizer = load_model(name), load_tokenizer(name)
    prompts = prompt_format(tokenizer, model)
    questions = [json.loads(line) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    millions = sum(parameter.numel() for parameter in BaseModel.of(model).model.parameters()) / 1e6
    heads = (
        f"{model.num_heads - 1} heads" if isinstance(model, BlockwiseLM) else "no heads, so that all drafts are copies"
    )
    title = CATALOGUE[str(name)].title if str(name) in CATALOGUE else str(name)
    return Subject(
        Path(name).name,
        f"{title}: {millions:,.0f}M parameters, {heads}.",
        model,
        lm_beside(name),
        tokenizer,
        [DemoPrompt(each["task"], each["text"], prompts.prompt([each["text"]])) for each in questions],
        prompts.eos_ids,
        in_chat=prompts.eos_ids is not None,
    )


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
    """The whole run.

    signature: what the numbers depend on.
    systems: results in the order of the table.
    generate_tokens_per_second: ``transformers``' own ``generate(do_sample=False)`` on the same prompts.
    exact: whether every system's text was that of ``generate()``, token for token.
    """

    signature: dict[str, Any]
    systems: list[SystemResult]
    generate_tokens_per_second: float
    exact: bool

    def as_json(self) -> dict[str, Any]:
        return {
            "signature": self.signature,
            "generate_tokens_per_second": self.generate_tokens_per_second,
            "texts_equal": self.exact,
            "systems": [asdict(system) for system in self.systems],
        }


def system_names(subject: Subject, settings: Settings) -> dict[str, str]:
    """The systems of the table, as readers and as `drafter_named` call them; the oracle comes behind them.

    Those of the bundled model's table draft from the heads alone, but for "copies + tree", which also copies from the
    text so
    far: no part of blockwise decoding, but what one would run.
    """
    if not subject.has_heads:
        return {"greedy": "greedy", "copies": f"{SMALL}-copies"}
    names = {"greedy": "greedy", "vanilla BPD": "vanilla"}
    suffix, p = "" if subject.lm else ":0-gram", settings.p
    order = f"{_ngram_model(subject.lm).order}-gram" if subject.lm else None
    if order:
        names[order] = "1-best"
    if p:
        names[f"{p}-best 0-gram"] = f"{p}-best:0-gram"
    if p and order:
        names[f"{p}-best {order}"] = f"{p}-best"
    for nodes in (settings.num_nodes, SMALL):
        names[f"{nodes}-node tree"] = f"{nodes}-tree{suffix}"
    if subject.name != "bundled":
        names["copies"] = f"{SMALL}-copies"
    names["copies + tree"] = f"copies+{SMALL}-tree{suffix}"
    if is_calibrated(subject.lm):
        names["calibrated tree"] = f"{SMALL}-calibrated"
    return names


def systems(subject: Subject, continuation: list[int], settings: Settings) -> dict[str, Drafter]:
    """The demo's drafters by name; ``continuation`` is greedy's text after the prompt, for the oracle."""
    model = subject.model
    names = system_names(subject, settings)
    if not isinstance(model, BlockwiseLM):
        return {label: drafter_named(name, None, subject.lm) for label, name in names.items()}
    found: dict[str, Drafter] = {}
    for label, name in names.items():
        found[label] = drafter_named(
            name, HeadLattices(model, *lattice_shape(settings.k, None, name, subject.lm)), subject.lm
        )
    return {**found, "oracle": OracleDrafter(model, continuation, settings.k)}


def show(subject: Subject, settings: Settings, streamer: Any) -> tuple[str, Generated]:
    """Decode one prompt, block by block into ``streamer``; returns the system's name and the decode.

    Drafts are a calibrated tree, else the widest one, or copies.
    """
    names = system_names(subject, settings)
    widest = next((name for name in names if name.endswith("-node tree")), "copies")
    name = "calibrated tree" if "calibrated tree" in names else widest
    drafter = systems(subject, [0], settings)[name]
    return name, _decode(subject, subject.prompts[subject.shown], drafter, settings.max_new_tokens, streamer)


def run_demo(
    subject: Subject, settings: Settings, num_prompts: int | None = None, on_run: Callable[[str], None] | None = None
) -> Demo:
    """Decode the prompts with every system.

    The systems take turns on each prompt, so that a drift of the machine's speed meets all alike.

    Args:
        subject: model, tokenizer, n-gram model and prompts.
        settings: lengths and sizes.
        num_prompts: how many prompts, all by default.
        on_run: called with the system's name before each decode, for progress.
    """
    prompts, tell = subject.prompts[:num_prompts], on_run or (lambda _: None)
    base = BaseModel.of(subject.model)
    seconds: dict[str, float] = {}
    results: dict[str, list[Generated]] = {}
    exact = True
    generate_seconds, generate_tokens = 0.0, 0
    _reference(subject, prompts[0], 4)  # warms up, as the next line does
    for drafter in systems(subject, [0], settings).values():
        _decode(subject, prompts[0], drafter, 4)
    for prompt in prompts:
        tell("generate()")
        started = time.perf_counter()
        reference = _reference(subject, prompt, settings.max_new_tokens)
        generate_seconds += time.perf_counter() - started
        written = reference[0, 1 if base.is_encoder_decoder else len(prompt.ids) :].tolist()
        generate_tokens += len(written)
        for name, drafter in systems(subject, written, settings).items():
            tell(name)
            started = time.perf_counter()
            out = _decode(subject, prompt, drafter, settings.max_new_tokens)
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - started
            results.setdefault(name, []).append(out)
            exact &= torch.equal(out.sequences, reference)
    summaries = [_summarise(name, outs, seconds[name]) for name, outs in results.items()]
    return Demo(_signature(subject, len(prompts), settings), summaries, generate_tokens / generate_seconds, exact)


def _reference(subject: Subject, prompt: DemoPrompt, max_new_tokens: int) -> torch.Tensor:
    """What `generate()` writes."""
    base = BaseModel.of(subject.model)
    ids = torch.tensor([prompt.ids], device=base.device)
    ends = {} if subject.eos_ids is None else {"eos_token_id": subject.eos_ids}
    stock: Any = base.model
    found: torch.Tensor = stock.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=max_new_tokens,
        pad_token_id=base.pad_id or 0,
        **ends,
    )
    return found


def _decode(
    subject: Subject, prompt: DemoPrompt, drafter: Drafter, max_new_tokens: int, streamer: Any = None
) -> Generated:
    mask = [[1] * len(prompt.ids)]  # no token of a text is padding, whatever its id
    return generate(
        subject.model, prompt.ids, drafter, max_new_tokens=max_new_tokens, eos_token_id=subject.eos_ids,
        attention_mask=mask,
        streamer=streamer,
    )  # fmt: skip


def _ngram_model(lm: Path) -> fst.NgramModel:
    """The n-gram model of a file, which the scorers keep: so its n-grams are counted once."""
    scorer = as_scorer(lm)
    if not isinstance(scorer, NgramScorer) or scorer.lm is None:
        raise ValueError(f"{lm}: expected an n-gram model, got {type(scorer).__name__}")
    return scorer.lm


def _summarise(name: str, outs: list[Generated], seconds: float) -> SystemResult:
    calls = sum(out.num_calls for out in outs)
    new_tokens = sum(out.num_tokens for out in outs)
    tokens = new_tokens - sum(sum(out.prefilled) for out in outs)
    return SystemResult(
        name=name,
        block_efficiency=tokens / calls,
        verified_tokens_per_call=sum(out.verified_tokens for out in outs) / calls,
        tokens_per_second=new_tokens / seconds,
        calls=calls,
        tokens=tokens,
    )


def _signature(subject: Subject, prompts: int, settings: Settings) -> dict[str, Any]:
    base = BaseModel.of(subject.model)
    model: Any = subject.model
    lm = {}
    if subject.has_heads:
        lm = {"heads": model.num_heads, "k": settings.k, "lm": "none"}
    if subject.has_heads and subject.lm is not None:
        counted = _ngram_model(subject.lm)
        lm["lm"] = f"{counted.order}-gram, {sum(counted.num_ngrams)} n-grams"
        lm["alpha"] = ", ".join(f"{tuning.system} {tuning.alpha:g}" for tuning in tunings_of(subject.lm))
    return {
        "version": __version__,
        "model": subject.name,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        **lm,
        "prompts": prompts,
        "max_new_tokens": settings.max_new_tokens,
        "dtype": str(base.dtype).removeprefix("torch."),
        "device": str(base.device),
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
