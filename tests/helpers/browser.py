"""Headless Chromium, driven through its debugging pipe; nothing but the standard library."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """One page.  messages: what its console and its security policy complained about."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = os.fdopen(to, "wb", buffering=0), os.fdopen(back, "rb", buffering=0)
        self._left, self._number, self._session = b"", 0, ""
        self.messages: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """A command's result; RuntimeError where it fails."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        self._to.write(json.dumps(command).encode() + b"\0")
        while True:
            record = self._next()
            if record.get("id") == self._number:
                if "error" in record:
                    raise RuntimeError(f"{method}: {record['error']}")
                return record["result"]
            if record.get("method") == "Log.entryAdded":
                self.messages.append(record["params"]["entry"]["text"])
            elif record.get("method") == "Runtime.exceptionThrown":
                self.messages.append(str(record["params"]["exceptionDetails"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            new = os.read(self._back.fileno(), 1 << 16)
            if not new:
                raise RuntimeError("the browser has ended")
            self._left += new
        line, _, self._left = self._left.partition(b"\0")
        return dict(json.loads(line))

    def open(self, url: str, width: int = 1280, height: int = 800, scheme: str = "light") -> None:
        """Show a page in a window of this size, for readers who prefer this colour scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """Of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 60) -> None:
        """Until an expression is true."""
        end = time.monotonic() + seconds
        while not self.value(condition):
            if time.monotonic() > end:
                raise AssertionError(f"{condition} is not true of {self.value('document.body.innerText')!r:.500}")
            time.sleep(0.02)

    def type(self, text: str) -> None:
        """Into what has the focus; a line end is the key Enter."""
        for number, line in enumerate(text.split("\n")):
            if number:
                for kind in ("keyDown", "keyUp"):
                    self.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13)
            self.call("Input.insertText", text=line)

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """profile: a new folder for the browser's files."""
    (to_read, to_write), (back_read, back_write) = os.pipe(), os.pipe()
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_read, back_write)]  # beyond 3 and 4
    run = ["bash", "-c", f'exec "$0" "$@" 3<&{ends[0]} 4>&{ends[1]}', str(CHROMIUM), *FLAGS]
    process = subprocess.Popen(
        [*run, f"--user-data-dir={profile}", "about:blank"], pass_fds=ends, stderr=subprocess.DEVNULL
    )
    for end in (to_read, back_write, *ends):
        os.close(end)
    try:
        yield Browser(to_write, back_read)
    finally:
        process.terminate()  # and with it the processes that it started
        process.wait(30)
