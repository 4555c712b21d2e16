"""A server of a tiny model in this process, for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from openai import AsyncOpenAI, OpenAI

from latticebpd import DraftTree, Exact, NoDrafter, Sampling, generate
from latticebpd.drafters.drafter import Drafter, State
from latticebpd.drafters.heads.head_family import HeadLattices
from latticebpd.loading import Loaded
from latticebpd.models.target_model import TargetModel
from latticebpd.serving.api import Service
from latticebpd.serving.limits import Limits
from latticebpd.serving.server import GracefulServer, listen, server_of
from tests.helpers.engine_models import on_engine, with_heads
from tests.helpers.tokenizers import letters, letters_of_code

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def tiny(target: TargetModel | None = None, chat: bool = True, code: bool = False) -> Loaded:
    """A model of letters: by default a random one on the engine, with heads.  code: it fills in the middle."""
    tokenizer = letters_of_code() if code else letters()
    tokenizer.chat_template = TEMPLATE if chat else None
    source = None
    if target is None:
        heads = with_heads(on_engine("int8"))
        target, source = heads.target, HeadLattices(heads)
    loaded = Loaded("tiny", Path("tiny"), Path("tiny"), target, source=source)
    vars(loaded)["tokenizer"] = tokenizer
    return loaded


@dataclass
class HeldDrafter(NoDrafter):
    """Drafts nothing, once it is let go; holds up passes until then.

    pause: seconds before every pass.
    """

    go: threading.Event = field(default_factory=threading.Event)
    pause: float = 0.0
    failing: bool = False

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        assert self.go.wait(30)
        if self.failing:
            raise RuntimeError("as the test wants it")
        time.sleep(self.pause)
        return [DraftTree.empty()] * len(states)


@dataclass
class Served:
    """A running server; its clients try once."""

    service: Service
    server: GracefulServer
    thread: threading.Thread
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="secret", max_retries=0, timeout=60)

    @property
    def async_client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="secret", max_retries=0, timeout=60)

    def count(self, name: str, **labels: str) -> float:
        """A metric's value."""
        return self.service.metrics.registry.get_sample_value(f"latticebpd_{name}", labels) or 0.0

    def wait_for(self, name: str, value: float, **labels: str) -> None:
        """Until a metric has a value."""
        for _ in range(3000):
            if self.count(name, **labels) == value:
                return
            time.sleep(0.01)
        raise AssertionError(f"{name} is {self.count(name, **labels)}, not {value}")

    def stop(self) -> None:
        """As a signal does."""
        self.server.should_exit = True


@contextmanager
def serving(
    loaded: Loaded, drafter: Drafter | None = None, limits: Limits | None = None, grace: float = 10.0, **options: Any
) -> Iterator[Served]:
    service = Service(loaded, drafter or loaded.drafter("vanilla"), "tiny", limits or Limits(context=120), **options)
    server = server_of(service, grace, "warning")
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield Served(service, server, thread, listening.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


def alone(loaded: Loaded, prompt: str, length: int, seed: int | None = None, temperature: float = 1.0) -> str:
    """The text that `latticebpd` writes for one prompt, without a server; sampled where there is a seed."""
    rule: Exact | Sampling = Exact()
    if seed is not None:
        rule = Sampling(temperature, 0, 1.0, torch.Generator().manual_seed(seed))
    ids = loaded.encode(prompt)
    out = generate(loaded.target, [ids], NoDrafter(), rule, length, attention_mask=[[1] * len(ids)])
    return loaded.decode(out.sequences[0, len(ids) :])
