"""No module keeps models: what a decode needs is passed to it, and a model is freed with its last user's name."""

from __future__ import annotations

import gc
import importlib
import pkgutil
import sys
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

import fst
import latticebpd
import lm_training
from latticebpd import Loaded, NoDrafter, generate, load
from latticebpd.models.engine.engine_copy import engine_copy
from latticebpd.models.engine.engine_model import EngineModel
from latticebpd.models.transformers.transformers_model import TransformersModel
from tests.helpers.engine_models import stock

MODELS = (torch.nn.Module, EngineModel, TransformersModel, Loaded)
CONTAINERS = (Mapping, list, tuple, set, frozenset, weakref.WeakSet)


def project_modules() -> list[types.ModuleType]:
    """All modules of the three packages that are imported now."""
    names = {package.__name__ for package in (fst, latticebpd, lm_training)}
    return [module for name, module in sorted(sys.modules.items()) if name.split(".")[0] in names]


def models_in(value: Any, seen: set[int]) -> Iterator[Any]:
    """Models among a value and, where it is a container, what it contains."""
    if isinstance(value, MODELS):
        yield value
    if isinstance(value, CONTAINERS) and id(value) not in seen:
        seen.add(id(value))
        parts = [*value.keys(), *value.values()] if isinstance(value, Mapping) else list(value)
        for part in parts:
            yield from models_in(part, seen)


def globals_with_models() -> list[str]:
    """Names of module globals that are models or contain one; of classes, their attributes."""
    found = []
    for module in project_modules():
        for name, value in list(vars(module).items()):
            if name == "__builtins__" or isinstance(value, types.ModuleType):
                continue
            own = isinstance(value, type) and value.__module__ == module.__name__
            values = list(vars(value).values()) if own else [value]
            if any(True for each in values for _ in models_in(each, set())):
                found.append(f"{module.__name__}.{name}")
    return found


def decoded(weights: str) -> Loaded:
    loaded = load(weights=weights)
    loaded.generate("The history of the city", max_new_tokens=4)
    return loaded


def test_no_module_global_holds_a_model_after_decodes() -> None:
    for package in (fst, latticebpd, lm_training):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    kept = [decoded(weights) for weights in ("float32", "int8", "torch")]
    assert {type(loaded.target) for loaded in kept} == {EngineModel, TransformersModel}
    assert len(project_modules()) > 150
    assert globals_with_models() == []


@pytest.mark.parametrize(
    "make",
    [
        lambda model: model, lambda model: [model], lambda model: {"a": {1: model}}, lambda model: {model},
        lambda model: ((model,),),
        lambda model: weakref.WeakKeyDictionary({model: 1}), lambda model: weakref.WeakValueDictionary({1: model}),
        lambda model: weakref.WeakSet([model]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("of", ["module", "class"])
def test_one_that_did_would_be_found(make: Any, of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner: Any = latticebpd.loading if of == "module" else Loaded
    for model in (stock(), engine_copy(stock()), TransformersModel(stock())):
        monkeypatch.setattr(owner, "kept", make(model), raising=False)
        assert globals_with_models() == [f"latticebpd.loading.{'kept' if of == 'module' else 'Loaded'}"]


@pytest.mark.parametrize("kind", ["engine", "PyTorch"])
def test_a_model_is_freed_with_its_last_name(kind: str) -> None:
    model = stock()
    target: Any = engine_copy(model) if kind == "engine" else TransformersModel(model)
    generate(target, [3, 4, 5], NoDrafter(), max_new_tokens=4)
    known = weakref.ref(model), weakref.ref(target)
    del model, target
    gc.collect()
    assert [each() for each in known] == [None, None]
