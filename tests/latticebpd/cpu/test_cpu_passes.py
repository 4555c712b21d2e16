"""Passes over few tokens by the CPU kernels: batch-invariant, and texts are those of the same model's `generate()`."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from latticebpd import (
    BlockwiseLM,
    DraftTree,
    Loaded,
    TreeDrafter,
    VanillaDrafter,
    drafter_named,
    generate,
    load,
    use_cpu_kernels,
)
from latticebpd.cpu.attention import CPU_ATTENTION, attend
from latticebpd.cpu.int8_layers import Int8Linear
from latticebpd.cpu.linear import CpuLinear, PackedLinear
from latticebpd.cpu.llama_layer import CpuLlamaLayer
from latticebpd.drafters.bundled import load_prompts
from latticebpd.drafters.heads.head_networks import BlockHeads, Int8BlockHeads
from latticebpd.target.stock_model import Projection
from latticebpd.target.tree_attention import TreeVerifier
from latticebpd.target.verifier_choice import verifier_for
from tests.helpers.tiny_families import FAMILIES, tiny


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Threads of PyTorch, which the kernels follow."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_not_a_number_and_infinity_stay_in_their_rows() -> None:
    x = torch.ones(3, 8)
    x[1, 3], x[2, 3] = float("nan"), float("inf")
    layer = PackedLinear()
    with torch.no_grad():
        y = layer(x, torch.ones(5, 8))
    assert y[0].tolist() == [8.0] * 5
    assert bool(y[1].isnan().all())
    assert bool((y[2] == float("inf")).all())


@torch.no_grad()
def test_a_packed_layer_takes_what_pytorch_takes() -> None:
    torch.manual_seed(0)
    weight, bias, layer = torch.randn(6, 4), torch.randn(6), PackedLinear()
    for x in (
        torch.randn(4),
        torch.randn(2, 3, 4),
        torch.randn(5, 8)[:, ::2],
        torch.randn(4, 5).T,
        torch.empty(0, 4),
        torch.empty(2, 0, 4),
    ):
        torch.testing.assert_close(layer(x, weight, bias), F.linear(x, weight, bias))
    for wide in (torch.randn(4, 6).T, torch.randn(12, 8)[::2, ::2]):  # weights that do not lie side by side
        torch.testing.assert_close(layer(torch.ones(1, 4), wide), F.linear(torch.ones(1, 4), wide))
    for dtype in (torch.float64, torch.bfloat16):
        assert torch.equal(layer(x.to(dtype), weight.to(dtype)), F.linear(x.to(dtype), weight.to(dtype)))
    with pytest.raises(RuntimeError, match="shapes"):
        layer(torch.randn(2, 5), weight)


def test_changed_weights_are_packed_again_and_gradients_are_pytorchs() -> None:
    model = use_cpu_kernels(nn.Sequential(nn.Linear(4, 3)))
    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(model(x), F.linear(x, model[0].weight, model[0].bias))
            model[0].weight.mul_(2)
            model[0].bias.add_(1)
    model(x).sum().backward()
    assert model[0].weight.grad is not None
    twin = copy.deepcopy(model)
    with torch.no_grad():
        assert torch.equal(twin(x), model(x))
        twin[0].weight.zero_()
        twin[0].bias.zero_()
        assert not twin(x).any()
        assert model(x).any()


@torch.no_grad()
def test_a_weight_at_the_address_of_another_is_packed_again() -> None:
    rows, layer = torch.randn(12, 8), PackedLinear()
    for outputs, inputs in ((4, 8), (12, 8), (12, 3), (5, 8)):
        x = torch.randn(2, inputs)
        torch.testing.assert_close(layer(x, rows[:outputs, :inputs]), F.linear(x, rows[:outputs, :inputs]))
    model = use_cpu_kernels(
        nn.Linear(300, 300, bias=False)
    )  # memory of this size goes back to the system, which gives the same again
    x = torch.randn(1, 300)
    for _ in range(8):
        torch.testing.assert_close(model(x), F.linear(x, model.weight), rtol=1e-4, atol=1e-4)
        model.weight.data = torch.empty(0)
        model.weight.data = torch.randn(300, 300)


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(
        ValueError, match="expected a model with linear layers in float32 on a CPU, got bfloat16 on cpu"
    ):
        use_cpu_kernels(nn.Linear(4, 3, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="got no linear layers"):
        use_cpu_kernels(nn.ReLU())


class _Module(nn.Module):
    num_key_value_groups = 3
    is_causal = True


@torch.no_grad()
@pytest.mark.parametrize("size", [16, 48, 64, 80, 144])
@pytest.mark.parametrize(("rows", "columns", "keys"), [(1, 1, 50), (2, 5, 37), (3, 40, 111), (1, 33, 33)])
@pytest.mark.parametrize("mask", ["none", "seen", "added", "each head"])
def test_attention_is_close_to_double_precision(
    size: int, rows: int, columns: int, keys: int, mask: str, threads: int
) -> None:
    torch.manual_seed(size)
    query = torch.randn(rows, columns, 6, size).transpose(1, 2)
    key, value = (torch.randn(rows, 2, keys + 9, size)[:, :, :keys] for _ in range(2))
    seen = torch.rand(rows, 6 if mask == "each head" else 1, columns, keys) > 0.4
    seen[..., 0] = True
    given: Tensor | None = seen
    if mask == "none":
        given, seen = (
            None,
            (torch.arange(keys) <= torch.arange(columns)[:, None])
            if columns > 1
            else torch.ones(1, keys, dtype=torch.bool),
        )
    bias = torch.zeros(seen.shape, dtype=torch.float64)
    if mask == "added":
        bias = torch.randn(seen.shape).double()
        given = bias.float().masked_fill(~seen, torch.finfo(torch.float32).min)
    found, _ = attend(_Module(), query, key, value, given, scaling=0.3)
    wide_key, wide_value = (each.double().repeat_interleave(3, dim=1) for each in (key, value))
    expected = F.scaled_dot_product_attention(
        query.double(), wide_key, wide_value, bias.masked_fill(~seen, -torch.inf), scale=0.3
    )
    torch.testing.assert_close(found.double(), expected.transpose(1, 2), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_attention_ignores_hidden_keys_and_is_zero_where_none_is_visible() -> None:
    query, key, value = torch.randn(1, 6, 2, 16), torch.randn(1, 2, 40, 16), torch.randn(1, 2, 40, 16)
    seen = torch.zeros(1, 1, 2, 40, dtype=torch.bool)
    seen[:, :, 0, [3, 20]] = True
    expected, _ = attend(_Module(), query, key, value, seen)
    key[:, :, 4:20], value[:, :, 4:20] = float("nan"), float("inf")
    found, _ = attend(_Module(), query, key, value, seen)
    assert torch.equal(found, expected)
    assert not found[:, 1].any()


@torch.no_grad()
def test_attention_does_not_depend_on_where_keys_lie() -> None:
    """The same keys in the same order, with others between them that are hidden: as drafts that were rejected lie."""
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 6, 1, 64), torch.randn(1, 2, 30, 64), torch.randn(1, 2, 30, 64)
    alone, _ = attend(_Module(), query, key, value, None)
    for seed in range(10):
        torch.manual_seed(seed)
        keys = torch.randperm(75)[:30].sort().values
        wide_key, wide_value = torch.randn(1, 2, 75, 64), torch.randn(1, 2, 75, 64)
        wide_key[:, :, keys], wide_value[:, :, keys] = key, value
        seen = torch.zeros(1, 1, 9, 75, dtype=torch.bool)
        seen[..., keys] = True
        seen[:, :, :4] = torch.rand(4, 75) > 0.5
        found, _ = attend(_Module(), query.expand(-1, -1, 9, -1), wide_key, wide_value, seen)
        assert torch.equal(found[:, 4:], alone.expand(-1, 5, -1, -1))


def small_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 96,
        "num_hidden_layers": 3,
        "intermediate_size": 160,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
    }
    return LlamaForCausalLM(LlamaConfig(vocab_size=211, head_dim=16, initializer_range=0.3, **sizes)).eval()


@torch.inference_mode()
def test_a_tree_is_verified_with_the_bits_of_its_tokens_read_one_by_one(threads: int) -> None:
    model = use_cpu_kernels(small_llama())
    assert model.config._attn_implementation == CPU_ATTENTION
    prompt = list(range(3, 40))
    tree = DraftTree(np.array([5, 6, 7, 8, 9, 10, 11], np.int32), np.array([-1, -1, 0, 1, 2, 3, 4], np.int32))
    verifier = verifier_for(model)
    assert isinstance(verifier, TreeVerifier)
    verifier.prefill([prompt])
    together = verifier.verify([3], [tree])
    for path in ([0, 2, 4, 6], [1, 3, 5]):
        verifier.forget()
        for column, token in zip([0, *(node + 1 for node in path)], [3, *tree.tokens[path].tolist()], strict=True):
            alone = verifier.verify([token], [DraftTree.empty()])
            assert torch.equal(alone.hidden[0, 0], together.hidden[0, column])
            assert torch.equal(alone.logits_of([0], [0]), together.logits_of([0], [column]))
            verifier.keep([[]])
        verifier.cache.cut([len(prompt)])
    whole = model(torch.tensor([[*prompt, 3, 6, 8, 10]])).logits[0, -4:]
    assert torch.equal(whole, together.logits_of([0] * 4, [0, 2, 4, 6]))


@torch.inference_mode()
def test_llamas_layers_are_computed_by_the_kernels_and_close_to_pytorch(threads: int) -> None:
    plain, changed = small_llama(), use_cpu_kernels(small_llama())
    ids, mask = torch.tensor([[0, 0, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14]]), torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    expected, found = (model(ids, attention_mask=mask, output_hidden_states=True) for model in (plain, changed))
    assert all(isinstance(layer, CpuLlamaLayer) and layer.packed.kernels is not None for layer in changed.model.layers)
    assert len(found.hidden_states) == len(expected.hidden_states) == 4
    for one, other in zip(found.hidden_states, expected.hidden_states, strict=True):
        torch.testing.assert_close(one[mask == 1], other[mask == 1], rtol=1e-4, atol=1e-4)


def test_a_layer_with_changed_modules_is_computed_with_them() -> None:
    ids = torch.tensor([[5, 6, 7, 8]])
    for change in (_halved, _replaced, _hooked, _transposed):
        plain, changed = small_llama(), use_cpu_kernels(small_llama())
        with torch.no_grad():
            before = changed(ids).logits
            change(plain)
            change(changed)
            assert not torch.allclose(changed(ids).logits, before, atol=1e-3)
            torch.testing.assert_close(changed(ids).logits, plain(ids).logits, rtol=1e-3, atol=1e-3)
        twin = copy.deepcopy(changed)
        with torch.no_grad():
            torch.testing.assert_close(twin(ids).logits, changed(ids).logits, rtol=1e-3, atol=1e-3)


def _halved(model: LlamaForCausalLM) -> None:
    model.model.layers[1].mlp.up_proj.weight.mul_(0.5)  # type: ignore[operator]
    model.model.layers[2].input_layernorm.weight.mul_(0.5)  # type: ignore[operator]


def _replaced(model: LlamaForCausalLM) -> None:
    torch.manual_seed(1)
    model.model.layers[1].self_attn.q_proj = nn.Sequential(nn.Linear(96, 8), nn.Linear(8, 96))


def _hooked(model: LlamaForCausalLM) -> None:
    model.model.layers[1].self_attn.o_proj.register_forward_hook(lambda module, given, output: 2 * output)


def _transposed(model: LlamaForCausalLM) -> None:
    weight = model.model.layers[1].self_attn.o_proj.weight
    weight.data = weight.data.T  # the same memory, read otherwise


def test_gradients_of_a_layer_with_cpu_kernels_are_pytorchs() -> None:
    plain, changed = small_llama(), use_cpu_kernels(small_llama())
    for model in (plain, changed):
        with torch.no_grad():
            model(torch.tensor([[5, 6, 7]]))
        model(torch.tensor([[5, 6, 7]])).logits.square().mean().backward()
    torch.testing.assert_close(
        changed.model.layers[0].mlp.up_proj.weight.grad,
        plain.model.layers[0].mlp.up_proj.weight.grad,
        rtol=1e-3,
        atol=1e-5,
    )


def _gap(found: Tensor, expected: Tensor) -> float:
    """The root mean square of a difference, as a part of what is expected."""
    return float((found - expected).norm() / expected.norm())


def test_heads_are_computed_by_the_kernel_and_are_batch_invariant(threads: int) -> None:
    torch.manual_seed(0)
    plain = BlockHeads(96, 5, 40)
    plain.down.data.normal_()
    changed = use_cpu_kernels(nn.ModuleList([copy.deepcopy(plain), nn.Linear(2, 2)]))[0]
    assert isinstance(changed, Int8BlockHeads)
    hidden = torch.randn(2, 3, 96)
    for slots in (None, 1, 3):
        with torch.no_grad():
            assert (
                _gap(changed(hidden, slots) - hidden[..., None, :], plain(hidden, slots) - hidden[..., None, :]) < 0.01
            )
            assert changed.packed.kernels is not None
            assert torch.equal(changed(hidden[:1], slots), changed(hidden, slots)[:1])
    with torch.no_grad():
        plain.up.mul_(2)
        changed.up.mul_(2)
        assert _gap(changed(hidden), plain(hidden)) < 0.01
    changed(hidden).sum().backward()
    assert changed.up.grad is not None


@torch.inference_mode()
def test_logits_of_the_first_columns_are_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    model = use_cpu_kernels(small_llama())
    nodes = np.arange(15, dtype=np.int32)
    verifier = verifier_for(model)
    verifier.prefill([list(range(3, 40))])
    verified = verifier.verify([3], [DraftTree(nodes + 20, (nodes - 1) // 2)])
    alone = [model.lm_head(verified.hidden[0, column : column + 1]) for column in range(16)]
    widths: list[int] = []
    model.lm_head.register_forward_hook(lambda module, given, output: widths.append(given[0].shape[-2]))
    for column in (0, 4, 11, 12, 15):
        assert torch.equal(verified.logits_of([0], [column]), alone[column])
    assert widths == [12, 1, 1]


@torch.inference_mode()
def test_best_tokens_are_those_of_all_logits_and_computed_for_a_few_columns_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, nodes = use_cpu_kernels(small_llama()), np.arange(15, dtype=np.int32)
    model.lm_head.weight[11] = model.lm_head.weight[7]  # what is best may be so twice
    tree = DraftTree(nodes + 20, (nodes - 1) // 2)
    asked: list[tuple[int, ...]] = []
    plain = PackedLinear.argmax
    monkeypatch.setattr(
        PackedLinear, "argmax", lambda self, x, *given: asked.append(tuple(x.shape[:-1])) or plain(self, x, *given)
    )
    for rows, looked in ((1, [(1, 4)] * 4), (2, [(2, 2)] * 5), (3, [(1,)] * 5)):
        verifier = verifier_for(model)
        verifier.prefill([list(range(3, 40))] * rows)
        verified = verifier.verify([3] * rows, [tree] * rows)
        expected = model.lm_head(verified.hidden).argmax(dim=-1)
        assert verified.best_of is not None
        asked.clear()
        for column in (0, 3, 11, 5, 13):
            assert verified.best_of([rows - 1], [column]) == [int(expected[rows - 1, column])]
        assert asked == looked
        assert verified.best_of(range(rows), [2] * rows) == expected[:, 2].tolist()
    assert verifier_for(small_llama()).prefill([[1, 2]]).best_of is None


@torch.no_grad()
def test_the_argmax_is_pytorchs() -> None:
    torch.manual_seed(0)
    weight, layer = nn.Parameter(torch.randn(700, 40)), PackedLinear()
    for bias in (None, torch.randn(700)):
        for x in (
            torch.randn(40),
            torch.randn(2, 3, 40),
            torch.randn(5, 80)[:, ::2],
            torch.randn(40, 5).T,
            torch.randn(0, 40),
        ):
            assert torch.equal(layer.argmax(x, weight, bias), F.linear(x, weight, bias).argmax(dim=-1))
    weight.mul_(-1)  # packed again
    x = torch.randn(4, 40)
    assert torch.equal(layer.argmax(x, weight), F.linear(x, weight).argmax(dim=-1))
    x[1], x[2, 3] = x[1] * 1e37, torch.nan
    assert torch.equal(layer.argmax(x, weight), F.linear(x, weight).argmax(dim=-1))
    assert torch.equal(layer.argmax(x.double(), weight.double()), F.linear(x, weight).argmax(dim=-1))
    scaled = Projection(use_cpu_kernels(nn.Linear(40, 90)), 0.5, torch.randn(90))  # T5's and Marian's
    assert torch.equal(scaled.best(x[3:]), scaled(x[3:]).argmax(dim=-1))
    assert torch.equal(replace(scaled, bias=None).best(x[3:]), replace(scaled, bias=None)(x[3:]).argmax(dim=-1))


@torch.no_grad()
def test_hooks_of_the_output_embedding_may_change_the_best_token() -> None:
    layer, x = use_cpu_kernels(nn.Linear(40, 90)), torch.randn(5, 40)
    projection = Projection(layer)
    expected = layer(x).argmin(dim=-1)
    handle = layer.register_forward_hook(lambda module, given, output: -output)
    assert torch.equal(projection.best(x), expected)
    handle.remove()
    layer.register_forward_pre_hook(lambda module, given: (-given[0],))
    assert torch.equal(projection.best(x), projection(x).argmax(dim=-1))


@pytest.fixture(scope="module")
def bundle() -> Loaded:
    found = load()
    use_cpu_kernels(found.model)
    return found


def test_the_bundled_model_writes_what_its_generate_writes(bundle: Loaded) -> None:
    for prompt in load_prompts()[:3]:
        ids = torch.tensor([bundle.encode(prompt.text)])
        expected = bundle.model.base.generate(ids, do_sample=False, max_new_tokens=32)
        for drafter in (VanillaDrafter(bundle.model), TreeDrafter(bundle.model, bundle.lm, num_nodes=24)):
            found = generate(bundle.model, ids, drafter, max_new_tokens=32)
            assert torch.equal(found.sequences, expected)
            assert found.block_efficiency > 1


def test_all_of_a_blockwise_model_has_cpu_kernels(bundle: Loaded) -> None:
    assert isinstance(bundle.model, BlockwiseLM)
    assert not [module for module in bundle.model.modules() if type(module) is nn.Linear]
    short = bundle.model.projection.over(torch.arange(9, 90))
    hidden = torch.randn(4, 256)
    with torch.inference_mode():
        assert isinstance(short.embedding.linear, PackedLinear)
        assert torch.equal(short(hidden), bundle.model.projection(hidden)[:, 9:90])


@torch.inference_mode()
def test_int8_heads_draft_what_float32_heads_draft(bundle: Loaded) -> None:
    """The base model's own projection stays exact: it verifies."""
    model, known = bundle.model, load().model
    ids = [bundle.encode(prompt.text) for prompt in load_prompts()[:6]]
    hidden = torch.cat([model.base.base_model(torch.tensor([each])).last_hidden_state[0] for each in ids])
    found, exact = (heads.head_logits(hidden).log_softmax(dim=-1) for heads in (model, known))
    assert not torch.equal(found, exact)
    best = exact.topk(16)
    shared = (found.topk(16).indices[..., None] == best.indices[..., None, :]).any(-1).float().mean()
    assert shared > 0.97
    assert (found.argmax(-1) == best.indices[..., 0]).float().mean() > 0.97
    gaps = (found.gather(-1, best.indices) - best.values).abs()
    assert gaps.mean() < 0.03
    assert gaps.max() < 0.3
    assert isinstance(model.head_projection.embedding.linear, Int8Linear)
    assert model.projection.embedding is model.base.get_output_embeddings()


@torch.no_grad()
def test_an_int8_layer_takes_what_pytorch_takes() -> None:
    torch.manual_seed(0)
    weight, bias, layer = torch.randn(6, 40), torch.randn(6), Int8Linear()
    for x in (torch.randn(40), torch.randn(2, 3, 40), torch.randn(5, 80)[:, ::2], torch.randn(40, 5).T):
        assert _gap(layer(x, weight, bias), F.linear(x, weight, bias)) < 0.02
    for empty in (torch.empty(0, 40), torch.empty(2, 0, 40)):
        assert layer(empty, weight, bias).shape == (*empty.shape[:-1], 6)
    before = layer(torch.ones(1, 40), weight)
    weight.mul_(2)
    assert torch.equal(layer(torch.ones(1, 40), weight), 2 * before)
    assert torch.equal(copy.deepcopy(layer)(torch.ones(1, 40), weight), 2 * before)
    for dtype in (torch.float64, torch.bfloat16):
        assert torch.equal(layer(x.to(dtype), weight.to(dtype)), F.linear(x.to(dtype), weight.to(dtype)))
    with pytest.raises(RuntimeError, match="shapes"):
        layer(torch.randn(2, 5), weight)
    with torch.enable_grad():
        layer(x, weight.requires_grad_()).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_other_families_keep_their_texts(family: str) -> None:
    """All of them, whatever of them can be computed by the kernels."""
    plain, changed = tiny(family), tiny(family)
    use_cpu_kernels(changed)
    assert any(isinstance(module, CpuLinear) for module in changed.modules())
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    expected = plain.generate(ids, do_sample=False, max_new_tokens=16)
    assert torch.equal(changed.generate(ids, do_sample=False, max_new_tokens=16), expected)
    found = generate(changed, ids, drafter_named("8-copies", None, None), max_new_tokens=16)
    assert torch.equal(found.sequences[:, found.prompt_length :], expected[:, -16:])
