"""A drafter for vLLM, which takes the class by its name (``method: custom_class``, vLLM 0.32 and 0.33).

    vllm serve MODEL --speculative-config \\
        '{"method": "custom_class", "model": "latticebpd.hosts.vllm.LatticeProposer", "num_speculative_tokens": 8}'

vLLM verifies one draft a request, so it gets the best path of a tree: of heads, n-gram model and copies of the text
where a model has heads, of the latter two where it has none. The path ends where one more token no longer pays off.

Nothing is kept of a request but indexes of texts, which are found by the texts themselves: vLLM moves requests between
the rows of its batch, preempts and resumes them without a word. Of the batch it is known what drafting has saved: where
that is less than it takes, drafting pauses.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from latticebpd.checks import expect
from latticebpd.drafters import bundled
from latticebpd.drafters.chain_drafter import ChainDrafter
from latticebpd.drafters.cost_aware import CostAwareDrafter, DraftingBudget
from latticebpd.drafters.cost_curve import CostCurve
from latticebpd.drafters.drafter import Drafter, State
from latticebpd.drafters.family import LoadOptions
from latticebpd.drafters.registry import family_beside, load_source
from latticebpd.drafters.system_names import tells_probabilities
from latticebpd.loading import Loaded
from latticebpd.models.catalogue import resolved
from latticebpd.models.engine.engine_model import EngineModel
from latticebpd.models.weight_kinds import TORCH

KEY = "latticebpd"
"""Of vLLM's ``additional_config``."""
NODES = 64
"""Of the trees whose best paths are drafted."""
MOST_COLUMNS = 1 << 14


@dataclass(frozen=True)
class Settings:
    """What ``additional_config`` may say, by default nothing: ``{"latticebpd": PATH}`` or an object with these fields.

    path: a folder with heads or an n-gram model, or an n-gram model's file; by default the model's own folder.
    system: what drafts, by a name as ``latticebpd generate --system`` takes it; by default a calibrated tree.
    token_cost: cost of verifying one more token, in passes that verify none; drafts end where they no longer pay off,
        and pause while those before have not; 0 drafts always, as much as may be.
    """

    path: str | None = None
    system: str | None = None
    token_cost: float = 0.03

    def __post_init__(self) -> None:
        fits = isinstance(self.token_cost, int | float) and 0 <= self.token_cost <= 1
        expect(fits, f"{KEY}: a token_cost from 0 to 1", repr(self.token_cost))

    @classmethod
    def of(cls, given: Any) -> Settings:
        """ValueError for what is neither a path nor an object of these fields."""
        fields = {"path": given} if isinstance(given, str) else given if isinstance(given, dict) else {}
        known = cls.__dataclass_fields__.keys()
        fits = isinstance(given, str | dict | None) and fields.keys() <= known
        expect(fits, f"{KEY}: a path, or an object of {', '.join(known)}", repr(given), "see docs/vllm.md")
        return cls(**fields)


class LatticeProposer:
    """Drafts for every request of a batch; vLLM makes one and calls these methods."""

    def __init__(self, vllm_config: Any) -> None:
        extra = vllm_config.additional_config
        self.settings = Settings.of(extra.get(KEY) if isinstance(extra, dict) else None)
        self.config = vllm_config
        self.length = int(vllm_config.speculative_config.num_speculative_tokens)
        self.max_model_len = int(vllm_config.model_config.max_model_len)
        self.drafter: Drafter | None = None
        self.states: LastPass | None = None
        self.savings = Savings(self.settings.token_cost)

    def load_model(self, target: Any) -> None:
        """Load what drafts for vLLM's model, which shares its output embeddings; ValueError where it does not fit."""
        loaded = loaded_for(target, self.config, self.settings)
        self.drafter, needed = drafter_for(loaded, self.settings), loaded.source is not None
        if needed:
            check_hooks(self.config, self.drafter)
            self.states = LastPass(target, getattr(self.drafter, "needs_layers", ()))

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """A draft for each request, at most ``num_speculative_tokens`` tokens, perhaps none.

        sampled_token_ids: what each request has written at this step; nothing while its prompt is read in parts.
        num_tokens_no_spec, token_ids_cpu: ``[rows]`` and ``[rows, tokens]``, the texts so far, these tokens included.
        """
        assert self.drafter is not None, "load_model comes first"
        begun = time.perf_counter()
        if not self.savings.allow(sampled_token_ids, begun):
            return [[] for _ in sampled_token_ids]
        hidden = layers = None
        if self.states is not None:
            hidden, layers = self.states.take(num_tokens_no_spec, sampled_token_ids)
        states: list[State] = []
        for row, written in enumerate(sampled_token_ids):
            text = cast("Sequence[int]", token_ids_cpu[row, : int(num_tokens_no_spec[row])])  # not copied
            room = min(self.length, self.max_model_len - len(text) - 1)
            if written and room >= 1:
                own = None if hidden is None else hidden[row]
                others = None if layers is None else layers[row : row + 1]
                # Of a text whose row may be another one's by now, every draft is the first.
                states.append(State(row, text, len(text) - 1, own, room, layers=others))
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        if states:
            for state, tree in zip(states, self.drafter.propose(states), strict=True):
                drafts[state.row] = tree.tokens.tolist()
            self.savings.spend(len(states), sum(map(len, drafts)), begun, time.perf_counter())
        return drafts


class Savings:
    """What drafts have saved, in passes: one for each accepted token of a row; less what they took, by the clock and in
    the passes that verified them. Where a token costs nothing, drafting never pauses."""

    CALLS = 2.0

    def __init__(self, token_cost: float) -> None:
        self.budget, self.token_cost = DraftingBudget(self.CALLS if token_cost else math.inf), token_cost
        self._rows = self._drafted = 0
        self._took = self._ended = 0.0

    def allow(self, written: Sequence[Sequence[int]], now: float) -> bool:
        """Whether to draft, after a pass that wrote these tokens of every row and ended at ``now``, in seconds."""
        if self._rows:
            accepted = sum(max(len(each) - 1, 0) for each in written)
            passed = max(now - self._ended, 1e-9)
            verified = self.token_cost * self._drafted
            took = min(self._took / passed, 1.0)  # more is the machine's other work
            self.budget.left += (accepted - verified) / self._rows - took
            self._rows = 0
        return self.budget.allows()

    def spend(self, rows: int, drafted: int, begun: float, ended: float) -> None:
        """So many tokens were drafted for so many rows, in this time in seconds."""
        self._rows, self._drafted, self._took, self._ended = rows, drafted, ended - begun, ended


def drafter_for(loaded: Loaded, settings: Settings) -> Drafter:
    """The best path of the system's trees, cut to what pays off where they tell probabilities."""
    system = settings.system or loaded.default_system(num_nodes=NODES)
    chains = ChainDrafter(loaded.drafter(system))
    if not tells_probabilities(system):
        return chains
    # vLLM packs the tokens of a batch; a pass is taken to cost as much as its tokens cost beyond the first.
    seconds = (1.0, 1.0 + settings.token_cost * (MOST_COLUMNS - 1))
    return CostAwareDrafter(chains, CostCurve((1,), (1, MOST_COLUMNS), (seconds,), packed=True))


def loaded_for(target: Any, config: Any, settings: Settings) -> Loaded:
    """What is drafted with, for a model that vLLM computes."""
    model = Path(str(config.model_config.model))
    path = model if settings.path is None else Path(resolved(settings.path))
    expect(settings.path is None or path.exists(), f"{KEY}: a folder or file", settings.path)
    folder = path.parent if path.is_file() else path
    lm = path if path.is_file() else bundled.LM if folder.resolve() == bundled.MODEL else folder / "lm.fst"
    loaded = Loaded(folder.name, model, folder, engine_view(target, config), lm=lm if lm.is_file() else None)
    family = None if path.is_file() else family_beside(folder)
    if family is None:
        return loaded
    kinds, remedy = "feed-forward or conditioned heads for vLLM", "train others, or name another path"
    expect(family.runs_beside_engine(folder), kinds, "others", remedy, of=folder)
    return replace(loaded, source=load_source(folder, loaded, LoadOptions()))


def engine_view(target: Any, config: Any) -> EngineModel:
    """What drafters ask of a model's copy on the engine: its sizes and embeddings; it computes nothing."""

    def refuse() -> Any:
        raise ValueError("expected drafts only: vLLM computes the model")

    about = config.model_config
    vocab_size, layers = about.get_vocab_size(), about.hf_text_config.num_hidden_layers
    sizes = (vocab_size, about.get_hidden_size(), layers, 0, about.max_model_len)
    shared = OutputEmbeddings(target, vocab_size)
    return EngineModel(TORCH, about.hf_config.model_type, *sizes, {}, shared, refuse, lambda: str(about.model))


@dataclass(frozen=True)
class OutputEmbeddings:
    """Rows of the output embeddings of vLLM's model, ``[n]`` token ids -> ``[n, hidden]`` float32."""

    target: Any
    vocab_size: int

    def output_embeddings(self, tokens: np.ndarray) -> np.ndarray:
        weight = getattr(getattr(self.target, "lm_head", None), "weight", None)
        plain = weight is not None and weight.is_floating_point() and len(weight) >= self.vocab_size
        wanted, got = "a model with one plain output embedding for heads", "a quantized or divided one"
        expect(plain, wanted, got, "take --tensor-parallel-size 1, or name a path without heads")
        assert weight is not None
        import torch

        rows: np.ndarray = weight.detach()[torch.from_numpy(tokens).to(weight.device)].float().cpu().numpy()
        return rows

    input_embeddings = output_embeddings


def check_hooks(config: Any, drafter: Drafter) -> None:
    """ValueError where hooks on vLLM's model are not called, so that heads had no states to read."""
    eager, layers = config.model_config.enforce_eager, getattr(drafter, "needs_layers", ())
    expect(eager or not layers, "enforce_eager for heads that read states of inner layers", "compiled layers")
    full = not eager and config.compilation_config.cudagraph_mode.has_full_cudagraphs()
    remedy = "pass --enforce-eager or -cc.cudagraph_mode=PIECEWISE"
    expect(not full, "passes in Python for heads, which read their hidden states", "full CUDA graphs", remedy)


class LastPass:
    """Hidden states of vLLM's last pass: the final ones, and those after some inner layers, counted from 0."""

    def __init__(self, target: Any, layers: Sequence[int]) -> None:
        self._final: Any = None
        self._inner: dict[int, Any] = {}
        self._starts = self._ends = np.empty(0, np.int64)
        target.register_forward_hook(self._keep)
        for layer in layers:
            target.model.layers[layer].register_forward_hook(self._keeping(layer))

    def _keep(self, module: Any, arguments: Any, output: Any) -> None:
        from vllm.forward_context import get_forward_context

        metadata = get_forward_context().attn_metadata
        if metadata:  # none in passes that only measure memory
            about = next(iter(metadata.values()))
            bounds, lengths = (each.cpu().numpy().astype(np.int64) for each in (about.query_start_loc, about.seq_lens))
            self._final, rows = output, len(bounds) - 1
            # Token t of row r's text is in the pass's column ends[r] - (lengths[r] - t).
            self._ends = bounds[1:] - lengths[:rows]
            self._starts = bounds[:-1]

    def _keeping(self, layer: int) -> Any:
        def keep(module: Any, arguments: Any, output: Any) -> None:
            # vLLM's layers return what they add and what they add it to.
            self._inner[layer] = sum(output) if isinstance(output, tuple) else output

        return keep

    def take(self, num_tokens: np.ndarray, written: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray | None]:
        """``[rows, hidden]`` the final states that predicted each text's last token, and ``[rows, layers * hidden]``
        those of inner layers; of rows that have written nothing any."""
        rows = len(written)
        assert self._final is not None, "a pass comes before its drafts"
        # The state of token t predicts token t + 1; a row that has written nothing takes its first column.
        last, wrote = self._ends[:rows] + num_tokens[:rows] - 2, [len(each) > 0 for each in written]
        columns = np.where(wrote, last, self._starts[:rows])
        final, *inner = (each[columns].float().cpu().numpy() for each in (self._final, *self._inner.values()))
        self._final = None
        return final, np.concatenate(inner, axis=1) if inner else None
