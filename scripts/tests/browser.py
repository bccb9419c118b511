"""Opens a page in a real browser: Chromium without a window, told what to do over its debugging protocol."""

import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import requests
from websockets.sync.client import connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = "no chromium to open the page in; as root on Debian or Ubuntu `bash scripts/setup.sh --extras` installs it"
START_S = 120.0
FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"),
]
"""The second line keeps the browser from asking for hosts outside, which a closed network lets it wait for."""


class Page:
    """One tab.

    Attributes:
        said: what the page's script wrote to the console, and its errors.
    """

    def __init__(self, socket) -> None:
        self._socket, self._numbers, self.said = socket, itertools.count(), []

    def ask(self, method, **parameters):
        """Call a method of the protocol and return its result."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (answer := json.loads(self._socket.recv(START_S))).get("id") != number:
            self._note(answer)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def _note(self, event) -> None:
        if event["method"] == "Runtime.exceptionThrown":
            self.said.append(event["params"]["exceptionDetails"]["exception"]["description"])
        elif event["method"] == "Runtime.consoleAPICalled":
            self.said.append(str(event["params"]["args"]))
        elif event["method"] == "Log.entryAdded":
            self.said.append(event["params"]["entry"]["text"])

    def show(self, file: Path, view="", *, width=1280, height=900) -> None:
        """Open a file in a window of this many pixels; `view` is the hash of its address."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Page.navigate", url="about:blank")  # an address that differs in its hash alone would not load again
        self.ask("Page.navigate", url=f"file://{file}#{view}")
        deadline = time.monotonic() + START_S
        while self.run("document.readyState + location.protocol") != "completefile:":
            assert time.monotonic() < deadline, f"{file} is not there after {START_S:g} s"

    def run(self, script: str):
        """Return the value of a JavaScript expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def texts(self, selector: str) -> list[str]:
        """Return the text of every element that the selector finds, as a person sees it."""
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.innerText)")

    def photograph(self, file: Path) -> None:
        """Save a picture of the whole page, beyond the window too."""
        picture = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(picture["data"]))


@contextlib.contextmanager
def browser(profile: Path):
    """Start Chromium with a profile folder of its own; yields its one tab and ends it."""
    command = [str(CHROMIUM), *FLAGS, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
    log = profile.with_name(f"{profile.name}.log")
    with log.open("w") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        tab = _first_tab(profile / "DevToolsActivePort", process, log)
        with connect(tab, max_size=None) as socket:
            page = Page(socket)
            for domain in ("Page", "Runtime", "Log"):
                page.ask(f"{domain}.enable")
            yield page
    finally:
        process.terminate()
        process.wait(30)


def _first_tab(port_file: Path, process: subprocess.Popen, log: Path) -> str:
    deadline, error = time.monotonic() + START_S, None
    while time.monotonic() < deadline and process.poll() is None:
        try:
            port = int(port_file.read_text().splitlines()[0])
            tabs = requests.get(f"http://127.0.0.1:{port}/json", timeout=5).json()
            return next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        except (OSError, ValueError, StopIteration, IndexError, requests.RequestException) as not_yet:
            error = not_yet
        time.sleep(0.1)
    pytest.fail(f"{CHROMIUM} does not start ({process.poll()}, {error!r}): {log.read_text()[-2000:]}")
