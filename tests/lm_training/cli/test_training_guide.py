"""The commands of the guides to training, calibration, trees and analysis, all of them and in order, on a Llama that
``transformers`` has just made."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import fst
import latticebpd
from fst.fingerprint import vocabulary_fingerprint
from latticebpd.drafters.heads.head_files import read_settings
from latticebpd.lattices.texts import Texts
from tests.helpers.commands import Run
from tests.helpers.own_models import own_gguf, own_llama
from tests.helpers.sentences import sentence_files

DOCS = Path(__file__).parents[3] / "docs"
TRAINING = (f"training/{name}" for name in ("heads", "block-drafters", "data", "rescorers", "translation"))
PAGES = ("training", *TRAINING, "calibrate", "trees", "analysis")
GUIDE = "".join((DOCS / f"{page}.md").read_text(encoding="utf-8") for page in PAGES)
TEXT = "The history of the city and of the river is the history of the people who built the bridge. "
SIZES = {
    "distill": "--prompts 9 --prompt-tokens 6 --max-new-tokens 20 --shard-prompts 4",
    "train heads": "--steps 3 --batch-size 2 --serving-prompts 1",
    "train block-drafter": "--steps 3 --batch-size 2 --num-layers 1 --block-size 4",
    "train rescorer": "--steps 3 --batch-size 2",
    "train translation": "--steps 3 --batch-tokens 200 --vocab-size 300",
    "lattices": "--max-new-tokens 16",
    "tune": "--examples 3 --grid 0.5,1",
    "generate": "--max-new-tokens 9",
}
"""Further options, by command: sizes for a test."""
SPLIT = ("out.work/prompts.npz", "out.work/prompts-held-out.npz")


def commands(block: str) -> Iterator[list[str]]:
    """The arguments of each line; the model's layers are those of a small one."""
    for line in block.replace("\\\n", " ").replace("2,15,28", "1,2").splitlines():
        program, *arguments = shlex.split(line, comments=True)
        if program != "pip":
            assert program == "latticebpd"
            yield arguments


def blocks() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", GUIDE, flags=re.DOTALL)


def words(arguments: list[str]) -> str:
    return " ".join(arguments[: 2 if arguments[0] in ("train", "lm") else 1])


def bring_files(folder: Path) -> None:
    """What the guide says that its reader brings."""
    own_llama(folder / "model", TEXT)
    own_gguf(folder / "model.gguf")
    for name, repeats in (("text", 40), ("held-out", 20)):
        (folder / f"{name}.txt").write_text(TEXT * repeats)
    sentence_files(folder, 30, 8, 2)
    (folder / "validation.jsonl").rename(folder / "val.jsonl")
    turns = [{"role": "user", "content": "Which city?"}, {"role": "assistant", "content": "The city of the river."}]
    records = {
        "questions": {"messages": turns[:1]},
        "chats": {"messages": turns},
        "squad": {"question": "Which city?", "context": TEXT, "answers": {"text": ["The city"]}},
        "dialogues": {"document": TEXT, "summary": "A history."},
    }
    for name, record in records.items():
        (folder / f"{name}.jsonl").write_text(f"{json.dumps(record)}\n" * 3)


def names(named: list[str], following: list[str]) -> bool:
    """Whether a command that another one names is the guide's next one; what it cannot know is in capitals."""
    return len(named) == len(following) and all(
        one == other or one.isupper() for one, other in zip(named, following, strict=True)
    )


@pytest.mark.parametrize("model", ["model", "model.gguf"])
def test_the_recipe_makes_a_model_with_heads_ngram_model_and_calibration(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """Of a folder, or of a GGUF file."""
    monkeypatch.chdir(tmp_path)
    bring_files(tmp_path)
    recipe = list(commands(blocks()[0].replace("--model model", f"--model {model}")))
    for arguments, following in zip(recipe, [*recipe[1:], []], strict=True):
        status, _, err = run(*arguments, *SIZES.get(words(arguments), "").split())
        assert status == 0, err
        last = err.splitlines()[-1] if err else ""
        assert last.startswith("next: latticebpd ") == bool(following), last
        assert not following or names(shlex.split(last)[2:], following), (last, following)
    loaded = latticebpd.load("with-heads")
    assert loaded.weights == ("gguf" if model.endswith("gguf") else "float32")
    assert loaded.default_system() == "16-calibrated"
    assert loaded.source is not None
    assert loaded.source.has_transitions
    assert loaded.tokenizer.eos_token == "</s>"
    assert read_settings(Path("with-heads")).kind == "conditioned"
    assert fst.NgramModel.load("with-heads/lm.fst").fingerprint == vocabulary_fingerprint(loaded.tokenizer.get_vocab())


@pytest.mark.parametrize("model", ["model", pytest.param("model.gguf", marks=pytest.mark.long)])
def test_one_command_runs_the_recipe_and_resumes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.chdir(tmp_path)
    bring_files(tmp_path)
    command = ["train", "all", "text.txt", "--model", model, "-o", "out", "--max-new-tokens", 12, "--steps", 3]
    stopped = ["lattices", "--prompts", "out.work/written-held-out"]
    with monkeypatch.context() as patch:  # a run that ends at its sixth step
        patch.setattr("latticebpd.measuring.collect.collect_shards", None)
        status, _, err = run(*command)
        assert status == 1
        assert shlex.join(stopped) in err.splitlines()[-2]
    trained = (tmp_path / "out/latticebpd/heads.safetensors").read_bytes()
    status, _, err = run(*command)
    assert status == 0, err
    assert err.splitlines()[-1] == "next: latticebpd generate TEXT --model out"
    assert (tmp_path / "out/latticebpd/heads.safetensors").read_bytes() == trained
    loaded = latticebpd.load("out")
    assert loaded.default_system() == "16-calibrated"
    assert loaded.source is not None
    assert loaded.source.has_transitions
    sets = [Texts.load(tmp_path / f"out.work/prompts{name}.npz") for name in ("", "-held-out")]
    assert [len(each) >= 2 for each in sets] == [True, True]
    greedy = loaded.generate("the city", max_new_tokens=9, drafter=loaded.drafter("vanilla")).tokens
    assert (loaded.generate("the city", max_new_tokens=9).tokens == greedy).all()


def test_prompts_of_records_are_taken_as_they_are(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bring_files(tmp_path)
    questions = [{"messages": [{"role": "user", "content": f"Which city is number {n}?"}]} for n in range(7)]
    (tmp_path / "questions.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in questions))
    status, _, err = run(*next(commands(blocks()[1])))
    assert status == 0, err
    command = ("train", "all", "prompts.npz", "--model", "model", "--max-new-tokens", 9, "--steps", 2, "-o")
    status, _, err = run(*command, "out", "--prompts", 6)
    assert status == 0, err
    prompts, asked, held_out = (Texts.load(name) for name in ("prompts.npz", *SPLIT))
    rows = {tuple(row) for each in (asked, held_out) for row, _ in each.items()}
    assert (len(asked), len(held_out), len(rows)) == (4, 2, 6)
    assert rows < {tuple(row) for row, _ in prompts.items()}
    Texts.of_rows([[5, 6]] * 3, [2] * 3).save("few.npz")
    status, out, err = run("train", "all", "few.npz", "--model", "model", "-o", "few")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "few.npz: expected at least 4 prompts" in err
    assert not (tmp_path / "few").exists()


@pytest.mark.long
def test_all_commands_of_the_guide_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bring_files(tmp_path)
    every = [arguments for block in blocks() for arguments in commands(block)]
    translator = next(arguments for arguments in every if arguments[:2] == ["train", "translation"])
    for arguments in [translator, *every]:
        status, _, err = run(*arguments, *SIZES.get(words(arguments), "").split())
        assert status == 0, (arguments, err)
