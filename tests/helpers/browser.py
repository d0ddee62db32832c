"""A Chromium without a window that opens pages of a test, driven over a pipe by its debugging protocol."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
_FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"]


class Browser:
    """One page of a browser; use it in a `with` statement."""

    def __enter__(self):
        """Start it; the test is skipped where there is no Chromium."""
        if CHROMIUM is None:
            pytest.skip("no chromium is installed, in which the page could be looked at")
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (theirs_in, self.out), (self.into, theirs_out) = os.pipe(), os.pipe()
        redirected = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self.process = subprocess.Popen(
            ["bash", "-c", redirected, CHROMIUM, *_FLAGS, f"--user-data-dir={self.profile.name}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.replies = os.fdopen(self.into, "rb")
        self.numbers, self.session, self.unread = itertools.count(1), None, b""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._ask("Page.enable")
        return self

    def __exit__(self, *_):
        """End it."""
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        self.replies.close()
        self.profile.cleanup()

    def open(self, page: str | Path, *, width=1280, height=900, dark=False):
        """Open a file or an address in a window of that size, and wait until it is loaded."""
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])
        self._ask("Page.navigate", url=page.as_uri() if isinstance(page, Path) else page)
        self._until(lambda message: message.get("method") == "Page.loadEventFired")

    def run(self, script: str):
        """Run JavaScript; return the value of its last expression."""
        reply = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def press(self, key: str, code: int):
        """Press a key on the element that has the focus."""
        for kind in ("rawKeyDown", "keyUp"):
            self._ask("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)

    def photograph(self, path: Path):
        """Write a picture of the window."""
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot")["data"]))

    def _ask(self, method, **parameters):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.out, json.dumps(message).encode() + b"\0")
        reply = self._until(lambda found: found.get("id") == number)
        assert "error" not in reply, reply
        return reply["result"]

    def _until(self, wanted):
        while True:
            while b"\0" not in self.unread:
                piece = self.replies.read1(1 << 20)
                assert piece, "the browser ended"
                self.unread += piece
            text, _, self.unread = self.unread.partition(b"\0")
            if wanted(message := json.loads(text)):
                return message
