"""DFlash 2 and LiLiCorr against independent passes written from their formulas; their lattices against all paths."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from latticebpd import generate
from latticebpd.drafters import BestTree, BlockLattices, LatticeDrafter, MarkovAndConfidenceHeads, State, strategy_named
from latticebpd.drafters.block.block_lattices import block_lattices
from latticebpd.drafters.block.block_network import BlockDrafter, anchored_blocks
from latticebpd.drafters.block.lattice_reranker import LatticeReranker, RerankerConfig
from latticebpd.drafters.strategies import BeamTree, GreedyChain
from latticebpd.lattices.drafts import DraftTree
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.scoring.rescoring import as_scorer
from tests.helpers.block_drafters import VOCAB, tiny_drafter, tiny_target
from tests.helpers.trigrams import trigram

CONVOLUTIONS = {"conv_kernel_size": 2, "conv_group_size": 8}
SELECTOR = CONVOLUTIONS | {"selector_rank": 5, "selector_top_k": 4}
NARROW = RerankerConfig(3, 16, 7, 2, 4, 1.5, 8.0, 1e-4)
KINDS: dict[str, dict[str, Any]] = {
    "selector": SELECTOR,
    "reduced selector": SELECTOR | {"draft_tokens": [1, 3, 4, 7, 8, 11, 12, 19, 20, 25, 29]},
    "reranker": {"reranker": NARROW},
    "reranker of the model's width": {"reranker": RerankerConfig(4, 0, 6, 1, 2, 2.0, 5.0, 1e-4)} | CONVOLUTIONS,
}


@torch.inference_mode()
def drawn(kind: str, k: int = 3, seed: int = 0, rows: int = 60) -> tuple[BlockDrafter, Tensor, Tensor, Tensor, Any]:
    """A drafter, slot states, anchors and contexts of some rows, and their lattices."""
    target = tiny_target()
    drafter = tiny_drafter(target, block_size=4, seed=seed + 1, **KINDS[kind])
    torch.manual_seed(seed)
    hidden, anchors, contexts = 0.3 * torch.randn(rows, 3, 24), (torch.arange(rows) + 5) % VOCAB, torch.randn(rows, 24)
    contexts[0] = 0.0  # a text of one token
    output, embedding = drafter.output(TransformersModel.of(target).projection), target.get_input_embeddings().weight
    arguments = (drafter, output, hidden, anchors.tolist(), k, MarkovAndConfidenceHeads(), contexts, embedding)
    return drafter, hidden, anchors, contexts, block_lattices(*arguments)


def softmaxes(kind: str, row: int, k: int = 3) -> tuple[list[list[int]], Any]:
    """By the formulas, one step at a time: each slot's candidates, and ``step(s, i, j)``, the log-probability of
    candidate j of slot s after candidate i of the slot before."""
    drafter, hidden, anchors, contexts, _ = drawn(kind, k)
    target = tiny_target()
    vocabulary = list(range(VOCAB)) if drafter.draft_tokens is None else drafter.draft_tokens.tolist()
    logits = hidden[row] @ target.get_output_embeddings().weight[vocabulary].T
    best = [sorted(range(len(vocabulary)), key=lambda at: (-float(slot[at]), at))[:k] for slot in logits]
    tokens = [[vocabulary[at] for at in slot] for slot in best]
    if drafter.candidate_selector is not None:
        scores = selector_scores(drafter, hidden[row], int(anchors[row]), tokens, logits, best)
    else:
        log_probs = torch.stack([slot.log_softmax(-1)[at] for slot, at in zip(logits, best, strict=True)])
        embedded = target.get_input_embeddings().weight[torch.tensor(tokens)]
        assert drafter.lilicorr is not None
        scores = reranker_scores(drafter.lilicorr, embedded, log_probs, hidden[row], contexts[row])
    return tokens, lambda slot, before, arc: float(scores(slot, before).log_softmax(-1)[arc])


def selector_scores(
    drafter: BlockDrafter, hidden: Tensor, anchor: int, tokens: list[list[int]], logits: Tensor, best: list[list[int]]
) -> Any:
    weights = {name: tensor.detach() for name, tensor in drafter.state_dict().items()}
    p, s, w = (
        weights[f"candidate_selector.{name}"]
        for name in ("predecessor_codebook", "successor_codebook", "hidden_projection.weight")
    )

    def scores(slot: int, before: int) -> Tensor:
        previous = tokens[slot - 1][before] if slot else anchor
        return torch.stack([
            logits[slot][at] + (p[previous] * (w @ hidden[slot]) * s[token]).sum()
            for token, at in zip(tokens[slot], best[slot], strict=True)
        ])  # fmt: skip

    return scores


def reranker_scores(head: LatticeReranker, embedded: Tensor, log_probs: Tensor, hidden: Tensor, context: Tensor) -> Any:
    """By PyTorch's own attention, point by point."""
    w = {name: tensor.detach() for name, tensor in head.state_dict().items()}

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def rms(name: str, x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w[f"{name}.weight"]

    slots, k = log_probs.shape
    rows = []
    for s, c in itertools.product(range(slots), range(k)):
        value = log_probs[s, c]
        phi = torch.tensor([value, value.exp(), value - log_probs[s].max(), c / (k - 1), float(c == 0)])
        phi = (phi - phi.mean()) / (phi.var(unbiased=False) + 1e-5).sqrt()
        phi = phi * w["feature_mlp.0.weight"] + w["feature_mlp.0.bias"]
        x = linear("feature_mlp.3", F.silu(linear("feature_mlp.1", phi))) + linear("pass_hidden_proj", hidden[s])
        x = x + (linear("token_proj", embedded[s, c]) if "token_proj.weight" in w else embedded[s, c])
        rows.append(x + w["slot_embedding"][0, 0, s, 0] + w["rank_embedding"][0, 0, 0, c])
    points, at = torch.stack(rows), torch.arange(slots * k) // k
    distance = at[:, None] - at
    bias = w["relative_slot_bias"][:, distance + slots] + w["same_slot_bias"][:, None, None] * (distance == 0)
    for index in range(len(head.layers)):
        layer = f"layers.{index}"
        stock = nn.MultiheadAttention(points.shape[1], head.config.num_heads, batch_first=True)
        own = {name.removeprefix(f"{layer}.attn."): each for name, each in w.items() if f"{layer}.attn." in name}
        stock.load_state_dict(own)
        x = rms(f"{layer}.attn_norm", points)[None]
        points = points + stock(x, x, x, attn_mask=bias, need_weights=False)[0][0]
        points = points + linear(f"{layer}.mlp.2", F.silu(linear(f"{layer}.mlp.0", rms(f"{layer}.mlp_norm", points))))
    points = rms("output_norm", points)
    anchor = rms("anchor_norm", linear("context_proj", context) if context.any() else w["context_proj.bias"] * 0)

    def unit(x: Tensor) -> Tensor:
        return x / max(float(x.norm()), head.config.vector_eps)

    g = [F.silu(linear("factor_input_proj", torch.cat([x, anchor, x * anchor]))) for x in points]

    def scores(slot: int, before: int) -> Tensor:
        out = linear("out_head", g[(slot - 1) * k + before]) if slot else linear("anchor_out_head", anchor)
        into = [unit(linear("in_head", g[slot * k + arc])) for arc in range(k)]
        return head.config.logit_scale * torch.stack([unit(out) @ each for each in into])

    return scores


def all_paths(kind: str, row: int, k: int = 3) -> dict[tuple[int, ...], float]:
    """The log-probability of every prefix of every path."""
    tokens, step = softmaxes(kind, row, k)
    log_probs: dict[tuple[int, ...], float] = {}
    for length in range(1, len(tokens) + 1):
        for arcs in itertools.product(range(k), repeat=length):
            steps = (step(slot, arcs[slot - 1] if slot else 0, arc) for slot, arc in enumerate(arcs))
            log_probs[tuple(tokens[slot][arc] for slot, arc in enumerate(arcs))] = sum(steps)
    return log_probs


def prefixes(tree: DraftTree) -> list[tuple[int, ...]]:
    return [tuple(int(tree.tokens[node]) for node in tree.path(at)) for at in range(len(tree))]


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_paths_weigh_what_an_independent_pass_says(kind: str) -> None:
    drafter, hidden, _, _, lattices = drawn(kind)
    for row in (0, 4):
        lattice, (tokens, step) = lattices[row], softmaxes(kind, row)
        assert lattice.tokens.tolist() == tokens
        output = drafter.output(TransformersModel.of(tiny_target()).projection)
        probabilities = output(hidden[row]).softmax(-1).sort(-1, descending=True).values[:, :3].sum(-1)
        np.testing.assert_allclose(np.exp(lattice.log_probs).sum(1), probabilities, rtol=1e-4)  # the drafter's mass
        for arcs in itertools.product(range(3), repeat=3):
            weight = sum(float(lattice.log_probs[slot, arc]) for slot, arc in enumerate(arcs))
            weight += sum(float(lattice.transitions[slot, arcs[slot], arcs[slot + 1]]) for slot in range(2))
            expected = sum(step(slot, arcs[slot - 1], arc) for slot, arc in enumerate(arcs))
            assert weight - float(probabilities.log().sum()) == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_walk_beam_and_exact_searches_are_those_over_all_paths(kind: str) -> None:
    lattices, every = drawn(kind)[-1], as_scorer(None)
    chains = [tuple(chain.tokens.tolist()) for chain in GreedyChain().draft(lattices, [[]] * len(lattices))]
    firsts = [tuple(best.tokens[0].tolist()) for best in every.paths(lattices, [[]] * len(lattices), 1)]
    differing = [row for row, chain in enumerate(chains) if chain != firsts[row]]
    assert differing  # a walk does not always find the best path
    for row in (0, 1, *differing[:2]):
        lattice = lattices[row]
        paths = all_paths(kind, row)
        full = {path: weight for path, weight in paths.items() if len(path) == 3}
        tokens, _ = softmaxes(kind, row)
        walk: tuple[int, ...] = ()
        for slot in range(3):  # the authors' own draft
            walk = max(((*walk, token) for token in tokens[slot]), key=lambda path: paths[path])
        assert chains[row] == walk
        (best,) = every.paths([lattice], [[]], 5)
        expected = sorted(full, key=lambda path: -full[path])
        assert [tuple(path) for path in best.tokens.tolist()] == expected[:5]
        (tree,) = BestTree(every, 9).draft([lattice], [[]])
        assert prefixes(tree) == sorted(paths, key=lambda path: -paths[path])[:9]
        np.testing.assert_allclose(tree.log_probs, [paths[path] for path in prefixes(tree)], atol=2e-4)
        kept: list[tuple[int, ...]] = [()]
        beam: list[tuple[int, ...]] = []
        for slot in range(3):
            longer = [(*path, token) for path in kept for token in tokens[slot]]
            kept = sorted(longer, key=lambda path: -paths[path])[:2]
            beam += kept
        assert prefixes(BeamTree(2).draft([lattice], [[]])[0]) == sorted(beam, key=lambda path: -paths[path])
        assert prefixes(BeamTree(2, 4).draft([lattice], [[]])[0]) == sorted(beam, key=lambda path: -paths[path])[:4]


@pytest.mark.parametrize("kind", ["selector", "reranker"])
@torch.inference_mode()
def test_an_ngram_is_composed_on_top_exactly(kind: str) -> None:
    lm, alpha, context = trigram(VOCAB), 0.7, [3, 9]
    for row, lattice in enumerate(drawn(kind)[-1][:4]):
        paths, (tokens, _) = all_paths(kind, row), softmaxes(kind, row)
        full = {
            path: weight + alpha * sum(lm.log_prob(token, [*context, *path[:at]]) for at, token in enumerate(path))
            for path, weight in paths.items()
            if len(path) == 3
        }
        best = as_scorer(lm, alpha).paths([lattice], [context], 4)[0]
        assert [tuple(path) for path in best.tokens.tolist()] == sorted(full, key=lambda path: -full[path])[:4]
        chained: dict[tuple[int, ...], float] = {(): 0.0}
        for path in paths:  # shorter ones come first
            scores = {
                token: paths[(*path[:-1], token)] + alpha * lm.log_prob(token, [*context, *path[:-1]])
                for token in tokens[len(path) - 1]
            }
            chained[path] = chained[path[:-1]] + scores[path[-1]] - float(np.logaddexp.reduce(list(scores.values())))
        del chained[()]
        (tree,) = BestTree(as_scorer(lm, alpha), 8).draft([lattice], [context])
        assert prefixes(tree) == sorted(chained, key=lambda path: -chained[path])[:8]


@torch.inference_mode()
def test_convolutions_are_those_of_the_formula_and_stay_in_their_block() -> None:
    drafter = tiny_drafter(tiny_target(), block_size=4, conv_kernel_size=3, conv_group_size=8)
    conv = drafter.layers[0].attention_conv  # type: ignore[union-attr]
    columns = torch.randn(2, 8, 24)  # two blocks
    kernels = conv.kernels(columns)
    delta = (columns @ conv.kernel_projection.weight.T).view(2, 8, 2, 3, 3)
    for side, row, column, channel in itertools.product(range(2), range(2), range(8), (0, 7, 8, 23)):
        expected = sum(
            (conv.base_kernel[side, tap, channel] + delta[row, column, side, tap, channel // 8])
            * columns[row, column - tap, channel]
            for tap in range(3)
            if column % 4 >= tap
        )
        assert float(conv(columns, kernels[side])[row, column, channel]) == pytest.approx(float(expected), abs=1e-4)


@torch.inference_mode()
def test_convolutions_wrap_attention_and_mlp() -> None:
    """A layer by hand, from stock parts."""
    drafter = tiny_drafter(tiny_target(), layers=1, block_size=4, **CONVOLUTIONS)
    layer: Any = drafter.layers[0]
    positions, visible = anchored_blocks(torch.tensor([[2]]), 4, 2, False)
    states, block = torch.randn(1, 2, 24), torch.randn(1, 4, 24)
    columns = drafter(states, torch.arange(2)[None], block, positions, visible)

    def wrapped(conv: Any, x: Tensor, sublayer: Any) -> Tensor:
        before, after = conv.kernels(x)
        return conv(sublayer(conv(x, before)), after)

    seen: list[Tensor] = []
    hook = layer.self_attn.register_forward_hook(lambda module, args, output: seen.append(output[0]))
    drafter(states, torch.arange(2)[None], block, positions, visible)
    hook.remove()
    block = block + wrapped(layer.attention_conv, layer.input_layernorm(block), lambda x: seen[0])
    block = block + wrapped(layer.mlp_conv, layer.post_attention_layernorm(block), layer.mlp)
    torch.testing.assert_close(columns, drafter.norm(block))


def test_new_convolutions_change_nothing() -> None:
    target = tiny_target()
    plain = tiny_drafter(target, block_size=4)
    new = BlockDrafter(tiny_drafter(target, block_size=4, **CONVOLUTIONS).config)
    assert all("_conv." in name for name in new.load_state_dict(plain.state_dict(), strict=False).missing_keys)
    positions, visible = anchored_blocks(torch.tensor([[2, 3]]), 4, 3, False)
    inputs = (torch.randn(1, 3, 48), torch.arange(3)[None], torch.randn(1, 8, 24), positions, visible)
    with torch.inference_mode():
        torch.testing.assert_close(new(*inputs), plain(*inputs))


@torch.inference_mode()
def test_a_window_hides_what_is_further_back() -> None:
    target, window = tiny_target(), 3
    plain = tiny_drafter(target, layers=1, block_size=4)
    sliding = tiny_drafter(target, layers=1, block_size=4, sliding_layers=(0,), sliding_window=window)
    positions, visible = anchored_blocks(torch.tensor([[6]]), 4, 6, False)
    states, block = torch.randn(1, 6, 24), torch.randn(1, 4, 24)
    keys = torch.arange(10)
    near = visible & (positions[..., None] - keys < window)
    assert 0 < int(near.sum()) < int(visible.sum())
    inputs = (states, torch.arange(6)[None], block, positions)
    torch.testing.assert_close(sliding(*inputs, visible), plain(*inputs, near))


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_those_of_generate_and_lattices_those_of_the_whole_text(kind: str) -> None:
    target = tiny_target(seed=3)
    drafter = tiny_drafter(target, block_size=5, **KINDS[kind])
    source, prompt = BlockLattices(drafter, target, 8), [5, 9, 12, 4]
    assert source.has_transitions
    assert source.k == drafter.config.max_candidates
    expected = target.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=14)[0].tolist()
    for name in ("chain", "3-beam", "2-best", "12-tree"):
        run = LatticeDrafter(source, strategy_named(name, trigram(VOCAB), 0.5))
        out = generate(target, [prompt], run, max_new_tokens=14, trace=True)
        assert [token for block in out.blocks(0) for token in block] == expected[len(prompt) :]
    with torch.inference_mode():
        states = target(input_ids=torch.tensor([expected]), output_hidden_states=True).hidden_states
    layers = torch.cat([states[layer + 1][0] for layer in source.needs_layers], dim=-1)
    of_text = [each for part, _ in source.lattices_of_text(expected, range(2, 7)) for each in part]
    for position, other in zip(range(2, 7), of_text, strict=True):
        text = expected[: position + 2]
        state = State(0, text, 2, None, 9, (), layers[: len(text) - 1])
        (lattice,) = BlockLattices(drafter, target, 8).lattices([state])
        assert lattice is not None
        assert np.array_equal(lattice.tokens, other.tokens)
        np.testing.assert_allclose(lattice.transitions, other.transitions, atol=1e-3)
        (short,) = BlockLattices(drafter, target, 8, slots=2).lattices([state])
        first = lattice.first_slots(2)  # a reranker reads the whole lattice whatever is asked for
        assert short is not None
        assert np.array_equal(short.tokens, first.tokens)
        np.testing.assert_allclose(short.transitions, first.transitions, atol=1e-5)


@torch.inference_mode()
def test_left_out_they_leave_plain_marginals_and_8_bits_leave_nearly_the_same() -> None:
    target = tiny_target()
    output = TransformersModel.of(target).projection
    for kind in KINDS:
        drafter, hidden, anchors, contexts, lattices = drawn(kind)
        plain = block_lattices(
            drafter, drafter.output(output), hidden, anchors.tolist(), 3, MarkovAndConfidenceHeads(bigram=False)
        )
        for one, other in zip(plain, lattices, strict=True):
            assert one.transitions is None
            assert np.array_equal(one.tokens, other.tokens)
        drafter.use_int8()
        embedding = target.get_input_embeddings().weight
        arguments = (
            drafter,
            drafter.output(output),
            hidden,
            anchors.tolist(),
            3,
            MarkovAndConfidenceHeads(),
            contexts,
            embedding,
        )
        for rounded, lattice in zip(block_lattices(*arguments), lattices, strict=True):
            if np.array_equal(rounded.tokens, lattice.tokens):
                np.testing.assert_allclose(rounded.transitions, lattice.transitions, atol=1.5)


def test_a_reranker_refuses_lattices_of_another_shape() -> None:
    drafter = drawn("reranker")[0]
    assert drafter.lilicorr is not None
    wanted = r"expected 3 slots of at most 3 candidates \(lilicorr_candidate_topk\), got 3 of 4"
    with pytest.raises(ValueError, match=wanted):
        drafter.lilicorr(torch.zeros(1, 3, 4, 24), torch.zeros(1, 3, 4), torch.zeros(1, 3, 24), torch.zeros(1, 24))


def test_beams_end_where_transitions_do() -> None:
    lattice = SausageLattice([[4, 7], [2, 9]], np.log([[0.6, 0.4], [0.5, 0.5]]), [[[-np.inf, -np.inf], [0.0, -np.inf]]])
    (tree,) = BeamTree(2).draft([lattice], [[]])
    assert prefixes(tree) == [(4,), (7,), (7, 2)]
    np.testing.assert_allclose(np.exp(tree.log_probs), [0.6, 0.4, 0.4])
    for seed in range(50):  # a certain continuation is as probable as its prefix, whatever the rounding
        lattice = SausageLattice([[0, 1], [0, 1]], np.random.default_rng(seed).normal(size=(2, 2)), lattice.transitions)
        (tree,) = BeamTree(2).draft([lattice], [[]])
        assert prefixes(tree)[-1] == (1, 0) or prefixes(tree)[:2] == [(1,), (1, 0)]
