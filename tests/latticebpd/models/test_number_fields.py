"""Every number of models' files and of a decode's settings has a type and a range, and is refused by name outside of
them."""

from __future__ import annotations

import json
import math
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from latticebpd import NoDrafter, generate, load
from latticebpd.decoding.generation_config import HONOURED, GenerationSettings
from latticebpd.drafters.bundled import MODEL
from latticebpd.models.catalogue import GGUF_NAME
from latticebpd.models.gguf.gguf_file import GgufFile
from latticebpd.models.number_fields import CONFIG, GENERATION, GGUF, GGUF_TOKENS, Number
from latticebpd.models.transformers.checkpoints import check_json
from tests.helpers.gguf_files import bundled_with_gguf, content, field, header, value_field
from tests.helpers.tiny_families import tiny

OF_FILES = {f"llama.{name}": number for name, number in GGUF.items()} | GGUF_TOKENS


def right(number: Number) -> list[Any]:
    """Values of the type and in the range."""
    ends: list[Any] = [int(number.least), int(number.most)]
    return ends + ([] if number.whole else [0.5]) + ([[each] * 2 for each in ends] if number.listed else [])


def wrong(number: Number) -> list[Any]:
    """Values of another type or out of the range."""
    beyond = [int(number.least) - 1, int(number.most) + 1]
    values = ["12", ["a", "b"], True, math.nan, math.inf, *beyond]
    return values + ([20.5] if number.whole else []) + ([] if number.listed else [[1, 2]]) + [[beyond[0]]]


def refusal(name: str, number: Number, value: Any, of: object) -> str:
    begin = f"{of}: " if of else ""
    return f"^{re.escape(f'{begin}expected {name} as {number}, got {value!r:.60}')}$"


@pytest.mark.parametrize("name", OF_FILES)
def test_fields_of_a_gguf_file(name: str, tmp_path: Path) -> None:
    path, number = tmp_path / "w.gguf", OF_FILES[name]
    for value in right(number):
        path.write_bytes(content([value_field("general.architecture", "llama"), value_field(name, value)], [header()]))
        read = GgufFile.open(path).fields[name]
        assert (read.tolist() if isinstance(value, list) else read) == value
    for value in wrong(number):
        path.write_bytes(content([value_field("general.architecture", "llama"), value_field(name, value)], [header()]))
        with pytest.raises(ValueError, match=refusal(name, number, value, path)):
            GgufFile.open(path)


@pytest.mark.parametrize("name", CONFIG)
def test_fields_of_a_configuration(name: str, tmp_path: Path) -> None:
    path, number = tmp_path / "config.json", CONFIG[name]
    for part in ("{{{}}}", '{{"text_config": {{{}}}}}', '{{"text_config": {{"rope_parameters": {{{}}}}}}}'):
        for value in (None, *right(number)):
            path.write_text(part.format(f'"{name}": {json.dumps(value)}'))
            check_json(path, CONFIG)
        for value in wrong(number):
            path.write_text(part.format(f'"{name}": {json.dumps(value)}'))
            with pytest.raises(ValueError, match=refusal(name, number, value, path)):
                check_json(path, CONFIG)


@pytest.mark.parametrize("name", GENERATION)
def test_fields_of_a_generation_configuration(name: str) -> None:
    model, number = tiny("llama", seed=3), GENERATION[name]
    for value in right(number):
        assert number.fits(value)
    for value in (*wrong(number), 2**64):
        with pytest.raises(ValueError, match=refusal(name, number, value, "")):
            GenerationSettings(model, **{name: value})
        model.generation_config = type(model.generation_config)()
        setattr(model.generation_config, name, value)
        with pytest.raises(ValueError, match=refusal(name, number, value, "the generation config")):
            generate(model, [[4, 9]], NoDrafter(), max_new_tokens=2)


def test_every_number_that_is_honoured_is_in_the_table() -> None:
    others = {"stop_strings", "sequence_bias", "exponential_decay_length_penalty", "remove_invalid_values"}
    assert HONOURED - others == GENERATION.keys()


def test_damaged_numbers_of_a_folder_are_one_line(tmp_path: Path) -> None:
    """Through `load`, from the folder of a model and from its GGUF file."""
    for file, name, value in (
        ("generation_config.json", "pad_token_id", 2**64),
        ("config.json", "max_position_embeddings", 20.5),
        ("config.json", "eos_token_id", -5),
    ):
        shutil.copytree(MODEL, folder := tmp_path / name)
        record = json.loads((folder / file).read_text()) | {name: value}
        (folder / file).write_text(json.dumps(record))
        with pytest.raises(ValueError, match=f"expected {name} as a whole number from .*, got {value}$"):
            load(folder)
    folder = bundled_with_gguf(tmp_path / "gguf")
    stored = (folder / GGUF_NAME).read_bytes()
    name = "llama.context_length"
    at = stored.index(name.encode()) - 8
    fields = [value_field(name, "2" * 28), value_field(name, [256] * 3)]  # of sizes that leave the data aligned
    for damaged in fields + [field(name, 6, struct.pack("<f", value)) for value in (math.nan, 20.5)]:
        (tmp_path / "w.gguf").write_bytes(stored[:at] + damaged + stored[at + 8 + len(name) + 8 :])
        with pytest.raises(ValueError, match=f"w.gguf: expected {name} as a whole number from 1 to"):
            load(tmp_path / "w.gguf")
    (tmp_path / "w.gguf").write_bytes(stored[: len(stored) // 2])
    with pytest.raises(ValueError, match=r"^[^()]*w.gguf: expected \d+ bytes of .*; is the copy complete\?$"):
        load(tmp_path / "w.gguf")
