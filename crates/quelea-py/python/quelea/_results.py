"""What runs leave behind, as Python programs and notebooks use it: summaries and records."""

from __future__ import annotations

import base64
import html
import json
from pathlib import Path
from typing import Any

from quelea import _pages
from quelea._core import Error
from quelea._pages import PageFrame

#: What a summary shows of itself: a name, the key, and what the number is of.
_FIGURES = (
    ("loss", "loss", ""),
    ("accuracy", "accuracy", ""),
    ("consensus distance", "consensus_distance", ""),
    ("clock", "clock_seconds", " s"),
    ("steps of all workers", "steps", ""),
    ("samples", "samples", ""),
    ("samples per second", "samples_per_second", ""),
    ("speed-up", "speedup", ""),
)
#: The plots that are shown beside it.
_PLOTS = ("loss", "accuracy", "time")


class Summary(dict[str, Any]):
    """The summary of a run: a dictionary, which a notebook shows as a table with the plots."""

    #: The run, if its files are there.
    run: RecordedRun | None
    #: Its plots, as SVG.
    plots: list[str]

    def __init__(self, folder: Path, keep: bool = True):
        super().__init__(json.loads((folder / "summary.json").read_text()))
        self.run = RecordedRun(folder, self) if keep else None
        drawn = (folder / "plots" / f"{name}.svg" for name in _PLOTS)
        self.plots = [plot.read_text() for plot in drawn if plot.exists()]

    def show(self, height: int = 720) -> PageFrame:
        """The page of the run inside a notebook, with a time slider."""
        return self._kept().show(height)

    def records(self, kind: str | None = "step") -> dict[str, list[Any]]:
        """The records of the run: see `RecordedRun.records`."""
        return self._kept().records(kind)

    def _kept(self) -> RecordedRun:
        if self.run is None:
            raise Error('the files of this run were not kept: give simulate(…, out="runs/first")')
        return self.run

    def _repr_html_(self) -> str:
        config = self["config"]
        title = f"{config['algorithm']['name']}, {config['workers']} workers"
        rows = [
            (name, f"{self[key]:.6g}{unit}")
            for name, key, unit in _FIGURES
            if self.get(key) is not None
        ]
        rows.append(("sent", f"{self['total']['bytes_sent'] / 1e6:.3f} MB"))
        if self.run is not None:
            rows.append(("files", str(self.run.path)))
        cells = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:right'>{html.escape(value)}</td></tr>"
            for name, value in rows
        )
        warnings = "".join(f"<li>{html.escape(text)}</li>" for text in self["warnings"])
        # As pictures: scripts and names of one plot do not meet those of another, or of the notebook.
        pictures = "".join(
            f'<img alt="plot" style="max-width:30em" '
            f'src="data:image/svg+xml;base64,{base64.b64encode(plot.encode()).decode()}">'
            for plot in self.plots
        )
        return f"<b>{html.escape(title)}</b><table>{cells}</table><ul>{warnings}</ul>{pictures}"


class RecordedRun:
    """A run on the disk, finished or under way."""

    def __init__(self, path: Path, summary: Summary | None):
        #: Its folder.
        self.path = path
        #: Its summary; None as long as there is none, and for scripts, which write none.
        self.summary = summary

    def records(self, kind: str | None = "step") -> dict[str, list[Any]]:
        """The records of one kind, or with None of all, by column, as pandas and polars take them.

        ``pandas.DataFrame(run.records())``, ``polars.DataFrame(run.records("evaluation"))``. The kinds
        and their columns are in docs/records.md; what is not a finite number is None.
        """
        with open(self.path / "records.jsonl") as lines:
            # The last line of a run that is under way may not be whole.
            whole = (json.loads(line) for line in lines if line.endswith("\n"))
            kept = [record for record in whole if kind is None or record["kind"] == kind]
        names = dict.fromkeys(name for record in kept for name in record)
        return {name: [record.get(name) for record in kept] for name in names}

    def show(self, height: int = 720) -> PageFrame:
        """The page of the run inside a notebook, with a time slider."""
        return _pages.of_folder(self.path).show(height)

    def __repr__(self) -> str:
        return f"the run in {self.path}"

    def _repr_html_(self) -> str:
        if self.summary is not None:
            return self.summary._repr_html_()
        return f"<p>{html.escape(repr(self))}: it has no summary</p>"


def open_run(path: str | Path) -> RecordedRun:
    """A run that `simulate`, ``quelea train`` or a script with ``init(records=…)`` has left in a folder.

    >>> import quelea, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> import torch
    >>> dataset = [(torch.ones(1), torch.ones(1))] * 8
    >>> def loss(model, batch):
    ...     return (model(batch[0]) - batch[1]).square().mean()
    >>> config = {"workers": 2, "steps": 3, "algorithm": {"name": "allreduce"}}
    >>> make = lambda: torch.nn.Linear(1, 1)
    >>> _ = quelea.simulate(make, loss, dataset, config, out=folder + "/first")
    >>> run = quelea.open_run(folder + "/first")
    >>> run.records()["step"]
    [0, 0, 1, 1, 2, 2]
    """
    path = Path(path)
    if (path / "summary.json").exists():
        run = Summary(path).run
        assert run is not None
        return run
    if not (path / "records.jsonl").exists():
        raise Error(f"{path} holds no run: neither summary.json nor records.jsonl is there")
    return RecordedRun(path, None)
