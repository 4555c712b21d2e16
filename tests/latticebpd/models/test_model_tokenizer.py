"""Tokenizers of folders without `transformers`: its ids, texts and prompts for every kind of file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, GPT2Tokenizer, LlamaTokenizer, Qwen2Tokenizer

from latticebpd.drafters.bundled import MODEL
from latticebpd.lattices.token_text import piece
from latticebpd.models.chat import ChatTemplate, PlainText
from latticebpd.models.load_target import load_tokenizer
from latticebpd.models.model_tokenizer import ModelTokenizer
from tests.helpers.tokenizers import TEMPLATE, TEXTS, assert_same_tokenizer

CHATS = [
    [{"role": "user", "content": "Hi 12"}],
    [{"role": "system", "content": "Be"}, {"role": "user", "content": "a"}],
]
ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<s>", "</s>", "<unk>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def words() -> Tokenizer:
    """Whose text is cleaned up: words and punctuation apart."""
    vocabulary = ["[UNK]", "the", "do", "n't", ",", ".", "'", "ok", "?", "'s", "cat", "mat", "<s>"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def with_ordinary_ends(tokenizer: Tokenizer) -> Tokenizer:
    """With an added token that is not special."""
    tokenizer.add_tokens([AddedToken("<end>", special=False)])
    return tokenizer


def beginning(tokenizer: Tokenizer) -> Tokenizer:
    """With a token before every text, and settings for batches of equal lengths."""
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9, pad_token="<s>")
    return tokenizer


def write(folder: Path, tokenizer: Tokenizer, config: Any, **files: Any) -> Path:
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for name, content in files.items():
        path = folder / (f"{name}.json" if isinstance(content, dict) else f"{name.replace('__', '/')}.jinja")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content) if isinstance(content, dict) else content)
    return folder


FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
NAMED = FAST | {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
FOLDERS: dict[str, tuple[Tokenizer, dict[str, Any], dict[str, Any]]] = {
    "no special tokens": (byte_level(), FAST, {}),
    "a template in the configuration": (byte_level(), NAMED | {"chat_template": TEMPLATE}, {}),
    "a template of its own": (byte_level(), NAMED | {"chat_template": "old"}, {"chat_template": TEMPLATE}),
    "templates by name": (
        byte_level(),
        NAMED | {"chat_template": [
            {"name": "default", "template": TEMPLATE}, {"name": "tool_use", "template": "t{{ tools }}"},
        ]},
        {},
    ),
    "further templates": (
        byte_level(), NAMED,
        {"chat_template": TEMPLATE, "additional_chat_templates__tool_use": "{{ bos_token }}{{ tools | tojson }}"},
    ),
    "a token before every text": (beginning(byte_level()), NAMED | {"add_bos_token": False, "add_eos_token": True}, {}),
    "tokens that the vocabulary lacks": (
        byte_level(), NAMED | {"mask_token": "<mask>", "additional_special_tokens": ["<tool>", "<think>"]}, {},
    ),
    "a special token that was an ordinary one": (with_ordinary_ends(byte_level()), FAST | {"eos_token": "<end>"}, {}),
    "tokens of a model's own": (
        byte_level(), NAMED | {"image_token": "<image>", "extra_special_tokens": {"tool_token": "<tool>"}}, {},
    ),
    "tokens with settings": (
        byte_level(),
        FAST | {"eos_token": {"__type": "AddedToken", "content": "</s>", **ADDED},
                "mask_token": {"__type": "AddedToken", "content": "<mask>", **ADDED, "lstrip": True}},
        {},
    ),
    "added tokens by number": (
        byte_level(),
        NAMED | {"added_tokens_decoder": {
            "331": {"content": "<think>", **ADDED, "special": False},
            "330": {"content": "<mask>", **ADDED, "special": True, "rstrip": True},
            "0": {"content": "<s>", **ADDED, "special": True},
        }},
        {"special_tokens_map": {"eos_token": "<s>"}},
    ),
    "an older map of special tokens": (
        byte_level(), FAST | {"eos_token": "<s>"},
        {"special_tokens_map": {"eos_token": {"content": "</s>", **ADDED}, "bos_token": "<s>",
                                "additional_special_tokens": ["<tool>", "<s>"]}},
    ),
    "special tokens in texts are text": (byte_level(), NAMED | {"split_special_tokens": True}, {}),
    "spaces stay in BPE": (byte_level(), NAMED | {"clean_up_tokenization_spaces": True}, {}),
    "spaces are cleaned up": (words(), FAST | {"clean_up_tokenization_spaces": True, "unk_token": "[UNK]"}, {}),
    "spaces are not": (words(), FAST | {"clean_up_tokenization_spaces": False, "eos_token": "<s>"}, {}),
}  # fmt: skip


@pytest.mark.parametrize("what", FOLDERS)
def test_a_folder_has_the_ids_and_texts_of_transformers(what: str, tmp_path: Path) -> None:
    tokenizer, config, files = FOLDERS[what]
    folder = write(tmp_path / "model", tokenizer, config, **files)
    theirs = AutoTokenizer.from_pretrained(folder)
    assert_same_tokenizer(ModelTokenizer.of_folder(folder), theirs, CHATS if theirs.chat_template else ())


@pytest.mark.parametrize("kind", [GPT2Tokenizer, Qwen2Tokenizer, LlamaTokenizer])
def test_classes_of_transformers_agree_with_the_files_that_they_write(kind: type, tmp_path: Path) -> None:
    model = json.loads(byte_level().to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = kind(vocab=model["vocab"], merges=merges, eos_token="</s>", bos_token="<s>", unk_token="<unk>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert_same_tokenizer(ModelTokenizer.of_folder(tmp_path), AutoTokenizer.from_pretrained(tmp_path), CHATS)


def test_the_bundled_tokenizer_without_a_configuration_agrees() -> None:
    assert_same_tokenizer(ModelTokenizer.of_folder(MODEL), load_tokenizer(MODEL))


def test_prompts_and_pieces_take_it_as_they_take_one_of_transformers(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level(), NAMED | {"chat_template": TEMPLATE})
    theirs, ours = AutoTokenizer.from_pretrained(folder), cast("Any", ModelTokenizer.of_folder(folder))
    prompts, expected = ChatTemplate(ours, None, "Be brief."), ChatTemplate(theirs, None, "Be brief.")
    assert prompts.eos_ids == expected.eos_ids == [1]
    for text in TEXTS:
        turns = [text or "?", "Yes</s>", text or "!"]
        ids = prompts.prompt(turns)
        assert ids == expected.prompt(turns)
        assert prompts.text(ids) == expected.text(ids)
        assert PlainText(ours).prompt(turns) == PlainText(theirs).prompt(turns)
        assert [piece(ours, token) for token in ids] == [piece(theirs, token) for token in ids]
    assert piece(ours, 10**6) == "[1000000]"


@pytest.mark.parametrize("name", ["model_tokenizer", "gguf.gguf_tokenizer", "gguf.gguf_weights", "chat_templates"])
def test_neither_torch_nor_transformers_is_imported(name: str) -> None:
    code = (
        f"import sys, latticebpd.models.{name}; from latticebpd.models.model_tokenizer import ModelTokenizer; "
        f"ModelTokenizer.of_folder({str(MODEL)!r})('the city'); "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


DAMAGED: dict[str, Any] = {
    "no object": [1], "a number for a token": {"mask_token": {"content": 5}}, "no content": {"eos_token": {}},
    "a template that is no text": {"chat_template": 7}, "templates without names": {"chat_template": [{"name": "a"}]},
    "numbers of tokens in words": {"added_tokens_decoder": {"one": {"content": "a"}}},
    "a list of added tokens": {"added_tokens_decoder": [5]}, "extra tokens as numbers": {"extra_special_tokens": [1]},
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_settings_are_refused_in_one_line(what: str, tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level(), DAMAGED[what])
    with pytest.raises(ValueError, match=r"expected settings of a tokenizer, got .*; is the copy complete") as error:
        ModelTokenizer.of_folder(folder)
    assert str(error.value).startswith(str(folder / "tokenizer_config.json"))
    assert len(str(error.value).splitlines()) == 1


def test_a_folder_without_a_tokenizer_and_a_chat_without_a_template_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a tokenizer\.json, found no such file"):
        ModelTokenizer.of_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"expected a tokenizer\.json as the tokenizers library writes it"):
        ModelTokenizer.of_folder(tmp_path)
    with pytest.raises(ValueError, match="expected a tokenizer with a chat template, got one without"):
        ModelTokenizer(byte_level()).get_chat_template()
    with pytest.raises(AttributeError, match="no attribute padding_side"):
        _ = ModelTokenizer(byte_level()).padding_side
