"""Every command that writes files, with inputs small enough for a test."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from lm_training.data.corpus import train_tokenizer
from lm_training.data.pairs import encode_pairs, read_pairs
from tests.helpers.blockwise_models import tiny_model
from tests.helpers.forked_commands import run_forked
from tests.helpers.sentences import sentence_files

TRAINING = "--steps 4 --checkpoint-every 1 --validation-every 2 --warmup-steps 1 --device cpu"
"""Options of all training commands; a checkpoint after each step."""
STATES = "train hidden {out}/written --model model --shard-texts 3 --device cpu"

COMMANDS = {
    "distill": (
        "distill ids.npy --model model -o {out}/d --prompts 9 --prompt-tokens 4"
        " --max-new-tokens 8 --shard-prompts 3 --hidden --layers 1 --device cpu"
    ),
    "train hidden": STATES,
    "train hidden --whole": f"{STATES} --whole --layers 1,2",
    "train tokenizer": "train tokenizer text.txt -o {out}/tokenizer.json --vocab-size 300",
    "train encode": "train encode text.txt --tokenizer model/tokenizer.json -o {out}/ids.npy",
    "train encode, shards": (
        "train encode chats.jsonl --chat --tokenizer model/tokenizer.json -o {out}/chats --shard-records 2"
    ),
    "train blockwise": (
        "train blockwise ids.npy --validation ids.npy --tokenizer model/tokenizer.json -o {out}/run --hidden-size 16"
        f" --num-layers 1 --num-heads 3 --batch-size 2 --sequence-length 12 {TRAINING}"
    ),
    "train heads": (
        "train heads written --validation written --model model -o {out}/run --num-heads 3 --batch-size 2"
        f" --serving-prompts 1 {TRAINING}"
    ),
    "train all": "train all text.txt --model model -o {out}/run --max-new-tokens 8 --steps 3 --device cpu",
    "train rescorer": (
        "train rescorer written --validation written --tokenizer model/tokenizer.json -o {out}/run --preset tiny"
        f" --batch-size 2 {TRAINING}"
    ),
    "train block-drafter": (
        "train block-drafter whole --validation whole --model model -o {out}/run --num-layers 1 --block-size 4"
        f" --batch-size 2 --layers 1,2 --mask-token 3 {TRAINING}"
    ),
    "train masks": (
        "train masks pairs.npz --validation pairs.npz --model translator -o {out}/run --block-size 4"
        f" --serving-sources 1 --batch-tokens 200 {TRAINING}"
    ),
    "train translation": (
        "train translation train.jsonl --validation validation.jsonl -o {out}/run --shape small --vocab-size 300"
        f" --batch-tokens 200 {TRAINING}"
    ),
    "lattices": "lattices --model model --prompts prompts.jsonl -o {out}/l.npz -k 4 --max-new-tokens 8",
    "lattices, shards": (
        "lattices --model model --prompts prompts.jsonl -o {out}/l -k 4 --max-new-tokens 8 --shard-size 2"
    ),
    "compare": "compare lattices --lm lm.fst -s 2-best -s 4-tree --tally {out}/tally.json",
    "oracle": "oracle lattices --k 1,4 --tally {out}/tally.json --plot {out}/oracle.png",
    "merge": "merge tally.json --tally {out}/again.json",
    "tune": "tune lattices --lm {out}/lm.fst --system 2-best --write",
    "calibrate": "calibrate lattices --lm {out}/lm.fst --plot {out}/weights.png",
    "report": "report lattices --lm lm.fst -o {out}/report",
    "generate": "generate t1 --model model --max-new-tokens 8 --trace {out}/trace.html",
    "jacobi": "jacobi prompts.jsonl --source text --model model --limit 2 --max-new-tokens 8 --output {out}/t",
    "ddg": (
        "ddg prompts.jsonl --source text --model model --limit 2 --max-new-tokens 8 --output {out}/ddg.html"
        " --classes-csv {out}/classes.csv --widths-csv {out}/widths.csv"
    ),
    "profile": "profile --model model --lm lm.fst --columns 1,2 --context 4 --rounds 1 -o {out}/costs.json",
    "lm train": "lm train ids.npy -o {out}/lm.fst --order 3 --memory 512M --threads 1",
    "lm interpolate": "lm interpolate lm.fst lm.fst --weight 0.5 -o {out}/mixed.arpa.gz",
    "lm fst2arpa": "lm fst2arpa lm.fst {out}/lm.arpa",
    "lm arpa2fst": "lm arpa2fst lm.arpa {out}/lm.fst",
}
"""By name; ``{out}`` is the folder that the command writes to, the inputs lie in the working directory."""
BEGUN = {"train hidden": "written", "train hidden --whole": "written", "tune": "lm.fst", "calibrate": "lm.fst"}
"""Commands that write next to an input, and its name: it is copied to ``{out}``."""


def made_inputs(folder: Path) -> None:
    """Fill the working directory with what the commands read."""
    rng = np.random.default_rng(0)
    words = ["the", "history", "of", "the", "city", "and", "of", "the", "river"]
    lines = [" ".join(rng.choice(words, 12)) for _ in range(40)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines[:5]))
    turns = [{"role": "user", "content": "the city"}, {"role": "assistant", "content": "of the river"}]
    (folder / "chats.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 5)
    tokenizer = train_tokenizer(lines, vocab_size=300)
    size = tokenizer.get_vocab_size()
    tiny_model(vocab_size=size, eos_token_id=0).save_pretrained(folder / "model")
    tokenizer.save(str(folder / "model/tokenizer.json"))
    template = "{% for message in messages %}{{ message.content }}<|endoftext|>{% endfor %}"
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "chat_template": template}
    (folder / "model/tokenizer_config.json").write_text(json.dumps(settings))
    ids = rng.integers(1, size, 400).astype(np.uint16)
    np.save(folder / "ids.npy", ids)
    sentence_files(folder, 30, 8, 2)
    for line in (
        "distill ids.npy --model model -o written --prompts 7 --prompt-tokens 4 --max-new-tokens 8 --shard-prompts 3",
        "lm train ids.npy -o lm.fst --order 3 --memory 512M --threads 1",
        "lm fst2arpa lm.fst lm.arpa",
        "lattices --model model --prompts prompts.jsonl -o lattices -k 4 --max-new-tokens 8 --shard-size 2",
        "oracle lattices --k 1,4 --tally tally.json",
        COMMANDS["train translation"].format(out="out"),
    ):
        _succeed(line)
    (folder / "out/run").rename(folder / "translator")
    shutil.copytree(folder / "written", folder / "whole")
    _succeed("train hidden whole --model model --whole --layers 1,2 --device cpu")
    pairs = list(read_pairs([folder / "train.jsonl"], "en", "de"))
    encode_pairs(pairs, Tokenizer.from_file(str(folder / "translator/tokenizer.json"))).save(folder / "pairs.npz")


def _succeed(line: str) -> None:
    ended = run_forked(line.split())
    assert ended.status == 0, ended.errors
