"""Non-autoregressive drafts: lossless whatever the drafter, the same with and without a cache, roles kept apart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, MarianMTModel

from latticebpd import Drafter, DraftTree, MixtureDrafter, State, TopBeta, generate
from latticebpd.drafters import MaskLattices
from latticebpd.drafters.masks.mask_filler import MaskFiller
from latticebpd.drafters.masks.mask_network import (
    DRAFTER_CONFIG,
    NonAutoregressiveModel,
    check_pair,
    load_verifier,
    masked_columns,
)
from latticebpd.verification.tree_positions import ByEmbedding
from latticebpd.verification.verifier_choice import tree_placement
from tests.helpers.drafters import ScriptedDrafter, gad_drafter, gad_paths_drafter, gad_tree_drafter
from tests.helpers.tiny_families import POSITIONS, VOCABULARY, tiny
from tests.helpers.translators import END, MASK, NEW, SOURCES, greedy, padded, verifier_of
from tests.helpers.trigrams import trigram

LAYOUTS = [(False, False), (True, False), (False, True), (True, True)]
"""Anchored, bidirectional."""


def random_drafter(
    family: str = "marian", seed: int = 7, block_size: int = 8, anchored: bool = False, bidirectional: bool = False
) -> NonAutoregressiveModel:
    return NonAutoregressiveModel(
        tiny(family, seed, eos=END), MASK, block_size, anchored=anchored, bidirectional=bidirectional
    )


def kinds(model: NonAutoregressiveModel) -> dict[str, Drafter]:
    return {
        "best tokens": gad_drafter(model),
        "block of 3": gad_drafter(model, block_size=3),
        "paths": gad_paths_drafter(model, trigram(), p=4, alpha=0.5, k=4),
        "tree": gad_tree_drafter(model, trigram(), num_nodes=14, k=5),
    }


@pytest.mark.parametrize("kind", ["best tokens", "block of 3", "paths", "tree"])
@pytest.mark.parametrize(("family", "seed"), [("marian", 2), ("bart", 0), ("bart", 1)])
def test_any_drafter_leaves_the_verifiers_text_as_it_is(family: str, seed: int, kind: str) -> None:
    verifier, (ids, mask) = verifier_of(family, seed), padded(SOURCES)
    expected = greedy(verifier, SOURCES)
    assert len(set(expected.flatten().tolist())) > 5
    for anchored, bidirectional in LAYOUTS:
        layout = {"anchored": anchored, "bidirectional": bidirectional}
        model = (
            random_drafter(family, **layout) if seed == 1 else NonAutoregressiveModel.like(verifier, MASK, 8, **layout)
        )
        out = generate(verifier, ids, kinds(model)[kind], attention_mask=mask, max_new_tokens=NEW)
        assert torch.equal(out.sequences, expected)
        assert len(out.accept_counts) <= (3 if kind == "block of 3" else 8) + 2  # at most k + 1 tokens a call


@pytest.mark.parametrize("family", ["marian", "bart"])
def test_an_untrained_anchored_drafter_says_first_what_its_verifier_would(family: str) -> None:
    verifiers, (ids, mask) = (verifier_of(family, seed) for seed in range(1, 9)), padded(SOURCES)
    verifier = next(model for model in verifiers if not (greedy(model, SOURCES) == MASK).any())  # no text holds a mask
    model = NonAutoregressiveModel.like(verifier, MASK, 8, anchored=True)
    for kind in ("best tokens", "block of 3"):
        out = generate(verifier, ids, kinds(model)[kind], attention_mask=mask, max_new_tokens=NEW, trace=True)
        assert out.trace is not None
        assert len(out.trace) > 4
        assert all(step.accepted for step in out.trace if step.tree.tokens.size)
    one = generate(
        verifier, ids, gad_drafter(model, block_size=1), attention_mask=mask, max_new_tokens=NEW
    )  # without any mask
    assert torch.equal(one.sequences, greedy(verifier, SOURCES))
    assert (
        one.num_calls
        < generate(
            verifier, ids, gad_drafter(random_drafter(family), 1), attention_mask=mask, max_new_tokens=NEW
        ).num_calls
    )


def test_a_verifier_of_another_kind_may_verify() -> None:
    verifier, (ids, mask) = tiny("t5", 4, eos=END), padded(SOURCES)
    out = generate(verifier, ids, gad_drafter(random_drafter()), attention_mask=mask, max_new_tokens=NEW)
    assert torch.equal(out.sequences, greedy(verifier, SOURCES))


def test_accepting_only_the_best_token_is_gad() -> None:
    verifier, (ids, mask) = verifier_of("bart", 1), padded(SOURCES)
    drafter = gad_drafter(NonAutoregressiveModel.like(verifier, MASK, 8))
    exact, tight, loose = (
        generate(verifier, ids, drafter, rule, attention_mask=mask, max_new_tokens=NEW).sequences
        for rule in (TopBeta(1, 9.0), TopBeta(5, 0.0), TopBeta(9, 50.0))
    )
    assert torch.equal(exact, greedy(verifier, SOURCES))
    assert torch.equal(tight, exact)
    assert not torch.equal(loose, exact)  # the rule does loosen, so the two above say something


def test_laxer_verification_never_accepts_less_of_a_draft() -> None:
    verifier = tiny("marian", 3, eos=None)
    draft = [int(token) for token in np.random.default_rng(0).integers(6, VOCABULARY, 6)]

    def first_call(rule: TopBeta) -> int:
        drafter = ScriptedDrafter(lambda state: DraftTree.from_paths([draft[: state.max_depth]]))
        out = generate(verifier, torch.tensor([SOURCES[0]]), drafter, rule, max_new_tokens=12, trace=True)
        assert out.trace is not None
        return len(out.trace[0].accepted)

    table = np.array(
        [[first_call(TopBeta(beta, tau)) for tau in (0.0, 1.0, 4.0, 16.0, 99.0)] for beta in (1, 3, 9, VOCABULARY)]
    )
    assert (np.diff(table, axis=0) >= 0).all()
    assert (np.diff(table, axis=1) >= 0).all()
    assert table[-1, -1] == len(draft)


def state(row: int, source: list[int], text: list[int], room: int = 8) -> State:
    return State(row, text, 1, torch.zeros(0), room, source)


def texts_of(lengths: list[int], seed: int = 3) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [[1, *rng.integers(6, VOCABULARY, length).tolist()] for length in lengths]


@pytest.mark.parametrize(("anchored", "bidirectional"), LAYOUTS)
@pytest.mark.parametrize("family", ["marian", "bart", "marian, scaled"])
def test_what_a_batch_has_read_already_changes_no_draft(family: str, anchored: bool, bidirectional: bool) -> None:
    model = random_drafter(family.split(",")[0]) if "scaled" not in family else scaled()
    model.anchored, model.bidirectional = anchored, bidirectional
    filler, texts = MaskFiller(model), texts_of([9, 12, 10, 11])
    rng = np.random.default_rng(0)
    read, rows = [2] * 4, [0, 1, 2, 3]
    for step in range(6):
        if step == 2:
            rows = [3, 1, 0]  # one text has ended, and the others come in another order
        if step == 4:
            rows = [0, 2]  # one that was left out comes back
        states = [state(row, SOURCES[row], texts[row][: read[row]]) for row in rows]
        together = filler.logits(states, 5)
        for line, single in zip(together, states, strict=True):
            torch.testing.assert_close(line, MaskFiller(model).logits([single], 5)[0], rtol=1e-4, atol=1e-4)
        for row in rows:
            read[row] = min(len(texts[row]), read[row] + int(rng.integers(1, 4)))


def scaled() -> NonAutoregressiveModel:
    config = tiny("marian").config
    config.scale_embedding, config.init_std = True, 0.15
    torch.manual_seed(0)
    return NonAutoregressiveModel(MarianMTModel(config), MASK, 8)


def test_a_model_that_scales_its_embeddings_is_verified_by_tree() -> None:
    assert isinstance(tree_placement(scaled().base), ByEmbedding)


def test_what_is_first_used_in_training_serves_alike_from_disk(tmp_path: Path) -> None:
    config = scaled().base.config
    config.dropout = 0.5
    model = NonAutoregressiveModel(MarianMTModel(config).train(), MASK, 8).train()
    ids, mask = padded([SOURCES[0]])
    model(model.encode(ids, mask), masked_columns([[1, 8, 9]], [0], 4, MASK))
    model.eval().save_pretrained(tmp_path)
    moment = [state(0, SOURCES[0], [1, 8, 9])]
    loaded = NonAutoregressiveModel.from_pretrained(tmp_path)
    torch.testing.assert_close(MaskFiller(model).logits(moment, 4), MaskFiller(loaded).logits(moment, 4))
    dropping = MarianMTModel(config).train()
    assert ByEmbedding(dropping).inputs_embeds_scale == ByEmbedding(dropping.eval()).inputs_embeds_scale


def test_a_new_text_in_a_known_row_is_read_from_its_beginning() -> None:
    model = random_drafter()
    filler = MaskFiller(model)
    filler.logits([state(0, SOURCES[0], [1, 8, 9])], 4)
    for source, text in ((SOURCES[1], [1, 8, 9, 7]), (SOURCES[1], [1, 10, 9, 7])):
        expected = MaskFiller(model).logits([state(0, source, text)], 4)
        torch.testing.assert_close(filler.logits([state(0, source, text)], 4), expected)


def keys_of_the_text(model: NonAutoregressiveModel, tokens: np.ndarray) -> tuple[Tensor, list[Tensor]]:
    """Hidden states at the masks, and every layer's keys of the text, of one pass with the given tokens."""
    columns = masked_columns([[1, 8, 9]], [0], 4, MASK)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    with torch.inference_mode():
        ids, mask = padded([SOURCES[0]])
        hidden = model(model.encode(ids, mask), replace(columns, tokens=tokens), cache)
    return hidden[0], [layer.keys[0, :, :3] for layer in cache.self_attention_cache.layers]


@pytest.mark.parametrize("family", ["marian", "bart"])
def test_masks_see_each_other_and_the_text_sees_no_mask(family: str) -> None:
    model = random_drafter(family)
    tokens = masked_columns([[1, 8, 9]], [0], 4, MASK).tokens
    hidden, keys = keys_of_the_text(model, tokens)
    for changed in (3, 6):  # the first mask, the last
        other = tokens.copy()
        other[0, changed] = 17
        hidden_now, keys_now = keys_of_the_text(model, other)
        assert ((hidden - hidden_now).abs().amax(dim=-1) > 1e-3).all()  # every mask sees it, earlier and later ones
        for before, after in zip(keys, keys_now, strict=True):
            assert torch.equal(before, after)
    other = tokens.copy()
    other[0, 2] = 17  # the text's last token
    hidden_now, keys_now = keys_of_the_text(model, other)
    assert ((hidden - hidden_now).abs().amax(dim=-1) > 1e-3).all()
    for before, after in zip(keys, keys_now, strict=True):
        assert torch.equal(before[:, :2], after[:, :2])  # causal: what is before it does not change


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_column_sees_what_its_layout_says(data: st.DataObject) -> None:
    texts = [[1, *range(6, 6 + length)] for length in data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))]
    slots, anchored, bidirectional = data.draw(st.integers(1, 4)), data.draw(st.booleans()), data.draw(st.booleans())
    read = [0 if bidirectional else data.draw(st.integers(0, len(text) - 1)) for text in texts]
    columns = masked_columns(texts, read, slots, MASK, None, anchored, bidirectional)
    places, masks = max(read), slots - anchored
    for row, (text, done) in enumerate(zip(texts, read, strict=True)):
        keys = [("text", i) if i < done else None for i in range(places)]
        keys += [("text", done + i) if done + i < len(text) else None for i in range(columns.new)] + [
            ("mask", i) for i in range(masks)
        ]
        for column, (kind, number) in enumerate(key or ("padding", 0) for key in keys[places:]):
            for key, seen in zip(keys, columns.visible[row, column], strict=True):
                if kind != "padding":
                    full = kind == "mask" or bidirectional
                    assert seen == (key is not None and (full or (key[0] == "text" and key[1] <= number))), (
                        row,
                        column,
                        key,
                    )
            assert columns.visible[row, column].any()  # padding too, or its attention would be no number


@pytest.mark.parametrize("family", ["marian", "bart"])
def test_a_bidirectional_drafters_text_sees_what_is_behind_it(family: str) -> None:
    model, (ids, mask) = random_drafter(family, bidirectional=True), padded([SOURCES[0]])
    columns = masked_columns([[1, 8, 9]], [0], 4, MASK, bidirectional=True)
    with torch.inference_mode():
        source = model.encode(ids, mask)
        every = replace(columns, slots=np.arange(7)[None])  # the text's columns too
        before = model(source, every)[0]
        for changed in (2, 3, 6):  # the text's last token, the first mask, the last
            tokens = every.tokens.copy()
            tokens[0, changed] = 17
            after = model(source, replace(every, tokens=tokens))[0]
            assert ((before - after).abs().amax(dim=-1) > 1e-4).all()  # every column, text and mask, earlier and later


@pytest.mark.parametrize("family", ["marian", "bart"])
def test_an_anchor_is_the_verifiers_own_column_and_sees_no_mask(family: str) -> None:
    verifier = verifier_of(family, 1)
    model = NonAutoregressiveModel.like(verifier, MASK, 8, anchored=True)
    text, (ids, mask) = [1, 8, 9], padded([SOURCES[0]])
    with torch.inference_mode():
        own = verifier(input_ids=ids, attention_mask=mask, decoder_input_ids=torch.tensor([text])).logits[0, -1]
        first = MaskFiller(model).logits([state(0, SOURCES[0], text)], 4)
        torch.testing.assert_close(first[0, 0], own + model.base.final_logits_bias[0] - verifier.final_logits_bias[0])
        columns = masked_columns([text], [0], 4, MASK, anchored=True)
        assert columns.tokens.tolist() == [[*text, MASK, MASK, MASK]]
        assert columns.positions.tolist() == [[0, 1, 2, 3, 4, 5]]
        assert columns.slots.tolist() == [[2, 3, 4, 5]]
        changed = replace(columns, tokens=np.array([[*text, MASK, MASK, 17]]))
        before, after = (model(model.encode(ids, mask), each)[0] for each in (columns, changed))
    assert torch.equal(before[0], after[0])
    assert ((before[1:] - after[1:]).abs().amax(dim=-1) > 1e-4).all()


@pytest.mark.parametrize(("anchored", "bidirectional"), LAYOUTS)
def test_texts_up_to_the_last_position_are_drafted_for(anchored: bool, bidirectional: bool) -> None:
    verifier, (ids, mask) = tiny("marian", 4), padded(SOURCES[:2])
    drafter = gad_drafter(
        NonAutoregressiveModel.like(verifier, MASK, 8, anchored=anchored, bidirectional=bidirectional)
    )
    out = generate(verifier, ids, drafter, attention_mask=mask, max_new_tokens=200)
    assert out.sequences.shape[1] == POSITIONS
    assert torch.equal(out.sequences, greedy(verifier, SOURCES[:2], POSITIONS - 1))


def test_drafts_end_where_their_best_token_ends_the_text() -> None:
    model = random_drafter()
    model.base.final_logits_bias[0, END] = 50.0
    drafts = gad_drafter(model).propose([state(0, SOURCES[0], [1, 8])])
    assert drafts[0].tokens.tolist() == [END]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_lattices_of_a_text_are_those_of_its_decode(bidirectional: bool) -> None:
    verifier, text = verifier_of("marian", 2), [1, 8, 3, 5, 2, 7]
    source = MaskLattices(random_drafter(bidirectional=bidirectional), 4, 5, verifier)
    lattices = [each for part, _ in source.lattices_of_text(text, range(4), SOURCES[0]) for each in part]
    assert len(lattices) == 4
    for position, lattice in enumerate(lattices):
        single = MaskLattices(source.model, 4, 5)
        (expected,) = single.lattices([state(0, SOURCES[0], text[: position + 2])])
        assert expected is not None
        slots = expected.slots  # a draft ends where its best token ends the text
        np.testing.assert_array_equal(lattice.tokens[:slots], expected.tokens)
        np.testing.assert_allclose(lattice.log_probs[:slots], expected.log_probs, atol=1e-4)
        assert lattice.slots == 5


def test_an_end_inside_a_draft_is_counted_once() -> None:
    free = ((seed, greedy(verifier_of("marian", seed, eos=None), SOURCES[:1])[0].tolist()) for seed in range(20))
    seed, end = next((seed, text[i]) for seed, text in free for i in range(4, NEW - 2) if text[i] not in text[:i])
    verifier = verifier_of("marian", seed, eos=end)  # its text ends where that token first comes
    text = greedy(verifier, SOURCES[:1])[0].tolist()
    assert 3 < len(text) < NEW
    assert text.count(end) == 1
    drafter = ScriptedDrafter(
        lambda state: DraftTree.from_paths([[*text[len(state.tokens) :], end, end][: min(4, state.max_depth)]])
    )
    out = generate(verifier, torch.tensor([SOURCES[0]]), drafter, max_new_tokens=NEW)
    assert out.sequences[0].tolist() == text
    assert out.num_tokens == len(text) - 1
    assert (
        int(np.arange(len(out.accept_counts)) @ out.accept_counts) == len(text) - 2
    )  # the prefill's token is in no call


def test_each_encoder_runs_once_per_batch() -> None:
    verifier, (ids, mask) = tiny("marian", 4), padded(SOURCES)
    model = random_drafter()
    generate(
        verifier, ids, gad_drafter(model), attention_mask=mask, max_new_tokens=3
    )  # finds out how the verifier can be called
    runs: list[str] = []
    for name, base in (("verifier", verifier), ("drafter", model.base)):
        base.get_encoder().register_forward_hook(lambda *_, name=name: runs.append(name))
    for early in (False, True):
        drafter = gad_drafter(model)
        if early:
            drafter.source.read(SOURCES)
        out = generate(verifier, ids, drafter, attention_mask=mask, max_new_tokens=NEW)
        assert out.num_passes > 1
        assert sorted(runs) == ["drafter", "verifier"]
        runs.clear()


def test_a_mixture_may_leave_rows_out_for_a_while() -> None:
    verifier, (ids, mask) = verifier_of("bart", 0), padded(SOURCES)
    first = gad_tree_drafter(random_drafter("bart", 1), None, num_nodes=6, k=3)
    second = gad_tree_drafter(NonAutoregressiveModel.like(verifier, MASK, 8), None, num_nodes=6, k=3)
    out = generate(verifier, ids, MixtureDrafter(first, second, 8, sure=0.3), attention_mask=mask, max_new_tokens=NEW)
    assert torch.equal(out.sequences, greedy(verifier, SOURCES))


def test_a_new_drafter_begins_with_the_verifiers_weights() -> None:
    verifier = tiny("marian", 1, eos=END)
    shallow, deep = (NonAutoregressiveModel.like(verifier, MASK, 8, layers).base for layers in (1, 3))
    own = verifier.state_dict()
    for drafter in (shallow, deep):
        shared = {name for name in drafter.state_dict() if name in own}
        embeddings = [drafter.get_input_embeddings().weight, drafter.get_output_embeddings().weight]
        assert torch.allclose(embeddings[0][MASK], own["model.shared.weight"].mean(dim=0), atol=1e-6)
        for embedding in embeddings:  # but for the mask's, which means nothing to a verifier
            embedding.data[MASK] = own["model.shared.weight"][MASK]
        assert all(torch.equal(drafter.state_dict()[name], own[name]) for name in shared)
    assert {name.split(".")[3] for name in shallow.state_dict() if "decoder.layers" in name} == {"0"}
    assert {name.split(".")[3] for name in set(deep.state_dict()) - set(own)} == {"2"}
    verifier.get_input_embeddings().weight.data.zero_()  # a copy: training the one does not change the other
    assert shallow.get_input_embeddings().weight.abs().sum() > 0


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path]:
    """A verifier's and a drafter's."""
    verifier = tiny("marian", 1, eos=END)
    verifier.save_pretrained(tmp_path / "verifier")
    NonAutoregressiveModel.like(verifier, MASK, 8, tokenizer_fingerprint="sha256:1").save_pretrained(
        tmp_path / "drafter"
    )
    return tmp_path / "verifier", tmp_path / "drafter"


def test_saved_drafters_draft_as_before(directories: tuple[Path, Path], tmp_path: Path) -> None:
    verifier, model = load_verifier(directories[0]), NonAutoregressiveModel.from_pretrained(directories[1])
    check_pair(verifier, model, "sha256:1")
    assert (model.mask_token_id, model.block_size, model.tokenizer_fingerprint) == (MASK, 8, "sha256:1")
    before = MaskFiller(NonAutoregressiveModel.like(verifier, MASK, 8)).logits([state(0, SOURCES[0], [1, 8])], 4)
    assert torch.equal(MaskFiller(model).logits([state(0, SOURCES[0], [1, 8])], 4), before)
    NonAutoregressiveModel.like(verifier, MASK, 8, anchored=True).save_pretrained(tmp_path / "anchored")
    assert NonAutoregressiveModel.from_pretrained(tmp_path / "anchored").anchored
    assert not model.anchored
    NonAutoregressiveModel.like(verifier, MASK, 8, bidirectional=True).save_pretrained(tmp_path / "bidirectional")
    loaded = NonAutoregressiveModel.from_pretrained(tmp_path / "bidirectional")
    assert loaded.bidirectional
    assert not torch.equal(MaskFiller(loaded).logits([state(0, SOURCES[0], [1, 8])], 4), before)
    ids, mask = padded(SOURCES)
    out = generate(verifier, ids, gad_drafter(loaded), attention_mask=mask, max_new_tokens=NEW)
    assert torch.equal(out.sequences, greedy(verifier, SOURCES))


def test_drafters_of_earlier_versions_read_their_text_causally(directories: tuple[Path, Path]) -> None:
    path = directories[1] / DRAFTER_CONFIG
    record = json.loads(path.read_text())
    for name in ("anchored", "bidirectional"):
        del record[name]
    path.write_text(json.dumps(record))
    model = NonAutoregressiveModel.from_pretrained(directories[1])
    assert (model.anchored, model.bidirectional) == (False, False)


def test_models_in_each_others_place_are_refused(directories: tuple[Path, Path]) -> None:
    verifier, drafter = directories
    with pytest.raises(
        ValueError, match=r"expected an autoregressive model as verifier, got a non-autoregressive drafter"
    ):
        load_verifier(drafter)
    with pytest.raises(ValueError, match=r"expected a drafter .* found an autoregressive model, which can only verify"):
        NonAutoregressiveModel.from_pretrained(verifier)
    with pytest.raises(ValueError, match=r"expected a drafter .* found none"):
        NonAutoregressiveModel.from_pretrained(verifier.parent)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"role": "verifier"}, "expected a non-autoregressive drafter, got 'verifier'"),
        ({"format_version": 9}, "expected format 1, got 9"),
        ({"mask_token_id": 2.5}, "expected mask_token_id as an integer of 64 bits, got 2.5"),
        ({"anchored": "yes"}, "expected anchored as true or false, got 'yes'"),
        ({"bidirectional": 1}, "expected bidirectional as true or false, got 1"),
        ({"mask_token_id": VOCABULARY}, "expected a mask token id below 23"),
        ({"mask_token_id": END}, "that does not end texts"),
        ({"block_size": 0}, "expected block_size >= 1"),
    ],
)
def test_a_damaged_description_is_refused(
    directories: tuple[Path, Path], change: dict[str, object], message: str
) -> None:
    path = directories[1] / DRAFTER_CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        NonAutoregressiveModel.from_pretrained(directories[1])
    path.write_text("{")
    with pytest.raises(ValueError, match=r"drafter\.json: expected a drafter's settings, got"):
        NonAutoregressiveModel.from_pretrained(directories[1])


def test_a_drafter_of_other_tokens_is_refused() -> None:
    verifier = tiny("marian", 1, eos=END)
    with pytest.raises(
        ValueError, match=r"expected a drafter with texts that end with tokens \[5\] \(the verifier's\), got \[6\]"
    ):
        check_pair(verifier, NonAutoregressiveModel(tiny("marian", 1, eos=6), MASK, 8))
    with pytest.raises(ValueError, match=r"expected a drafter with the vocabulary a \(the verifier's\), got b"):
        check_pair(verifier, NonAutoregressiveModel(tiny("marian", 1, eos=END), MASK, 8, "b"), "a")
    short = tiny("marian", 1, eos=END)
    short.config.max_position_embeddings = 50
    with pytest.raises(ValueError, match=r"expected a drafter of at least 96 positions \(the verifier's\), got 50"):
        check_pair(verifier, NonAutoregressiveModel(short, MASK, 8))
    with pytest.raises(
        ValueError,
        match=r"expected an encoder–decoder with embedded positions as drafter, such as Marian or BART, got t5",
    ):
        NonAutoregressiveModel(tiny("t5"), MASK, 8)
    with pytest.raises(ValueError, match=r"expected a block size from 1 to 8"):
        gad_drafter(random_drafter(), block_size=9)
