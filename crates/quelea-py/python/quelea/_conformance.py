"""The suite that the built-in algorithms pass, for classes in Python."""

from __future__ import annotations

from quelea import _core
from quelea._algorithm import Algorithm, name_of, register
from quelea._core import Error, conformance_properties


def conformance(algorithm: type[Algorithm], *properties: str) -> None:
    """Checks a class of an algorithm as the built-in ones are checked; raises what does not hold.

    It is trained in the virtual cluster, on threads, over TCP and through shared memory: the same bits
    everywhere if it is synchronous, convergence, the bytes and times that follow from `topology`, `vectors`
    and `awaits`, lost workers, checkpoints. Without `properties` all of `conformance_properties()` are
    checked, which takes a minute or two; as tests of pytest::

        @pytest.mark.parametrize("name", quelea.conformance_properties())
        def test_mine(name):
            quelea.conformance(Mine, name)
    """
    register(algorithm)
    missing = []
    for name in properties or conformance_properties():
        try:
            problem = _core.conformance(name_of(algorithm), name)
        except Error as error:
            problem = str(error)
        if problem is not None:
            missing.append(f"{name}: {problem}")
    if missing:
        raise Error(f"{algorithm.__name__}: " + "\n".join(missing))
