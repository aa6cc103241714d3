"""Runs that are looked at: the page of a script, live and in a notebook, records as columns."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request

import pytest
import torch
from group import launch

import quelea
import quelea.torch as qt

#: Longer than anything here takes on a machine that is busy with other things.
LIMIT_SECONDS = 180


def ask(url: str, path: str) -> dict:
    with urllib.request.urlopen(url + path, timeout=LIMIT_SECONDS) as answer:
        return json.load(answer)


def wait_for(url: str, is_so) -> dict:
    """The state of the run, once it is as wanted."""
    until = time.monotonic() + LIMIT_SECONDS
    while True:
        state = ask(url, "api/state")
        if is_so(state):
            return state
        assert time.monotonic() < until, state
        time.sleep(0.05)


#: Trains until the file `enough` is beside it.
SCRIPT = """
import pathlib, torch
import quelea.torch as quelea

quelea.init()
model = torch.nn.Linear(30, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
quelea.wrap(model, optimizer, "d-psgd", topology="ring")
enough = pathlib.Path(__file__).with_name("enough")
done = 0
while not done:
    loss = model(torch.randn(16, 30)).square().mean()
    quelea.report_loss(loss)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    done = torch.tensor([float(enough.exists())])
    done = quelea.allreduce(done, average=False).item()
"""


def started(tmp_path, *words: str) -> tuple[subprocess.Popen, str]:
    """A launched script, and where its page is."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    command = [*words, "-n", "3", "--page", "127.0.0.1:0"]
    command += ["--records", str(tmp_path / "kept"), str(path)]
    # Shared memory has no round trips.
    env = dict(os.environ, QUELEA_TRANSPORT="tcp")
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
    said = ""
    for line in process.stderr:
        said += line
        found = re.search(r"the page is at (http://\S+/)", line)
        if found:
            return process, found[1]
    raise AssertionError(said)


#: `quelea launch` of the command line, where it was built, and the module that it calls.
LAUNCHERS = [[sys.executable, "-m", "quelea.launch"]]
if "QUELEA_PROGRAM" in os.environ:
    LAUNCHERS.append([os.environ["QUELEA_PROGRAM"], "launch", "--python", sys.executable])


@pytest.mark.parametrize("words", LAUNCHERS, ids=lambda words: os.path.basename(words[0]))
def test_a_launched_script_is_shown_while_it_trains_and_its_end(tmp_path, words):
    process, url = started(tmp_path, *words)
    try:
        state = wait_for(url, lambda state: state["progress"]["steps"] > 30 and state["links"])
        assert [rank["state"] for rank in state["ranks"]].count("lost") == 0
        assert len(state["ranks"]) == 3
        about = ask(url, "api/run")
        assert (about["algorithm"], about["topology"]["name"]) == ("d-psgd", "ring")
        # A ring of three is one group, in which each sends to the next.
        state = wait_for(url, lambda state: {link["from"] for link in state["links"]} == {0, 1, 2})
        trips = [link["round_trip"] for link in state["links"]]
        assert all(0 < trip < 60 for trip in trips), trips
        for rank in state["ranks"]:
            assert rank["resident_bytes"] > 50e6, "PyTorch alone is larger"
            assert rank["gpu_bytes"] is None
            assert rank["batch"] == 16, "what the model was called with"
            assert 0 < rank["loss"] < 10
        progress = state["progress"]
        assert progress["samples"] == 16 * progress["steps"]
        assert progress["samples_per_second"] > 0 and 0 < progress["goodput"] <= 1
        assert state["advice"]["predicted_samples_per_second"] > 0
        (tmp_path / "enough").touch()
        wait_for(url, lambda state: state["phase"] == "ended")
        assert process.wait(LIMIT_SECONDS) == 0
    finally:
        process.kill()
    run = quelea.open_run(tmp_path / "kept")
    steps = run.records()
    assert set(steps["rank"]) == {0, 1, 2} and set(steps["samples"]) == {16}
    assert "it has no summary" in run._repr_html_()
    assert set(run.records("account")) >= {"links", "resident_bytes", "gpu_bytes"}


def train(rank: int, steps: int) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    qt.wrap(model, optimizer)
    for _ in range(steps):
        loss = model(torch.ones(4, 3)).square().mean()
        qt.report_loss(loss, samples=7)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    qt.shutdown()


def shown(rank: int) -> list:
    qt.init(page="127.0.0.1:0")
    if rank != 0:
        train(rank, 5)
        train(rank, 8)
        return [qt.page()]
    url = qt.page().url
    found = []
    for steps in (5, 8):
        train(rank, steps)
        state = ask(url, "api/state")
        found.append((state["run"], state["phase"], state["progress"]["steps"]))
        assert state["progress"]["samples"] == 7 * state["progress"]["steps"]
    page = qt.page()
    assert f'<iframe src="{url}"' in page._repr_html_()
    found.append(page._repr_html_() == page.show()._repr_html_())
    return found


def test_the_runs_of_a_process_follow_each_other_on_its_page():
    first, second = launch(2, shown)
    assert first == [
        ("run 1 of this process", "ended", 10),
        ("run 2 of this process", "ended", 16),
        True,
    ]
    assert second == [None], "rank 0 has the page"


def test_an_address_that_is_taken_or_open_to_others_is_refused(monkeypatch):
    with pytest.raises(quelea.Error, match="QUELEA_PAGE_TOKEN"):
        quelea._pages.RunPage("0.0.0.0:0")
    monkeypatch.setenv("QUELEA_PAGE_TOKEN", "a-token-of-enough-characters")
    with pytest.raises(quelea.Error, match="QUELEA_PAGE_INSECURE=1"):
        quelea._pages.RunPage("0.0.0.0:0")
    monkeypatch.setenv("QUELEA_PAGE_INSECURE", "1")
    quelea._pages.RunPage("0.0.0.0:0").close()
    monkeypatch.delenv("QUELEA_PAGE_TOKEN")
    page = quelea._pages.RunPage("127.0.0.1:0")
    with pytest.raises(quelea.Error, match="cannot listen on 127.0.0.1"):
        quelea._pages.RunPage(page.url.removeprefix("http://").removesuffix("/"))
    page.close()


def simulated(out=None, **words):
    dataset = [(x.view(1), 3 * x.view(1)) for x in torch.linspace(-1, 1, 64)]

    def loss(model, batch):
        return (model(batch[0]) - batch[1]).square().mean()

    config = {
        "workers": 4,
        "steps": 20,
        "optimizer": {"lr": 0.1},
        "algorithm": {"name": "d-psgd"},
        "cluster": {"compute_ms": 10.0},
    }
    return quelea.simulate(lambda: torch.nn.Linear(1, 1), loss, dataset, config, out=out, **words)


def test_a_simulation_shows_itself_in_a_notebook(tmp_path):
    summary = simulated(tmp_path / "first")
    assert summary == json.loads((tmp_path / "first" / "summary.json").read_text())
    html = summary._repr_html_()
    assert "d-psgd, 4 workers" in html and f"{summary['loss']:.6g}" in html
    assert html.count("data:image/svg+xml;base64,") == len(summary.plots) > 0
    assert "<script" not in html
    frame = summary.show(height=500)
    url = frame.page.url
    assert f'<iframe src="{url}"' in frame._repr_html_() and "height:500px" in frame._repr_html_()
    state = ask(url, "api/state")
    assert state["progress"]["loss"] == summary["loss"]
    assert quelea.open_run(tmp_path / "first").show().page is frame.page, "one page for a folder"
    with urllib.request.urlopen(url) as answer:
        policy = answer.headers["content-security-policy"]
    assert "frame-ancestors http://localhost:* http://127.0.0.1:*" in policy
    assert "default-src 'none'; script-src 'self'" in policy
    many = quelea._pages.of_folder(tmp_path)
    assert [run["name"] for run in ask(many.url, "api/runs")["runs"]] == ["first"]


def test_a_simulation_is_shown_while_it_lasts():
    page = quelea._pages.RunPage()
    seen = []

    def look(rank, step, loss):
        if (rank, step) == (0, 10):
            seen.append(ask(page.url, "api/state"))

    summary = simulated(page=page, watch=look)
    (during,) = seen
    assert during["phase"] == "running" and 0 < during["progress"]["steps"] < 80
    after = ask(page.url, "api/state")
    assert after["phase"] == "ended" and after["progress"]["steps"] == summary["steps"] == 80
    assert after["progress"]["loss"] == summary["loss"]
    page.close()
    with pytest.raises(quelea.Error, match="were not kept"):
        summary.show()


def test_records_are_columns_that_pandas_and_polars_take_in_one_line(tmp_path):
    summary = simulated(tmp_path / "first")
    lines = (tmp_path / "first" / "records.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    steps = [record for record in records if record["kind"] == "step"]
    columns = summary.records()
    assert {len(column) for column in columns.values()} == {len(steps)} == {80}
    assert columns["loss"] == [record["loss"] for record in steps]
    every = quelea.open_run(tmp_path / "first").records(None)
    assert len(every["t"]) == len(records) and every["samples"].count(None) == len(records) - 80
    beside = os.environ.get("QUELEA_TABLES_PATH")
    if beside is None:
        pytest.skip("`cargo xtask python` provides pandas and polars")
    sys.path.append(beside)
    import pandas
    import polars

    table = pandas.DataFrame(summary.records())
    assert table.groupby("rank").size().to_dict() == {0: 20, 1: 20, 2: 20, 3: 20}
    mean = sum(record["compute"] for record in steps) / len(steps)
    assert abs(table["compute"].mean() - mean) < 1e-12
    assert pandas.DataFrame(summary.records("evaluation"))["loss"].iloc[-1] == summary["loss"]
    table = polars.DataFrame(summary.records())
    assert table.height == 80 and abs(table["compute"].mean() - mean) < 1e-12
    assert polars.DataFrame(summary.records("evaluation"))["loss"][-1] == summary["loss"]
    # Columns of several kinds have gaps, and links are lists of tables.
    assert polars.DataFrame(summary.records(None))["samples"].null_count() == len(records) - 80
