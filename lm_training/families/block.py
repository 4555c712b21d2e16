"""Training block drafters (DFlash, Chen 2026; JetSpec; DSpark) on a target's own text and its kept hidden states.

Of every text a few random anchors are drawn, and the blocks behind them are filled in one pass
(`lm_training.families.block_batches`).
The target is never run: its states are read from files, its embedding and output projection stay as they are. With
``x_m`` the token that slot m is to say, and over all slots of all blocks that have a label::

    loss = sum_m w_m L_m / sum_m w_m      w_m = exp(-(m - 1) / gamma): a token is accepted only where all before it are

    cross-entropy       L_m = - log q_m(x_m)
    forward KL          L_m = T^2 KL(p_m^(1/T) || q_m^(1/T)), p_m the target's own distribution behind x_(m-1) (JetSpec)

both over the tokens that are drafted. A *bigram* of low rank (DSpark's Markov head) is added to a slot's logits behind
the token before, which is the text's own; on a drafter that stays as it is, it is all that is taught.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from latticebpd.drafters.block.block_checkpoints import save_block_drafter
from latticebpd.drafters.block.block_network import BlockDrafter, anchored_blocks
from latticebpd.target.checkpoints import weights_fingerprint
from latticebpd.target.stock_model import BaseModel
from lm_training.data.batching import rows_of_step
from lm_training.data.shortlist import fingerprint
from lm_training.families.block_batches import BlockBatch, BlockSampler
from lm_training.families.blockwise import TOP, HeadData
from lm_training.training.optimizers import adamw_and_muon
from lm_training.training.training_loop import Objective, Process, Trainer
from lm_training.training.training_options import BlockDrafterTraining


class BlockObjective(Objective[BlockBatch]):
    """Teaches a block drafter, or those of its parts that require gradients.

    Args:
        drafter, target: on the device where the drafter is trained; the target gives its embedding and its output
            projection.
        data: what to learn.  validation: the same kind of data, not among ``data``.
        made_of: what a run that goes on must have begun with, beside data and options.
    """

    def __init__(
        self,
        drafter: BlockDrafter,
        target: PreTrainedModel,
        data: HeadData,
        validation: HeadData,
        options: BlockDrafterTraining,
        run_identity: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(options)
        self.options: BlockDrafterTraining = options
        self.by_target = options.objective == "kl"
        self.data = BlockSampler(target, drafter, data, "training", options.anchors, self.by_target)
        self.validation = BlockSampler(target, drafter, validation, "validation", options.anchors)
        if int((data.texts.lengths - data.texts.prompt_lengths).max(initial=0)) < 2:
            raise ValueError("expected training texts of at least 2 written tokens (an anchor and a label), got none")
        self.drafter, self.embedding, self._made_of = drafter, target.get_input_embeddings(), run_identity or {}
        projection = BaseModel.of(target).projection
        self.project = drafter.output(projection)
        self.target = projection if drafter.draft_tokens is None else projection.over(drafter.draft_tokens)
        self.frozen = not any(weight.requires_grad for weight in drafter.layers.parameters())
        self.decay = torch.exp(-torch.arange(drafter.config.slots) / options.gamma).to(drafter.device)
        blocks = options.anchors * drafter.config.block_size
        self.tokens_per_step = round(options.batch_size * (len(data.texts.tokens) / len(data.texts) + blocks))

    def batch(self, step: int, part: int, parts: int) -> BlockBatch:
        """Texts come in a fixed random order, every one once per epoch, with anchors drawn anew; ``parts`` deal a
        step's texts out."""
        chosen = rows_of_step(len(self.data), self.options.batch_size, step, self.options.seed, parts)
        rng = np.random.default_rng([self.options.seed, step])
        return self.data.batch(chosen, [self.data.anchors(index, rng) for index in chosen], part, parts)

    def hidden(self, batch: BlockBatch) -> Tensor:
        """``[rows, blocks, slots, hidden]``: the states that say the slots' tokens."""
        config, context = self.drafter.config, batch.states.shape[1]
        positions, visible = anchored_blocks(batch.anchors, config.block_size, context, config.causal_head)
        places = torch.arange(context, device=batch.states.device).expand(batch.states.shape[:2])
        with torch.no_grad() if self.frozen else contextlib.nullcontext():
            block = self.embedding(batch.tokens).to(self.drafter.dtype)
            return self.drafter.said(self.drafter(batch.states, places, block, positions, visible))

    def logits(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """``[n, hidden]`` states and ``[n]`` tokens before them -> ``[n, tokens]``, of those that are drafted."""
        logits = self.project(hidden).float()
        return logits if self.drafter.markov_head is None else logits + self.drafter.markov_head(previous).float()

    def forward(self, batch: BlockBatch) -> dict[str, Tensor]:
        """``loss`` and ``slot_losses``, ``[slots]``, in nats."""
        known = batch.labels >= 0
        logits = self.logits(self.hidden(batch)[known], batch.previous[known])
        if batch.last is None:
            losses = F.cross_entropy(logits, batch.labels[known], reduction="none")
        else:
            warm = self.options.temperature
            with torch.no_grad():
                wanted = (self.target(batch.last[known]).float() / warm).log_softmax(dim=-1)
            losses = (
                F.kl_div((logits / warm).log_softmax(dim=-1), wanted, reduction="none", log_target=True).sum(dim=-1)
                * warm**2
            )
        sums = (
            torch.zeros(known.shape, dtype=losses.dtype, device=losses.device)
            .masked_scatter(known, losses)
            .sum(dim=(0, 1))
        )
        loss = (sums * self.decay).sum() / (batch.counts * self.decay).sum().clamp(min=1e-6)
        return {"loss": loss, "slot_losses": sums / batch.counts.clamp(min=1e-6)}

    def optimizers(self) -> list[torch.optim.Optimizer]:
        bigram = self.drafter.markov_head.parameters() if self.drafter.markov_head is not None else ()
        dtype = torch.bfloat16 if self.options.precision == "bfloat16" else None
        return adamw_and_muon(self.drafter, self.options, by_adamw=bigram, dtype=dtype)

    @torch.no_grad()
    def validate(self) -> dict[str, Any]:
        """By slot, behind anchors drawn once and for all: cross-entropy, and accuracy among the best tokens, behind the
        text's own tokens.

        A label that is not drafted is in no loss and counts as missed. ``chain_block_efficiency``: tokens that a call
        would commit if its draft were the best token of each slot, each behind the one before, the target's own
        included.
        """
        slots, rng = self.drafter.config.slots, np.random.default_rng(self.options.seed)
        count, known, loss, hits = np.zeros(slots), np.zeros(slots), np.zeros(slots), np.zeros((len(TOP), slots))
        blocks, committed = 0, 0
        for index in range(min(self.options.validation_sequences, len(self.validation))):
            batch = self.validation.batch([index], [self.validation.anchors(index, rng)])
            labelled, labels = batch.labels >= 0, batch.labels.clamp(min=0)
            logits = self.logits(self.hidden(batch).flatten(0, 2), batch.previous.flatten()).unflatten(0, labels.shape)
            losses = F.cross_entropy(logits.movedim(-1, 1), labels, reduction="none")
            rank = (logits > logits.gather(-1, labels[..., None])).sum(dim=-1)
            loss += (losses * labelled).sum(dim=(0, 1)).cpu().numpy()
            right = [(rank < top) & labelled for top in TOP]
            hits += np.stack([found.sum(dim=(0, 1)).cpu().numpy() for found in right])
            known += labelled.sum(dim=(0, 1)).cpu().numpy()
            count += batch.inside.sum(dim=(0, 1)).cpu().numpy()
            blocks += int(batch.inside[..., 0].sum())
            committed += int(right[0].long().cumprod(dim=-1).sum())
        if not known.all():
            return {}
        weights = self.decay.cpu().numpy()
        return {
            "loss": round(float(loss @ weights / (known @ weights)), 4),
            "slot_losses": [round(float(value), 4) for value in loss / known],
            "slot_accuracy": {
                f"top-{top}": [round(float(share), 4) for share in row / count]
                for top, row in zip(TOP, hits, strict=True)
            },
            "coverage": round(float(known.sum() / count.sum()), 4),
            "chain_block_efficiency": round(1 + committed / blocks, 4),
        }

    def run_identity(self) -> dict[str, Any]:
        return {"data": self.data.texts.fingerprint(), **self._made_of}

    def save(self, directory: Path) -> None:
        save_block_drafter(self.drafter, directory)


@torch.no_grad()
def begin_well(
    objective: BlockObjective, target: PreTrainedModel, sharpness: float = 2.5, loudness: float = 4.0
) -> None:
    """First weights from which a drafter learns in hundreds of updates what takes random ones thousands.

    The final norm begins as the target's, of mean 1. The context is at first the deepest state that is read, normed as
    the target's
    next layer does it: states have a few entries a hundred times larger than all others, which a random projection
    would spread over the whole vector. Layer by layer, queries of masks and of anchors begin as the mean key, some
    heads' less so, so that rotary
    positions alone decide where a column looks: at what is near. The first layers' heads, as many as it takes, hand on
    what they see as it is; so a block begins by saying what the target was about to say, as other heads do
    (`latticebpd.drafters.heads.head_networks`).

    Args:
        sharpness: of what is near; 1 is that of layers fresh from their class.
        loudness: what is handed on, relative to the embeddings.
    """
    drafter, batch = objective.drafter, objective.batch(0, 0, 1)
    config, decoder = drafter.config, BaseModel.of(target).decoder
    deep, behind = getattr(decoder, "layers", ()), config.target_layer_ids[-1] + 1
    _copy_alike(drafter.norm, getattr(decoder, "norm", None))
    drafter.norm.weight.div_(drafter.norm.weight.mean())
    _copy_alike(drafter.hidden_norm, getattr(deep[behind], "input_layernorm", None) if behind < len(deep) else None)
    nn.init.zeros_(drafter.fc.weight)
    drafter.fc.weight[:, -config.hidden_size :].fill_diagonal_(1.0)
    context = drafter.hidden_norm(drafter.fc(batch.states[batch.states.any(dim=-1)]))
    unsaid = nn.init.orthogonal_(torch.empty(config.hidden_size, config.hidden_size)).to(drafter.device)
    scale = loudness * objective.embedding(batch.tokens).float().square().mean().sqrt() / context.square().mean().sqrt()
    for layer in drafter.layers:
        attention: Any = layer.self_attn
        size, groups = attention.head_dim, attention.num_key_value_groups
        keys = attention.k_proj(context.mean(dim=0)).view(-1, 1, size)
        said, unsaid = unsaid[: len(keys) * size], unsaid[len(keys) * size :]
        places = torch.arange(len(said), device=said.device)
        attention.v_proj.weight[places] = said
        attention.o_proj.weight[:, places // size * groups * size + places % size] = scale * said.T
        doubt = torch.rand(len(keys), groups, 1, device=keys.device)
        doubt[: -(-len(said) // size), 0] = 0.0
        keys = keys + doubt * keys.square().mean().sqrt() * torch.randn(len(keys), groups, size, device=keys.device)
        queries = keys.reshape(-1, 1)
        read = _read(objective, batch, layer)
        attention.q_proj.weight += (queries - attention.q_proj.weight @ read) @ torch.linalg.pinv(read)
        attention.q_norm.weight.fill_(sharpness)


def _read(objective: BlockObjective, batch: BlockBatch, layer: Any) -> Tensor:
    """``[hidden, 2]``: what a layer's queries are made of, the mean over anchors and that over the last masks."""
    seen: list[Tensor] = []
    hook = layer.input_layernorm.register_forward_hook(lambda module, given, output: seen.append(output))
    objective.hidden(batch)
    hook.remove()
    columns = seen[0].unflatten(1, (-1, objective.drafter.config.block_size)).flatten(0, 1)
    return torch.stack([columns[:, 0].mean(dim=0), columns[:, -1].mean(dim=0)], dim=1)


def _copy_alike(own: nn.Module, other: nn.Module | None) -> None:
    """Copy those weights that two modules have under the same name and in the same shape."""
    given = dict(other.named_parameters()) if other is not None else {}
    for name, weight in own.named_parameters():
        if name in given and given[name].shape == weight.shape:
            weight.copy_(given[name])


def with_bigram(drafter: BlockDrafter, rank: int) -> BlockDrafter:
    """The same drafter with a new bigram, which is all of it that requires gradients.

    Raises:
        ValueError: it has one already.
    """
    if drafter.markov_head is not None:
        raise ValueError("expected a drafter without a bigram, to teach one to, got one that has it")
    new = BlockDrafter(replace(drafter.config, markov_rank=rank), drafter.draft_tokens, drafter.lm_head is not None)
    new.load_state_dict(drafter.state_dict(), strict=False)
    new.requires_grad_(False)
    assert new.markov_head is not None
    new.markov_head.requires_grad_(True)
    return new


def train_block_drafter(
    drafter: BlockDrafter,
    target: PreTrainedModel,
    data: HeadData,
    validation: HeadData,
    directory: str | os.PathLike[str],
    options: BlockDrafterTraining,
    process: Process | None = None,
    progress: bool = True,
    warm_start: bool = False,
) -> BlockDrafter:
    """Train ``drafter`` in place, those of its weights that require gradients, or go on with the run in ``directory``.

    The finished model is written there.

    Args:
        target: whose text and states the data are; it is not run, and stays as it is.
        warm_start: whether a new run begins well (`begin_well`).

    Raises:
        ValueError: data that do not fit target and drafter, states of another model, or a run in ``directory`` that
            began otherwise.
    """
    process = process or Process()
    target.requires_grad_(False)
    own = weights_fingerprint(target)
    for given in (data, validation):
        if given.states is not None:
            given.states.require_model(own, "the target")
    torch.nn.Module.to(target, process.device)
    config, tokens = drafter.config, drafter.draft_tokens
    run_identity = {
        "target": own, "drafter": weights_fingerprint(drafter), "warm_start": warm_start,
        "block_size": config.block_size,
        "mask_token": config.mask_token_id, "layers": [layer + 1 for layer in config.target_layer_ids],
        "causal": config.causal_head,
        "sample_from_anchor": config.sample_from_anchor,
        "taught": "all" if drafter.fc.weight.requires_grad else "bigram",
        "shortlist": fingerprint(None if tokens is None else tokens.numpy()),
    }  # fmt: skip
    objective = BlockObjective(drafter.to(process.device), target, data, validation, options, run_identity)
    trainer = Trainer(objective, Path(directory), options, process)
    if warm_start and not trainer.begun:
        begin_well(objective, target)
    trainer.run(progress)
    return drafter.eval()
