"""A real browser without a window, for pages: Chromium's own protocol over a pipe."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
LIMIT = 30.0
"""Seconds for an answer."""


def executable() -> str | None:
    """The browser's path; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a browser; ``problems`` are what its console reported, with exceptions and what
    it wanted to load."""

    def __init__(self, path: str, profile: Path) -> None:
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._number, self._buffer = 0, b""
        self._answers: dict[int, Any] = {}
        reads, self._out = os.pipe()
        self._in, writes = os.pipe()
        # The browser takes descriptors 3 and 4, which these must not be.
        reads, writes = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (reads, writes))

        def as_browser_wants() -> None:
            os.dup2(reads, 3)
            os.dup2(writes, 4)

        self._process = subprocess.Popen(
            [
                *(path, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *("--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(3, 4),
            preexec_fn=as_browser_wants,  # noqa: PLW1509 (nothing here has threads)
        )
        os.close(reads)
        os.close(writes)
        self._session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def send(self, method: str, **parameters: Any) -> Any:
        """A command's result."""
        self._number += 1
        number = self._number
        command = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._out, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + LIMIT
        while number not in self._answers:
            self._receive(deadline, method)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _receive(self, deadline: float, method: str) -> None:
        ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(f"the browser did not answer {method}")
        data = os.read(self._in, 1 << 20)
        if not data:
            raise RuntimeError("the browser ended")
        *whole, self._buffer = (self._buffer + data).split(b"\0")
        for text in whole:
            self._took(json.loads(text))

    def _took(self, message: Any) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
            return
        method, what = message["method"], message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(what["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.problems.append(json.dumps(what["args"]))
        elif method == "Log.entryAdded":
            self.problems.append(what["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.problems.append(f"dialog: {what['message']}")

    def open(self, path: Path, width: int = 1200, height: int = 900, *, scheme: str = "light",
             scripts: bool = True) -> None:  # fmt: skip
        """Show a file in a window of a size, under a colour scheme, with or without scripts."""
        self.send("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        self.send(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.send("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + LIMIT
        while self.evaluate("document.readyState") != "complete":
            assert time.monotonic() < deadline, "the page is not loaded"
        if not scripts:
            return
        # Frames that are due are drawn, and their errors reported.
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page, of a promise once it is there."""
        found = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def click(self, selector: str) -> None:
        """Press the mouse in the middle of an element, wherever it is."""
        place = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', inline: 'center'});"
            "const b = e.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send(
                "Input.dispatchMouseEvent",
                type=kind, x=place[0], y=place[1], button="left", clickCount=1,
            )  # fmt: skip

    def press(self, key: str) -> None:
        text = {"Enter": "\r", " ": " "}.get(key, "")
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path: Path) -> None:
        data = self.send("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
