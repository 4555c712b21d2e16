"""Everything that a decode needs, by one name: model, tokenizer, scorer and calibration, and what drafts by default."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteriaList

from latticebpd.decoding.loop import Generated, generate
from latticebpd.decoding.showing import Shown, show
from latticebpd.drafters import Drafter, HeadLattices, bundled, drafter_named
from latticebpd.drafters.default_systems import default_system, lattice_shape
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.drafters.masks.mask_network import refuse_drafter
from latticebpd.drafters.pretrained import lm_beside, load_model, load_tokenizer
from latticebpd.lattices.drafts import DraftTree
from latticebpd.scoring.calibration import Calibration
from latticebpd.scoring.rescoring import as_scorer, calibrated_scorer, is_calibrated
from latticebpd.scoring.scorer import Scorer
from latticebpd.target.chat import ChatTemplate, PlainText, prompt_format
from latticebpd.target.stock_model import BaseModel

FIRST = 64
"""Tokens that a first draft has room for."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model and what belongs to it.

    model: with heads, where some lie beside it (a ``BlockwiseLM``); else as ``transformers`` has it.
    tokenizer: the model's.
    lm: the file of its language model, which holds weights for several systems; None where there is none.
    scorer: ranks paths by that model, with the weight that is stored for the default system; None where there is none.
    calibration: of calibrated trees; None where there is none.
    """

    model: BlockwiseLM | PreTrainedModel = field(repr=False)
    tokenizer: PreTrainedTokenizerBase = field(repr=False)
    lm: Path | None
    scorer: Scorer | None
    calibration: Calibration | None = field(repr=False)

    @property
    def base(self) -> Any:
        """The model of ``transformers``, without the heads."""
        return BaseModel.of(self.model).model

    @property
    def prompts(self) -> PlainText | ChatTemplate:
        """How texts become prompts: in the tokenizer's chat template, where it has one."""
        return prompt_format(self.tokenizer, self.model)

    def drafter(self, system: str | None = None, num_nodes: int = 16, k: int | None = None) -> Drafter:
        """What drafts: as ``latticebpd generate --system`` names it.

        Args:
            system: by default a calibrated tree, where there is a calibration; else copies and a tree of the heads'
                tokens; without heads, copies of what followed the text's last tokens before.
            num_nodes: of the default system's trees.
            k: arcs per slot; by default what a calibration was fitted to, else 16. Of a calibrated tree no more slots
                are asked for than the calibration says that it needs.

        Raises:
            ValueError: no such system, or one that needs heads, a language model or a calibration that there is not.
        """
        heads = isinstance(self.model, BlockwiseLM)
        name = default_system(self.lm, num_nodes=num_nodes, has_heads=heads) if system is None else system
        source = (
            HeadLattices(self.model, *lattice_shape(k, None, name, self.lm))
            if isinstance(self.model, BlockwiseLM)
            else None
        )
        return drafter_named(name, source, self.lm)

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt: a user's turn, where the model has a chat template; else the beginning of a text."""
        prompts = self.prompts
        return prompts.prompt([text]) if prompts.eos_ids is not None else prompts.document(text)

    def decode(self, tokens: Tensor | Sequence[int]) -> str:
        """The text of token ids."""
        return str(self.tokenizer.decode([int(token) for token in tokens]))

    def generate(self, text: str, drafter: Drafter | None = None, **options: Any) -> Generated:
        """Continue a text, or answer it; ``options`` are those of :func:`latticebpd.generate`."""
        ids = self.encode(text)
        given = {"tokenizer": self.tokenizer, "eos_token_id": self.prompts.eos_ids, **options}
        mask = [[1] * len(ids)]  # no token of a text is padding, whatever its id
        return generate(self.model, ids, self.drafter() if drafter is None else drafter, attention_mask=mask, **given)

    def draft(self, text: str, drafter: Drafter | None = None) -> DraftTree:
        """The first draft behind a text and, where the drafter reads hidden states, the next token, which the model
        chooses itself.

        Empty where the drafter has no guess.
        """
        ids = self.encode(text)
        begun = 1 if BaseModel.of(self.model).is_encoder_decoder else len(ids)

        def second(tokens: Any, scores: Any, **kwargs: Any) -> Any:  # a call of the model has been drafted for
            return torch.full((len(tokens),), tokens.shape[1] >= begun + 2)

        stop: Any = StoppingCriteriaList([second])
        found = self.generate(text, drafter, max_new_tokens=FIRST, stopping_criteria=stop, trace=True)
        return found.trace[0].tree if found.trace else DraftTree.empty()

    def show(self, thing: Any) -> Shown:
        """A lattice, a tree, drafts or a decode in words, for notebooks."""
        return show(thing, self.tokenizer)


def load(
    name: str | os.PathLike[str] | None = None,
    lm: str | os.PathLike[str] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Loaded:
    """A model by name, as every ``--model`` of the command line takes it, and all that lies beside it.

    Args:
        name: a directory that ``save_pretrained`` wrote, a hub's name, a ``.gguf`` file or a name of ``latticebpd
            models``; None is the bundled model.
        lm: the file of an n-gram model, or a neural rescorer's directory; by default ``lm.fst`` beside the model, if
            there is one.
        dtype: of the weights.

    Raises:
        ValueError: there is no such model, or a part of it cannot be read; the message says which.

    Example:
        >>> loaded = load()                          # doctest: +SKIP
        >>> loaded.draft("The history of the city")  # doctest: +SKIP
    """
    directory = bundled.MODEL if name is None else name
    refuse_drafter(Path(directory))
    model, tokenizer = load_model(directory, dtype), load_tokenizer(directory)
    beside = bundled.LM if name is None else lm_beside(directory)
    file = beside if lm is None else Path(lm)
    if file is not None and not file.exists():
        raise ValueError(f"{file}: expected an n-gram model or a neural rescorer, found no such file")
    scorer = None if file is None else as_scorer(file, system="16-tree")
    return Loaded(model, tokenizer, file, scorer, calibrated_scorer(file).calibration if is_calibrated(file) else None)
