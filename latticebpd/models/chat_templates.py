"""Chat templates: Jinja templates that write a conversation as a model was tuned on, rendered as by ``transformers``.

Templates come with models and are untrusted. Repeating a text or comparing nested lists can take any time and memory
within one call of C, where no check in Python is reached. So a process of its own, `template_worker`, renders them; the
operating system limits its memory and processor time. A few known templates are rendered in the process itself.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import markupsafe
from jinja2.exceptions import SecurityError

from latticebpd.models.template_worker import cause, compiled

KNOWN = {
    "872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788",  # SmolLM2-135M-Instruct
    "cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f",  # Qwen2.5-Coder-0.5B-Instruct
    "d5495a1e5db0611132a97e46a65dbb64a642a499421228b9c8b93229097fa9a4",  # Qwen2.5-Coder-1.5B-Instruct
}
"""SHA-256 of templates that were read: their time and memory are linear in the conversation's length."""
CPU_SECONDS = 2.0
"""Processor time of one rendering in the worker; a message takes about 20 microseconds."""
SECONDS = 30.0
"""Time that the worker may take to read a request, and to answer it."""
MEMORY = 512 << 20
"""Bytes of the worker's address space; it needs 25 MiB itself."""
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of a message's reasoning, which templates read by the first or the second."""


def render_chat(template: str, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
    """The text of a conversation; ValueError, in one line, for a template or a conversation that is refused.

    messages: JSON objects with ``role`` and ``content``; values of None count as missing.
    variables: ``add_generation_prompt``, ``tools``, special tokens and whatever else the template reads; JSON values.
    """
    try:
        if not messages:
            raise jinja2.TemplateError("it is empty")
        variables = {"tools": None, "documents": None, "add_generation_prompt": False, **variables}
        variables["messages"] = [_as_templates_read(message) for message in messages]
        if hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest() in KNOWN:
            return compiled(template).render(variables)
        accepted, text = _worker.answer(json.dumps([template, variables]).encode() + b"\n")
    except Exception as error:  # templates raise errors of any kind
        accepted, text = False, cause(error)
    if not accepted:
        wanted = "a conversation that the chat template accepts"
        raise ValueError(f"expected {wanted}, got {text}; give the prompt as plain text")
    return text


def _as_templates_read(message: Mapping[str, Any]) -> dict[str, Any]:
    present = {name: value for name, value in message.items() if value is not None}
    reasoning = [present[name] for name in REASONING if name in present][:1]
    return {"thinking": reasoning[0], **present, REASONING[0]: reasoning[0]} if reasoning else present


class _Worker:
    """The process that renders: started when it is first needed, kept, and started again after its end.

    It ends with this process, which has the other end of its standard input.
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def answer(self, request: bytes) -> Any:
        """Whether a template was rendered, and its text or what it raised; SecurityError beyond a limit."""
        with self._lock:
            if self.process is None or self.process.poll() is not None:
                self.stop()
                self.process = self._started()
            try:
                self._socket.sendall(request)
                with self._socket.makefile("rb") as answers:
                    return json.loads(answers.readline())  # of nothing, a ValueError
            except BaseException as error:  # such as Ctrl-C, before the answer
                self.stop()
                if not isinstance(error, OSError | ValueError):
                    raise
                limits = f"{CPU_SECONDS:g} s of processor time or {MEMORY >> 20} MiB of memory"
                ended = f"its process ended with status {self.process.returncode}"
                raise SecurityError(f"the template takes more than {limits} ({ended})") from None

    def _started(self) -> subprocess.Popen[bytes]:
        """Without the path of modules and almost without an environment, for a quick start."""
        paths = [Path(__file__).parent, Path(jinja2.__file__).parents[1], Path(markupsafe.__file__).parents[1]]
        code = f"import sys; sys.path += sys.argv[1:]; from template_worker import main; main({CPU_SECONDS}, {MEMORY})"
        line = [sys.executable, "-I", "-S", "-c", code, *map(str, paths)]
        kept = {name: os.environ[name] for name in os.environ.keys() & {"TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"}}
        self._socket, end = socket.socketpair()
        self._socket.settimeout(SECONDS)
        with end:
            return subprocess.Popen(line, stdin=end.fileno(), stdout=end.fileno(), stderr=subprocess.DEVNULL, env=kept)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self._socket.close()

    def forget(self) -> None:
        """In a forked process: leave the worker to the process that started it."""
        self._lock = threading.Lock()  # a thread that does not exist here may hold the other one
        if self.process is not None and self.process.returncode is None:
            self.process.returncode = 0
            os.close(self._socket.detach())


_worker = _Worker()
atexit.register(_worker.stop)
os.register_at_fork(after_in_child=_worker.forget)
