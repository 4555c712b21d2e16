"""The steps of the guide to training, and the one command that takes them all, on a Llama made by ``transformers``."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

import fst
import latticebpd
from fst.fingerprint import vocabulary_fingerprint
from latticebpd.drafters.heads.head_files import read_settings
from latticebpd.lattices.texts import Texts
from tests.helpers.commands import Run
from tests.helpers.page_commands import blocks, commands
from tests.helpers.page_files import bring

BY_ONE, STEPS, CHATS, _ = blocks("training")
SPLIT = ("out.work/prompts.npz", "out.work/prompts-held-out.npz")


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
    recipe = commands(STEPS.replace("--model model", f"--model {model}"))
    for command, following in zip(recipe, [*recipe[1:], None], strict=True):
        bring(command.arguments)
        status, _, err = run(*command.small)
        assert status == 0, err
        last = err.splitlines()[-1] if err else ""
        assert last.startswith("next: latticebpd ") == (following is not None), last
        assert following is None or names(shlex.split(last)[2:], following.arguments), (last, following)
    loaded = latticebpd.load("with-heads")
    assert loaded.weights == ("gguf" if model.endswith("gguf") else "float32")
    assert loaded.default_system() == "16-calibrated"
    assert loaded.source is not None
    assert loaded.source.has_transitions
    assert loaded.tokenizer.eos_token == "</s>"
    assert read_settings(Path("with-heads")).kind == "conditioned"
    assert fst.NgramModel.load("with-heads/lm.fst").fingerprint == vocabulary_fingerprint(loaded.tokenizer.get_vocab())
    if loaded.weights == "gguf":  # heads of a folder as the catalogue's, which has the file alone, learn further
        shutil.copytree("with-heads/latticebpd", "kept/latticebpd")
        shutil.copy("with-heads/model.gguf", "kept")
        (learn,) = commands("latticebpd train heads written --validation written-held-out --model kept --warm-start")
        status, _, err = run(*learn.small, "-o", "further")
        assert status == 0, err
        assert {"model.gguf", "tokenizer.json"} <= {path.name for path in Path("further").iterdir()}
        assert latticebpd.load("further").default_system() == "copies+16-tree"


@pytest.mark.parametrize("model", ["model", pytest.param("model.gguf", marks=pytest.mark.long)])
def test_one_command_runs_the_recipe_and_resumes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (command,) = commands(BY_ONE.replace("--model model", f"--model {model}"))
    bring(command.arguments)
    stopped = ["lattices", "--prompts", "out.work/written-held-out"]
    with monkeypatch.context() as patch:  # a run that ends at its sixth step
        patch.setattr("latticebpd.measuring.collect.collect_shards", None)
        status, _, err = run(*command.small)
        assert status == 1
        assert shlex.join(stopped) in err.splitlines()[-2]
    trained = (tmp_path / "out/latticebpd/heads.safetensors").read_bytes()
    status, _, err = run(*command.small)
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
    questions = [{"messages": [{"role": "user", "content": f"Which city is number {n}?"}]} for n in range(7)]
    (tmp_path / "questions.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in questions))
    (encode,) = commands(CHATS)
    bring(encode.arguments)
    status, _, err = run(*encode.small)
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
