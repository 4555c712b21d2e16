"""`LatticeProposer` without vLLM: in any batch it drafts what the drafter of the same folder drafts for the text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from latticebpd import BlockwiseLM, State, load
from latticebpd.drafters import bundled
from latticebpd.drafters.chain_drafter import ChainDrafter
from latticebpd.drafters.heads.blockwise import new_heads
from latticebpd.hosts.vllm import LatticeProposer, Savings
from latticebpd.models.load_target import load_stock
from tests.helpers.engine_models import stock
from tests.helpers.tiny_families import VOCABULARY
from tests.helpers.tokenizers import letters
from tests.helpers.vllm_runner import Request, Target, Writer, config, provide_forward_context, step

TINY: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "layers": 2}


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    return provide_forward_context(monkeypatch)


@pytest.fixture(scope="module")
def layered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads that read a token and an inner layer, with transitions and without a calibration."""
    folder = tmp_path_factory.mktemp("layered")
    base = stock()
    model = BlockwiseLM(base, new_heads(base, "conditioned", num_heads=4, intermediate_size=16))
    model.add_layers([1])
    model.heads.add_transitions(6)
    for parameter in model.heads.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    letters().save_pretrained(folder)
    return folder


def target_of(folder: Path) -> Target:
    base: Any = load_stock(folder)
    return Target(base.get_output_embeddings().weight.detach().float(), base.config.num_hidden_layers)


def sizes_of(target: Target) -> dict[str, int]:
    rows, width = target.lm_head.weight.shape
    return {"vocab_size": rows, "hidden_size": width, "layers": len(target.model.layers)}


def proposer_for(folder: Path, target: Target, additional: Any, **changes: Any) -> LatticeProposer:
    proposer = LatticeProposer(config(folder, additional, **sizes_of(target), **changes))
    proposer.load_model(target)
    return proposer


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["calibrated", "layered"])
def test_drafts_are_those_of_the_text_alone_in_any_batch(
    kind: str, seed: int, layered: Path, context: SimpleNamespace
) -> None:
    """Whatever rows requests are in, however their prompts are read, drafts cut, requests preempted and resumed: the
    oracle is a new drafter of `load`, which reads nothing but the text and the states after all but its last token."""
    folder = layered if kind == "layered" else bundled.MODEL
    target, draws = target_of(folder), random.Random(seed)
    loaded = load(layered if kind == "layered" else "bundled")
    needed = getattr(loaded.source, "needs_layers", ())
    writer = Writer(**sizes_of(target))
    proposer = proposer_for(folder, target, {"latticebpd": {"token_cost": 0}}, max_model_len=40)
    drafted = accepted = 0

    def alone(text: Sequence[int]) -> list[int]:
        final, inner = writer.states(text[:-1])
        layers = inner[list(needed)].reshape(1, -1)
        state = State(0, list(text), 1, final, min(6, 40 - len(text) - 1), layers=layers)
        drafter = ChainDrafter(loaded.drafter(loaded.default_system(num_nodes=64)))
        return drafter.propose([state])[0].tokens.tolist() if state.max_depth > 0 else []

    propose = proposer.propose

    def checked(sampled: list[list[int]], counts: np.ndarray, ids: np.ndarray, **others: Any) -> list[list[int]]:
        nonlocal drafted, accepted
        drafts = propose(sampled, counts, ids, **others)
        for row, (written, draft) in enumerate(zip(sampled, drafts, strict=True)):
            assert draft == (alone(ids[row, : counts[row]].tolist()) if written else [])
            assert all(type(token) is int for token in draft)
            drafted, accepted = drafted + len(draft), accepted + max(0, len(written) - 1)
        return drafts

    proposer.propose = checked  # type: ignore[method-assign]
    prompts = [[draws.randrange(VOCABULARY) for _ in range(draws.randint(1, 12))] for _ in range(6)]
    prompts[1] = prompts[0]  # two requests of one text
    waiting = [Request(prompt) for prompt in map(list, prompts)]
    batch: list[Request] = []
    for _ in range(20):
        if waiting and draws.random() < 0.6:
            batch.insert(draws.randint(0, len(batch)), waiting.pop())
        if batch and draws.random() < 0.2:  # preempted
            request = batch.pop(draws.randrange(len(batch)))
            request.computed, request.draft = 0, []
            waiting.append(request)
        draws.shuffle(batch)
        for request in batch:
            request.draft = request.draft[: draws.randint(0, 9)]
            if not request.computed and draws.random() < 0.3:  # its beginning is in the cache
                request.computed = draws.randrange(len(request.tokens))
        batch = [request for request in batch if len(request.tokens) < 38]
        if batch:
            step(target, proposer, context, writer, batch, [draws.randint(1, 8) for _ in batch])
    assert drafted > 20
    assert accepted


def test_a_model_without_heads_is_drafted_for_from_its_text(tmp_path: Path, context: SimpleNamespace) -> None:
    target = Target(torch.randn(VOCABULARY, 32), 2)
    proposer = proposer_for(tmp_path / "at-hub", target, {}, full_graphs=True, enforce_eager=False)
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    ids = np.array([text, [0] * len(text)], np.int32)
    assert proposer.propose([[3], []], np.array([len(text), 5]), ids)[0][:2] == [4, 5]
    assert proposer.propose([[], []], np.array([len(text), 5]), ids) == [[], []]


def test_an_ngram_model_drafts_without_heads(context: SimpleNamespace) -> None:
    loaded = load()
    target = Target(torch.zeros(8192, 4), 1)
    text = loaded.encode("The history of the city of")
    ids, counts = np.array([text], np.int32), np.array([len(text)])
    (without,) = proposer_for(Path("at-hub"), target, {}).propose([[1]], counts, ids)
    (drafted,) = proposer_for(bundled.MODEL, target, {"latticebpd": str(bundled.LM)}).propose([[1]], counts, ids)
    assert len(drafted) > len(without)


def test_drafts_end_where_a_token_no_longer_pays(context: SimpleNamespace) -> None:
    target = Target(torch.zeros(VOCABULARY, 4), 1)
    text = [*range(1, 15), *range(1, 9)]
    lengths = []
    for cost in (0, 0.05, 0.2, 1):
        proposer = proposer_for(Path("at-hub"), target, {"latticebpd": {"token_cost": cost}})
        (draft,) = proposer.propose([[8]], np.array([len(text)]), np.array([text], np.int32))
        assert draft == list(range(9, 9 + len(draft)))
        lengths.append(len(draft))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 6
    assert lengths[-1] == 0


def test_nothing_is_drafted_beyond_the_longest_text(context: SimpleNamespace) -> None:
    target = Target(torch.zeros(VOCABULARY, 4), 1)
    proposer = proposer_for(Path("at-hub"), target, {"latticebpd": {"token_cost": 0}}, max_model_len=14)
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6]
    for length in (11, 12, 13, 14):
        (draft,) = proposer.propose([[1]], np.array([length]), np.array([text], np.int32))
        assert length + len(draft) < 14 or not draft
        assert bool(draft) == (length < 13)


@pytest.mark.parametrize(
    ("additional", "message"),
    [
        ({"latticebpd": 3}, "expected latticebpd: a path, or an object of path, system, token_cost, got 3"),
        ({"latticebpd": {"folder": "x"}}, "expected latticebpd: a path, or an object of path, system, token_cost"),
        ({"latticebpd": {"token_cost": -1}}, "expected latticebpd: a token_cost from 0 to 1, got -1"),
        ({"latticebpd": {"system": "best"}}, "expected .* got 'best'"),
        ({"latticebpd": "no-such-folder/at/all"}, "no-such-folder/at/all"),
    ],
)
def test_settings_that_are_none_are_refused(additional: Any, message: str, context: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match=message):
        proposer_for(Path("at-hub"), Target(torch.zeros(VOCABULARY, 4), 1), additional)


def test_heads_are_refused_where_no_state_could_be_read(layered: Path, context: SimpleNamespace) -> None:
    target = target_of(layered)
    with pytest.raises(ValueError, match="expected enforce_eager for heads that read states of inner layers"):
        proposer_for(layered, target, {}, enforce_eager=False)
    with pytest.raises(
        ValueError, match=r"got full CUDA graphs; pass --enforce-eager or -cc\.cudagraph_mode=PIECEWISE"
    ):
        proposer_for(bundled.MODEL, target_of(bundled.MODEL), {}, enforce_eager=False, full_graphs=True)


def test_heads_are_refused_with_divided_or_foreign_weights(layered: Path, context: SimpleNamespace) -> None:
    half = Target(torch.zeros(VOCABULARY // 2, 32), 2)
    with pytest.raises(ValueError, match="expected a model with one plain output embedding for heads, got"):
        LatticeProposer(config(layered, {}, **TINY)).load_model(half)
    with pytest.raises(ValueError, match="base model of type llama"):
        LatticeProposer(config(layered, {}, **TINY, model_type="qwen2")).load_model(target_of(layered))


def test_heads_of_other_kinds_are_refused(tmp_path: Path, context: SimpleNamespace) -> None:
    BlockwiseLM(stock(), new_heads(stock(), "stern", num_heads=3, intermediate_size=8)).save_pretrained(tmp_path)
    letters().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="expected feed-forward or conditioned heads for vLLM, got others"):
        proposer_for(tmp_path, target_of(tmp_path), {})


def test_drafting_pauses_where_it_saves_less_than_it_takes() -> None:
    """A draft of two rows takes a tenth of a pass; accepted tokens save half a pass each."""

    def drafts(accepted: int, passes: int = 200) -> int:
        savings, now, drafted = Savings(token_cost=0.03), 0.0, 0
        for _ in range(passes):
            if savings.allow([[1] * (1 + accepted), [1]], now):
                savings.spend(2, 4, now, now + 0.1)
                drafted, now = drafted + 1, now + 0.1
            now += 1.0
        return drafted

    assert drafts(accepted=1) == 200
    assert 2 / 0.16 <= drafts(accepted=0) < 40


def test_rows_that_write_nothing_save_nothing() -> None:
    savings = Savings(token_cost=1e-9)
    for _ in range(3):
        assert savings.allow([[], [5]], 1.0)
        savings.spend(2, 2, 0.5, 0.5)
    assert savings.budget.left == pytest.approx(Savings.CALLS)
