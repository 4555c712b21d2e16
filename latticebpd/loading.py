"""`load`: everything that a decode needs, by one name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from tokenizers import Tokenizer

from fst.files import FileStamp, PathLike
from fst.fingerprint import vocabulary_fingerprint
from latticebpd.checks import expect
from latticebpd.constraints.constraint import Constraint
from latticebpd.constraints.model_tokens import model_tokens
from latticebpd.constraints.token_automaton import TokenAutomaton
from latticebpd.decoding.decode_rows import accepts_numpy
from latticebpd.decoding.loop import Generated, generate
from latticebpd.decoding.pass_costs import costs_file, kept_costs, profile_drafts
from latticebpd.decoding.showing import Shown, show
from latticebpd.drafters import bundled
from latticebpd.drafters.copies.spelled_copies import SpelledCopies
from latticebpd.drafters.cost_aware import CostAwareDrafter
from latticebpd.drafters.cost_curve import CostCurve
from latticebpd.drafters.default_systems import default_system, lattice_shape
from latticebpd.drafters.drafter import Drafter
from latticebpd.drafters.empty_lattices import EmptyLattices
from latticebpd.drafters.family import DrafterLattices, LoadOptions
from latticebpd.drafters.lattice_drafter import LatticeDrafter
from latticebpd.drafters.mixture import MixtureDrafter
from latticebpd.drafters.registry import check_decodes, family_beside, family_of, load_source
from latticebpd.drafters.strategies import BestTree
from latticebpd.drafters.system_names import CALIBRATED, drafter_named
from latticebpd.lattices.drafts import DraftTree
from latticebpd.lattices.texts import padded
from latticebpd.lattices.values import as_numpy
from latticebpd.models.catalogue import BUNDLED, GGUF_NAME, cache_folder, resolved
from latticebpd.models.chat import PlainText, prompt_format
from latticebpd.models.engine.engine_model import EngineModel, gguf_of
from latticebpd.models.load_target import load_target, tokenizer_for
from latticebpd.models.number_fields import GENERATION, check_numbers
from latticebpd.models.target_model import TargetModel
from latticebpd.models.weight_kinds import GGUF, INT8
from latticebpd.scoring.rescoring import is_calibrated

if TYPE_CHECKING:
    import torch

FIRST_DRAFT_TOKENS = 64
"""Tokens that a first draft has room for."""
MEASURED_WIDTHS, MEASURED_CONTEXT = (1, 3, 9, 17), 32
"""Tokens of the passes whose costs are measured for default trees, and of the text before them."""
LARGEST_TREE, LEGAL_NODES = 64, 8
"""Nodes of default trees before they are cut; those that are searched under a constraint."""
SURE = 0.55
"""Probability of a copy by spelling from which on nothing else is drafted."""
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
"""Arguments of `Loaded.generate` that describe a sampled text, besides ``do_sample`` and ``seed``."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """A target model and everything that goes with it.

    name: of the model; "bundled" for the bundled one.
    path: as it was named.  folder: the directory or file that it was loaded from.
    target: what computes it: an ``EngineModel`` on the CPU engine, or a ``TransformersModel`` on PyTorch.
    chat, system_prompt: how texts become prompts, see :func:`load`.
    lm: the file of its language model, which holds weights for several systems; None: no language model.
    lm_from_caller: whether the caller named ``lm``; else it lies next to the model.
    source: lattices of the model's heads or MTP layers, or of a drafter model; None: none of them.
    gguf: the GGUF file that the model or its weights were loaded from, if any; it must not change.

    A copy shares what the CPU engine holds; a pickled one is loaded again by its name.
    """

    name: str
    path: Path
    folder: Path
    target: TargetModel = field(repr=False)
    chat: bool | None = None
    system_prompt: str | None = None
    lm: Path | None = None
    lm_from_caller: bool = False
    source: DrafterLattices | None = field(default=None, repr=False)
    gguf: FileStamp | None = field(default=None, repr=False)

    @property
    def weights(self) -> str:
        """What passes are computed from, see :func:`load`."""
        return self.target.weights

    @cached_property
    def tokenizer(self) -> Any:
        """The model's, with the interface of ``transformers``' tokenizers; ValueError if none can be read."""
        self._check_file()
        return tokenizer_for(self.target, self.path)

    @cached_property
    def prompts(self) -> PlainText:
        """How texts become prompts: in the tokenizer's chat template, where it has one."""
        return prompt_format(self.tokenizer, self.target, self.chat, self.system_prompt)

    @cached_property
    def costs(self) -> CostCurve | None:
        """Of calls on this machine, measured now, or on the same day for a downloaded model or a GGUF file: default
        drafts are cut by them, since every token of a pass over quantized weights costs; None: they are not cut."""
        if not self._costs_count:
            return None
        if self.weights != GGUF and not self.folder.is_relative_to(cache_folder()):
            return self._measured_costs()
        return kept_costs(costs_file(self.folder, self.weights, self.default_system()), self._measured_costs)

    def _measured_costs(self) -> CostCurve:
        name = self.default_system()
        return profile_drafts(
            self.target, MEASURED_WIDTHS, lambda costs: self.drafter(name, costs=costs), MEASURED_CONTEXT
        )

    @property
    def _costs_count(self) -> bool:
        return self.weights in (INT8, GGUF) and (self.source is None or is_calibrated(self.lm))

    def default_system(self, alpha: float | None = None, num_nodes: int | None = None, by_cost: bool = False) -> str:
        """The name of the system by default; arguments as for ``latticebpd.drafters.default_systems``."""
        return default_system(self.source, self.lm, self.lm_from_caller, alpha, num_nodes, by_cost)

    def lattice_source(self, k: int = 16, slots: int | None = None) -> DrafterLattices:
        """The source of lattices with ``k`` arcs per slot and its first ``slots`` slots; None: all. ValueError if the
        model has no heads, and no drafter was loaded."""
        if self.source is None:
            raise ValueError(f"{self.name}: expected a model with heads, got one without; see `latticebpd train heads`")
        return self.source.with_shape(k, slots)

    def drafter(
        self,
        system: str | None = None,
        num_nodes: int | None = None,
        k: int | None = None,
        slots: int | None = None,
        alpha: float | None = None,
        costs: CostCurve | None = None,
    ) -> Drafter:
        """A drafter by the name of its system, as ``latticebpd generate --system`` takes it; ValueError for no such
        system, or one that needs heads, a language model or a calibration that is missing.

        system: by default :meth:`default_system`.
        k: arcs per slot; by default what a calibration was fitted to, else 16.
        slots: the first so many slots only; by default what a calibration says that its trees need, else all.
        alpha: weight of the language model; by default the stored one.
        costs: of passes: trees are cut to the size that promises the most tokens a second; by default
            :attr:`costs` for a calibrated default system of unspecified size.
        """
        name = self.default_system(alpha, num_nodes, costs is not None) if system is None else system

        def named(shaped_by: CostCurve | None) -> Drafter:
            if self.source is None:
                return drafter_named(name, self._empty_lattices, self.lm, alpha, costs=costs)
            shape = lattice_shape(k, slots, name, self.lm, shaped_by)
            return drafter_named(name, self.source.with_shape(*shape), self.lm, alpha, costs=costs)

        is_default = system is None and num_nodes is None and costs is None
        if is_default and name.endswith(CALIBRATED) and self._costs_count:

            def measured() -> tuple[Drafter, CostCurve]:
                return self._with_spelled_copies(named(self.costs)), cast("CostCurve", self.costs)

            # Once there is a draft to cut, after the first token.
            return CostAwareDrafter(self._with_spelled_copies(named(None)), measured)
        return named(costs)

    def _with_spelled_copies(self, drafter: Drafter) -> Drafter:
        """A drafter of calibrated trees and, under a constraint, copies by spelling before them."""
        if not isinstance(getattr(self.tokenizer, "backend_tokenizer", None), Tokenizer):
            return drafter
        assert isinstance(drafter, LatticeDrafter)
        assert isinstance(drafter.strategy, BestTree)
        drafter.strategy = replace(drafter.strategy, legal_nodes=LEGAL_NODES)
        spelled = SpelledCopies(model_tokens(self.tokenizer, self.target.vocab_size))
        return MixtureDrafter(spelled, drafter, LARGEST_TREE, SURE)

    @cached_property
    def _empty_lattices(self) -> EmptyLattices:
        hashed = None if self.lm is None else vocabulary_fingerprint(self.tokenizer.get_vocab())
        return EmptyLattices(self.target.vocab_size, hashed)

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt: a user's turn, where the model has a chat template; else the beginning of a text."""
        return self.prompts.prompt([text]) if self.in_chat else self.prompts.document(text)

    @property
    def in_chat(self) -> bool:
        """Whether prompts are turns of a chat."""
        return self.prompts.eos_ids is not None

    def decode(self, tokens: Any) -> str:
        """The text of token ids."""
        return str(self.tokenizer.decode([int(token) for token in tokens]))

    def generate(self, text: Any, drafter: Drafter | None = None, **options: Any) -> Generated:
        """Continue texts, or answer them.

        text: a text, or several, which are decoded as one batch; or token ids: a list, an array or a tensor, ``[n]``
            or ``[rows, n]`` with an ``attention_mask`` in ``options`` where rows are padded.
        drafter: by default that of :meth:`drafter`.
        options: those of :func:`latticebpd.generate`, and of ``transformers``' sampling: ``do_sample``,
            ``temperature``, ``top_k``, ``top_p``, ``min_p``, ``typical_p``, ``epsilon_cutoff``, ``eta_cutoff``;
            ``seed`` makes a sampled text repeatable. A temperature above 0 samples; ``do_sample=False`` does not.
        """
        self._check_file()
        ids, mask = self._prompts(text)
        drafter = self.drafter() if drafter is None else drafter
        read = getattr(getattr(drafter, "source", None), "read", None)
        if read is not None:  # an encoder's work goes on while the target reads
            read([row[seen].tolist() for row, seen in zip(ids, mask, strict=True)])
        arguments: dict[str, Any] = {"eos_token_id": self.prompts.eos_ids, "attention_mask": mask.astype(int).tolist()}
        arguments |= self._with_sampling(options)
        return generate(self.target, ids, drafter, **{"tokenizer": self.tokenizer, **arguments})

    def _check_file(self) -> None:
        """ValueError where the GGUF file has changed, whose tokenizer would not fit the loaded weights."""
        if self.gguf is not None:
            self.gguf.check()

    def _prompts(self, text: Any) -> tuple[np.ndarray, np.ndarray]:
        """``[rows, n]`` ids, and which of them are no padding. No token of a given text is padding,
        whatever its id, unless an ``attention_mask`` says so."""
        if isinstance(text, str):
            text = [self.encode(text)]
        elif isinstance(text, Sequence) and text and all(isinstance(each, str) for each in text):
            # A text goes on at its prompt's right end; an encoder counts a source's positions from the left.
            left = not self.target.is_encoder_decoder
            ids, mask = padded([self.encode(each) for each in text], self.target.pad_id or 0, left)
            return ids, mask.astype(bool)
        wanted = "a text, a list of texts, or token ids [n] or [rows, n]"
        expect(not isinstance(text, Mapping), wanted, "a tokenizer's output", "pass its input_ids and attention_mask")
        try:
            ids = as_numpy(text)
        except (ValueError, TypeError) as error:
            got = f"{type(text).__name__} ({error})"
            raise ValueError(f"expected {wanted}, got {got}") from error
        expect(ids.size, "a prompt of at least one token", "none")
        fits = ids.dtype.kind in "iu" and ids.ndim in (1, 2)
        expect(fits, wanted, f"{ids.dtype} of shape {ids.shape}")
        ids = ids[None] if ids.ndim == 1 else ids
        return ids, np.ones_like(ids, bool)

    def _with_sampling(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options with an acceptance rule in place of those of sampling; ValueError for both."""
        asked = {name: options[name] for name in SAMPLING if options.get(name) is not None}
        rest = {name: value for name, value in options.items() if name not in (*SAMPLING, "do_sample", "seed")}
        check_numbers(GENERATION, asked, "")
        do_sample, seed = options.get("do_sample"), options.get("seed")
        samples = bool(asked.get("temperature")) if do_sample is None else do_sample
        if not samples:
            names = ", ".join(sorted(asked.keys() - {"temperature"}))
            expect(not names, "do_sample=True or a temperature above 0", names, "these describe a sampled text")
            return rest
        expect(options.get("acceptance") is None, "sampling or an acceptance rule", "both", "leave one out")
        from latticebpd.decoding.acceptance import Sampling

        generator = None
        expect(seed is None or isinstance(seed, int), "a whole number as seed", repr(seed))
        if seed is not None:
            import torch

            generator = torch.Generator(self.target.device).manual_seed(seed)
        return {**rest, "acceptance": Sampling(generator=generator, **asked)}

    def draft(self, text: str, drafter: Drafter | None = None) -> DraftTree:
        """The first draft after a text and, where the drafter reads hidden states, after the next token, which the
        model chooses itself; empty where the drafter has no guess."""
        ids = self.encode(text)
        drafter = self.drafter(self.default_system()) if drafter is None else drafter
        begun = 1 if self.target.is_encoder_decoder else len(ids)
        # After two more tokens the first call with a draft is over.
        stop = accepts_numpy(lambda tokens, scores: tokens.shape[1] >= begun + 2)
        out = self.generate(ids, drafter, max_new_tokens=FIRST_DRAFT_TOKENS, stopping_criteria=[stop], trace=True)
        return out.trace[0].tree if out.trace else DraftTree.empty()

    def automaton(self, constraint: Constraint) -> TokenAutomaton:
        """A constraint over the model's tokens, which `rescore` and `draft_tree` take; ValueError where it does not fit
        them."""
        eos_ids = self.prompts.eos_ids or self.target.eos_ids
        return constraint.automaton(model_tokens(self.tokenizer, self.target.vocab_size), list(eos_ids))

    def show(self, thing: Any) -> Shown:
        """A lattice, a tree, drafts or a decode in words, for notebooks."""
        return show(thing, self.tokenizer)


def load(
    name: PathLike | None = None,
    lm: PathLike | None = None,
    dtype: str | torch.dtype | None = None,
    *,
    drafter: PathLike | None = None,
    device: str | torch.device | None = None,
    chat: bool | None = None,
    system_prompt: str | None = None,
    ignore_beams: bool = False,
    weights: str | None = None,
    bigram: bool = True,
) -> Loaded:
    """A model by name, as every ``--model`` of the command line takes it, with everything that goes with it.

    name: a directory that ``save_pretrained`` wrote, a Hub id, a ``.gguf`` file or a name of ``latticebpd models``;
        ``"bundled"`` or None is the bundled model.
    lm: the file of an n-gram model, or a neural rescorer's directory; by default ``lm.fst`` next to the model, if it
        exists.
    dtype, device: of a model on PyTorch: ``"float16"`` or ``torch.float16``, ``"cuda"``; by default float32 on the CPU.
    drafter: path of a drafter model of any family (``latticebpd.drafters.registry``); by default the model's heads or
        multi-token prediction layers.
    chat: whether prompts are turns in the tokenizer's chat template; by default where it has one.
    system_prompt: of the chat; by default the template's own.
    ignore_beams: decode greedily even if the model's generation config asks for beam search.
    weights: what passes are computed from: ``"float32"``, ``"int8"`` or ``"gguf"`` (the blocks of a GGUF file) by the
        CPU engine, or ``"torch"``. By default the file's where there is one, else float32; PyTorch for models and
        drafters that the engine does not support, and for another device or dtype.
    bigram: use what ties neighbouring slots, and the confidence head, of drafters that have them.
    Raises ValueError: there is no such model, or a part of it cannot be read; the message says which.

    Example:
        >>> loaded = load()                          # doctest: +SKIP
        >>> loaded.draft("The history of the city")  # doctest: +SKIP
    """
    if name is not None and resolved(name) == bundled.MODEL != Path(name):
        name = None
    path = Path(bundled.MODEL if name is None else name)
    folder = Path(resolved(path))
    family = family_beside(folder) if drafter is None else family_of(Path(drafter))
    if (family is None or drafter is not None) and folder.is_dir() and not (folder / GGUF_NAME).exists():
        check_decodes(folder)
    drafts = folder if drafter is None else Path(drafter)
    gguf = None if (file := gguf_of(folder)) is None else FileStamp.of(file)
    on_engine = family is None or family.runs_beside_engine(drafts)
    target = load_target(path, weights, device=device, dtype=dtype, ignore_beams=ignore_beams, on_engine=on_engine)
    label = BUNDLED if name is None else path.name
    gguf = gguf if folder.is_file() or target.weights == GGUF else None
    model_lm = _lm_file(folder, name, lm)
    loaded = Loaded(label, path, folder, target, chat, system_prompt, model_lm, lm is not None, gguf=gguf)
    if family is not None or drafter is not None:
        loaded = replace(loaded, source=load_source(drafts, loaded, LoadOptions(bigram)))
    if isinstance(target, EngineModel):
        _ = target.transformer  # after the heads, whose float weights are gone by now
    loaded._check_file()
    return loaded


def _lm_file(path: Path, name: object, lm: PathLike | None) -> Path | None:
    """The language model's file: as given, else the one next to the model, if any."""
    default = bundled.LM if name is None else path / "lm.fst"
    file = Path(lm) if lm is not None else default if name is None or default.exists() else None
    if file is not None and not file.exists():
        raise ValueError(f"{file}: expected an n-gram model or a neural rescorer, found no such file")
    return file
