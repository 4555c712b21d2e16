"""Training drafters: windows, glancing inside them, and drafts that are right where the text was learnt."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedModel

from fst.fingerprint import vocabulary_fingerprint
from latticebpd import generate
from latticebpd.drafters.masks.mask_network import Columns, NonAutoregressiveModel, load_verifier, masked_columns
from latticebpd.lattices.texts import Texts
from lm_training.data.pairs import encode_pairs, save_tokenizer, train_pair_tokenizer
from lm_training.families.masks import UNLABELLED, MaskFillerObjective, Windows, glance, train_mask_filler
from lm_training.families.translators import load_translator
from lm_training.training.training_loop import Trainer
from lm_training.training.training_options import MaskFillerTraining
from tests.helpers.commands import Run
from tests.helpers.drafters import gad_drafter
from tests.helpers.tiny_families import FAMILIES, VOCABULARY, tiny
from tests.helpers.translators import verifier_of

MASK, END, START = 2, 5, 1
TEXT = list(range(6, VOCABULARY))


def pairs(count: int, seed: int = 0, longest: int = 9) -> Texts:
    """Random sources with random targets, each with its end of text."""
    rng = np.random.default_rng(seed)
    sources = [[*rng.choice(TEXT, rng.integers(1, 6)), END] for _ in range(count)]
    targets = [[*rng.choice(TEXT, rng.integers(1, longest)), END] for _ in range(count)]
    rows = [np.array([*source, *target]) for source, target in zip(sources, targets, strict=True)]
    return Texts.of_rows(rows, [len(source) for source in sources], np.uint16)


def objective(
    options: MaskFillerTraining | None = None,
    block_size: int = 6,
    dropout: float = 0.0,
    family: str = "marian",
    anchored: bool = False,
    bidirectional: bool = False,
) -> MaskFillerObjective:
    model = NonAutoregressiveModel.like(
        tiny(family, 1, eos=END), MASK, block_size, anchored=anchored, bidirectional=bidirectional
    )
    for module in model.base.modules():
        if hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = dropout
    return MaskFillerObjective(model, pairs(40), pairs(6, 1), options or MaskFillerTraining(steps=10, batch_tokens=128))


def test_the_ratio_falls_from_a_half_to_three_tenths() -> None:
    options = MaskFillerTraining(steps=11)
    ratios = [options.reveal_ratio(step) for step in range(11)]
    assert ratios[0] == 0.5
    assert ratios[-1] == pytest.approx(0.3)
    assert np.allclose(np.diff(ratios), -0.02)
    assert MaskFillerTraining(steps=1).reveal_ratio(0) == 0.5
    with pytest.raises(ValueError, match=r"expected reveal from 0 to 1, got 1\.5"):
        MaskFillerTraining(reveal=(1.5, 0.3))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_glancing_reveals_a_share_of_the_wrong_tokens_and_nothing_outside_the_window(data: st.DataObject) -> None:
    rows, slots = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 7))
    tokens = st.lists(st.lists(st.integers(0, 3), min_size=slots, max_size=slots), min_size=rows, max_size=rows)
    labels = torch.tensor(data.draw(tokens))
    ends = data.draw(st.lists(st.integers(0, slots), min_size=rows, max_size=rows))
    for row, end in enumerate(ends):
        labels[row, end:] = UNLABELLED
    predicted, ratio = torch.tensor(data.draw(tokens)), data.draw(st.sampled_from([0.0, 0.3, 0.5, 1.0]))
    priorities = torch.from_numpy(np.random.default_rng(data.draw(st.integers(0, 9))).random((rows, slots)))
    revealed = glance(predicted, labels, priorities, ratio)
    assert not revealed[labels == UNLABELLED].any()
    for row, end in enumerate(ends):
        wrong = sum(int(predicted[row, position] != labels[row, position]) for position in range(end))
        assert int(revealed[row].sum()) == round(ratio * wrong)
        shown = sorted(priorities[row, :end].tolist())[: round(ratio * wrong)]
        assert sorted(priorities[row][revealed[row]].tolist()) == shown


class Spy(torch.nn.Module):
    """Stands before a drafter and remembers the columns that it was given."""

    def __init__(self, drafter: NonAutoregressiveModel) -> None:
        super().__init__()
        self.drafter, self.seen = drafter, list[Columns]()

    def forward(self, source: object, columns: Columns, cache: object = None) -> Tensor:
        self.seen.append(columns)
        hidden: Tensor = self.drafter(source, columns, cache)
        return hidden

    def __getattr__(self, name: str) -> object:
        return super().__getattr__(name) if name in ("drafter", "_modules") else getattr(self.drafter, name)


@pytest.mark.parametrize("anchored", [False, True])
def test_the_drafter_sees_prefix_masks_and_revealed_tokens_and_nothing_else(anchored: bool) -> None:
    trained = objective(MaskFillerTraining(steps=10, batch_tokens=128, reveal=(1.0, 0.3)), anchored=anchored)
    batch = trained.batch(0, 0, 1)
    trained.drafter = spy = Spy(trained.drafter)
    trained.eval()
    trained(batch)
    first, second = spy.seen
    assert (first.tokens[:, first.new :] == MASK).all()
    assert (second.tokens[:, : second.new] == first.tokens[:, : first.new]).all()
    labels = (
        batch.labels[:, :, int(anchored) :].flatten(1).numpy()
    )  # an anchor's is said by the text, and never revealed
    window = second.tokens[:, second.new :]
    assert (window[labels == UNLABELLED] == MASK).all()
    shown = window != MASK
    assert shown.any()
    assert (window[shown] == labels[shown]).all()


def windows_of(batch: Windows) -> list[tuple[int, list[int], list[int]]]:
    """Row, prefix as the masks see it, and labels of every window."""
    windows, columns = [], batch.columns
    times = len(columns.tokens) // len(batch.sources)  # a bidirectional drafter's windows are rows of their own
    anchored = bool((columns.slots[:, 0] < columns.new).all())
    slots = batch.labels.shape[2] - anchored
    for row, rows_labels in enumerate(batch.labels.tolist()):
        for window, labels in enumerate(rows_labels):
            seen = columns.visible[row, columns.new + window * slots]
            others = columns.visible[row, columns.new + window * slots : columns.new + (window + 1) * slots]
            assert (others == seen).all()  # every mask of a window sees the same
            masks = np.flatnonzero(seen[columns.new :])
            assert masks.tolist() == list(
                range(window * slots, (window + 1) * slots)
            )  # its own window's masks, all of them
            prefix = columns.tokens[row, : columns.new][seen[: columns.new]].tolist()
            if anchored:
                assert columns.slots[row, window * len(labels)] == len(prefix) - 1
            windows.append((row // times, prefix, labels))
    return windows


@pytest.mark.parametrize(("anchored", "bidirectional"), [(False, False), (True, False), (False, True), (True, True)])
def test_windows_follow_their_prefix_and_end_with_the_text(anchored: bool, bidirectional: bool) -> None:
    trained = objective(anchored=anchored, bidirectional=bidirectional)
    ends, lengths = 0, set()
    for step in range(5):
        batch, pair = trained.batch(step, 0, 1), trained.pairs.batch(step, 0, 1)
        for row, prefix, labels in windows_of(batch):
            target = [token for token in pair.labels[row].tolist() if token != UNLABELLED]
            window = [token for token in labels if token != UNLABELLED]
            assert prefix[0] == START
            assert 1 <= len(prefix) - 1 < max(2, len(target))
            assert prefix[1:] + window == target[: len(prefix) - 1 + trained.drafter.block_size]
            assert window.count(END) == (
                len(prefix) - 1 + trained.drafter.block_size >= len(target) > len(prefix) - 1
            )  # once
            assert labels[len(window) :] == [UNLABELLED] * (len(labels) - len(window))
            ends += window.count(END)
            lengths.add(len(prefix) - 1)
    assert ends > 20
    assert len(lengths) > 4


def test_an_update_may_draw_its_number_of_masks() -> None:
    trained = objective(MaskFillerTraining(steps=40, batch_tokens=128, smallest_block=2))
    assert {trained.batch(step, 0, 1).labels.shape[2] for step in range(40)} == {2, 3, 4, 5, 6}
    with pytest.raises(ValueError, match=r"expected smallest_block from 1 to 6 \(the drafter's block size\), got 7"):
        objective(MaskFillerTraining(smallest_block=7))


def test_no_more_windows_are_drawn_than_there_are_positions_for() -> None:
    trained = objective(MaskFillerTraining(steps=10, batch_tokens=128, windows=9), block_size=20)
    batch = trained.batch(0, 0, 1)
    assert batch.labels.shape[1:] == (4, 20)
    assert batch.columns.tokens.shape[1] <= trained.drafter.max_positions
    trained(batch)["loss"].backward()


@pytest.mark.parametrize(
    ("family", "anchored", "bidirectional"),
    [
        ("marian", False, False),
        ("marian", True, False),
        ("bart", False, False),
        ("marian", False, True),
        ("bart", True, True),
    ],
)
def test_parts_of_a_batch_add_up_to_the_whole(family: str, anchored: bool, bidirectional: bool) -> None:
    trained = objective(family=family, anchored=anchored, bidirectional=bidirectional)
    trained.eval()
    for parts in (2, 3, 50):  # fifty: more than there are sentences
        full = trained(trained.batch(3, 0, 1))
        each = [trained(trained.batch(3, part, parts)) for part in range(parts)]
        for name in ("loss", "accuracy"):
            assert sum(float(values[name].detach()) for values in each) / parts == pytest.approx(
                float(full[name].detach()), rel=1e-4
            )


@pytest.mark.parametrize(
    ("anchored", "bidirectional", "decay"),
    [(False, False, 1.0), (True, False, 1.0), (True, False, 0.5), (False, True, 1.0)],
)
def test_the_loss_is_the_mean_over_all_labels_as_if_each_window_were_alone(
    anchored: bool, bidirectional: bool, decay: float
) -> None:
    options = MaskFillerTraining(steps=10, batch_tokens=128, reveal=(0.0, 0.0), label_smoothing=0.0, slot_decay=decay)
    trained = objective(options, anchored=anchored, bidirectional=bidirectional)
    trained.eval()
    batch = trained.batch(0, 0, 1)
    losses, right, weights = [], [], []
    for row, prefix, labels in windows_of(batch):  # one by one, without any padding or other windows
        length = int(batch.mask[row].sum())
        source = trained.drafter.encode(batch.sources[row : row + 1, :length], batch.mask[row : row + 1, :length])
        columns = masked_columns([prefix], [0], trained.drafter.block_size, MASK, None, anchored, bidirectional)
        hidden = trained.drafter(source, columns)[0]
        log_probs = trained.drafter.logits(hidden).log_softmax(dim=-1).detach()
        for position, label in enumerate(labels):
            if label != UNLABELLED:
                losses.append(-float(log_probs[position, label]))
                right.append(int(log_probs[position].argmax()) == label)
                weights.append(decay**position)
    loss = trained(batch)
    assert float(loss["loss"].detach()) == pytest.approx(float(np.average(losses, weights=weights)), rel=1e-4)
    assert float(loss["accuracy"]) == pytest.approx(float(np.average(right, weights=weights)), rel=1e-4)
    with pytest.raises(ValueError, match=r"expected slot_decay > 0\.0, got 0"):
        MaskFillerTraining(slot_decay=0)


def test_a_resumed_run_equals_an_unbroken_one_dropout_included(tmp_path: Path) -> None:
    def weights(directory: Path, dies_at: int | None) -> dict[str, Tensor]:
        trained = objective(dropout=0.3)
        make = trained.batch

        def batch(step: int, part: int, parts: int) -> Windows:
            if step == dies_at:
                raise KeyboardInterrupt
            return make(step, part, parts)

        trained.batch = batch
        torch.manual_seed(17 if dies_at is None else 18)
        options = replace(trained.options, steps=6, warmup_steps=1, validation_every=100, checkpoint_every=2)
        trainer = Trainer(trained, directory, options)
        if dies_at is not None:
            with pytest.raises(KeyboardInterrupt):
                trainer.run()
            return weights(directory, None)
        trainer.run()
        return dict(trained.drafter.state_dict())

    unbroken, resumed = weights(tmp_path / "one", None), weights(tmp_path / "two", 5)
    assert all(torch.equal(unbroken[name], resumed[name]) for name in unbroken)


def written(verifier: PreTrainedModel, sources: list[list[int]]) -> Texts:
    """What the verifier itself writes."""
    rows = []
    for source in sources:
        out = verifier.generate(torch.tensor([source]), do_sample=False, max_new_tokens=12)
        rows.append(np.array([*source, *out[0, 1:].tolist()]))
    return Texts.of_rows(rows, [len(source) for source in sources], np.uint16)


def test_a_drafter_learns_to_draft_what_its_verifier_writes(tmp_path: Path) -> None:
    verifier = verifier_of("bart", 0, eos=END)
    sources = [[token, token + 1, END] for token in (6, 9, 12, 15)]
    data = written(verifier, sources)
    config: Any = copy.deepcopy(verifier.config)
    config.init_std, config.dropout = 0.1, 0.0
    torch.manual_seed(0)
    drafter = NonAutoregressiveModel(type(verifier)(config), MASK, block_size=6)
    untrained = generate(verifier, torch.tensor(sources), gad_drafter(drafter), max_new_tokens=12)
    options = MaskFillerTraining(
        steps=50, batch_tokens=256, learning_rate=1e-2, muon_learning_rate=2e-2, warmup_steps=5, label_smoothing=0.0
    )
    train_mask_filler(drafter, verifier, data, data, tmp_path, options)
    trained = generate(
        verifier,
        torch.tensor(sources),
        gad_drafter(NonAutoregressiveModel.from_pretrained(tmp_path)),
        max_new_tokens=12,
    )
    assert torch.equal(trained.sequences, untrained.sequences)
    assert (untrained.num_passes, trained.num_passes) == (8, 2)  # the longest text has 8 tokens; a draft has 6


def test_targets_that_leave_no_room_for_the_masks_are_refused() -> None:
    model = NonAutoregressiveModel.like(tiny("marian", 1, eos=END), MASK, 90)
    with pytest.raises(
        ValueError, match="expected training targets that leave room for 90 masks in 96 positions, got 99 together"
    ):
        MaskFillerObjective(model, pairs(40), pairs(6), MaskFillerTraining())


def test_sources_longer_than_the_encoder_reads_are_refused() -> None:
    model = NonAutoregressiveModel.like(tiny("marian", 1, eos=END), MASK, 4)
    long = Texts.of_rows([np.full(100, 5)], [97], np.uint16)
    with pytest.raises(ValueError, match=r"expected sources of at most 96 tokens .* got 97"):
        MaskFillerObjective(model, long, pairs(6), MaskFillerTraining())


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A verifier with its tokenizer, a drafter, and pairs beside them."""
    home = tmp_path_factory.mktemp("gad")
    words = [f"{a}{b}" for a in "abc" for b in "xyz"]
    bpe = train_pair_tokenizer(words, 262)
    torch.manual_seed(0)
    verifier = FAMILIES["marian"](
        {"vocab_size": bpe.get_vocab_size(), "bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 1}
    )
    verifier.save_pretrained(home / "verifier")
    save_tokenizer(bpe, home / "verifier")
    fingerprint = vocabulary_fingerprint(bpe.get_vocab())
    NonAutoregressiveModel.like(verifier, 2, 4, tokenizer_fingerprint=fingerprint).save_pretrained(home / "drafter")
    encode_pairs([(word, word[::-1]) for word in words], bpe).save(home / "pairs.npz")
    return home / "verifier", home / "drafter"


def test_the_command_trains_a_drafter_that_knows_its_vocabulary(
    directories: tuple[Path, Path], tmp_path: Path, run: Run
) -> None:
    verifier, drafter = directories
    data = verifier.parent / "pairs.npz"
    new = [
        "train",
        "masks",
        data,
        "--validation",
        data,
        "-o",
        tmp_path / "new",
        "--block-size",
        4,
        "--steps",
        3,
        "--batch-tokens",
        64,
    ]
    status, _, err = run(*new, "--model", verifier)
    assert status == 0, err
    assert "begins with the verifier's encoder, embeddings and first 2 decoder layers" in " ".join(err.split())
    model, bpe = (
        NonAutoregressiveModel.from_pretrained(tmp_path / "new"),
        Tokenizer.from_file(str(verifier / "tokenizer.json")),
    )
    assert model.mask_token_id == bpe.token_to_id("<|mask|>")
    assert model.tokenizer_fingerprint == vocabulary_fingerprint(bpe.get_vocab())
    again = [tmp_path / "scratch" if each == tmp_path / "new" else each for each in new]
    status, _, err = run(*again, "--model", verifier, "--from-scratch", "--learning-rate", 0, "--muon-learning-rate", 0)
    assert status == 0, err
    assert "begins with random weights" in " ".join(err.split())
    scratch, own = NonAutoregressiveModel.from_pretrained(tmp_path / "scratch").base, load_verifier(verifier)
    for name, weight in scratch.state_dict().items():
        is_random = weight.ndim == 2 and weight.shape[0] > 1 and "positions" not in name
        assert torch.equal(weight, own.state_dict()[name]) != is_random, name
    status, _, err = run(*new, "--model", drafter)
    assert status == 2
    assert "expected an autoregressive model as verifier, got a non-autoregressive drafter" in err


@pytest.mark.long
def test_a_run_goes_on_with_the_layout_that_it_began_with(
    directories: tuple[Path, Path], tmp_path: Path, run: Run
) -> None:
    verifier, data = directories[0], directories[0].parent / "pairs.npz"
    new = [
        "train",
        "masks",
        data,
        "--validation",
        data,
        "--model",
        verifier,
        "--block-size",
        4,
        "--batch-tokens",
        64,
        "-o",
    ]
    paper = ["--bidirectional-text", "--no-anchored"]
    assert run(*new, tmp_path / "paper", *paper, "--steps", 2)[0] == 0
    assert NonAutoregressiveModel.from_pretrained(tmp_path / "paper").bidirectional
    assert run(*new, tmp_path / "paper", *paper, "--steps", 3)[0] == 0
    status, _, err = run(*new, tmp_path / "paper", "--no-anchored", "--steps", 4)
    assert (status, "holds a run with bidirectional True, asked for is False" in err) == (2, True), err

    assert run(*new, tmp_path / "ours", "--steps", 2)[0] == 0
    status, _, err = run(*new, tmp_path / "ours", "--bidirectional-text", "--steps", 3)
    assert (status, "holds a run with bidirectional False, asked for is True" in err) == (2, True), err
    assert run(*new, tmp_path / "ours", "--steps", 3)[0] == 0


def test_the_command_translates_with_drafter_and_verifier(directories: tuple[Path, Path], run: Run) -> None:
    verifier, drafter = directories
    common = ["generate", "ax by", "--max-new-tokens", 12, "--json", "--model", verifier]
    plain = run(*common, "--system", "greedy")
    for options in (
        [],
        ["--accept", "beta:1,5"],
        ["--block-size", 2],
        ["-s", "4-best"],
        ["-s", "copies+6-tree", "-k", 3],
    ):
        status, out, err = run(*common, "--drafter-model", drafter, *options)
        assert status == 0, err
        assert json.loads(out)["text"] == json.loads(plain[1])["text"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "{drafter}", "--drafter-model", "{verifier}"], "expected an autoregressive model as verifier"),
        (
            ["--model", "{verifier}", "--drafter-model", "{verifier}"],
            "expected decoder-only models to draft with an assistant",
        ),
        (["--model", "{drafter}"], "expected an autoregressive model as verifier"),
        (["--drafter-model", "{drafter}"], "expected --model"),
        (["--model", "{verifier}", "-s", "magic"], "expected greedy, N-copies"),
        (["--model", "{verifier}", "-s", "vanilla"], "a model without heads"),
    ],
)
def test_roles_given_the_wrong_way_round_are_refused(
    directories: tuple[Path, Path], run: Run, arguments: list[str], message: str
) -> None:
    verifier, drafter = directories
    status, _, err = run("generate", "ax", *(part.format(verifier=verifier, drafter=drafter) for part in arguments))
    assert status == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_a_drafter_is_no_translator_to_train_further(directories: tuple[Path, Path]) -> None:
    verifier, drafter = directories
    assert load_translator(verifier).config.model_type == "marian"
    with pytest.raises(ValueError, match="expected an autoregressive model as verifier, found a non-autoregressive"):
        load_translator(drafter)
