"""Filling in the middle: prompts, what editor plugins send and read, the ends of texts, errors."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from fst.files import FileStamp
from latticebpd import NoDrafter, generate
from latticebpd.serving.infill import InfillRequest, InfillText, selected
from latticebpd.serving.infill_prompts import InfillPrompts
from latticebpd.serving.limits import Limits
from tests.helpers.engine_models import on_engine
from tests.helpers.gguf_files import content, value_field
from tests.helpers.served import HeldDrafter, Served, serving, tiny
from tests.helpers.tokenizers import letters, letters_of_code

PREFIX, SUFFIX, MIDDLE, REPO, FILE = range(18, 23)
TOKENIZER = letters_of_code()
ENDS = frozenset({PREFIX, SUFFIX, MIDDLE, REPO, FILE})
"""None of them is in the texts below, which are up to the first one."""


def ids(text: str) -> list[int]:
    return list(TOKENIZER(text)["input_ids"])


def head(*files: str) -> list[int]:
    """What comes before the prefix; the tokenizer knows some letters of names only."""
    if not files:
        return []
    parts = [[FILE, *ids(file)] for file in (*files, "filename\n")]
    return [REPO, *ids("myproject\n"), *(token for part in parts for token in part)]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(tiny(on_engine("int8", 1), code=True), NoDrafter(), Limits(context=120)) as server:
        yield server


def written(served: Served, prompt: list[int], length: int) -> str:
    """The text of a decode of its own, up to a token that ends what is filled in."""
    target, mask = served.service.loaded.target, [[1] * len(prompt)]
    out = generate(target, prompt, NoDrafter(), max_new_tokens=length, attention_mask=mask, eos_token_id=[*ENDS])
    return str(TOKENIZER.decode(out.tokens[0, len(prompt) :], skip_special_tokens=True))


def infill(served: Served, **fields: Any) -> Any:
    body = {"input_prefix": "abc\n", "input_suffix": "\nfed", **fields}
    return httpx.post(f"{served.url}/infill", json=body, timeout=60)


def test_prompts_are_in_the_form_that_models_know() -> None:
    prompts = InfillPrompts(tiny(code=True))
    assert prompts.between("ab", "cd\n") == [PREFIX, *ids("ab"), SUFFIX, *ids("cd\n"), MIDDLE]
    files = [("fg", "gh\n"), ("hi", "ij")]
    assert prompts.within(["ab\n", "c"], "de", files, 100) == [
        *head("fg\ngh\n", "hi\nij"), PREFIX, *ids("ab\nc"), SUFFIX, *ids("de"), MIDDLE,
    ]  # fmt: skip


def test_names_of_special_tokens_in_a_file_are_text() -> None:
    prompts = InfillPrompts(tiny(code=True))
    assert prompts.between("a<|fim_middle|>b", "<|file_sep|>").count(MIDDLE) == 1
    assert prompts.between("a<|fim_middle|>b", "")[:3] == [PREFIX, *ids("a"), *ids("f")]
    assert FILE not in prompts.between("a", "<|file_sep|>")


@pytest.mark.parametrize("room", [40, 60, 99])
def test_long_prompts_keep_what_is_near_the_cursor(room: int) -> None:
    prompts, starts = InfillPrompts(tiny(code=True)), set[int]()
    text = "abcdefghij" * 12
    for end in range(60, 120):
        files = [("a", "b" * 10), ("c", "d" * 10)]
        prompt = prompts.within([text[:end], ""], "ponm" * 30, files, room)
        assert len(prompt) <= room
        before, after = prompt[prompt.index(PREFIX) + 1 : prompt.index(SUFFIX)], prompt[prompt.index(SUFFIX) + 1 : -1]
        assert after == ids(("ponm" * 30)[: room // 4])
        assert before
        assert before == ids(text[end - len(before) : end])
        starts.add(end - len(before))
    assert len(starts) <= 60 // (room // 8) + 2  # near cursors have the same beginning
    assert prompts.within(["a"], "b", [("c", "d" * 200), ("e", "f")], room) == [
        *head("e\nf"), PREFIX, *ids("a"), SUFFIX, *ids("b"), MIDDLE,
    ]  # fmt: skip


def test_tokens_are_those_of_the_vocabulary_or_else_of_the_file(tmp_path: Path) -> None:
    known = InfillPrompts(tiny(code=True)).tokens
    assert known == {"prefix": PREFIX, "suffix": SUFFIX, "middle": MIDDLE, "repo": REPO, "file": FILE}
    file = tmp_path / "a.gguf"
    stored = {"fim_pre": 3, "fim_suf": 4, "fim_mid": 5, "fim_sep": 6}
    file.write_bytes(content([value_field(f"tokenizer.ggml.{name}_token_id", id) for name, id in stored.items()], []))
    of_file = replace(tiny(), gguf=FileStamp.of(file))
    vars(of_file)["tokenizer"] = letters()
    prompts = InfillPrompts(of_file)
    assert prompts.tokens == {"prefix": 3, "suffix": 4, "middle": 5, "file": 6}
    assert prompts.end_ids == [3, 4, 5, 6]
    del prompts.tokens["file"]
    assert prompts.within(["a", "b"], "c", [("d", "e")], 20) == [*ids("e"), 3, *ids("ab"), 4, *ids("c"), 5]
    plain = InfillPrompts(tiny())
    assert plain.tokens == {}
    with pytest.raises(ValueError, match=r"tiny: expected a model with tokens .* got one without: middle, prefix, suf"):
        plain.check()


def test_what_llama_vim_sends_is_answered_as_it_reads_it(served: Served) -> None:
    fields = {
        "id_slot": 0, "input_extra": [{"text": "gh\n", "time": [1, 2], "filename": "fg"}], "prompt": "d",
        "n_predict": 12, "stop": [], "n_indent": 0, "top_k": 40, "top_p": 0.9,
        "samplers": ["top_k", "top_p", "infill"], "stream": False, "cache_prompt": True, "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1000,
        "response_fields": [
            "content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms",
            "timings/prompt_per_second", "timings/predicted_n", "timings/predicted_ms",
            "timings/predicted_per_token_ms", "timings/predicted_per_second", "truncated", "tokens_cached", "x/y",
        ],
    }  # fmt: skip
    prompt = [*head("fg\ngh\n"), PREFIX, *ids("abc\nd"), SUFFIX, *ids("\nfed"), MIDDLE]
    for _ in range(2):
        answer = infill(served, **fields)
        assert answer.status_code == 200
        assert answer.text.startswith("{")
        assert '"content":"' in answer.text  # as the plugin looks for it
        record = answer.json()
        assert set(record) == {*fields["response_fields"]} - {"x/y"}  # type: ignore[misc]
        assert record["content"] == written(served, prompt, 12)
        assert record["truncated"] is False
    assert record["timings/prompt_n"] == 1  # all but the last token was known
    assert record["timings/predicted_n"] >= 1
    assert record["tokens_cached"] == len(prompt) + record["timings/predicted_n"] - 1


def test_a_prompt_of_other_files_is_read_ahead(served: Served) -> None:
    """As plugins do while nobody types."""
    extra = [{"text": "gfgfgfgf\n", "time": 1, "filename": "kk"}]
    body = {
        "id_slot": 0, "input_prefix": "", "input_suffix": "", "input_extra": extra, "prompt": "", "n_predict": 0,
        "temperature": 0.0, "samplers": [], "stream": False, "cache_prompt": True, "t_max_prompt_ms": 1,
        "t_max_predict_ms": 1, "response_fields": [""],
    }  # fmt: skip
    answer = infill(served, **body)
    assert (answer.status_code, answer.text) == (200, "{}")
    record = infill(served, input_extra=extra, n_predict=3).json()
    assert record["timings"]["cache_n"] == len(head("kk\ngfgfgfgf\n")) + 1
    nothing = infill(served, n_predict=0).json()
    assert (nothing["content"], nothing["stop_type"]) == ("", "limit")
    assert infill(served, n_predict=0, response_fields=[]).json().keys() == nothing.keys()


def test_what_llama_vscode_sends_is_answered_as_it_reads_it(served: Served) -> None:
    fields = {
        "id_slot": 0, "input_extra": [], "prompt": "", "n_predict": 8, "n_cmpl": 3, "top_k": 40, "top_p": 0.99,
        "stream": False, "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "t_max_prompt_ms": 500,
        "t_max_predict_ms": 2500, "model": "tiny",
    }  # fmt: skip
    record = infill(served, **fields).json()
    prompt = [PREFIX, *ids("abc\n"), SUFFIX, *ids("\nfed"), MIDDLE]
    assert record["content"] == written(served, prompt, 8)
    assert record["generation_settings"]["n_ctx"] == 120
    assert record["timings"]["prompt_n"] + record["timings"]["cache_n"] == len(prompt) == record["tokens_evaluated"]
    assert record["timings"]["predicted_n"] == record["tokens_predicted"]
    assert {"tokens_cached", "truncated"} <= record.keys()
    assert httpx.get(f"{served.url}/health").json()["status"] == "ok"
    (card,) = httpx.get(f"{served.url}/v1/models").json()["data"]
    assert card["meta"]["n_ctx"] == 120
    for path in ("/props", "/v1/props"):
        props = httpx.get(f"{served.url}{path}", params={"model": "tiny", "autoload": "false"}).json()
        assert props["default_generation_settings"]["n_ctx"] == 120
        assert props["total_slots"] == 16
    assert httpx.get(f"{served.url}/props", params={"model": "other"}).status_code == 404


def test_chats_take_what_llama_vim_sends_with_instructions(served: Served) -> None:
    body = {"id_slot": 1, "messages": [{"role": "user", "content": "abcdef"}], "samplers": [], "n_predict": 0}
    url = f"{served.url}/v1/chat/completions"
    ahead = httpx.post(url, json={**body, "stream": False, "cache_prompt": True, "response_fields": [""]})
    assert ahead.status_code == 200
    assert ahead.json()["choices"][0]["message"]["content"] == ""
    asked = httpx.post(url, json={**body, "n_predict": 4, "temperature": 0.1, "samplers": ["min_p", "temperature"]})
    assert asked.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 5
    assert httpx.post(url, json={**body, "n_predict": -1, "max_tokens": 3}).json()["usage"]["completion_tokens"] <= 3


def test_a_stream_has_the_pieces_and_then_the_counts(served: Served) -> None:
    whole = infill(served, n_predict=10).json()
    events = []
    body = {"input_prefix": "abc\n", "input_suffix": "\nfed", "n_predict": 10, "stream": True}
    with httpx.stream("POST", f"{served.url}/infill", json=body, timeout=60) as response:
        events = [json.loads(line[6:]) for line in response.iter_lines() if line]
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert "".join(event["content"] for event in events) == whole["content"]
    last = events[-1]
    assert last["content"] == ""
    for name in ("stop_type", "tokens_predicted", "tokens_evaluated", "tokens_cached", "truncated", "has_new_line"):
        assert last[name] == whole[name]


@pytest.mark.parametrize("stream", [False, True])
def test_a_pass_that_fails_is_told(stream: bool) -> None:
    drafter = HeldDrafter(failing=True)
    drafter.go.set()
    with serving(tiny(code=True), drafter, Limits(context=120)) as server:
        answer = infill(server, stream=stream)
        assert '"server_error"' in answer.text
        assert answer.status_code == 500


def test_a_completion_with_a_suffix_fills_in_the_middle(served: Served) -> None:
    answer = served.client.completions.create(model="tiny", prompt="abc", suffix="def", max_tokens=9)
    assert answer.choices[0].text == written(served, [PREFIX, *ids("abc"), SUFFIX, *ids("def"), MIDDLE], 9)
    for suffix in ("", None):
        plain = served.client.completions.create(model="tiny", prompt="abc", suffix=suffix, max_tokens=3)
        assert plain.usage is not None
        assert plain.usage.prompt_tokens == 3


class Written(InfillText):
    """A text that is given, not decoded."""

    def __init__(self, **fields: Any) -> None:
        asked = InfillRequest(input_prefix="", input_suffix="", **fields)
        super().__init__(None, asked.stops, asked)

    def write(self, *pieces: str) -> tuple[str, bool, str]:
        for piece in pieces:
            self._append(piece)
        return self.text, self.limited, self.stop


@pytest.mark.parametrize(
    ("indent", "pieces", "expected"),
    [
        (2, ["a", "\n", "  b\n", "  ", "c\n", " ", "d"], "a\n  b\n  c\n "),
        (2, ["a\n  b\n\n  c"], "a\n  b\n"),
        (2, ["a\n", "  b\n\t\tc\n  "], None),
        (1, ["  a\nb"], "  a\n"),
        (0, ["a\nb\n\nc"], None),
    ],
)
def test_a_line_that_is_less_indented_ends_the_text(indent: int, pieces: list[str], expected: str | None) -> None:
    whole = "".join(pieces)
    for given in (pieces, [whole], [*whole]):
        assert Written(n_indent=indent).write(*given) == (
            whole if expected is None else expected,
            expected is not None,
            "",
        )


def test_a_stop_string_before_a_limit_ends_the_text() -> None:
    assert Written(n_indent=1, stop=["xy"]).write("a x", "y\nb") == ("a ", False, "xy")
    assert Written(n_indent=1, stop=["xy"]).write("a\n", "b xy") == ("a\n", True, "")


def test_after_its_time_a_text_goes_on_to_the_end_of_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [5.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for milliseconds, ends in ((100, True), (0, False), (-1, False), (None, False)):
        text = Written(t_max_predict_ms=milliseconds)
        text.write("a\n")
        now[0] += 0.09
        text.write("b\n")
        now[0] += 0.02
        assert text.write("c", "d") == ("a\nb\ncd", False, "")
        assert text.write("e\nf", "g") == ("a\nb\ncde\nf" if ends else "a\nb\ncde\nfg", ends, "")


def test_the_answer_says_how_its_text_ended(served: Served) -> None:
    text = written(served, [PREFIX, *ids("a\nd"), SUFFIX, *ids("\nfed"), MIDDLE], 40)
    assert len(text) == 18  # and a token that ends it
    for fields, expected, ended, stop in (
        ({"n_predict": 40}, text, "eos", ""),
        ({"n_predict": 40, "stop": ["xy", "ok"]}, text[: text.index("ok")], "word", "ok"),
        ({"n_predict": 5}, text[:5], "limit", ""),
        ({"n_predict": 40, "n_indent": 1}, text[: text.index("\n") + 1], "limit", ""),
    ):
        record = infill(served, input_prefix="a\nd", **fields).json()
        assert (record["content"], record["stop_type"], record["stopping_word"]) == (expected, ended, stop)
        assert record["has_new_line"] == ("\n" in expected)


def test_a_text_that_fills_the_context_is_truncated(served: Served) -> None:
    with serving(served.service.loaded, NoDrafter(), Limits(context=60, max_tokens=100)) as small:
        record = infill(small, input_prefix="abcdefghij" * 9).json()
        assert record["truncated"] == (record["stop_type"] == "limit")
        assert record["tokens_evaluated"] <= 45
    assert infill(served, n_predict=1).json()["truncated"] is False


def test_fields_may_be_at_any_depth() -> None:
    record = {"a": {"b": 1, "c": {"d": None}}, "e": [1]}
    assert selected(record, ["a/b", "a/c", "e", "a/x", "e/0", "", "/", "a/b/c"]) == {
        "a/b": 1, "a/c": {"d": None}, "e": [1],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"input_prefix": None}, "input_prefix", "valid string"),
        ({"input_suffix": 3}, "input_suffix", "valid string"),
        ({"input_extra": [{"filename": "a"}]}, "input_extra", "required"),
        ({"input_extra": [{"text": "a", "size": 1}]}, "input_extra[0].size", "known field"),
        ({"input_extra": {"text": "a"}}, "input_extra", "valid array"),
        ({"n_predict": -2}, "n_predict", "greater than or equal to -1"),
        ({"n_predict": True}, "n_predict", "valid integer"),
        ({"n_indent": -1}, "n_indent", "greater than or equal to 0"),
        ({"t_max_predict_ms": "1"}, "t_max_predict_ms", "valid number"),
        ({"response_fields": "content"}, "response_fields", "valid array"),
        ({"lora": [{"id": 0, "scale": 0.5}]}, "lora", "cannot honour"),
        ({"prompt": [1, 2]}, "prompt", "valid string"),
        ({"beams": 2}, "beams", "known field"),
        ({"stop": ["a"] * 5}, "stop", "up to 4 stop strings"),
        ({"input_prefix": "a\ud800"}, None, "Invalid JSON"),
    ],
)
def test_what_cannot_be_filled_in_is_refused_in_one_line(
    served: Served, fields: dict[str, Any], param: str | None, message: str
) -> None:
    body = json.dumps({"input_prefix": "abc", "input_suffix": "", **fields}).encode()
    answer = httpx.post(f"{served.url}/infill", content=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert message in error["message"]
    assert "\n" not in error["message"]


def test_a_model_without_the_tokens_says_so() -> None:
    with serving(tiny()) as plain:
        for path, body in (
            ("/infill", {"input_prefix": "a", "input_suffix": "b"}),
            ("/v1/completions", {"prompt": "a", "suffix": "b"}),
        ):
            answer = httpx.post(f"{plain.url}{path}", json=body)
            assert answer.status_code == 400
            assert "expected a model with tokens to fill in the middle" in answer.json()["error"]["message"]
        with pytest.raises(openai.BadRequestError, match="expected a prompt that is a text"):
            plain.client.completions.create(model="tiny", prompt=[1, 2], suffix="b")


def test_a_key_is_asked_for_of_editors_too() -> None:
    with serving(tiny(code=True), api_key="secret") as locked:
        assert httpx.get(f"{locked.url}/props").status_code == 401
        assert infill(locked).status_code == 401
        headers = {"authorization": "Bearer secret"}
        assert httpx.get(f"{locked.url}/props", headers=headers).status_code == 200


def test_an_editor_that_goes_on_typing_frees_its_row() -> None:
    drafter = HeldDrafter()
    with serving(tiny(code=True), drafter, Limits(context=120)) as server:
        body = {"input_prefix": "abc", "input_suffix": "d", "n_predict": 50}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/infill", json=body, timeout=0.3)
        drafter.go.set()
        server.wait_for("finished_total", 1, reason="cancelled")
        assert infill(server, n_predict=2).status_code == 200
        assert server.count("responses_total", path="/infill", status="200") == 1
