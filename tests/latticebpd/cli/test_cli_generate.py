"""``latticebpd generate`` as a user types it: any model, any source of text, and always the base model's own words."""

from __future__ import annotations

import html
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import fst
from latticebpd import LatticeSet, TreeDrafter, generate, load
from latticebpd.decoding.rule_names import parse_rule
from latticebpd.drafters import bundled
from latticebpd.drafters.block.block_checkpoints import save_block_drafter
from latticebpd.drafters.block.block_network import BlockDrafter, config_for
from latticebpd.drafters.cost_aware import CostAwareDrafter
from latticebpd.drafters.heads.engine_heads import EngineHeads
from latticebpd.models.load_target import load_stock
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.weights import Tuning, store_tunings
from tests.helpers.commands import Run
from tests.helpers.pages import check_page
from tests.helpers.tiny_families import tiny

RECORD = Tuning(1.0, "8-best", (0.5, 1.0), (1.0, 2.0), "text", (0,), 0, "sha256:0")
TEXT = "The history of the city"
FEW_HEADS = ("-s", "5-tree", "--k", 4, "--alpha", 0.1, "--block-size", 3)
SYSTEMS = (
    "greedy",
    "vanilla",
    "3-best",
    "3-best:0-gram",
    "16-tree",
    "8-tree:0-gram",
    "8-copies",
    "copies+8-tree",
    "copies+8-tree:0-gram",
)


@pytest.fixture(scope="module")
def expected() -> str:
    """The bundled model's own text, by ``generate()``."""
    tokenizer = Tokenizer.from_file(str(bundled.TOKENIZER))
    model = AutoModelForCausalLM.from_pretrained(bundled.MODEL, dtype=torch.float32)
    ids = tokenizer.encode(TEXT).ids
    out = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=24)
    return tokenizer.decode(out[0, len(ids) :].tolist())


@pytest.fixture
def tiny_directory(tmp_path: Path) -> Path:
    """A stock model without heads, as ``save_pretrained`` writes it, and a tokenizer of letters."""
    tiny("gpt2").save_pretrained(tmp_path / "gpt2")
    tokenizer = Tokenizer(BPE({chr(ord("a") + i): i for i in range(23)}, []))
    tokenizer.decoder = Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


@pytest.mark.parametrize("options", [(), *(("-s", system) for system in SYSTEMS), FEW_HEADS, ("--weights", "torch")])
def test_text_streams_as_the_base_model_writes_it(run: Run, expected: str, options: tuple[object, ...]) -> None:
    status, out, err = run("generate", TEXT, "--max-new-tokens", 24, *options)
    assert (status, out) == (0, expected + "\n")
    assert err.startswith("24 tokens in ")


def test_text_comes_from_a_file_or_standard_input(
    run: Run,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "prompt.txt").write_text(TEXT)
    assert run("generate", "--file", tmp_path / "prompt.txt", "--max-new-tokens", 24)[1] == expected + "\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT))
    assert run("generate", "-", "--max-new-tokens", 24)[1] == expected + "\n"


def test_json_counts_what_the_text_cost(run: Run, expected: str) -> None:
    status, out, err = run("generate", TEXT, "--max-new-tokens", 24, "--json")
    record = json.loads(out)
    assert (status, err) == (0, "")
    assert record["text"] == expected
    assert record["tokens"] == 24
    assert sum(n * count for n, count in enumerate(record["accept_counts"])) == 23
    assert record["calls"] == sum(record["accept_counts"]) < 23
    assert record["block_efficiency"] == 23 / record["calls"]


def test_marked_blocks_hold_the_text_and_as_many_calls(run: Run, expected: str) -> None:
    status, out, err = run("generate", TEXT, "--max-new-tokens", 24, "--show-blocks")
    assert status == 0
    assert "".join((TEXT + expected).split()) == "".join(out.replace("┃", "").split())
    calls = int(err.split(" in ")[1].split()[0])
    assert out.count("┃") == calls + 1  # and the prefill's token


@pytest.mark.parametrize(
    "options", [(), ("--accept", "top-k:3", "-s", "8-best"), ("-s", "greedy"), ("-s", "4-copies", "--json")]
)
def test_a_trace_shows_the_decode_call_by_call(run: Run, tmp_path: Path, options: tuple[object, ...]) -> None:
    status, out, err = run("generate", TEXT, "--max-new-tokens", 24, "--trace", tmp_path / "page.html", *options)
    assert (status, bool(out)) == (0, True), err
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    check_page(page)
    text = re.search(r'<p class="running"><span class="before">(.*?)</span> (.*?)</p>', page, re.DOTALL)
    assert text is not None
    assert text[1] == TEXT
    written = html.unescape(re.sub("<[^>]+>", "", text[2])).strip()
    assert written == (json.loads(out)["text"] if "--json" in options else out).strip()
    assert ("<svg" in page) == ("greedy" not in options and "4-copies" not in options)


def test_a_trace_that_cannot_be_written_is_refused_at_once(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, out, err = run("generate", TEXT, "--trace", tmp_path / "file" / "page.html")
    assert (status, out, err.count("\n")) == (2, "", 1)


def test_the_speed_is_that_of_the_decode_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading and the measurement of costs come before the clock starts, which here goes on by four seconds a look."""
    looks: list[float] = []
    events: list[str] = []
    costs = CostAwareDrafter.costs.fget

    def measured(self: CostAwareDrafter) -> object:
        events.append("costs")
        return costs(self)  # type: ignore[misc]

    class Clock:
        @staticmethod
        def perf_counter() -> float:
            looks.append(4.0 * len(looks))
            events.append("clock")
            return looks[-1]

    monkeypatch.setattr(CostAwareDrafter, "costs", property(measured))
    monkeypatch.setattr("latticebpd.cli.generate.time", Clock)
    arguments = ("generate", TEXT, "--weights", "int8", "--max-new-tokens", 8)
    record = json.loads(run(*arguments, "--json")[1])
    assert (record["tokens"], record["seconds"], record["tokens_per_second"]) == (8, 4.0, 2.0)
    assert events[:2] == ["costs", "clock"]
    assert ", 2.0 tokens/s, weights: int8" in run(*arguments)[2]


def test_model_without_heads_drafts_by_copying(run: Run, tiny_directory: Path) -> None:
    status, out, err = run("generate", "abcd", "--model", tiny_directory, "--max-new-tokens", 30, "--json")
    assert status == 0, err
    ids = torch.tensor([[0, 1, 2, 3]])
    own = tiny("gpt2").generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=30)[0, 4:]
    record = json.loads(out)
    assert record["text"] == "".join(chr(ord("a") + int(token)) for token in own)
    assert record["verified_tokens"] > 0


def test_stop_string_ends_the_text(run: Run, tiny_directory: Path) -> None:
    text = json.loads(run("generate", "abcd", "--model", tiny_directory, "--max-new-tokens", 30, "--json")[1])["text"]
    stop = text[5:7]
    stopped = json.loads(
        run("generate", "abcd", "--model", tiny_directory, "--max-new-tokens", 30, "--stop", stop, "--json")[1]
    )["text"]
    assert stopped == text[: text.index(stop) + 2]


def test_sampling_repeats_with_a_seed(run: Run) -> None:
    options = ("generate", TEXT, "--max-new-tokens", 12, "--temperature", 1.2, "--top-k", 50, "--json")
    texts = [json.loads(run(*options, "--seed", seed)[1])["text"] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("rule", ["top-k:3", "distance:2", "min-block:3", "beta:5,3", "min-block:2,top-k:2"])
def test_lenient_rules_keep_more_and_are_those_of_the_loop(run: Run, expected: str, rule: str) -> None:
    options = ("generate", TEXT, "--max-new-tokens", 24, "--system", "16-tree", "--json")
    exact, lenient = (json.loads(run(*options, "--accept", name)[1]) for name in ("exact", rule))
    assert exact["text"] == expected
    loaded = load()
    drafter = TreeDrafter(EngineHeads(loaded.folder, loaded.target, loaded.tokenizer), loaded.lm, num_nodes=16)
    ids = loaded.encode(TEXT)
    out = generate(loaded.target, ids, drafter, parse_rule(rule), max_new_tokens=24)
    assert lenient["text"] == loaded.tokenizer.decode(out.sequences[0, len(ids) :].tolist())
    assert lenient["calls"] == out.num_calls


def test_sampling_may_be_asked_for_as_a_rule(run: Run) -> None:
    options = ("generate", TEXT, "--max-new-tokens", 12, "--temperature", 1.2, "--top-k", 50, "--seed", 1, "--json")
    ruled, sampled = (json.loads(run(*options, *rule)[1])["text"] for rule in (("--accept", "sample"), ()))
    assert ruled == sampled


def test_a_stored_weight_is_the_default(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In every command that rescores; each system's own."""
    fst.NgramModel.load(bundled.LM).save(tmp_path / "lm.fst")
    store_tunings(
        tmp_path / "lm.fst",
        [replace(RECORD, alpha=alpha, system=system) for alpha, system in ((0.25, "8-best"), (4.0, "8-tree"))],
    )
    weights: list[float] = []

    class Watched(NgramScorer):
        def __post_init__(self) -> None:
            weights.append(self.alpha)

    monkeypatch.setattr("latticebpd.scoring.rescoring.NgramScorer", Watched)
    lines = tmp_path / "t.txt"
    lines.write_text(TEXT + "\n")
    few = ("--lm", tmp_path / "lm.fst", "--max-new-tokens", 4)
    heads = ("--model", bundled.MODEL, "--initial", "heads", *few)
    for command, own in (
        (("generate", TEXT, "--system", "8-tree", *few), 4.0),
        (("generate", TEXT, "--system", "8-best", *few), 0.25),
        (("generate", TEXT, "--system", "8-best", "--alpha", 3.0, *few), 3.0),
        (("jacobi", lines, "--no-baselines", "--algorithm", "hybrid", *heads), 0.25),
        (("ddg", lines, *heads), 0.25),
    ):
        weights.clear()
        status, _, err = run(*command)
        assert status == 0, err
        assert weights[-1] == own, command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected a text, - for standard input, or --file"),
        (("x", "--file", "y"), "just one of them"),
        (("--file", "none.txt"), "none.txt: expected a file, found none"),
        (("x", "--model", "/none"), "/none: expected the directory of a model"),
        (("x", "--model", "."), "the base model cannot be read"),
        (("",), "at least one token"),
        (("x", "-s", "oracle"), "the oracle, which has to know the text beforehand"),
        (("x", "-s", "tree"), "expected greedy, N-copies, copies+N-tree, vanilla, chain, P-best or N-tree"),
        (("x", "-s", "copies+4-best"), "expected copies+N-tree, since only trees tell how sure they are"),
        (("x", "-s", "heads+4-tree"), "expected greedy, N-copies, copies+N-tree"),
        (("x", "--accept", "all"), "expected an acceptance rule exact, top-k:K"),
        (("x", "--accept", "exact", "--temperature", "0.5"), "expected the rule sample with temperature"),
        (("x", "--top-k", "5"), "expected the rule sample with top_k"),
        (("x", "-s", "vanilla", "--lm", str(bundled.LM)),
        "expected --lm with a system that rescores, such as 16-best or 64-tree, got 'v"),
        (("x", "-s", "copies+4-tree:0-gram", "--lm", str(bundled.LM)), "expected --lm with a system that rescores"),
        (("x", "-s", "greedy", "--alpha", "2"), "expected --alpha with a system that rescores"),
    ],
)  # fmt: skip
def test_bad_input_ends_with_one_line_and_status_2(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = run("generate", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("latticebpd: error: ")
    assert len(err.splitlines()) == 1
    assert message in err


def test_a_checkpoint_that_asks_for_beams_is_decoded_where_one_says_so(
    run: Run, tiny_directory: Path, tmp_path: Path
) -> None:
    config = tiny_directory / "generation_config.json"
    settings = json.loads(config.read_text())
    lines = tmp_path / "lines.txt"
    lines.write_text("abcd\n")
    common = ("--model", tiny_directory, "--max-new-tokens", 12)
    greedily = json.loads(run("generate", "abcd", *common, "--json")[1])["text"]
    config.write_text(json.dumps(settings | {"num_beams": 4, "length_penalty": 0.6, "early_stopping": True}))
    for command in (
        ("generate", "abcd", *common),
        ("jacobi", lines, "--no-baselines", *common),
        ("ddg", lines, *common),
    ):
        status, _, err = run(*command)
        assert (status, "expected a generation config without num_beams, got 4" in err) == (2, True), err
        assert "on the command line, --ignore-beams" in " ".join(err.split())
        assert run(*command, "--ignore-beams")[0] == 0, command
    assert json.loads(run("generate", "abcd", *common, "--ignore-beams", "--json")[1])["text"] == greedily
    assert json.loads(config.read_text())["num_beams"] == 4


def test_an_lm_of_another_vocabulary_is_refused_without_heads_too(run: Run, tiny_directory: Path) -> None:
    status, _, err = run("generate", "abcd", "--model", tiny_directory, "--lm", bundled.LM)
    assert status == 2
    assert "expected an n-gram model over the vocabulary of the model" in err


def test_a_chat_model_answers_in_its_template_and_the_lm_beside_it_is_used(run: Run, tmp_path: Path) -> None:
    """The bundled model with a chat template, which it has never seen, and its own 4-gram as ``lm.fst``."""
    shutil.copytree(bundled.MODEL, tmp_path / "chat")
    shutil.copy(bundled.LM, tmp_path / "chat" / "lm.fst")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_file(str(bundled.TOKENIZER)))
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"
    )
    tokenizer.save_pretrained(tmp_path / "chat")

    def answer(*options: object) -> dict[str, object]:
        status, out, _ = run(
            "generate", "the city", "--model", tmp_path / "chat", "--max-new-tokens", 12, "--json", *options
        )
        assert status == 0
        return json.loads(out)

    model = AutoModelForCausalLM.from_pretrained(bundled.MODEL, dtype=torch.float32)
    for options, prompt in (
        ((), "user: the city\nassistant:"),
        (("--system-prompt", "Be brief."), "system: Be brief.\nuser: the city\nassistant:"),
        (("--no-chat",), "the city"),
    ):
        ids = tokenizer(prompt)["input_ids"]
        own = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=12)[0, len(ids) :]
        assert answer(*options)["text"] == tokenizer.decode(own, skip_special_tokens=True)
    assert answer("-s", "16-tree")["accept_counts"] == answer("-s", "16-tree", "--lm", bundled.LM)["accept_counts"]
    assert answer("-s", "16-tree")["accept_counts"] != answer("-s", "16-tree:0-gram")["accept_counts"]
    status, _, err = run("generate", "x", "--chat")
    assert status == 2
    assert "expected a tokenizer with a chat template" in err


def test_a_block_drafters_text_is_greedy_decodings(tmp_path: Path, run: Run) -> None:
    target, drafter = bundled.MODEL, tmp_path / "drafter"
    save_block_drafter(BlockDrafter(config_for(load_stock(target), 1, 4, 1, markov_rank=4)), drafter)
    common = ("generate", "The history of", "--model", target, "--max-new-tokens", 8, "--json")
    status, greedy, err = run(*common, "--system", "greedy")
    assert status == 0, err
    lm = tmp_path / "lm.fst"  # without its calibration, which is the heads'
    shutil.copyfile(bundled.LM, lm)
    for options in ((), ("--no-bigram", "--system", "chain"), ("--lm", lm, "--block-size", 2)):
        status, drafted, err = run(*common, "--drafter-model", drafter, *options)
        assert status == 0, err
        assert json.loads(drafted)["text"] == json.loads(greedy)["text"]
    files = {}
    for name in ("--bigram", "--no-bigram"):
        files[name] = tmp_path / f"lattices{name}.npz"
        status, _, err = run(
            "lattices",
            "--model",
            target,
            "--drafter-model",
            drafter,
            "-o",
            files[name],
            "--limit",
            1,
            "--max-new-tokens",
            6,
            name,
        )
        assert status == 0, err
    assert LatticeSet.load(files["--bigram"]).transitions is not None
    assert LatticeSet.load(files["--no-bigram"]).transitions is None


def test_a_block_drafter_in_every_command_that_decodes(tmp_path: Path, run: Run) -> None:
    """Its lattices are walked and decoded alike, with parts of the drafter and its slots as well."""
    target, drafter, lattices = bundled.MODEL, tmp_path / "drafter", tmp_path / "lattices"
    save_block_drafter(BlockDrafter(config_for(load_stock(target), 1, 4, 1, markov_rank=4)), drafter)
    beside = ("--model", target, "--drafter-model", drafter)
    status, _, err = run("lattices", *beside, "-o", lattices, "--limit", 2, "--max-new-tokens", 12, "-k", 4)
    assert status == 0, err
    status, out, err = run(
        "compare", lattices, *beside, "--lm", bundled.LM, "-s", "chain", "-s", "16-tree", "--decode-texts", 2, "--json"
    )
    assert status == 0, err
    result = json.loads(out)
    for walked, decoded in zip(result["systems"], result["decoded"], strict=True):
        assert decoded["system"] == walked["system"]
        assert decoded["differing_texts"] == 0
        assert abs(decoded["calls"] - walked["steps"]) <= 2, walked["system"]
    status, out, err = run("oracle", lattices, *beside, "-k", "1,4", "--json")
    assert status == 0, err
    assert [each["differing_texts"] for each in json.loads(out)["decoded"]] == [0, 0]
    status, _, err = run("compare", lattices, "--drafter-model", drafter)
    assert status == 2
    assert "expected --model with --rule, --measure, --references and --drafter-model" in " ".join(err.split())

    texts = set()
    for options in (("-s", "greedy"), (), ("--no-bigram", "-s", "4-tree", "--block-size", 2)):
        status, out, err = run("generate", "the city", *beside, "--max-new-tokens", 8, "--json", *options)
        assert status == 0, err
        texts.add(json.loads(out)["text"])
    assert len(texts) == 1


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["river", "city"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
GRAMMAR = 'start: "the " kind "."\nkind: "city" | "river"\n'


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        (("--json-schema", "schema.json"), r'\{"name": "[^"]*", "kind": "(river|city)"\}'),
        (("--json-object", "--max-new-tokens", 64), r"\{.*"),
        (("--regex", "[0-9]{3}-[a-f]"), r"[0-9]{3}-[a-f]"),
        (("--choice", "the old town", "--choice", "the new town"), r"the (old|new) town"),
        (("--grammar", "grammar.lark"), r"the (city|river)\."),
    ],
)
def test_structured_output_is_what_the_option_says(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[object, ...], pattern: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("schema.json").write_text(json.dumps(SCHEMA))
    Path("grammar.lark").write_text(GRAMMAR)
    status, out, err = run("generate", TEXT, "--json", *options)
    record = json.loads(out)
    assert (status, err) == (0, "")
    assert re.fullmatch(pattern, record["text"], re.DOTALL)
    assert record["finish_reason"] == "stop" or "--json-object" in options


def test_a_text_cut_off_by_the_limit_is_reported(run: Run) -> None:
    status, _, err = run("generate", TEXT, "--regex", "[a-z]{40}", "--max-new-tokens", 4)
    assert status == 0
    assert "cut off by --max-new-tokens 4" in err
    assert (
        json.loads(run("generate", TEXT, "--regex", "[a-z]{40}", "--max-new-tokens", 4, "--json")[1])["finish_reason"]
        == "length"
    )


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--json-schema", "missing.json"), "missing.json"),
        (("--json-schema", "not.json"), '"not"'),
        (("--regex", "(a"), "unclosed group"),
        (("--regex", "a", "--json-object"), "--json-object and --regex"),
        (("--grammar", "not.json"), "a Lark grammar"),
        (("--choice", ""), "none of them empty"),
    ],
)
def test_a_constraint_that_cannot_be_made_is_refused_in_one_line(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    options: tuple[object, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("not.json").write_text('{"not": {"type": "string"}}')
    status, out, err = run(command, *([TEXT] if command == "generate" else []), *options)
    assert (status, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
