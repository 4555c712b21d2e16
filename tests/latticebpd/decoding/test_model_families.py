"""Every family of models writes what its own ``generate()`` writes, or is refused in one line.

The oracle is ``generate()`` on each row alone: a batch with padding is not every family's strength.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from latticebpd import DraftTree, State, check_lossless, generate
from latticebpd.drafters import NoDrafter, ReferenceDrafter
from latticebpd.jacobi import jacobi
from tests.helpers.model_families import POSITIONS, VOCABULARY, tiny_of

QUICK = (
    "llama", "roberta", "gemma3n_text", "llama4_text", "cohere", "gpt_neo", "bloom", "mamba", "led", "nllb-moe",
    "fsmt", "xlnet",
    "prophetnet",
)  # fmt: skip
LONG = (
    "afmoe", "apertus", "arcee", "bart", "bert", "bert-generation", "big_bird", "bigbird_pegasus", "biogpt", "bitnet",
    "blenderbot",
    "codegen", "cohere2", "cpmant", "ctrl", "diffllama", "electra", "ernie", "exaone4", "falcon", "falcon_mamba",
    "gemma", "gemma2",
    "gemma3_text", "glm", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "gptj", "granite", "granitemoe", "helium",
    "lfm2", "longt5",
    "m2m_100", "marian", "mbart", "megatron-bert", "minimax", "mistral", "mixtral", "modernbert-decoder", "mpt", "mt5",
    "mvp", "nemotron",
    "olmo", "olmo2", "openai-gpt", "opt", "pegasus", "pegasus_x", "persimmon", "phi", "phi3", "phimoe", "plbart",
    "qwen2", "qwen2_moe",
    "qwen3", "qwen3_moe", "rembert", "roberta-prelayernorm", "roformer", "rwkv", "smollm3", "stablelm", "starcoder2",
    "switch_transformers",
    "t5", "trocr", "umt5", "vaultgemma", "xglm", "xlm", "xlm-roberta", "xlm-roberta-xl",
)  # fmt: skip
NOT_IN_ALL_VERSIONS = (
    "aria_text", "blenderbot-small", "camembert", "cohere2_moe", "cwm", "data2vec-text", "deepseek_v2",
    "deepseek_v3", "deepseek_v4", "doge", "dots1", "ernie4_5", "ernie4_5_moe", "exaone_moe", "falcon_h1",
    "flex_olmo", "flint", "gemma4_unified_text", "glm4", "glm4_moe", "glm4_moe_lite", "gpt-sw3",
    "gpt_neox_japanese", "granite_swa", "granitemoe_swa", "granitemoehybrid", "granitemoeshared", "hrm_text",
    "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v3", "hy_v4", "hyperclovax", "inkling2_text", "inkling_text",
    "internlm3", "iquestcoder", "jais2", "jamba", "jetmoe", "kolibri1", "laguna", "lfm3", "mellum",
    "mimo_v2_flash", "minicpm3", "minimax_m2", "minimax_m3_vl_text", "ministral", "ministral3", "moshi",
    "nanochat", "nemotron_h", "olmo3", "olmo_hybrid", "olmoe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
    "recurrent_gemma", "roc_bert", "seamless_m4t", "seamless_m4t_v2", "seed_oss", "solar_open", "whisper",
    "youtu",
)  # fmt: skip
"""Families that the oldest version of ``transformers`` that is supported may lack."""
LONG += tuple(kind for kind in NOT_IN_ALL_VERSIONS if kind in CONFIG_MAPPING)
REFUSED = {
    kind: f"expected a model that reads texts from left to right, got {kind}"
    for kind in ("xlnet", "prophetnet", "cpmant", "xlm", "fsmt", "hrm_text")
}
WRONG_CACHES = {"nemotron_h"}
"""Families whose ``generate()`` writes another text with its cache than without."""
PROMPTS = [[3, 4, 5, 6], [7, 8, 9, 10, 11, 12, 13], [14, 15]]


class Branching:
    """Right and wrong drafts in one tree: the known text, itself with a wrong end, and a wrong one."""

    def __init__(self, texts: list[list[int]]) -> None:
        self.gold, self.rng = ReferenceDrafter(texts, 6), np.random.default_rng(0)

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        trees = []
        for tree in self.gold.propose(states):
            right = tree.tokens.tolist()
            wrong = self.rng.integers(VOCABULARY, size=len(right)).tolist()
            kept = int(self.rng.integers(len(right) + 1))
            trees.append(
                DraftTree.from_paths([path for path in ([*right[:kept], *wrong[kept:]], wrong, right) if path])
            )
        return trees

    def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        pass


def own_text(model: Any, prompt: list[int], new: int) -> list[int]:
    ids = torch.tensor([prompt])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"max_new_tokens": new, "do_sample": False, "use_cache": model.config.model_type not in WRONG_CACHES}
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0].tolist()
    return out[1 if model.config.is_encoder_decoder else len(prompt) :]


def padded(model: PreTrainedModel) -> tuple[list[list[int]], list[list[int]]]:
    """Ragged prompts or sources and their mask: a source has its padding on the right."""
    width, left = max(map(len, PROMPTS)), not model.config.is_encoder_decoder

    def filled(row: list[int], fill: list[int]) -> list[int]:
        return [*fill, *row] if left else [*row, *fill]

    ids = [filled(row, [0] * (width - len(row))) for row in PROMPTS]
    return ids, [filled([1] * len(row), [0] * (width - len(row))) for row in PROMPTS]


@pytest.mark.parametrize("kind", [*QUICK, *(pytest.param(kind, marks=pytest.mark.slow) for kind in LONG)])
def test_family_is_equal_to_generate_or_refused_in_one_line(kind: str) -> None:
    model = tiny_of(kind)
    ids, mask = padded(model)
    if kind in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[kind]) as refusal:
            generate(model, ids, NoDrafter(), attention_mask=mask, max_new_tokens=20)
        assert "\n" not in str(refusal.value)
        return
    expected = [own_text(model, prompt, 20) for prompt in PROMPTS]
    output = generate(model, ids, Branching(expected), attention_mask=mask, max_new_tokens=20)
    assert [row[output.prompt_length :] for row in output.sequences.tolist()] == expected
    assert output.block_efficiency > 3
    solved = jacobi(model, ids, attention_mask=mask, max_new_tokens=20)
    assert [solved.tokens(row) for row in range(len(expected))] == expected
    read = {"input_ids": ids} if model.config.is_encoder_decoder else {}
    checked = check_lossless(model, output.sequences, output.prompt_length, attention_mask=mask, **read)
    assert checked.lossless, str(checked)
    assert checked.tokens == sum(
        len("".join(map(chr, text)).rstrip("\0")) for text in expected
    )  # padding at an end is not compared


class PaddingAt(LogitsProcessor):
    """Writes the padding token at one column."""

    def __init__(self, column: int) -> None:
        self.column = column

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        only = torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([0]), 0.0)
        return only if input_ids.shape[1] == self.column else scores  # type: ignore[return-value]


@pytest.mark.parametrize("kind", ["m2m_100", "nllb-moe", "trocr", "xglm", "roberta", "marian"])
def test_text_may_hold_the_padding_token(kind: str) -> None:
    """Some families count positions by token id."""
    model = tiny_of(kind)
    for seed in range(4):
        prompt = torch.randint(1, VOCABULARY, (1, 6), generator=torch.Generator().manual_seed(seed))
        start = 1 if model.config.is_encoder_decoder else 6
        options: dict[str, Any] = {
            "attention_mask": torch.ones_like(prompt),
            "max_new_tokens": 20,
            "logits_processor": LogitsProcessorList([PaddingAt(start + 2)]),
        }
        expected = model.generate(prompt, do_sample=False, **options)  # type: ignore[operator]
        assert expected[0, start + 2] == 0
        output = generate(model, prompt, Branching(expected[:, start:].tolist()), **options)
        assert output.sequences.tolist() == expected.tolist()


def test_positions_by_token_id_that_cannot_be_given_are_refused() -> None:
    with pytest.raises(ValueError, match=r"got trocr, whose logits depend on .* how a text is cut"):
        generate(tiny_of("trocr", use_learned_position_embeddings=False), [3, 4], NoDrafter(), max_new_tokens=3)


def long_rope(boundary: int) -> PreTrainedModel:
    factors = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [9.0] * 4, "rope_theta": 10000.0}
    return tiny_of(
        "phi3",
        original_max_position_embeddings=boundary,
        rope_scaling=factors,
        max_position_embeddings=256,
        initializer_range=0.3,
    )


@pytest.mark.parametrize(("length", "new"), [(5, 15), (23, 20)])
def test_text_on_one_side_of_a_long_ropes_boundary_is_generates(length: int, new: int) -> None:
    model = long_rope(20)
    prompt = [(7 * i) % 20 + 3 for i in range(length)]
    expected = own_text(model, prompt, new)
    output = generate(model, prompt, Branching([expected]), max_new_tokens=new)
    assert output.sequences[0, length:].tolist() == expected
    assert jacobi(model, prompt, max_new_tokens=new).tokens() == expected
    assert check_lossless(model, output.sequences, length).lossless


def test_text_across_a_long_ropes_boundary_is_refused() -> None:
    model = long_rope(20)
    prompt = list(range(3, 9))
    text = torch.tensor([prompt + own_text(model, prompt, 30)])
    refusal = r"expected texts of at most 20 tokens, or prompts of 22 or more \(phi3's LongRoPE"
    with pytest.raises(ValueError, match=refusal):
        generate(model, prompt, NoDrafter(), max_new_tokens=15)
    with pytest.raises(ValueError, match=refusal):
        jacobi(model, prompt, max_new_tokens=15)
    with pytest.raises(ValueError, match=refusal):
        check_lossless(model, text, len(prompt))
    assert check_lossless(model, text[:, :20], len(prompt)).lossless


@pytest.mark.parametrize("kind", ["bart", "marian", "led", "bigbird_pegasus"])
def test_source_beyond_the_encoders_positions_is_refused(kind: str) -> None:
    model = tiny_of(kind)
    source = [(7 * i) % 20 + 3 for i in range(POSITIONS + 1)]
    assert generate(model, source[:-1], NoDrafter(), max_new_tokens=3).num_tokens == 3
    for decode in (
        lambda: generate(model, source, NoDrafter(), max_new_tokens=3),
        lambda: jacobi(model, source, max_new_tokens=3),
    ):
        with pytest.raises(
            ValueError,
            match=f"expected sources of at most {POSITIONS} tokens \\(the encoder's positions\\), got {POSITIONS + 1}",
        ):
            decode()


@pytest.mark.parametrize("kind", ["llama", "led", "marian", "roberta"])
def test_text_ends_where_the_models_positions_do(kind: str) -> None:
    model = tiny_of(kind)
    prompt = [3, 4, 5]
    start = 1 if model.config.is_encoder_decoder else len(prompt)
    expected = own_text(model, prompt, POSITIONS - start)
    output = generate(model, prompt, Branching([expected]), max_new_tokens=3 * POSITIONS)
    assert output.sequences[0, start:].tolist() == expected
