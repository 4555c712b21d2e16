"""Heads that know some of the tokens alone, and base models that are not the ones that heads were trained on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from latticebpd import SausageLattice, TreeDrafter, VanillaDrafter, generate
from latticebpd.drafters import HeadLattices, lattices_from_logits
from latticebpd.drafters.heads.blockwise import BlockwiseLM, new_heads
from latticebpd.drafters.heads.head_networks import HEAD_KINDS
from latticebpd.lattices.texts import Texts
from latticebpd.measuring.collect import CollectOptions, collect
from latticebpd.models.transformers.checkpoints import load_base
from tests.helpers.blockwise_models import tiny_model
from tests.helpers.tiny_families import tiny

SHORTLIST = np.array([0, 2, 3, 7, 11, 20, 22])


def short(kind: str, base_seed: int = 0) -> tuple[BlockwiseLM, BlockwiseLM]:
    """Heads over the shortlist, and the same over all tokens."""
    base = tiny_model(seed=base_seed).base
    models = []
    for shortlist in (SHORTLIST, None):
        heads = new_heads(base, kind, num_heads=4, shortlist=shortlist)
        with torch.no_grad():
            for number, (name, parameter) in enumerate(heads.named_parameters()):
                drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)) * 0.2
                if name != "output":
                    parameter.copy_(drawn)
        models.append(BlockwiseLM(base, heads, "sha256:of-a-vocabulary"))
    return models[0], models[1]


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_logits_of_a_shortlist_are_those_of_its_tokens(kind: str, tmp_path: Path) -> None:
    some, every = short(kind)
    hidden, following = torch.randn(3, 16, generator=torch.Generator().manual_seed(9)), torch.tensor([4, 0, 22])

    def logits(model: BlockwiseLM, slots: int | None = None) -> torch.Tensor:
        return model.head_logits(hidden, slots, following)

    for _ in range(2):  # with gradients, then with what is remembered
        torch.testing.assert_close(logits(some), logits(every)[..., SHORTLIST])
        with torch.inference_mode():
            torch.testing.assert_close(logits(some, 2), logits(every, 2)[..., SHORTLIST])
    some.save_pretrained(tmp_path, dtype=torch.float16)
    again = BlockwiseLM.from_pretrained(tmp_path)
    assert again.shortlist is not None
    assert again.shortlist.tolist() == SHORTLIST.tolist()
    assert (
        load_file(tmp_path / "latticebpd/heads.safetensors")["shortlist"].dtype == torch.int64
    )  # 20 would survive half precision, 20,001 not
    torch.testing.assert_close(logits(again), logits(some), atol=2e-2, rtol=2e-2)


def test_projection_follows_weights_that_are_changed_in_place() -> None:
    some, every = short("feed-forward")
    hidden = torch.randn(1, 16)
    with torch.no_grad():
        some.head_logits(hidden)
        some.base.get_output_embeddings().weight.mul_(2)
        torch.testing.assert_close(some.head_logits(hidden), every.head_logits(hidden)[..., SHORTLIST])


@pytest.mark.parametrize("family", ["t5", "marian", "bart"])
def test_shortlists_of_encoder_decoders_take_scale_and_bias_along(family: str) -> None:
    base = tiny(family, seed=3)
    hidden = torch.randn(2, base.config.hidden_size)
    if getattr(base, "final_logits_bias", None) is not None:
        base.final_logits_bias.normal_()
    some = BlockwiseLM(base, new_heads(base, "stern", 3, shortlist=SHORTLIST))
    every = BlockwiseLM(base, new_heads(base, "stern", 3))
    some.heads.load_state_dict(dict(every.heads.state_dict()) | {"shortlist": torch.from_numpy(SHORTLIST)})
    torch.testing.assert_close(some.head_logits(hidden), every.head_logits(hidden)[..., SHORTLIST])


def test_arcs_are_the_best_of_the_shortlist_by_their_own_ids_ties_to_the_lower() -> None:
    logits = torch.tensor([[[1.0, 3.0, 3.0, 0.0], [5.0, 5.0, 5.0, 5.0]]])
    (lattice,) = lattices_from_logits(logits, 2, np.array([4, 6, 9, 30]))
    assert lattice.tokens.tolist() == [[6, 9], [4, 6]]
    np.testing.assert_allclose(
        lattice.log_probs, torch.log_softmax(logits[0], -1).gather(1, torch.tensor([[1, 2], [0, 1]])), rtol=1e-6
    )
    (lattice,) = lattices_from_logits(logits, 9, np.array([4, 6, 9, 30]))
    assert sorted(lattice.tokens[0].tolist()) == [4, 6, 9, 30]


def test_lattices_of_tensors_are_those_of_arrays() -> None:
    torch.manual_seed(0)
    for logits in (
        torch.randn(3, 4, 700),
        torch.randint(0, 3, (3, 4, 700)).float(),
        torch.randn(4, 3, 700).transpose(0, 1),
    ):
        for k in (1, 16, 700):
            for lattice, inputs in zip(lattices_from_logits(logits, k), logits, strict=True):
                expected = SausageLattice.from_logits(inputs, k)
                assert np.array_equal(lattice.tokens, expected.tokens)
                np.testing.assert_allclose(lattice.log_probs, expected.log_probs, atol=2e-6)
    for number in (float("nan"), float("inf")):
        wrong = logits.clone()
        wrong[1, 2, 3] = number
        with pytest.raises(ValueError, match=r"slot 2.*log-probability"):
            lattices_from_logits(wrong, 4)


def test_text_is_the_models_own_and_only_tokens_of_the_shortlist_are_drafted() -> None:
    some, _ = short("feed-forward")
    expected = some.base.generate(torch.tensor([[3, 1, 4]]), do_sample=False, max_new_tokens=20)
    for drafter in (VanillaDrafter(some), TreeDrafter(some, None, num_nodes=12, k=5)):
        out = generate(some, [3, 1, 4], drafter, max_new_tokens=20, trace=True)
        assert torch.equal(out.sequences, expected)
        assert out.trace is not None
        drafted = {token for step in out.trace for token in step.tree.tokens.tolist()}
        assert drafted
        assert drafted <= set(SHORTLIST.tolist())
    lattices, _ = collect(HeadLattices(some), Texts.of_rows([[3, 1, 4]], [3]), CollectOptions(k=3, max_new_tokens=12))
    assert set(lattices.tokens.flatten().tolist()) <= set(SHORTLIST.tolist())


@pytest.mark.parametrize("shortlist", [[], [1, 1], [2, 1], [-1, 3], [22, 23]])
def test_impossible_shortlists_are_refused(shortlist: list[int]) -> None:
    with pytest.raises(ValueError, match="expected a shortlist"):
        new_heads(tiny_model().base, "feed-forward", 3, shortlist=np.array(shortlist, np.int64))


@pytest.mark.parametrize("version", [1, 2])
def test_earlier_formats_are_read(version: int, tmp_path: Path) -> None:
    model = tiny_model()
    model.save_pretrained(tmp_path)
    record = json.loads((tmp_path / "latticebpd/heads.json").read_text())
    for name in ("shortlist", "base_fingerprint", *(["kind"] if version == 1 else [])):
        del record[name]
    (tmp_path / "latticebpd/heads.json").write_text(json.dumps(record | {"format_version": version}))
    hidden = torch.randn(2, 16)
    torch.testing.assert_close(BlockwiseLM.from_pretrained(tmp_path).head_logits(hidden), model.head_logits(hidden))


@pytest.mark.parametrize("short", [0, -3, 2.5, "x", True, 10**12])
def test_damaged_shortlist_is_a_value_error(short: object, tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    record = json.loads((tmp_path / "latticebpd/heads.json").read_text())
    (tmp_path / "latticebpd/heads.json").write_text(json.dumps(record | {"shortlist": short}))
    with pytest.raises(ValueError, match=r"shortlist|does not fit|cannot be read"):
        BlockwiseLM.from_pretrained(tmp_path)


def test_weights_of_another_base_model_are_noticed(tmp_path: Path) -> None:
    tiny_model(seed=0).save_pretrained(tmp_path / "a")
    tiny_model(seed=1).save_pretrained(tmp_path / "b")
    BlockwiseLM.from_pretrained(tmp_path / "a")
    weights = load_file(tmp_path / "b/model.safetensors")
    save_file(weights, tmp_path / "a/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="expected the base model that the heads were trained on"):
        BlockwiseLM.from_pretrained(tmp_path / "a")
    # The same weights, written anew, in whatever order and precision, are the same model; heads may be put beside them.
    for dtype in (torch.float32, torch.float16):
        load_base(tmp_path / "b", dtype).save_pretrained(tmp_path / str(dtype))
        tiny_model(seed=1).save_heads(tmp_path / str(dtype), torch.float16)
        wanted = json.loads((tmp_path / "b/latticebpd/heads.json").read_text())["base_fingerprint"]
        assert json.loads((tmp_path / str(dtype) / "latticebpd/heads.json").read_text())["base_fingerprint"] == wanted
        BlockwiseLM.from_pretrained(tmp_path / str(dtype))
    weights = load_file(tmp_path / "b/model.safetensors")
    save_file(
        {name: weights[name] for name in reversed(weights)},
        tmp_path / "b/model.safetensors",
        metadata={"format": "pt", "by": "me"},
    )
    BlockwiseLM.from_pretrained(tmp_path / "b")
