"""Renews the diffs against DDP in docs/python.md: `python examples/python/diffs.py`."""

import difflib
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs/python.md"
#: A block of the page: a mark that names the example, and the diff.
BLOCK = re.compile(r"(<!-- diff of (\w+)\.py -->\n)```diff\n.*?```\n", re.DOTALL)


def code(path: Path) -> list[str]:
    """The lines below the module's docstring."""
    return path.read_text().split('"""', 2)[2].splitlines()


def diff(name: str) -> str:
    """What changes from `ddp_NAME.py` to `NAME.py`, without what stays."""
    before, after = code(HERE / f"ddp_{name}.py"), code(HERE / f"{name}.py")
    lines = list(difflib.unified_diff(before, after, lineterm="", n=0))[2:]
    shown = [" …" if line.startswith("@@") else line for line in lines]
    return "\n".join(line for line in shown[1:] if line not in ("+", "-")) + "\n"


def renewed(page: str) -> str:
    return BLOCK.sub(lambda found: f"{found[1]}```diff\n{diff(found[2])}```\n", page)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
