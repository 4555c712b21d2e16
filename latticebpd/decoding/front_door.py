"""The one front door: everything that a decode needs, by one name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from zlib import crc32

from fst.files import PathLike
from fst.fingerprint import vocabulary_fingerprint
from latticebpd.decoding.acceptance import Exact
from latticebpd.decoding.decode_rows import taking_arrays
from latticebpd.decoding.loop import Generated, generate
from latticebpd.decoding.pass_costs import kept_costs, profile_drafts
from latticebpd.decoding.showing import Shown, show
from latticebpd.drafters import bundled
from latticebpd.drafters.cost_curve import CostCurve
from latticebpd.drafters.default_systems import default_system, lattice_shape
from latticebpd.drafters.drafter import Drafter
from latticebpd.drafters.family import FamilySource, LoadOptions
from latticebpd.drafters.heads.engine_heads import HEADS_CONFIG, EngineHeadLattices, EngineHeads
from latticebpd.drafters.paying_drafts import Costs
from latticebpd.drafters.system_names import CALIBRATED, drafter_named
from latticebpd.lattices.drafts import DraftTree
from latticebpd.lattices.values import converts
from latticebpd.machine import machine_settings, processor
from latticebpd.models.catalogue import cache_folder, resolved
from latticebpd.models.chat import PlainText, prompt_format
from latticebpd.models.engine.engine_target import UNREADABLE, EngineTarget, engine_target
from latticebpd.models.gguf.gguf_tokenizer import tokenizer_of_gguf
from latticebpd.models.model_tokenizer import ModelTokenizer
from latticebpd.models.weight_kinds import FILE, INT8, TORCH
from latticebpd.scoring.rescoring import is_calibrated

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from latticebpd.drafters.heads.blockwise import BlockwiseLM
    from latticebpd.drafters.heads.head_family import HeadLattices

BUNDLED = "bundled"
"""Name of the bundled model."""
FIRST = 64
"""Tokens that a first draft has room for."""
COLUMNS, CONTEXT = (1, 3, 9, 17), 32
"""Tokens of the passes whose costs are measured for default trees, and of the text before them."""
PLAIN_OPTIONS = frozenset({
    "tokenizer", "eos_token_id", "pad_token_id", "max_new_tokens", "attention_mask", "streamer", "trace", "text_cache",
})  # fmt: skip
"""Options of decodes that a target without PyTorch takes, besides `Exact` and criteria that take arrays."""


class StockModel:
    """A model of ``transformers`` that is loaded when it is first read: most decodes on the engine never do."""

    def __init__(self, load: Callable[[], BlockwiseLM | PreTrainedModel]) -> None:
        self._load = load

    @cached_property
    def model(self) -> BlockwiseLM | PreTrainedModel:
        return self._load()


@converts(model=lambda model: model.model if isinstance(model, StockModel) else model)
@dataclass(frozen=True, eq=False)
class Loaded:
    """A target model and everything that goes with it.

    name: of the model; "bundled" for the bundled one.
    path: where the model was loaded from; its tokenizer is looked up by it.
    model: with heads, where it has some (a ``BlockwiseLM``); else as ``transformers`` has it.
    chat, system_prompt: how texts become prompts, see :func:`load`.
    lm: the file of its language model, which holds weights for several systems; None: no language model.
    own_lm: whether the caller named ``lm``; else it lies next to the model.
    source: lattices of the model's heads or of a drafter model; None: neither.
    target: the model as the engine computes it without PyTorch, and ``text_tokenizer`` its tokenizer; None: the engine
        is a copy of ``model``, or there is none.
    """

    name: str
    path: Path
    model: BlockwiseLM | PreTrainedModel = field(repr=False)
    chat: bool | None = None
    system_prompt: str | None = None
    lm: Path | None = None
    own_lm: bool = False
    source: FamilySource | None = field(default=None, repr=False)
    target: EngineTarget | None = field(default=None, repr=False)
    own_tokenizer: ModelTokenizer | None = field(default=None, repr=False)

    @property
    def base(self) -> Any:
        """The model of ``transformers``, without the heads."""
        return _base(self.model)

    @property
    def weights(self) -> str:
        """What passes are computed from, see :func:`load`."""
        if self.target is not None:
            return FILE
        from latticebpd.models.engine.engine import engine_of

        engine = engine_of(self.base)
        return TORCH if engine is None else engine.weights

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether it encodes a source."""
        return self.target is None and bool(self.base.config.is_encoder_decoder)

    @property
    def text_tokenizer(self) -> Any:
        """What texts are encoded and decoded by: `tokenizer`, or one of the same ids without ``transformers``."""
        return self.tokenizer if self.own_tokenizer is None else self.own_tokenizer

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's; ValueError if it has none that can be read."""
        from latticebpd.drafters.pretrained import load_tokenizer

        return load_tokenizer(self.path)

    @cached_property
    def prompts(self) -> PlainText:
        """How texts become prompts: in the tokenizer's chat template, where it has one."""
        return prompt_format(self.text_tokenizer, self.target or self.model, self.chat, self.system_prompt)

    @cached_property
    def costs(self) -> CostCurve | None:
        """Of calls on this machine, measured now, or on the same day for a downloaded model: default trees are cut by
        them, since every token of a pass over rounded weights costs; None: they are not cut."""
        if self.lm is None or not self._costs_count:
            return None
        if not self.lm.is_relative_to(cache_folder()):
            return self._measured_costs()
        settings = repr((self.path, self.weights, processor(), machine_settings())).encode()
        return kept_costs(self.lm.with_name(f"costs-{crc32(settings):08x}.json"), self._measured_costs)

    def _measured_costs(self) -> CostCurve:
        target, name = self.target or self.model, self.default_system()
        return profile_drafts(target, COLUMNS, lambda costs: self.drafter(name, costs=costs), CONTEXT)

    @property
    def _costs_count(self) -> bool:
        return self.weights in (INT8, FILE) and is_calibrated(self.lm) and self.source is not None

    def default_system(self, alpha: float | None = None, num_nodes: int | None = None, by_cost: bool = False) -> str:
        """The name of the system by default; arguments as for ``latticebpd.drafters.default_systems``."""
        return default_system(self.source, self.lm, self.own_lm, alpha, num_nodes, by_cost)

    def lattice_source(self, k: int = 16, slots: int | None = None) -> FamilySource:
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

        def named(shaped_by: CostCurve | None, cut_by: Costs | None = None) -> Drafter:
            shape = lattice_shape(k, slots, name, self.lm, shaped_by)
            source = None if self.source is None else self.source.with_shape(*shape)
            return drafter_named(name, source, self.lm, alpha, costs=cut_by)

        if system is None and num_nodes is None and costs is None and name.endswith(CALIBRATED) and self._costs_count:
            # Measured once there is a draft to cut, after the first token.
            return named(None, lambda: (named(self.costs), cast("CostCurve", self.costs)))
        return named(costs, costs)

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt: a user's turn, where the model has a chat template; else the beginning of a text."""
        return self.prompts.prompt([text]) if self.in_chat else self.prompts.document(text)

    @property
    def in_chat(self) -> bool:
        """Whether prompts are turns of a chat."""
        return self.prompts.eos_ids is not None

    def decode(self, tokens: Tensor | Sequence[int]) -> str:
        """The text of token ids."""
        return str(self.text_tokenizer.decode([int(token) for token in tokens]))

    def generate(self, text: str | Sequence[int], drafter: Drafter | None = None, **options: Any) -> Generated:
        """Continue a text, or answer it; ``options`` are those of :func:`latticebpd.generate`.

        text: or the ids of a prompt.
        """
        ids = self.encode(text) if isinstance(text, str) else list(text)
        drafter = self.drafter() if drafter is None else drafter
        read = getattr(getattr(drafter, "source", None), "read", None)
        if read is not None:  # an encoder's work goes on while the target reads
            read([ids])
        arguments = {"eos_token_id": self.prompts.eos_ids, **options}
        arguments.setdefault("attention_mask", [[1] * len(ids)])  # no token of a text is padding, whatever its id
        stock = vars(self)["model"]
        # A model that was read may have been changed since, which its engine then refuses.
        is_loaded = isinstance(stock, StockModel) and "model" in vars(stock)
        if self.target is not None and not is_loaded and _is_plain(arguments):
            return generate(self.target, ids, drafter, **arguments)
        return generate(self.model, ids, drafter, **{"tokenizer": self.tokenizer, **arguments})

    def draft(self, text: str, drafter: Drafter | None = None) -> DraftTree:
        """The first draft after a text and, where the drafter reads hidden states, after the next token, which the
        model chooses itself; empty where the drafter has no guess."""
        ids = self.encode(text)
        drafter = self.drafter(self.default_system()) if drafter is None else drafter
        begun = 1 if self.is_encoder_decoder else len(ids)
        # After two more tokens the first call with a draft is over.
        stop = taking_arrays(lambda tokens, scores: tokens.shape[1] >= begun + 2)
        out = self.generate(ids, drafter, max_new_tokens=FIRST, stopping_criteria=[stop], trace=True)
        return out.trace[0].tree if out.trace else DraftTree.empty()

    def show(self, thing: Any) -> Shown:
        """A lattice, a tree, drafts or a decode in words, for notebooks."""
        return show(thing, self.text_tokenizer)


def load(
    name: PathLike | None = None,
    lm: PathLike | None = None,
    dtype: torch.dtype | None = None,
    *,
    drafter: PathLike | None = None,
    chat: bool | None = None,
    system_prompt: str | None = None,
    ignore_beams: bool = False,
    weights: str | None = None,
    bigram: bool = True,
) -> Loaded:
    """A model by name, as every ``--model`` of the command line takes it, with everything that goes with it.

    name: a directory that ``save_pretrained`` wrote, a Hub id, a ``.gguf`` file or a name of ``latticebpd models``;
        None is the bundled model.
    lm: the file of an n-gram model, or a neural rescorer's directory; by default ``lm.fst`` next to the model, if it
        exists.
    dtype: of the weights; by default float32.
    drafter: path of a drafter model of any family (``latticebpd.drafters.registry``); by default the model's heads.
    chat: whether prompts are turns in the tokenizer's chat template; by default where it has one.
    system_prompt: of the chat; by default the template's own.
    ignore_beams: decode greedily even if the model's generation config asks for beam search.
    weights: what passes are computed from (:mod:`latticebpd.models.engine.engine`): ``"float32"``, ``"int8"`` or ``"file"``
        (the blocks of a GGUF file) by the CPU engine, or ``"torch"``. By default the file's where there is one, else
        float32; PyTorch where the engine does not know the model.
    bigram: use what ties neighbouring slots, and the confidence head, of drafters that have them.
    Raises ValueError: there is no such model, or a part of it cannot be read; the message says which.

    Example:
        >>> loaded = load()                          # doctest: +SKIP
        >>> loaded.draft("The history of the city")  # doctest: +SKIP
    """
    directory = Path(bundled.MODEL if name is None else name)
    label = BUNDLED if name is None else directory.name
    if drafter is None and weights in (None, FILE) and str(dtype) in ("None", "torch.float32"):
        path = Path(resolved(directory))
        if (parts := _without_pytorch(path, directory, bigram)) is not None:
            file = _lm_file(path, name, lm)
            return Loaded(label, directory, parts[0], chat, system_prompt, file, lm is not None, *parts[1:])
    from latticebpd.drafters.heads.blockwise import BlockwiseLM
    from latticebpd.drafters.heads.head_family import HeadLattices
    from latticebpd.drafters.registry import check_decodes, load_source
    from latticebpd.models.engine.engine import engine_for

    check_decodes(directory)
    model = _stock_model(directory, dtype, ignore_beams)
    engine = engine_for(_base(model), Path(resolved(directory)), weights)
    if engine is not None and isinstance(model, BlockwiseLM):
        model.use_int8()
    file = _lm_file(Path(resolved(directory)), name, lm)
    loaded = Loaded(label, directory, model, chat, system_prompt, file, lm is not None)
    if drafter is not None:
        return replace(loaded, source=load_source(Path(drafter), loaded, LoadOptions(bigram, engine is not None)))
    return replace(loaded, source=HeadLattices(model, bigram=bigram)) if isinstance(model, BlockwiseLM) else loaded


def _without_pytorch(
    path: Path, directory: Path, bigram: bool
) -> tuple[Any, FamilySource | None, EngineTarget, ModelTokenizer] | None:
    """A model that is read when needed, heads, target and tokenizer; None where the model has to be read first."""
    if (target := engine_target(path)) is None:
        return None
    try:
        own = ModelTokenizer.of_folder(path) if path.is_dir() else tokenizer_of_gguf(target.weights.file)
    except ValueError:
        return None

    def load_stock() -> Any:
        from latticebpd.drafters.heads.blockwise import BlockwiseLM
        from latticebpd.models.engine.engine import share_engine

        model = _stock_model(directory, None)
        share_engine(_base(model), target)
        if isinstance(model, BlockwiseLM):
            model.use_int8()
        return model

    stock = StockModel(load_stock)

    def stock_heads() -> HeadLattices:
        from latticebpd.drafters.heads.head_family import HeadLattices

        model: Any = stock.model
        return HeadLattices(model, bigram=bigram)

    source = None
    try:
        if (path / HEADS_CONFIG).exists():  # read before the engine is built: their float weights are gone by then
            heads = EngineHeads(path, target, vocabulary_fingerprint(own.get_vocab()))
            source = EngineHeadLattices(heads, stock_heads, bigram=bigram)
        return (stock, source, target, own) if target.transformer else None
    except UNREADABLE:
        return None


def _stock_model(
    directory: Path, dtype: torch.dtype | None, ignore_beams: bool = False
) -> BlockwiseLM | PreTrainedModel:
    import torch

    from latticebpd.decoding.generation_config import ignore_beams as without_beams
    from latticebpd.drafters.pretrained import load_model

    model = load_model(directory, dtype or torch.float32)
    if ignore_beams:
        without_beams(model)
    return model


def _base(model: Any) -> Any:
    from latticebpd.models.transformers.transformers_model import BaseModel

    return BaseModel.of(model).model


def _lm_file(path: Path, name: object, lm: PathLike | None) -> Path | None:
    """The language model's file: as given, else the one next to the model, if any."""
    default = bundled.LM if name is None else path / "lm.fst"
    file = Path(lm) if lm is not None else default if name is None or default.exists() else None
    if file is not None and not file.exists():
        raise ValueError(f"{file}: expected an n-gram model or a neural rescorer, found no such file")
    return file


def _is_plain(options: dict[str, Any]) -> bool:
    """Whether a target without PyTorch decodes with these options."""
    others = {name for name, value in options.items() if value is not None} - PLAIN_OPTIONS
    if not others <= {"acceptance", "stopping_criteria"} or type(options.get("acceptance", Exact())) is not Exact:
        return False
    return all(getattr(each, "takes_arrays", False) for each in options.get("stopping_criteria") or ())
