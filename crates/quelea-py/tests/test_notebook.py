"""A notebook, run by Jupyter's own kernel and drawn by its own exporter, in a real browser."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

#: Longer than anything here takes on a machine that is busy with other things.
LIMIT_SECONDS = 180

SIMULATED = """
import torch, quelea
dataset = [(x.view(1), 3 * x.view(1)) for x in torch.linspace(-1, 1, 64)]
def loss(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()
config = {"workers": 4, "steps": 20, "algorithm": {"name": "d-psgd"}, "cluster": {"compute_ms": 10.0}}
summary = quelea.simulate(lambda: torch.nn.Linear(1, 1), loss, dataset, config, out="first")
summary
"""


class Browser:
    """Headless Chromium, driven through chromedriver. It reaches nothing but this machine."""

    def __init__(self):
        words = ["chromedriver", "--port=0"]
        self.driver = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        said = next(line for line in self.driver.stdout if "started successfully on port" in line)
        port = said.rsplit(" ", 1)[1].strip().rstrip(".")
        # The pipe must not fill up.
        threading.Thread(target=self.driver.stdout.read, daemon=True).start()
        self.url = f"http://127.0.0.1:{port}/session"
        options = {
            "args": [
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            ]
        }
        wanted = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}
        self.url += "/" + self.ask("", {"capabilities": wanted})["sessionId"]

    def ask(self, path: str, body: dict):
        """What the driver answers to a command."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=LIMIT_SECONDS) as answer:
            return json.load(answer)["value"]

    def wait_for(self, script: str):
        """What a script returns, once that is something."""
        until = time.monotonic() + LIMIT_SECONDS
        while True:
            found = self.ask("/execute/sync", {"script": script, "args": []})
            if found:
                return found
            assert time.monotonic() < until, script
            time.sleep(0.05)

    def close(self) -> None:
        """Ends it."""
        with contextlib.suppress(OSError):
            urllib.request.urlopen(urllib.request.Request(self.url, method="DELETE"), timeout=10)
        self.driver.kill()
        self.driver.wait()


@contextlib.contextmanager
def served(folder):
    """The files of a folder on loopback, where notebooks are."""
    handler = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *words: handler(*words, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def jupyter(monkeypatch):
    """Jupyter's packages, for this process and the kernels that it starts."""
    beside = os.environ.get("QUELEA_JUPYTER_PATH")
    if beside is None:
        pytest.skip("`cargo xtask python` provides Jupyter")
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("chromium and chromedriver are not here (packages chromium, chromium-driver)")
    monkeypatch.setattr(sys, "path", [*sys.path, beside])
    paths = [path for path in (os.environ.get("PYTHONPATH"), beside) if path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("JUPYTER_PATH", os.path.join(beside, "share", "jupyter"))


def test_jupyter_shows_a_summary_and_the_page_of_its_run_in_the_cells(tmp_path, jupyter):
    import nbclient
    import nbconvert
    import nbformat

    cells = [nbformat.v4.new_code_cell(source) for source in (SIMULATED, "summary.show(height=600)")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    where = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(
        notebook, timeout=LIMIT_SECONDS, kernel_name="python3", resources=where
    )
    # The page is served by the kernel, which must live while it is looked at.
    with client.setup_kernel(), served(tmp_path) as address:
        for number, cell in enumerate(notebook.cells):
            client.execute_cell(cell, number)
        drawn, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
        (tmp_path / "notebook.html").write_text(drawn)
        summary = json.loads((tmp_path / "first" / "summary.json").read_text())
        browser = Browser()
        try:
            browser.ask("/url", {"url": f"{address}/notebook.html"})
            cell = browser.wait_for("return document.querySelector('table').textContent")
            assert f"{summary['loss']:.6g}" in cell
            plots = browser.wait_for(
                "const all = [...document.images].filter((one) => one.alt === 'plot');"
                "return all.length > 0 && all.every((one) => one.naturalWidth > 0) && all.length"
            )
            assert plots >= 2
            # A browser draws what is in sight.
            browser.wait_for("document.querySelector('iframe').scrollIntoView(); return true")
            frame = browser.ask("/element", {"using": "css selector", "value": "iframe"})
            browser.ask("/frame", {"id": frame})
            loss = browser.wait_for(
                "const shown = document.querySelector('#figures [data-term=loss]');"
                "return shown && shown.dataset.value"
            )
            assert float(loss) == summary["loss"]
            rows = browser.wait_for("return document.querySelectorAll('#ranks tbody tr').length")
            assert rows == 4
        finally:
            browser.close()
