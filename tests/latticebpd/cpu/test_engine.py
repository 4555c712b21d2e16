"""The CPU engine: families as transformers computes them, the same bits for any width, thread and instruction set."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from latticebpd import DraftTree, generate, load
from latticebpd.cpu import _engine
from latticebpd.target.engine import engine_for, engine_of, make_engine, use_engine
from latticebpd.target.engine_families import objection
from latticebpd.target.engine_verifier import EngineVerifier
from latticebpd.target.gguf_engine import transformer_of_gguf

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
    "gemma2": Gemma2Config(**SIZES, head_dim=16, sliding_window=8, query_pre_attn_scalar=20),
    "phi3": Phi3Config(**SIZES, sliding_window=11),
    "phi3, partly rotated": Phi3Config(**SIZES, partial_rotary_factor=0.5),
}
TREE = DraftTree(np.array([5, 9, 7, 8, 3, 4], np.int32), np.array([-1, -1, 0, 0, 1, 2], np.int32))


def tiny(name: str, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(copy.deepcopy(CONFIGS[name])).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.1 + (weight.ndim == 1))
    return model


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return torch.randint(3, 120, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def wanted(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


@pytest.mark.parametrize("name", list(CONFIGS))
def test_families_are_those_of_transformers(name: str) -> None:
    model, text = tiny(name), prompt_of(40)
    assert objection(model) is None
    verifier = EngineVerifier(make_engine(model))
    verifier.prefill([text[:20], text[:13]])  # rows of different lengths
    verifier.verify([text[20], 6], [TREE, DraftTree.empty()])
    verifier.forget()
    chain = DraftTree.from_paths([text[21:]])
    read = verifier.verify([text[20], 6], [chain, TREE])
    expected = wanted(model, text)[20:]
    torch.testing.assert_close(read.logits_of([0] * 20, range(20)), expected, atol=5e-5, rtol=1e-4)
    assert read.best_of is not None
    assert read.best_of([0] * 20, range(20)) == expected.argmax(-1).tolist()
    for node in range(len(TREE)):
        path = [*text[:13], 6, *TREE.tokens[TREE.path(node)].tolist()]
        expected = wanted(model, path)[-1:]
        torch.testing.assert_close(read.logits_of([1], [node + 1]), expected, atol=5e-5, rtol=1e-4)
    verifier.keep([[], TREE.path(5)])
    verifier.select([1])
    path = [*text[:13], 6, *TREE.tokens[TREE.path(5)].tolist(), 11]
    torch.testing.assert_close(
        verifier.verify([11], [DraftTree.empty()]).logits_of([0], [0]), wanted(model, path)[-1:], atol=5e-5, rtol=1e-4
    )


def test_states_of_layers_are_those_of_transformers() -> None:
    model, text = tiny("llama"), prompt_of(20)
    verifier = EngineVerifier(make_engine(model), (0, 3))
    verifier.prefill([text[:12]])
    verifier.verify([text[12]], [DraftTree(np.array([9, *text[13:]], np.int32), np.array([-1, -1, *range(1, 7)]))])
    verifier.keep([list(range(1, 8))])
    with torch.inference_mode():
        states = model(torch.tensor([text]), output_hidden_states=True).hidden_states
    read = verifier.layer_states(0)
    assert read is not None
    torch.testing.assert_close(read, torch.cat([states[1][0], states[4][0]], dim=-1), atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("weights", ["float32", "int8"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen2"])
def test_bits_depend_on_no_width_thread_or_instruction_set(name: str, weights: str) -> None:
    model, text = tiny(name), prompt_of(110)
    before = torch.get_num_threads()
    reference: torch.Tensor | None = None
    try:
        for isa in range(_engine.isas()):
            engine = make_engine(model, weights, isa=isa)
            for width, threads in [(1, 1), (2, 1), (3, 2), (5, 1), (7, 4), (9, 3), (17, 2), (64, 1), (70, 4)]:
                torch.set_num_threads(threads)
                verifier = EngineVerifier(engine)
                verifier.prefill([text[:40]] * (1 + width % 2))
                hidden, best = [], []
                for begin in range(40, 110, width):
                    part = text[begin : begin + width]
                    rows = 1 + width % 2  # another row beside it changes nothing
                    read = verifier.verify([part[0]] * rows, [DraftTree.from_paths([part[1:]]), TREE][:rows])
                    hidden.append(read.hidden[0, : len(part)].clone())
                    assert read.best_of is not None
                    best += read.best_of([0] * len(part), range(len(part)))
                    verifier.keep([list(range(len(part) - 1)), []][:rows])
                states = torch.cat(hidden)
                reference = states if reference is None else reference
                assert torch.equal(states, reference), (isa, width, threads)
                assert best == read.logits_of([0], [0]).argmax(-1).tolist() or len(best) == 70
    finally:
        torch.set_num_threads(before)


def test_a_node_has_the_bits_of_its_path_read_alone() -> None:
    model, text = tiny("mistral"), prompt_of(30)
    engine = make_engine(model, "int8")
    verifier = EngineVerifier(engine)
    verifier.prefill([text])
    tree = verifier.verify([6], [TREE]).hidden[0]
    for node in range(len(TREE)):
        alone = EngineVerifier(engine)
        alone.prefill([[*text, 6, *TREE.tokens[TREE.path(node)].tolist()[:-1]]])
        assert torch.equal(alone.verify([int(TREE.tokens[node])], [DraftTree.empty()]).hidden[0, 0], tree[node + 1])


def test_what_the_engine_does_not_know_is_named() -> None:
    gpt2 = AutoModelForCausalLM.from_config(GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2))
    assert objection(gpt2) == "GPT2LMHeadModel is none of its families"
    assert "bfloat16" in str(objection(tiny("llama").to(torch.bfloat16)))
    hooked = tiny("llama")
    hooked.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    assert "model.layers.1.mlp has a hook" in str(objection(hooked))
    longer = tiny("llama")
    longer.config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    assert "dynamic" in str(objection(longer))
    odd = AutoModelForCausalLM.from_config(LlamaConfig(**{**SIZES, "intermediate_size": 90}))
    assert "multiples of 16" in str(objection(odd))
    with pytest.raises(ValueError, match="expected a model that the CPU engine computes, but GPT2LMHeadModel"):
        make_engine(gpt2)
    with pytest.raises(ValueError, match="expected weights among float32, int8, file, torch, got 'int4'"):
        make_engine(tiny("llama"), "int4")
    with pytest.raises(ValueError, match="expected a GGUF file"):
        make_engine(tiny("llama"), "file")
    assert engine_for(gpt2, Path("nowhere")) is None


def changes() -> dict[str, Any]:
    def by_numpy(model: Any) -> None:
        model.model.layers[2].mlp.up_proj.weight.detach().numpy()[:] *= 2

    def by_forward(model: Any) -> None:
        model.model.layers[0].self_attn.forward = model.model.layers[0].self_attn.forward

    return {
        "data": lambda model: model.model.norm.weight.data.mul_(1.5),
        "numpy": by_numpy,
        "parameter": lambda model: setattr(model.lm_head, "weight", torch.nn.Parameter(torch.zeros(120, 64))),
        "loaded": lambda model: model.load_state_dict(tiny("llama", 1).state_dict()),
        "hook": lambda model: model.model.layers[3].input_layernorm.register_forward_pre_hook(lambda *_: None),
        "forward": by_forward,
    }


@pytest.mark.parametrize("change", list(changes()))
def test_a_changed_model_is_no_longer_its_engines(change: str) -> None:
    model = tiny("llama")
    use_engine(model, make_engine(model))
    engine = engine_of(model)
    model(torch.tensor([[3, 4]]), output_hidden_states=True)  # leaves hooks of transformers' own behind
    assert engine_of(model) is engine
    assert engine_of(copy.deepcopy(model)) is None
    changes()[change](model)
    with pytest.raises(ValueError, match="expected the model as it was loaded"):
        engine_of(model)


def test_threads_share_an_engine() -> None:
    loaded, prompt = load(weights="int8"), prompt_of(30)
    alone = generate(loaded.model, prompt, loaded.drafter("greedy"), max_new_tokens=24).sequences
    texts: list[torch.Tensor] = []

    def decode(system: str) -> None:
        for _ in range(3):
            texts.append(generate(loaded.model, prompt, loaded.drafter(system), max_new_tokens=24).sequences)

    threads = [threading.Thread(target=decode, args=[name]) for name in ("greedy", "16-copies", "8-tree", "16-best")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 12
    assert all(torch.equal(text, alone) for text in texts)


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_texts_are_the_same_with_drafts_and_without(weights: str) -> None:
    loaded = load(weights=weights)
    assert loaded.weights == weights
    prompts = torch.tensor([prompt_of(20, seed) for seed in range(4)])
    alone = generate(loaded.model, prompts, loaded.drafter("greedy"), max_new_tokens=40).sequences
    for system in ("vanilla", "16-tree", "copies+16-tree", "16-calibrated", "10-copies"):
        assert torch.equal(generate(loaded.model, prompts, loaded.drafter(system), max_new_tokens=40).sequences, alone)
    if weights == "float32":
        stock = loaded.base.generate(
            prompts, attention_mask=torch.ones_like(prompts), do_sample=False, max_new_tokens=40
        )
        assert torch.equal(alone, stock)


def test_misuse_of_the_compiled_parts_is_refused() -> None:
    engine = make_engine(tiny("llama")).transformer
    cache, tokens = _engine.Cache(engine), np.array([3, 4])
    for given in (
        ([cache], [2], np.array([3, 500]), np.array([-1, 0]), []),
        ([cache], [2], tokens, np.array([0, -1]), []),
        ([cache], [3], tokens, np.array([-1, 0]), []),
        ([cache, cache], [1, 1], tokens, np.array([-1, -1]), []),
        ([cache], [2], tokens, np.array([-1, 0]), [4]),
    ):
        with pytest.raises(ValueError, match="expected"):
            engine.read(*given, 1)
    engine.read([cache], [2], tokens, np.array([-1, 0]), [], 1)
    for columns in ([2], [1, 1], [1, 0]):
        with pytest.raises(ValueError, match="ascending columns"):
            cache.keep(columns)
    cache.keep([1])
    assert cache.length == 1
    with pytest.raises(ValueError, match="states"):
        engine.best(np.zeros((2, 63), np.float32), 1)
    with pytest.raises(ValueError, match="blocks of all weights"):
        _engine.Matrix.of_blocks(_engine.WeightMemory(), 8, np.zeros(33, np.uint8), 1, 32)


def written(path: Path, model: PreTrainedModel, types: dict[str, str]) -> None:
    """A GGUF file of a tiny Llama; queries and keys are interleaved as llama.cpp stores them."""
    gguf = pytest.importorskip("gguf")
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(256)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_token_list([f"<{n}>" for n in range(config.vocab_size)])
    names = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    outside = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for name, weight in model.state_dict().items():
        module = name.removesuffix(".weight")
        array = weight.numpy()
        if module in outside:
            stored = outside[module]
        else:
            _, _, number, part = module.split(".", 3)
            stored = f"blk.{number}.{names[part]}"
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(names[part])
            if heads:
                array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        kind = types.get(stored.split(".")[-1], "Q8_0") if array.ndim == 2 else "F32"
        blocks = gguf.quants.quantize(np.ascontiguousarray(array), gguf.GGMLQuantizationType[kind])
        writer.add_tensor(stored + ".weight", blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_files_blocks_are_the_models_weights(tmp_path: Path) -> None:
    from latticebpd.target.gguf import load_gguf

    path = tmp_path / "model.gguf"
    kinds = {
        "attn_q": "F16",
        "attn_k": "Q5_0",
        "attn_v": "Q4_1",
        "ffn_up": "BF16",
        "ffn_down": "Q5_1",
        "ffn_gate": "Q4_0",
    }
    written(path, tiny("llama"), kinds)
    stock, text = load_gguf(path), prompt_of(60)
    expected = torch.log_softmax(wanted(stock, text)[29:], dim=-1)
    engine = engine_for(stock, path)
    assert engine is not None
    assert engine.weights == "file"
    verifier = EngineVerifier(engine)
    verifier.prefill([text[:29]])
    read = verifier.verify([text[29]], [DraftTree.from_paths([text[30:]])])
    got = torch.log_softmax(read.logits_of([0] * 31, range(31)), dim=-1)
    assert float((expected.exp() * (expected - got)).sum(-1).mean()) < 1e-3  # activations are rounded
    straight = transformer_of_gguf(path)
    cache = _engine.Cache(straight)
    hidden, _ = straight.read([cache], [60], np.array(text), np.arange(-1, 59), [], 1)
    assert torch.equal(torch.from_numpy(hidden[29:]), read.hidden[0])
    other = tiny("qwen3")
    with pytest.raises(ValueError, match=r"model\.gguf: expected the tensor blk\.0\.attn_q\.weight"):
        make_engine(other, "file", path)


def test_a_drafter_of_trees_works_on_rows_that_end_at_different_times() -> None:
    loaded = load(weights="float32")
    prompts = torch.tensor([prompt_of(12, seed) for seed in range(5)])
    out = generate(loaded.model, prompts, loaded.drafter("8-tree"), max_new_tokens=30, eos_token_id=199)
    alone = [
        generate(loaded.model, row, loaded.drafter("greedy"), max_new_tokens=30, eos_token_id=199).sequences[0]
        for row in prompts
    ]
    for row, text in zip(out.sequences, alone, strict=True):
        assert torch.equal(row[: len(text)], text)
