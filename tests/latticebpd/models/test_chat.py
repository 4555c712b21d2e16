"""Prompts from conversations: the tokenizer's template, byte for byte, and plain text where there is none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from latticebpd import BlockwiseLM
from latticebpd.cli.input_data import read_texts
from latticebpd.drafters.bundled import MODEL
from latticebpd.models.chat import ChatTemplate, PlainText, prompt_format
from latticebpd.models.load_target import load_tokenizer
from tests.helpers.tokenizers import TEMPLATE


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    loaded: Any = load_tokenizer(MODEL)
    loaded.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>"})
    loaded.chat_template = TEMPLATE
    return loaded


def test_a_conversation_is_written_as_the_template_says(tokenizer: PreTrainedTokenizerFast, model: BlockwiseLM) -> None:
    chat = ChatTemplate(tokenizer, model)
    expected = "<s>system\nBe kind.</s>\n<s>user\nHi</s>\n<s>assistant\nHello</s>\n<s>user\nBye</s>\n<s>assistant\n"
    assert tokenizer.decode(chat.prompt(["Hi", "Hello", "Bye"])) == expected
    assert chat.prompt(["Hi"])[0] == tokenizer.convert_tokens_to_ids("<s>")


def test_a_system_prompt_takes_the_place_of_the_templates_own(
    tokenizer: PreTrainedTokenizerFast, model: BlockwiseLM
) -> None:
    chat = ChatTemplate(tokenizer, model, "Be brief.")
    assert tokenizer.decode(chat.prompt(["Hi"])) == "<s>system\nBe brief.</s>\n<s>user\nHi</s>\n<s>assistant\n"
    messages = [{"role": "system", "content": "Shout."}, {"role": "user", "content": "Hi"}]
    assert "Shout." in tokenizer.decode(chat.prompt_of(messages))
    assert "Be brief." not in tokenizer.decode(chat.prompt_of(messages))


def test_a_template_in_a_file_of_its_own_needs_no_configuration(tmp_path: Path) -> None:
    shutil.copy(MODEL / "tokenizer.json", tmp_path)
    assert load_tokenizer(tmp_path).chat_template is None
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    assert load_tokenizer(tmp_path).chat_template == TEMPLATE


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}",
        "{{ messages.__class__.__mro__ }}",
        "{{ missing.attribute }}",
        "{% for",
        "{{ raise_exception('one\ntwo') }}",
        ["no", "text"],
        7,
    ],
)
def test_a_hostile_template_is_refused_in_one_line(
    tokenizer: PreTrainedTokenizerFast, model: BlockwiseLM, template: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a tokenizer of transformers, too."""
    monkeypatch.setattr(tokenizer, "chat_template", template)
    with pytest.raises(ValueError, match="expected a conversation that the chat template accepts, got") as error:
        ChatTemplate(tokenizer, model)
    assert len(str(error.value).splitlines()) == 1


def test_a_turn_ends_with_what_the_template_puts_behind_it(
    tokenizer: PreTrainedTokenizerFast, model: BlockwiseLM
) -> None:
    assert ChatTemplate(tokenizer, model).eos_ids == [tokenizer.convert_tokens_to_ids("</s>")]


def test_answers_are_quoted_without_special_tokens(tokenizer: PreTrainedTokenizerFast, model: BlockwiseLM) -> None:
    ids = tokenizer("Hello there</s>", add_special_tokens=False)["input_ids"]
    assert ChatTemplate(tokenizer, model).text(ids) == "Hello there"


def test_the_format_follows_the_tokenizer_unless_it_is_chosen(
    tokenizer: PreTrainedTokenizerFast, model: BlockwiseLM
) -> None:
    assert isinstance(prompt_format(tokenizer, model), ChatTemplate)
    assert type(prompt_format(tokenizer, model, chat=False)) is PlainText
    plain = load_tokenizer(MODEL)
    assert type(prompt_format(plain, model)) is PlainText
    assert plain.decode(prompt_format(plain, model).prompt(["a", "b", "c"])) == "a\n\nb\n\nc\n\n"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chat": True}, "expected a tokenizer with a chat template"),
        ({"system_prompt": "x"}, "expected a tokenizer with a chat template"),
        ({"chat": False, "system_prompt": "x"}, "expected a system prompt in a chat only"),
    ],
)
def test_chats_without_a_template_are_refused(model: BlockwiseLM, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prompt_format(load_tokenizer(MODEL), model, **settings)


def test_conversations_that_no_answer_follows_are_refused(
    tokenizer: PreTrainedTokenizerFast, model: BlockwiseLM
) -> None:
    with pytest.raises(ValueError, match="expected a conversation that ends with the user's turn"):
        ChatTemplate(tokenizer, model).prompt(["Hi", "Hello"])


def test_a_data_set_of_conversations_is_prompts_and_the_answers_behind_them(
    tokenizer: PreTrainedTokenizerFast, model: BlockwiseLM, tmp_path: Path
) -> None:
    user, assistant = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}
    path = tmp_path / "chats.jsonl"
    path.write_text(
        "".join(
            json.dumps({"messages": messages}) + "\n"
            for messages in ([user], [user, assistant], [user, assistant, user])
        )
    )
    chat = ChatTemplate(tokenizer, model)
    texts = [
        (tokenizer.decode(ids[:length]), tokenizer.decode(ids[length:]))
        for ids, length in read_texts(path, chat, 4, 9).items()
    ]
    opening, turn = (
        "<s>system\nBe kind.</s>\n<s>user\nHi</s>\n<s>assistant\n",
        "Hello</s>\n<s>user\nHi</s>\n<s>assistant\n",
    )
    assert texts == [(opening, ""), (opening, "Hello</s>"), (opening + turn, "")]
    with pytest.raises(ValueError, match="expected a tokenizer with a chat template for conversations"):
        read_texts(path, PlainText(tokenizer), 4, 9)
    path.write_text('{"messages": [{"role": "user"}]}\n')
    with pytest.raises(ValueError, match=r"chats\.jsonl, line 1: expected an object with messages"):
        read_texts(path, chat, 4, 9)
