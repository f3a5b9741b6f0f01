"""A headless Chromium, controlled over a pipe with the DevTools protocol.

It needs no driver, port or package. The browser is the environment variable CHROMIUM, or one on
PATH; tests are skipped if there is none.
"""

import base64
import itertools
import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

_NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "chrome-headless-shell",
)
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--force-color-profile=srgb",
)


def find_chromium() -> str | None:
    """Path of a browser, or None."""
    return os.environ.get("CHROMIUM") or next(
        (path for name in _NAMES if (path := shutil.which(name))), None
    )


@dataclass
class Visit:
    """Events while a page was opened.

    requests: all URLs, the page first. said: lines of the console and the log.
    """

    requests: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    picture: bytes = b""


class Chromium:
    """One browser process; a context manager."""

    def __init__(self, executable: str, profile: Path) -> None:
        root = ["--no-sandbox"] if os.getuid() == 0 else []
        # The browser reads commands from descriptor 3 and writes answers to 4.
        self._process = subprocess.Popen(
            [
                "sh",
                "-c",
                'exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null',
                executable,
                *_FLAGS,
                *root,
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._out, self._in = self._process.stdin, self._process.stdout
        self._ids = itertools.count(1)
        self._unread = b""
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._call("Browser.close")
        finally:
            self._process.wait(30)
            self._out.close()
            self._in.close()

    def visit(self, url: str, *, width: int, dark: bool, questions: dict[str, str]) -> Visit:
        """Open a page in a window of this width.

        questions: JavaScript expressions by name, for `answers`.
        """
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{domain}.enable", session)
        self._call(
            "Emulation.setDeviceMetricsOverride",
            session,
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", session, features=[scheme])
        self._events.clear()
        self._call("Page.navigate", session, url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._events.append(self._read())
        visited = Visit()
        for name, expression in questions.items():
            result = self._call(
                "Runtime.evaluate", session, expression=expression, returnByValue=True
            )
            assert "exceptionDetails" not in result, result
            visited.answers[name] = result["result"].get("value")
        shot = self._call(
            "Page.captureScreenshot", session, format="png", captureBeyondViewport=True
        )
        visited.picture = base64.b64decode(shot["data"])
        for event in self._events:
            self._note(event, visited)
        self._call("Target.closeTarget", targetId=target)
        return visited

    @staticmethod
    def _note(event: dict[str, Any], seen: Visit) -> None:
        params = event["params"]
        if event["method"] == "Network.requestWillBeSent":
            seen.requests.append(params["request"]["url"])
        elif event["method"] == "Runtime.consoleAPICalled":
            seen.said.append(f"{params['type']}: {params['args']}")
        elif event["method"] == "Runtime.exceptionThrown":
            seen.said.append(str(params["exceptionDetails"]))
        elif event["method"] == "Log.entryAdded":
            seen.said.append(f"{params['entry']['level']}: {params['entry']['text']}")

    def _call(self, method: str, session: str | None = None, **arguments: Any) -> dict[str, Any]:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": arguments} | (
            {"sessionId": session} if session else {}
        )
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            if "method" in answer:
                self._events.append(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            more = self._in.read(1 << 16)
            assert more, "the browser ended"
            self._unread += more
        message, self._unread = self._unread.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(message)
        return answer
