"""Networks that only draft, with int8 weights: close to float32, and PyTorch's where gradients are asked
for."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from latticebpd import load
from latticebpd.cpu import _engine
from latticebpd.cpu.int8_layers import Int8Layer, Int8Linear, use_int8_layers
from latticebpd.drafters.bundled import MODEL, load_prompts
from latticebpd.drafters.heads.head_networks import ConditionedHeads, FeedForwardHeads
from latticebpd.models.load_target import load_stock


def _gap(values: Tensor, expected: Tensor) -> float:
    """The root mean square of a difference, as a part of what is expected."""
    return float((values - expected).norm() / expected.norm())


@torch.no_grad()
@pytest.mark.parametrize("kind", [FeedForwardHeads, ConditionedHeads])
@pytest.mark.parametrize("threads", [1, 2])
def test_heads_are_close_to_float32_in_any_company(threads: int, kind: type[FeedForwardHeads]) -> None:
    torch.manual_seed(0)
    plain = kind(96, 5, 40)
    plain.down.data.normal_()
    kernels = _engine.Int8Heads(*(each.detach().numpy().swapaxes(1, 2) for each in (plain.up, plain.down)))
    inputs = torch.randn(6, plain.input_size)
    own = inputs[:, None, :96]
    for slots in (4, 1, 3):
        states, expected = kernels.states(inputs.numpy(), slots, threads), plain(inputs, slots)
        assert states.shape == (6, slots, 96)
        assert _gap(torch.from_numpy(states) - own, expected - own) < 0.015
        assert np.array_equal(kernels.states(inputs[:3].numpy(), slots, threads), states[:3])


@torch.inference_mode()
def test_the_bundled_models_heads_draft_what_float32_heads_draft() -> None:
    loaded, stock = load(weights="float32"), load_stock(MODEL)
    kernels: Any = loaded.lattice_source()
    known: Any = load(weights="torch").lattice_source()
    ids = [loaded.encode(prompt.text) for prompt in load_prompts()[:6]]
    hidden = torch.cat([stock.base_model(torch.tensor([each])).last_hidden_state[0] for each in ids])
    last = [0] * len(hidden)  # which these heads do not read
    count, slots = known.num_tokens, known.num_slots

    def log_probs(heads: Any, states: Any) -> torch.Tensor:
        """``[states, slots, vocab]``: those of all tokens."""
        drawn = torch.empty(len(hidden), slots, count)
        for row, lattice in zip(drawn, heads.draw(states, last, slots, count, False), strict=True):
            row.scatter_(1, torch.from_numpy(lattice.tokens).long(), torch.from_numpy(lattice.log_probs).float())
        return drawn

    approximate, exact = log_probs(kernels.heads, hidden.numpy()), log_probs(known.heads, hidden)
    assert not torch.equal(approximate, exact)
    best = exact.topk(16)
    shared = (approximate.topk(16).indices[..., None] == best.indices[..., None, :]).any(-1).float().mean()
    assert shared > 0.97
    assert (approximate.argmax(-1) == best.indices[..., 0]).float().mean() > 0.97
    gaps = (approximate.gather(-1, best.indices) - best.values).abs()
    assert gaps.mean() < 0.03
    assert gaps.max() < 0.3


@torch.no_grad()
def test_a_product_takes_what_pytorch_takes() -> None:
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


def test_a_weight_at_the_address_of_another_is_packed_again() -> None:
    rows, product = torch.randn(12, 8), Int8Linear()
    for outputs, inputs in ((4, 8), (12, 8), (12, 3), (5, 8)):
        x, weight = torch.randn(2, inputs), rows[:outputs, :inputs]
        assert _gap(product(x, weight), F.linear(x, weight)) < 0.02
    layer = Int8Layer(nn.Linear(300, 300, bias=False))
    x = torch.randn(1, 300)
    with torch.no_grad():
        for _ in range(8):  # memory of this size goes back to the system, which gives the same again
            assert _gap(layer(x), F.linear(x, layer.weight)) < 0.02
            layer.weight.data = torch.empty(0)
            layer.weight.data = torch.randn(300, 300)


def test_a_networks_linear_layers_are_replaced_with_their_weights_and_names() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(40, 30), nn.Sequential(nn.ReLU(), nn.Linear(30, 20, bias=False)))
    before, x = {name: each.data_ptr() for name, each in network.state_dict().items()}, torch.randn(3, 40)
    expected = network(x)
    use_int8_layers(network)
    assert not [each for each in network.modules() if isinstance(each, nn.Linear)]
    assert {name: each.data_ptr() for name, each in network.state_dict().items()} == before
    with torch.no_grad():
        assert 0 < _gap(network(x), expected) < 0.03
    assert torch.equal(network(x), expected)  # with gradients


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")  # of `torch.jit.trace`, which PyTorch now calls deprecated
def test_tensors_without_numbers_in_memory_are_left_to_pytorch() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 20))
    x, other = torch.randn(3, 2, 40), torch.randn(3, 2, 40)
    expected = network(other)
    use_int8_layers(network)
    network(x)  # packs the weights
    traced = torch.jit.trace(network, x, check_trace=False)
    exported = torch.export.export(network, (x,)).module()
    for function in (traced, exported, torch.vmap(network), torch.compile(network, backend="eager")):
        assert _gap(function(other), expected) < 0.03
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert network(mode.from_tensor(x)).shape == (3, 2, 20)
    assert network.to("meta")(x.to("meta")).shape == (3, 2, 20)
