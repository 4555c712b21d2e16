"""The CPU engine: families as transformers computes them, the same bits for any width, thread and instruction set."""

from __future__ import annotations

import copy
import multiprocessing
import struct
import threading
import time
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
    StoppingCriteriaList,
)

from latticebpd import DraftTree, NoDrafter, generate, load
from latticebpd.cpu import _engine
from latticebpd.drafters.bundled import MODEL
from latticebpd.models.engine.engine_copy import engine_copy
from latticebpd.models.engine.engine_families import unsupported_reason
from latticebpd.models.engine.gguf_engine import transformer_of_weights
from latticebpd.models.gguf.gguf_checkpoints import load_gguf
from latticebpd.models.gguf.gguf_weights import GgufWeights
from latticebpd.models.load_target import load_stock, load_target
from latticebpd.verification.engine_verifier import EngineVerifier
from latticebpd.verification.verifier import Verified
from tests.helpers.gguf_files import FLOATS, MIXED, written

SIZES: dict[str, Any] = {
    "vocab_size": 120, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
CONFIGS = {
    "llama": LlamaConfig(**SIZES),
    "llama with biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama 3": LlamaConfig(**SIZES, rope_parameters=LLAMA3),
    "mistral": MistralConfig(**SIZES, sliding_window=9),
    "qwen2": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=7, max_window_layers=2),
    "qwen3": Qwen3Config(**SIZES, head_dim=32),
    "llama, linear rope": LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    ),
    "llama, yarn": LlamaConfig(**SIZES, rope_parameters={**LLAMA3, "rope_type": "yarn"}),
    "llama of odd sizes": LlamaConfig(**{**SIZES, "hidden_size": 72, "head_dim": 48, "vocab_size": 121}),
    "llama of half panels": LlamaConfig(
        **{**SIZES, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 48, "intermediate_size": 112}
    ),
    "llama that says what only others read": LlamaConfig(
        **SIZES,
        final_logit_softcapping=0.5,
        attn_logit_softcapping=0.5,
        sliding_window=4,
        layer_types=["sliding_attention"] * 4,
    ),
    "qwen3 with a window": Qwen3Config(
        **SIZES, head_dim=16, attention_bias=True, use_sliding_window=True, sliding_window=7, max_window_layers=2
    ),
    "smollm3": SmolLM3Config(**SIZES, no_rope_layer_interval=2),
    "gemma2": Gemma2Config(**SIZES, head_dim=16, sliding_window=8, query_pre_attn_scalar=20),
    "gemma2, narrow caps": Gemma2Config(
        **SIZES, head_dim=16, sliding_window=8, attn_logit_softcapping=0.7, final_logit_softcapping=20.0
    ),
    "gemma3": Gemma3TextConfig(
        **SIZES,
        head_dim=16,
        sliding_window=8,
        query_pre_attn_scalar=20,
        attn_logit_softcapping=0.7,
        final_logit_softcapping=20.0,
        layer_types=["sliding_attention", "full_attention"] * 2,
    ),
    "phi3": Phi3Config(**SIZES, sliding_window=11),
    "phi3, partly rotated": Phi3Config(**SIZES, partial_rotary_factor=0.5),
}
TREE = DraftTree(np.array([5, 9, 7, 8, 3, 4], np.int32), np.array([-1, -1, 0, 0, 1, 2], np.int32))


def tiny(name: str, seed: int = 0, spread: float = 0.1) -> PreTrainedModel:
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(copy.deepcopy(CONFIGS[name])).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * spread + (weight.ndim == 1))
    return model


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return torch.randint(3, 120, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def wanted(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


def close(logits: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for float32's rounding in another order."""
    torch.testing.assert_close(logits, expected, atol=3e-5 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_families_are_those_of_transformers(name: str, seed: int) -> None:
    model, text = tiny(name, seed, spread=0.3), prompt_of(40, seed)
    assert unsupported_reason(model) is None
    verifier = EngineVerifier(engine_copy(model))
    verifier.prefill([text[:20], text[:13]])  # rows of different lengths
    verifier.verify([text[20], 6], [TREE, DraftTree.empty()])
    verifier.cut([20, 13])
    chain = DraftTree.from_paths([text[21:]])
    read = verifier.verify([text[20], 6], [chain, TREE])
    expected = wanted(model, text)[20:]
    close(read.logits_of([0] * 20, range(20)), expected)
    assert read.best_of is not None
    assert read.best_of([0] * 20, range(20)) == expected.argmax(-1).tolist()
    for node in range(len(TREE)):
        path = [*text[:13], 6, *TREE.tokens[TREE.path(node)].tolist()]
        close(read.logits_of([1], [node + 1]), wanted(model, path)[-1:])
    verifier.keep([[], TREE.path(5)])
    verifier.select([1, 1])
    path = [*text[:13], 6, *TREE.tokens[TREE.path(5)].tolist()]
    read = verifier.verify([11, 12], [DraftTree.empty()] * 2)
    close(read.logits_of([0, 1], [0, 0]), torch.cat([wanted(model, [*path, token])[-1:] for token in (11, 12)]))


def test_states_of_layers_are_those_of_transformers() -> None:
    model, text = tiny("llama"), prompt_of(20)
    verifier = EngineVerifier(engine_copy(model), (0, 3))
    verifier.prefill([text[:12]])
    verifier.verify([text[12]], [DraftTree(np.array([9, *text[13:]], np.int32), np.array([-1, -1, *range(1, 7)]))])
    verifier.keep([list(range(1, 8))])
    with torch.inference_mode():
        states = model(torch.tensor([text]), output_hidden_states=True).hidden_states
    read = verifier.layer_states(0)
    assert read is not None
    np.testing.assert_allclose(read, torch.cat([states[1][0], states[4][0]], dim=-1), atol=5e-5, rtol=1e-4)


@pytest.fixture(scope="module")
def llama_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama in blocks of several types."""
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    written(path, tiny("llama"), MIXED)
    return path


KINDS = [("llama", "float32"), ("llama", "int8"), ("llama", "gguf"), ("gemma2, narrow caps", "float32")]
KINDS += [("gemma2", "int8"), ("qwen2", "float32"), ("llama of odd sizes", "float32"), ("llama of odd sizes", "int8")]


@pytest.mark.parametrize(("name", "weights"), KINDS)
def test_bits_depend_on_no_width_thread_or_instruction_set(name: str, weights: str, llama_file: Path) -> None:
    model, text = load_gguf(llama_file) if weights == "gguf" else tiny(name), prompt_of(110)
    before = torch.get_num_threads()
    reference: np.ndarray | None = None
    chosen: list[int] = []
    try:
        for isa in range(_engine.isas()):
            engine = engine_copy(model, weights, llama_file, isa=isa)
            for width, threads in [(1, 1), (2, 1), (3, 2), (5, 1), (7, 4), (9, 3), (13, 1), (17, 2), (64, 1), (70, 4)]:
                torch.set_num_threads(threads)
                verifier = EngineVerifier(engine)
                verifier.prefill([text[:40]] * (1 + width % 2))
                hidden, best = [], []
                for begin in range(40, 110, width):
                    part = text[begin : begin + width]
                    rows = 1 + width % 2  # another row beside it changes nothing
                    read = verifier.verify([part[0]] * rows, [DraftTree.from_paths([part[1:]]), TREE][:rows])
                    hidden.append(read.hidden[0, : len(part)].copy())
                    assert read.best_of is not None
                    best += read.best_of([0] * len(part), range(len(part)))
                    logits = read.logits_of([0] * len(part), range(len(part)))
                    assert best[-len(part) :] == logits.argmax(-1).tolist()
                    verifier.keep([list(range(len(part) - 1)), []][:rows])
                states = np.concatenate(hidden)
                reference, chosen = (states, best) if reference is None else (reference, chosen)
                assert np.array_equal(states, reference), (isa, width, threads)
                assert best == chosen
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["mistral", "gemma3", "smollm3"])
@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_a_node_has_the_bits_of_its_path_read_alone(name: str, weights: str) -> None:
    model, text = tiny(name), prompt_of(30)
    engine = engine_copy(model, weights)
    verifier = EngineVerifier(engine)
    verifier.prefill([text])
    tree = verifier.verify([6], [TREE]).hidden[0]
    grown = EngineVerifier(engine)  # the same tree, a level in each pass
    grown.prefill([text])
    levels = [([-1], [6]), ([0, 0], [5, 9]), ([1, 1, 2], [7, 8, 3]), ([3], [4])]
    parts = [grown.grow(np.zeros(len(p), int), np.array(p), np.array(tokens)).hidden[0] for p, tokens in levels]
    assert np.array_equal(np.concatenate(parts), tree)
    for node in range(len(TREE)):
        single = EngineVerifier(engine)
        single.prefill([[*text, 6, *TREE.tokens[TREE.path(node)].tolist()[:-1]]])
        alone = single.verify([int(TREE.tokens[node])], [DraftTree.empty()]).hidden[0, 0]
        assert np.array_equal(alone, tree[node + 1])


def parametrized() -> PreTrainedModel:
    model: Any = tiny("llama")
    torch.nn.utils.parametrizations.weight_norm(model.model.layers[0].mlp.up_proj)
    return model  # type: ignore[no-any-return]


def test_what_the_engine_does_not_know_is_named() -> None:
    gpt2 = AutoModelForCausalLM.from_config(GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2))
    assert unsupported_reason(gpt2) == "GPT2LMHeadModel is none of its families"
    assert "bfloat16" in str(unsupported_reason(tiny("llama").to(torch.bfloat16)))
    hooked = tiny("llama")
    hooked.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    assert "model.layers.1.mlp has a hook" in str(unsupported_reason(hooked))
    for kind in ("dynamic", "longrope"):
        longer = tiny("llama")
        longer.config.rope_parameters = {"rope_type": kind, "factor": 2.0, "rope_theta": 1e4}
        assert f"({kind}) depend on a text's length" in str(unsupported_reason(longer))
    other = tiny("llama")
    other.model.norm.variance_epsilon = 1.0
    assert unsupported_reason(other) == "a norm's epsilon is 1.0, its configuration's 1e-06"
    both = AutoModelForCausalLM.from_config(Gemma3TextConfig(**SIZES, head_dim=16, use_bidirectional_attention=True))
    assert unsupported_reason(both) == "its tokens attend to later ones"
    exact = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES, hidden_act="gelu"))
    assert unsupported_reason(exact) == "its activation is gelu"
    mixed = tiny("llama")
    mixed.model.layers[2].to(torch.bfloat16)
    assert "bfloat16" in str(unsupported_reason(mixed))

    class Own(torch.nn.Linear):
        pass

    custom = tiny("llama")
    custom.model.layers[2].mlp.up_proj = Own(64, 96, bias=False)
    assert unsupported_reason(custom) == f"{__name__}.Own is not a module of transformers"
    assert "ParametrizedLinear" in str(unsupported_reason(parametrized()))
    heads = AutoModelForCausalLM.from_config(LlamaConfig(**{**SIZES, "head_dim": 24}))
    assert unsupported_reason(heads) == "its heads and hidden layers have 24 and 96 numbers, no multiples of 16"
    odd = AutoModelForCausalLM.from_config(LlamaConfig(**{**SIZES, "intermediate_size": 90}))
    assert "multiples of 16" in str(unsupported_reason(odd))
    with pytest.raises(ValueError, match="expected a model that the CPU engine computes, but GPT2LMHeadModel"):
        engine_copy(gpt2)
    with pytest.raises(ValueError, match="expected weights among float32, int8, gguf, got 'int4'"):
        engine_copy(tiny("llama"), "int4")
    with pytest.raises(ValueError, match="expected weights among float32, int8, gguf, got 'torch'"):
        engine_copy(tiny("llama"), "torch")
    with pytest.raises(ValueError, match="expected a GGUF file"):
        engine_copy(tiny("llama"), "gguf")


def changes() -> dict[str, Any]:
    def by_numpy(model: Any) -> None:
        model.model.layers[2].mlp.up_proj.weight.detach().numpy()[:] *= 2

    def by_forward(model: Any) -> None:
        model.model.layers[0].self_attn.forward = model.model.layers[0].self_attn.forward

    def by_adapter(model: Any) -> None:  # as PEFT merges one
        model.model.layers[1].self_attn.q_proj.weight.data += 0.1 * torch.ones(64, 1) @ torch.ones(1, 64)

    def by_optimizer(model: Any) -> None:  # one that writes without counting it
        weight = model.model.layers[1].mlp.up_proj.weight
        weight.grad = torch.ones_like(weight)
        torch.optim.AdamW([weight], fused=True).step()

    def by_number(model: Any) -> None:  # one that is not in a sample of 256
        with torch.no_grad():
            model.model.embed_tokens.weight[7, 5] = 0

    return {
        "number": by_number,
        "type": lambda model: model.to(torch.bfloat16),
        "transposed": lambda model: setattr(model.lm_head.weight, "data", torch.ones(64, 120).T),
        "module": lambda model: setattr(model.model.layers[1].mlp, "act_fn", torch.nn.ReLU()),
        "parametrization": lambda model: torch.nn.utils.parametrizations.weight_norm(model.lm_head),
        "data": lambda model: model.model.norm.weight.data.mul_(1.5),
        "numpy": by_numpy,
        "parameter": lambda model: setattr(model.lm_head, "weight", torch.nn.Parameter(torch.zeros(120, 64))),
        "loaded": lambda model: model.load_state_dict(tiny("llama", 1).state_dict()),
        "hook": lambda model: model.model.layers[3].input_layernorm.register_forward_pre_hook(lambda *_: None),
        "forward": by_forward,
        "adapter": by_adapter,
        "optimizer": by_optimizer,
        "epsilon": lambda model: setattr(model.model.norm, "variance_epsilon", 1.0),
        "scale": lambda model: setattr(model.model.layers[1].self_attn, "scaling", 1.0),
        "window": lambda model: setattr(model.config, "sliding_window", 4),
        "frequencies": lambda model: model.model.rotary_emb.inv_freq.mul_(2),
    }


@pytest.mark.parametrize("weights", ["float32", "int8"])
@pytest.mark.parametrize("change", list(changes()))
def test_a_copy_stays_as_it_is_whatever_becomes_of_its_model(change: str, weights: str) -> None:
    model, text = tiny("llama"), prompt_of(20)
    model(torch.tensor([[3, 4]]), output_hidden_states=True)  # leaves hooks of transformers' own behind
    target = engine_copy(model, weights)
    shape = (target.generation, target.num_parameters, target.max_positions, target.fingerprint)
    before = generate(target, text, NoDrafter(), max_new_tokens=12).sequences
    states = states_of(target.transformer, text)
    changes()[change](model)
    assert torch.equal(states_of(target.transformer, text), states)
    assert np.array_equal(generate(target, text, NoDrafter(), max_new_tokens=12).sequences, before)
    assert shape == (target.generation, target.num_parameters, target.max_positions, target.fingerprint)


def test_threads_share_an_engine() -> None:
    loaded, prompt = load(weights="int8"), prompt_of(30)
    single = generate(loaded.target, prompt, loaded.drafter("greedy"), max_new_tokens=24).sequences
    texts: list[np.ndarray] = []

    def decode(system: str) -> None:
        for _ in range(3):
            texts.append(generate(loaded.target, prompt, loaded.drafter(system), max_new_tokens=24).sequences)

    threads = [threading.Thread(target=decode, args=[name]) for name in ("greedy", "16-copies", "8-tree", "16-best")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 12
    assert all(np.array_equal(text, single) for text in texts)


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_children_forked_after_loading_decode_side_by_side(weights: str) -> None:
    """Before and after the parent's own first decode."""
    loaded, context = load(weights=weights), multiprocessing.get_context("fork")

    def text() -> str:
        out = loaded.generate("The history of the city", max_new_tokens=16)
        return loaded.decode(out.tokens[0])

    def child(pipe: Any) -> None:
        torch.set_num_threads(1)
        pipe.send(text())

    ends = [context.Pipe() for _ in range(4)]
    processes = [context.Process(target=child, args=[theirs]) for _, theirs in ends]
    try:
        for process in processes[:2]:
            process.start()
        expected = text()
        for process in processes[2:]:
            process.start()
        assert [ours.recv() if ours.poll(60) else None for ours, _ in ends] == [expected] * 4
    finally:
        for process in processes:
            process.kill()
            process.join()


def test_a_forked_child_computes_and_decodes() -> None:
    loaded, prompt = load(weights="float32"), prompt_of(30)
    engine: Any = loaded.target
    tokens = np.array(prompt)

    def states(threads: int) -> np.ndarray:
        hidden: np.ndarray
        hidden, _ = engine.transformer.read(
            [_engine.Cache(engine.transformer)], [30], tokens, np.arange(-1, 29), [], threads
        )
        return hidden

    def text() -> list[int]:
        written: list[int] = generate(loaded.target, prompt, loaded.drafter("16-tree"), max_new_tokens=20).sequences[0]
        return list(map(int, written))

    expected = states(3), text()

    def child(pipe: Any) -> None:
        torch.set_num_threads(1)
        pipe.send((np.array_equal(states(3), expected[0]), text() == expected[1]))

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=[theirs])
    process.start()
    try:
        assert ours.poll(60)
        assert ours.recv() == (True, True)
    finally:
        process.kill()
        process.join()


def test_an_interrupted_decode_leaves_the_engine_usable() -> None:
    loaded, prompt = load(weights="int8"), prompt_of(30)

    def interrupt(tokens: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        if tokens.shape[1] > 35:
            raise KeyboardInterrupt
        return torch.zeros(len(tokens), dtype=torch.bool)

    single = generate(loaded.target, prompt, loaded.drafter("16-tree"), max_new_tokens=24).sequences
    with pytest.raises(KeyboardInterrupt):
        generate(
            loaded.target, prompt, loaded.drafter("16-tree"), max_new_tokens=24,
            stopping_criteria=StoppingCriteriaList([interrupt]),
        )  # fmt: skip
    again = generate(loaded.target, prompt, loaded.drafter("16-tree"), max_new_tokens=24).sequences
    assert np.array_equal(again, single)


def test_weights_are_chosen_by_name(tmp_path: Path, llama_file: Path) -> None:
    model = tiny("llama")
    model.save_pretrained(tmp_path)
    assert load(tmp_path).weights == "float32"
    for name in ("float32", "int8", "torch"):
        assert load(tmp_path, weights=name).weights == name
    assert load(llama_file).weights == "gguf"
    assert load(llama_file, weights="torch").weights == "torch"
    assert load(tmp_path, dtype=torch.bfloat16).weights == "torch"
    for name, message in [
        ("int4", "expected weights among float32, int8, gguf, torch, got 'int4'"),
        ("gguf", "expected a GGUF file for weights='gguf', got none"),
    ]:
        with pytest.raises(ValueError, match=message) as raised:
            load(tmp_path, weights=name)
        assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match=r"expected float32 on the CPU with weights='int8', got .*bfloat16"):
        load(tmp_path, dtype=torch.bfloat16, weights="int8")
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
        model.model.layers[1].mlp.up_proj.weight[3, 5] = float("inf")
    with pytest.raises(ValueError, match="expected finite weights"):
        engine_copy(model, "int8")
    # A file beside a model of other weights, and one of a type that the engine does not know, are not used unasked.
    llama_file.with_name("copy.gguf").write_bytes(llama_file.read_bytes())
    (tmp_path / "model.gguf").write_bytes(llama_file.read_bytes())
    tiny("llama", 1).save_pretrained(tmp_path)
    assert load(tmp_path).weights == "float32"
    with pytest.raises(
        ValueError, match=r"model\.gguf: expected the model's weights as blk\.0\.attn_q\.weight, got others"
    ):
        load(tmp_path, weights="gguf")


def test_a_file_of_a_fine_tuned_model_is_not_the_models(tmp_path: Path) -> None:
    """Of weights that differ by a tenth."""
    model: Any = tiny("llama")
    written(tmp_path / "model.gguf", model, FLOATS)
    assert engine_copy(model, "gguf", tmp_path / "model.gguf") is not None
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight *= 1.1
    with pytest.raises(ValueError, match=r"expected the model's weights as blk\.1\.ffn_down\.weight, got others"):
        engine_copy(model, "gguf", tmp_path / "model.gguf")


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_texts_are_the_same_with_drafts_and_without(weights: str) -> None:
    loaded = load(weights=weights)
    assert loaded.weights == weights
    prompts = torch.tensor([prompt_of(20, seed) for seed in range(4)])
    single = generate(loaded.target, prompts, loaded.drafter("greedy"), max_new_tokens=40).sequences
    for system in ("vanilla", "16-tree", "copies+16-tree", "16-calibrated", "10-copies"):
        drafted = generate(loaded.target, prompts, loaded.drafter(system), max_new_tokens=40).sequences
        assert np.array_equal(drafted, single)
    if weights == "float32":
        stock = load_stock(MODEL).generate(
            prompts, attention_mask=torch.ones_like(prompts), do_sample=False, max_new_tokens=40
        )
        assert np.array_equal(single, stock)


@torch.no_grad()
@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_of_equal_logits_the_lowest_token_is_best_however_far_apart_they_are(weights: str) -> None:
    model: Any = AutoModelForCausalLM.from_config(LlamaConfig(**{**SIZES, "vocab_size": 5000}))
    rows = model.lm_head.weight
    rows[[1203, 4999]] = rows[17].clone()
    engine = engine_copy(model, weights).transformer
    states = torch.stack([rows[17], rows[18], torch.zeros(64)]).numpy()
    for threads in (1, 3):
        assert engine.best(states, threads).tolist() == [17, 18, 0]


@torch.no_grad()
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e6])  # scales are 0; as they should be; infinite, four times as large
def test_the_best_token_is_that_of_all_logits_however_close_others_are(size: float) -> None:
    model: Any = AutoModelForCausalLM.from_config(LlamaConfig(**{**SIZES, "vocab_size": 5003}))
    torch.manual_seed(1)
    alike = torch.randn(40, 64).repeat(126, 1)[:5003]  # every 40th token is nearly the same
    model.lm_head.weight.copy_(size * (alike + 0.02 * torch.randn(5003, 64)))
    states = torch.randn(36, 64)
    states[::9] *= 1e-20
    states[4], states[7, 3], states[8, 5] = 0.0, torch.inf, torch.nan
    for isa in range(_engine.isas()):
        engine = engine_copy(model, "int8", isa=isa).transformer
        wanted = engine.logits(states.numpy(), 1).argmax(-1)
        wanted[7:9] = engine.best(states[7:9].numpy(), 1)  # of no numbers, any
        for rows in (1, 2, 3, 4, 6, 12, 36):
            best = [engine.best(states[at : at + rows].numpy(), 2) for at in range(0, 36, rows)]
            assert np.concatenate(best).tolist() == wanted.tolist(), (isa, rows)


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_logits_of_a_few_tokens_are_those_of_all(weights: str) -> None:
    """Bit for bit."""
    torch.manual_seed(2)
    model: Any = AutoModelForCausalLM.from_config(LlamaConfig(**{**SIZES, "vocab_size": 5003}))
    states = torch.randn(3, 64).numpy()
    tokens = [[0, 1, 15, 16, 17, 5002], [], torch.randperm(5003)[:900].sort().values.tolist()]
    for isa in range(_engine.isas()):
        for threads in (1, 3):
            engine = engine_copy(model, weights, isa=isa).transformer
            expected = engine.logits(states, 1)
            some = engine.logits_of(states, np.array([*chain(*tokens)]), [*map(len, tokens)], threads)
            wanted = np.concatenate([line[own] for line, own in zip(expected, tokens, strict=True)])
            assert some.tobytes() == wanted.tobytes()


def test_misuse_of_the_compiled_parts_is_refused() -> None:
    engine = engine_copy(tiny("llama")).transformer
    cache, tokens = _engine.Cache(engine), np.array([3, 4])
    for arguments in (
        ([cache], [2], np.array([3, 500]), np.array([-1, 0]), []),
        ([cache], [2], tokens, np.array([0, -1]), []),
        ([cache], [3], tokens, np.array([-1, 0]), []),
        ([cache, cache], [1, 1], tokens, np.array([-1, -1]), []),
        ([cache], [2], tokens, np.array([-1, 0]), [4]),
    ):
        with pytest.raises(ValueError, match="expected"):
            engine.read(*arguments, 1)
    with pytest.raises(ValueError, match="caches of the model"):
        engine.read([_engine.Cache(engine_copy(tiny("qwen3")).transformer)], [1], tokens[:1], np.array([-1]), [], 1)
    with pytest.raises(ValueError, match="as many tokens"):
        engine.read([cache, _engine.Cache(engine)], [2**64 - 1, 3], tokens, np.array([-1, 0]), [], 1)
    engine.read([cache], [2], tokens, np.array([-1, 0]), [], 1)
    for columns in ([2], [1, 1], [1, 0]):
        with pytest.raises(ValueError, match="ascending columns"):
            cache.keep(columns)
    cache.keep([1])
    assert cache.length == 1
    for tokens_left, length in ((7, 1), (0, 0)):
        cache.cut(tokens_left)
        assert cache.length == length
    with pytest.raises(ValueError, match="states"):
        engine.best(np.zeros((2, 63), np.float32), 1)
    for few, counts in (
        ([1, 500], [2]),
        ([1, -1], [2]),
        ([1, 2], [1]),
        ([1, 2], [3]),
        ([1, 2], [1, 1]),
        ([1], [2**63]),
    ):
        with pytest.raises(ValueError, match="expected"):
            engine.logits_of(np.zeros((1, 64), np.float32), np.array(few), counts, 1)
    for count, outputs, inputs in ((33, 1, 32), (34, 1, 33), (0, 0, 0), (0, 2**63, 64), (34, 2**63 + 1, 64), (0, 1, 0)):
        with pytest.raises(ValueError, match="expected blocks of all weights"):
            _engine.Matrix.of_blocks(_engine.WeightMemory(), 8, np.zeros(count, np.uint8), outputs, inputs)
    with pytest.raises(ValueError, match=r"expected weights as F32, F16, .*, got type 1000"):  # the engine's own
        _engine.Matrix.of_blocks(_engine.WeightMemory(), 1000, np.zeros(26, np.uint8), 1, 32)
    engine.read([cache], [2], tokens, np.array([-1, 0]), [], 1)
    with pytest.raises(ValueError, match="expected tokens below"):
        engine.read([cache], [2], np.array([3, 500]), np.array([-1, 0]), [], 1)
    with pytest.raises(ValueError, match="ascending columns"):
        cache.keep([0])  # of the pass that failed


def test_heads_whose_size_no_number_holds_are_refused() -> None:
    memory, layer, own = _engine.WeightMemory(), _engine.Layer(), _engine.Settings()
    matrix = _engine.Matrix.of_numbers(memory, np.ones((16, 16), np.float32), False)
    layer.input_norm = layer.mlp_norm = [1.0] * 16
    layer.rotation = -1
    layer.set_matrices([matrix] * 7)
    own.head_size, own.num_kv_heads = 16, 1
    for heads in (1, 2**60 + 1):  # the second one's size is 16, modulo 2^64
        own.heads = heads
        if heads == 1:
            _engine.Transformer(own, [layer], matrix, matrix, [1.0] * 16)
        else:
            with pytest.raises(ValueError, match=r"expected heads of at most 2\^31 numbers in all"):
                _engine.Transformer(own, [layer], matrix, matrix, [1.0] * 16)


def test_a_cache_is_for_one_call_at_a_time() -> None:
    """While a thread reads into it, all other calls are refused; of the text nothing is lost."""
    engine = engine_copy(tiny("llama")).transformer
    cache, stop = _engine.Cache(engine), threading.Event()
    tokens, parents = np.arange(64) % 7, np.arange(-1, 63)
    expected, _ = engine.read([cache], [64], tokens, parents, [], 1)
    got: list[np.ndarray] = []

    def work() -> None:
        while not stop.is_set():
            got.append(engine.read([cache], [64], tokens, parents, [], 1)[0])

    worker = threading.Thread(target=work)
    worker.start()
    refused = set()
    calls: dict[str, Any] = {
        "keep": lambda: cache.keep([]),
        "cut": lambda: cache.cut(0),
        "copy": lambda: copy.copy(cache),
        "read": lambda: engine.read([cache], [1], tokens[:1], parents[:1], [], 1),
    }
    deadline = time.monotonic() + 120
    while len(refused) < len(calls) and time.monotonic() < deadline:
        for name, call in calls.items():
            try:
                call()
            except ValueError as error:
                if "got one that another thread's call is using" in str(error):
                    refused.add(name)
    stop.set()
    worker.join()
    assert refused == set(calls)
    assert cache.length == 0
    assert all((each == expected).all() for each in got)
    assert copy.copy(cache).length == 0


def chain_of(verifier: EngineVerifier, text: list[int]) -> Verified:
    verifier.prefill([text[:29]])
    return verifier.verify([text[29]], [DraftTree.from_paths([text[30:]])])


def states_of(transformer: Any, text: list[int]) -> torch.Tensor:
    hidden, _ = transformer.read(
        [_engine.Cache(transformer)], [len(text)], np.array(text), np.arange(-1, len(text) - 1), [], 1
    )
    return torch.from_numpy(hidden)


def test_a_files_blocks_are_the_models_weights(llama_file: Path) -> None:
    stock, text = load_gguf(llama_file), prompt_of(60)
    expected = torch.log_softmax(wanted(stock, text)[29:], dim=-1)
    engine = engine_copy(stock, "gguf", llama_file)
    assert engine.weights == "gguf"
    read = chain_of(EngineVerifier(engine), text)
    got = torch.log_softmax(read.logits_of([0] * 31, range(31)), dim=-1)
    assert float((expected.exp() * (expected - got)).sum(-1).mean()) < 1e-3  # activations are rounded
    assert np.array_equal(states_of(transformer_of_gguf(llama_file), text)[29:], read.hidden[0])
    other = tiny("qwen3")
    with pytest.raises(ValueError, match=r"model\.gguf: expected the tensor blk\.0\.attn_q\.weight"):
        engine_copy(other, "gguf", llama_file)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"])
def test_files_of_every_family_are_read_as_transformers_reads_them(name: str, tmp_path: Path) -> None:
    config: Any = copy.deepcopy(CONFIGS[name])
    if name == "qwen3":
        config.head_dim = 128  # which transformers does not read from files
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.1 + (weight.ndim == 1))
    path, text = tmp_path / "model.gguf", prompt_of(60)
    written(path, model, FLOATS)
    stock = load_gguf(path)
    engine = engine_copy(stock, "gguf", path)
    assert engine.weights == load(path).weights == "gguf"
    read = chain_of(EngineVerifier(engine), text)
    close(read.logits_of([0] * 31, range(31)), wanted(stock, text)[29:])
    if name in ("llama", "qwen2", "qwen3"):
        close(states_of(transformer_of_gguf(path), text)[29:], torch.from_numpy(read.hidden[0]))


def test_biases_of_a_file_follow_their_rows(tmp_path: Path) -> None:
    model = tiny("llama with biases")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.copy_(torch.randn_like(weight))
    written(tmp_path / "model.gguf", model, FLOATS)
    text = prompt_of(20)
    with torch.inference_mode():
        expected = model.model(torch.tensor([text])).last_hidden_state[0]
    torch.testing.assert_close(
        states_of(transformer_of_gguf(tmp_path / "model.gguf"), text), expected, atol=1e-2, rtol=0
    )


def transformer_of_gguf(path: Path) -> Any:
    return transformer_of_weights(GgufWeights(path, _engine.WeightMemory()))


FIELDS: list[dict[str, int]] = [
    {"attention.head_count": 0}, {"attention.head_count": 3}, {"attention.head_count": 2**31},
    {"attention.head_count_kv": 0}, {"attention.head_count_kv": 3}, {"attention.head_count_kv": 64},
    {"block_count": 0}, {"block_count": 9}, {"embedding_length": 0}, {"embedding_length": 2**31},
    {"attention.key_length": 2**29}, {"attention.key_length": 24}, {"rope.dimension_count": 8},
]  # fmt: skip


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_absurd_fields_of_a_file_are_errors_of_one_line(fields: dict[str, int], tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    written(path, tiny("llama"), MIXED, fields)
    with pytest.raises(ValueError, match="expected") as raised:
        transformer_of_gguf(path)
    assert "\n" not in str(raised.value)


def test_damaged_tensors_of_a_file_are_errors_of_one_line(tmp_path: Path, llama_file: Path) -> None:
    stock, path = load_gguf(llama_file), tmp_path / "model.gguf"
    content = llama_file.read_bytes()
    for old, new, message in [
        (b"blk.1.ffn_up.weight", b"blk.1.ffn_uq.weight", r"expected the tensor blk\.1\.ffn_up\.weight.*got none"),
        (b"token_embd.weight", b"token_embe.weight", r"expected the tensor token_embd\.weight.*got none"),
        (b"attention.head_count_kv", b"attention.head_count_kw", r"head_count_kv to divide 32 rows .* got None"),
    ]:
        assert content.count(old) == 1
        path.write_bytes(content.replace(old, new))
        with pytest.raises(ValueError, match=message) as raised:
            engine_copy(stock, "gguf", path)
        assert "\n" not in str(raised.value)
    # 96 rows of 64 numbers in bfloat16 become 192 rows of 32
    header = content.index(b"blk.1.ffn_up.weight") + len(b"blk.1.ffn_up.weight") + 4
    assert content[header : header + 16] == struct.pack("<QQ", 64, 96)
    path.write_bytes(content[:header] + struct.pack("<QQ", 32, 192) + content[header + 16 :])
    with pytest.raises(ValueError, match=r"blk\.1\.ffn_up\.weight of 96 x 64 weights, got 192 x 32"):
        engine_copy(stock, "gguf", path)
    # a type of as many bytes that the engine does not know: 16-bit whole numbers
    path.write_bytes(content[: header + 16] + struct.pack("<I", 25) + content[header + 20 :])
    with pytest.raises(ValueError, match=r"blk\.1\.ffn_up\.weight \(I16\): expected weights as F32, F16"):
        engine_copy(stock, "gguf", path)
    stock.save_pretrained(tmp_path)  # the float weights, where nobody asked for the blocks
    assert load_target(tmp_path).weights == "float32"


def test_a_drafter_of_trees_works_on_rows_that_end_at_different_times() -> None:
    loaded = load(weights="float32")
    prompts = torch.tensor([prompt_of(12, seed) for seed in range(5)])
    out = generate(loaded.target, prompts, loaded.drafter("8-tree"), max_new_tokens=30, eos_token_id=199)
    single = [
        generate(loaded.target, row, loaded.drafter("greedy"), max_new_tokens=30, eos_token_id=199).sequences[0]
        for row in prompts
    ]
    for row, text in zip(out.sequences, single, strict=True):
        assert np.array_equal(row[: len(text)], text)
