"""Block drafters: many blocks in one pass, what the loss is, what is learnt, and how the work may be cut up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM
from typer.testing import CliRunner

from latticebpd.cli import app
from latticebpd.drafters import BlockLattices, State
from latticebpd.drafters.block.block_checkpoints import load_block_drafter
from latticebpd.drafters.block.block_network import BlockDrafter, config_for
from latticebpd.drafters.block.lattice_reranker import RerankerConfig
from latticebpd.lattices.sausage import greedy_chain
from latticebpd.lattices.texts import Texts
from lm_training.data.batching import rows_of_step
from lm_training.data.corpus import train_tokenizer
from lm_training.data.hidden_states import StateOptions, add_states, load_states, states_directory
from lm_training.data.training_data import HeadData
from lm_training.families.block import BlockObjective, BlockSampler, train_block_drafter, with_head
from lm_training.training.training_loop import Trainer
from lm_training.training.training_options import BlockDrafterTraining
from tests.helpers.blockwise_models import tiny_model
from tests.helpers.commands import Run
from tests.helpers.periodic import periodic

QUICK = BlockDrafterTraining(
    steps=6,
    batch_size=4,
    anchors=3,
    warmup_steps=2,
    validation_every=6,
    checkpoint_every=2,
    validation_sequences=4,
    gamma=2.0,
)
SHAPES = [
    {"causal_head": causal, "sample_from_anchor": from_anchor}
    for causal in (False, True) for from_anchor in (False, True)
]  # fmt: skip


def base() -> LlamaForCausalLM:
    model: LlamaForCausalLM = tiny_model().base  # type: ignore[assignment]
    return model


def texts(count: int = 11, seed: int = 0) -> Texts:
    """Prompts of 1 to 5 tokens and what follows them, 1 to 12 more."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, count)
    return Texts.of_rows(
        [rng.integers(2, 23, length + rng.integers(1, 13)) for length in lengths], lengths.tolist(), np.uint16
    )


def with_states(directory: Path, target: LlamaForCausalLM, texts: Texts, layers: list[int]) -> HeadData:
    directory.mkdir(parents=True, exist_ok=True)
    texts.save(directory / "t.npz")
    add_states(target, texts, states_directory(directory / "t.npz"), StateOptions(layers, whole=True, shard_texts=4))
    return HeadData(texts, load_states(directory / "t.npz", texts))


def drafter(target: LlamaForCausalLM, tokens: list[int] | None = None, **parts: object) -> BlockDrafter:
    """A random one whose layers do something."""
    torch.manual_seed(1)
    size = None if tokens is None else len(tokens)
    config = config_for(target, 2, 4, 0, target_layer_ids=(0, 1), draft_vocab_size=size, **parts)
    config.layers.initializer_range = 0.3
    network = BlockDrafter(config, tokens)
    if network.markov_head is not None:
        torch.nn.init.normal_(network.markov_head.markov_w2.weight)
    return network


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> HeadData:
    return with_states(tmp_path_factory.mktemp("data"), base(), texts(), [1, 2])


def one_at_a_time(objective: BlockObjective, index: int, anchor: int) -> torch.Tensor:
    """``[slots, hidden]``: a block alone, behind the very states before its anchor."""
    network, states, config = objective.drafter, objective.data.states, objective.drafter.config
    size = config.block_size
    both = [states.of_text(index, f"layer-{layer}", whole=True).float() for layer in (1, 2)]
    read = torch.cat(both, dim=1)[None, :anchor]
    tokens = torch.tensor([[int(objective.data.texts[index][anchor]), *[config.mask_token_id] * (size - 1)]])
    own = torch.ones(size, size, dtype=torch.bool)
    visible = torch.cat([torch.ones(size, anchor, dtype=torch.bool), own.tril() if config.causal_head else own], dim=1)
    out = network(
        read, torch.arange(anchor)[None], objective.embedding(tokens), anchor + torch.arange(size)[None], visible[None]
    )
    return out[0, size - config.slots :]


@pytest.mark.parametrize("shape", SHAPES)
def test_many_blocks_in_one_pass_are_each_as_if_alone(data: HeadData, shape: dict[str, bool]) -> None:
    objective = BlockObjective(drafter(base(), **shape), base(), data, data, QUICK)
    rng = np.random.default_rng(0)
    chosen = list(range(len(data.texts)))
    anchors = [objective.data.anchors(index, rng) for index in chosen]
    assert max(map(len, anchors)) == 3
    assert min(map(len, anchors)) < 3
    with torch.no_grad():
        hidden = objective.hidden(objective.data.batch(chosen, anchors))
        for index, drawn in zip(chosen, anchors, strict=True):
            text, prompt = data.texts[index], int(data.texts.prompt_lengths[index])
            for block, anchor in enumerate(drawn.tolist()):
                assert prompt <= anchor < len(text) - 1
                torch.testing.assert_close(
                    hidden[index, block], one_at_a_time(objective, index, anchor), atol=1e-5, rtol=1e-4
                )


@pytest.mark.parametrize("kind", ["ce", "kl"])
@pytest.mark.parametrize("rank", [0, 2])
def test_loss_is_that_of_the_definition(data: HeadData, kind: str, rank: int) -> None:
    target, tokens = base(), [2, 3, 5, 7, 8, 11, 13, 14, 17, 19, 22]
    options = replace(QUICK, objective=kind, temperature=1.5, batch_size=11)
    objective = BlockObjective(
        drafter(target, tokens, markov_rank=rank, sample_from_anchor=True), target, data, data, options
    )
    batch, chosen = objective.batch(0, 0, 1), rows_of_step(11, 11, 0, 0, 1)
    total, weights = 0.0, 0.0
    projection = target.get_output_embeddings().weight[tokens]
    with torch.no_grad():
        for row, drawn in enumerate(batch.anchors.tolist()):
            index = chosen[row]
            text = data.texts[index].tolist()
            for anchor in [position for position in drawn if position]:
                hidden = one_at_a_time(objective, index, anchor)
                for slot in range(min(4, len(text) - 1 - anchor)):
                    previous, said = text[anchor + slot], text[anchor + slot + 1]
                    if said not in tokens:
                        continue
                    logits = projection @ hidden[slot]
                    if rank:
                        head = objective.drafter.markov_head
                        logits = logits + head.markov_w2.weight @ head.markov_w1.weight[previous]
                    loss = -logits.log_softmax(0)[tokens.index(said)]
                    if kind == "kl":
                        last = data.states.of_text(index, whole=True)[anchor + slot].float()
                        p, q = (values.div(1.5).log_softmax(0) for values in (projection @ last, logits))
                        loss = 1.5**2 * (p.exp() * (p - q)).sum()
                    total += float(loss) * np.exp(-slot / 2.0)
                    weights += np.exp(-slot / 2.0)
        assert float(objective(batch)["loss"]) == pytest.approx(total / weights, rel=1e-4)


HEADS = {
    "bigram": {"markov_rank": 3},
    "selector": {"conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 3, "selector_top_k": 4},
    "reranker": {"reranker": RerankerConfig(4, 8, 6, 1, 2, 2.0, 8.0, 1e-4)},
}


@pytest.mark.parametrize("kind", ["selector", "reranker"])
def test_losses_of_selector_and_reranker_are_those_of_the_definition(data: HeadData, kind: str) -> None:
    target, tokens = base(), [2, 3, 5, 7, 8, 11, 13, 14, 17, 19, 22]
    network = with_head(drafter(target, tokens), **HEADS[kind])
    for parameter in network.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.4)
    options = replace(QUICK, batch_size=11)
    objective, plain = (
        BlockObjective(each, target, data, data, options) for each in (network, drafter(target, tokens))
    )
    batch, embedding = objective.batch(0, 0, 1), target.get_input_embeddings().weight
    projection = target.get_output_embeddings().weight[tokens]
    total, weights = 0.0, float((batch.counts * objective.decay).sum())
    with torch.no_grad():
        for row, drawn in enumerate(batch.anchors.tolist()):
            index = rows_of_step(11, 11, 0, 0, 1)[row]
            text = data.texts[index].tolist()
            for anchor in [position for position in drawn if position]:
                hidden = one_at_a_time(objective, index, anchor)
                logits = hidden @ projection.T
                best = logits.argsort(dim=-1, descending=True, stable=True)[:, :4]
                last = data.states.of_text(index, whole=True).float()
                read = [data.states.of_text(index, f"layer-{layer}", whole=True).float() for layer in (1, 2)]
                if kind == "reranker":
                    context = network.context(torch.cat(read, dim=1)[anchor - 1])
                    embedded = embedding[torch.tensor(tokens)[best]]
                    log_probs = logits.log_softmax(-1).gather(1, best)
                    start, pairs = network.lilicorr(embedded[None], log_probs[None], hidden[None], context[None])
                rank = -1
                for slot in range(min(3, len(text) - 1 - anchor)):
                    previous, written = text[anchor + slot], text[anchor + slot + 1]
                    if written not in tokens:
                        if kind == "reranker":
                            break
                        continue
                    label, candidates = tokens.index(written), best[slot].tolist()
                    if kind == "selector":
                        candidates = candidates if label in candidates else [*candidates[:-1], label]
                        head = network.candidate_selector
                        keys = head.predecessor_codebook[previous] * (head.hidden_projection.weight @ hidden[slot])
                        scores = [logits[slot, at] + keys @ head.successor_codebook[tokens[at]] for at in candidates]
                        loss = -torch.stack(scores).log_softmax(0)[candidates.index(label)]
                    else:
                        if label not in candidates:
                            break
                        scores = start[0] if slot == 0 else pairs[0, slot - 1, rank]
                        rank = candidates.index(label)
                        z = projection @ last[anchor + slot]
                        behind = (z[label] - z[candidates]).clamp(min=0)
                        loss = -0.25 * scores.log_softmax(0)[rank] + 0.25 * (scores.softmax(0) * behind).sum()
                    total += float(loss) * np.exp(-slot / 2.0)
        assert total > 0
        expected = float(plain(plain.batch(0, 0, 1))["loss"]) + total / weights
        assert float(objective(batch)["loss"]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", HEADS)
def test_validation_walks_as_a_decode_does(data: HeadData, kind: str) -> None:
    """``chain_block_efficiency`` is that of the greedy walks of the lattices that a decode draws."""
    target = base()
    network = with_head(drafter(target), **HEADS[kind])
    for parameter in network.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.4)
    options = replace(QUICK, validation_sequences=len(data.texts))
    objective = BlockObjective(network, target, data, data, options)
    validated, rng, blocks, committed = objective.validate(), np.random.default_rng(0), 0, 0
    source = BlockLattices(network.eval(), target, 4)
    for index in range(len(data.texts)):
        text = data.texts[index].tolist()
        read = [data.states.of_text(index, f"layer-{layer}", whole=True).float() for layer in (1, 2)]
        for anchor in objective.validation.anchors(index, rng).tolist():
            state = State(0, text[: anchor + 1], 1, None, 9, (), torch.cat(read, dim=1)[:anchor])
            (lattice,) = source.lattices([state])
            chain = greedy_chain(lattice.tokens, lattice.log_probs, lattice.transitions).tolist()
            right = [a == b for a, b in zip(chain, text[anchor + 1 :], strict=False)]
            blocks, committed = blocks + 1, committed + (right.index(False) if False in right else len(right))
    assert validated["chain_block_efficiency"] == pytest.approx(1 + committed / blocks, abs=1e-4)


@dataclass(frozen=True)
class Part(BlockDrafterTraining):
    """The first steps of a run of six: the schedule is that of the whole run."""

    def rate_factor(self, step):
        return QUICK.rate_factor(step)


@pytest.mark.parametrize("kind", ["whole", *HEADS, "whole selector", "whole reranker"])
def test_resumed_run_ends_with_the_same_weights(data: HeadData, tmp_path: Path, kind: str) -> None:
    def made(seed: int) -> BlockDrafter:
        if kind.startswith("whole"):
            return drafter(base(), **HEADS.get(kind.removeprefix("whole "), {}))
        begun = drafter(base())
        torch.manual_seed(seed)
        return with_head(begun, **HEADS[kind])

    train_block_drafter(made(0), base(), data, data, tmp_path / "whole", QUICK)
    for steps in (2, 4, 6):
        objective = BlockObjective(made(0), base().requires_grad_(False), data, data, QUICK)
        Trainer(objective, tmp_path / "parts", Part(**asdict(QUICK) | {"steps": steps})).run()
    one, other = (load_file(tmp_path / run / "model.safetensors") for run in ("whole", "parts"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    with pytest.raises(ValueError, match="holds a run with gamma"):
        train_block_drafter(made(0), base(), data, data, tmp_path / "whole", replace(QUICK, gamma=3.0))


@pytest.mark.parametrize("kind", [None, "selector", "reranker"])
def test_parts_of_a_batch_are_the_batch(data: HeadData, kind: str | None) -> None:
    network = drafter(base(), list(range(2, 20)), **HEADS.get(kind, {}))
    objective = BlockObjective(network, base(), data, data, QUICK)
    full = objective(objective.batch(3, 0, 1))
    parts = [objective(objective.batch(3, part, 2)) for part in range(2)]
    for name, expected in full.items():
        torch.testing.assert_close(sum(part[name] for part in parts) / 2, expected)


def test_drafter_of_a_periodic_model_says_all_of_the_block(tmp_path: Path) -> None:
    target, drafter = periodic(num_layers=2)
    data = with_states(tmp_path, target, drafter, [1, 2])
    torch.manual_seed(0)
    network = BlockDrafter(config_for(target, 2, 4, 7, target_layer_ids=(0, 1), sample_from_anchor=True))
    options = replace(
        QUICK, steps=60, validation_every=60, checkpoint_every=60, learning_rate=2e-2, muon_learning_rate=2e-2
    )
    train_block_drafter(network, target, data, data, tmp_path / "out", options, warm_start=True)
    log = [json.loads(line) for line in (tmp_path / "out/training-log.jsonl").read_text().splitlines()]
    assert log[-1]["loss"] < 0.1 * log[0]["loss"]
    assert log[-1]["validation"]["slot_accuracy"]["top-1"] == [1.0] * 4
    # Blocks near a text's end have fewer than four slots, and so commit fewer.
    assert 4.5 < log[-1]["validation"]["chain_block_efficiency"] <= 5.0
    again = load_block_drafter(tmp_path / "out")  # beside the run's own checkpoint
    for name, weight in network.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_alone_leaves_the_drafter_as_it_is_and_learns(data: HeadData, tmp_path: Path, kind: str) -> None:
    tokens = list(range(2, 20))
    before = drafter(base(), tokens).eval()
    rate = 5e-3 if kind == "reranker" else 5e-2
    options = replace(QUICK, steps=80, batch_size=11, learning_rate=rate, validation_every=80, checkpoint_every=80)
    new = with_head(before, **HEADS[kind])
    train_block_drafter(new, base(), data, data, tmp_path, options)
    field = "loss" if kind == "bigram" else "transition_loss"
    log = [json.loads(line)[field] for line in (tmp_path / "training-log.jsonl").read_text().splitlines()]
    assert np.mean(log[-5:]) < 0.8 * np.mean(log[:5])
    again = load_block_drafter(tmp_path)
    assert again.ties_slots
    for name, weight in before.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
    with pytest.raises(ValueError, match="expected a drafter without a bigram"):
        with_head(again, **HEADS[kind])


def test_a_head_with_its_drafter_begins_as_the_drafter_and_trains_all(data: HeadData, tmp_path: Path) -> None:
    before = drafter(base(), list(range(2, 20))).eval()
    new = with_head(before, frozen=False, **HEADS["selector"]).eval()
    assert new.config.conv_kernel_size == HEADS["selector"]["conv_kernel_size"]
    one, other = (BlockObjective(each, base(), data, data, QUICK) for each in (before, new))
    batch = one.batch(0, 0, 1)
    torch.testing.assert_close(one.hidden(batch), other.hidden(batch))  # new convolutions change nothing
    started = {name: weight.clone() for name, weight in new.state_dict().items()}
    train_block_drafter(new, base(), data, data, tmp_path, QUICK)
    again = load_block_drafter(tmp_path)
    assert not again.layers[0].attention_conv.kernel_projection.weight.eq(0).all()
    moved = {name for name, weight in again.state_dict().items() if not torch.equal(weight, started[name])}
    assert moved == {name for name, _ in new.named_parameters()}


def test_without_stored_states_the_target_reads_the_texts(data: HeadData) -> None:
    """The same batches, to the rounding of stored states."""
    target, chosen = base(), [3, 0, 2, 1]
    samplers = [BlockSampler(target, drafter(target), each, "x", 3, True) for each in (data, HeadData(data.texts))]
    anchors = [samplers[0].anchors(index, np.random.default_rng(index)) for index in chosen]
    stored, read = (each.batch(chosen, anchors) for each in samplers)
    assert read.last is not None
    assert stored.last is not None
    assert read.last.abs().sum() > 0
    for one, other in ((stored.states, read.states), (stored.last, read.last)):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-3)
    assert torch.equal(stored.labels, read.labels)
    assert torch.equal(stored.anchors, read.anchors)


def test_states_that_do_not_serve_are_refused(data: HeadData, tmp_path: Path) -> None:
    def refused(given: HeadData, target: LlamaForCausalLM, words: str) -> None:
        with pytest.raises(ValueError, match=words):
            train_block_drafter(drafter(target), target, given, given, tmp_path / "out", QUICK)

    refused(data, tiny_model(seed=5).base, "expected hidden states of the target")
    fewer = with_states(tmp_path / "fewer", base(), data.texts, [2])
    refused(fewer, base(), r"got whole texts without layers \[1\]")
    refused(replace(data, texts=texts(12)), base(), "expected hidden states of 12 training texts")
    short = Texts.of_rows([[1, 2, 3]], [2])
    refused(
        with_states(tmp_path / "short", base(), short, [1, 2]),
        base(),
        "expected training texts of at least 2 written tokens",
    )


def files_with_states(folder: Path) -> list[str]:
    """Of a tiny model: the arguments that name it, its texts and their states."""
    tokenizer = train_tokenizer(["a b c d e f g"] * 4, vocab_size=260)
    model = folder / "model"
    tiny_model(vocab_size=tokenizer.get_vocab_size()).base.save_pretrained(model)
    tokenizer.save(str(model / "tokenizer.json"))
    for name, count in (("t", 11), ("v", 4)):
        texts(count, len(name)).save(folder / f"{name}.npz")
    training, validation = str(folder / "t.npz"), str(folder / "v.npz")
    hidden = ["train", "hidden", training, validation, "--model", str(model), "--whole", "--layers", "1,2"]
    assert CliRunner().invoke(app, hidden, catch_exceptions=False).exit_code == 0
    return [training, "--validation", validation, "--model", str(model)]


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(tmp_path: Path) -> None:
    files = files_with_states(tmp_path)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    options = (
        "--num-layers 1 --layers 1,2 --mask-token 1 --block-size 3 --steps 4 --batch-size 4 --anchors 2 --warmup-steps"
        " 1 --device cpu"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    for name, launcher in (("one", [sys.executable]), ("two", torchrun)):
        command = ["-m", "latticebpd", "train", "block-drafter", *files, *options.split(), "-o", name]
        subprocess.run([*launcher, *command], cwd=tmp_path, env=environment, check=True, capture_output=True)
    logs = [
        [json.loads(line) for line in (tmp_path / name / "training-log.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    np.testing.assert_allclose([line["loss"] for line in logs[0]], [line["loss"] for line in logs[1]], rtol=1e-4)
    assert len(logs[1]) == 4


def test_commands_train_a_drafter_and_a_bigram_on_it(run: Run, tmp_path: Path) -> None:
    files = files_with_states(tmp_path)
    model = tmp_path / "model"
    more = [
        "--steps",
        "4",
        "--batch-size",
        "4",
        "--anchors",
        "2",
        "--warmup-steps",
        "1",
        "--device",
        "cpu",
        "--checkpoint-every",
        "2",
    ]
    shape = [
        "--num-layers",
        "1",
        "--layers",
        "1,2",
        "--mask-token",
        "1",
        "--block-size",
        "3",
        "--intermediate-size",
        "8",
    ]

    def train(output: str, *options: str) -> str:
        line = ["train", "block-drafter", *files, *more, *options, "-o", str(tmp_path / output)]
        result = CliRunner().invoke(app, line, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())

    assert "shortlist: 9 tokens" in train("block", *shape, "--shortlist", "9", "--precision", "bfloat16")
    loaded = load_block_drafter(tmp_path / "block")
    assert (loaded.config.slots, loaded.config.target_layer_ids, loaded.config.layers.intermediate_size) == (
        3,
        (0, 1),
        8,
    )
    assert loaded.config.tokenizer_fingerprint is not None
    last = json.loads((tmp_path / "block/training-log.jsonl").read_text().splitlines()[-1])
    assert len(last["validation"]["slot_accuracy"]["top-1"]) == 3
    train("bigram", "--bigram-on", str(tmp_path / "block"), "--bigram-rank", "2")
    assert load_block_drafter(tmp_path / "bigram").config.markov_rank == 2
    train("anchored", *shape, "--no-sample-from-anchor")
    train(
        "selected", "--head-on", str(tmp_path / "anchored"), "--selector", "--selector-rank", "3", "--candidates", "4"
    )
    assert json.loads((tmp_path / "selected/config.json").read_text())["architectures"] == ["DFlash2DraftModel"]
    train("further", "--head-on", str(tmp_path / "selected"), "--whole")
    before, after = (load_block_drafter(tmp_path / name) for name in ("selected", "further"))
    for name in ("selector_rank", "selector_top_k", "conv_kernel_size", "markov_rank", "sample_from_anchor"):
        assert getattr(after.config, name) == getattr(before.config, name)
    assert not torch.equal(after.fc.weight, before.fc.weight)
    reranker = ["--reranker", "--reranker-size", "8", "--reranker-heads", "2"]
    train("reranked", *shape, *reranker)
    assert load_block_drafter(tmp_path / "reranked").config.reranker == RerankerConfig(8, 8, 8, 2, 2)
    status, _, err = run("train", "block-drafter", *files, *shape, *reranker, "--sample-from-anchor", "-o", "no")
    assert (status, "expected sample_from_anchor false with a reranker" in err) == (2, True)
    train("causal", *shape, "--causal", "--random-start", "--no-sample-from-anchor")
    assert (
        load_block_drafter(tmp_path / "causal").config.causal_head,
        load_block_drafter(tmp_path / "causal").config.slots,
    ) == (True, 2)
    status, _, err = run(
        "train", "block-drafter", *files, *shape, "--shortlist", str(model), "-o", str(tmp_path / "no")
    )
    assert status == 2
    assert "expected a model with heads" in err
