"""Neural rescorers against the n-gram model, on the bundled blockwise model: what they add, and what that costs.

    latticebpd distill train.npy --model latticebpd/assets/model -o written --prompts 8192
    latticebpd distill held-out.npy --model latticebpd/assets/model -o written-held-out --prompts 512
    latticebpd train rescorer written --validation written-held-out --tokenizer latticebpd/assets/model/tokenizer.json \\
        --preset tiny -o rescorer --steps 600 --batch-size 16 --warmup-steps 30
    latticebpd lattices --prompts held-out.npy --limit 100 --context 256 --max-new-tokens 64 -o tuning.npz
    latticebpd tune tuning.npz --lm rescorer --write
    python -m benchmarks.bench_neural --rescorer rescorer

(`train.npy` and `held-out.npy` are the corpora that `python -m benchmarks.bundled.make` leaves in its working directory.)

Every system drafts from the same heads, top 16 each; systems take turns on each batch of prompts.  Every text is compared with
generate()'s, token for token, and the program ends with an error if one differs.  *Rescoring* is the time from lattices to
drafts; tokens a second include everything, the prefill too.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.bench_decoding import Clock, Stopwatch, err, machine, show
from latticebpd import (
    NeuralRescorer,
    NoDrafter,
    ParallelNeuralRescorer,
    PathsDrafter,
    TreeDrafter,
    VanillaDrafter,
    generate,
)
from latticebpd.decoding.loop import Generated
from latticebpd.drafters import BestTree, Drafter, NBestPaths
from latticebpd.drafters.bundled import LM, Bundle, load_bundle
from lm_training.data.batching import padded
from lm_training.data.loading import load_texts


def systems(
    bundle: Bundle, neural: NeuralRescorer, parallel: ParallelNeuralRescorer
) -> dict[str, Callable[[], Drafter]]:
    """Drafters by name, from few verified tokens to many."""
    model, lm = bundle.model, bundle.lm_file
    return {
        "greedy, this loop": NoDrafter,
        "vanilla BPD": lambda: VanillaDrafter(model),
        "4-gram": lambda: PathsDrafter(model, lm, p=1),
        "neural (Algorithm 2)": lambda: PathsDrafter(model, neural, p=1),
        "neural, parallel": lambda: PathsDrafter(model, parallel, p=1),
        "16-best 4-gram": lambda: PathsDrafter(model, lm, p=16),
        "16 beams, neural": lambda: PathsDrafter(model, neural, p=16),
        "16-best neural, parallel": lambda: PathsDrafter(model, parallel, p=16),
        "tree 16, 4-gram": lambda: TreeDrafter(model, lm, num_nodes=16),
        "tree 16, neural": lambda: TreeDrafter(model, neural, num_nodes=16),
        "tree 64, 4-gram": lambda: TreeDrafter(model, lm, num_nodes=64),
        "tree 64, neural": lambda: TreeDrafter(model, neural, num_nodes=64),
        "tree 64, neural, parallel": lambda: TreeDrafter(model, parallel, num_nodes=64),
    }


def prompts_of(bundle: Bundle, data: Path | None, limit: int | None) -> list[list[int]]:
    """The bundled prompts, or those of sequences in a file or directory."""
    if data is None:
        return [bundle.tokenizer.encode(prompt.text).ids for prompt in bundle.prompts[:limit]]
    found = load_texts(data, 64)
    return [
        found[index][: found.prompt_lengths[index]].tolist() for index in range(min(limit or len(found), len(found)))
    ]


def measure(
    bundle: Bundle, chosen: dict[str, Callable[[], Drafter]], arguments: argparse.Namespace, clock: Clock
) -> list[dict[str, Any]]:
    """One row for every system; the first is stock ``generate()``."""
    prompts = prompts_of(bundle, arguments.prompts, arguments.limit)
    batches = [prompts[begin : begin + arguments.batch] for begin in range(0, len(prompts), arguments.batch)]
    base: Any = bundle.model.base
    new_tokens = arguments.new_tokens
    seconds: dict[str, list[float]] = {name: [0.0] * arguments.repeats for name in ("generate()", *chosen)}
    rescoring = dict.fromkeys(chosen, 0.0)
    runs: dict[str, list[Generated]] = {name: [] for name in chosen}
    for repetition in range(-1, arguments.repeats):  # the first warms up, on one batch
        for number, batch in enumerate(batches if repetition >= 0 else batches[:1]):
            err.print(
                f"repetition {repetition + 1} of {arguments.repeats}, batch {number + 1} of {len(batches)}", style="dim"
            )
            rows, mask = (torch.from_numpy(array) for array in padded(batch, 0, left=True))  # type: ignore[arg-type]
            options = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "pad_token_id": 0}
            started = clock()
            reference = base.generate(rows, attention_mask=mask, do_sample=False, **options)
            elapsed = {"generate()": clock() - started}
            for name, drafter_of in chosen.items():
                watch, drafter = Stopwatch(clock, frozenset()), drafter_of()
                started = clock()
                with watch.around(NBestPaths, "draft", "rescoring"), watch.around(BestTree, "draft", "rescoring"):
                    run = generate(
                        bundle.model, rows, drafter, attention_mask=mask, max_new_tokens=new_tokens, eos_token_id=()
                    )
                elapsed[name] = clock() - started
                if not torch.equal(run.sequences, reference):
                    sys.exit(f"bench_neural: error: {name}: the text differs from generate()'s")
                if repetition >= 0:
                    rescoring[name] += watch.seconds.get("rescoring", 0.0)
                if repetition == 0:
                    runs[name].append(run)
            if repetition >= 0:
                for name, value in elapsed.items():
                    seconds[name][repetition] += value
    tokens, greedy = len(prompts) * new_tokens, statistics.median(seconds["generate()"])
    rows_found: list[dict[str, Any]] = []
    for name, values in seconds.items():
        found = runs.get(name, [])
        calls = sum(run.num_calls for run in found) or tokens - len(prompts)
        passes = sum(run.num_passes for run in found) or (new_tokens - 1) * len(batches)
        rows_found.append({
            "system": name,
            "block_efficiency": (tokens - len(prompts)) / calls,
            "verified_per_call": sum(run.verified_tokens for run in found) / calls,
            "tokens_per_second": tokens / statistics.median(values),
            "speedup": greedy / statistics.median(values),
            "rescoring_ms_per_pass": 1e3 * rescoring.get(name, 0.0) / arguments.repeats / passes,
            "ms_per_pass": 1e3 * statistics.median(values) / passes,
            "calls": calls,
        })  # fmt: skip
    return rows_found


def sizes(bundle: Bundle, neural: NeuralRescorer) -> dict[str, Any]:
    """Parameters and memory of what rescores."""
    config = neural.model.config.get_text_config()
    heads_kept = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    bytes_each = next(neural.model.parameters()).element_size()
    return {
        "neural_parameters": neural.model.num_parameters(),
        "neural_parameters_beside_embedding": neural.model.num_parameters()
        - neural.model.get_input_embeddings().weight.numel(),
        "neural_mb": neural.model.num_parameters() * bytes_each / 1e6,
        "neural_cache_bytes_per_token": 2 * config.num_hidden_layers * heads_kept * head_size * bytes_each,
        "base_parameters": sum(parameter.numel() for parameter in bundle.model.parameters()),
        "ngrams": sum(bundle.lm.num_ngrams),
        "ngram_mb": LM.stat().st_size / 1e6,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--rescorer", type=Path, required=True, help="directory of a rescorer over the bundled model's vocabulary"
    )
    parser.add_argument(
        "--prompts",
        type=Path,
        help="whose prompts to decode: sequences (.npz) or a distilled directory; bundled ones by default",
    )
    parser.add_argument("--limit", type=int, help="how many prompts")
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens decoded per prompt")
    parser.add_argument("--batch", type=int, default=1, help="prompts decoded together")
    parser.add_argument("--repeats", type=int, default=3, help="timed repetitions")
    parser.add_argument(
        "--systems", type=lambda text: text.split(";"), help="names separated by semicolons; all by default"
    )
    parser.add_argument("--alpha", type=float, help="the neural rescorer's weight; the stored one by default")
    parser.add_argument("--parallel-alpha", type=float, help="the same for the parallel variant")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of the processor")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--json", type=Path, help="write everything as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    device = torch.device(arguments.device)
    try:
        bundle = load_bundle()
        bundle.model.to(device)
        neural, parallel = (
            NeuralRescorer.from_pretrained(arguments.rescorer),
            ParallelNeuralRescorer.from_pretrained(arguments.rescorer),
        )
        for rescorer in (neural, parallel):
            rescorer.model.to(device)
        neural = neural if arguments.alpha is None else neural.with_alpha(arguments.alpha)
        parallel = parallel if arguments.parallel_alpha is None else parallel.with_alpha(arguments.parallel_alpha)
        chosen = systems(bundle, neural, parallel)
        unknown = [name for name in arguments.systems or [] if name not in chosen]
        if unknown:
            raise ValueError(f"expected systems among {', '.join(chosen)}, got {unknown[0]}")
        chosen = {name: chosen[name] for name in arguments.systems or chosen}
        rows = measure(bundle, chosen, arguments, Clock(arguments.clock, device))
    except ValueError as error:
        sys.exit(f"bench_neural: error: {error}")
    signature = {**machine(device, arguments), "neural_alpha": neural.alpha, "parallel_alpha": parallel.alpha}
    print(" | ".join(f"{name} {value}" for name, value in signature.items()))
    show(
        f"batch {arguments.batch}, {arguments.new_tokens} new tokens a prompt",
        ["system", "tokens/call", "verified/call", "tokens/s", "vs. generate()", "rescoring, ms/pass", "ms/pass"],
        [
            [
                row["system"],
                f"{row['block_efficiency']:.2f}",
                f"{row['verified_per_call']:.1f}",
                f"{row['tokens_per_second']:.0f}",
                f"{row['speedup']:.2f}x",
                f"{row['rescoring_ms_per_pass']:.2f}",
                f"{row['ms_per_pass']:.2f}",
            ]
            for row in rows
        ],
    )
    memory = sizes(bundle, neural)
    print(
        "\n"
        + " | ".join(
            f"{name} {value:,.1f}" if isinstance(value, float) else f"{name} {value:,}"
            for name, value in memory.items()
        )
    )
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"signature": signature, "systems": rows, "sizes": memory}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
