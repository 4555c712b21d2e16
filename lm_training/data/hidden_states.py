"""Stored hidden states of texts, so that training drafters never runs a frozen target model.

The states of ``written.npz``, or of a directory of texts ``written``, are in ``written.hidden`` or ``written/hidden``::

    hidden.json               which model and weights, which of its layers, and how many texts a shard has
    shard-00042.safetensors   ``last`` and ``layer-12``, ...: ``[tokens, hidden]`` float16, for each token after a
                              prompt the state that it was predicted from

``last`` is what the output embedding and the heads read, ``layer-n`` the output of layer n; of an encoder-decoder, of
its decoder. States of *whole* texts include the prompts', one for every token but the first: block drafters read them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fst.files import PathLike
from fst.printable import plain_words
from fst.processors import ignore
from latticebpd.checks import expect
from latticebpd.lattices.shards import ShardDirectory, shares, whole_number
from latticebpd.lattices.texts import Texts, padded
from latticebpd.models.engine.engine_model import EngineModel
from latticebpd.models.target_model import AnyModel, TargetModel, target_model
from latticebpd.models.transformers.checkpoints import save_tensors
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.models.weight_kinds import EXACT
from latticebpd.verification.finished_texts import read_text

SETTINGS, LAST = "hidden.json", "last"


@dataclass(frozen=True)
class StateOptions:
    """Which hidden states are stored, and how.

    layers: whose states are stored next to the last ones, counted from 1.
    whole: store the prompts' states too, of all positions of a text but the last.
    shard_texts: texts per shard.  batch_tokens: tokens read at a time, padding included, but at least one text.
    """

    layers: Sequence[int] = ()
    whole: bool = False
    shard_texts: int = 512
    batch_tokens: int = 4096


def states_directory(texts: PathLike) -> ShardDirectory:
    """The directory of the hidden states of a file or directory of texts."""
    path = Path(texts)
    states = path / "hidden" if path.suffix != ".npz" else path.with_suffix(".hidden")
    return ShardDirectory(states, SETTINGS, "latticebpd train hidden", "hidden states", suffix=".safetensors")


def layer_name(layer: int) -> str:
    return f"layer-{layer}"


@dataclass(frozen=True, eq=False)
class HiddenStates:
    """The states of texts, read from their files on demand.

    files: the opened shards.  rows: ``[texts, 2]`` shard, and row in it of each text's first state.
    lengths: ``[texts]`` states of each. written: ``[texts]`` how many of them, the last ones, predict written tokens.
    model: hash of the model's weights.  hidden_size: width of a state.
    """

    files: list[Any]
    rows: np.ndarray
    lengths: np.ndarray
    written: np.ndarray
    model: str
    hidden_size: int
    whole: bool = False

    def __len__(self) -> int:
        return len(self.lengths)

    def of_text(self, index: int, *layers: str, whole: bool = False) -> Tensor:
        """``[tokens, layers * hidden]`` float16: the states that predict a text's written tokens, by default the last
        ones; all that are stored if ``whole``."""
        (shard, begin), length = self.rows[index].tolist(), int(self.lengths[index])
        rows = slice(begin + (0 if whole else length - int(self.written[index])), begin + length)
        return torch.cat([self.files[shard].get_slice(layer)[rows] for layer in layers or (LAST,)], dim=1)

    def require_size(self, texts: int, name: str, hidden_size: int) -> None:
        """ValueError for another number of texts, or another width."""
        wanted = f"hidden states of {texts} {name} texts, {hidden_size} wide (the model's)"
        expect((len(self), self.hidden_size) == (texts, hidden_size), wanted, f"{len(self)} of {self.hidden_size}")

    def require(self, layers: Sequence[int], whole: bool = False) -> None:
        """ValueError for states that lack one of the layers, or, if ``whole``, prompts."""
        stored = set.intersection(*(set(file.keys()) for file in self.files)) if self.files else set()
        missing = [layer for layer in layers if layer_name(layer) not in stored]
        if missing or (whole and not self.whole):
            got = ("whole texts" if self.whole else "written tokens only") if whole else "those"
            got += f" without layers {missing}" if missing else ""
            wanted = f"{'whole texts and of ' if whole else ''}layers {', '.join(map(str, layers))}"
            command = f"latticebpd train hidden {'--whole ' if whole else ''}--layers {','.join(map(str, layers))}"
            raise ValueError(f"expected hidden states of {wanted}, got {got}; make them with `{command}`")

    @classmethod
    def joined(cls, parts: Sequence[HiddenStates]) -> HiddenStates:
        """The states of several sets of texts, in order; ValueError for states of several models."""
        models = sorted({part.model for part in parts})
        if len(models) > 1:
            raise ValueError(f"expected hidden states of one model, got some of {' and some of '.join(models)}")
        offsets = np.cumsum([0, *(len(part.files) for part in parts)])
        rows = [part.rows + np.array([offset, 0]) for part, offset in zip(parts, offsets[:-1], strict=True)]
        files = [file for part in parts for file in part.files]
        lengths, written = (np.concatenate([getattr(part, name) for part in parts]) for name in ("lengths", "written"))
        whole = all(part.whole for part in parts)
        return cls(files, np.concatenate(rows), lengths, written, models[0], parts[0].hidden_size, whole)


def load_states(path: PathLike, texts: Texts) -> HiddenStates | None:
    """The stored states of a file or directory of texts, if any; ValueError for damaged ones, or other texts'."""
    directory = states_directory(path)
    if not directory.is_ours:
        return None
    expected = "as `latticebpd train hidden` writes them"
    settings, files, rows, hidden_size = directory.settings(), [], [], 0
    whole, written = bool(settings.get("whole")), texts.answer_lengths
    kept = unprompted(texts) if whole else texts
    lengths = kept.answer_lengths
    try:
        model, size = str(settings["model"]), whole_number(settings, "shard_texts")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{directory.path / SETTINGS}: expected settings {expected}: {plain_words(error)}") from error
    paths = directory.files()
    if len(paths) != -(-len(texts) // size):
        what = f"hidden states of {len(texts)} texts, found those of others"
        raise ValueError(f"{directory.path}: expected {what}; delete the directory")
    for (number, part), file in zip(shares(len(texts), size, (0, 1)), paths, strict=True):
        try:
            opened: Any = safe_open(file, framework="pt")
            count, hidden_size = opened.get_slice(LAST).get_shape()
            written_from = (opened.metadata() or {})["texts"]
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise ValueError(f"{file}: expected hidden states {expected}: {error!r}") from error
        if count != int(lengths[part].sum()) or written_from != kept.chosen(part).fingerprint():
            what = f"hidden states of the texts in {path}, found those of others"
            raise ValueError(f"{file}: expected {what}; delete it and make it again")
        files.append(opened)
        rows.append(np.stack([np.full(len(part), number), np.cumsum([0, *lengths[part][:-1]])], axis=1))
    return HiddenStates(files, np.concatenate(rows), lengths, written, model, hidden_size, whole)


def unprompted(texts: Texts) -> Texts:
    """The same texts with prompts of one token."""
    return Texts(texts.tokens, texts.starts, np.ones_like(texts.prompt_lengths))


def add_states(
    model: AnyModel,
    texts: Texts,
    directory: ShardDirectory,
    options: StateOptions,
    part: tuple[int, int] = (0, 1),
    on_text: Callable[[int, int], object] = ignore,
) -> None:
    """Fill ``directory`` by one pass over every text (teacher forcing); existing shards are left unchanged.

    part: ``(i, n)``: make shards i, i + n, i + 2n, ... on_text: called with the texts done and the tokens read. Raises
    ValueError for a directory of another model's states or other layers, texts or layers that do not fit the model, and
    whole texts of an encoder-decoder, whose decoder does not read prompts.
    """
    target = target_model(model)
    if options.whole and target.is_encoder_decoder:
        raise ValueError("expected a decoder-only model for states of whole texts; leave --whole out")
    texts = unprompted(texts) if options.whole else texts
    claim_states(directory, target, len(texts), options)
    for number, rows in shares(len(texts), options.shard_texts, part):
        if not directory.file(number).exists():
            chosen = texts.chosen(rows)
            save_states(directory.file(number), chosen, states_of(target, chosen, options, on_text))
        else:
            on_text(len(rows), 0)


def claim_states(directory: ShardDirectory, target: TargetModel, texts: int, options: StateOptions) -> None:
    """Start to fill a directory of states, or continue; ValueError for unknown layers or other settings."""
    layers = sorted(set(options.layers))
    target.check_layers(layers)
    settings: dict[str, Any] = {"num_shards": -(-texts // options.shard_texts)}
    settings |= {"model": target.fingerprint, "layers": layers, **rounded_weights(target)}
    directory.claim(settings | {"shard_texts": options.shard_texts} | ({"whole": True} if options.whole else {}))


def rounded_weights(target: TargetModel) -> dict[str, str]:
    """The name of the engine's weights as a setting, where they are not the float model's."""
    return {} if target.weights in EXACT else {"weights": target.weights}


def save_states(path: Path, texts: Texts, states: dict[str, Tensor]) -> None:
    """Write a shard, complete or not at all; ValueError for states too large for half precision."""
    halves = {name: tensor.to(torch.float16).contiguous() for name, tensor in states.items()}
    for name, tensor in halves.items():
        wanted = "hidden states within half precision (below 65,504)"
        expect(bool(tensor.isfinite().all()), wanted, f"larger ones ({name})", "leave that layer out")
    save_tensors(path, halves, {"texts": texts.fingerprint()})


def read_states(
    model: TransformersModel,
    every_layer: bool,
    inputs: Tensor,
    sources: Tensor | None = None,
    mask: Tensor | None = None,
) -> list[Tensor]:
    """``[rows, length, hidden]`` the final, normalised hidden states of texts, after those of every layer if asked for.

    inputs: ``[rows, length]`` texts, padded on the right.
    sources, mask: ``[rows, source length]`` the encoder's input of an encoder-decoder, and 0 at padding.
    """
    read: dict[str, Any] = {}
    if sources is not None:
        encoded = model.encoder(input_ids=sources, attention_mask=mask).last_hidden_state
        read = {"encoder_hidden_states": encoded, "encoder_attention_mask": mask}
    out = model.decoder(**model.text(inputs), use_cache=False, output_hidden_states=every_layer, **read)
    return [*(out.hidden_states if every_layer else ()), out.last_hidden_state]


def states_of(
    target: TargetModel, texts: Texts, options: StateOptions, on_text: Callable[[int, int], object] = ignore
) -> dict[str, Tensor]:
    """``[tokens, hidden]`` each, on the CPU: the states that predict the tokens after prompts, by layer name.

    Those of a model on the CPU engine are, to the last bit, those of its decodes.
    """
    if isinstance(target, EngineModel):
        return _engine_states(target, texts, options, on_text)
    assert isinstance(target, TransformersModel)
    return _torch_states(target, texts, options, on_text)


@torch.inference_mode()
def _torch_states(
    stock: TransformersModel, texts: Texts, options: StateOptions, on_text: Callable[[int, int], object]
) -> dict[str, Tensor]:
    names = [LAST, *map(layer_name, options.layers)]
    states: list[dict[str, Tensor]] = [{} for _ in range(len(texts))]
    order = np.argsort(texts.lengths, kind="stable").tolist()
    while order:
        width = int(texts.lengths[order[-1]])
        together = [order.pop() for _ in range(min(len(order), max(1, options.batch_tokens // width)))]
        cuts = [int(texts.prompt_lengths[index]) for index in together]
        rows = [texts[index] for index in together]  # with the last token, so that no prompt leaves an empty row
        sources: tuple[np.ndarray, ...] = ()
        if stock.is_encoder_decoder:
            sources = padded([row[:cut] for row, cut in zip(rows, cuts, strict=True)], stock.pad_id or 0)
            rows = [np.concatenate([[stock.start_id], row[cut:]]) for row, cut in zip(rows, cuts, strict=True)]
        inputs = [torch.from_numpy(array).to(stock.device) for array in (padded(rows, 0)[0], *sources)]
        read = read_states(stock, bool(options.layers), *inputs)
        wanted = [read[-1], *(read[layer] for layer in options.layers)]
        for row, (index, cut) in enumerate(zip(together, cuts, strict=True)):
            begin = 0 if stock.is_encoder_decoder else cut - 1
            columns = slice(begin, begin + int(texts.lengths[index]) - cut)
            states[index] = {name: each[row, columns].cpu() for name, each in zip(names, wanted, strict=True)}
        on_text(len(together), sum(map(len, rows)))
    empty = torch.empty(0, stock.hidden_size)
    return {name: torch.cat([each[name] for each in states]) if states else empty for name in names}


def _engine_states(
    target: EngineModel, texts: Texts, options: StateOptions, on_text: Callable[[int, int], object]
) -> dict[str, Tensor]:
    layers = [layer - 1 for layer in options.layers]
    parts: list[list[np.ndarray]] = [[np.empty((0, target.hidden_size), np.float32)] for _ in range(1 + len(layers))]
    for text, prompt in texts.items():
        if prompt < len(text):
            read = read_text(target, text[:-1], range(0), layers)
            others = np.split(read.layers, len(layers), axis=1) if layers else []
            for part, states in zip(parts, (read.hidden, *others), strict=True):
                part.append(states[prompt - 1 :])
        on_text(1, len(text))
    names = [LAST, *map(layer_name, options.layers)]
    return {name: torch.from_numpy(np.concatenate(part)) for name, part in zip(names, parts, strict=True)}
