"""What a server counts, for Prometheus."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class ServerMetrics:
    """Counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        common: Any = {"namespace": "latticebpd", "registry": self.registry}
        self.responses = Counter("responses", "Responses by path and HTTP status", ("path", "status"), **common)
        self.finished = Counter("finished", "Admitted requests by how they ended", ("reason",), **common)
        self.waiting = Gauge("requests_waiting", "Requests that wait for a row", **common)
        self.running = Gauge("requests_running", "Requests that have a row", **common)
        self.prompt_tokens = Counter("prompt_tokens", "Tokens of prompts", **common)
        self.cached_tokens = Counter("cached_tokens", "Tokens of prompts that earlier texts begin with", **common)
        self.prefix_memory = Gauge("prefix_memory_bytes", "Memory of texts kept for later prompts", **common)
        self.new_tokens = Counter("generated_tokens", "Tokens written, prefills' included", **common)
        self.passes = Counter("passes", "Forward passes over drafts", **common)
        self.calls = Counter("calls", "Forward passes, each counted once for every row that it served", **common)
        self.drafted = Counter("drafted_tokens", "Drafted tokens that were verified", **common)
        self.accepted = Counter("accepted_tokens", "Drafted tokens that were accepted", **common)
        self.first = Histogram("first_token_seconds", "From arrival to the first token", buckets=SECONDS, **common)
        self.seconds = Histogram("request_seconds", "From arrival to the last token", buckets=SECONDS, **common)

    def page(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self.registry)
