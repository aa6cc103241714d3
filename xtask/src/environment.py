"""Checks that packages (`NAME`, `NAME>=VERSION`, `NAME==VERSION` or `NAME<VERSION`) are installed; after `import`, that
they load."""

import importlib
import importlib.metadata
import operator
import re
import sys

MEANINGS = {">=": operator.ge, "==": operator.eq, "<": operator.lt}


def number(version: str, parts: int) -> tuple:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:parts])


assert sys.version_info >= (3, 10), "Python 3.10 or later is needed"
said = ["Python %d.%d.%d" % sys.version_info[:3]]
load, *words = sys.argv[1:]
for word in words:
    name, sign, given = re.fullmatch(r"([^<>=]+)(>=|==|<)?(.*)", word).groups()
    version = importlib.metadata.version(name)
    parts = given.count(".") + 1
    holds = not sign or MEANINGS[sign](number(version, parts), number(given, parts))
    assert holds, f"{name} {version} is not {sign}{given}"
    if load == "import":
        importlib.import_module(name)
    said.append(f"{name} {version}")
print(", ".join(said))
