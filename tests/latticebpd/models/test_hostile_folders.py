"""A model's folder may hold Python code; nothing here runs it, and nobody is asked to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from latticebpd.lattices.lattice_set import LatticeSet
from lm_training.data.corpus import train_tokenizer
from tests.helpers.commands import Run

CODE = """
from pathlib import Path
Path({marker!r}).touch()
from transformers import LlamaConfig as Config, LlamaForCausalLM as Model, PreTrainedTokenizerFast as Tokenizer
def generate(*args, **kwargs): Path({marker!r}).touch()
"""
MODEL_CLASSES = ("AutoModel", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM")


@pytest.fixture(params=["llama", "unheard-of"])
def hostile(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder whose configurations name code beside them; of a type that ``transformers`` knows, and of one that it
    does not."""
    folder = tmp_path / "hostile"
    config = LlamaConfig(vocab_size=300, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = train_tokenizer(["the cat sat on the mat"], vocab_size=300)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)
    (folder / "evil.py").write_text(CODE.format(marker=str(tmp_path / "ran")))
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(CODE.format(marker=str(tmp_path / "ran")))
    for name, auto_map in (
        (
            "config.json",
            {"AutoConfig": "evil.Config", "AutoTokenizer": [None, "evil.Tokenizer"]}
            | dict.fromkeys(MODEL_CLASSES, "evil.Model"),
        ),
        ("tokenizer_config.json", {"AutoTokenizer": [None, "evil.Tokenizer"]}),
    ):
        record = json.loads((folder / name).read_text()) | {"auto_map": auto_map}
        if request.param != "llama":
            record |= {"model_type": request.param} if name == "config.json" else {"tokenizer_class": "Unheard"}
        (folder / name).write_text(json.dumps(record))
    (tmp_path / "a.txt").write_text("the cat sat on the mat\n" * 40)
    np.save(tmp_path / "ids.npy", np.tile(np.arange(20, dtype=np.uint16), 40))
    ones = np.ones((2, 3, 4), np.int32) * np.arange(4, dtype=np.int32)
    LatticeSet(ones, -ones.astype(np.float32), ones[:, :, 0], ones[:, 0, :2]).save(tmp_path / "l.npz")
    return folder


COMMANDS = [
    "generate the --model {folder} --max-new-tokens 2",
    "lattices --model {folder} --prompts {tmp}/a.txt -o {tmp}/out.npz",
    "rescore {tmp}/l.npz --lm {folder}",
    "compare {tmp}/l.npz -s 2-best --lm {folder}",
    "tune {tmp}/l.npz --lm {folder} --system 2-best",
    "oracle {tmp}/l.npz --model {folder}",
    "report {tmp}/l.npz --model {folder} -o {tmp}/report",
    "jacobi {tmp}/a.txt --model {folder} --limit 1 --max-new-tokens 2",
    "ddg {tmp}/a.txt --model {folder} --limit 1 --max-new-tokens 2",
    "distill {tmp}/a.txt --model {folder} --tokenizer {folder}/tokenizer.json -o {tmp}/d --prompts 2 --prompt-tokens 2",
    "lm train {tmp}/a.txt --tokenizer {folder} -o {tmp}/lm.fst",
    "train heads {tmp}/ids.npy --validation {tmp}/ids.npy --model {folder} -o {tmp}/heads --steps 1",
    (
        "train rescorer {tmp}/ids.npy --validation {tmp}/ids.npy --model {folder} --tokenizer {folder}/tokenizer.json"
        " -o {tmp}/r --steps 1"
    ),
    "train masks {tmp}/l.npz --validation {tmp}/l.npz --model {folder} -o {tmp}/d --steps 1",
]


@pytest.mark.parametrize(
    "command",
    COMMANDS,
    ids=[" ".join(command.split()[: 2 if command[:2] in ("lm", "tr") else 1]) for command in COMMANDS],
)
def test_no_command_runs_a_folders_code_or_asks_to(
    run: Run, hostile: Path, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr("builtins.input", lambda *arguments: asked.append(arguments) or "y")
    status, _, err = run(*command.format(folder=hostile, tmp=tmp_path).split())
    assert not asked
    assert not (tmp_path / "ran").exists()
    assert status in (0, 2), err
    if status == 2:
        assert len(err.strip().splitlines()) == 1, err


@pytest.mark.long
def test_yes_on_standard_input_is_not_read(hostile: Path, tmp_path: Path) -> None:
    line = ["lm", "train", str(tmp_path / "a.txt"), "--tokenizer", str(hostile), "-o", str(tmp_path / "lm.fst")]
    done = subprocess.run(
        [sys.executable, "-m", "latticebpd", *line], input="y\ny\n", capture_output=True, text=True, check=False
    )
    assert not (tmp_path / "ran").exists()
    assert "trust" not in done.stdout
    assert done.returncode in (0, 2), done.stderr


@pytest.mark.long
def test_who_trusts_a_folder_says_so(hostile: Path, tmp_path: Path) -> None:
    """Or the tests above could not fail: the folder's code does run where it is trusted."""
    code = (
        "import sys; from latticebpd.models.transformers.checkpoints import load_base; load_base(sys.argv[1],"
        " trust_remote_code=True)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(hostile)], capture_output=True, text=True, check=False)
    assert (tmp_path / "ran").exists(), done.stderr


TEMPLATES = {
    "endless": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "huge": "{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}",
    "code": "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ cycler.__init__.__globals__.os.system('touch ran') }}",
    "import": "{% import 'os' as os %}{{ os.system('touch ran') }}",
    "missing": "{{ variable.attribute }}",
    "a number": 7,
    "a list": ["{{ messages }}"],
    "templates by unheard-of names": [{"name": "other", "template": "{{ messages[0].content }}"}],
}


@pytest.mark.parametrize("what", TEMPLATES)
def test_a_hostile_chat_template_is_one_line(
    run: Run, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = LlamaConfig(vocab_size=300, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    LlamaForCausalLM(config).save_pretrained("model")
    tokenizer = train_tokenizer(["the cat sat on the mat"], vocab_size=300)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained("model")
    settings = tmp_path / "model" / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": TEMPLATES[what]}))
    status, _, err = run("generate", "the", "--model", "model", "--max-new-tokens", 2)
    assert status == 2, err
    assert len(err.strip().splitlines()) == 1, err
    assert err.startswith("latticebpd: error: ")
    assert not (tmp_path / "ran").exists()
