"""Shared fixtures: models small enough for a test, random but always the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from latticebpd.cli import main
from latticebpd.models.blockwise import BlockHeads, BlockwiseLM

# Models this small run fastest on one thread, and tests then share a machine well.
torch.set_num_threads(1)


def tiny_model(seed: int = 0, num_heads: int = 5, vocab_size: int = 23, eos_token_id: int | None = None) -> BlockwiseLM:
    """A random blockwise model with peaked outputs, so that greedy decoding has no near-ties."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        initializer_range=0.6,
        bos_token_id=None,
        eos_token_id=eos_token_id,
        pad_token_id=None,
    )
    heads = BlockHeads(16, num_heads, 8)
    torch.nn.init.normal_(heads.down, std=0.5)
    return BlockwiseLM(LlamaForCausalLM(config), heads).eval()


@pytest.fixture(scope="session")
def model() -> BlockwiseLM:
    return tiny_model()


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Call the program in this process; returns exit status, standard output, standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["latticebpd", *map(str, arguments)])
        capfd.readouterr()
        status = 0
        try:
            main()
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return call
