"""A real browser, spoken to over the DevTools protocol through two pipes: no port, no driver, no package.

Messages are JSON with a NUL behind each. Whatever the page asks the network for, writes to the console, or throws is kept, so
that a test can say that there was nothing.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars --remote-debugging-pipe"""
PATIENCE = 60.0  # seconds after which a browser that does not answer is ended, and the test with it

KEYS = {
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowRight": 39,
}
LOADED = "document.readyState === 'complete'"


class Browser:
    """One browser with one page."""

    def __init__(self, requests: int, answers: int, on_silence: Callable[[], None]) -> None:
        self._requests, self._answers = requests, answers
        self._on_silence = on_silence
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.version: str = self.ask("Browser.getVersion")["product"]
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The browser's answer; what it reports meanwhile is kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._requests, data) :]
        while (answer := self._receive()).get("id") != self._number:
            self._keep(answer.get("method", ""), answer.get("params", {}))
        assert "error" not in answer, answer["error"]
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        timer = threading.Timer(PATIENCE, self._on_silence)
        timer.start()
        try:
            while b"\0" not in self._buffer:
                data = os.read(self._answers, 1 << 20)
                assert data, "the browser has gone"
                self._buffer += data
        finally:
            timer.cancel()
            timer.join()
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _keep(self, event: str, params: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])
        elif event == "Runtime.consoleAPICalled":
            self.complaints.append(str([each.get("value") for each in params["args"]]))
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"])[:500])
        elif event == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])

    # -- what a user does

    def open(self, path: Path) -> None:
        self.asked.clear()
        self.complaints.clear()
        # Away first: from a page to itself with another fragment, nothing would be loaded.
        self.ask("Page.navigate", url="about:blank")
        self.ask("Page.navigate", url=path.as_uri())
        self.wait(f"location.href === {json.dumps(path.as_uri())} && {LOADED}")

    def evaluate(self, expression: str) -> Any:
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str) -> None:
        """Until ``expression`` holds: the page looks once a frame, and the browser is ended when it never does."""
        self.evaluate(
            "new Promise((done) => { const look = () => "
            f"({expression}) ? done(true) : setTimeout(look, 5); look(); }})"
        )

    def press(self, key: str, modifiers: int = 0) -> None:
        code = KEYS.get(key, 0)
        text = {"Enter": "\r"}.get(key, "" if code else key)
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        self.ask("Input.insertText", text=text)

    def window(self, width: int, height: int = 900, scheme: str = "light") -> None:
        """A window of this size, of a phone where it is narrow, in a light or a dark world."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path, *, whole: bool = False) -> None:
        data = self.ask("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def running(program: str) -> Iterator[Browser]:
    """A browser with a profile of its own, for as long as the block lasts."""
    profile = tempfile.mkdtemp(prefix="browser-")
    (to_browser, requests), (answers, from_browser) = os.pipe(), os.pipe()
    # The protocol is spoken on the descriptors 3 and 4.
    shell = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
    process = subprocess.Popen(
        ["bash", "-c", shell, program, *FLAGS.split(), f"--user-data-dir={profile}"],
        pass_fds=(to_browser, from_browser),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(to_browser)
    os.close(from_browser)

    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    try:
        yield Browser(requests, answers, end)
    finally:
        end()
        process.wait()
        os.close(requests)
        os.close(answers)
        shutil.rmtree(profile, ignore_errors=True)
