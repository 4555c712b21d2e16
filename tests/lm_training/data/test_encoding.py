"""Files of records become token sequences: every kind of file, every task's prompt, the same bytes however many
encode."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from lm_training.data.corpus import END_OF_TEXT, corpus_ids, is_held_out, read_documents, train_tokenizer
from lm_training.data.encoding import Encoding, encode_files, encoded_directory, write_encoded
from lm_training.data.pairs import encode_pairs, read_pairs, train_pair_tokenizer
from lm_training.data.records import BadRecords, read_records
from lm_training.data.sequences import load_texts
from lm_training.data.templates import TASKS, Template
from lm_training.data.text_tokenizer import end_of_text_id
from tests.helpers.commands import Run
from tests.helpers.tokenizers import TEMPLATE

QUESTIONS: list[dict[str, Any]] = [
    {
        "question": f"Who is number {index}?",
        "context": f"Number {index} is known.\nSo it is.",
        "answers": {"text": [f"Nobody {index}"]},
    }
    for index in range(23)
]
SQUAD = TASKS["squad"]


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_tokenizer([json.dumps(question) for question in QUESTIONS], vocab_size=300)


def write_lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def texts_of(path: Path, tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Prompt and answer of every sequence of a file, decoded."""
    sequences = load_texts(path, 0)
    return [
        (
            tokenizer.decode(sequences[index][:length].tolist()),
            tokenizer.decode(sequences[index][length:].tolist(), skip_special_tokens=False),
        )
        for index, length in enumerate(sequences.prompt_lengths.tolist())
    ]


EXPECTED = [
    (f"question: Who is number {index}? context: Number {index} is known.\nSo it is.", f"Nobody {index}{END_OF_TEXT}")
    for index in range(23)
]


@pytest.mark.parametrize("name", ["squad.jsonl", "squad.jsonl.gz", "squad.parquet", "saved"])
def test_prompts_of_every_kind_of_file_are_the_tasks_and_only_answers_are_learnt(
    name: str, tmp_path: Path, bpe: Tokenizer
) -> None:
    path = tmp_path / name
    if name == "saved":
        datasets = pytest.importorskip("datasets")
        datasets.Dataset.from_list(QUESTIONS).save_to_disk(str(path))
    else:
        lines = write_lines(tmp_path / "squad.jsonl", QUESTIONS)
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(lines.read_bytes()))
        if path.suffix == ".parquet":
            duckdb.execute(f"COPY (SELECT * FROM read_json('{lines}')) TO '{path}'")
    out = tmp_path / "out.npz"
    done = write_encoded(encode_files([path], bpe, Encoding(end_of_text_id(bpe), SQUAD)), out)
    assert texts_of(out, bpe) == EXPECTED
    assert (done.sequences, done.records, done.bad) == (23, 23, 0)
    assert load_texts(out, 0).num_labels == sum(len(bpe.encode(answer).ids) for _, answer in EXPECTED)


def test_documents_of_every_kind_of_file_are_packed_into_one_corpus(tmp_path: Path, bpe: Tokenizer) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"text": "Who is\r\nnumber 1?", "more": 1}, {"text": "known", "more": 2}]
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "saved"))
    write_lines(tmp_path / "a.jsonl", [{"text": "Nobody"}])
    (tmp_path / "b.txt").write_text("context\n\nquestion\n")
    paths = [tmp_path / name for name in ("saved", "a.jsonl", "b.txt")]
    for text_lines, texts in ((False, ["context\n\nquestion\n"]), (True, ["context", "question"])):
        write_encoded(
            encode_files(paths, bpe, Encoding(end_of_text_id(bpe), text_lines=text_lines)), tmp_path / "out.npy"
        )
        wanted = ["Who is\r\nnumber 1?", "known", "Nobody", *texts]
        ids = [token for text in wanted for token in (*bpe.encode(text).ids, end_of_text_id(bpe))]
        assert np.load(tmp_path / "out.npy").tolist() == ids
    assert (
        corpus_ids([tmp_path / "saved", tmp_path / "a.jsonl"], (bpe, 0)).tolist()
        == ids[: len(corpus_ids([*paths[:2]], (bpe, 0)))]
    )


def test_shards_are_the_same_to_the_byte_whatever_the_number_of_workers(tmp_path: Path, bpe: Tokenizer) -> None:
    path = write_lines(tmp_path / "a.jsonl", [*QUESTIONS[:9], {"question": "bad"}, *QUESTIONS[9:]])
    encoding = Encoding(end_of_text_id(bpe), SQUAD, shard_records=5)
    bad = [BadRecords(strict=False) for _ in range(2)]
    for workers in (1, 2):
        write_encoded(encode_files([path], bpe, encoding, workers, bad[workers - 1]), tmp_path / str(workers))
    files = [{file.name: file.read_bytes() for file in (tmp_path / str(workers)).iterdir()} for workers in (1, 2)]
    assert sorted(files[0]) == ["encoded.json", *(f"shard-{number:05d}.npz" for number in range(5))]
    assert files[0] == files[1]
    assert bad[0] == bad[1]
    assert texts_of(tmp_path / "1", bpe) == EXPECTED
    # Of one shard, of many, or in one file: the same sequences.
    write_encoded(
        encode_files([path], bpe, Encoding(end_of_text_id(bpe), SQUAD), bad=BadRecords(False)), tmp_path / "whole.npz"
    )
    np.testing.assert_array_equal(load_texts(tmp_path / "whole.npz", 0).tokens, load_texts(tmp_path / "2", 0).tokens)


def test_bad_records_are_counted_and_named_and_strict_stops_at_the_first(
    tmp_path: Path, bpe: Tokenizer, run: Run
) -> None:
    good = json.dumps(QUESTIONS[0]).encode()
    lines = [
        good,
        b"{oops",
        good,
        b"[1, 2]",
        b'{"question": "x", "context": 3}',
        b'{"question": "\xff"}',
        b'{"question": ["x"]}',
        b"",
        b"1",
    ]
    blank = json.dumps({"question": "x", "context": "y", "answer": " "}).encode()
    path, tokenizer = tmp_path / "a.jsonl", tmp_path / "tokenizer.json"
    path.write_bytes(b"\n".join([*lines, blank, good]))
    bpe.save(str(tokenizer))
    command = ["train", "encode", path, "--task", "squad", "--tokenizer", tokenizer, "-o", tmp_path / "out.npz"]
    status, _, errors = run(*command)
    flat = errors.replace("\n", "")
    assert status == 0
    assert "7 bad records left out, first:" in flat
    for number, message in (
        (2, "expected a JSON object, got '{oops'"),
        (4, "expected a JSON object, got '[1, 2]'"),
        (5, "expected text under 'answer', got nothing"),
        (6, "cannot be read as UTF-8: 0xff"),
        (7, "expected text under 'question', got list"),
    ):
        assert f"a.jsonl:{number}: {message}".replace(" ", "") in flat.replace(" ", "")
    assert "a.jsonl:9" not in flat  # the first five alone
    assert texts_of(tmp_path / "out.npz", bpe) == [EXPECTED[0]] * 3
    status, _, errors = run(*command[:-1], tmp_path / "strict.npz", "--strict")
    assert status == 2
    assert "a.jsonl:2: expected a JSON object" in errors
    assert not (tmp_path / "strict.npz").exists()


@pytest.mark.parametrize("half", [r"\ud800", r"\uDfff", r"\ud800\u0041"])
def test_half_of_a_surrogate_pair_is_a_bad_record_and_a_whole_one_is_not(
    half: str, tmp_path: Path, bpe: Tokenizer
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "known {half}", "q": "x"}}\n{{"text": "known \\ud83d\\ude00", "q": "x"}}\n')
    bad = BadRecords(strict=False)
    write_encoded(encode_files([path], bpe, Encoding(end_of_text_id(bpe)), bad=bad), tmp_path / "out.npy")
    assert bad.count == 1
    assert "a.jsonl:1: expected text, got half of a surrogate pair" in bad.first[0]
    assert bpe.decode(np.load(tmp_path / "out.npy")[:-1].tolist()) == "known 😀"
    with pytest.raises(ValueError, match=r"a\.jsonl:1"):
        corpus_ids([path], (bpe, 0))
    with pytest.raises(ValueError, match=r"a\.jsonl:1: expected a JSON object with text"):
        list(read_pairs([path], "text", "q"))


def test_a_full_disk_leaves_no_tokenizer(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *args: object, **kwargs: object) -> int:
        path.write_bytes(b"{")
        raise OSError(28, "No space left on device")

    (tmp_path / "a.txt").write_text("some text")
    monkeypatch.setattr(Path, "write_text", full)
    status, _, errors = run("train", "tokenizer", tmp_path / "a.txt", "-o", tmp_path / "t.json")
    assert status == 2
    assert "No space left on device" in errors
    assert len(errors.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_documents_are_known_by_their_id_else_by_file_and_line(tmp_path: Path) -> None:
    jsonl, text = tmp_path / "a.jsonl", tmp_path / "b.txt"
    jsonl.write_bytes(b'{"text": "one", "id": 7, "source": "web"}\r\n\n{"text": "two"}\n')
    text.write_bytes(b"three\r\nfour\r")
    assert [(each.id, each.source, each.text) for each in read_documents([jsonl, text])] == [
        ("7", "web", "one"),
        ("a.jsonl:3", "a.jsonl", "two"),
        (str(text), "b.txt", "three\nfour\n"),
    ]
    jsonl.write_bytes(b'{"text": "one"}\r\n\n{"text": "\xff"}')
    with pytest.raises(ValueError, match=r"a\.jsonl:3: cannot be read as UTF-8: 0xff at byte 28 is none"):
        list(read_documents([jsonl]))


def test_held_out_documents_are_a_share_of_all() -> None:
    ids = [str(number) for number in range(4000)]
    assert not any(is_held_out(each, 0) for each in ids)
    assert all(is_held_out(each, 1000) for each in ids)
    assert 300 < sum(is_held_out(each, 100) for each in ids) < 500


def test_corpora_are_integers_and_are_not_mixed_with_text(tmp_path: Path, bpe: Tokenizer) -> None:
    text, ids, numbers = tmp_path / "a.txt", tmp_path / "ids.npy", tmp_path / "numbers.npy"
    text.write_text("known")
    np.save(ids, np.array([3, 1], np.uint16))
    np.save(numbers, np.array([3.0, 1.0]))
    assert corpus_ids([ids, ids], None).tolist() == [3, 1, 3, 1]
    with pytest.raises(ValueError, match=r"expected either \.npy corpora or text files, got both"):
        corpus_ids([ids, text], (bpe, 0))
    with pytest.raises(ValueError, match=r"numbers\.npy: expected a one-dimensional integer array, got .*float64"):
        corpus_ids([numbers], None)
    with pytest.raises(ValueError, match=r"a\.txt: expected token ids \(\.npy\), or text with a tokenizer"):
        corpus_ids([text], None)


def test_the_first_bad_records_are_kept_and_all_are_counted() -> None:
    bad = BadRecords(strict=False)
    bad.add(["a", "b", "c"], 4)
    bad.add(["d", "e", "f"])
    assert bad.report() == ["7 bad records left out, first:", "a", "b", "c", "d", "e"]


def test_records_that_are_all_bad_are_an_error(tmp_path: Path, bpe: Tokenizer) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"body": "x"}] * 3)
    with pytest.raises(
        ValueError, match=r"got 3 that cannot, first: .*a\.jsonl:1: expected text under 'question', got nothing"
    ):
        write_encoded(encode_files([path], bpe, Encoding(0, SQUAD), bad=BadRecords(False)), tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()


def test_sequences_beyond_a_length_are_left_out_and_counted(tmp_path: Path, bpe: Tokenizer) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"q": "x" * length, "a": "y"} for length in range(1, 9)])
    template = Template("{q}", ("a",))
    done = write_encoded(encode_files([path], bpe, Encoding(0, template, max_tokens=5)), tmp_path / "out.npz")
    lengths = [len(bpe.encode("x" * length).ids) + len(bpe.encode("y").ids) + 1 for length in range(1, 9)]
    assert load_texts(tmp_path / "out.npz", 0).lengths.tolist() == [length for length in lengths if length <= 5]
    assert done.too_long == sum(length > 5 for length in lengths) > 0


def test_pairs_are_those_of_the_translators(tmp_path: Path) -> None:
    """A template of the source sentence alone gives what `encode_pairs` gives: the tokenizer ends sources itself."""
    pairs = [(f"a man {index} walks", f"ein Mann {index} geht") for index in range(7)]
    bpe = train_pair_tokenizer((text for pair in pairs for text in pair), 300)
    path = write_lines(tmp_path / "a.jsonl", [{"en": pair[0], "de": pair[1]} for pair in pairs])
    write_encoded(
        encode_files([path], bpe, Encoding(end_of_text_id(bpe), Template("{en}", ("de",)))), tmp_path / "out.npz"
    )
    texts, expected = load_texts(tmp_path / "out.npz", 0), encode_pairs(pairs, bpe)
    for name in ("tokens", "starts", "prompt_lengths"):
        np.testing.assert_array_equal(getattr(texts, name), getattr(expected, name))


def test_prompts_carry_the_tokenizers_special_tokens_and_answers_do_not(tmp_path: Path, bpe: Tokenizer) -> None:
    begins = Tokenizer.from_str(bpe.to_str())
    begins.post_processor = processors.TemplateProcessing(single=f"{END_OF_TEXT} $A", special_tokens=[(END_OF_TEXT, 0)])
    path = write_lines(tmp_path / "a.jsonl", [{"q": "known", "a": "Nobody"}])
    write_encoded(encode_files([path], begins, Encoding(0, Template("{q}\n", ("a",)))), tmp_path / "out.npz")
    assert load_texts(tmp_path / "out.npz", 0)[0].tolist() == [
        0,
        *bpe.encode("known\n").ids,
        *bpe.encode("Nobody").ids,
        0,
    ]


def test_command_encodes_prompts_of_the_users_own(tmp_path: Path, bpe: Tokenizer, run: Run) -> None:
    bpe.save(str(tmp_path / "tokenizer.json"))
    path = write_lines(tmp_path / "a.jsonl", QUESTIONS)
    start = ["train", "encode", path, "--tokenizer", tmp_path / "tokenizer.json", "-o"]
    own = ["--prompt-template", r"{context}\n{question}\nAnswer: ", "--answer-field", "answers.text.0"]
    assert run(*start, tmp_path / "own.npz", *own)[0] == 0
    assert texts_of(tmp_path / "own.npz", bpe)[1] == (
        "Number 1 is known.\nSo it is.\nWho is number 1?\nAnswer: ",
        f"Nobody 1{END_OF_TEXT}",
    )
    assert run(*start, tmp_path / "prompts", "--task", "squad", "--prompts-only", "--shard-records", 4)[0] == 0
    assert [prompt for prompt, _ in texts_of(tmp_path / "prompts", bpe)] == [prompt for prompt, _ in EXPECTED]
    assert load_texts(tmp_path / "prompts", 0).num_labels == 0
    for more, message in (
        (["x.npz", "--task", "quad"], "expected --task squad, cnn"),
        (["x.npz", "--task", "squad", *own], "either --task or --prompt-template, got both"),
        (["x.npz", *own[:2]], "expected --answer-field, or --prompts-only"),
        (["x.npz", "--prompt-template", "none", "--prompts-only"], "a prompt with fields in braces"),
        (["x.npz", "--answer-field", "a"], "expected --task or --prompt-template together with"),
        (["x.npy", "--task", "squad"], "got a corpus; they would run together"),
        (["x.npz", "--task", "squad", "--end-of-text", "</s>"], "a tokenizer with the token '</s>'"),
    ):
        status, _, errors = run(*start, tmp_path / more[0], *more[1:])
        assert status == 2
        assert message in errors


def test_directory_of_something_else_is_not_overwritten_and_one_of_ours_is_made_anew(
    tmp_path: Path, bpe: Tokenizer
) -> None:
    path = write_lines(tmp_path / "a.jsonl", QUESTIONS)
    out = tmp_path / "out"
    for records in (2, 20):
        write_encoded(encode_files([path], bpe, Encoding(0, SQUAD, shard_records=records)), out)
        assert texts_of(out, bpe) == EXPECTED
    assert len(list(out.iterdir())) == 3
    (out / "encoded.json").unlink()
    with pytest.raises(ValueError, match="expected settings as `latticebpd train encode` writes them"):
        encoded_directory(out).files()
    (out / "mine.txt").touch()
    with pytest.raises(ValueError, match=r"found mine\.txt; choose another"):
        write_encoded(encode_files([path], bpe, Encoding(0, SQUAD)), out)


def test_unreadable_saved_data_set_is_named(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty: expected a directory that Dataset\.save_to_disk has written"):
        list(read_records([tmp_path / "empty"]))
    split = datasets.DatasetDict({"train": datasets.Dataset.from_list(QUESTIONS)})
    split.save_to_disk(str(tmp_path / "splits"))
    with pytest.raises(ValueError, match=r"splits: expected one split, got train; name one, such as .*splits/train"):
        list(read_records([tmp_path / "splits"]))
    with pytest.raises(ValueError, match="expected a column 'text', got question, context, answers"):
        list(read_records([tmp_path / "splits" / "train"], ["text"]))
    assert [record.fields() for record in read_records([tmp_path / "splits" / "train"])] == QUESTIONS


@pytest.mark.parametrize("task", TASKS)
def test_tasks_name_fields_and_answers(task: str) -> None:
    template = TASKS[task]
    fields = {path: path.upper() for path in template.paths} | {(template.answers or ("",))[0]: "ANSWER"}
    prompt, answer = template.fill(fields)
    assert answer == "ANSWER"
    assert all(path.upper() in prompt for path in template.paths)
    assert "{" not in prompt


@pytest.mark.parametrize(
    ("answer", "fields", "message"),
    [
        ("a.1", {"a": ["y"]}, "expected text under 'a.1', got nothing"),
        ("a.b", {"a": ["y"]}, "expected text under 'a.b', got nothing"),
        ("a", {"a": True}, "expected text under 'a', got bool"),
        ("a", {"a": " \n"}, r"expected text under 'a' \(the answer\), got ' \\n'"),
    ],
)
def test_answers_that_are_no_text_are_refused(answer: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Template("{q}", (answer,)).fill({"q": "x", **fields})


def test_columns_are_those_of_the_fields_unless_a_record_decides() -> None:
    assert Template("{b.0} {a}", ("c.text",)).columns == ["a", "b", "c"]
    assert Template("{b} {a}").columns == ["a", "b"]
    assert Template("{a}", ("b", "c")).columns is None


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from("abcd"), st.text(max_size=6) | st.integers(), min_size=1))
def test_filled_prompt_holds_every_field_as_it_is(fields: dict[str, str | int]) -> None:
    """Braces in a field are text, not fields."""
    template = Template("|".join(f"{{{name}}}" for name in fields))
    assert template.fill(fields) == ("|".join(str(value) for value in fields.values()), None)


def chat_tokenizer(directory: Path, bpe: Tokenizer) -> PreTrainedTokenizerFast:
    """A tokenizer in a directory, with a chat template whose turns end with </s>."""
    chat = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(bpe.to_str()), bos_token="<s>", eos_token="</s>")
    chat.chat_template = TEMPLATE
    chat.save_pretrained(directory)
    return chat


HELLO = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
AGAIN = [*HELLO, {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "So long"}]
OPENING, FIRST = "<s>system\nBe kind.</s>\n", "<s>user\nHi</s>\n<s>assistant\n"


@pytest.mark.parametrize("workers", [1, 2])
def test_conversations_end_with_the_last_answer_in_the_chat_template(
    tmp_path: Path, bpe: Tokenizer, run: Run, workers: int
) -> None:
    chat = chat_tokenizer(tmp_path, bpe)
    shouting = [{"role": "system", "content": "Shout."}, *HELLO]
    path = write_lines(
        tmp_path / "chats.jsonl", [{"messages": messages} for messages in (HELLO, AGAIN, HELLO[:1], shouting, "no")]
    )
    line = [
        "train",
        "encode",
        path,
        "--chat",
        "--tokenizer",
        tmp_path / "tokenizer.json",
        "--workers",
        workers,
        "-o",
        tmp_path / "out.npz",
    ]
    status, _, err = run(*line)
    assert status == 0, err
    assert "2 bad records left out" in err
    assert f"{path}:3: expected messages that end with the assistant's (the answer), or --prompts-only" in err
    sequences = load_texts(tmp_path / "out.npz", 0)
    dialogues = [(chat.decode(text[:length]), chat.decode(text[length:])) for text, length in sequences.items()]
    second = f"{OPENING}{FIRST}Hello</s>\n<s>user\nBye</s>\n<s>assistant\n"
    assert dialogues == [
        (OPENING + FIRST, "Hello</s>"), (second, "So long</s>"), (f"<s>system\nShout.</s>\n{FIRST}", "Hello</s>"),
    ]  # fmt: skip
    assert sequences[0][0] == chat.convert_tokens_to_ids("<s>")  # the template's own, and no other


def test_prompts_of_a_template_become_the_users_turn(tmp_path: Path, bpe: Tokenizer, run: Run) -> None:
    chat = chat_tokenizer(tmp_path, bpe)
    path = write_lines(tmp_path / "squad.jsonl", QUESTIONS[:2])
    line = [
        "train",
        "encode",
        path,
        "--chat",
        "--task",
        "squad",
        "--tokenizer",
        tmp_path / "tokenizer.json",
        "-o",
        tmp_path / "out.npz",
    ]
    assert run(*line, "--system-prompt", "Be brief.")[0] == 0
    text, length = next(load_texts(tmp_path / "out.npz", 0).items())
    asked, answer = EXPECTED[0]
    assert chat.decode(text[:length]) == f"<s>system\nBe brief.</s>\n<s>user\n{asked}</s>\n<s>assistant\n"
    assert chat.decode(text[length:]) == answer.replace(END_OF_TEXT, "</s>")


def test_prompts_of_conversations_need_no_answer_and_a_chat_needs_a_template(
    tmp_path: Path, bpe: Tokenizer, run: Run
) -> None:
    chat = chat_tokenizer(tmp_path / "chat", bpe)
    path = write_lines(tmp_path / "chats.jsonl", [{"messages": HELLO}, {"messages": HELLO[:1]}])
    line = ["train", "encode", path, "--chat", "--prompts-only", "-o", tmp_path / "out.npz", "--tokenizer"]
    assert run(*line, tmp_path / "chat" / "tokenizer.json")[0] == 0
    assert [chat.decode(text) for text, _ in load_texts(tmp_path / "out.npz", 0).items()] == [OPENING + FIRST] * 2
    bpe.save(str(tmp_path / "tokenizer.json"))
    status, _, err = run(*line, tmp_path / "tokenizer.json")
    assert status == 2
    assert "expected a tokenizer with a chat template" in err
    status, _, err = run(
        *[part for part in line if part != "--chat"], tmp_path / "tokenizer.json", "--system-prompt", "x"
    )
    assert status == 2
    assert "expected --chat with --system-prompt" in err
