"""The tables of `docs/supported.md`, from the code: ``python -m docs.site`` after a family, a type of weights
or a model came or went.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from latticebpd.cpu import _engine
from latticebpd.drafters import registry
from latticebpd.drafters.block.block_checkpoints import _KINDS, _SPECULATORS
from latticebpd.drafters.heads.engine_heads import INPUTS
from latticebpd.drafters.heads.head_networks import HEAD_KINDS
from latticebpd.models.catalogue import ASSETS, CATALOGUE, EXTRAS
from latticebpd.models.engine.engine_families import FAMILIES
from latticebpd.models.engine.gguf_engine import ARCHITECTURES
from latticebpd.models.gguf.gguf_file import BLOCKS
from latticebpd.serving.schema import RequestError
from latticebpd.serving.tools import format_of
from tests.latticebpd.decoding import test_model_families as compared

PAGE = Path(__file__).parents[1] / "supported.md"
TEMPLATES = Path(__file__).parents[2] / "tests" / "latticebpd" / "models" / "chat_templates"
TEMPLATE_OF = {"qwen2.5-coder-0.5b": "qwen2.5-0.5b-instruct", "qwen2.5-coder-1.5b": "qwen2.5-coder-1.5b-instruct"}
YES, NO = "yes", "–"


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def yes_no(value: Any) -> str:
    return YES if value else NO


def models() -> str:
    """The models that one command downloads, and what the package has for them."""
    rows = []
    for entry in CATALOGUE.values():
        files = [file for file in EXTRAS if any((ASSETS / name / file).exists() for name in entry.assets)]
        template = (TEMPLATES / f"{TEMPLATE_OF.get(entry.name, entry.name + '-instruct')}.jinja").read_text("utf-8")
        has = [name in files for name in ("latticebpd/heads.safetensors", "lm.fst", "lm.fst.calibration.json")]
        rows.append([f"`{entry.name}`", f"{entry.megabytes} MB", *map(yes_no, has), tool_format(template)])
    return table(["model", "download", "heads", "n-gram model", "calibration", "tools"], rows)


def tool_format(template: str) -> str:
    """In which a model with this chat template calls tools."""
    try:
        return format_of(template).name
    except RequestError:
        return NO


def engine() -> str:
    """The families that the CPU engine computes."""
    names = {each: each.removesuffix("ForCausalLM") for each in FAMILIES}
    rows = [[name, YES, yes_no(name.lower() in ARCHITECTURES)] for name in sorted(names.values())]
    return table(["family", "safetensors, as `float32` or `int8`", "GGUF file, as `gguf`"], rows)


def gguf_types() -> str:
    """The types of GGUF tensors that the engine multiplies by."""
    types = []
    for kind in BLOCKS:
        try:
            _engine.dequantized(int(kind), np.empty(0, np.uint8))
        except ValueError:
            continue
        types.append(f"`{kind.name}`")
    return ", ".join(types)


def pytorch() -> str:
    """The families whose tiny models are compared with their own ``generate()``."""
    families = {*compared.QUICK, *compared.LONG, *compared.NOT_IN_ALL_VERSIONS} - {*compared.REFUSED}
    return f"{len(families)} families are compared: {', '.join(f'`{name}`' for name in sorted(families))}."


def checkpoints() -> str:
    """What can be loaded as a drafter, and next to which targets it drafts."""
    heads = [[f"heads, `{kind}`", yes_no(kind in INPUTS), YES, YES] for kind in HEAD_KINDS]
    names, layouts = (", ".join(f"`{name}`" for name in each) for each in (_KINDS, _SPECULATORS))
    rows = {
        "heads.head_family": heads,
        "block.block_family": [
            [f"block drafters of their authors' layouts: {names}", YES, YES, NO],
            [f"block drafters of `speculators`: {layouts}", YES, YES, NO],
        ],
        "masks.mask_family": [["mask-filling models", NO, NO, YES]],
        "assistant.assistant_family": [["assistants: small causal language models", YES, YES, NO]],
        "mtp.mtp_family": [["a model's own MTP layers", NO, YES, NO]],
        "mtp.speculators_family": [["MTP drafters of `speculators`", NO, YES, NO]],
    }
    families = dict.fromkeys((*registry.BESIDE_TARGET, *registry.FAMILIES))
    every = [row for family in families for row in rows[family]]  # a new family needs its rows here
    return table(["drafter", "CPU engine", "PyTorch, causal", "PyTorch, encoder–decoder"], every)


PARTS = {"models": models, "engine": engine, "types": gguf_types, "pytorch": pytorch, "checkpoints": checkpoints}


def with_tables(text: str) -> str:
    """The page with every part, between its two comments, as it should be."""
    for name, make in PARTS.items():
        begin, end = f"<!-- {name}: python -m docs.site -->", f"<!-- end of {name} -->"
        head, _, rest = text.partition(begin)
        tail = rest.partition(end)[2]
        text = f"{head}{begin}\n\n{make()}\n\n{end}{tail}"
    return text


def write() -> None:
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
