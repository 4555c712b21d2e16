"""MTP layers draft what ``generate(use_mtp=True)`` drafts, as trees too; texts stay the model's own."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from latticebpd import load
from latticebpd.drafters import State, drafter_named, prefix_lattices
from latticebpd.drafters.assistant.assistant_family import AssistantLattices
from latticebpd.drafters.drafter_files import DrafterFiles
from latticebpd.drafters.mtp import mtp_family, mtp_reader
from latticebpd.drafters.registry import family_beside
from latticebpd.lattices.drafts import ROOT
from latticebpd.models.load_target import load_stock
from tests.helpers.commands import Run
from tests.helpers.model_families import tiny_of
from tests.helpers.mtp_models import BUILDS_LAYERS, FAMILIES, NO_LAYERS, RECURRENT, describe, save_with_mtp
from tests.helpers.tokenizers import saved_with_letters
from tests.helpers.trigrams import trigram

pytestmark = pytest.mark.skipif(not BUILDS_LAYERS, reason=NO_LAYERS)
TEXT, TOKENS = "abcabcab", 24
ATTENTION = [kind for kind in FAMILIES if kind not in RECURRENT]
SYSTEMS = ("12-tree", "copies+12-tree", "chain", "4-best:0-gram", "12-tree:0-gram", "3-beam", "greedy")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: save_with_mtp(kind, tmp_path_factory.mktemp(kind)) for kind in FAMILIES}


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]


def text_of(folder: Path, ids: list[int], tokens: int = TOKENS, **options: Any) -> list[int]:
    """What ``generate()`` of the stock model writes after a text, the text included."""
    model: Any = load_stock(folder)
    if "use_mtp" in options:
        describe(model.config)
        numbers = range(model.config.num_hidden_layers, 9)  # transformers knows those of released checkpoints
        named = [rf"model\.layers\.{number}\." for number in numbers]
        model._keys_to_ignore_on_load_unexpected = [*model._keys_to_ignore_on_load_unexpected, *named]
    rows = torch.tensor([ids])
    return model.generate(
        rows, attention_mask=torch.ones_like(rows), do_sample=False, max_new_tokens=tokens, **options
    )[0].tolist()


def moments(source: Any, texts: Sequence[list[int]], max_depth: int = 9) -> list[State]:
    """The moments before drafts after these texts, with the target's states of all tokens but the last."""
    model = source.target.model
    with torch.no_grad():
        hidden = [model(torch.tensor([text]), output_hidden_states=True).hidden_states[-1][0] for text in texts]
    layers = [each[:-1] for each in hidden]
    return [State(row, text, 1, None, max_depth, (), layers[row]) for row, text in enumerate(texts)]


@pytest.mark.parametrize("kind", ATTENTION)
def test_chain_of_one_arc_drafts_and_accepts_what_transformers_does(
    folders: dict[str, Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.generation.candidate_generator import MTPCandidateGenerator

    drafts: dict[int, list[int]] = {}  # by the length of the text
    stock = MTPCandidateGenerator.get_candidates

    def spied(self: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        candidates = stock(self, input_ids, *args, **kwargs)
        drafts[input_ids.shape[1]] = candidates[0][0, input_ids.shape[1] :].tolist()
        return candidates

    monkeypatch.setattr(MTPCandidateGenerator, "get_candidates", spied)
    loaded = load(folders[kind])
    source: Any = loaded.source
    ids = loaded.encode(TEXT)
    expected = text_of(folders[kind], ids, use_mtp=True)
    chain = drafter_named("chain", source.with_shape(1, len(source.mtp.layers)))
    out = loaded.generate(ids, chain, max_new_tokens=TOKENS, trace=True)
    assert out.sequences[0].tolist() == expected == text_of(folders[kind], ids)
    length, ours = len(ids) + 1, {}  # the first token is that of the prompt's pass
    for call in (step for step in out.trace if not step.prefill):
        ours[length] = call.tree.tokens.tolist()
        length += len(call.committed)
    del drafts[len(ids)]  # where transformers drafts nothing yet
    assert any(len(each) > 1 for each in ours.values()) or len(source.mtp.layers) == 1
    assert out.num_calls < TOKENS - 1
    # Where drafts begin shows how many tokens of the last one were accepted; the last are cut to the text's length.
    assert list(ours)[: len(drafts)] == list(drafts)
    for begin, tokens in drafts.items():
        assert ours[begin] == tokens[: len(expected) - 1 - begin]


@pytest.mark.parametrize(
    ("kind", "system"),
    [
        *itertools.product(ATTENTION, SYSTEMS[:2]),
        *(pytest.param(*pair, marks=pytest.mark.long) for pair in itertools.product(ATTENTION, SYSTEMS[2:])),
        *(pytest.param(*pair, marks=pytest.mark.long) for pair in itertools.product(sorted(RECURRENT), SYSTEMS)),
    ],
)
def test_text_is_the_models_own(folders: dict[str, Path], kind: str, system: str) -> None:
    """Trees for models with recurrent layers too, which read the text again for each leaf."""
    loaded = load(folders[kind])
    ids = loaded.encode(TEXT)
    drafter = drafter_named(system, loaded.lattice_source(k=5), trigram())
    out = loaded.generate(ids, drafter, max_new_tokens=TOKENS)
    assert out.sequences[0].tolist() == text_of(folders[kind], ids)
    assert system == "greedy" or out.num_calls < out.num_tokens


def test_by_default_a_model_drafts_with_its_own_layers(folder: Path) -> None:
    """Trees and copies; a chain where the model has recurrent layers and each leaf would read the text again."""
    loaded = load(folder)
    assert loaded.default_system() == ("chain" if type_of(folder) in RECURRENT else "copies+16-tree")
    batch = loaded.generate([TEXT, "fedcbafe"], max_new_tokens=10)
    for text, row in zip((TEXT, "fedcbafe"), batch.sequences.tolist(), strict=True):
        assert row == text_of(folder, loaded.encode(text), 10)
    assert batch.num_calls < batch.num_tokens


def type_of(folder: Path) -> str:
    return str(json.loads((folder / "config.json").read_text())["model_type"])


def distributions(mtp: Any, hidden: torch.Tensor, text: list[int], drafted: list[int], number: int) -> np.ndarray:
    """ln p of the token after a text and ``drafted`` ones, by plain causal passes of the ``MtpModel``'s layers without
    a cache: one layer after the other, then the last one again."""
    from transformers.cache_utils import MtpCache

    tokens, inputs, layers = [*text, *drafted], hidden, len(mtp.layers)
    for step in range(number + 1):
        layer = min(step, layers - 1)
        positions = torch.arange(layer + 1, layer + 1 + len(inputs))
        read = torch.tensor([[tokens[position] for position in positions]])
        cache = MtpCache(config=mtp.config)
        (outputs,) = mtp.forward_layer(layer, inputs[None], positions[None], cache, input_ids=read)
        previous, inputs = inputs, outputs
        if step >= layers - 1:
            inputs = torch.cat([previous, outputs[-1:]])
    return mtp._project_to_logits(outputs[-1]).log_softmax(-1).numpy()


@pytest.mark.parametrize(
    ("kind", "k", "chunk"),
    [
        ("glm4_moe", 5, 3),
        ("mellum", 2, 1024),
        *(pytest.param(kind, 4, chunk, marks=pytest.mark.long) for kind in FAMILIES for chunk in (3, 1024)),
    ],
)
@torch.no_grad()
def test_lattices_are_those_of_plain_passes_over_every_prefix(
    folders: dict[str, Path], kind: str, k: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of different lengths, longer than the sliding window, that grow by one and several tokens."""
    monkeypatch.setattr(mtp_reader, "CHUNK", chunk)
    source: Any = load(folders[kind]).lattice_source(k=k, slots=5)
    texts = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7], [8, 2, 8]]
    for _ in range(3):
        states = moments(source, texts)
        prefixes: list[list[int]] = []

        def score(row: int, prefix: list[int], states: list[State] = states) -> np.ndarray:
            return distributions(source.mtp, states[row].layers, list(states[row].tokens), prefix, len(prefix))

        def grow(
            rows: np.ndarray, parents: np.ndarray, tokens: np.ndarray, prefixes: list[list[int]] = prefixes
        ) -> np.ndarray:
            above = [[] if parent == ROOT else prefixes[parent] for parent in parents]
            new = [[*prefix, int(token)] for prefix, token in zip(above, tokens, strict=True)]
            prefixes += new
            return np.stack([score(row, prefix) for row, prefix in zip(rows, new, strict=True)])

        first = np.stack([score(row, []) for row in range(len(texts))])
        expected = prefix_lattices.prefix_lattices(first, grow, 5, k)
        for ours, theirs in zip(source.lattices(states), expected, strict=True):
            np.testing.assert_array_equal(ours.tokens, theirs.tokens)
            np.testing.assert_allclose(ours.log_probs, theirs.log_probs, atol=1e-4)
            np.testing.assert_allclose(ours.transitions, theirs.transitions, atol=1e-4)
        texts = [[*text, *text[: 1 + row]] for row, text in enumerate(texts)]


def test_lattices_of_a_text_are_those_of_its_decode(folder: Path) -> None:
    text, source = [3, 1, 4, 1, 5, 9, 2, 6], load(folder).lattice_source(k=4, slots=3)
    lattices = [lattice for part, _ in source.lattices_of_text(text, range(2, 6)) for lattice in part]
    states = [moments(source, [text[: position + 2]], 3)[0] for position in range(2, 6)]
    for state, lattice in zip(states, lattices, strict=True):
        (expected,) = source.lattices([state])
        assert expected is not None
        np.testing.assert_array_equal(lattice.tokens, expected.tokens)
        np.testing.assert_allclose(lattice.log_probs, expected.log_probs, atol=1e-4)


def test_rows_that_end_or_pause_leave_the_others_lattices(folders: dict[str, Path]) -> None:
    source: Any = load(folders["glm4_moe"]).lattice_source(k=4, slots=4)
    texts = [[3, 1, 4, 1], [2, 7, 1, 8, 2, 8], [5, 9, 2]]
    source.lattices(moments(source, texts))
    longer = [[*text, 6, 5] for text in texts]
    kept = moments(source, longer)[1:]  # the first row has ended
    for state, lattice in zip(kept, source.lattices(kept), strict=True):
        (single,) = load(folders["glm4_moe"]).lattice_source(k=4, slots=4).lattices([state])
        np.testing.assert_array_equal(lattice.tokens, single.tokens)
        np.testing.assert_allclose(lattice.log_probs, single.log_probs, atol=1e-4)


def test_the_layers_are_found_by_their_tensors(folders: dict[str, Path], tmp_path: Path) -> None:
    for kind, folder in folders.items():
        assert family_beside(folder) is mtp_family, kind
        assert "num_mtp_layers" not in vars(load(folder).target.config) or kind not in RECURRENT  # the target's own
    without = tmp_path / "without"  # its configuration says one layer, which the checkpoint does not have
    tiny_of("glm4_moe").save_pretrained(without)
    assert family_beside(without) is None
    other = tmp_path / "other"  # layers that transformers cannot build
    shutil.copytree(folders["qwen3_next"], other)
    rewrite(other / "config.json", mtp_layer_types=["linear_attention"], num_mtp_layers=1)
    assert family_beside(other) is None
    assert load(other).source is None
    (other / "model.safetensors").write_bytes(b"damaged")
    assert family_beside(other) is None
    assert DrafterFiles.of("mtp", folders["mellum"], beside_target=True).files[0].path.name == "model.safetensors"


def rewrite(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def test_incomplete_layers_are_refused_in_one_line(folders: dict[str, Path], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folders["glm4_moe"], tmp_path / "copy"))
    tensors = load_file(copy / "model.safetensors")
    del tensors["model.layers.3.eh_proj.weight"]
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"copy: its MTP layers cannot be read: .*1\.eh_proj\.weight") as refused:
        load(copy)
    assert "\n" not in str(refused.value)


def test_a_model_with_layers_still_drafts_for_another_as_its_assistant(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    target = tmp_path / "target"
    saved_with_letters(target)
    assert isinstance(load(target, drafter=folders["mellum"]).source, AssistantLattices)


def as_speculators(folder: Path, target: Path) -> Path:
    """The layer of a model in Qwen's layout as ``speculators`` stores it."""
    config, tensors = json.loads((target / "config.json").read_text()), load_file(target / "model.safetensors")
    names = {
        "mtp.fc.": "input_proj.", "mtp.pre_fc_norm_embedding.": "token_layernorm.", "mtp.norm.": "final_layernorm.",
        "mtp.pre_fc_norm_hidden.": "hidden_layernorm.", "mtp.layers.0.": "",
    }  # fmt: skip
    stored = {
        f"mtp_layers.0.{new}{name.removeprefix(old)}": tensor
        for name, tensor in tensors.items()
        for old, new in names.items()
        if name.startswith(old)
    }
    folder.mkdir()
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    record = {"speculators_model_type": "mtp", "num_nextn_predict_layers": 1, "transformer_layer_config": config}
    (folder / "config.json").write_text(json.dumps(record))
    return folder


@pytest.mark.parametrize(
    ("kind", "other", "system"), [("qwen3_5_text", "mellum", "chain"), ("mellum", "glm4_moe", "16-tree")]
)
def test_a_drafter_of_speculators_drafts_as_the_same_layer_in_its_target(
    folders: dict[str, Path], tmp_path: Path, kind: str, other: str, system: str
) -> None:
    target = folders[kind]
    drafter = as_speculators(tmp_path / "drafter", target)
    own, theirs = (load(target, drafter=each).lattice_source(k=4) for each in (None, drafter))
    states = moments(own, [[3, 1, 4, 1], [2, 7]])
    assert own.lattices(states) == theirs.lattices(states)
    assert load(target, drafter=drafter).default_system() == system
    with pytest.raises(
        ValueError, match=rf"drafter: expected a drafter for {other} models of 32 .*, got one for {kind} "
    ):
        load(folders[other], drafter=drafter)
    with pytest.raises(ValueError, match="expected an autoregressive model as verifier, found an MTP drafter"):
        load(drafter)
    rewrite(drafter / "config.json", transformer_layer_config={})
    with pytest.raises(ValueError, match="got one for None models"):
        load(target, drafter=drafter)


@pytest.mark.long
def test_every_command_takes_it(folders: dict[str, Path], tmp_path: Path, run: Run) -> None:
    """From lattices to a calibrated tree: lattices, oracle, compare, calibrate and generate."""
    folder = folders["glm4_moe"]
    texts = ["abcab", "fedcba", "aabbcc", "badcfe", "gfedab", "cabbac"]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    status, _, err = run(
        "lattices", "--model", folder, "--prompts", tmp_path / "texts.jsonl", "-o", tmp_path / "lattices", "--k", 4,
        "--context", 40, "--max-new-tokens", 20,
    )  # fmt: skip
    assert status == 0, err
    lm = tmp_path / "lm.fst"
    trigram().save(lm)
    for command in ("oracle", "compare"):
        status, out, err = run(command, tmp_path / "lattices", "--model", folder, "--json")
        assert status == 0, err
        assert json.loads(out)
    status, out, err = run("calibrate", tmp_path / "lattices", "--lm", lm, "--examples", 6, "--write", "--json")
    assert status == 0, err
    assert json.loads(out)["drafter"].startswith("mtp sha256:")
    status, out, err = run("generate", TEXT, "--model", folder, "--lm", lm, "--max-new-tokens", TOKENS, "--json")
    assert status == 0, err
    record = json.loads(out)
    loaded = load(folder, lm)
    expected = text_of(folder, loaded.encode(TEXT))
    assert record["text"] == loaded.decode(expected[len(loaded.encode(TEXT)) :])
    assert record["calls"] < record["tokens"]
    assert loaded.default_system() == "16-calibrated"
