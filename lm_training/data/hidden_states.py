"""The hidden states that texts are written from, kept beside them, so that training drafters never runs a frozen base
model.

Beside texts ``written.npz``, or in a directory of them, ``written``, stand (as ``written.hidden`` or
``written/hidden``)::

    hidden.json               of which model, which of its layers, and how many texts a shard has
    shard-00042.safetensors   ``last`` and ``layer-12``, ...: ``[tokens, hidden]`` float16, a row for each token after
                              a prompt: the state that the token was chosen from

``last`` is what the model's output embedding and its heads read, ``layer-n`` what its n-th layer hands on; of an
encoder-decoder, those of its decoder. *Whole* texts' states are those of their prompts too, a row for every token but
the
first: block drafters read them all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fst.files import replacing
from latticebpd.lattices.shards import ShardDirectory
from latticebpd.lattices.texts import Texts
from latticebpd.target.checkpoints import weights_fingerprint
from latticebpd.target.stock_model import BaseModel, Model
from lm_training.data.batching import padded

SETTINGS, LAST = "hidden.json", "last"
SHARD_TEXTS = 512


def states_directory(texts: str | os.PathLike[str]) -> ShardDirectory:
    """Where the hidden states of a file or directory of texts are."""
    path = Path(texts)
    place = path / "hidden" if path.suffix != ".npz" else path.with_suffix(".hidden")
    return ShardDirectory(place, SETTINGS, "latticebpd train hidden", "hidden states", suffix=".safetensors")


def layer_name(layer: int) -> str:
    return f"layer-{layer}"


@dataclass(frozen=True, eq=False)
class HiddenStates:
    """The states of texts, read from their files as they are asked for.

    files: the shards, opened.  places: ``[texts, 2]``: shard, and row in it of the text's first state.
    lengths: ``[texts]`` states of each. written: ``[texts]`` how many of them the written tokens were chosen from, the
        last ones.
    model: hash of the weights of the model whose states they are.  hidden_size: of a state.
    whole: whether all positions of a text but the last are kept, and not only those that written tokens were chosen
        from.
    """

    files: list[Any]
    places: np.ndarray
    lengths: np.ndarray
    written: np.ndarray
    model: str
    hidden_size: int
    whole: bool = False

    def __len__(self) -> int:
        return len(self.lengths)

    def of_text(self, index: int, layer: str = LAST) -> Tensor:
        """``[tokens, hidden]`` float16: what each token that follows a text's prompt was chosen from."""
        return self._rows(index, layer, int(self.lengths[index] - self.written[index]))

    def of_whole_text(self, index: int, layer: str = LAST) -> Tensor:
        """``[positions, hidden]`` float16: of every position that is kept; of a whole text all but the last."""
        return self._rows(index, layer, 0)

    def _rows(self, index: int, layer: str, skipped: int) -> Tensor:
        shard, begin = self.places[index].tolist()
        states: Tensor = self.files[shard].get_slice(layer)[begin + skipped : begin + int(self.lengths[index])]
        return states

    def require_model(self, fingerprint: str, whose: str) -> None:
        """Refuse states of another model than that of the hash, ``whose`` in words.

        Raises:
            ValueError: they are another's.
        """
        if self.model != fingerprint:
            raise ValueError(
                f"expected hidden states of {whose} ({fingerprint}), got some of another model ({self.model}); "
                "make them with this one, in the type in which it is loaded"
            )

    def require_whole(self, layers: Sequence[int]) -> None:
        """Refuse states that lack prompts, or layers.

        Raises:
            ValueError: they must be kept again.
        """
        stored = set.intersection(*(set(file.keys()) for file in self.files)) if self.files else set()
        missing = [layer for layer in layers if layer_name(layer) not in stored]
        if missing or not self.whole:
            raise ValueError(
                f"expected hidden states of whole texts and of layers {', '.join(map(str, layers))}, got"
                f" {'whole texts' if self.whole else 'written tokens only'}"
                f"{f' without layers {missing}' if missing else ''};"
                f" make them with `latticebpd train hidden --whole --layers {','.join(map(str, layers))}`"
            )

    @classmethod
    def joined(cls, parts: Sequence[HiddenStates]) -> HiddenStates:
        """The states of several sets of texts, in order.

        Raises:
            ValueError: they are of several models.
        """
        models = sorted({part.model for part in parts})
        if len(models) > 1:
            raise ValueError(f"expected hidden states of one model, got some of {' and some of '.join(models)}")
        offsets = np.cumsum([0, *(len(part.files) for part in parts)])
        places = [part.places + np.array([offset, 0]) for part, offset in zip(parts, offsets[:-1], strict=True)]
        files = [file for part in parts for file in part.files]
        lengths, written = (np.concatenate([getattr(part, name) for part in parts]) for name in ("lengths", "written"))
        whole = all(part.whole for part in parts)
        return cls(files, np.concatenate(places), lengths, written, models[0], parts[0].hidden_size, whole)


def load_states(path: str | os.PathLike[str], texts: Texts) -> HiddenStates | None:
    """The hidden states beside texts; None where there are none.

    Raises:
        ValueError: some are missing or damaged, or belong to other texts.
    """
    directory = states_directory(path)
    if not directory.is_ours:
        return None
    settings, files, places = directory.settings(), [], []
    whole, written = bool(settings.get("whole")), texts.lengths - texts.prompt_lengths
    kept = unprompted(texts) if whole else texts
    lengths = kept.lengths - kept.prompt_lengths
    try:
        model, size = str(settings["model"]), int(settings["shard_texts"])
        if size < 1:
            raise ValueError(f"shard_texts is {size}")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{directory.path / SETTINGS}: expected settings as `latticebpd train hidden` writes them: {error}"
        ) from error
    paths = directory.files()
    if len(paths) != -(-len(texts) // size):
        raise ValueError(
            f"{directory.path}: expected hidden states of {len(texts)} texts, found those of others; delete the"
            " directory"
        )
    hidden_size = 0
    for number, file in enumerate(paths):
        part = range(number * size, min(len(texts), (number + 1) * size))
        try:
            opened: Any = safe_open(file, framework="pt")
            rows, hidden_size = opened.get_slice(LAST).get_shape()
            written_from = (opened.metadata() or {})["texts"]
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise ValueError(
                f"{file}: expected hidden states as `latticebpd train hidden` writes them: {error!r}"
            ) from error
        if rows != int(lengths[part].sum()) or written_from != kept.chosen(part).fingerprint():
            raise ValueError(
                f"{file}: expected hidden states of the texts in {path}, found those of others; delete it and make it"
                " again"
            )
        files.append(opened)
        begins = np.cumsum([0, *lengths[part][:-1]])
        places.append(np.stack([np.full(len(part), number), begins], axis=1))
    return HiddenStates(files, np.concatenate(places), lengths, written, model, hidden_size, whole)


def unprompted(texts: Texts) -> Texts:
    """The same texts as if all but the first token of each followed its prompt."""
    return Texts(texts.tokens, texts.starts, np.ones_like(texts.prompt_lengths))


def add_states(
    model: Model,
    texts: Texts,
    directory: ShardDirectory,
    layers: Sequence[int] = (),
    shard_texts: int = SHARD_TEXTS,
    part: tuple[int, int] = (0, 1),
    batch_tokens: int = 4096,
    on_text: Callable[[int, int], object] | None = None,
    whole: bool = False,
) -> None:
    """Fill ``directory`` by one pass over every text (teacher forcing); shards that are there already stay.

    Args:
        layers: states of these layers too, counted from 1.
        part: ``(i, n)``: make shards i, i + n, i + 2n, ...
        batch_tokens: tokens read at a time, padding included; at least one text.
        on_text: called with the texts done and the tokens read, for progress.
        whole: states of the prompts too, of all positions of a text but the last.

    Raises:
        ValueError: the directory holds states of another model, or of other layers; texts or layers that the model does
            not have; whole texts of an encoder-decoder, whose prompts are no part of what its decoder reads.
    """
    stock = BaseModel.of(model)
    if whole and stock.is_encoder_decoder:
        raise ValueError(
            "expected a decoder-only model for states of whole texts, got an encoder-decoder; leave --whole out"
        )
    texts = unprompted(texts) if whole else texts
    claim_states(directory, stock, len(texts), layers, shard_texts, whole)
    for number in range(part[0], -(-len(texts) // shard_texts), part[1]):
        chosen = texts.chosen(range(number * shard_texts, min(len(texts), (number + 1) * shard_texts)))
        if directory.file(number).exists():
            if on_text is not None:
                on_text(len(chosen), 0)
            continue
        save_states(directory.file(number), chosen, states_of(stock, chosen, layers, batch_tokens, on_text))


def claim_states(
    directory: ShardDirectory,
    model: BaseModel,
    texts: int,
    layers: Sequence[int],
    shard_texts: int,
    whole: bool = False,
) -> None:
    """Begin with a directory of states, or go on with it."""
    names = (
        ("num_decoder_layers", "decoder_layers", "num_hidden_layers")
        if model.is_encoder_decoder
        else ("num_hidden_layers",)
    )
    deepest = next((int(getattr(model.config, name)) for name in names if getattr(model.config, name, None)), 0)
    if any(not 1 <= layer <= deepest for layer in layers):
        raise ValueError(f"expected layers from 1 to {deepest} (the model's), got {', '.join(map(str, layers))}")
    settings = {"model": weights_fingerprint(model.model), "layers": sorted(set(layers)), "shard_texts": shard_texts}
    directory.claim({"num_shards": -(-texts // shard_texts), **settings, **({"whole": True} if whole else {})})


def save_states(path: Path, texts: Texts, states: dict[str, Tensor]) -> None:
    """Write a shard; it appears whole or not at all.

    Raises:
        ValueError: a state is too large for half precision.
    """
    halves = {name: tensor.to(torch.float16).contiguous() for name, tensor in states.items()}
    for name, tensor in halves.items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(
                f"expected hidden states within half precision (below 65,504), got larger ones ({name}); leave that"
                " layer out"
            )
    with replacing(path) as temporary:
        save_file(halves, temporary, metadata={"texts": texts.fingerprint()})


def read_states(
    model: BaseModel,
    inputs: Tensor,
    sources: Tensor | None = None,
    mask: Tensor | None = None,
    every_layer: bool = False,
) -> list[Tensor]:
    """``[rows, length, hidden]`` the final, normalised hidden states of texts; before them, if asked for, each layer's
    by its number.

    Args:
        inputs: ``[rows, length]`` texts, padded on the right.
        sources, mask: ``[rows, source length]``, what an encoder-decoder's encoder reads, and 1 where that is no
            padding.
    """
    read: dict[str, Any] = {}
    if sources is not None:
        encoded = model.encoder(input_ids=sources, attention_mask=mask).last_hidden_state
        read = {"encoder_hidden_states": encoded, "encoder_attention_mask": mask}
    out = model.decoder(**model.text(inputs), use_cache=False, output_hidden_states=every_layer, **read)
    return [*(out.hidden_states if every_layer else ()), out.last_hidden_state]


@torch.inference_mode()
def states_of(
    model: Model,
    texts: Texts,
    layers: Sequence[int] = (),
    batch_tokens: int = 4096,
    on_text: Callable[[int, int], object] | None = None,
) -> dict[str, Tensor]:
    """``[tokens, hidden]`` each, on the CPU: of every layer asked for and the last, what the tokens behind prompts were
    chosen from."""
    stock = BaseModel.of(model)
    names = [LAST, *map(layer_name, layers)]
    found: list[dict[str, Tensor]] = [{} for _ in range(len(texts))]
    order = np.argsort(texts.lengths, kind="stable").tolist()
    while order:
        width = int(texts.lengths[order[-1]])
        together = [order.pop() for _ in range(min(len(order), max(1, batch_tokens // width)))]
        sources = [texts[index][: texts.prompt_lengths[index]] for index in together]
        rows = [
            texts[index] for index in together
        ]  # the last token is read in vain, so that a prompt alone is read too
        if stock.is_encoder_decoder:
            answers = [texts[index][texts.prompt_lengths[index] :] for index in together]
            rows = [np.concatenate([[stock.start_id], answer]) for answer in answers]
        inputs = torch.from_numpy(padded(rows, 0)[0]).to(stock.device)
        encoded = {}
        if stock.is_encoder_decoder:
            both = zip(("sources", "mask"), padded(sources, stock.pad_id or 0), strict=True)
            encoded = {name: torch.from_numpy(each).to(stock.device) for name, each in both}
        read = read_states(stock, inputs, **encoded, every_layer=bool(layers))
        for place, index in enumerate(together):
            count = int(texts.lengths[index] - texts.prompt_lengths[index])
            begin = 0 if stock.is_encoder_decoder else int(texts.prompt_lengths[index]) - 1
            wanted = [read[-1], *(read[layer] for layer in layers)]
            found[index] = {
                name: each[place, begin : begin + count].cpu() for name, each in zip(names, wanted, strict=True)
            }
        if on_text is not None:
            on_text(len(together), sum(map(len, rows)))
    return {
        name: torch.cat([each[name] for each in found]) if found else torch.empty(0, stock.hidden_size)
        for name in names
    }
