"""``--json`` of every command: standard output is one JSON value, whatever else is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from latticebpd.cli.json_option import with_json
from tests.helpers.command_options import COMMAND_LIST
from tests.helpers.commands import Run
from tests.helpers.writing_commands import BEGUN, COMMANDS

MORE = {
    "rescore": "rescore lattices --lm lm.fst -p 2",
    "lm info": "lm info lm.fst",
    "lm perplexity": "lm perplexity lm.fst ids.npy",
    "models list": "models list",
}
"""Commands that write no files."""


@pytest.mark.parametrize(("words", "given"), COMMAND_LIST, ids=[" ".join(words) for words, _ in COMMAND_LIST])
def test_every_command_has_the_option(words: tuple[str, ...], given: list[object]) -> None:
    assert "--json" in {each.flag for each in given}  # type: ignore[attr-defined]


LINES = {name: line for name, line in {**COMMANDS, **MORE}.items() if name not in BEGUN or name == "train hidden"}


@pytest.mark.long
@pytest.mark.parametrize("name", LINES)
def test_standard_output_is_one_json_value(
    run: Run, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(inputs)
    line = LINES[name].format(out=tmp_path).replace(f"{tmp_path}/written", "written")
    status, out, errors = run(*line.split(), "--json")
    assert status == 0, errors
    record = json.loads(out)
    if isinstance(record, dict) and "output" in record:
        assert Path(record["output"]).exists()


def test_what_a_command_prints_itself_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    @with_json
    def command(number: int) -> dict[str, int]:
        print("a table")
        return {"number": number}

    command(number=3, json=False)
    assert capsys.readouterr() == ("a table\n", "")
    command(number=3, json=True)
    assert capsys.readouterr() == ('{"number": 3}\n', "a table\n")


def test_a_process_without_a_result_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with_json(lambda: None)(json=True)
    assert capsys.readouterr().out == ""
