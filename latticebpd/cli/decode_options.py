"""Decodes by a model: options of ``compare`` and ``report``, which decode some texts next to their replays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fst.files import read_text
from latticebpd.checks import expect
from latticebpd.cli.tables import warn_differing
from latticebpd.console import progress
from latticebpd.lattices.json_files import read_json_lines

if TYPE_CHECKING:
    from latticebpd.drafters.system_names import Models
    from latticebpd.loading import Loaded
    from latticebpd.measuring.examples import FittedRecord
    from latticebpd.measuring.model_decodes import Decoded

RULE: Any = typer.Option(
    ["exact"], help="With --model: acceptance rules: exact, top-k:2, distance:2, min-block:3, beta:5,3; repeatable."
)
MEASURE: Any = typer.Option(
    [],
    help="With --model: quality of its output: exact-match, f1, rouge-l, bleu, perplexity (of its output) or "
    "reference-perplexity (of the references, as in Kim et al.; independent of drafts). May be repeated.",
)
REFERENCES: Any = typer.Option(None, help="References, one a line, or JSONL; by default, of given text, that text.")
FIELD: Any = typer.Option("reference", help="JSONL field of --references: a text, or a list of them.")


def decode_again(
    loaded: Loaded,
    k: int,
    paths: Sequence[Path],
    tunings: Sequence[FittedRecord],
    systems: Sequence[str],
    lm: Models,
    alpha: float | None,
    given_text: bool,
    limit: int,
    rules: Sequence[str] = ("exact",),
    measures: Sequence[str] = (),
    references: Path | None = None,
    field: str = "reference",
    prompt_context: bool = True,
) -> tuple[Decoded, dict[str, list[float]]]:
    """Decodes of the first texts of directories of lattices, those left out that a weight was tuned on; their
    quality."""
    from latticebpd.decoding.rule_names import parse_rule
    from latticebpd.lattices.shards import text_ends, texts_of
    from latticebpd.measuring.examples import remaining_texts
    from latticebpd.measuring.model_decodes import PERPLEXITY, check_measures, decode, qualities, system_drafters
    from latticebpd.models.chat import PlainText

    check_measures(measures)
    accepted = {name: parse_rule(name) for name in rules}
    numbered = list(islice(remaining_texts(paths, tunings), limit))
    texts = [text for _, text in numbered]
    wanted: list[list[str]] = []
    right: list[tuple[list[int], int]] = []
    tokenizer: Any = loaded.tokenizer if set(measures) - {PERPLEXITY} else None
    words = PlainText(tokenizer).text
    if tokenizer is not None:
        if references is not None:
            everything = read_references(references, field, sum(1 for _ in texts_of(paths)))
            wanted = [everything[number] for number, _ in numbered]
            first = [each[0] for each in wanted]
            kind = (
                {"text_target": first}
                if loaded.target.is_encoder_decoder
                else {"text": first, "add_special_tokens": False}
            )
            spelled = zip(tokenizer(**kind)["input_ids"], texts, strict=True)
            right = [([*text[:length], *ids], length) for ids, (text, length) in spelled]
        elif given_text:
            wanted, right = [[words(text[length:])] for text, length in texts], texts
        else:
            reason = "since the lattices are of the model's own text"
            raise ValueError(f"expected --references with --measure, {reason}; got none")
    drafters = system_drafters(loaded.lattice_source(k), systems, lm, alpha, prompt_context)
    with progress() as bar:
        task = bar.add_task("decoding", total=len(numbered) * len(drafters) * len(accepted))
        ends = text_ends(paths[0])
        decoded = decode(loaded.target, texts, drafters, lambda: bar.advance(task), given_text, accepted, ends)
    exact = [int(count) for name, count in zip(decoded.names, decoded.differing, strict=True) if name in systems]
    if any(exact):
        warn_differing(max(exact))
    return decoded, qualities(decoded, loaded.target, words, measures, wanted, right)


def read_references(path: Path, field: str, count: int) -> list[list[str]]:
    """Of every text, its references; ValueError for other than ``count`` lines, or a record without the field."""

    def parse(record: Any) -> list[str]:
        value = record[field]
        texts = [value] if isinstance(value, str) else list(value)
        if not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{field} is {value!r}")
        return texts

    if path.suffix == ".jsonl":
        references = list(read_json_lines(path, parse, f"an object with {field!r}, a text or a list of texts"))
    else:
        references = [[line] for line in read_text(path).splitlines() if line.strip()]
    expect(len(references) == count, f"one line for each of the lattices' {count} texts", len(references), of=path)
    return references
