"""BlockwiseLM: heads beside an untouched base model, saved and loaded."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from fst.fingerprint import vocabulary_fingerprint
from latticebpd import BlockwiseLM, FeedForwardHeads, LatticeDrafter, State, generate
from latticebpd.drafters import strategy_named
from latticebpd.drafters.drafter_files import DrafterFiles
from latticebpd.drafters.heads.blockwise import new_heads
from latticebpd.drafters.heads.head_family import HeadLattices
from latticebpd.drafters.heads.head_networks import Heads
from latticebpd.lattices.drafts import DraftTree
from latticebpd.models.catalogue import HEADS
from latticebpd.models.transformers.checkpoints import load_base
from latticebpd.scoring.rescoring import as_scorer
from lm_training.data.corpus import train_tokenizer
from tests.helpers.blockwise_models import tiny_model


def test_saved_model_round_trips_and_its_base_opens_with_transformers(model: BlockwiseLM, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    again = BlockwiseLM.from_pretrained(tmp_path)
    stock = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokens = torch.tensor([[1, 2, 3]])
    with torch.inference_mode():
        torch.testing.assert_close(again.base(tokens).logits, model.base(tokens).logits)
        torch.testing.assert_close(stock(tokens).logits, model.base(tokens).logits)
        hidden = torch.randn(4, 16)
        logits = again.head_logits(hidden)
        torch.testing.assert_close(logits, model.head_logits(hidden))
    assert logits.shape == (4, again.num_heads - 1, again.vocab_size)


def test_heads_next_to_the_model_as_earlier_versions_wrote_them_are_read_and_moved(
    model: BlockwiseLM, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path)
    for name in HEADS:
        (tmp_path / name).rename(tmp_path / Path(name).name)
    (tmp_path / "latticebpd").rmdir()
    files = DrafterFiles.of("heads", tmp_path, beside_target=True)
    assert [each.path.name for each in files.files] == ["heads.safetensors"]
    again = BlockwiseLM.from_pretrained(tmp_path)
    torch.testing.assert_close(again.heads.up, model.heads.up)
    name = files.name
    again.save_heads(tmp_path)
    assert not [*tmp_path.glob("heads.*")]
    assert DrafterFiles.of("heads", tmp_path, beside_target=True).name == name


def test_half_precision_file_is_half_the_size_and_loads_as_float32(model: BlockwiseLM, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "full")
    model.save_pretrained(tmp_path / "half", dtype=torch.float16)
    assert (tmp_path / "half/latticebpd/heads.safetensors").stat().st_size < 0.6 * (
        tmp_path / "full/latticebpd/heads.safetensors"
    ).stat().st_size
    half = BlockwiseLM.from_pretrained(tmp_path / "half")
    assert half.base.dtype == half.heads.up.dtype == torch.float32
    torch.testing.assert_close(half.heads.up, model.heads.up, atol=1e-3, rtol=1e-3)


def test_heads_of_8_bits_draft_what_float32_heads_draft(model: BlockwiseLM, tmp_path: Path) -> None:
    own = tied(model)
    own.save_pretrained(tmp_path)
    own.save_heads(tmp_path, torch.int8)
    again, hidden, following = BlockwiseLM.from_pretrained(tmp_path), torch.randn(4, 16), torch.arange(4)
    stored = load_file(tmp_path / "latticebpd/heads.safetensors")
    for name in ("up", "down", "transitions.up", "transitions.down"):
        exact, rounded = own.heads.state_dict()[name], again.heads.state_dict()[name]
        scale = exact.abs().amax(dim=-2, keepdim=True) / 127
        assert stored[name].dtype == torch.int8
        torch.testing.assert_close(stored[name].float(), (exact / scale).round())
        assert bool(((rounded - exact).abs() <= 0.51 * scale).all())
    with torch.inference_mode():
        wanted, logits = (each.head_logits(hidden, following=following) for each in (own, again))
    assert float((logits - wanted).norm() / wanted.norm()) < 0.02
    for change, message in (
        (
            {"up.scale": torch.ones(3, 1, 4)},
            r"heads\.safetensors: expected up\.scale \[\.\.\., 1, columns\] of a matrix",
        ),
        ({"other.scale": torch.ones(1)}, "expected other.scale"),
    ):
        save_file(stored | change, tmp_path / "latticebpd/heads.safetensors")
        with pytest.raises(ValueError, match=message):
            BlockwiseLM.from_pretrained(tmp_path)
    del stored["up.scale"]
    save_file(stored, tmp_path / "latticebpd/heads.safetensors")
    with pytest.raises(ValueError, match=r"does not fit latticebpd/heads\.json"):
        BlockwiseLM.from_pretrained(tmp_path)


@pytest.fixture(params=["feed-forward", "conditioned", "stern", "medusa"])
def heads(request: pytest.FixtureRequest, model: BlockwiseLM) -> Heads:
    return new_heads(model.base, request.param, num_heads=4, intermediate_size=3, num_layers=2)


def randomised(heads: Heads) -> Heads:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return heads


def test_new_heads_start_as_copies_of_the_base_model(heads: Heads, model: BlockwiseLM) -> None:
    inputs, output = torch.randn(2, heads.input_size), model.projection
    hidden = inputs[:, :16]
    torch.testing.assert_close(heads(inputs), hidden[:, None].expand(2, 3, 16))
    torch.testing.assert_close(heads.logits(inputs, output), output(hidden)[:, None].expand(2, 3, 23))


def test_every_head_at_once_equals_each_head_alone(heads: Heads, model: BlockwiseLM) -> None:
    randomised(heads)
    inputs, output = torch.randn(2, 5, heads.input_size), model.projection
    states, logits = heads(inputs), heads.logits(inputs, output)
    assert logits.shape == (2, 5, 3, 23)
    for index in range(3):
        single = heads.head_state(index, inputs.reshape(-1, heads.input_size))
        torch.testing.assert_close(single.view(2, 5, 16), states[:, :, index])


def test_logits_of_each_heads_own_rows(heads: Heads, model: BlockwiseLM) -> None:
    randomised(heads)
    inputs, output, chosen = torch.randn(5, heads.input_size), model.projection, ([0, 3], [], [4, 1, 1])
    every = heads.logits(inputs, output)
    states = heads.states_of([inputs[rows] for rows in chosen])
    expected = [every[row, index] for index, rows in enumerate(chosen) for row in rows]
    torch.testing.assert_close(heads.project(states, [2, 0, 3], output), torch.stack(expected))


def test_heads_of_every_kind_round_trip(heads: Heads, model: BlockwiseLM, tmp_path: Path) -> None:
    BlockwiseLM(model.base, randomised(heads), "sha256:x").save_pretrained(tmp_path)
    again = BlockwiseLM.from_pretrained(tmp_path)
    assert type(again.heads) is type(heads)
    assert again.tokenizer_fingerprint == "sha256:x"
    read = torch.randn(4, 16), None, torch.tensor([3, 0, 22, 3])
    torch.testing.assert_close(again.head_logits(*read), BlockwiseLM(model.base, heads).head_logits(*read))


def test_conditioned_heads_read_the_token_that_was_chosen(model: BlockwiseLM) -> None:
    heads = randomised(new_heads(model.base, "conditioned", num_heads=4, intermediate_size=3))
    own, output = BlockwiseLM(model.base, heads), model.base.get_output_embeddings().weight
    hidden, following = torch.randn(2, 5, 16), torch.randint(23, (2, 5))
    token = output[following]
    token = token / (token.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()
    for index in range(3):
        up, down = heads.up[index], heads.down[index]
        state = hidden + torch.nn.functional.silu(hidden @ up[:16] + token @ up[16:]) @ down
        logits = own.head_logits(hidden, following=following)[..., index, :]
        torch.testing.assert_close(logits, state @ output.T)
    with pytest.raises(ValueError, match="expected the tokens after hidden states, which these heads read, got none"):
        own.head_logits(hidden)


@pytest.mark.parametrize("kind", ["feed-forward", "conditioned"])
def test_heads_read_the_states_of_further_layers(model: BlockwiseLM, kind: str, tmp_path: Path) -> None:
    """Against the formula, in lattices of finished texts and of decodes, and after a round trip."""
    heads = randomised(new_heads(model.base, kind, num_heads=4, intermediate_size=3))
    wide, read = BlockwiseLM(model.base, heads), torch.randn(2, 5, 32)
    before = wide.head_logits(read[..., :16], following=torch.tensor(7).expand(2, 5))
    wide.add_layers([1])
    torch.testing.assert_close(wide.head_logits(read, following=torch.tensor(7).expand(2, 5)), before)
    randomised(heads)
    wide.save_pretrained(tmp_path)
    own, text = BlockwiseLM.from_pretrained(tmp_path), torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
    assert own.layers == (1,)
    with torch.no_grad():
        states = model.base.base_model(text[None], output_hidden_states=True)
    hidden, first = states.last_hidden_state[0], states.hidden_states[1][0]
    others = [first, *([model.base.get_output_embeddings().weight[text.roll(-1)]] if kind == "conditioned" else [])]
    inputs = [hidden, *(each / (each.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt() for each in others)]
    source = HeadLattices(own, k=5)
    assert source.needs_layers == (0,)
    ((of_text, _),) = source.lattices_of_text(text.tolist(), range(2, 6))
    for position, lattice in zip(range(2, 6), of_text, strict=True):
        read = torch.cat(inputs, dim=1)[position]
        expected = [
            hidden[position] + torch.nn.functional.silu(read @ up) @ down
            for up, down in zip(heads.up, heads.down, strict=True)
        ]
        log_probs = model.projection(torch.stack(expected)).log_softmax(-1).topk(5).values
        np.testing.assert_allclose(lattice.log_probs, log_probs.detach(), atol=1e-5)
        state = State(0, text[: position + 2].tolist(), 1, hidden[position], 3, layers=first[: position + 1])
        (drawn,) = source.lattices([state])
        assert drawn is not None
        np.testing.assert_allclose(drawn.log_probs, lattice.log_probs, atol=1e-5)
    checked = 0

    class Checked(LatticeDrafter):
        def propose(self, states: Sequence[State]) -> list[DraftTree]:
            nonlocal checked
            for each in states:
                read = model.base.base_model(torch.tensor([each.tokens[:-1]]), output_hidden_states=True)
                torch.testing.assert_close(each.layers, read.hidden_states[1][0], atol=1e-4, rtol=1e-4)
            checked += len(states)
            return super().propose(states)

    prompt = torch.tensor([[3, 1, 4], [2, 2, 7]])
    out = generate(own, prompt, Checked(source, strategy_named("16-tree", as_scorer(None))), max_new_tokens=24)
    assert torch.equal(out.sequences, model.base.generate(prompt, do_sample=False, max_new_tokens=24))
    assert checked > 20
    with pytest.raises(
        ValueError, match=r"expected states of layers \(0,\) \(from 0\), which heads read, got some without"
    ):
        source.lattices([State(0, [1, 7], 1, hidden[0], 3)])
    with pytest.raises(ValueError, match=r"expected heads that read no further layers, got some that read \(1,\)"):
        own.add_layers([2])
    with pytest.raises(ValueError, match="expected feed-forward or conditioned heads to read layers, got stern heads"):
        BlockwiseLM(model.base, new_heads(model.base, "stern", num_heads=4)).add_layers([1])
    for layers, message in (
        ([3], "expected layers from 1 to 2"),
        ([1, 2], "does not fit"),
        ("1", "to be a list of nu"),
    ):
        config = json.loads((tmp_path / "latticebpd/heads.json").read_text()) | {"layers": layers}
        (tmp_path / "latticebpd/heads.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=message):
            BlockwiseLM.from_pretrained(tmp_path)


def tied(model: BlockwiseLM, kind: str = "conditioned") -> BlockwiseLM:
    """Heads with transitions of random weights, over a shortlist."""
    heads = new_heads(model.base, kind, num_heads=4, intermediate_size=3, shortlist=np.arange(1, 23, 2))
    heads.add_transitions(5)
    return BlockwiseLM(model.base, randomised(heads))


@pytest.mark.parametrize("kind", ["feed-forward", "conditioned", "stern"])
def test_transitions_weigh_tokens_by_the_token_drafted_before(model: BlockwiseLM, kind: str) -> None:
    """Against the formula, path by path; marginals and masses are the heads'."""
    own, output = tied(model, kind), model.base.get_output_embeddings().weight
    hidden, following, slots, k = torch.randn(16), torch.tensor(7), 3, 4
    (lattice,) = HeadLattices(own, k).lattices([State(0, [1, 7], 1, hidden, slots)])
    assert lattice is not None
    with torch.no_grad():
        inputs = own.head_inputs(hidden, following)
        states, first = own.heads(inputs), own.head_logits(hidden, following=following).log_softmax(-1)
        assert own.heads.transitions is not None
        up, down = (own.heads.transitions.state_dict()[name][0] for name in ("up", "down"))
        for path in itertools.product(range(k), repeat=slots):
            tokens = lattice.tokens[range(slots), path].tolist()
            wanted = float(first[0, tokens[0] // 2])
            for slot in range(1, slots):
                token = output[tokens[slot - 1]]
                token = token / (token.square().mean() + 1e-6).sqrt()
                state = states[slot] + torch.nn.functional.silu(states[slot] @ up[:16] + token @ up[16:]) @ down
                scores = (output[lattice.tokens[slot].tolist()] @ state).log_softmax(-1)
                wanted += float(scores[path[slot]] + first[slot, lattice.tokens[slot] // 2].logsumexp(-1))
            weights = [lattice.log_probs[slot, arc] for slot, arc in enumerate(path)]
            assert lattice.transitions is not None
            ties = [lattice.transitions[slot, i, j] for slot, (i, j) in enumerate(itertools.pairwise(path))]
            assert sum(weights) + sum(ties) == pytest.approx(wanted, abs=1e-4)
    for source in (HeadLattices(own, 1), HeadLattices(own, k, bigram=False).with_shape(k)):
        (plain,) = source.lattices([State(0, [1, 7], 1, hidden, slots)])
        assert plain is not None
        assert plain.transitions is None
        np.testing.assert_array_equal(plain.tokens, lattice.tokens[:, : plain.k])
        np.testing.assert_allclose(plain.log_probs, first.gather(1, torch.tensor(plain.tokens // 2).long()), atol=1e-5)


def test_new_transitions_change_no_state_and_are_kept_with_their_heads(model: BlockwiseLM, tmp_path: Path) -> None:
    own = tied(model)
    assert own.heads.transitions is not None
    torch.nn.init.zeros_(own.heads.transitions.down)
    read = torch.randn(7, 32)
    torch.testing.assert_close(own.heads.transitions(read)[:, 0], read[:, :16])
    randomised(own.heads)
    own.save_pretrained(tmp_path)
    again = BlockwiseLM.from_pretrained(tmp_path)
    inputs = torch.randn(2, 3, 16), torch.randint(23, (2, 3, 4)), torch.randn(2, 3, 4)
    torch.testing.assert_close(again.pair_scores(*inputs), own.pair_scores(*inputs))
    for width in (6, -1, "wide"):
        config = json.loads((tmp_path / "latticebpd/heads.json").read_text()) | {"transition_size": width}
        (tmp_path / "latticebpd/heads.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match="does not fit" if width == 6 else "expected transition_size"):
            BlockwiseLM.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="expected heads without transitions"):
        own.heads.add_transitions(5)
    with pytest.raises(ValueError, match="of a kind that uses the model's output embedding, got medusa heads"):
        new_heads(model.base, "medusa", 4).add_transitions(5)


@pytest.mark.parametrize("system", ["vanilla", "chain", "16-best", "16-tree"])
def test_text_of_tied_drafts_is_the_base_models(model: BlockwiseLM, system: str) -> None:
    own, prompt = tied(model), torch.tensor([[3, 1, 4], [2, 2, 7]])
    drafter = LatticeDrafter(HeadLattices(own, 5), strategy_named(system, as_scorer(None)))
    expected = model.base.generate(prompt, do_sample=False, max_new_tokens=24)
    assert torch.equal(generate(own, prompt, drafter, max_new_tokens=24).sequences, expected)


@pytest.mark.parametrize("has_transitions", [False, True])
def test_lattices_of_texts_are_those_of_decodes(has_transitions: bool, heads: Heads, model: BlockwiseLM) -> None:
    if has_transitions and heads.kind != "medusa":
        heads.add_transitions(5)
    own, text = BlockwiseLM(model.base, randomised(heads)), [3, 1, 4, 1, 5, 9, 2, 6]
    source = HeadLattices(own, k=5)
    with torch.no_grad():
        states = model.base.base_model(torch.tensor([text])).last_hidden_state[0]
    ((lattices, _),) = source.lattices_of_text(text, range(2, 6))
    for position, lattice in zip(range(2, 6), lattices, strict=True):
        (expected,) = source.lattices([State(0, text[: position + 2], 1, states[position], 3)])
        assert expected is not None
        np.testing.assert_array_equal(lattice.tokens, expected.tokens)
        np.testing.assert_allclose(lattice.log_probs, expected.log_probs, atol=1e-5)
        assert (lattice.transitions is not None) == source.has_transitions
        if lattice.transitions is not None and expected.transitions is not None:
            np.testing.assert_allclose(lattice.transitions, expected.transitions, atol=1e-5)


def test_file_of_format_1_loads_as_feed_forward_heads(model: BlockwiseLM, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "latticebpd/heads.json").read_text())
    del config["kind"], config["model_type"]
    (tmp_path / "latticebpd/heads.json").write_text(json.dumps(config | {"format_version": 1}))
    again = BlockwiseLM.from_pretrained(tmp_path)
    hidden = torch.randn(4, 16)
    torch.testing.assert_close(again.head_logits(hidden), model.head_logits(hidden))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 5}, "expected heads of format 1 to 4, got 5; update latticebpd"),
        ({"kind": "eagle"}, "expected heads of a kind among feed-forward, conditioned, stern, medusa, got 'eagle'"),
        ({"num_heads": 10**15}, r"heads\.safetensors does not fit latticebpd/heads\.json"),
        ({"num_heads": 10**40}, "cannot be read"),
        ({"num_heads": -3}, "expected num_heads .* a number >= 1, got -3"),
        ({"num_heads": "nine"}, "expected num_heads .* a number >= 1, got 'nine'"),
        ({"kind": "stern"}, r"heads\.safetensors does not fit latticebpd/heads\.json"),
        ({"model_type": "gpt2"}, "expected a base model of type gpt2 .* got llama"),
        ({"hidden_size": 17}, r"heads\.safetensors does not fit latticebpd/heads\.json"),
    ],
)
def test_heads_file_that_lies_is_a_value_error(
    model: BlockwiseLM, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "latticebpd/heads.json").read_text())
    (tmp_path / "latticebpd/heads.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match=message):
        BlockwiseLM.from_pretrained(tmp_path)


def test_tokenizer_of_another_vocabulary_beside_the_model_is_refused(model: BlockwiseLM, tmp_path: Path) -> None:
    own, other = (
        train_tokenizer([text], vocab_size=270) for text in ("the cat sat on the mat", "ein Hund steht im Haus")
    )
    BlockwiseLM(model.base, model.heads, vocabulary_fingerprint(own.get_vocab())).save_pretrained(tmp_path)
    own.save(str(tmp_path / "tokenizer.json"))
    assert BlockwiseLM.from_pretrained(tmp_path).tokenizer_fingerprint is not None
    other.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(
        ValueError, match=r"tokenizer\.json: expected the vocabulary of the model's heads \(sha256:.*, got sha256:"
    ):
        BlockwiseLM.from_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json: expected a tokenizer\.json"):
        BlockwiseLM.from_pretrained(tmp_path)


def test_missing_directory_is_not_taken_for_a_name_of_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none: expected the directory of a model"):
        load_base(tmp_path / "none")


def test_unknown_kind_is_refused(model: BlockwiseLM) -> None:
    with pytest.raises(
        ValueError, match="expected heads of a kind among feed-forward, conditioned, stern, medusa, got 'hydra'"
    ):
        new_heads(model.base, "hydra", 4)


def test_heads_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"heads of hidden size 16 .* got 8"):
        BlockwiseLM(tiny_model().base, FeedForwardHeads(8, 3, 4))


@pytest.mark.parametrize("name", ["config.json", *HEADS, "model.safetensors"])
def test_missing_or_damaged_file_is_a_value_error(model: BlockwiseLM, tmp_path: Path, name: str) -> None:
    model.save_pretrained(tmp_path)
    full = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=str(tmp_path)):
        BlockwiseLM.from_pretrained(tmp_path)
    (tmp_path / name).write_bytes(full[: len(full) // 2])
    with pytest.raises(ValueError, match=str(tmp_path)):
        BlockwiseLM.from_pretrained(tmp_path)


def test_heads_that_do_not_fit_the_base_are_refused(model: BlockwiseLM, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "latticebpd/heads.json").read_text())
    (tmp_path / "latticebpd/heads.json").write_text(json.dumps(config | {"vocab_size": 99}))
    with pytest.raises(ValueError, match=r"base model of 99 tokens .* got 23"):
        BlockwiseLM.from_pretrained(tmp_path)
    (tmp_path / "latticebpd/heads.json").write_text(json.dumps(config | {"num_heads": 7}))
    with pytest.raises(ValueError, match=r"heads\.safetensors does not fit latticebpd/heads\.json"):
        BlockwiseLM.from_pretrained(tmp_path)
