"""Pages that this process serves, in a browser or inside a notebook: of the run that it trains, and of
runs on the disk."""

from __future__ import annotations

import atexit
import html
import os
import sys
from pathlib import Path

from quelea import _core

#: The page of the runs that this process trains, at rank 0.
live: RunPage | None = None
#: The folder to which rank 0 writes what is measured.
records: Path | None = None
#: Pages of folders, which stay as long as the process: a notebook shows them after the cell has run.
_opened: dict[Path, RunPage] = {}


class PageFrame:
    """A page as a notebook shows it: inside the cell's output."""

    def __init__(self, page: RunPage, height: int):
        self.page, self.height = page, height

    def __repr__(self) -> str:
        return f"the page is at {self.page.url}"

    def _repr_html_(self) -> str:
        url = html.escape(self.page.url, quote=True)
        link = f'<p><a href="{url}" target="_blank" rel="noopener">{url}</a></p>'
        if self.page.has_token:
            # The browser does not send the cookie of a page inside another one.
            return f"{link}<p>The page has a token: open it in a tab.</p>"
        style = f"border:0;width:100%;height:{self.height}px"
        return f'<iframe src="{url}" title="quelea" style="{style}"></iframe>{link}'


class RunPage:
    """A page that this process serves until it ends or `close` is called."""

    def __init__(self, address: str = "127.0.0.1:0", run: str | Path | None = None):
        self.served = _core.Page(address, None if run is None else str(run))

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        return f"http://{self.served.address}/"

    @property
    def has_token(self) -> bool:
        """Whether only those see it who have the token in ``QUELEA_PAGE_TOKEN``."""
        return self.served.has_token

    def show(self, height: int = 720) -> PageFrame:
        """The page inside a notebook, as the last value of a cell."""
        return PageFrame(self, int(height))

    def close(self) -> None:
        """Ends the page, after a browser that looks at it has seen the end of the run."""
        self.served.close()

    def __repr__(self) -> str:
        return f"the page is at {self.url}"

    def _repr_html_(self) -> str:
        return self.show()._repr_html_()


def of_folder(path: Path) -> RunPage:
    """The page of a run on the disk, or of a folder of runs, at a free port of this machine."""
    path = path.resolve()
    if path not in _opened:
        _opened[path] = RunPage(run=path)
    return _opened[path]


def begin(rank: int, page: str | None, folder: str | Path | None) -> None:
    """Opens what the script or its launcher asked for, at rank 0."""
    global live, records
    page = page or os.environ.get("QUELEA_PAGE")
    folder = folder or os.environ.get("QUELEA_RECORDS")
    if rank != 0:
        return
    records = Path(folder) if folder else None
    if page:
        live = RunPage(page)
        print(f"quelea: the page is at {live.url}", file=sys.stderr, flush=True)
        # What is registered first is called last: after the run has ended.
        atexit.register(live.close)
