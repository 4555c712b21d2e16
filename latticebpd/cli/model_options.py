"""The options by which commands load a model, and what they check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from latticebpd.checks import expect

if TYPE_CHECKING:
    from pathlib import Path

    from latticebpd.constraints.constraint import Constraint
    from latticebpd.decoding.acceptance import Acceptance
    from latticebpd.drafters.drafter import Drafter
    from latticebpd.loading import Loaded

LM: Any = typer.Option(None, help="FST, ARPA or a neural rescorer's directory; by default lm.fst next to the model.")
ALPHA: Any = typer.Option(None, min=0.0, help="Weight of --lm; by default the one stored for the system, else 1.")
MODEL: Any = typer.Option(
    None, help="Directory, .gguf file, Hub id, or a name of `latticebpd models`; by default `bundled`, a toy model."
)
K: Any = typer.Option(None, "-k", "--k", min=1, help="Arcs per slot; by default 16, more for larger calibrated trees.")
CHAT: Any = typer.Option(None, help="Format texts in the tokenizer's chat template; by default if it has one.")
SYSTEM_PROMPT: Any = typer.Option(None, help="System prompt of a chat; by default the template's own.")
DRAFTER_MODEL: Any = typer.Option(
    None,
    help="Draft with this model instead of heads: a block drafter (`latticebpd train block-drafter`, a DFlash, DFlash "
    "2, DSpark or LiLiCorr checkpoint), a small causal LM of the same vocabulary or, for an encoder–decoder, a model "
    "that fills masks (`latticebpd train masks`).",
)
BIGRAM: Any = typer.Option(
    True, help="Use what ties neighbouring slots (transitions, bigram, selector, reranker), and a confidence head."
)
IGNORE_BEAMS: Any = typer.Option(False, "--ignore-beams", help="Decode greedily even if the model asks for beams.")
PART: Any = typer.Option(None, help="i/n: make every n-th shard, from number i (0 on); by default torchrun's rank.")
WEIGHTS: Any = typer.Option(
    None,
    help="Weights of the passes: float32, int8 or gguf (the blocks of a GGUF file) on the CPU engine, or torch "
    "(PyTorch); by default gguf if there is one, else float32, and torch for models that the engine does not support.",
)

SYSTEM: Any = typer.Option(
    None, "--system", "-s",
    help="Drafting system: vanilla, P-best, N-tree, N-calibrated or copies+N-tree (append :0-gram for no language "
    "model), N-copies (prompt lookup, any model), greedy. By default, with heads or MTP layers: 16-calibrated if "
    "calibrated, else copies+16-tree, chain for MTP layers of a recurrent model; without heads: 16-calibrated; with a "
    "drafter model: 16-tree, 16-calibrated if --lm was calibrated for it, vanilla if it fills masks. With quantized "
    "weights these calibrated trees and copies are cut to what pays off.",
)  # fmt: skip
TEMPERATURE: Any = typer.Option(None, min=0.0, help="Sample at this temperature; 0 is greedy.")
TOP_K: Any = typer.Option(None, min=1, help="Sample among the k best tokens.")
TOP_P: Any = typer.Option(None, min=0.0, max=1.0, help="Sample among the fewest tokens with this total probability.")
SEED: Any = typer.Option(None, help="Seed of the sampling.")
JSON_SCHEMA: Any = typer.Option(None, help="Write JSON of the schema in this file.")
JSON_OBJECT: Any = typer.Option(False, "--json-object", help="Write a JSON object.")
REGEX: Any = typer.Option(None, help="Write a text that this regular expression matches from end to end.")
CHOICE: Any = typer.Option([], help="Write one of these texts; repeat it for each.")
GRAMMAR: Any = typer.Option(None, help="Write a text of the grammar in this file, in Lark's notation.")
SHOW_BLOCKS: Any = typer.Option(False, "--show-blocks", help="Mark which tokens each call of the model committed.")


def sampling_rule(
    name: str | None, temperature: float | None, top_k: int | None, top_p: float | None, seed: int | None
) -> Acceptance:
    """The acceptance rule of a name; without one, sampling where there is a temperature, else the exact rule."""
    from latticebpd.decoding.rule_names import parse_rule

    generator = None
    if seed is not None:
        import torch

        generator = torch.Generator().manual_seed(seed)
    sampling = {"temperature": temperature or None, "top_k": top_k, "top_p": top_p, "generator": generator}
    return parse_rule(name or ("sample" if temperature else "exact"), **sampling)


def constraint_of(
    json_schema: Path | None, json_object: bool, regex: str | None, choice: list[str], grammar: Path | None
) -> Constraint | None:
    """The constraint that options ask for; ValueError for more than one."""
    from fst.files import read_text
    from latticebpd.constraints import grammar as grammars

    made = {
        "--json-schema": None if json_schema is None else lambda: grammars.json_schema(read_text(json_schema)),
        "--json-object": grammars.json_object if json_object else None,
        "--regex": None if regex is None else lambda: grammars.regex(regex),
        "--choice": (lambda: grammars.choice(choice)) if choice else None,
        "--grammar": None if grammar is None else lambda: grammars.lark(read_text(grammar)),
    }
    asked = {name: make for name, make in made.items() if make is not None}
    expect(len(asked) <= 1, f"one of {', '.join(made)}", " and ".join(asked))
    return next(iter(asked.values()))() if asked else None


def named_drafter(loaded: Loaded, system: str | None, lm: Path | None, alpha: float | None, **options: Any) -> Drafter:
    """The drafter of a system, by default the model's; ``--lm`` and ``--alpha`` are refused where they do nothing.
    The costs that it cuts drafts by are measured now, so that they count in no speed that is printed."""
    from latticebpd.drafters.system_names import rescores

    name = system or loaded.default_system(alpha, by_cost=options.get("costs") is not None)
    for option, value in (("--lm", lm), ("--alpha", alpha)):
        wanted = f"{option} with a system that rescores, such as 16-best or 64-tree"
        expect(value is None or rescores(name), wanted, repr(name), "leave it out")
    drafter = loaded.drafter(system, alpha=alpha, **options)
    _ = getattr(drafter, "costs", None)
    return drafter
