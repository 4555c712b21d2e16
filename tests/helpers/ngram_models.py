"""Small backoff models as dictionaries of words, drawn by Hypothesis, and the recursion that defines them."""

from __future__ import annotations

from hypothesis import strategies as st

Gram = tuple[str, ...]
Ngrams = dict[Gram, tuple[float, float]]
"""log10 probability and log10 backoff of every n-gram."""


@st.composite
def ngrams(
    draw: st.DrawFn, max_order: int = 4, suffixes: bool = False, words: tuple[str, ...] = ("0", "1", "3", "4")
) -> Ngrams:
    """Models that contain the context of every n-gram, and its suffix if ``suffixes``; backoffs lie on both sides of
    0."""
    markers = [marker for marker in ("<s>", "</s>", "<unk>") if draw(st.booleans())]
    vocabulary = draw(st.lists(st.sampled_from(words), min_size=1, unique=True)) + markers
    log10_probs = st.integers(-300, -1).map(lambda hundredths: hundredths / 100)
    log10_backoffs = st.one_of(st.just(0.0), st.integers(-150, 60).map(lambda hundredths: hundredths / 100))
    model: Ngrams = {}
    layer: list[Gram] = [()]
    for order in range(draw(st.integers(1, max_order))):
        longer: list[Gram] = []
        for context in layer:
            if context and context[-1] == "</s>":
                continue
            for word in vocabulary:
                gram = (*context, word)
                if order and (word == "<s>" or (suffixes and gram[1:] not in model) or not draw(st.integers(0, 2))):
                    continue
                log10_prob = -99.0 if word == "<s>" else draw(log10_probs)
                model[gram] = log10_prob, 0.0 if word == "</s>" else draw(log10_backoffs)
                longer.append(gram)
        layer = longer
    return model


def order_of(model: Ngrams) -> int:
    return max(map(len, model))


def log10_prob(model: Ngrams, context: Gram, word: str) -> float:
    """log10 p(word | context): the n-gram's own, or the backoff weight times that of the shorter context."""
    context = context[max(0, len(context) - order_of(model) + 1) :]
    if (*context, word) in model:
        return model[(*context, word)][0]
    assert context, f"{word} is missing from the unigrams"
    return model.get(context, (0.0, 0.0))[1] + log10_prob(model, context[1:], word)


def arpa(model: Ngrams) -> str:
    """The model as ARPA text, backoffs of 0 left out."""
    lines = ["\\data\\"]
    sections = [[gram for gram in model if len(gram) == order] for order in range(1, order_of(model) + 1)]
    lines += [f"ngram {order}={len(section)}" for order, section in enumerate(sections, 1)]
    for order, section in enumerate(sections, 1):
        lines += ["", f"\\{order}-grams:"]
        for gram in section:
            backoff = f"\t{model[gram][1]}" if model[gram][1] and order < len(sections) else ""
            lines.append(f"{model[gram][0]}\t{' '.join(gram)}{backoff}")
    return "\n".join([*lines, "", "\\end\\", ""])
