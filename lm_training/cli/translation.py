"""``latticebpd train translation``: small encoder-decoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from latticebpd.checks import expect
from latticebpd.cli.input_data import readable, require_inputs
from latticebpd.cli.json_option import with_json
from latticebpd.console import load_tokenizer, next_command, quiet_transformers
from lm_training.cli.options import DEVICE, OUTPUT, VALIDATION, with_options
from lm_training.training.training_options import TranslationTraining


@with_json
@with_options
def translation(
    pairs: list[Path] = typer.Argument(
        ..., callback=readable, help="JSONL of sentence pairs; or, with --tokenizer, distilled text."
    ),
    validation: Path = VALIDATION,
    output: Path = OUTPUT,
    source: str = typer.Option("en", help="Field of the sentence to translate."),
    target: str = typer.Option("de", help="Field of its translation."),
    shape: str = typer.Option("base", help="base: 3 + 3 layers, width 192; small: 2 + 2 layers, width 128."),
    vocab_size: int = typer.Option(4096, min=260, help="Tokens of the byte-level BPE that both languages share."),
    tokenizer: Path | None = typer.Option(None, help="tokenizer.json of another such model, to reuse."),
    model: Path | None = typer.Option(None, help="Directory of such a model to start from; gives tokenizer and shape."),
    *,
    options: TranslationTraining,
    device: str = DEVICE,
) -> dict[str, Any] | None:
    """Train a small Marian translation model, from scratch or from another one's weights.

    Example: [bold]latticebpd train translation train.jsonl --validation val.jsonl --source en --target de -o
        translator[/bold]
    """
    require_inputs([*pairs, validation], model)
    quiet_transformers()
    from dataclasses import asdict

    import torch

    from fst.fingerprint import vocabulary_fingerprint
    from latticebpd.lattices.texts import Texts
    from lm_training.cli.training_run import is_new_run, run_record, training_run
    from lm_training.data.pairs import PADDING, encode_pairs, read_pairs, save_tokenizer, train_pair_tokenizer
    from lm_training.data.sequences import load_texts
    from lm_training.data.text_tokenizer import end_of_text_id
    from lm_training.families.shapes import TRANSLATORS
    from lm_training.families.translators import load_translator, new_translator, train_translation

    expect(model is None or tokenizer is None, "either --model, whose tokenizer is kept, or --tokenizer", "both")
    expect(shape in TRANSLATORS, f"--shape {' or '.join(TRANSLATORS)}", repr(shape))
    kept = tokenizer or (model or output) / "tokenizer.json"
    if model is not None and not kept.exists():
        raise ValueError(f"{kept}: expected the tokenizer of the model to begin with, found none")
    texts = [path for path in [*pairs, validation] if ".jsonl" in path.suffixes]
    if kept.exists():
        bpe = load_tokenizer(kept)
    elif pairs[0] in texts:
        read = read_pairs([path for path in pairs if path in texts], source, target)
        bpe = train_pair_tokenizer((text for pair in read for text in pair), vocab_size)
    else:
        raise ValueError(f"{pairs[0]}: expected --tokenizer, the one that the token ids were made with, got none")

    def load(path: Path) -> Texts:
        return encode_pairs(read_pairs([path], source, target), bpe) if path in texts else load_texts(path, window=0)

    padding = bpe.token_to_id(PADDING)
    if padding is None:
        wanted = "a tokenizer of `latticebpd train translation`"
        raise ValueError(f"{kept}: expected {wanted}, got one without the token {PADDING}")
    torch.manual_seed(options.seed)
    if model is not None:
        translator, initial = load_translator(model), None
    else:
        translator = new_translator(TRANSLATORS[shape], bpe.get_vocab_size(), end_of_text_id(bpe), padding)
        initial = {**asdict(TRANSLATORS[shape]), "vocabulary": vocabulary_fingerprint(bpe.get_vocab())}
    with training_run(output, options, device) as process:
        if is_new_run(output, process):
            save_tokenizer(bpe, output)
        learnt = Texts.joined([load(path) for path in pairs])
        train_translation(learnt, load(validation), output, translator, options, process, initial)
    if process.rank:
        return None
    fields = f"--prompt-template '{{{{{source}}}}}' --answer-field {target} --prompts-only"
    next_command(f"train encode SENTENCES {fields} --tokenizer {{}} -o sources.npz", output)
    return run_record(output)
