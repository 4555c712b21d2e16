"""Decodes on a file's blocks load neither PyTorch nor `transformers`, and write what the model writes with them."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    LogitsProcessorList,
    NoRepeatNGramLogitsProcessor,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from latticebpd import BlockwiseLM, Chat, Generated, Loaded, State, load
from latticebpd.drafters.heads.engine_heads import EngineHeads
from latticebpd.drafters.heads.head_family import HeadLattices
from latticebpd.drafters.heads.head_networks import ConditionedHeads, FeedForwardHeads
from latticebpd.drafters.heads.torch_heads import TorchHeads
from latticebpd.models.catalogue import GGUF_NAME, model_folder
from latticebpd.models.engine.engine_copy import engine_copy
from latticebpd.models.engine.engine_model import EngineModel, gguf_model
from latticebpd.models.gguf.gguf_weights import GgufWeights
from latticebpd.models.load_target import load_stock
from latticebpd.models.target_model import TargetModel
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.scoring.calibration import calibration_path
from tests.helpers.drafters import LM, WEIGHTS
from tests.helpers.gguf_files import FLOATS, LETTERS, written
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


def tiny(name: str, seed: int = 0, **settings: Any) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = copy.deepcopy(FAMILIES[name])
    config.update(settings)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            drawn = torch.randn_like(weight) * 0.3 + (weight.ndim == 1)
            weight.copy_(drawn.bfloat16())  # which all types of the file hold, or nearly so
    return model


def change_json(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def made(
    folder: Path,
    model: PreTrainedModel,
    shortlist: list[int] | None = None,
    kind: type[FeedForwardHeads] = FeedForwardHeads,
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
    change_json(folder / "latticebpd/heads.json", base_fingerprint=None)
    written(folder / GGUF_NAME, model, FLOATS)
    tokenizer: Any = letters()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    LM.save(folder / "lm.fst")
    WEIGHTS.save(calibration_path(folder / "lm.fst"))
    return folder


KINDS = [
    (FeedForwardHeads, 0),
    pytest.param((ConditionedHeads, 0), marks=pytest.mark.long),
    pytest.param((ConditionedHeads, 16), marks=pytest.mark.long),
    (ConditionedHeads, 16, (2,)),
]


@pytest.fixture(scope="module", params=KINDS)
def llama(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("llama"), tiny("llama"), [*range(0, 120, 3), 119], *request.param)


def with_kernels(loaded: Loaded, target: TargetModel, bigram: bool = True) -> Loaded:
    """Another target for a model whose heads are computed by the engine's kernels, since PyTorch's do not round."""
    heads = EngineHeads(loaded.folder, engine_copy(load_stock(loaded.folder)), loaded.tokenizer)
    return replace(loaded, target=target, source=HeadLattices(heads, bigram=bigram))


def on_pytorch(folder: Path) -> Loaded:
    """The same model on PyTorch."""
    loaded = load(folder, weights="torch")
    assert isinstance(loaded.target, TransformersModel)
    assert isinstance(loaded.source, HeadLattices)
    assert isinstance(loaded.source.heads, TorchHeads)
    return loaded


def trees_of(output: Generated) -> dict[int, tuple[list[int], list[int]]]:
    """The trees that were drafted, by where they begin."""
    assert output.trace is not None
    at, trees = output.prompt_length + output.prefilled[0], {}
    for step in output.trace:
        trees[at] = step.tree.tokens.tolist(), step.tree.parents.tolist()
        at += len(step.committed)
    return trees


def assert_same(
    one: Loaded, other: Loaded, prompts: list[list[int]], system: str, length: int, alike: float = 1.0
) -> None:
    """Texts, calls and trees; alike: which part of the trees at least, where states or heads are rounded otherwise."""
    own, stock = one.drafter(system), other.drafter(system)
    pairs, calls = list[bool](), np.zeros(2, int)
    for prompt in prompts:
        output = one.generate(prompt, own, max_new_tokens=length, trace=True)
        expected = other.generate(prompt, stock, max_new_tokens=length, trace=True)
        assert np.array_equal(output.tokens, expected.tokens)
        calls += output.num_calls, expected.num_calls
        ours, theirs = trees_of(output), trees_of(expected)
        pairs += [ours[at] == theirs[at] for at in ours.keys() & theirs.keys()]
        if alike == 1:
            assert output.blocks() == expected.blocks()
    assert np.mean(pairs) >= alike
    assert calls[0] == pytest.approx(calls[1], rel=0.05)


@pytest.mark.parametrize("system", SYSTEMS)
def test_texts_and_trees_are_those_of_the_model_on_pytorch(system: str, llama: Path) -> None:
    loaded, stock = load(llama), on_pytorch(llama)
    assert isinstance(loaded.target, EngineModel)
    assert isinstance(loaded.target.embeddings, GgufWeights)
    assert isinstance(loaded.source, HeadLattices)
    assert isinstance(loaded.source.heads, EngineHeads)
    read_no_states = system in ("greedy", "8-copies")
    assert_same(loaded, with_kernels(stock, stock.target), PROMPTS[:6], system, 40, 1.0 if read_no_states else 0.95)
    assert_same(loaded, stock, PROMPTS[6:9], system, 40, 1.0 if read_no_states else 0.0)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_copy_of_the_model_with_the_files_blocks_writes_and_drafts_alike(system: str, llama: Path) -> None:
    loaded = load(llama)
    copied = engine_copy(load_stock(llama), "gguf", llama / GGUF_NAME)
    assert_same(loaded, with_kernels(loaded, copied), PROMPTS, system, 40)


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_other_families_too(name: str, tmp_path: Path) -> None:
    folder = made(tmp_path, tiny(name))
    loaded, stock = load(folder), on_pytorch(folder)
    assert isinstance(loaded.target, EngineModel)
    assert loaded.weights == "gguf"
    assert_same(loaded, with_kernels(stock, stock.target), PROMPTS[:8], "16-calibrated", 30, 0.95)


def test_drafts_are_about_those_of_heads_in_pytorch(llama: Path) -> None:
    """The engine quantizes their weights to int8."""
    source: Any = load(llama).source
    model = BlockwiseLM.with_heads(load_stock(llama), llama)
    hidden, layers = np.random.default_rng(0).normal(0, 3, (2, 4, 64)).astype(np.float32)

    def assert_close(own: Any, other: Any) -> None:
        assert own.tokens.shape == other.tokens.shape
        assert (own.transitions is None) == (other.transitions is None)
        for tokens, values, others, wanted in zip(
            own.tokens, own.log_probs, other.tokens, other.log_probs, strict=True
        ):
            shared, mine, theirs = np.intersect1d(tokens, others, return_indices=True)
            assert len(shared) >= len(tokens) - 1
            np.testing.assert_allclose(values[mine], wanted[theirs], atol=0.5, rtol=5e-2)

    for k, slots, depths in ((5, None, [1, 9, 4, 2]), (41, 2, [9] * 4), (64, 3, [3] * 4)):
        states: Any = [State(row, [1, 2], 1, hidden[row], depth, (), layers[[row]]) for row, depth in enumerate(depths)]  # type: ignore[arg-type]
        own = source.with_shape(k, slots).lattices(states)
        assert [each.slots for each in own] == [min(depth, slots or 4) for depth in depths]
        for ours, theirs in zip(own, HeadLattices(model, k, slots).lattices(states), strict=True):
            assert_close(ours, theirs)
    with pytest.raises(ValueError, match="expected states with the hidden state"):
        source.lattices([State(0, [1, 2], 1, None, 3)])
    plain: Any = load(llama, bigram=False).source
    for each in (plain, plain.with_shape(5)):
        assert not each.has_transitions
        assert each.lattices(states)[0].transitions is None
    text = PROMPTS[30 % 24]
    read = (each.lattices_of_text(text, range(3)) for each in (source, HeadLattices(model)))
    (ours, entropies), (theirs, expected) = map(next, read)
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other)
    np.testing.assert_allclose(entropies, expected, atol=0.1)
    assert source.weights_fingerprint.startswith(load(llama).target.fingerprint)


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
    assert "weights: gguf" in done.stderr


ALONE = """
import json, sys
from latticebpd import Chat, load
loaded = load({file!r})
chat = Chat(loaded)
results = [loaded.generate(text, max_new_tokens=12).tokens.tolist() for text in ("abab", "ab cd", "é")]
results += [chat.answer(text, max_new_tokens=8).tokens.tolist() for text in ("abab", "ba")]
results += [loaded.draft("abcabcabc").tokens.tolist()]
print(json.dumps([results, loaded.weights, sorted({{"torch", "transformers"}} & set(sys.modules))]))
"""


def test_a_file_alone_decodes_chats_and_drafts_without_them_as_it_does_with_pytorch(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    written(file, tiny("llama", vocab_size=261), FLOATS, tokenizer=LETTERS)
    done = subprocess.run(
        [sys.executable, "-c", ALONE.format(file=str(file))], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    results, weights, imported = json.loads(done.stdout)
    assert (weights, imported) == ("gguf", [])
    stock = load(file, weights="torch")
    chat = Chat(stock)
    expected = [stock.generate(text, max_new_tokens=12).tokens.tolist() for text in ("abab", "ab cd", "é")]
    expected += [chat.answer(text, max_new_tokens=8).tokens.tolist() for text in ("abab", "ba")]
    assert results == [*expected, stock.draft("abcabcabc").tokens.tolist()]


DEMO = """
import sys
from latticebpd.cli import app
app(["demo", "--model", {file!r}, "--prompts", "1", "--max-new-tokens", "4"], standalone_mode=False)
print({{"torch", "transformers"}} & set(sys.modules))
"""


@pytest.mark.parametrize("terminal", [False, True])
def test_the_demo_of_a_file_imports_neither(tmp_path: Path, terminal: bool) -> None:
    file = tmp_path / "tiny.gguf"
    written(file, tiny("llama", vocab_size=261), FLOATS, {"context_length": 1024}, LETTERS)
    done = subprocess.run(
        [sys.executable, "-c", DEMO.format(file=str(file))], capture_output=True, text=True, check=False,
        env={**os.environ} | ({"FORCE_COLOR": "1"} if terminal else {}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "set()"
    assert ("no drafts, one token a call" in done.stdout) == terminal


def test_options_of_transformers_have_the_same_effect(llama: Path) -> None:
    loaded, stock = load(llama), on_pytorch(llama)
    repeats: Any = LogitsProcessorList([NoRepeatNGramLogitsProcessor(2)])
    for options in (
        {"stop_strings": "q"},
        {"use_cache": False},
        {"logits_processor": []},
        {"logits_processor": repeats},
    ):
        decoded = loaded.generate(PROMPTS[0], max_new_tokens=20, **options).tokens
        assert np.array_equal(decoded, stock.generate(PROMPTS[0], max_new_tokens=20, **options).tokens)


def test_a_chat_reads_only_what_is_new_and_answers_alike(llama: Path) -> None:
    chats = [Chat(loaded, loaded.drafter("8-copies")) for loaded in (load(llama), on_pytorch(llama))]
    for text in ("abc", "cab", "a"):
        answers = [chat.answer(text, max_new_tokens=12).tokens.tolist() for chat in chats]
        assert answers[0] == answers[1]
        assert chats[0].cache.shared == chats[1].cache.shared
    assert chats[0].cache.shared > 20


def rotated(folder: Path) -> None:
    change_json(folder / "config.json", rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4})


def another(folder: Path) -> None:
    written(folder / GGUF_NAME, tiny("llama", seed=5), FLOATS)


def fine_tuned(folder: Path) -> None:
    """A file of nearly the same weights: those of one matrix differ by a tenth."""
    model: Any = tiny("llama")
    model.model.layers[1].mlp.down_proj.weight.data *= 1.1
    written(folder / GGUF_NAME, model, FLOATS)


def removed(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


CHANGES: dict[str, Callable[[Path], None]] = {
    "another model's file": another,
    "a fine-tuned model's file": fine_tuned,
    "scaled positions": rotated,
    "another activation": lambda folder: change_json(folder / "config.json", hidden_act="gelu"),
    "a window": lambda folder: change_json(folder / "config.json", use_sliding_window=True),
    "another base of positions": lambda folder: change_json(
        folder / "config.json", rope_parameters={"rope_theta": 1e5}
    ),
    "another number of heads": lambda folder: change_json(folder / "config.json", num_key_value_heads=4),
    "no generation config": removed("generation_config.json"),
    "a damaged generation config": lambda folder: (folder / "generation_config.json").write_text("{"),
    "no float weights": removed("model.safetensors"),
    "ends that are no tokens": lambda folder: change_json(folder / "generation_config.json", eos_token_id="a"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_folder_whose_parts_ask_for_more_is_read_by_transformers(what: str, tmp_path: Path) -> None:
    folder = made(tmp_path, tiny("llama"))
    assert gguf_model(folder) is not None
    CHANGES[what](folder)
    assert gguf_model(folder) is None


def test_a_generation_config_that_changes_texts_is_honoured(tmp_path: Path) -> None:
    folder = made(tmp_path, tiny("llama"))
    before = load(folder).generate(PROMPTS[0], max_new_tokens=30).tokens
    change_json(folder / "generation_config.json", repetition_penalty=1.8)
    assert load(folder).weights == "gguf"
    text = load(folder).generate(PROMPTS[0], max_new_tokens=30).tokens
    assert np.array_equal(text, on_pytorch(folder).generate(PROMPTS[0], max_new_tokens=30).tokens)
    assert not np.array_equal(text, before)


@pytest.mark.parametrize(
    "change",
    [{"base_fingerprint": "sha256:0"}, {"vocab_size": 119}, {"kind": "stern"}, {"shortlist": 7}, {"num_heads": 4}],
)
def test_heads_of_another_model_are_left_to_the_reader_that_refuses_them(
    change: dict[str, Any], tmp_path: Path
) -> None:
    folder = made(tmp_path, tiny("llama"))
    change_json(folder / "latticebpd/heads.json", **change)
    with pytest.raises(ValueError, match=r"expected|does not fit"):
        load(folder)


@pytest.mark.real_model
def test_the_real_model_writes_alike() -> None:
    """As a copy of the float model that has the file's blocks."""
    folder = model_folder("smollm2-135m")
    if not folder.is_dir():
        pytest.skip("latticebpd models get smollm2-135m")
    questions = ["What is a lattice?", "Name three rivers in Germany.", "Write a haiku about rain.", "Count to twenty."]
    for bigram in (False, True):
        loaded, stock = load("smollm2-135m", bigram=bigram), load("smollm2-135m", weights="torch", bigram=bigram)
        assert isinstance(loaded.target, EngineModel)
        copied = engine_copy(load_stock(folder), "gguf", folder / GGUF_NAME)
        prompts = [loaded.encode(question) for question in questions]
        assert prompts == [stock.encode(question) for question in questions]
        for system in ("16-calibrated", "copies+16-tree", "greedy"):
            assert_same(loaded, with_kernels(loaded, copied, bigram), prompts, system, 60)
