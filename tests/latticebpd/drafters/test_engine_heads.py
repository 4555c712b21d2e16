"""Heads by int8 kernels, next to a target on the CPU engine: what float32 heads on PyTorch give, but for rounding."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latticebpd import Loaded, load
from latticebpd.drafters import HeadLattices, State
from latticebpd.drafters.bundled import load_prompts
from latticebpd.drafters.heads.blockwise import BlockwiseLM, new_heads
from latticebpd.drafters.heads.engine_heads import EngineHeads
from latticebpd.drafters.heads.head_files import HEADS_CONFIG
from latticebpd.drafters.heads.torch_heads import TorchHeads
from latticebpd.models.engine.engine_copy import engine_copy
from latticebpd.verification.finished_texts import read_text
from tests.helpers.block_drafters import ENGINE_SHAPE, VOCAB, tiny_target

KINDS: dict[str, dict[str, Any]] = {
    "feed-forward": {},
    "conditioned": {"kind": "conditioned"},
    "layers": {"layers": [1, 4]},
    "conditioned, layers": {"kind": "conditioned", "layers": [3]},
    "shortlist": {"shortlist": np.arange(1, VOCAB, 2)},
    "transitions": {"transitions": 6},
    "everything": {"kind": "conditioned", "layers": [2], "shortlist": np.arange(0, VOCAB, 3), "transitions": 6},
}


def with_heads(
    kind: str = "feed-forward", layers: list[int] | None = None, shortlist: Any = None, transitions: int = 0
) -> BlockwiseLM:
    """A target that the engine computes, with random heads."""
    base = tiny_target(**ENGINE_SHAPE)
    heads = new_heads(base, kind, num_heads=5, intermediate_size=48, shortlist=shortlist)
    model = BlockwiseLM(base, heads)
    if layers:
        model.add_layers(layers)
    if transitions:
        heads.add_transitions(transitions)
    torch.manual_seed(2)
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    return model.eval()


def both(model: BlockwiseLM, folder: Path) -> tuple[TorchHeads, EngineHeads]:
    model.save_pretrained(folder)
    return TorchHeads(model), EngineHeads(folder, engine_copy(model.base), None)


def dense(lattice: Any, vocabulary: int) -> np.ndarray:
    """Probabilities by token, ``[slots, vocabulary]``."""
    result = np.zeros((lattice.slots, vocabulary))
    np.put_along_axis(result, lattice.tokens.astype(np.int64), np.exp(lattice.log_probs), axis=1)
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_lattices_and_entropies_are_those_on_pytorch_up_to_rounding(kind: str, tmp_path: Path) -> None:
    """Of states that each reads for itself; of all slots, and of the first ones."""
    model = with_heads(**KINDS[kind])
    sources = [HeadLattices(heads, k=8) for heads in both(model, tmp_path)]
    text = np.random.default_rng(0).integers(0, VOCAB, 24).tolist()
    for slots in (None, 2):
        drawn, entropies = [], []
        for source in (each.with_shape(each.num_tokens, slots) for each in sources):
            parts = list(source.lattices_of_text(text, range(2, 20)))
            drawn.append([lattice for lattices, _ in parts for lattice in lattices])
            entropies.append(np.concatenate([nats for _, nats in parts]))
        assert entropies[0].shape == entropies[1].shape == (18, 1 + (slots or 4))
        np.testing.assert_allclose(entropies[1][:, 0], entropies[0][:, 0], atol=1e-4)  # the target's own is exact
        assert not np.array_equal(*entropies)
        np.testing.assert_allclose(entropies[1], entropies[0], atol=0.1)
        assert np.abs(entropies[1] - entropies[0]).mean() < 0.02
        for one, other in zip(*drawn, strict=True):
            np.testing.assert_allclose(dense(other, VOCAB), dense(one, VOCAB), atol=0.05)
            assert (one.transitions is None) == (other.transitions is None) == ("transitions" not in KINDS[kind])


@pytest.fixture(scope="module")
def bundled() -> dict[str, Loaded]:
    return {weights: load(weights=weights) for weights in ("float32", "torch")}


def test_the_bundled_heads_are_those_on_pytorch_up_to_rounding(bundled: dict[str, Loaded]) -> None:
    sources: list[Any] = [bundled[weights].lattice_source(16) for weights in ("torch", "float32")]
    assert [type(each.heads) for each in sources] == [TorchHeads, EngineHeads]
    shared, firsts, gaps, nats = [], [], [], []
    for prompt in load_prompts()[:3]:
        text = bundled["torch"].encode(prompt.text)
        positions = range(len(text) - 1)
        exact, rounded = (list(each.lattices_of_text(text, positions)) for each in sources)
        for (lattices, own), (others, other) in zip(exact, rounded, strict=True):
            nats.append(np.abs(own - other))
            for one, two in zip(lattices, others, strict=True):
                same = one.tokens[:, :, None] == two.tokens[:, None]
                shared.append(same.any(axis=2).mean())
                firsts.append((one.tokens[:, 0] == two.tokens[:, 0]).mean())
                slots, mine, theirs = np.nonzero(same)
                gaps.append(np.abs(one.log_probs[slots, mine] - two.log_probs[slots, theirs]))
    assert np.mean(shared) > 0.97
    assert np.mean(firsts) > 0.97
    assert np.concatenate(gaps).mean() < 0.03
    assert np.concatenate(gaps).max() < 0.3
    assert np.concatenate(nats).mean() < 0.02
    assert np.concatenate(nats).max() < 0.2


def test_lattices_do_not_depend_on_their_company_or_on_how_the_text_was_read(bundled: dict[str, Loaded]) -> None:
    """Bit for bit: while a text grows, among others, and when it is finished."""
    loaded = bundled["float32"]
    source = loaded.lattice_source(16)
    text = loaded.encode(load_prompts()[0].text)
    hidden = read_text(loaded.target, text, range(1)).hidden
    positions = range(len(text) - 6, len(text) - 2)
    finished = [lattice for lattices, _ in source.lattices_of_text(text, positions) for lattice in lattices]
    states = [State(row, text[: at + 2], 1, hidden[at], 9 - row) for row, at in enumerate(positions)]
    together = source.lattices(states)
    for state, lattice, whole in zip(states, together, finished, strict=True):
        (alone,) = source.lattices([state])
        assert lattice is not None
        for other in (alone, whole.first_slots(state.max_depth)):
            assert other is not None
            assert np.array_equal(lattice.tokens, other.tokens)
            assert np.array_equal(lattice.log_probs, other.log_probs)


def test_heads_without_kernels_are_refused_by_name_and_load_on_pytorch(tmp_path: Path) -> None:
    model = with_heads("stern")
    model.save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"expected heads of a kind among feed-forward, conditioned .* got stern; load"
    ):
        EngineHeads(tmp_path, engine_copy(model.base), None)
    assert load(tmp_path).weights == "torch"
    with pytest.raises(ValueError, match=r"expected weights='torch' for a drafter .* got weights='int8'"):
        load(tmp_path, weights="int8")


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"vocab_size": 30}, "expected a base model of 30 tokens"),
        ({"model_type": "qwen2"}, "expected a base model of type qwen2"),
        ({"hidden_size": 48}, "expected heads of hidden size 32"),
        ({"intermediate_size": 64}, r"heads\.safetensors does not fit latticebpd/heads\.json"),
        ({"layers": [9]}, "expected layers from 1 to 5"),
        ({"base_fingerprint": "sha256:0"}, "expected the base model that the heads were trained on"),
    ],
)
def test_files_of_other_heads_are_refused_by_name(changes: dict[str, Any], wanted: str, tmp_path: Path) -> None:
    model = with_heads()
    model.save_pretrained(tmp_path)
    file = tmp_path / HEADS_CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ValueError, match=wanted):
        EngineHeads(tmp_path, engine_copy(model.base), None)


def test_the_source_of_heads_says_what_it_is(bundled: dict[str, Loaded]) -> None:
    """The hash names target and heads, and the engine's weights where they are rounded."""
    own, stock = (bundled[weights].source for weights in ("float32", "torch"))
    assert own is not None
    assert stock is not None
    assert (own.num_slots, own.num_tokens, own.vocab_size) == (stock.num_slots, stock.num_tokens, stock.vocab_size)
    assert own.fingerprint == stock.fingerprint
    target = bundled["float32"].target
    rounded = replace(target, weights="int8")  # type: ignore[type-var]
    assert own.weights_fingerprint.startswith(f"{target.fingerprint} with sha256:")
    assert rounded.fingerprint == f"{target.fingerprint} as int8"
