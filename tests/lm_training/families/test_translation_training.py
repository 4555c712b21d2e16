"""Sentence pairs are read and batched whole, and a small encoder-decoder learns a rule that is known."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, MarianMTModel
from typer.testing import CliRunner

from latticebpd.cli import app
from latticebpd.lattices.texts import Texts
from lm_training.data.pairs import MASK, PADDING, encode_pairs, read_pairs, save_tokenizer, train_pair_tokenizer
from lm_training.families.shapes import TranslationShape
from lm_training.families.translators import (
    TranslationObjective,
    batch_cuts,
    load_translator,
    new_translator,
    train_translation,
)
from lm_training.training.training_loop import Trainer
from lm_training.training.training_options import TranslationTraining

PAIRS = [
    ("a red house", "ein rotes Haus"),
    ("the dog", "der Hund"),
    ("two dogs sleep", "zwei Hunde schlafen"),
]
SHAPE = TranslationShape(
    hidden_size=32, encoder_layers=1, decoder_layers=1, attention_heads=2, intermediate_size=64, dropout=0.0
)
EOS, PAD = 0, 1


def rule_pairs(count: int, seed: int = 0) -> Texts:
    """Sources of tokens 3..12; each target is its source with every token raised by 10."""
    generator = np.random.default_rng(seed)
    sources = [generator.integers(3, 13, generator.integers(1, 7)) for _ in range(count)]
    rows = [np.array([*source, EOS, *(source + 10), EOS]) for source in sources]
    return Texts.of_rows(rows, [len(source) + 1 for source in sources], np.uint16)


def objective(data: Texts, **options: int | float) -> TranslationObjective:
    torch.manual_seed(0)
    return TranslationObjective(new_translator(SHAPE, 24, EOS, PAD), data, data, TranslationTraining(**options))


def test_pairs_are_read_in_order_from_plain_and_compressed_files(tmp_path):
    import gzip

    lines = "".join(json.dumps({"en": pair[0], "de": pair[1], "id": 7}) + "\n" for pair in PAIRS)
    (tmp_path / "plain.jsonl").write_text(lines)
    with gzip.open(tmp_path / "packed.jsonl.gz", "wt") as file:
        file.write(lines)
    assert list(read_pairs([tmp_path / "plain.jsonl", tmp_path / "packed.jsonl.gz"], "en", "de")) == PAIRS * 2


@pytest.mark.parametrize(
    "line", ['{"en": "a"}', '{"en": "a", "de": 3}', "[1]", "no json", '{"en": "a", "de": " "}', "", "[" * 5000]
)
def test_a_bad_line_is_refused_by_file_and_number(tmp_path, line):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"en": "a", "de": "b"}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"pairs\.jsonl:2: expected a JSON object with text under 'en' and 'de'"):
        list(read_pairs([path], "en", "de"))


def test_encoded_pairs_decode_to_their_sentences_and_end_once(tmp_path):
    tokenizer = train_pair_tokenizer((text for pair in PAIRS for text in pair), 300)
    encoded = encode_pairs(PAIRS, tokenizer)
    for index, pair in enumerate(PAIRS):
        row, cut = encoded[index].tolist(), int(encoded.prompt_lengths[index])
        assert row[cut - 1] == row[-1] == EOS
        assert row.count(EOS) == 2
        assert tokenizer.decode(row[: cut - 1]).strip() == pair[0]
        assert tokenizer.decode(row[cut:-1]).strip() == pair[1]
    save_tokenizer(tokenizer, tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded(PAIRS[0][0]).input_ids == encoded[0][: encoded.prompt_lengths[0]].tolist()
    assert (loaded.eos_token_id, loaded.pad_token, loaded.mask_token) == (EOS, PADDING, MASK)


def test_every_epoch_deals_out_every_pair_once_in_batches_that_fit():
    data = rule_pairs(50)
    trained = objective(data, batch_tokens=64)
    batches = len(trained.pairs.cuts) - 1
    wanted = sorted(tuple(data[index].tolist()) for index in range(50))
    orders = []
    for epoch in range(2):
        seen = []
        for step in range(epoch * batches, (epoch + 1) * batches):
            batch = trained.batch(step, 0, 1)
            assert len(batch.sources) * 2 * max(batch.sources.shape[1], batch.labels.shape[1]) <= 64
            for source, mask, labels in zip(batch.sources, batch.mask, batch.labels, strict=True):
                seen.append((*source[mask > 0].tolist(), *labels[labels >= 0].tolist()))
        assert sorted(seen) == wanted
        orders.append(seen)
    assert orders[0] != orders[1]


def test_a_pair_longer_than_a_batch_has_one_of_its_own():
    data = rule_pairs(5)
    assert np.diff(batch_cuts(data, 2)).tolist() == [1] * 5


def test_parts_of_a_batch_have_the_loss_and_gradient_of_the_whole():
    trained = objective(rule_pairs(30), batch_tokens=256)
    full = trained(trained.batch(1, 0, 1))["loss"]
    full.backward()
    learnt = [parameter for parameter in trained.parameters() if parameter.requires_grad]
    gradient = [parameter.grad.clone() for parameter in learnt]
    trained.zero_grad()
    parts = [trained(trained.batch(1, part, 3))["loss"] / 3 for part in range(3)]
    sum(parts).backward()
    torch.testing.assert_close(sum(parts), full)
    for parameter, wanted in zip(learnt, gradient, strict=True):
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-4, atol=1e-6)


def test_padding_changes_no_loss():
    trained, data = objective(rule_pairs(1)), rule_pairs(4)
    trained.eval()
    together = trained(trained.pairs.collate(data, np.arange(4), 1.0))["loss"]
    single = sum(trained(trained.pairs.collate(data, np.array([row]), 1.0))["loss"] for row in range(4))
    torch.testing.assert_close(together, single)


@pytest.mark.long
def test_a_rule_is_learnt_and_a_stopped_run_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    data, held_out = rule_pairs(400), rule_pairs(20, seed=1)
    options = {
        "batch_tokens": 512,
        "learning_rate": 1e-2,
        "muon_learning_rate": 2e-2,
        "warmup_steps": 5,
        "checkpoint_every": 50,
    }

    def train(directory, steps):
        torch.manual_seed(0)
        model = new_translator(SHAPE, 24, EOS, PAD)
        return train_translation(
            data, held_out, tmp_path / directory, model, TranslationTraining(steps=steps, **options)
        )

    model = train("whole", 200)
    record = json.loads((tmp_path / "whole" / "training-log.jsonl").read_text().splitlines()[-1])
    assert record["validation"]["accuracy"] > 0.99
    loaded = MarianMTModel.from_pretrained(tmp_path / "whole").eval()
    for index in range(5):
        cut = int(held_out.prompt_lengths[index])
        written = loaded.generate(
            torch.tensor([held_out[index][:cut].tolist()]), do_sample=False, num_beams=1, max_new_tokens=12
        )
        assert written[0, 1:].tolist() == held_out[index][cut:].tolist()

    def dies(trainer, module, factor, update=Trainer.update):
        if trainer.step == 120:
            raise KeyboardInterrupt
        return update(trainer, module, factor)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "update", dies)
        with pytest.raises(KeyboardInterrupt):
            train("killed", 200)
    again = train("killed", 200)
    for name, parameter in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], parameter, rtol=0, atol=0)


def test_a_stopped_run_goes_on_with_the_same_dropout(tmp_path):
    options = TranslationTraining(steps=4, batch_tokens=64, warmup_steps=1, checkpoint_every=2)

    def train(directory, batches=4):
        torch.manual_seed(0)
        model = new_translator(replace(SHAPE, dropout=0.3), 24, EOS, PAD)
        trained = TranslationObjective(model, rule_pairs(40), rule_pairs(4), options)
        make = trained.batch
        trained.batch = lambda step, part, parts: make(step, part, parts) if step < batches else 1 / 0
        Trainer(trained, tmp_path / directory, options).run()
        return model.state_dict()

    full = train("whole")
    with pytest.raises(ZeroDivisionError):
        train("cut", 3)
    again = train("cut")
    assert all(torch.equal(again[name], full[name]) for name in full)


def test_a_sentence_beyond_the_models_positions_is_refused(tmp_path):
    long = Texts.of_rows([np.arange(3, 23).repeat(20)], [10], np.uint16)
    with pytest.raises(ValueError, match=r"at most 256 tokens .* got one of 390"):
        train_translation(long, rule_pairs(2), tmp_path, new_translator(SHAPE, 24, EOS, PAD), TranslationTraining())


def test_the_command_trains_from_text_and_a_student_from_what_a_teacher_wrote(tmp_path):
    pairs = tmp_path / "pairs.v1.jsonl"
    pairs.write_text("".join(json.dumps({"from": pair[0], "to": pair[1]}) + "\n" for pair in PAIRS))

    def command(data, output, *more):
        arguments = [
            "train",
            "translation",
            str(tmp_path / data),
            "--validation",
            str(tmp_path / data),
            "-o",
            str(tmp_path / output),
        ]
        return CliRunner().invoke(app, [*arguments, "--shape", "small", "--steps", "2", *more], catch_exceptions=False)

    fields = ("--source", "from", "--target", "to", "--vocab-size", "300")
    assert command("pairs.v1.jsonl", "teacher", *fields).exit_code == 0
    tokenizer = tmp_path / "teacher" / "tokenizer.json"
    encode_pairs(PAIRS, Tokenizer.from_file(str(tokenizer))).save(tmp_path / "written.npz")
    with pytest.raises(ValueError, match=r"written\.npz: expected --tokenizer"):
        command("written.npz", "student")
    assert command("written.npz", "student", "--tokenizer", str(tokenizer)).exit_code == 0
    student = MarianMTModel.from_pretrained(tmp_path / "student")
    assert student.config.vocab_size == Tokenizer.from_file(str(tokenizer)).get_vocab_size()
    assert (tmp_path / "student" / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
    further = ("--model", str(tmp_path / "teacher"))
    assert (
        command("written.npz", "taught", *further, "--learning-rate", "0", "--muon-learning-rate", "0").exit_code == 0
    )
    teacher, taught = (MarianMTModel.from_pretrained(tmp_path / name).state_dict() for name in ("teacher", "taught"))
    assert all(torch.equal(teacher[name], taught[name]) for name in teacher)
    with pytest.raises(ValueError, match="expected either --model, whose tokenizer is kept, or --tokenizer, got both"):
        command("written.npz", "both", *further, "--tokenizer", str(tokenizer))
    assert not (tmp_path / "both").exists()
    (tmp_path / "teacher" / "tokenizer.json").unlink()
    with pytest.raises(
        ValueError, match=r"tokenizer\.json: expected the tokenizer of the model to begin with, found none"
    ):
        command("pairs.v1.jsonl", "both", *further, *fields)


def test_positions_that_are_constants_are_not_learnt_by_models_from_disk(tmp_path):
    new = new_translator(SHAPE, 24, EOS, PAD)
    new.save_pretrained(tmp_path)
    frozen = {name for name, parameter in new.named_parameters() if not parameter.requires_grad}
    assert len(frozen) == 2
    assert {
        name for name, parameter in load_translator(tmp_path).named_parameters() if not parameter.requires_grad
    } == frozen


def test_the_command_refuses_another_kind_of_tokenizer(tmp_path):
    from lm_training.data.corpus import train_tokenizer

    train_tokenizer(["some text"], 260).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "pairs.jsonl").write_text('{"en": "a", "de": "b"}\n')
    arguments = ["train", "translation", str(tmp_path / "pairs.jsonl"), "--validation", str(tmp_path / "pairs.jsonl")]
    with pytest.raises(
        ValueError, match=r"expected a tokenizer of `latticebpd train translation`, got one without the token <\|pad\|>"
    ):
        CliRunner().invoke(
            app,
            [*arguments, "-o", str(tmp_path), "--tokenizer", str(tmp_path / "tokenizer.json")],
            catch_exceptions=False,
        )
