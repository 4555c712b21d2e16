"""Kept hidden states: the same loss as with the base model, which then is not run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from latticebpd import DraftTree, generate
from latticebpd.cli import app
from latticebpd.drafters.drafter import State
from latticebpd.drafters.heads.blockwise import BlockwiseLM, new_heads
from latticebpd.lattices.texts import Texts
from latticebpd.models.transformers.transformers_model import TransformersModel
from lm_training.data.hidden_states import (
    HiddenStates,
    StateOptions,
    add_states,
    load_states,
    states_directory,
    states_of,
    unprompted,
)
from lm_training.data.shortlist import coverage, shortlist_of
from lm_training.data.training_data import HeadData, load_head_data
from lm_training.families.heads import train_heads
from lm_training.training.training_options import HeadTraining
from tests.helpers.blockwise_models import tiny_model
from tests.helpers.engine_models import on_engine, stock
from tests.helpers.tiny_families import tiny

QUICK = HeadTraining(
    steps=5, batch_size=4, warmup_steps=2, validation_every=5, checkpoint_every=5, serving_prompts=0, learning_rate=1e-2
)


def texts(count: int = 11, seed: int = 0) -> Texts:
    """Prompts of 1 to 5 tokens and what follows them, 3 to 12 more."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, count)
    return Texts.of_rows(
        [rng.integers(2, 23, length + rng.integers(3, 13)) for length in lengths], lengths.tolist(), np.uint16
    )


def kept(base: object, path: Path, data: Texts, **more: object) -> HiddenStates:
    data.save(path)
    add_states(base, data, states_directory(path), StateOptions(**{"shard_texts": 4, "batch_tokens": 40, **more}))
    states = load_states(path, data)
    assert states is not None
    return states


@pytest.mark.parametrize("family", ["gpt2", "llama", "opt", "bloom", "t5", "marian", "bart"])
def test_states_are_those_that_each_written_token_was_chosen_from(family: str, tmp_path: Path) -> None:
    base, data = tiny(family, seed=3, eos=7), texts()
    stored = kept(base, tmp_path / "t.npz", data, layers=[1, 2])
    stock = TransformersModel.of(base)
    for index, (text, prompt) in enumerate(data.items()):
        with torch.no_grad():
            if stock.is_encoder_decoder:
                out = base(torch.tensor([text[:prompt]]),
                decoder_input_ids=torch.tensor([[stock.start_id, *text[prompt:-1]]]),
                           output_hidden_states=True)  # fmt: skip
                layers, begin = out.decoder_hidden_states, 0
            else:
                layers, begin = base(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states, prompt - 1
        for name, expected in (("last", layers[-1]), ("layer-1", layers[1]), ("layer-2", layers[2])):
            states = stored.of_text(index, name)
            assert states.dtype == torch.float16
            torch.testing.assert_close(states.float(), expected[0, begin:], atol=2e-2, rtol=2e-3)


class Watching:
    """Drafts one wrong token, and keeps the states that it gets."""

    needs_layers = (0, 1)

    def __init__(self) -> None:
        self.last: dict[int, np.ndarray] = {}
        self.layers: np.ndarray | None = None

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        for state in states:
            assert state.hidden is not None
            self.last[len(state.tokens) - 2] = state.hidden  # the position whose next token it predicts
            self.layers = state.layers
        return [DraftTree(np.array([1, 2], np.int32), np.array([-1, 0], np.int32)) for _ in states]

    def observe(self, rows: Sequence[int], committed: Sequence[Sequence[int]]) -> None:
        pass


@pytest.mark.parametrize("weights", ["float32", "int8"])
@pytest.mark.parametrize("whole", [False, True])
def test_states_by_the_engine_are_those_of_the_decode_bit_for_bit(weights: str, whole: bool, tmp_path: Path) -> None:
    base, prompts = on_engine(weights), [[5, 6, 7, 8, 3], [9], list(range(1, 12))]
    watching, rows = [], []
    for prompt in prompts:
        watching.append(Watching())
        rows.append(generate(base, prompt, watching[-1], max_new_tokens=30).tokens[0])
    data = Texts.of_rows(rows, list(map(len, prompts)))
    texts = unprompted(data) if whole else data
    states = states_of(base, texts, StateOptions([1, 2]))
    begin = 0
    for row, prompt, seen in zip(rows, texts.prompt_lengths.tolist(), watching, strict=True):
        count = len(row) - prompt
        last, one, two = (states[name][begin : begin + count] for name in ("last", "layer-1", "layer-2"))
        begin += count
        assert len(seen.last) > 5
        for position, state in seen.last.items():
            np.testing.assert_array_equal(last[position - prompt + 1], state)
        assert seen.layers is not None
        known = seen.layers[prompt - 1 :]
        np.testing.assert_array_equal(torch.cat([one, two], dim=1)[: len(known)], known)
        assert torch.equal(two, last)  # of the last layer, normalised
    assert begin == len(states["last"])
    stored = kept(base, tmp_path / "t.npz", data, whole=whole)
    assert torch.equal(torch.cat([stored.of_text(index, whole=True) for index in range(3)]), states["last"].half())
    recorded = json.loads((tmp_path / "t.hidden" / "hidden.json").read_text()).get("weights")
    assert recorded == {"int8": "int8"}.get(weights)


@pytest.mark.parametrize("family", ["llama", "marian"])
@pytest.mark.parametrize("objective", ["position", "joint", "batch"])
@pytest.mark.parametrize("shortlist", [False, True])
def test_training_from_states_has_the_same_losses_and_never_runs_the_base(
    family: str, objective: str, shortlist: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, data, held_out = tiny(family, seed=3, eos=7), texts(), texts(5, 1)
    kept(base, tmp_path / "t.npz", data)
    kept(base, tmp_path / "v.npz", held_out)
    tokens = shortlist_of(data, TransformersModel.of(base).vocab_size, 15) if shortlist else None
    logs = []
    for with_states in (False, True):
        torch.manual_seed(0)
        kind = "conditioned" if shortlist else "feed-forward"
        model = BlockwiseLM(base, new_heads(base, kind, 4, shortlist=tokens))
        learnt, measured = load_head_data([tmp_path / "t.npz"], [tmp_path / "v.npz"], 0, with_states)
        options = replace(QUICK, objective=objective)
        directory = tmp_path / str(with_states)
        if with_states:
            for part in (base.get_decoder(), base.base_model):
                monkeypatch.setattr(part, "forward", None)  # nothing that is called
        train_heads(model, learnt, measured, directory, options)
        logs.append([json.loads(line) for line in (directory / "training-log.jsonl").read_text().splitlines()])
    for without, with_them in zip(*logs, strict=True):
        assert with_them["loss"] == pytest.approx(without["loss"], abs=1e-3)
        np.testing.assert_allclose(with_them["head_losses"], without["head_losses"], atol=1e-3)
    first, second = (log[-1]["validation"] for log in logs)
    assert second["loss"] == pytest.approx(first["loss"], abs=1e-3)
    assert second["base_loss"] == pytest.approx(first["base_loss"], abs=1e-3)
    assert first.keys() == second.keys()
    if shortlist:
        assert first["coverage"] == second["coverage"] < 1


@pytest.mark.parametrize("kind", ["stern", "conditioned"])
def test_labels_off_the_shortlist_are_not_learnt_and_count_as_missed(kind: str, tmp_path: Path) -> None:
    """Against losses token by token, over the list's tokens alone."""
    base, data = tiny_model().base, texts()
    tokens = shortlist_of(data, 23, 12)
    counts = np.bincount(
        np.concatenate([data[index][length:] for index, length in enumerate(data.prompt_lengths)]), minlength=23
    )
    assert sorted(counts[tokens].tolist(), reverse=True) == sorted(counts.tolist(), reverse=True)[:12]
    assert coverage(data, tokens) == pytest.approx(counts[tokens].sum() / counts.sum())
    torch.manual_seed(0)
    model = BlockwiseLM(base, new_heads(base, kind, 3, shortlist=tokens))
    torch.nn.init.normal_(model.heads.down, std=0.2)
    losses: list[list[float]] = [[], []]
    hits, labels = np.zeros(2), np.zeros(2)
    with torch.no_grad():
        for text, prompt in data.items():
            hidden = base.model(torch.tensor([text])).last_hidden_state[0]
            following = torch.tensor([*text[1:], 0])
            log_probs = model.head_logits(hidden, following=following).log_softmax(-1)
            for head in range(2):
                for position in range(prompt - 1, len(text) - 2 - head):
                    said = text[position + 2 + head]
                    labels[head] += 1
                    if said in tokens:
                        losses[head].append(-float(log_probs[position, head, tokens.tolist().index(said)]))
                        hits[head] += int(tokens[int(log_probs[position, head].argmax())]) == said
    options = replace(QUICK, objective="joint", steps=1, batch_size=11, learning_rate=0.0)
    train_heads(model, data, data, tmp_path, options)
    record = json.loads((tmp_path / "training-log.jsonl").read_text())
    np.testing.assert_allclose(record["head_losses"], [np.mean(each) for each in losses], atol=1e-4)
    np.testing.assert_allclose(record["validation"]["head_accuracy"]["top-1"], hits / labels, atol=1e-4)
    assert record["validation"]["coverage"] == pytest.approx(sum(map(len, losses)) / labels.sum(), abs=1e-4)


@pytest.mark.parametrize("stored", [False, True])
def test_heads_learn_from_further_layers_and_from_sharpened_probabilities(stored: bool, tmp_path: Path) -> None:
    """Losses against those of every label, token by token."""
    data, base, wanted = texts(), tiny_model().base, [list[float](), list[float]()]
    torch.manual_seed(0)
    model = BlockwiseLM(base, new_heads(base, "conditioned", num_heads=3))
    model.add_layers([2, 1])
    torch.nn.init.normal_(model.heads.up)
    torch.nn.init.normal_(model.heads.down, std=0.3)
    states = kept(base, tmp_path / "texts.npz", data, layers=[1, 2]) if stored else None
    with torch.no_grad():
        for text, prompt in data.items():
            ids = torch.tensor(text)
            read = base.model(ids[None], output_hidden_states=True)
            inputs = torch.cat([read.last_hidden_state, read.hidden_states[2], read.hidden_states[1]], dim=-1)[0]
            logits = model.head_logits(inputs, following=ids.roll(-1)).log_softmax(-1)
            for head in range(2):
                for position in range(prompt - 1, len(text) - 2 - head):
                    target = (model.projection(inputs[position + 1 + head, :16]) / 0.5).softmax(-1)
                    wanted[head].append(-float(target @ logits[position, head]))
    options = replace(
        QUICK,
        objective="joint",
        steps=1,
        batch_size=len(data),
        learning_rate=0.0,
        labels="model",
        label_temperature=0.5,
    )
    learnt = HeadData(data, states)
    train_heads(model, learnt, learnt, tmp_path / "run", options)
    record = json.loads((tmp_path / "run/training-log.jsonl").read_text())
    np.testing.assert_allclose(record["head_losses"], [np.mean(each) for each in wanted], atol=3e-3 if stored else 1e-4)


def test_killed_run_goes_on_and_parts_make_the_whole(tmp_path: Path) -> None:
    base, data = tiny_model().base, texts()
    full = kept(base, tmp_path / "whole.npz", data)
    data.save(tmp_path / "parts.npz")
    directory = states_directory(tmp_path / "parts.npz")

    def killed(done: int, tokens: int) -> None:
        if directory.file(0).exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        add_states(base, data, directory, StateOptions(shard_texts=4), part=(0, 2), on_text=killed)
    with pytest.raises(
        ValueError, match=r"2 of 3 shards are missing, first shard-00001\.safetensors; run the same `latticebpd"
    ):
        load_states(tmp_path / "parts.npz", data)
    assert sorted(path.name for path in directory.path.iterdir()) == ["hidden.json", "shard-00000.safetensors"]
    for index in range(2):
        add_states(base, data, directory, StateOptions(shard_texts=4), part=(index, 2))
    parts = load_states(tmp_path / "parts.npz", data)
    assert parts is not None
    for index in range(len(data)):
        torch.testing.assert_close(parts.of_text(index), full.of_text(index), atol=1e-3, rtol=1e-3)


def test_states_of_other_texts_models_or_layers_are_refused(tmp_path: Path) -> None:
    base, data = tiny_model().base, texts()
    states = kept(base, tmp_path / "t.npz", data)
    assert load_states(tmp_path / "none.npz", data) is None
    for other in (texts(seed=5), texts(12), Texts.of_rows([data[index] for index in range(11)], [1] * 11, np.uint16)):
        with pytest.raises(ValueError, match="found those of others"):
            load_states(tmp_path / "t.npz", other)
    with pytest.raises(ValueError, match=r"holds hidden states made with layers \[\], asked for is \[1\]"):
        add_states(base, data, states_directory(tmp_path / "t.npz"), StateOptions([1], shard_texts=4))
    with pytest.raises(ValueError, match="holds hidden states made with model sha256"):
        add_states(tiny_model(seed=5).base, data, states_directory(tmp_path / "t.npz"), StateOptions(shard_texts=4))
    with pytest.raises(ValueError, match="expected layers from 1 to 2"):
        add_states(base, data, states_directory(tmp_path / "u.npz"), StateOptions([3]))
    another = tiny_model(seed=5).base
    model = BlockwiseLM(another, new_heads(another, "stern", 3))
    with pytest.raises(ValueError, match="expected hidden states of the model whose heads are trained"):
        train_heads(model, HeadData(data, states), data, tmp_path / "out", QUICK)
    model = BlockwiseLM(tiny_model().base, new_heads(base, "stern", 3))
    with pytest.raises(ValueError, match="expected a frozen base model with kept hidden states"):
        train_heads(model, HeadData(data, states), data, tmp_path / "out", replace(QUICK, fine_tune=True))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"num_shards": 3}', b'{"num_shards": 3, "model": 1, "shard_texts": 0}']
)
def test_damaged_settings_are_a_value_error(tmp_path: Path, content: bytes) -> None:
    data = texts()
    kept(tiny_model().base, tmp_path / "t.npz", data)
    (tmp_path / "t.hidden/hidden.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"hidden\.json: expected settings as `latticebpd train hidden` writes them"):
        load_states(tmp_path / "t.npz", data)


def test_damaged_shards_are_a_value_error(tmp_path: Path) -> None:
    data = texts()
    kept(tiny_model().base, tmp_path / "t.npz", data)
    shard = tmp_path / "t.hidden/shard-00001.safetensors"
    full = shard.read_bytes()
    for damaged in (
        b"",
        full[:100],
        full[:-1],
        full.replace(b"last", b"lost"),
        full.replace(b'"texts"', b'"taxes"'),
    ):
        shard.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"shard-00001\.safetensors: expected hidden states"):
            load_states(tmp_path / "t.npz", data)


def test_commands_keep_states_and_train_from_them(tmp_path: Path) -> None:
    tiny_model().base.save_pretrained(tmp_path / "model")
    for name, count in (("t", 11), ("v", 4)):
        texts(count, len(name)).save(tmp_path / f"{name}.npz")
    files = [str(tmp_path / "t.npz"), str(tmp_path / "v.npz")]
    result = CliRunner().invoke(
        app, ["train", "hidden", *files, "--model", str(tmp_path / "model")], catch_exceptions=False
    )
    assert result.exit_code == 0
    command = [
        "train",
        "heads",
        files[0],
        "--validation",
        files[1],
        "--model",
        str(tmp_path / "model"),
        "-o",
        str(tmp_path / "out"),
    ]
    more = [
        "--num-heads",
        "4",
        "--steps",
        "4",
        "--shortlist",
        "15",
        "--serving-prompts",
        "1",
        "--warmup-steps",
        "1",
        "--device",
        "cpu",
    ]
    result = CliRunner().invoke(app, command + more, catch_exceptions=False)
    assert result.exit_code == 0
    said = " ".join(result.output.split())
    assert "hidden states are read from their files" in said
    assert "shortlist: 15 tokens" in said
    model = BlockwiseLM.from_pretrained(tmp_path / "out")
    assert model.shortlist is not None
    assert len(model.shortlist) == 15
    more[more.index("15")] = str(tmp_path / "out")
    command[-1] = str(tmp_path / "again")
    result = CliRunner().invoke(app, command + more, catch_exceptions=False)
    assert result.exit_code == 0
    assert (BlockwiseLM.from_pretrained(tmp_path / "again").shortlist == model.shortlist).all()
    for wrong, said in ((str(tmp_path / "model"), "expected a model with heads"), ("0", "--shortlist >= 1")):
        more[more.index("--shortlist") + 1] = wrong
        with pytest.raises(ValueError, match=said):
            CliRunner().invoke(app, [*command[:-1], str(tmp_path / "no"), *more], catch_exceptions=False)


@pytest.mark.parametrize("weights", ["float32", "int8", "torch"])
def test_heads_learn_from_states_by_the_engine_of_their_models_files_and_of_no_others(
    weights: str, tmp_path: Path
) -> None:
    """A model's files in half precision, and in single precision with heads, are the same model's."""
    for name, seed in (("model", 0), ("other", 1)):
        nn.Module.to(stock(seed), torch.bfloat16).save_pretrained(tmp_path / name)
    texts().save(tmp_path / "t.npz")

    def train(command: str) -> str:
        line = [str(tmp_path / part) if part.startswith(("t.", "model", "other")) else part for part in command.split()]
        result = CliRunner().invoke(app, ["train", *line, "--device", "cpu"], catch_exceptions=False)
        assert result.exit_code == 0
        return " ".join(result.output.split())

    train(f"hidden t.npz --model model --weights {weights}")
    heads, once = "heads t.npz --validation t.npz", "--num-heads 3 --steps 1 --serving-prompts 0"
    assert "are read from their files" in train(f"{heads} {once} --model model -o model-heads")
    assert "are read from their files" in train(f"{heads} {once} --model model-heads --warm-start -o model-again")
    with pytest.raises(ValueError, match="expected hidden states of the model whose heads are trained"):
        train(f"{heads} {once} --model other -o other-heads")


def test_whole_texts_states_are_those_of_texts_without_prompts_and_serve_heads_too(tmp_path: Path) -> None:
    base, data = tiny_model().base, texts()
    unprompted = Texts.of_rows([data[index] for index in range(len(data))], [1] * len(data), np.uint16)
    expected = kept(base, tmp_path / "unprompted.npz", unprompted, layers=[1])
    written = kept(base, tmp_path / "written.npz", data, layers=[1])
    full = kept(base, tmp_path / "whole.npz", data, layers=[1], whole=True)
    for index, (text, prompt) in enumerate(data.items()):
        for layer in ("last", "layer-1"):
            states = full.of_text(index, layer, whole=True)
            assert len(states) == len(text) - 1
            assert torch.equal(states, expected.of_text(index, layer))
            assert torch.equal(full.of_text(index, layer), states[prompt - 1 :])
            torch.testing.assert_close(full.of_text(index, layer), written.of_text(index, layer), atol=1e-3, rtol=1e-3)
    for file in (tmp_path / "whole.hidden").glob("*.safetensors"):
        assert file.read_bytes() == (tmp_path / "unprompted.hidden" / file.name).read_bytes()
    with pytest.raises(ValueError, match="holds hidden states made with whole True, asked for is None"):
        add_states(base, data, states_directory(tmp_path / "whole.npz"), StateOptions([1], shard_texts=4))
    joined = HiddenStates.joined([full, full])
    joined.require([1], whole=True)
    assert torch.equal(joined.of_text(len(data) + 2), full.of_text(2))
    with pytest.raises(
        ValueError,
        match=r"expected hidden states of whole texts and of layers 1, 2, got whole texts without layers \[2\]",
    ):
        joined.require([1, 2], whole=True)
    with pytest.raises(
        ValueError, match="got written tokens only; make them with `latticebpd train hidden --whole --layers 1`"
    ):
        written.require([1], whole=True)
    with pytest.raises(ValueError, match=r"without layers \[2\]; make them with `latticebpd train hidden --layers 2`"):
        written.require([2])
    with pytest.raises(ValueError, match="expected a decoder-only model for states of whole texts"):
        add_states(tiny("t5", eos=7), data, states_directory(tmp_path / "t5.npz"), StateOptions(whole=True))
