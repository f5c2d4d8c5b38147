"""A headless Chromium that tests click in, by its own protocol: no package but websocket-client."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
NO_BROWSER = f"no browser: none of {', '.join(NAMES)} is on the PATH"


class Tab:
    """One page of the browser."""

    def __init__(self, address: str) -> None:
        import websocket  # jupyter-server brings it

        self._socket = websocket.create_connection(address, timeout=300, suppress_origin=True)
        self._number = 0
        self.send("Page.enable")
        self.send("Runtime.enable")

    def send(self, method: str, **values: Any) -> dict[str, Any]:
        """One command; returns its result, AssertionError if the browser refuses it."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": values}))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def open(self, url: str) -> None:
        """Go to a page."""
        self.send("Page.navigate", url=url)

    def value(self, script: str) -> Any:
        """What an expression comes to, a promise once it is kept."""
        told = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def wait(self, script: str, *, seconds: float, what: str) -> Any:
        """Ask again and again until an expression is true; AssertionError naming `what` if late."""
        last = time.monotonic() + seconds
        while time.monotonic() < last:
            with contextlib.suppress(AssertionError):  # a page that is just being replaced
                if found := self.value(script):
                    return found
            time.sleep(0.5)
        self.picture("late")
        raise AssertionError(f"{what}: not within {seconds:g} s")

    def click(self, script: str) -> None:
        """Press the mouse in the middle of the element that an expression finds."""
        place = self.value(
            f"(() => {{ const e = {script}; e.scrollIntoView({{block: 'nearest'}}); "
            "const b = e.getBoundingClientRect(); "
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        self.drag(place, place)

    def drag(self, start: list[float], end: list[float]) -> None:
        """Move the mouse from one point to another with its button down."""
        held = {"button": "left", "clickCount": 1}
        moved = {"type": "mouseMoved"}
        self.send("Input.dispatchMouseEvent", **moved, x=start[0], y=start[1])
        self.send("Input.dispatchMouseEvent", type="mousePressed", x=start[0], y=start[1], **held)
        self.send("Input.dispatchMouseEvent", **moved, x=end[0], y=end[1], button="left")
        self.send("Input.dispatchMouseEvent", type="mouseReleased", x=end[0], y=end[1], **held)

    def key(self, key: str, code: str, number: int, *, ctrl: bool = False) -> None:
        """Press one key where the focus is, for instance ("ArrowRight", "ArrowRight", 39)."""
        pressed = {"key": key, "code": code, "windowsVirtualKeyCode": number}
        pressed["modifiers"] = 2 if ctrl else 0
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, **pressed)

    def resize(self, width: int, height: int) -> None:
        """Give the page a window of so many CSS pixels; a narrow one is a phone's."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        self.send("Emulation.setDeviceMetricsOverride", **size, mobile=width < 500)

    def prefer(self, scheme: str) -> None:
        """Have the system ask for "light" or "dark"."""
        wish = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[wish])

    def picture(self, name: str) -> None:
        """Keep a screenshot in the folder TURNCREDIT_SCREENSHOTS, if that is set."""
        folder = os.environ.get("TURNCREDIT_SCREENSHOTS")
        if folder:
            data = self.send("Page.captureScreenshot", format="png")["data"]
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / f"{name}.png").write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def browsing(folder: Path, *, width: int = 1200, height: int = 900) -> Iterator[Tab]:
    """A browser with a profile of its own below `folder`; ended with the block."""
    profile = folder / "profile"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    options += [f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank"]
    process = subprocess.Popen(
        [BROWSER, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield Tab(_address(profile / "DevToolsActivePort", process))
    finally:
        process.terminate()
        process.wait(timeout=60)


def _address(file: Path, process: subprocess.Popen) -> str:
    """Where the browser's first tab listens, once it does."""
    last = time.monotonic() + 120
    while time.monotonic() < last:
        assert process.poll() is None, "the browser has ended"
        with contextlib.suppress(OSError, IndexError, ValueError, StopIteration):
            port = int(file.read_text().split()[0])
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=10) as answer:
                tabs = json.load(answer)
            return next(tab for tab in tabs if tab["type"] == "page")["webSocketDebuggerUrl"]
        time.sleep(0.2)
    raise AssertionError("the browser does not answer")
