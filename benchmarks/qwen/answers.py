"""Finished shards of a model's answers as one small file, back into a folder that `distill` resumes, and as a corpus.

    python -m benchmarks.qwen.answers pack WRITTEN -o answers/0.5b.npz.xz
    python -m benchmarks.qwen.answers unpack answers/0.5b.npz.xz --prompts prompts.npz -o WRITTEN
    python -m benchmarks.qwen.answers corpus WRITTEN --prompts prompts.jsonl -o FOLDER --held-out 6 14

WRITTEN is what ``latticebpd distill`` fills; the file lacks the prompts, which `prompts.py` makes again.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Collection
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from benchmarks.common import options, run
from fst.files import replacing
from latticebpd.lattices.shards import distilled_directory
from latticebpd.lattices.texts import Texts
from lm_training.data.hidden_states import LAST, save_states, states_directory


def pack(written: Path, path: Path) -> None:
    """Write the finished shards of a directory without their prompts, and its settings.

    ``shards`` their numbers, ``texts`` how many answers each has, ``lengths`` those of all answers, ``tokens``
    ``[type's bytes, n]``, one plane of bytes after another, which compresses better. ValueError without a shard.
    """
    directory = distilled_directory(written)
    settings, files = directory.settings(), sorted(directory.path.glob("shard-*.npz"))
    if not files:
        raise ValueError(f"{written}: expected shards of answers, found none; run `latticebpd distill` first")
    shards = [Texts.load(file) for file in files]
    rows = [row[prompt:] for texts in shards for row, prompt in texts.items()]
    tokens = np.concatenate([np.array(row, shards[0].tokens.dtype) for row in rows])
    arrays = {
        "shards": np.array([int(file.stem[6:]) for file in files], np.int32),
        "texts": np.array([*map(len, shards)], np.int32),
        "lengths": np.array([*map(len, rows)], np.int32),
        "tokens": tokens.view(np.uint8).reshape(len(tokens), -1).T.copy(),
        "type": np.array(str(tokens.dtype)),
        "settings": np.array(json.dumps(settings)),
    }
    with replacing(path) as temporary, lzma.open(temporary, "wb", preset=9) as file:
        np.savez(file, **arrays)
    print(
        f"{path}: {len(rows)} answers, {len(tokens)} tokens, {path.stat().st_size / max(1, len(tokens)):.2f} bytes each"
    )


def unpack(path: Path, prompts: Texts, written: Path) -> None:
    """Write a file's shards, with their prompts, into a directory that `distill` resumes; its own shards stay.

    ValueError if the answers are to other prompts, or the directory has other settings.
    """
    with np.load(BytesIO(lzma.decompress(path.read_bytes())), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    settings, asked = json.loads(str(arrays["settings"])), prompts.prompts()
    if settings["prompts_hash"] != asked.fingerprint():
        raise ValueError(
            f"{path}: expected the answers to these prompts ({asked.fingerprint()}), got {settings['prompts_hash']}; "
            "make the prompts with the same model, data and count"
        )
    directory, size = distilled_directory(written), settings["options"]["shard_prompts"]
    directory.claim(settings)
    tokens = np.ascontiguousarray(arrays["tokens"].T).view(np.dtype(str(arrays["type"]))).reshape(-1)
    answers = iter(np.split(tokens, np.cumsum(arrays["lengths"])[:-1]))
    for shard, count in zip(arrays["shards"].tolist(), arrays["texts"].tolist(), strict=True):
        begun = [asked[number] for number in range(shard * size, shard * size + count)]
        rows = [np.concatenate([prompt, next(answers)]) for prompt in begun]
        if not directory.file(shard).exists():
            Texts.of_rows(rows, [*map(len, begun)], tokens.dtype).save(directory.file(shard))


LEFT_OUT = {"summ_dialog"}
"""Kinds of prompts whose text may not be used commercially."""
HELD_OUT = 16
"""Every so many-th answer is held out, unless shards are."""


def corpus(written: Path, kinds: list[str], folder: Path, held_out: Collection[int] = ()) -> None:
    """Write what drafts learn from: prompts with their answers, without those of `LEFT_OUT` kinds.

    ``learn.npz`` and ``held-out.npz`` are of the shards whose hidden states `distill` stored, with these states, or of
    all if there are none; ``more.npz`` has the other shards, from which only n-gram models learn.
    kinds: of all prompts, in order.  held_out: shards that are held out, in place of single answers: those to prompts
    of which an n-gram model has another model's answers, say, would make that n-gram model look better than it is.
    """
    directory, own = distilled_directory(written), states_directory(written)
    size = directory.settings()["options"]["shard_prompts"]
    numbers = [int(file.stem[6:]) for file in sorted(directory.path.glob("shard-*.npz"))]
    stated = [number for number in numbers if own.file(number).exists()]
    texts, states, apart = list[Texts](), list[torch.Tensor](), list[bool]()
    for number in stated or numbers:
        shard = Texts.load(directory.file(number))
        kept = allowed(len(shard), kinds[number * size :])
        texts.append(shard.chosen(kept))
        apart += [number in held_out] * len(kept)
        if stated:
            rows = load_file(own.file(number))[LAST].split(shard.answer_lengths.tolist())
            states += [rows[row] for row in kept]
    every = Texts.joined(texts)
    chosen_apart = np.array(apart) if held_out else np.arange(len(every)) % HELD_OUT == 0
    folder.mkdir(parents=True, exist_ok=True)
    for name, chosen in (("held-out", chosen_apart), ("learn", ~chosen_apart)):
        path, rows = folder / f"{name}.npz", np.flatnonzero(chosen).tolist()
        if stated:
            to = states_directory(path)
            to.claim(own.settings() | {"num_shards": 1, "shard_texts": len(rows)})
            save_states(to.file(0), every.chosen(rows), {LAST: torch.cat([states[row] for row in rows])})
        save(every.chosen(rows), path)
    if others := sorted({*numbers} - {*(stated or numbers)}):
        shards = ((number, Texts.load(directory.file(number))) for number in others)
        more = [shard.chosen(allowed(len(shard), kinds[number * size :])) for number, shard in shards]
        save(Texts.joined(more), folder / "more.npz")


def allowed(texts: int, kinds: list[str]) -> list[int]:
    """Which of a shard's texts may be used.  kinds: of its prompts and those after them."""
    return [row for row in range(texts) if kinds[row] not in LEFT_OUT]


def save(texts: Texts, path: Path) -> None:
    texts.save(path)
    print(f"{path}: {len(texts)} answers, {texts.num_labels} tokens")


def main() -> None:
    parser = options(__doc__, whole=True)
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="finished shards -> one file")
    packing.add_argument("written", type=Path, help="what `latticebpd distill` fills")
    unpacking = commands.add_parser("unpack", help="such a file -> shards")
    unpacking.add_argument("file", type=Path, help="what `pack` wrote")
    unpacking.add_argument("--prompts", type=Path, required=True, help="what `prompts.py` wrote (.npz)")
    reading = commands.add_parser("corpus", help="finished shards -> what drafts learn from")
    reading.add_argument("written", type=Path, help="what `latticebpd distill` fills")
    reading.add_argument("--prompts", type=Path, required=True, help="what `prompts.py` wrote beside them (.jsonl)")
    reading.add_argument("--held-out", type=int, nargs="*", default=(), help="shards; by default every 16th answer")
    for each in (packing, unpacking, reading):
        each.add_argument("-o", "--output", type=Path, required=True, help="file or directory to write")
    args = parser.parse_args()
    if args.command == "pack":
        pack(args.written, args.output)
    elif args.command == "corpus":
        kinds = [json.loads(line)["kind"] for line in args.prompts.read_text(encoding="utf-8").splitlines()]
        corpus(args.written, kinds, args.output, args.held_out)
    else:
        unpack(args.file, Texts.load(args.prompts), args.output)


if __name__ == "__main__":
    run(main)
