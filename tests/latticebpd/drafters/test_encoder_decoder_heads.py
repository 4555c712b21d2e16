"""Heads of encoder-decoders: they read the decoder's hidden states, and learn what the decoder writes after a
source."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, BartConfig, BartForConditionalGeneration, PreTrainedModel
from typer.testing import CliRunner

from latticebpd import TreeDrafter, VanillaDrafter, generate
from latticebpd.cli import app
from latticebpd.drafters.heads.blockwise import BlockwiseLM, new_heads
from latticebpd.drafters.heads.head_networks import HEAD_KINDS
from latticebpd.lattices.texts import Texts
from lm_training.data.distill import DistillOptions, distill
from lm_training.data.sequences import load_distilled
from lm_training.families.heads import BlockwiseObjective, train_heads
from lm_training.training.selection import EveryHead
from lm_training.training.training_options import HeadTraining
from tests.helpers.tiny_families import tiny

QUICK = HeadTraining(
    steps=6,
    batch_size=4,
    warmup_steps=2,
    validation_every=3,
    checkpoint_every=6,
    validation_sequences=4,
    serving_prompts=0,
)
FAMILIES = ["t5", "marian", "bart"]


def tiny_base(family: str) -> PreTrainedModel:
    base = tiny(family, seed=3, eos=7)
    if "final_logits_bias" in dict(base.named_buffers()):
        base.final_logits_bias.copy_(torch.linspace(-1, 1, base.final_logits_bias.numel()))
    return base


def uneven(count: int = 12) -> Texts:
    """Sources and texts of 1 to 6 and 2 to 9 tokens."""
    rng = np.random.default_rng(2)
    sources, texts = rng.integers(1, 7, count), rng.integers(2, 10, count)
    rows = [rng.integers(2, 23, source + text) for source, text in zip(sources, texts, strict=True)]
    return Texts.of_rows(rows, sources.tolist(), np.uint16)


def final_states(base: PreTrainedModel, source: list[int], text: list[int]) -> tuple[Tensor, Tensor]:
    """Hidden states and logits, one sequence at a time, by the model's own forward."""
    output = base(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([text]), output_hidden_states=True)
    return output.decoder_hidden_states[-1][0], output.logits[0]


@pytest.mark.parametrize("kind", HEAD_KINDS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_heads_that_have_learnt_nothing_say_what_the_base_model_says(family: str, kind: str) -> None:
    """Bias and scale behind the output embedding included."""
    base = tiny_base(family)
    hidden, logits = final_states(base, [4, 5, 6], [1, 9, 8])
    model = BlockwiseLM(base, new_heads(base, kind, num_heads=3))
    drafted = model.head_logits(hidden, following=logits.argmax(dim=-1))
    torch.testing.assert_close(drafted, logits[:, None].expand(-1, 2, -1))
    torch.testing.assert_close(model.projection(hidden), logits)


@pytest.mark.parametrize("kind", ["feed-forward", "conditioned"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_losses_are_those_of_the_sequences_one_by_one(family: str, kind: str) -> None:
    """A padded batch against the model's own forward, without padding, and labels counted by hand."""
    base, data = tiny_base(family), uneven(5)
    model = BlockwiseLM(base, new_heads(base, kind, num_heads=4))
    torch.nn.init.normal_(model.heads.down, std=0.3)
    objective = BlockwiseObjective(model, data, data, QUICK, lambda model: [])
    sums, counts = np.zeros(4), np.zeros(4)
    for index, prompt in enumerate(data.prompt_lengths.tolist()):
        source, target = data[index][:prompt].tolist(), data[index][prompt:].tolist()
        hidden, logits = final_states(base, source, [1, *target[:-1]])
        drafted = model.head_logits(hidden, following=torch.tensor(target))
        every = torch.cat([logits[:, None], drafted], dim=1).log_softmax(-1)
        for head in range(4):
            for position in range(len(target) - head):
                sums[head] -= float(every[position, head, target[position + head]])
                counts[head] += 1
    values = objective(objective.data.batch(list(range(5)), EveryHead(), np.ones(objective.model.num_heads, bool), [0]))
    assert float(values["base_loss"]) == pytest.approx(sums[0] / counts[0], rel=1e-5)
    np.testing.assert_allclose(values["head_losses"].numpy(), sums[1:] / counts[1:], rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_frozen_base_is_the_same_to_the_byte_and_its_text_too(family: str, tmp_path: Path) -> None:
    base, data = tiny_base(family), uneven()
    model = BlockwiseLM(base, new_heads(base, "feed-forward", num_heads=5))
    model.save_pretrained(tmp_path / "before")
    train_heads(model, data, data, tmp_path / "after", replace(QUICK, learning_rate=3e-2, serving_prompts=3))
    assert (tmp_path / "before/model.safetensors").read_bytes() == (tmp_path / "after/model.safetensors").read_bytes()
    assert (tmp_path / "before/latticebpd/heads.safetensors").read_bytes() != (
        tmp_path / "after/latticebpd/heads.safetensors"
    ).read_bytes()
    again = BlockwiseLM.from_pretrained(tmp_path / "after")
    assert type(again.base) is type(base)
    sources = torch.tensor([[4, 5, 6, 0], [7, 8, 9, 10]])
    mask = (sources > 0).long()
    expected = base.generate(sources, attention_mask=mask, do_sample=False, max_new_tokens=14)
    for drafter in (VanillaDrafter(again), *(TreeDrafter(again, None, num_nodes=6, k=k) for k in (1, 2, 16))):
        assert torch.equal(
            generate(again, sources, drafter, attention_mask=mask, max_new_tokens=14).sequences, expected
        )


def test_fine_tuning_leaves_constants_alone(tmp_path: Path) -> None:
    base, data = tiny_base("marian"), uneven()
    before = {name: parameter.clone() for name, parameter in base.named_parameters()}
    model = BlockwiseLM(base, new_heads(base, "feed-forward", num_heads=3))
    train_heads(model, data, data, tmp_path, replace(QUICK, steps=2, fine_tune=True, base_learning_rate=1e-2))
    same = {name for name, parameter in base.named_parameters() if torch.equal(before[name], parameter)}
    assert same == {"model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"}
    base.requires_grad_(False)
    with pytest.raises(
        ValueError, match="parameters that require gradients, to fine-tune it, got one without; load it anew"
    ):
        train_heads(
            model,
            data,
            data,
            tmp_path / "again",
            replace(QUICK, fine_tune=True, base_learning_rate=1e-2),
        )


def translations(count: int) -> Texts:
    """The first token of a source says which three tokens its translation repeats; those behind it mean nothing."""
    rng = np.random.default_rng(0)
    rows, lengths = [], []
    for index in range(count):
        source = [3 + index % 2, *rng.integers(8, 20, index % 4).tolist(), 2]
        rows.append(np.array(source + [8 + 3 * (index % 2) + position % 3 for position in range(16)]))
        lengths.append(len(source))
    return Texts.of_rows(rows, lengths, np.uint16)


def test_heads_of_a_toy_translator_reach_the_full_block(tmp_path: Path) -> None:
    """Model and heads learn together; then every call commits a full block, and the texts are the right
    translations."""
    torch.manual_seed(0)
    base = BartForConditionalGeneration(
        BartConfig(
            vocab_size=20, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=32, decoder_start_token_id=1,
            forced_eos_token_id=None,
            dropout=0.0, bos_token_id=1, pad_token_id=0, eos_token_id=2,
        )
    )  # fmt: skip
    model, data, held_out = BlockwiseLM(base, new_heads(base, "feed-forward", 5)), translations(32), translations(7)
    options = replace(
        QUICK, steps=80, batch_size=8, learning_rate=1e-2, fine_tune=True, base_learning_rate=1e-2, objective="joint",
        validation_every=80,
        checkpoint_every=80,
    )  # fmt: skip
    train_heads(model, data, held_out, tmp_path, options)
    prompts = held_out.prompts()
    for index in range(7):
        out = generate(model, prompts[index].tolist(), VanillaDrafter(model), max_new_tokens=16)
        assert out.sequences[0].tolist() == [1, *held_out[index][len(prompts[index]) :].tolist()]
        assert out.accept_counts.tolist() == [0, 0, 0, 0, 0, 3]
    record = json.loads((tmp_path / "training-log.jsonl").read_text().splitlines()[-1])["validation"]
    assert record["head_accuracy"]["top-1"] == [1.0] * 4


def test_commands_distil_and_train_heads_for_an_encoder_decoder(tmp_path: Path) -> None:
    tiny_base("marian").save_pretrained(tmp_path / "model")
    uneven().save(tmp_path / "pairs.npz")
    own = ["--model", str(tmp_path / "model")]
    distilled, heads = str(tmp_path / "distilled"), str(tmp_path / "with-heads")
    commands = [
        ["distill", str(tmp_path / "pairs.npz"), *own, "-o", distilled, "--max-new-tokens", "9", "--num-beams", "2"],
        [
            "train",
            "heads",
            distilled,
            "--validation",
            str(tmp_path / "pairs.npz"),
            *own,
            "-o",
            heads,
            "--steps",
            "3",
            "--num-heads",
            "4",
        ],
    ]
    for command in commands:
        assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    assert BlockwiseLM.from_pretrained(heads).num_heads == 4
    AutoModelForSeq2SeqLM.from_pretrained(heads)
    np.save(tmp_path / "corpus.npy", np.ones(900, np.uint16))
    commands[1][2] = str(tmp_path / "corpus.npy")
    with pytest.raises(ValueError, match=r"corpus\.npy: expected sources and texts .* for an encoder-decoder"):
        CliRunner().invoke(app, commands[1], catch_exceptions=False)


def test_text_that_an_encoder_decoder_cannot_read_is_refused(tmp_path: Path) -> None:
    base = tiny_base("bart")
    model = BlockwiseLM(base, new_heads(base, "feed-forward", 4))
    good = uneven()
    for source, text, message in (
        ([99], [3, 4, 5], "training token ids below 23 .* got 99"),
        ([3], [3, 99, 5], "training token ids below 23 .* got 99"),
        ([3] * 97, [3, 4, 5], "training sequences of at most 96 tokens .* one of 97"),
        ([3], [4] * 96, "training sequences of at most 96 tokens .* one of 97"),
    ):
        bad = Texts.of_rows([np.array(source + text)], [len(source)], np.uint16)
        with pytest.raises(ValueError, match=message):
            train_heads(model, bad, good, tmp_path, QUICK)


def test_distilled_texts_are_what_serving_decodes(tmp_path: Path) -> None:
    """Greedy distillation, training labels and the decoding loop agree about where a text begins and ends."""
    base = tiny_base("marian")
    distill(base, uneven(), tmp_path, DistillOptions(max_new_tokens=12))
    text = load_distilled(tmp_path)
    model = BlockwiseLM(base, new_heads(base, "feed-forward", 3))
    sources, texts = text.prompts(), text.answers(1)
    for index in range(len(text)):
        out = generate(model, sources[index].tolist(), VanillaDrafter(model), max_new_tokens=12)
        assert out.sequences[0].tolist() == texts[index].tolist()
