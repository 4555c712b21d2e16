"""Heads and n-gram model for SmolLM2-135M-Instruct, from nothing but text of open licences: one resumable command.

    latticebpd models get smollm2-135m
    python -m benchmarks.smollm2.make --data DIR --work WORK --text WORK/more.npz                  # on two cores
    python -m benchmarks.smollm2.make --data DIR --work WORK --text WORK/more.npz --device cuda    # heads on a GPU

``WORK`` then holds, stage by stage, the prompts, what the model answers them with, its hidden states, the heads, the
n-gram models, the lattices of held-out answers, the weights and the calibration; a stage whose result is there is not
done again. ``own-text.npz`` has answers without their prompts; `more_text.py` writes more.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import latticebpd, options, read_lines, stage
from benchmarks.smollm2.prompts import prompts, save_prompts
from fst.files import replacing
from latticebpd import load
from latticebpd.drafters.heads.blockwise import load_blockwise
from latticebpd.lattices.texts import Texts
from latticebpd.models.catalogue import resolved
from latticebpd.models.chat import ChatTemplate

HERE = Path(__file__).parent

MODEL, END = "smollm2-135m", 2
HELD_OUT = 32
"""The answer to every 32nd prompt is held out."""
LATER = "0.7,0.5,0.4,0.3,0.25,0.2,0.2"
"""How often heads after the first learn: draft trees have fewer and fewer nodes from slot to slot."""
TRAINING = "--warmup-steps 50 --checkpoint-every 50 --serving-prompts 0"
SHAPE, SHORTLIST = "--num-heads 9 --intermediate-size 640", "--shortlist 16384"
HEADS = f"{SHAPE} --head-weights 1,{LATER} {TRAINING}"
RATE = "--learning-rate 2e-3"
UPDATES = "--batch-size 40 --head-positions 0.25 --labels model --weight-decay 1 --precision bfloat16"
LAYERS = "--layers 26"
FURTHER = f"{TRAINING} {UPDATES} --label-temperature 0.5 --warm-start"
DEEPER = f"{LAYERS} --head-weights 1,{LATER} --learning-rate 6e-4 --steps 1500 {FURTHER}"
"""Trained heads learn to read the states of layer 26 too, from sharper probabilities."""
TIED = f"--freeze-heads --transitions 512 --head-weights 0,{LATER}"
TRANSITIONS = f"{TIED} {RATE} --steps 1100 {FURTHER}"
ON_GPU = (
    f"--device cuda --base-dtype bfloat16 --precision bfloat16 --warmup-steps 50 --serving-prompts 0 {RATE} "
    "--objective joint --head-positions 0.4 --labels model --label-temperature 0.5"
)
"""There all heads learn at once, and the model reads the texts anew for each update."""
PEOPLE = [f"text/{name}.jsonl.xz" for name in ("books-000", "books-001", "docs-000", "news-000")]
PEOPLE += ["code/code-000.jsonl.xz"]


def save_answers(path: Path, ids: np.ndarray, texts: Texts, prompts_hash: str) -> None:
    """Answers without their prompts, by the prompts' numbers; a name that ends with ``.xz`` makes them a quarter
    smaller than ``.npz``."""
    rows = [texts[index][length:] for index, length in enumerate(texts.prompt_lengths.tolist())]
    arrays = {"ids": ids, "lengths": np.array(list(map(len, rows))), "tokens": np.concatenate(rows)}
    short: dict[str, Any] = {name: each.astype(np.uint16) for name, each in arrays.items()}
    packed = path.suffix == ".xz"
    with replacing(path) as temporary, lzma.open(temporary, "wb") if packed else open(temporary, "wb") as file:
        (np.savez if packed else np.savez_compressed)(file, **short, prompts=np.array(prompts_hash))


def stored_answers(path: Path) -> tuple[np.ndarray, list[np.ndarray], str]:
    """The prompts' numbers, the answers without their prompts, and the prompts' hash."""
    content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    with np.load(BytesIO(content), allow_pickle=False) as file:
        ends = np.cumsum(file["lengths"].astype(np.int64))[:-1]
        return file["ids"].astype(np.int64), np.split(file["tokens"], ends), str(file["prompts"])


def load_answers(path: Path, prompts: list[list[int]], prompts_hash: str) -> tuple[np.ndarray, Texts]:
    """The prompts' numbers, and prompts and answers joined again."""
    ids, answers, stored_hash = stored_answers(path)
    if stored_hash != prompts_hash:
        wanted = f"expected the answers to the prompts of this data ({prompts_hash})"
        raise ValueError(f"{path}: {wanted}, got {stored_hash}")
    begun = [np.array(prompts[number], np.uint16) for number in ids.tolist()]
    return ids, Texts.of_rows([*map(np.concatenate, zip(begun, answers, strict=True))], [*map(len, begun)], np.uint16)


def chat_template() -> ChatTemplate:
    loaded = load(MODEL)
    return ChatTemplate(loaded.tokenizer, loaded.target)


def chat_prompts(path: Path) -> tuple[list[list[int]], str]:
    """Every conversation's prompt in the model's template, and a hash of them all."""
    chat = chat_template()
    prompts = [chat.prompt_of(row["messages"]) for row in read_lines(path)]
    return prompts, f"sha256:{hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16]}"


def conversations(work: Path, data: Path) -> Path:
    """What the model is asked, as `prompts.py` chooses it."""
    path = work / "prompts.jsonl"
    return stage(path, lambda: save_prompts(path, prompts(data, 6000, chat_template())))


def people_corpus(work: Path, data: Path) -> Path:
    """People's text as the model's tokens."""
    path, files = work / "people.npy", [data / name for name in PEOPLE]
    tokenizer = ("--tokenizer", Path(resolved(MODEL)) / "tokenizer.json", "--end-of-text <|im_end|> -o")
    return stage(path, lambda: latticebpd("train", "encode", *files, *tokenizer, path))


def own_text(work: Path, data: Path, further: Sequence[Path] = ()) -> tuple[Path, Path]:
    """Training and held-out texts: prompts and the model's own greedy answers; further ones are all for training."""
    train, held = work / "train.npz", work / "held-out.npz"
    if train.exists() and held.exists():
        return train, held
    prompts, digest = chat_prompts(conversations(work, data))
    ids, texts = load_answers(HERE / "own-text.npz", prompts, digest)
    is_held_out = ids % HELD_OUT == 0
    texts.chosen(np.flatnonzero(is_held_out).tolist()).save(held)
    Texts.joined([texts.chosen(np.flatnonzero(~is_held_out).tolist()), *map(Texts.load, further)]).save(train)
    return train, held


def save_corpus(texts: Sequence[Path]) -> Path:
    """The texts of some files as a corpus for n-gram models, next to the last file."""
    corpus, joined = texts[-1].with_suffix(".npy"), lambda: Texts.joined([*map(Texts.load, texts)])
    return stage(corpus, lambda: np.save(corpus, joined().corpus(END, 3).astype(np.uint16)))


def estimate(corpus: Path, output: Path, limit: str) -> Path:
    """A 4-gram model.  limit: the option that bounds its n-grams."""
    options = (f"--order 4 --end-of-text {END} {limit} --tokenizer", Path(resolved(MODEL)) / "tokenizer.json")
    return stage(output, lambda: latticebpd("lm train", corpus, *options, "-o", output))


def ngram_models(work: Path, data: Path, train: Path, held: Path) -> Path:
    """The 4-grams of the model's own and of human text, mixed by held-out own text, pruned."""
    people, own, mixed, pruned = (work / f"{name}.fst" for name in ("people", "own", "mixed", "lm"))

    def mix(output: Path, limit: str = "") -> Path:
        options = ("--held-out", save_corpus([held]), limit, "-o")
        return stage(output, lambda: latticebpd("lm interpolate", own, people, *options, output))

    estimate(people_corpus(work, data), people, "--max-ngrams 2000000")
    estimate(save_corpus([train]), own, "--min-count 1,1,1,2")
    mix(mixed)
    return mix(pruned, "--max-ngrams 1020000")


def heads(work: Path, train: Path, held: Path, steps: int, count: int | None = None, device: str = "cpu") -> Path:
    """Eight conditioned heads and then their transitions, from all training texts or the first ``count``; the package's
    files, of 8 bits, are in ``package``.  On a CPU hidden states of the texts are read once."""
    if count is not None:
        learn, chosen = work / "learn.npz", Texts.load(train).chosen(range(count))
        train = stage(learn, lambda: chosen.save(learn))
    marginal, trained = work / "marginal-heads", work / "heads"
    if device == "cpu":
        latticebpd("train", "hidden", held, train, f"--model {MODEL} {LAYERS} --shard-texts 64 --batch-tokens 2048")
        new = f"{SHORTLIST} --kind conditioned --steps {steps} {UPDATES}"
        first = train_heads([train], held, new, work / "first-heads")
        runs = [(first, DEEPER, marginal), (marginal, TRANSITIONS, trained)]
    else:
        new = f"--kind conditioned {SHAPE} {SHORTLIST} {LAYERS} --head-weights 1,{LATER} --weight-decay 0.3"
        tied = f"--warm-start {TIED} --weight-decay 1 --steps {steps // 3}"
        runs = [(Path(MODEL), f"{new} --steps {steps} {ON_GPU}", marginal), (marginal, f"{tied} {ON_GPU}", trained)]
    for model, more, output in runs:
        latticebpd("train heads", train, "--model", model, f"{more} --validation", held, "-o", output)
    load_blockwise(trained).save_heads(work / "package", torch.int8)
    return trained


def train_heads(texts: Sequence[Path], held: Path, more: str, output: Path) -> Path:
    latticebpd("train heads", *texts, f"{HEADS} {RATE} {more} --model {MODEL} --validation", held, "-o", output)
    return output


def weights(work: Path, trained: Path, held: Path, lm: Path) -> None:
    """The n-gram model's weight for each system, and the calibration, on half of the held-out answers."""
    lattices, half = work / "lattices", len(Texts.load(held)) // 2
    sizes = "--weights torch --teacher-force --max-new-tokens 256 --context 1024 -k 32 --shard-size 40 -o"
    latticebpd("lattices --prompts", held, "--model", trained, sizes, lattices)  # refuses other heads' lattices
    systems = " ".join(f"-s {name}" for name in ("1-best", "16-best", "8-tree", "16-tree", "32-tree", "64-tree"))
    latticebpd("tune", lattices, "--lm", lm, systems, f"--examples {half} --write")
    latticebpd("calibrate", lattices, "--lm", lm, f"--examples {half} --positions 20000 --write")


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of the sources that prompts.py names")
    parser.add_argument("--work", type=Path, required=True, help="folder of all stages' results")
    parser.add_argument("--text", type=Path, action="append", default=[], help="further texts to learn from")
    parser.add_argument("--texts", type=int, help="number of training texts that heads learn from; all by default")
    parser.add_argument("--steps", type=int, default=3200, help="updates of the heads")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where heads learn")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    train, held = own_text(arguments.work, arguments.data, arguments.text)
    lm = ngram_models(arguments.work, arguments.data, train, held)
    trained = heads(arguments.work, train, held, arguments.steps, arguments.texts, arguments.device)
    weights(arguments.work, trained, held, lm)
    print(trained)


if __name__ == "__main__":
    main()
