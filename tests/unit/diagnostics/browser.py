"""Open pages in Debian's chromium, over the pipe of the DevTools protocol, and look at what it makes of them."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["CHROMIUM", "Browser", "opened_browser"]

CHROMIUM = shutil.which("chromium")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--remote-debugging-pipe", "--hide-scrollbars"),
)
_SECONDS = 120.0


class Browser:
    """A page of a chromium that runs without a window."""

    def __init__(self, writer: int, reader: int) -> None:
        self._writer, self._reader, self._received = writer, reader, b""
        self._number, self._session = 0, None
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol, and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        answer = self._wait(lambda received: received.get("id") == self._number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, page: Path, *, width: int, scheme: str) -> None:
        """Open a page in a window of a width, in a light or dark colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=page.absolute().as_uri())
        self._wait(lambda received: received.get("method") == "Page.loadEventFired")

    def evaluate(self, script: str) -> Any:
        """Return the value of a script's last expression."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"])
        return result["result"].get("value")

    def screenshot(self) -> bytes:
        """Return the whole page as a PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        return base64.b64decode(data)

    def close(self) -> None:
        """End the browser and all of its processes."""
        self._session = None
        self.call("Browser.close")

    def _wait(self, is_wanted: Any) -> Any:
        end = time.monotonic() + _SECONDS
        while True:
            while b"\0" not in self._received:
                ready = select.select([self._reader], [], [], max(0.0, end - time.monotonic()))[0]
                data = os.read(self._reader, 1 << 20) if ready else b""
                if not data:
                    raise TimeoutError("chromium does not answer")
                self._received += data
            line, _, self._received = self._received.partition(b"\0")
            received = json.loads(line)
            if received.get("method") in (
                "Log.entryAdded",
                "Runtime.consoleAPICalled",
                "Runtime.exceptionThrown",
            ):
                self.problems.append(json.dumps(received["params"]))
            if is_wanted(received):
                return received


@contextlib.contextmanager
def opened_browser(folder: Path) -> Iterator[Browser]:
    """Yield a browser whose files are in a folder, and end all of its processes after the block."""
    to_browser, from_browser = os.pipe(), os.pipe()

    ends = (to_browser[0], from_browser[1])
    place = f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}'  # chromium reads from descriptor 3 and writes to 4
    process = subprocess.Popen(
        ["bash", "-c", place, "bash", CHROMIUM, *_FLAGS, f"--user-data-dir={folder}", "about:blank"],
        pass_fds=ends,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
    )
    os.close(to_browser[0])
    os.close(from_browser[1])
    try:
        browser = Browser(to_browser[1], from_browser[0])
        yield browser
        browser.close()
        process.wait(_SECONDS)
    finally:
        process.kill()
        process.wait()
        os.close(to_browser[1])
        os.close(from_browser[0])
