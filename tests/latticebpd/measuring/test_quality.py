"""Quality of texts: worked examples, outside packages and the models' own losses."""

from __future__ import annotations

import math

import pytest
import torch
from sacrebleu import corpus_bleu

from latticebpd.measuring.quality import bleu, exact_match, f1, normalised, perplexity, rouge_l
from latticebpd.models.transformers.transformers_model import TransformersModel
from tests.helpers.tiny_families import tiny


def test_normalisation_is_squads() -> None:
    assert normalised(" The  quick, brown FOX's den; an apple\n") == "quick brown foxs den apple"
    assert normalised("theatre a") == "theatre"


def test_exact_match_and_f1_by_hand() -> None:
    texts = ["The Grumman Corp.", "in 1990", ""]
    references = [["Northrop", "grumman corp"], ["1990"], ["none"]]
    assert exact_match(texts, references) == pytest.approx(100 / 3)
    assert f1(texts, references) == pytest.approx(100 * (1 + 2 / 3 + 0) / 3)  # "in 1990": precision 1/2, recall 1
    assert f1(["a the"], [["an"]]) == 100  # nothing is left of either
    assert f1(["x x y"], [["x z"]]) == pytest.approx(
        100 * 2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2)
    )  # a word counts as often as in both


def test_rouge_l_by_hand() -> None:
    # The longest common subsequence of (the cat sat down) and (the cat was down) has 3 of 4 words.
    assert rouge_l(["the cat sat down"], [["nothing alike", "the cat was down"]]) == pytest.approx(75)
    assert rouge_l(["cats"], [["cat"]]) == 100  # stemmed


def test_bleu_is_sacrebleus() -> None:
    texts, references = (
        ["ein Hund rennt schnell über die Wiese", "zwei Katzen"],
        ["ein Hund rennt über die grüne Wiese", "zwei Katzen"],
    )
    assert bleu(texts, [[text] for text in references]) == corpus_bleu(texts, [references]).score
    with pytest.raises(ValueError, match="as many references for every text"):
        bleu(texts, [["a", "b"], ["c"]])


@pytest.mark.parametrize("family", ["gpt2", "llama", "marian", "t5"])
def test_perplexity_is_that_of_the_models_own_loss(family: str) -> None:
    model = tiny(family)
    texts = [([5, 6, 7, 8, 9], 2), ([4, 3, 9], 1), ([7, 8], 2)]
    total = count = 0.0
    for text, length in texts[:2]:
        if TransformersModel.of(model).is_encoder_decoder:
            loss = model(input_ids=torch.tensor([text[:length]]), labels=torch.tensor([text[length:]])).loss
        else:
            labels = torch.tensor([[-100] * length + text[length:]])
            loss = model(input_ids=torch.tensor([text]), labels=labels).loss
        total += float(loss.detach()) * (len(text) - length)
        count += len(text) - length
    assert perplexity(model, texts) == pytest.approx(math.exp(total / count), rel=1e-5)
    with pytest.raises(ValueError, match="at least one token after a prompt"):
        perplexity(model, texts[2:])
    if family in ("gpt2", "marian"):
        with pytest.raises(ValueError, match="expected texts of at most 96 tokens"):
            perplexity(model, [([5] * 98, 1)])
        assert perplexity(model, [([5] * 97, 1)]) > 0  # the last token is not read
