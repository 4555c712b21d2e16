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
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from latticebpd.target import template_worker
from latticebpd.models.template_worker import ANSWER, MAX_TEXT, cause, compiled

KNOWN = frozenset(
    {
        "872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788",  # SmolLM2-135M-Instruct
        "cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f",  # Qwen2.5(-Coder)-0.5B-Instruct
        "d5495a1e5db0611132a97e46a65dbb64a642a499421228b9c8b93229097fa9a4",  # Qwen2.5-Coder-1.5B-Instruct
    }
)
"""SHA-256 of templates that were read: their time and memory are linear in the conversation's."""
CPU_SECONDS = 2.0
"""Processor time of one rendering in the worker; a message takes about 20 microseconds."""
SECONDS = 10.0
"""Time of one rendering in the worker, its start included."""
MEMORY = 512 << 20
"""Bytes of the worker's address space; it needs 25 MiB itself."""
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of a message's reasoning, which templates read by the first or the second."""
_START = """import sys
sys.path += sys.argv[3:]
from template_worker import main
main(float(sys.argv[1]), int(sys.argv[2]))"""


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

    It ends with this process, whose end closes its standard input.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None

    def answer(self, request: bytes) -> tuple[bool, str]:
        """Whether a template was rendered, and its text or what it raised; SecurityError beyond a limit."""
        with self._lock:
            if self.process is not None and self.process.poll() is not None:
                self.stop()
            process = self.process = self.process or _started()
            requests: Any = process.stdin
            answers: Any = process.stdout
            timer = threading.Timer(SECONDS, process.kill)
            timer.daemon = True
            try:
                timer.start()
                while request:
                    request = request[requests.write(request) :]
                accepted, length = ANSWER.unpack(_read(answers, ANSWER.size))
                return accepted, _read(answers, length).decode("utf-8", "surrogatepass")
            except (EOFError, BrokenPipeError):
                self.stop()
                limits = f"{CPU_SECONDS:g} s of processor time or {MEMORY >> 20} MiB of memory"
                ended = f"its process ended with status {process.returncode}"
                raise jinja2.exceptions.SecurityError(f"the template takes more than {limits} ({ended})") from None
            except BaseException:  # such as Ctrl-C: the answer is still to come
                self.stop()
                raise
            finally:
                timer.cancel()

    def stop(self) -> None:
        if self.process is not None:
            with self.process as process:  # closes its pipes and waits
                process.kill()
            self.process = None

    def forget(self) -> None:
        """In a forked process: leave the worker to the process that started it."""
        self._lock = threading.Lock()  # a thread that does not exist here may hold the other one
        if self.process is not None:
            pipes: Any = (self.process.stdin, self.process.stdout)
            for pipe in pipes:
                pipe.close()
            self.process.returncode = 0  # not this process's to wait for
            self.process = None


def _started() -> subprocess.Popen[bytes]:
    """Without a path of modules of its own and almost without an environment, for a quick start."""
    packages = [Path(jinja2.__file__).parent, Path(markupsafe.__file__).parent]
    paths = [Path(template_worker.__file__).parent, *(package.parent for package in packages)]
    kept = ("TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _START, str(CPU_SECONDS), str(MEMORY), *map(str, paths)],
        bufsize=0,  # a buffer has a lock, which a forked process might find taken
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={name: os.environ[name] for name in kept if name in os.environ},
    )


def _read(file: Any, size: int) -> bytes:
    data = bytearray()
    while len(data) < size <= MAX_TEXT and (part := file.read(min(size - len(data), 1 << 20))):
        data += part
    if len(data) < size:
        raise EOFError
    return bytes(data)


_worker = _Worker()
atexit.register(lambda: _worker.stop())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _worker.forget())
