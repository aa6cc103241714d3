"""Checks that packages (`NAME` or `NAME>=VERSION`) are installed; after `import`, that they load."""

import importlib
import importlib.metadata
import sys


def number(version: str) -> tuple:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])


assert sys.version_info >= (3, 10), "Python 3.10 or later is needed"
said = ["Python %d.%d.%d" % sys.version_info[:3]]
load, *words = sys.argv[1:]
for word in words:
    name, _, least = word.partition(">=")
    version = importlib.metadata.version(name)
    assert not least or number(version) >= number(least), f"{name} {version} is older than {least}"
    if load == "import":
        importlib.import_module(name)
    said.append(f"{name} {version}")
print(", ".join(said))
