"""Quality of texts by their task's measure, as in the papers (Kim 2024, table 10; Stern 2018, table 1).

    perplexity     language modelling          exact-match, f1    question answering, with SQuAD's normalisation
    rouge-l        summarisation               bleu               translation

Under exact acceptance every system writes the base model's text and has its quality; lenient rules trade quality for
calls. All but perplexity are percentages; of several references of a text the best counts.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import TypeAlias

import torch

from latticebpd.checks import expect, extra_module
from latticebpd.models.target_model import AnyModel, target_model
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.verification.finished_texts import read_text

References: TypeAlias = Sequence[Sequence[str]]
"""One or more of every text."""


def exact_match(texts: Sequence[str], references: References) -> float:
    """% of texts that equal a reference, both normalised."""
    return _mean(texts, references, lambda text, reference: float(normalised(text) == normalised(reference)))


def f1(texts: Sequence[str], references: References) -> float:
    """Mean over texts of the harmonic mean of precision and recall of their words, normalised, %."""
    return _mean(texts, references, _overlap)


def rouge_l(texts: Sequence[str], references: References) -> float:
    """Mean F-measure of ROUGE-L, stemmed, %; ValueError without the package ``rouge-score``."""
    rouge_scorer = extra_module("rouge_score.rouge_scorer", "summarisation", "ROUGE-L")
    scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=True)
    return _mean(texts, references, lambda text, reference: float(scorer.score(reference, text)["rougeL"].fmeasure))


def bleu(texts: Sequence[str], references: References) -> float:
    """Corpus BLEU at ``sacrebleu``'s defaults; ValueError without it, or for different numbers of references."""
    sacrebleu = extra_module("sacrebleu", "translation", "BLEU")
    wanted = "as many references for every text, for BLEU"
    expect(len({len(each) for each in references}) == 1, wanted, "different numbers")
    return float(sacrebleu.corpus_bleu(list(texts), [list(column) for column in zip(*references, strict=True)]).score)


MEASURES: dict[str, Callable[[Sequence[str], References], float]] = {
    "exact-match": exact_match, "f1": f1, "rouge-l": rouge_l, "bleu": bleu,
}  # fmt: skip


@torch.inference_mode()
def perplexity(model: AnyModel, texts: Iterable[tuple[Sequence[int], int]]) -> float:
    """exp of the mean negative log-probability, per token, of what follows each prompt.

    texts: tokens, prompt included, and length of the prompt; of an encoder–decoder the prompt is the source. Raises
    ValueError where nothing follows any prompt, or for more tokens than the model's positions.
    """
    target, loss, count = target_model(model), 0.0, 0
    for text, prompt_length in texts:
        longest = len(text) - prompt_length if target.is_encoder_decoder else len(text) - 1
        wanted = f"texts of at most {target.max_positions} tokens (the model's positions)"
        expect(longest <= (target.max_positions or longest), wanted, longest, "cut them")
        prompt, following = list(text[:prompt_length]), list(text[prompt_length:])
        if not following:
            continue
        if target.is_encoder_decoder:
            start = TransformersModel.of(model).start_id
            read = read_text(target, [start, *following[:-1]], range(len(following)), source=prompt)
        else:
            read = read_text(target, list(text[:-1]), range(prompt_length - 1, len(text) - 1))
        right = torch.tensor(following, device=read.logits.device)[:, None]
        loss -= float(read.logits.float().log_softmax(dim=-1).gather(1, right).double().sum())
        count += len(following)
    expect(count, "at least one token after a prompt")
    return math.exp(loss / count)


def normalised(text: str) -> str:
    """In lower case, without punctuation and articles, words separated by one space, as in SQuAD's own evaluation."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def _overlap(text: str, reference: str) -> float:
    words, wanted = normalised(text).split(), normalised(reference).split()
    if not words or not wanted:
        return float(words == wanted)
    return 2 * (Counter(words) & Counter(wanted)).total() / (len(words) + len(wanted))


def _mean(texts: Sequence[str], references: References, score: Callable[[str, str], float]) -> float:
    pairs = zip(texts, references, strict=True)
    return 100 * fmean(max(score(text, reference) for reference in each) for text, each in pairs)
