"""Lattices of data sets: shards that survive being killed, entropies, texts, and replays that are decodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latticebpd import LatticeSet, PathsDrafter, ReferenceDrafter, TreeDrafter, VanillaDrafter, generate
from latticebpd.drafters import BlockLattices, HeadLattices, State
from latticebpd.drafters.heads.blockwise import BlockwiseLM, new_heads
from latticebpd.drafters.lattice_drafter import OracleDrafter
from latticebpd.lattices.drafts import DraftTree
from latticebpd.lattices.sausage import PADDING, SausageLattice
from latticebpd.lattices.shards import SETTINGS, lattice_directory, shard_files, texts_of
from latticebpd.lattices.texts import Texts
from latticebpd.measuring import blocks, compare, tally
from latticebpd.measuring.collect import CollectOptions, collect, collect_shards
from latticebpd.measuring.lattice_files import num_lattices, without_prompts
from latticebpd.measuring.model_decodes import decode
from tests.helpers.block_drafters import tiny_drafter, tiny_target
from tests.helpers.blockwise_models import tiny_model
from tests.helpers.drafters import oracle_drafter
from tests.helpers.tiny_families import tiny
from tests.helpers.translators import verifier_of
from tests.helpers.trigrams import trigram

PROMPTS = [[3, 1, 4, 1, 5], [2, 7], [9], [1, 1, 2, 3, 5, 8], [6, 2]]
OPTIONS = CollectOptions(k=4, max_new_tokens=20, context_length=3)


def data(prompts: list[list[int]] = PROMPTS) -> Texts:
    return Texts.of_rows(prompts, [len(prompt) for prompt in prompts])


@pytest.fixture(scope="module")
def collected(model: BlockwiseLM) -> tuple[LatticeSet, Texts]:
    return collect(HeadLattices(model), data(), OPTIONS, batch_size=2)


def test_texts_are_the_models_own(model: BlockwiseLM, collected: tuple[LatticeSet, Texts]) -> None:
    for (text, prompt_length), prompt in zip(collected[1].items(), PROMPTS, strict=True):
        assert text[:prompt_length] == prompt
        reference = model.base.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=20)
        assert text == reference[0].tolist()


@pytest.mark.parametrize("eos", [None, 4])
def test_a_walk_through_lattices_makes_the_calls_of_a_decode(eos: int | None) -> None:
    """Also where texts end by themselves, and up to the limit."""
    model = tiny_model(seed=3, eos_token_id=eos)
    lattices, texts = collect(HeadLattices(model), data(), OPTIONS)
    assert any(text[-1] == eos for text, _ in texts.items()) == (eos is not None)
    lm = trigram()
    comparison = compare([lattices], ["1-best", "3-best", "8-tree"], lm, 0.7)
    drafters = {
        "vanilla": lambda _: VanillaDrafter(model),
        "1-best": lambda _: PathsDrafter(model, lm, 1, 0.7, 4),
        "3-best": lambda _: PathsDrafter(model, lm, 3, 0.7, 4),
        "8-tree": lambda _: TreeDrafter(model, lm, 8, 0.7, 4),
        "oracle": lambda continuation: oracle_drafter(model, continuation, 4),
    }
    decoded = decode(model, texts.items(), drafters)
    assert decoded.names == comparison.systems
    assert decoded.tokens.tolist() == comparison.decode_totals[:, 0].tolist()
    assert decoded.differing.tolist() == [0] * 5
    assert decoded.texts == len(texts)
    assert decoded.calls[[0, 4]].tolist() == comparison.decode_totals[[0, 4], 1].tolist()
    # Close to the limit a decode rescores lattices cut to what may still be written, so its last draft may be another
    # one.
    assert (abs(decoded.calls - comparison.decode_totals[:, 1]) <= len(texts)).all()


def test_drafts_may_be_deeper_than_the_heads(model: BlockwiseLM, collected: tuple[LatticeSet, Texts]) -> None:
    _, texts = collected
    decoded = decode(
        model,
        texts.items(),
        {"vanilla": lambda _: VanillaDrafter(model), "right": lambda text: ReferenceDrafter(text, 12)},
    )
    assert decoded.counts.shape == (2, 14)
    assert decoded.counts[1, 13] > 0
    assert decoded.differing.tolist() == [0, 0]


def test_decoded_oracle_by_arcs(model: BlockwiseLM, collected: tuple[LatticeSet, Texts]) -> None:
    lattices, texts = collected
    oracles = {f"k={k}": partial(OracleDrafter, HeadLattices(model, k)) for k in (1, 2, 4)}
    decoded = decode(model, texts.items(), oracles)
    assert decoded.calls.tolist() == tally([lattices], [1, 2, 4]).decode_totals[:, 0, 1].tolist()
    assert decoded.counts.sum(axis=1).tolist() == decoded.calls.tolist()
    with pytest.raises(ValueError, match="at least one text"):
        decode(model, [], {})


def test_a_text_of_another_model_is_noticed(model: BlockwiseLM, collected: tuple[LatticeSet, Texts]) -> None:
    decoded = decode(tiny_model(seed=1), collected[1].items(), {"vanilla": lambda _: VanillaDrafter(model)})
    assert decoded.differing[0] > 0


@pytest.mark.parametrize("given_text", [False, True])
def test_a_prompt_s_padding_id_is_a_token_as_any_other(given_text: bool) -> None:
    """Texts are decoded from the prompts that their lattices were drawn after."""
    model = tiny_model(seed=3)
    model.base.generation_config.pad_token_id = PROMPTS[0][1]
    lattices, texts = collect(HeadLattices(model), data(), OPTIONS)
    decoded = decode(model, texts.items(), {"vanilla": lambda _: VanillaDrafter(model)}, given_text=given_text)
    assert decoded.differing.tolist() == [0]
    assert [[text for text, _ in own] for own in decoded.written] == [[text for text, _ in texts.items()]]
    assert decoded.calls.tolist() == compare([lattices], [], None, 0.0).decode_totals[:1, 1].tolist()


def test_entropies_are_those_of_all_heads(model: BlockwiseLM, collected: tuple[LatticeSet, Texts]) -> None:
    lattices, texts = collected
    text, prompt_length = next(texts.items())
    with torch.no_grad():
        out = model.base(torch.tensor([text]), output_hidden_states=True)
        hidden = out.hidden_states[-1][0, prompt_length - 1 : -2]
        heads = torch.cat([out.logits[0, prompt_length - 1 : -2, None], model.head_logits(hidden)], dim=1).double()
    expected = torch.distributions.Categorical(logits=heads).entropy()
    assert lattices.entropy is not None
    np.testing.assert_allclose(lattices.entropy[: len(expected)], expected, atol=1e-5)
    np.testing.assert_array_equal(lattices.context[0], text[prompt_length - 2 : prompt_length + 1])


def test_given_texts_are_taken_as_they_are(model: BlockwiseLM, collected: tuple[LatticeSet, Texts]) -> None:
    """The model's own text, given, makes the same lattices; other text is its own continuation."""
    written = generate(model, PROMPTS[0], VanillaDrafter(model), max_new_tokens=24).sequences[0].tolist()
    answered = Texts.of_rows([written], [len(PROMPTS[0])])
    forced, texts = collect(HeadLattices(model), answered, replace(OPTIONS, teacher_force=True))
    own = collected[0].take(np.arange(19))
    assert next(texts.items())[0] == written[: len(PROMPTS[0]) + 20]
    np.testing.assert_array_equal(forced.tokens, own.tokens)
    np.testing.assert_array_equal(forced.continuation, own.continuation)
    np.testing.assert_array_equal(forced.context, own.context)
    other, _ = collect(HeadLattices(model), Texts.of_rows([[5, 6, 7, 8, 9]], [2]), replace(OPTIONS, teacher_force=True))
    assert other.continuation.tolist() == [[8, 9, -1, -1], [9, -1, -1, -1]]
    assert other.context.tolist() == [[5, 6, 7], [6, 7, 8]]
    assert other.origin is not None
    assert "given text" in other.origin


def test_shards_are_the_whole_and_go_on_where_they_stopped(
    model: BlockwiseLM, collected: tuple[LatticeSet, Texts], tmp_path: Path
) -> None:
    done: list[int] = []
    collect_shards(HeadLattices(model), data(), tmp_path / "d", OPTIONS, shard_texts=2, on_text=done.append)
    assert sum(done) == 5
    assert [path.name for path in shard_files(tmp_path / "d")] == [
        "shard-00000.npz",
        "shard-00001.npz",
        "shard-00002.npz",
    ]
    full = collected[0]
    joined = LatticeSet.joined(list(blocks([tmp_path / "d"])))
    for name in (*LatticeSet.ARRAYS, "sequence"):
        if name != "log_probs":
            np.testing.assert_array_equal(getattr(joined, name), getattr(full, name))
    np.testing.assert_allclose(joined.log_probs, full.log_probs, atol=1e-5)
    assert joined.origin == full.origin
    assert num_lattices([tmp_path / "d"]) == len(full)
    assert [text for text, _ in texts_of([tmp_path / "d"])] == [text for text, _ in collected[1].items()]

    before = lattice_directory(tmp_path / "d").file(0).read_bytes()
    lattice_directory(tmp_path / "d").file(1).unlink()
    with pytest.raises(ValueError, match=r"1 of 3 shards are missing, first shard-00001\.npz"):
        list(blocks([tmp_path / "d"]))
    (tmp_path / "d" / ".shard-00001.npz.99.tmp").write_bytes(b"killed")
    finished: list[int] = []
    collect_shards(HeadLattices(model), data(), tmp_path / "d", OPTIONS, shard_texts=2, on_text=finished.append)
    assert finished == [2, 1, 1, 1]  # a finished shard at once, the missing one text by text
    assert lattice_directory(tmp_path / "d").file(0).read_bytes() == before
    for options, prompts in ((replace(OPTIONS, k=3), PROMPTS), (OPTIONS, PROMPTS[:4])):
        with pytest.raises(ValueError, match=r"holds lattices made with (k 4|num_shards 3|texts 5), asked for is"):
            collect_shards(HeadLattices(model), data(prompts), tmp_path / "d", options, shard_texts=2)


@pytest.mark.parametrize("kind", ["shard", "texts"])
def test_a_damaged_shard_is_not_counted_as_done(model: BlockwiseLM, tmp_path: Path, kind: str) -> None:
    finished: list[int] = []
    collect_shards(HeadLattices(model), data(), tmp_path, OPTIONS, shard_texts=2)
    file = lattice_directory(tmp_path).file(1, kind)
    good, cls = file.read_bytes(), LatticeSet if kind == "shard" else Texts

    def arrays() -> list[Any]:
        loaded = cls.load(file)
        return [getattr(loaded, name).tolist() for name in cls.ARRAYS]

    wanted = arrays()
    rng = np.random.default_rng(0)
    for position in rng.integers(len(good), size=60).tolist():
        damaged = bytearray(good)
        damaged[position] ^= 1 << int(rng.integers(8))
        file.write_bytes(damaged)
        collect_shards(HeadLattices(model), data(), tmp_path, OPTIONS, shard_texts=2, on_text=finished.append)
        assert file.read_bytes() == good or arrays() == wanted  # dates and the like may change without harm
    assert finished.count(1) > 60  # two texts for each shard made anew
    for cut in (0, 100, len(good) - 1):
        file.write_bytes(good[:cut])
        collect_shards(HeadLattices(model), data(), tmp_path, OPTIONS, shard_texts=2)
        assert file.read_bytes() == good
    file.unlink()
    collect_shards(HeadLattices(model), data(), tmp_path, OPTIONS, shard_texts=2)
    assert file.read_bytes() == good


def test_foreign_directories_are_refused_by_name(model: BlockwiseLM, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected lattice files .* found none"):
        list(blocks([tmp_path]))
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ValueError, match="expected a directory that is new, empty or filled by this command before"):
        collect_shards(HeadLattices(model), data(), tmp_path, OPTIONS)
    with pytest.raises(ValueError, match="lattice files do not name the prompts"):
        list(texts_of([tmp_path]))
    (tmp_path / SETTINGS).write_text(json.dumps({"num_shards": -1}))
    with pytest.raises(ValueError, match=r"lattices\.json: expected settings"):
        list(blocks([tmp_path]))


def test_bad_options_and_texts_are_named() -> None:
    for name, value in (("k", 0), ("max_new_tokens", 1), ("context_length", 0)):
        with pytest.raises(ValueError, match=f"expected {name} >= "):
            replace(OPTIONS, **{name: value})
    for rows, lengths in (([[1, 2]], [0]), ([[1, 2]], [3]), ([[]], [1]), ([[-1, 2]], [1])):
        with pytest.raises(ValueError, match="expected"):
            Texts.of_rows(rows, lengths)


def test_damaged_texts_are_refused_by_name(tmp_path: Path) -> None:
    data().save(tmp_path / "t.npz")
    again = Texts.load(tmp_path / "t.npz")
    assert list(again.items()) == list(data().items())
    full = (tmp_path / "t.npz").read_bytes()
    for length in range(0, len(full) - 1, 41):
        (tmp_path / "t.npz").write_bytes(full[:length])
        with pytest.raises(ValueError, match=r"t\.npz: expected texts as `latticebpd distill`"):
            Texts.load(tmp_path / "t.npz")


def test_texts_that_yield_no_lattice_are_left_out() -> None:
    model = tiny_model(seed=3, eos_token_id=4)
    ended, texts = collect(HeadLattices(model), Texts.of_rows([[1, 2]], [2]), replace(OPTIONS, teacher_force=True))
    assert (len(ended), len(texts)) == (0, 0)
    assert ended.tokens.shape == (0, 4, 4)


SOURCES = [[8, 9, 7, 5], [6, 3, 5], [10, 4, 11, 12, 5], [21, 5], [9, 9, 8, 14, 3, 5]]


def translator(family: str, seed: int) -> BlockwiseLM:
    """A random encoder–decoder with random heads; its texts vary, and end with token 5."""
    torch.manual_seed(seed)
    base = verifier_of(family, seed) if family != "t5" else tiny("t5", seed, eos=5)
    heads = new_heads(base, "feed-forward", num_heads=5)
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return BlockwiseLM(base, heads).eval()


def targets_of(model: BlockwiseLM) -> list[list[int]]:
    """What ``generate()`` writes."""
    rows = [torch.tensor([source]) for source in SOURCES]
    return [
        model.base.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20)[
            0, 1:
        ].tolist()
        for ids in rows
    ]


@pytest.mark.parametrize("family", ["marian", "bart", "t5"])
def test_lattices_of_an_encoder_decoder_are_those_its_decoder_draws(family: str, tmp_path: Path) -> None:
    """Walked through, they make the calls of a decode; given its own text, they are the same."""
    tried = (translator(family, seed) for seed in range(20))
    model = next(model for model in tried if min(map(len, targets_of(model))) > 1)  # shorter ones have no lattice
    lattices, texts = collect(HeadLattices(model), data(SOURCES), OPTIONS, batch_size=2)
    assert [(text[:length], text[length:]) for text, length in texts.items()] == list(
        zip(SOURCES, targets_of(model), strict=True)
    )
    first, length = next(texts.items())
    assert lattices.context[0].tolist() == [
        -1,
        1,
        first[length],
    ]  # the decoder's start token, and what the prefill said
    with torch.no_grad():
        out = model.base(
            input_ids=torch.tensor([first[:length]]), decoder_input_ids=torch.tensor([[1]]), output_hidden_states=True
        )
        best = model.head_logits(out.decoder_hidden_states[-1][0])[0].topk(4, dim=-1).indices
    assert lattices.tokens[0].tolist() == best.tolist()

    comparison = compare([lattices], ["3-best"], None, 0.0)
    decoded = decode(model, texts.items(), {
        "vanilla": lambda _: VanillaDrafter(model),
        "3-best": lambda _: PathsDrafter(model, None, 3, 0.0, 4),
        "oracle": lambda continuation: oracle_drafter(model, continuation, 4),
    })  # fmt: skip
    assert decoded.differing.tolist() == [0] * 3
    assert decoded.tokens.tolist() == comparison.decode_totals[:, 0].tolist()
    assert decoded.calls[[0, 2]].tolist() == comparison.decode_totals[[0, 2], 1].tolist()

    written = [
        source + generate(model, source, VanillaDrafter(model), max_new_tokens=24).sequences[0, 1:].tolist()
        for source in SOURCES
    ]
    answered = Texts.of_rows(written, [len(source) for source in SOURCES])
    forced, _ = collect(HeadLattices(model), answered, replace(OPTIONS, teacher_force=True))
    for name in ("tokens", "continuation", "context"):
        np.testing.assert_array_equal(getattr(forced, name), getattr(lattices, name))
    collect_shards(HeadLattices(model), data(SOURCES), tmp_path / "d", OPTIONS, shard_texts=2)
    np.testing.assert_array_equal(LatticeSet.joined(list(blocks([tmp_path / "d"]))).tokens, lattices.tokens)


def test_a_source_beyond_the_models_positions_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"expected sources of at most 96 tokens \(the model's positions\), got one of 97"
    ):
        collect(HeadLattices(translator("marian", 1)), data([[8] * 97]), OPTIONS)


@pytest.mark.parametrize("block", [3, 100])
def test_prompts_can_be_left_out_of_the_contexts(model: BlockwiseLM, block: int) -> None:
    """A lattice knows one token of the answer, the next one more; whether by collecting so or from files with the
    prompt in them."""
    prompts = np.random.default_rng(3).integers(0, 23, (3, 5)).tolist()
    data = Texts.of_rows(prompts, [5] * 3)
    options = CollectOptions(k=2, max_new_tokens=9, context_length=4)
    full, texts = collect(HeadLattices(model), data, options)
    single, _ = collect(HeadLattices(model), data, replace(options, prompt_context=False))
    assert full.sequence is not None
    for text, number in zip(texts.items(), range(3), strict=True):
        answer = text[0][text[1] :]
        contexts = single.context[full.sequence == number]
        for index, context in enumerate(contexts.tolist()):
            assert context == ([PADDING] * 4 + answer[: index + 1])[-4:]
    parts = [full.take(np.arange(begin, min(begin + block, len(full)))) for begin in range(0, len(full), block)]
    assert np.array_equal(LatticeSet.joined(list(without_prompts(parts))).context, single.context)
    assert not np.array_equal(full.context, single.context)
    with pytest.raises(ValueError, match="expected lattices that tell their texts, to leave prompts out"):
        list(without_prompts([replace(full, sequence=None)]))


@pytest.mark.parametrize(
    "parts", [{}, {"causal_head": True, "markov_rank": 3, "confidence": True, "confidence_with_markov": True}]
)
def test_lattices_of_a_block_drafter_are_those_that_a_decode_draws(parts: dict[str, Any]) -> None:
    target = tiny_target(seed=3)
    drafts = BlockLattices(tiny_drafter(target, block_size=5, **parts), target, 4)
    lattices, texts = collect(
        drafts, Texts.of_rows([[5, 9, 12], [3, 20, 7, 8, 1]], [3, 5]), CollectOptions(k=4, max_new_tokens=12)
    )
    assert lattices.tokens.shape[1:] == (4, 4)
    assert (lattices.transitions is not None) == bool(parts)
    drawn: list[tuple[list[int], SausageLattice]] = []

    class Watching:
        needs_layers = drafts.needs_layers

        def propose(self, states: Sequence[State]) -> list[DraftTree]:
            lattices = drafts.lattices(states)
            drawn.extend(
                (list(state.tokens), each) for state, each in zip(states, lattices, strict=True) if each is not None
            )
            return [DraftTree.empty()] * len(states)

        def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
            pass

    compared = 0
    for number, (text, prompt_length) in enumerate(texts.items()):
        drawn.clear()
        generate(target, text[:prompt_length], Watching(), max_new_tokens=12)
        mine = np.flatnonzero(lattices.sequence == number)
        for tokens, lattice in drawn:
            same = lattices[int(mine[0]) + len(tokens) - prompt_length - 1].first_slots(lattice.slots)
            assert np.array_equal(same.tokens, lattice.tokens)
            np.testing.assert_allclose(same.log_probs, lattice.log_probs, atol=1e-4)
            if parts and lattice.slots > 1:
                np.testing.assert_allclose(same.transitions, lattice.transitions, atol=1e-3)
            compared += 1
    assert compared == len(lattices) - len(texts)  # a decode does not draft where one token may still be written
