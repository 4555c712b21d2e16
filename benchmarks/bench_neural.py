"""Neural rescorers against the n-gram model, on the bundled blockwise model: what they add, and what that costs.

    python -m benchmarks.bench_neural --rescorer rescorer

`neural.md` has the commands that train and tune a rescorer.  Every system drafts from the same heads, top 16 each;
systems take turns on each batch of prompts.  Every text is compared with generate()'s, token for token, and the
program ends with an error if one differs. *Rescoring* is the time from lattices to drafts; tokens a second include
everything, the prefill too.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench_decoding import compare, decoding_options, show
from benchmarks.common import Clock, options, run, selected, set_up, signature, write_json
from fst import NgramModel
from latticebpd import (
    Loaded,
    NeuralRescorer,
    NoDrafter,
    ParallelNeuralRescorer,
    PathsDrafter,
    TreeDrafter,
    VanillaDrafter,
    load,
)
from latticebpd.drafters import Drafter
from latticebpd.drafters.bundled import LM, load_prompts
from latticebpd.lattices.texts import padded
from lm_training.data.training_data import load_texts

HEADINGS = ("tokens/call", "verified/call", "tokens/s", "vs. generate()", "rescoring, ms/pass", "ms/pass")


def systems(
    bundle: Loaded, neural: NeuralRescorer, parallel: ParallelNeuralRescorer
) -> dict[str, Callable[[], Drafter]]:
    """Drafters by name, from few verified tokens to many."""

    def paths(lm: Any, p: int = 1) -> Callable[[], Drafter]:
        return lambda: PathsDrafter(bundle.model, lm, p=p)

    def tree(lm: Any, nodes: int) -> Callable[[], Drafter]:
        return lambda: TreeDrafter(bundle.model, lm, num_nodes=nodes)

    lm = bundle.lm
    return {
        "greedy, this loop": NoDrafter,
        "vanilla BPD": lambda: VanillaDrafter(bundle.model),
        "4-gram": paths(lm),
        "neural (Algorithm 2)": paths(neural),
        "neural, parallel": paths(parallel),
        "16-best 4-gram": paths(lm, 16),
        "16 beams, neural": paths(neural, 16),
        "16-best neural, parallel": paths(parallel, 16),
        "tree 16, 4-gram": tree(lm, 16),
        "tree 16, neural": tree(neural, 16),
        "tree 64, 4-gram": tree(lm, 64),
        "tree 64, neural": tree(neural, 64),
        "tree 64, neural, parallel": tree(parallel, 64),
    }


def prompts_of(bundle: Loaded, data: Path | None, limit: int | None) -> list[list[int]]:
    """The bundled prompts, or those of sequences in a file or directory."""
    if data is None:
        return [bundle.encode(prompt.text) for prompt in load_prompts()[:limit]]
    found = load_texts(data, 64)
    return [found[n][: found.prompt_lengths[n]].tolist() for n in range(min(limit or len(found), len(found)))]


def sizes(bundle: Loaded, neural: NeuralRescorer) -> dict[str, Any]:
    """Parameters and memory of what rescores."""
    config, parameters = neural.model.config.get_text_config(), neural.model.num_parameters()
    kept_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    item = next(neural.model.parameters()).element_size()
    return {
        "neural_parameters": parameters,
        "neural_parameters_beside_embedding": parameters - neural.model.get_input_embeddings().weight.numel(),
        "neural_mb": parameters * item / 1e6,
        "neural_cache_bytes_per_token": 2 * config.num_hidden_layers * kept_heads * head_size * item,
        "base_parameters": sum(parameter.numel() for parameter in bundle.model.parameters()),
        "ngrams": sum(NgramModel.load(LM).num_ngrams),
        "ngram_mb": LM.stat().st_size / 1e6,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def main() -> None:
    parser = options(__doc__)
    about = "directory of a rescorer over the bundled model's vocabulary"
    parser.add_argument("--rescorer", type=Path, required=True, help=about)
    about = "prompts of sequences (.npz) or a distilled directory; bundled ones by default"
    parser.add_argument("--prompts", type=Path, help=about)
    parser.add_argument("--limit", type=int, help="how many prompts")
    parser.add_argument("--batch", type=int, default=1, help="prompts decoded together")
    parser.add_argument("--alpha", type=float, help="the neural rescorer's weight; the stored one by default")
    parser.add_argument("--parallel-alpha", type=float, help="the same for the parallel variant")
    decoding_options(parser)
    arguments = parser.parse_args()
    set_up(arguments.threads)
    device, bundle = torch.device(arguments.device), load(weights="torch")
    bundle.model.to(device)
    neural = NeuralRescorer.from_pretrained(arguments.rescorer)
    parallel = ParallelNeuralRescorer.from_pretrained(arguments.rescorer)
    for rescorer in (neural, parallel):
        rescorer.model.to(device)
    neural = neural if arguments.alpha is None else neural.with_alpha(arguments.alpha)
    parallel = parallel if arguments.parallel_alpha is None else parallel.with_alpha(arguments.parallel_alpha)
    chosen = selected(systems(bundle, neural, parallel), arguments.systems)
    prompts, clock = prompts_of(bundle, arguments.prompts, arguments.limit), Clock(arguments.clock, device)
    batches: list[Any] = []
    for begin in range(0, len(prompts), arguments.batch):
        arrays = padded(prompts[begin : begin + arguments.batch], 0, left=True)  # type: ignore[arg-type]
        batches.append(tuple(torch.from_numpy(array).to(device) for array in arrays))
    rows = compare(bundle.model, batches, chosen, arguments.new_tokens, arguments.repeats, clock)
    about_run = signature(clock=arguments.clock, neural_alpha=neural.alpha, parallel_alpha=parallel.alpha)
    show(f"batch {arguments.batch}, {arguments.new_tokens} new tokens a prompt", rows, HEADINGS)
    memory = sizes(bundle, neural)
    print("\n" + " | ".join(f"{name} {value:,}" for name, value in memory.items()))
    if arguments.json:
        write_json(arguments.json, {"signature": about_run, "systems": rows, "sizes": memory})


if __name__ == "__main__":
    run(main)
