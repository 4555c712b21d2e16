"""The engine's benchmark on the bundled model: libraries agree, passes leave no trace, files hold what they should."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants
from transformers import LlamaConfig, Qwen3Config

from benchmarks.common import read_csv
from benchmarks.engine import files, peers, run
from latticebpd.drafters import bundled
from latticebpd.models.load_target import load_stock

SYSTEMS: dict[str, peers.System] = {
    "PyTorch": ("transformers", bundled.MODEL),
    "latticebpd": ("latticebpd", bundled.MODEL),
}
SIZES = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}


@pytest.fixture(scope="module", params=list(SYSTEMS))
def peer(request: pytest.FixtureRequest) -> Iterator[peers.Peer]:
    drafts = "16-copies" if request.param == "latticebpd" else "prompt lookup 3"
    with closing(peers.Peer(SYSTEMS[request.param], 1, drafts=drafts)) as opened:
        yield opened


@pytest.mark.long
def test_a_pass_is_forgotten_and_its_tokens_are_those_of_passes_over_one(peer: peers.Peer) -> None:
    context, tokens = list(range(100, 140)), [7, 8, 9]
    assert len(peer.ask(tokens=context, begin=0)["tokens"]) == 40
    full = peer.ask(tokens=tokens, begin=40)
    assert peer.ask(tokens=[50, 60], begin=40)["tokens"] != full["tokens"][:2]
    assert peer.ask(tokens=tokens, begin=40)["tokens"] == full["tokens"]
    assert peer.ask(tokens=tokens[:1], begin=40)["tokens"] == full["tokens"][:1]
    assert full["mib"] > 100
    assert full["cpu_ms"] > 0


@pytest.mark.long
def test_likelihoods_are_those_of_the_model_with_no_text_before(peer: peers.Peer) -> None:
    tokens = list(range(100, 140))
    first = peer.ask(tokens=tokens, begin=0)["nats"]
    base = load_stock(bundled.MODEL)
    with torch.inference_mode():
        expected = base(torch.tensor([tokens]), labels=torch.tensor([tokens])).loss
    assert first == pytest.approx(float(expected), abs=1e-4)
    assert peer.ask(tokens=tokens, begin=0)["nats"] == pytest.approx(first)
    assert "nats" not in peer.ask(tokens=tokens[:1], begin=40)


@pytest.mark.long
def test_an_answer_ends_before_an_end_and_follows_from_passes(peer: peers.Peer) -> None:
    prompt = list(range(100, 140))
    answer = peer.ask(prompt=prompt, limit=12, ends=[])["tokens"]
    assert len(answer) == 12
    assert peer.ask(tokens=prompt + answer, begin=0)["tokens"][39:-1] == answer
    first = answer.index(answer[5])
    assert peer.ask(prompt=prompt, limit=12, ends=[answer[5]])["tokens"] == answer[:first]


@pytest.mark.long
@pytest.mark.parametrize("name", SYSTEMS)
def test_passes_of_this_project_are_a_part_of_the_time_of_its_answers(name: str) -> None:
    with closing(peers.Peer(SYSTEMS[name], 1)) as peer:
        reply = peer.ask(prompt=list(range(100, 140)), limit=12, ends=[])
    assert 0 <= reply["pass_ms"] < reply["cpu_ms"]
    assert (reply["pass_ms"] > 0) == (name == "latticebpd")


@pytest.mark.long
def test_an_ended_process_is_an_error_that_names_its_model(tmp_path: Path) -> None:
    system = ("transformers", tmp_path / "nothing")
    with closing(peers.Peer(system, 1)) as ended, pytest.raises(ValueError, match=r"nothing: the process ended: \w+"):
        ended.ask(tokens=[1], begin=0)


class ScriptedPeer:
    """Answers that prompt lookup changes where a prompt is long and the library is called so."""

    def __init__(self, system: peers.System, threads: int, size: int = 512, drafts: str = "") -> None:
        self.changes, self.started = bool(drafts) and system[0] == "changing", 0.0

    def ask(self, tokens: list[int] | None = None, prompt: list[int] | None = None, **_: object) -> dict[str, Any]:
        written = tokens or [1, 2, int(self.changes and len(prompt or ()) > 40)]
        return {"tokens": written, "wall_ms": 2.0 * len(written), "cpu_ms": 4.0 * len(written), "mib": 77.0}

    def close(self) -> None:
        pass


def test_tables_hold_medians_speeds_and_the_number_of_same_texts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "Peer", ScriptedPeer)
    monkeypatch.setattr(run, "systems", lambda: {"A": ("changing", tmp_path), "B": ("steady", tmp_path)})
    monkeypatch.setattr(run, "versions", dict)
    monkeypatch.setattr(run, "resolved", lambda _: bundled.MODEL)
    chat = SimpleNamespace(prompt=lambda turns: list(turns[0].encode()), eos_ids=[])
    monkeypatch.setattr(run, "ChatTemplate", lambda *_: chat)
    questions = [{"question_id": n, "category": "qa", "turns": ["again " * (4 * n + 4)]} for n in range(2)]
    (tmp_path / "question.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    printed = {}
    for name, options in {"passes": [], "answers": ["--questions", tmp_path / "question.jsonl"]}.items():
        path = tmp_path / f"{name}.csv"
        command = ["run", "-o", path, "--turns", "2", "--threads", "1,2", *options]
        monkeypatch.setattr(sys, "argv", list(map(str, command)))
        run.main()
        printed[name] = capsys.readouterr().out
        assert len(read_csv(path)) == 2 * 2 * 2 * (len(run.WIDTHS) if name == "passes" else 2)
    assert printed["passes"].count("| A | 2.0 (4.0) | 4.0 (8.0) | 6.0 (12.0) |") == 2
    assert printed["answers"].count("| A | 500.0 (500.0–500.0) | 250.0 |  |") == 2
    assert printed["answers"].count("| A, prompt lookup | 500.0 (500.0–500.0) | 250.0 | 1 of 2 |") == 2
    assert printed["answers"].count("| B, prompt lookup | 500.0 (500.0–500.0) | 250.0 | 2 of 2 |") == 2


def small_model(path: Path) -> dict[str, np.ndarray]:
    """A GGUF file with a Q4_1 matrix, a Q8_0 one and a norm; the stored arrays."""
    writer, rng = GGUFWriter(path, "llama"), np.random.default_rng(0)
    writer.add_file_type(3)
    writer.add_token_list(["a", "b"])
    arrays = {}
    for name, kind in (("blk.0.attn_q.weight", "Q4_1"), ("token_embd.weight", "Q8_0"), ("output_norm.weight", "F32")):
        values, type_id = rng.standard_normal((4, 64), np.float32), GGMLQuantizationType[kind]
        arrays[name] = quants.quantize(values, type_id)
        writer.add_tensor(name, arrays[name], raw_dtype=type_id)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return arrays


@pytest.mark.parametrize(("kind", "file_type"), [("Q8_0", 7), ("Q4_0", 2)])
def test_requantized_matrices_are_near_and_all_else_is_copied(kind: str, file_type: int, tmp_path: Path) -> None:
    arrays = small_model(tmp_path / "a.gguf")
    files.requantized(tmp_path / "a.gguf", tmp_path / "b.gguf", kind)
    reader = GGUFReader(tmp_path / "b.gguf")
    assert reader.fields["general.file_type"].contents() == file_type
    assert reader.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    changed, *kept = reader.tensors
    assert changed.tensor_type == GGMLQuantizationType[kind]
    before = quants.dequantize(arrays[changed.name], GGMLQuantizationType.Q4_1)
    assert np.abs(quants.dequantize(changed.data, changed.tensor_type) - before).max() < 0.35
    assert all((tensor.data == arrays[tensor.name]).all() for tensor in kept)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("config", [LlamaConfig(**SIZES, **HEADS), Qwen3Config(**SIZES, **HEADS)])
def test_random_weights_have_the_spread_of_trained_ones(
    config: LlamaConfig | Qwen3Config, kind: str, tmp_path: Path
) -> None:
    files.random_model(config, kind, tmp_path / "r.gguf")
    reader = GGUFReader(tmp_path / "r.gguf")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert ("blk.1.attn_q_norm.weight" in tensors) == (config.model_type == "qwen3")
    assert list(tensors["blk.1.ffn_down.weight"].shape) == [128, 64]
    assert list(tensors["token_embd.weight"].shape) == [64, 96]
    assert reader.fields[f"{config.model_type}.attention.head_count_kv"].contents() == 2
    down = tensors["blk.1.ffn_down.weight"]
    values = quants.dequantize(down.data, down.tensor_type)
    assert values.std() == pytest.approx(128**-0.5, rel=0.05)
    assert (tensors["output_norm.weight"].data == 1).all()
