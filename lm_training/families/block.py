"""Training block drafters (DFlash, Chen 2026; JetSpec; DSpark; DFlash 2; LiLiCorr) on a target's own text and its
hidden states.

An *anchor* is a written token that others follow. Each of a few random anchors of a text starts a block; one pass
fills all blocks under one mask (`latticebpd.drafters.block.block_network.anchored_blocks`). The target's states come
from files, or from a pass over the texts; its embedding and output projection stay frozen. The label ``x_m`` of slot m
is the m-th token after the anchor; slots beyond the text, or whose token is not drafted, have none. Over all labelled
slots::

    loss = sum_m w_m L_m / sum_m w_m      w_m = exp(-(m - 1) / gamma): a token is accepted only if all before it are

    cross-entropy       L_m = - log q_m(x_m)
    forward KL          L_m = T^2 KL(p_m^(1/T) || q_m^(1/T)), p_m the target's own distribution after x_(m-1) (JetSpec)

both over the drafted tokens. A low-rank *bigram* (DSpark's Markov head) adds scores for the token before to a slot's
logits, in training the text's own. A selector's and a reranker's losses are added (`transition_losses`). Each of these
heads can also be trained by themselves, on a frozen drafter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from fst.files import PathLike
from latticebpd.checks import expect
from latticebpd.drafters.block.block_checkpoints import save_block_drafter
from latticebpd.drafters.block.block_network import BlockConfig, BlockDrafter, anchored_blocks
from latticebpd.drafters.block.learned_transitions import Candidates, step_scores
from latticebpd.lattices.texts import padded
from latticebpd.models.load_target import Name
from latticebpd.models.transformers.checkpoints import weights_fingerprint
from latticebpd.models.transformers.transformers_model import Model, TransformersModel
from lm_training.data.batching import rows_of_step
from lm_training.data.hidden_states import layer_name, read_states
from lm_training.data.shortlist import fingerprint, shortlist_indices
from lm_training.data.training_data import HeadData
from lm_training.families.transition_losses import reranker_losses, selector_losses, teacher_forced
from lm_training.training.measures import TOP
from lm_training.training.model_texts import ModelTexts
from lm_training.training.optimizers import adamw_and_muon
from lm_training.training.training_loop import Objective, Process, Trainer, rounded
from lm_training.training.training_options import BlockDrafterTraining

UNLABELLED = -1
BEHIND = 1e5
"""What takes other tokens' logits below a slot's candidates."""


@dataclass(frozen=True, eq=False)
class BlockBatch:
    """Blocks of several texts.

    states: ``[rows, context, layers * hidden]`` of the target's layers, zeros after a text's end.
    last: ``[rows, blocks, slots, hidden]`` the target's states that predict the slots' tokens, if asked for.
    anchors: ``[rows, blocks]`` positions; surplus ones are 0 and have no labels.
    tokens: ``[rows, blocks * block_size]`` each block's anchor and masks.
    inside: ``[rows, blocks, slots]`` whether a slot is one of the text's.
    labels: ``[rows, blocks, slots]`` indices of the drafted tokens, or ``UNLABELLED``.
    previous: ``[rows, blocks, slots]`` the token before each slot, of the target's vocabulary.
    counts: ``[slots]`` labels, the mean over the parts of a step.
    """

    states: Tensor
    last: Tensor | None
    anchors: Tensor
    tokens: Tensor
    inside: Tensor
    labels: Tensor
    previous: Tensor
    counts: Tensor


class BlockSampler:
    """Makes batches of chosen texts.

    data: texts, with states of every position or none: then the target, on the drafter's device, reads the texts.
    blocks: of each text. with_last: whether batches hold the states that predict the slots' tokens. Raises ValueError
    for other states, and texts that the target cannot read.
    """

    def __init__(
        self, target: Model, drafter: BlockDrafter, data: HeadData, name: str, blocks: int, with_last: bool = False
    ) -> None:
        self.config: BlockConfig = drafter.config
        self.device, self.blocks, self.with_last = drafter.device, blocks, with_last
        layers = [layer + 1 for layer in self.config.target_layer_ids]  # files count from 1
        if data.states is not None:
            data.states.require(layers, whole=True)
            data.states.require_size(len(data.texts), name, self.config.hidden_size)
        self.target, self.layers = TransformersModel.of(target), layers
        self.texts, self.states = ModelTexts.of(target, data.texts, name).texts, data.states
        drafted = drafter.draft_tokens
        self.indices = shortlist_indices(self.config.vocab_size, None if drafted is None else drafted.cpu().numpy())

    def __len__(self) -> int:
        return len(self.texts)

    def anchors(self, index: int, rng: np.random.Generator) -> np.ndarray:
        """``[n]`` at most ``blocks`` different random anchors of a text, ascending."""
        first, end = int(self.texts.prompt_lengths[index]), int(self.texts.lengths[index]) - 1
        return np.sort(rng.permutation(np.arange(first, max(first, end)))[: self.blocks])

    def batch(self, chosen: Sequence[int], anchors: Sequence[np.ndarray], part: int = 0, parts: int = 1) -> BlockBatch:
        """Part of a step's texts, with blocks after the given anchors of each."""
        config, blocks = self.config, max([1, *map(len, anchors)])
        slots = [self._slots(index, drawn, blocks) for index, drawn in zip(chosen, anchors, strict=True)]
        counts = sum(((labels >= 0).sum(axis=0) for _, _, labels in slots), np.zeros(config.slots, np.int64)) / parts
        mine = range(part, len(chosen), parts)
        positions = np.zeros((len(mine), blocks), np.int64)
        tokens = np.full((len(mine), blocks, config.block_size), config.mask_token_id)
        for row, turn in enumerate(mine):
            positions[row, : len(anchors[turn])] = anchors[turn]
            tokens[row, :, 0] = self.texts[chosen[turn]][positions[row]]
        inside, previous, labels = (np.stack([slots[turn][kind] for turn in mine]) for kind in range(3))
        context = max(1, int(positions.max(initial=0)))  # layers need a context
        where = torch.device("cpu") if self.states is not None else self.device
        states = torch.zeros(len(mine), context, len(self.layers) * config.hidden_size, device=where)
        last = torch.zeros(*labels.shape, config.hidden_size, device=where) if self.with_last else None
        for row, (read, predicting) in enumerate(self._read([chosen[turn] for turn in mine])):
            length = min(context, len(read))
            states[row, :length] = read[:length]
            if last is not None and predicting is not None:
                columns = (positions[row][:, None] + np.arange(config.slots))[inside[row]]
                last[row][torch.from_numpy(inside[row])] = predicting[torch.from_numpy(columns)].float()
        arrays = (positions, tokens.reshape(len(mine), -1), inside, labels, previous, counts.astype(np.float32))
        moved = (torch.from_numpy(array).to(self.device) for array in arrays)
        return BlockBatch(states.to(self.device), None if last is None else last.to(self.device), *moved)

    def _read(self, chosen: Sequence[int]) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Each text's states of the layers and, if batches hold them, those that predict its tokens."""
        if self.states is not None:
            names = [*map(layer_name, self.layers)]
            for index in chosen:
                last = self.states.of_text(index, whole=True) if self.with_last else None
                yield self.states.of_text(index, *names, whole=True), last
            return
        inputs = torch.from_numpy(padded([self.texts[index] for index in chosen], 0)[0]).to(self.device)
        with torch.no_grad():
            read = read_states(self.target, True, inputs)
        layers = torch.cat([read[layer] for layer in self.layers], dim=-1)
        for row, index in enumerate(chosen):
            length = int(self.texts.lengths[index]) - 1
            yield layers[row, :length], read[-1][row, :length]

    def _slots(self, index: int, anchors: np.ndarray, blocks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """``[blocks, slots]`` each: whether a slot is the text's, the token before it, and its label."""
        row, slots = self.texts[index].astype(np.int64), np.arange(self.config.slots)
        inside, previous = np.zeros((blocks, len(slots)), bool), np.zeros((blocks, len(slots)), np.int64)
        labels = np.full_like(previous, UNLABELLED)
        positions = anchors[:, None] + slots
        inside[: len(anchors)] = positions + 1 < len(row)
        previous[: len(anchors)] = row[np.minimum(positions, len(row) - 1)]
        labels[inside] = self.indices[row[(positions + 1)[inside[: len(anchors)]]]]
        return inside, previous, labels


class BlockObjective(Objective[BlockBatch, BlockDrafterTraining]):
    """Trains a block drafter, or those of its parameters that require gradients.

    drafter, target: on the device of the training; the target gives its embedding and output projection.
    """

    def __init__(
        self,
        drafter: BlockDrafter,
        target: PreTrainedModel,
        data: HeadData,
        validation: HeadData,
        options: BlockDrafterTraining,
    ) -> None:
        super().__init__(options, data.texts)
        with_last = options.objective == "kl" or drafter.lilicorr is not None
        self.data = BlockSampler(target, drafter, data, "training", options.anchors, with_last)
        self.validation = BlockSampler(target, drafter, validation, "validation", options.anchors)
        wanted = "training texts of at least 2 written tokens (an anchor and a label)"
        expect(data.texts.answer_lengths.max(initial=0) >= 2, wanted)
        self.drafter, self.embedding = drafter, target.get_input_embeddings()
        projection = TransformersModel.of(target).projection
        self.project = drafter.output(projection)
        self.target = projection if drafter.draft_tokens is None else projection.over(drafter.draft_tokens)
        self.frozen = not any(weight.requires_grad for weight in drafter.layers.parameters())
        self.decay = torch.exp(-torch.arange(drafter.config.slots) / options.gamma).to(drafter.device)
        blocks = options.anchors * drafter.config.block_size
        self.tokens_per_step = round(options.batch_size * (len(data.texts.tokens) / len(data.texts) + blocks))

    def batch(self, step: int, part: int, parts: int) -> BlockBatch:
        chosen = rows_of_step(len(self.data), self.options.batch_size, step, self.options.seed, parts)
        rng = np.random.default_rng([self.options.seed, step])
        return self.data.batch(chosen, [self.data.anchors(index, rng) for index in chosen], part, parts)

    def hidden(self, batch: BlockBatch) -> Tensor:
        """``[rows, blocks, slots, hidden]``: the states that predict the slots' tokens."""
        config, context = self.drafter.config, batch.states.shape[1]
        positions, visible = anchored_blocks(batch.anchors, config.block_size, context, config.causal_head)
        read = torch.arange(context, device=batch.states.device).expand(batch.states.shape[:2])
        with torch.no_grad() if self.frozen else contextlib.nullcontext():
            block = self.embedding(batch.tokens).to(self.drafter.dtype)
            return self.drafter.slot_states(self.drafter(batch.states, read, block, positions, visible))

    def logits(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """``[n, hidden]`` states and ``[n]`` tokens before them -> ``[n, tokens]``, of those that are drafted."""
        logits = self.project(hidden).float()
        return logits if self.drafter.markov_head is None else logits + self.drafter.markov_head(previous).float()

    def forward(self, batch: BlockBatch) -> dict[str, Tensor]:
        """``loss``, the block's own ``slot_losses``, ``[slots]``, a selector's or reranker's ``transition_loss``; in
        nats."""
        known, hidden = batch.labels >= 0, self.hidden(batch)
        every = self.project(hidden).float() if self.drafter.lilicorr is not None else None
        logits = self.logits(hidden[known], batch.previous[known]) if every is None else every[known]
        if self.options.objective == "ce":
            losses = F.cross_entropy(logits, batch.labels[known], reduction="none")
        else:
            warm = self.options.temperature
            assert batch.last is not None
            with torch.no_grad():
                wanted = (self.target(batch.last[known]).float() / warm).log_softmax(dim=-1)
            own = (logits / warm).log_softmax(dim=-1)
            losses = F.kl_div(own, wanted, reduction="none", log_target=True).sum(dim=-1) * warm**2
        added: dict[str, Tensor] = {}
        if self.drafter.candidate_selector is not None:
            labelled = (hidden[known], batch.previous[known], batch.labels[known])
            added["transition_loss"] = selector_losses(self.drafter, logits, *labelled)
        if every is not None:
            assert batch.last is not None
            candidates, walked = self.walk(batch, hidden, every)
            learnt = reranker_losses(*walked, candidates.indices, self.target, batch.last.flatten(0, 1))
            added["transition_loss"] = learnt.view(known.shape)[known]

        def by_slot(values: Tensor) -> Tensor:
            spread = torch.zeros(known.shape, dtype=values.dtype, device=values.device)
            return spread.masked_scatter(known, values).sum(dim=(0, 1))

        sums, norm = by_slot(losses), (batch.counts * self.decay).sum().clamp(min=1e-6)
        means = {name: (by_slot(each) * self.decay).sum() / norm for name, each in added.items()}
        loss = (sums * self.decay).sum() / norm + sum(means.values())
        return {"loss": loss, "slot_losses": sums / batch.counts.clamp(min=1e-6), **means}

    def walk(
        self, batch: BlockBatch, hidden: Tensor, logits: Tensor
    ) -> tuple[Candidates, tuple[Tensor, Tensor, Tensor]]:
        """Each block's candidates, and what a walk along the text sees of their lattice (`teacher_forced`)."""
        drafter, before = self.drafter, (batch.anchors - 1).clamp(min=0)
        candidates = Candidates.of(drafter, logits.flatten(0, 1), drafter.config.max_candidates)
        with torch.no_grad() if self.frozen else contextlib.nullcontext():
            rows = torch.arange(len(before), device=before.device)[:, None]
            contexts = drafter.context(batch.states[rows, before]) * (batch.anchors > 0)[..., None]
        block = (hidden.flatten(0, 1), batch.previous[..., 0].flatten(), contexts.flatten(0, 1))
        weight: Any = self.embedding.weight
        scores = step_scores(drafter, candidates, *block, weight.detach())
        return candidates, teacher_forced(candidates, batch.labels.flatten(0, 1), scores)

    def optimizers(self) -> list[torch.optim.Optimizer]:
        heads = (self.drafter.markov_head, self.drafter.candidate_selector)
        tables = [weight for head in heads if head is not None for weight in head.parameters()]
        if self.drafter.lilicorr is not None:
            tables.append(self.drafter.lilicorr.relative_slot_bias)
        dtype = torch.bfloat16 if self.options.precision == "bfloat16" else None
        return adamw_and_muon(self.drafter, self.options, by_adamw=tables, dtype=dtype)

    @torch.no_grad()
    def validate(self) -> dict[str, Any]:
        """Cross-entropy and accuracy by slot, after fixed random anchors and the text's own tokens.

        A label that is not drafted is in no loss and counts as missed. ``chain_block_efficiency``: tokens per call for
        drafts of each slot's best token, after those before it where a head ties them, the target's own token included.
        """
        slots, rng = self.drafter.config.slots, np.random.default_rng(self.options.seed)
        count, known, loss, hits = np.zeros(slots), np.zeros(slots), np.zeros(slots), np.zeros((len(TOP), slots))
        blocks, committed = 0, 0
        for index in range(min(self.options.validation_sequences, len(self.validation))):
            batch = self.validation.batch([index], [self.validation.anchors(index, rng)])
            labelled, labels = batch.labels >= 0, batch.labels.clamp(min=0)
            hidden = self.hidden(batch)
            logits = self.logits(hidden.flatten(0, 2), batch.previous.flatten()).unflatten(0, labels.shape)
            losses = F.cross_entropy(logits.movedim(-1, 1), labels, reduction="none")
            if self.drafter.config.max_candidates:  # they come before all others
                candidates, (scores, *_) = self.walk(batch, hidden, logits)
                first = (each.view(*labels.shape, -1) for each in (candidates.indices, scores))
                logits = (logits - BEHIND).scatter(-1, *first)
            rank = (logits > logits.gather(-1, labels[..., None])).sum(dim=-1)
            right = [(rank < top) & labelled for top in TOP]
            loss += _by_slot(losses * labelled)
            hits += np.stack([_by_slot(each) for each in right])
            known += _by_slot(labelled)
            count += _by_slot(batch.inside)
            blocks += int(batch.inside[..., 0].sum())
            committed += int(right[0].long().cumprod(dim=-1).sum())
        if not known.all():
            return {}
        weights = self.decay.cpu().numpy()
        return {
            "loss": round(float(loss @ weights / (known @ weights)), 4),
            "slot_losses": rounded(loss / known),
            "slot_accuracy": {f"top-{top}": rounded(row / count) for top, row in zip(TOP, hits, strict=True)},
            "coverage": round(float(known.sum() / count.sum()), 4),
            "chain_block_efficiency": round(1 + committed / blocks, 4),
        }

    def save(self, directory: Path) -> None:
        save_block_drafter(self.drafter, directory)


def _by_slot(values: Tensor) -> np.ndarray:
    """``[rows, blocks, slots]`` -> ``[slots]`` sums."""
    return values.sum(dim=(0, 1)).cpu().numpy()


SHARPNESS, GAIN = 2.5, 4.0
"""Weight of the queries' norm; scale of the values passed on, relative to the embeddings'."""


@torch.no_grad()
def init_from_target(objective: BlockObjective, target: PreTrainedModel) -> None:
    """Initialise a drafter from its target, which saves thousands of updates.

    The final norm is the target's, of mean 1. The context is the deepest state that is read, with the norm of the
    target's next layer. Attention is initialised to nearby tokens: the queries of anchors and masks equal the mean key,
    with noise in some heads, so only rotary embeddings decide. The first heads pass their values on unchanged, so a
    block starts with the token that the target was about to predict.
    """
    drafter, batch, decoder = objective.drafter, objective.batch(0, 0, 1), TransformersModel.of(target).decoder
    _copy_matching(drafter.norm, getattr(decoder, "norm", None))
    drafter.norm.weight.div_(drafter.norm.weight.mean())
    following = getattr(decoder, "layers", ())[drafter.config.target_layer_ids[-1] + 1 :]
    _copy_matching(drafter.hidden_norm, getattr(following[0], "input_layernorm", None) if len(following) else None)
    size = drafter.config.hidden_size
    nn.init.zeros_(drafter.fc.weight)
    drafter.fc.weight[:, -size:].fill_diagonal_(1.0)
    context = drafter.hidden_norm(drafter.fc(batch.states[batch.states.any(dim=-1)]))
    directions = nn.init.orthogonal_(torch.empty(size, size)).to(drafter.device)
    scale = GAIN * objective.embedding(batch.tokens).float().square().mean().sqrt() / context.square().mean().sqrt()
    for layer in drafter.layers:
        attention: Any = layer.self_attn
        keys = attention.k_proj(context.mean(dim=0)).view(-1, 1, attention.head_dim)
        passed, directions = directions[: keys.numel()], directions[keys.numel() :]
        keys = keys + _pass_values(attention, passed, scale, keys)
        read = _queries_input(objective, batch, layer)
        attention.q_proj.weight += (keys.reshape(-1, 1) - attention.q_proj.weight @ read) @ torch.linalg.pinv(read)
        attention.q_norm.weight.fill_(SHARPNESS)


def _pass_values(attention: Any, passed: Tensor, scale: Tensor, keys: Tensor) -> Tensor:
    """Let heads pass ``[n, hidden]`` directions on, scaled; returns noise for the queries of all other heads."""
    size, groups = attention.head_dim, attention.num_key_value_groups
    rows = torch.arange(len(passed), device=passed.device)
    attention.v_proj.weight[rows] = passed
    attention.o_proj.weight[:, rows // size * groups * size + rows % size] = scale * passed.T
    share = torch.rand(len(keys), groups, 1, device=keys.device)
    share[: -(-len(passed) // size), 0] = 0.0
    return share * keys.square().mean().sqrt() * torch.randn(len(keys), groups, size, device=keys.device)


def _queries_input(objective: BlockObjective, batch: BlockBatch, layer: Any) -> Tensor:
    """``[hidden, 2]``: what a layer's queries are computed from, the means over anchors and over last masks."""
    seen: list[Tensor] = []
    hook = layer.input_layernorm.register_forward_hook(lambda module, inputs, output: seen.append(output))
    objective.hidden(batch)
    hook.remove()
    columns = seen[0].unflatten(1, (-1, objective.drafter.config.block_size)).flatten(0, 1)
    return torch.stack([columns[:, 0].mean(dim=0), columns[:, -1].mean(dim=0)], dim=1)


def _copy_matching(own: nn.Module, other: nn.Module | None) -> None:
    """Copy the weights that two modules have under the same name and in the same shape."""
    weights = dict(other.named_parameters()) if other is not None else {}
    for name, weight in own.named_parameters():
        if name in weights and weights[name].shape == weight.shape:
            weight.copy_(weights[name])


def with_head(drafter: BlockDrafter, frozen: bool = True, **parts: Any) -> BlockDrafter:
    """The same drafter with a new bigram, selector or reranker to train, or all of it.

    frozen: train only the head; convolutions stay without effect. parts: fields of ``BlockConfig`` that describe head
    and convolutions. Raises ValueError where a frozen one has a head already, or the values describe no drafter.
    """
    wanted = "a drafter without a bigram, selector or reranker, to teach one to"
    expect(not (frozen and drafter.ties_slots), wanted, "one that has it")
    if frozen and drafter.config.conv_kernel_size:
        parts = {name: value for name, value in parts.items() if not name.startswith("conv_")}
    new = BlockDrafter(replace(drafter.config, **parts), drafter.draft_tokens, drafter.lm_head is not None)
    new.load_state_dict(drafter.state_dict(), strict=False)
    new.requires_grad_(not frozen)
    for head in filter(None, (new.markov_head, new.candidate_selector, new.lilicorr)):
        head.requires_grad_(True)
    return new


def train_block_drafter(
    drafter: BlockDrafter,
    target: PreTrainedModel,
    data: HeadData,
    validation: HeadData,
    directory: PathLike,
    options: BlockDrafterTraining,
    process: Process | None = None,
    warm_start: bool = False,
    name: Name | None = None,
) -> BlockDrafter:
    """Train ``drafter`` in place, or resume the run in ``directory``, where the finished model is written.

    target: whose text the data are; it is not changed, and run only for texts without states. warm_start: initialise
    a new run by `init_from_target`. name: by which the target was loaded; states that the CPU engine computed from its
    files are its own. Raises ValueError for data that do not fit target and drafter, states of another
    model, or another run in ``directory``.
    """
    process, config, tokens = process or Process(), drafter.config, drafter.draft_tokens
    target.requires_grad_(False)
    own = weights_fingerprint(target)
    for each in (data, validation):
        each.require_model(own, "the target", name)
    torch.nn.Module.to(target, process.device)
    identity = {
        "target": own,
        "drafter": weights_fingerprint(drafter),
        "warm_start": warm_start,
        "block_size": config.block_size,
        "mask_token": config.mask_token_id,
        "layers": [layer + 1 for layer in config.target_layer_ids],
        "causal": config.causal_head,
        "sample_from_anchor": config.sample_from_anchor,
        "taught": "all" if drafter.fc.weight.requires_grad else "bigram",
        **({"candidates": config.max_candidates} if config.max_candidates else {}),
        **({"reranker": asdict(config.reranker)} if config.reranker else {}),
        "shortlist": fingerprint(None if tokens is None else tokens.numpy()),
    }
    objective = BlockObjective(drafter.to(process.device), target, data, validation, options)
    trainer = Trainer(objective, Path(directory), options, process, identity)
    if warm_start and not trainer.begun:
        init_from_target(objective, target)
    trainer.run()
    return drafter
