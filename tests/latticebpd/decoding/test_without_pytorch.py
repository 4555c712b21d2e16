"""Decodes on a file's blocks load neither PyTorch nor `transformers`, and write what the model writes with them."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from latticebpd.models.engine.engine_target import engine_target
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from latticebpd import BlockwiseLM, Chat, Loaded, NoDrafter, State, generate, load
from latticebpd.drafters.heads.engine_heads import EngineHeadLattices
from latticebpd.drafters.heads.head_family import HeadLattices
from latticebpd.drafters.heads.head_networks import BlockHeads, ConditionedHeads
from latticebpd.models.catalogue import GGUF_NAME, model_folder
from latticebpd.scoring.calibration import calibration_path
from tests.helpers.drafters import LM, WEIGHTS
from tests.helpers.gguf_files import FLOATS, written
from tests.helpers.tokenizers import TEMPLATE, letters

SIZES: dict[str, Any] = {
    "vocab_size": 120, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 7,
}  # fmt: skip
FAMILIES = {
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=32),
}
SYSTEMS = ("greedy", "vanilla", "16-tree:0-gram", "16-calibrated", "copies+16-tree", "8-copies")
PROMPTS = [torch.randint(3, 120, (5 + seed % 40,), generator=torch.Generator().manual_seed(seed)).tolist()
           for seed in range(24)]  # fmt: skip


def tiny(name: str, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(copy.deepcopy(FAMILIES[name])).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.3 + (weight.ndim == 1))
    return model


def change_json(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def made(
    folder: Path,
    model: PreTrainedModel,
    shortlist: list[int] | None = None,
    kind: type[BlockHeads] = BlockHeads,
    transitions: int = 0,
    layers: tuple[int, ...] = (),
) -> Path:
    """A model's folder with its GGUF file, heads, language model and a tokenizer with a chat template."""
    model.generation_config = GenerationConfig.from_model_config(model.config)
    heads = kind(64, 5, 48, layers)
    torch.manual_seed(1)
    torch.nn.init.normal_(heads.down, std=0.1)
    heads.shortlist = None if shortlist is None else torch.tensor(shortlist)
    if transitions:
        heads.add_transitions(transitions)
        torch.nn.init.normal_(heads.transitions.down, std=0.1)  # type: ignore[union-attr]
    model.save_pretrained(folder)
    BlockwiseLM(model, heads).save_heads(folder, torch.int8 if layers else None)
    change_json(folder / "heads.json", base_fingerprint=None)
    written(folder / GGUF_NAME, model, FLOATS)
    tokenizer: Any = letters()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    LM.save(folder / "lm.fst")
    WEIGHTS.save(calibration_path(folder / "lm.fst"))
    return folder


KINDS = [
    (BlockHeads, 0),
    pytest.param((ConditionedHeads, 0), marks=pytest.mark.long),
    pytest.param((ConditionedHeads, 16), marks=pytest.mark.long),
    (ConditionedHeads, 16, (2,)),
]


@pytest.fixture(scope="module", params=KINDS)
def llama(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("llama"), tiny("llama"), [*range(0, 120, 3), 119], *request.param)


def with_pytorch(folder: Path | str, monkeypatch: pytest.MonkeyPatch, bigram: bool = True) -> Loaded:
    """The same model, loaded by `transformers` before its engine is made."""
    with monkeypatch.context() as context:
        context.setattr("latticebpd.loading.engine_target", lambda path: None)
        loaded = load(folder, bigram=bigram)
    assert (loaded.weights, loaded.target) == ("file", None)
    return loaded


def assert_same(
    one: Loaded, other: Loaded, prompts: list[list[int]], system: str, length: int, calls: bool = True
) -> None:
    """Texts and calls, or about as many calls."""
    own, stock = one.drafter(system), other.drafter(system)
    for prompt in prompts:
        output = one.generate(prompt, own, max_new_tokens=length, trace=True)
        expected = other.generate(prompt, stock, max_new_tokens=length, trace=True)
        assert torch.equal(output.sequences, expected.sequences)
        assert len(output.blocks()) == pytest.approx(len(expected.blocks()), rel=0.1)
        if calls:
            assert output.blocks() == expected.blocks()
            counts = (each.accept_counts.tolist() for each in (output, expected))  # as long as the deepest draft
            assert np.trim_zeros(next(counts), "b") == np.trim_zeros(next(counts), "b")


@pytest.mark.parametrize("system", SYSTEMS)
def test_texts_and_calls_are_those_of_the_model_with_pytorch(
    system: str, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(llama)
    assert loaded.target is not None
    assert isinstance(loaded.source, EngineHeadLattices)
    assert_same(loaded, with_pytorch(llama, monkeypatch), PROMPTS, system, 40)


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_other_families_too(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(tmp_path, tiny(name))
    loaded = load(folder)
    assert loaded.target is not None
    assert_same(loaded, with_pytorch(folder, monkeypatch), PROMPTS[:8], "16-calibrated", 30)


def test_drafts_are_those_of_heads_in_pytorch(llama: Path) -> None:
    source: Any = load(llama).source
    hidden, layers = np.random.default_rng(0).normal(0, 3, (2, 4, 64)).astype(np.float32)
    for k, slots, depths in ((5, None, [1, 9, 4, 2]), (41, 2, [9] * 4), (64, 3, [3] * 4)):
        states: Any = [State(row, [1, 2], 1, hidden[row], depth, (), layers[[row]]) for row, depth in enumerate(depths)]  # type: ignore[arg-type]
        own = source.with_shape(k, slots).lattices(states)
        assert [each.slots for each in own] == [min(depth, slots or 4) for depth in depths]
        for ours, theirs in zip(own, HeadLattices(source.target, k, slots).lattices(states), strict=True):
            assert theirs is not None
            np.testing.assert_array_equal(ours.tokens, theirs.tokens)
            if not source.target.heads.reads_token:
                assert ours == theirs
            elif ours.transitions is None or theirs.transitions is None:  # but for the rounding of normalised vectors
                np.testing.assert_allclose(ours.log_probs, theirs.log_probs, atol=1e-5)
            else:  # the engine quantizes them to int8
                np.testing.assert_allclose(ours.log_probs, theirs.log_probs, atol=0.1, rtol=1e-2)
                np.testing.assert_allclose(ours.transitions, theirs.transitions, atol=0.2)
    with pytest.raises(ValueError, match="expected states with the hidden state"):
        source.lattices([State(0, [1, 2], 1, None, 3)])
    plain: Any = load(llama, bigram=False).source
    for each in (plain, plain.with_shape(5), plain.stock()):
        assert not each.has_transitions
        assert each.lattices(states)[0].transitions is None
    text = PROMPTS[30 % 24]
    ours, theirs = (each.lattices_of_text(text, range(3)) for each in (source, HeadLattices(source.target)))
    assert next(ours)[0] == next(theirs)[0]
    assert source.weights == HeadLattices(source.target).weights


CODE = """
import io, sys
from latticebpd import load
from latticebpd.cli import app
loaded = load({folder!r})
text = loaded.decode(loaded.generate("abcabc", max_new_tokens=8).tokens[0])
loaded.draft("abcabc")
for options in ([], ["--show-blocks"], ["--json"]):
    app(["generate", "abcabc", "--model", {folder!r}, "--max-new-tokens", "8", *options], standalone_mode=False)
sys.stdin = io.StringIO("abc\\ncab\\n")
app(["chat", "--model", {folder!r}, "--max-new-tokens", "8"], standalone_mode=False)
print({{"torch", "transformers"}} & set(sys.modules))
"""


def test_neither_is_imported_by_a_decode(llama: Path) -> None:
    code = CODE.format(folder=str(llama))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "set()"
    assert "weights: file" in done.stderr


def test_what_needs_the_model_reads_it_and_runs_on_the_same_engine(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, stock = load(llama), with_pytorch(llama, monkeypatch)
    for options in ({"stop_strings": "q"}, {"use_cache": False}, {"logits_processor": []}):
        decoded = loaded.generate(PROMPTS[0], max_new_tokens=20, **options).sequences
        assert torch.equal(decoded, stock.generate(PROMPTS[0], max_new_tokens=20, **options).sequences)
    assert isinstance(loaded.model, BlockwiseLM)
    assert loaded.model is loaded.model
    decoded = generate(loaded.model, PROMPTS[1], NoDrafter(), max_new_tokens=20)
    for drafting in (loaded, load(llama)):
        assert torch.equal(decoded.sequences, drafting.generate(PROMPTS[1], max_new_tokens=20).sequences)
    loaded.base.model.layers[0].register_forward_hook(lambda module, inputs, output: output)
    with pytest.raises(ValueError, match="got a hook"):
        loaded.generate(PROMPTS[1], max_new_tokens=20)


def test_a_chat_reads_only_what_is_new_and_answers_alike(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chats = [Chat(loaded, loaded.drafter("8-copies")) for loaded in (load(llama), with_pytorch(llama, monkeypatch))]
    for text in ("abc", "cab", "a"):
        answers = [chat.answer(text, max_new_tokens=12).sequences.tolist() for chat in chats]
        assert answers[0] == answers[1]
        assert chats[0].cache.shared == chats[1].cache.shared
    assert chats[0].cache.shared > 20


def rotated(folder: Path) -> None:
    change_json(folder / "config.json", rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4})


def another(folder: Path) -> None:
    written(folder / GGUF_NAME, tiny("llama", seed=5), FLOATS)


def removed(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


CHANGES: dict[str, Callable[[Path], None]] = {
    "another model's file": another,
    "scaled positions": rotated,
    "another activation": lambda folder: change_json(folder / "config.json", hidden_act="gelu"),
    "a window": lambda folder: change_json(folder / "config.json", use_sliding_window=True),
    "another base of positions": lambda folder: change_json(
        folder / "config.json", rope_parameters={"rope_theta": 1e5}
    ),
    "another number of heads": lambda folder: change_json(folder / "config.json", num_key_value_heads=4),
    "a generation config that changes texts": lambda folder: change_json(
        folder / "generation_config.json", repetition_penalty=1.3
    ),
    "no generation config": removed("generation_config.json"),
    "a damaged generation config": lambda folder: (folder / "generation_config.json").write_text("{"),
    "no float weights": removed("model.safetensors"),
    "ends that are no tokens": lambda folder: change_json(folder / "generation_config.json", eos_token_id="a"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_folder_whose_parts_ask_for_more_is_read_by_transformers(what: str, tmp_path: Path) -> None:
    folder = made(tmp_path, tiny("llama"))
    assert engine_target(folder) is not None
    CHANGES[what](folder)
    assert engine_target(folder) is None


@pytest.mark.parametrize(
    "change",
    [{"base_fingerprint": "sha256:0"}, {"vocab_size": 119}, {"kind": "stern"}, {"shortlist": 7}, {"num_heads": 4}],
)
def test_heads_of_another_model_are_left_to_the_reader_that_refuses_them(
    change: dict[str, Any], tmp_path: Path
) -> None:
    folder = made(tmp_path, tiny("llama"))
    change_json(folder / "heads.json", **change)
    with pytest.raises(ValueError, match=r"expected|does not fit"):
        load(folder)


@pytest.mark.real_model
def test_the_real_model_writes_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    if not model_folder("smollm2-135m").is_dir():
        pytest.skip("latticebpd models get smollm2-135m")
    questions = ["What is a lattice?", "Name three rivers in Germany.", "Write a haiku about rain.", "Count to twenty."]
    for bigram in (False, True):
        loaded, stock = load("smollm2-135m", bigram=bigram), with_pytorch("smollm2-135m", monkeypatch, bigram)
        assert loaded.target is not None
        prompts = [loaded.encode(question) for question in questions]
        assert prompts == [stock.encode(question) for question in questions]
        for system in ("16-calibrated", "copies+16-tree", "greedy"):
            # The engine quantizes transitions to int8, which may order nearly equal drafts otherwise.
            assert_same(loaded, stock, prompts, system, 60, calls=not bigram)
