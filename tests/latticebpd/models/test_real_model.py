"""A pretrained chat model, SmolLM2-135M: our texts are those of `generate()`; its conversations are written as its
makers wrote them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from latticebpd import generate, load
from latticebpd.drafters import HeadLattices, PromptNgramDrafter, drafter_named
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.models.catalogue import get_model, model_folder, resolved
from latticebpd.models.chat import ChatTemplate
from latticebpd.models.load_target import load_tokenizer
from latticebpd.report.demo_table import REAL, about, run_demo
from tests.helpers.blockwise_models import greedy

NAME = "smollm2-135m"
pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def smollm2() -> BlockwiseLM:
    if not model_folder(NAME).is_dir():
        pytest.skip(f"{NAME} is not in {model_folder(NAME).parent}: latticebpd models get {NAME}")
    get_model(NAME)  # today's heads and n-gram model beside it
    return BlockwiseLM.from_pretrained(resolved(NAME))


@pytest.fixture(scope="module")
def chat(smollm2: BlockwiseLM) -> ChatTemplate:
    return ChatTemplate(load_tokenizer(NAME), smollm2)


@pytest.mark.parametrize("system", ["16-copies", "16-tree", "copies+16-tree"])
def test_answers_are_those_of_generate(smollm2: BlockwiseLM, chat: ChatTemplate, system: str) -> None:
    drafter = drafter_named(system, HeadLattices(smollm2, 64), Path(resolved(NAME)) / "lm.fst")
    calls = tokens = 0
    for question in ("Repeat this three times: the train leaves at nine.", "Name three rivers in Germany."):
        prompt = chat.prompt([question])
        out = generate(smollm2, prompt, drafter, max_new_tokens=32, eos_token_id=chat.eos_ids)
        assert out.sequences[0, len(prompt) :].tolist() == greedy(smollm2, prompt, 32)
        calls, tokens = calls + out.num_calls, tokens + out.num_tokens - sum(out.prefilled)
    assert calls < tokens


def test_conversations_are_written_as_the_model_has_seen_them(chat: ChatTemplate) -> None:
    opening = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    turns = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
    prompt = chat.prompt(["Hi", "Hello!", "Bye"])
    assert chat.tokenizer.decode(prompt) == f"{opening}{turns}<|im_start|>assistant\n"
    assert chat.tokenizer.convert_ids_to_tokens(prompt)[:2] == ["<|im_start|>", "system"]
    assert [chat.tokenizer.decode([token]) for token in chat.eos_ids] == ["<|im_end|>"]


def test_a_second_turn_is_answered_as_greedily_as_the_first(smollm2: BlockwiseLM, chat: ChatTemplate) -> None:
    turns = list[str]()
    for question in ("Name one colour of the rainbow.", "Name another one."):
        prompt = chat.prompt([*turns, question])
        out = generate(smollm2, prompt, PromptNgramDrafter(), max_new_tokens=16, eos_token_id=chat.eos_ids)
        written = out.sequences[0, len(prompt) :].tolist()
        assert written == greedy(smollm2, prompt, 16)
        turns += [question, chat.text(written)]
    assert all(turns)


def test_the_demo_of_a_real_model_is_lossless(smollm2: BlockwiseLM) -> None:
    subject = load(NAME)
    assert subject.in_chat
    assert "135M parameters, 8 heads" in about(subject)
    result = run_demo(subject, replace(REAL, max_new_tokens=12, num_prompts=1, every_system=True))
    assert result.texts_equal
    assert {system.name for system in result.systems} >= {
        "default",
        "vanilla BPD",
        "4-gram",
        "16-node tree",
        "16-node calibrated tree",
        "16-node copies",
        "copies + tree",
        "oracle",
    }


def test_the_question_of_the_documentation_is_answered_to_the_end_and_without_repetition() -> None:
    """The examples of `generate --help`, the server and costs ask the same one."""
    root = Path(__file__).parents[3]
    files = [root / name for name in ("docs/serve.md", "docs/costs.md", "latticebpd/cli/generate.py")]
    questions = {match for file in files for match in re.findall(r"What is [^?]*\?", file.read_text(encoding="utf-8"))}
    (question,) = questions
    loaded = load(NAME)
    out = loaded.generate(question, max_new_tokens=128)
    written = out.tokens[0, out.prompt_length :].tolist()
    assert written[-1] in loaded.prompts.eos_ids
    runs = [*zip(written, written[1:], written[2:], strict=False)]
    assert len(set(runs)) > 0.9 * len(runs)
