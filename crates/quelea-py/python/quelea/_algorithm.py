"""Algorithms in Python: the base class, and how classes are registered."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from quelea import _core
from quelea._core import Context, Error, Message
from quelea._views import KINDS


class Algorithm:
    """One worker of a distributed training algorithm, as a state machine.

    A subclass defines events. Each is called with `cx`, through which it sees its vectors and sends
    messages; the same object runs in `simulate` and in `wrap`. Attributes of the class say what drivers
    need to know::

        class Mine(quelea.Algorithm):
            \"\"\"Averages the model with the neighbours of the topology.\"\"\"
            topology = "mixing"              # who mixes with whom is cx.incoming() and cx.outgoing()
            options = {"period": 4}          # self.period; in run files, in Mine(period=8)

    `cx.params[b]` and `cx.grad[b]` are tensors over the rank's own memory. They are the algorithm's from
    `on_bucket(cx, b)` until `is_ready` returns True, and no view of them may be kept after an event:
    keep a clone. Tensors of a message are the message's own.
    """

    #: The name in run files; without one, that of the class in lower case with hyphens.
    name: ClassVar[str] = ""
    #: Where it was published.
    paper: ClassVar[str] = ""
    #: Options with their defaults, which decide their types: 4, 0.5, True, "", ["first", "second"], [].
    options: ClassVar[dict[str, Any]] = {}
    #: Attributes that make up the state between two steps, for checkpoints: numbers, True or False, and
    #: tensors (None before there is one). Set them in `__init__`.
    state: ClassVar[tuple[str, ...]] = ()
    #: Whose tensors it works with: "torch" or "numpy".
    tensors: ClassVar[str] = "torch"

    #: Same bits under any timing. Where it is False, all workers together do `workers × steps` gradients.
    synchronous: ClassVar[bool] = True
    #: Parameters may change while a gradient is computed, which is done on a copy.
    snapshot: ClassVar[bool] = False
    #: What it asks of the topology: None, "mixing", "static-symmetric", "edges" or "pairs".
    topology: ClassVar[str | None] = None
    #: It looks at gradients before the optimizer does.
    reads_gradient: ClassVar[bool] = True
    #: It clips gradients itself, with `cx.clip`.
    clips_itself: ClassVar[bool] = False
    #: With a zero learning rate the mean of the workers never changes.
    keeps_mean: ClassVar[bool] = True
    #: A worker may have to wait for a slower one.
    waits_for_peers: ClassVar[bool] = True
    #: Workers may start from different parameters.
    own_start: ClassVar[bool] = False
    #: A script may replace the parameters between two steps.
    reloadable: ClassVar[bool] = False
    #: It uses the loss of every gradient.
    needs_loss: ClassVar[bool] = False
    #: Messages that a living rank sent before membership changed remain good.
    keeps_older_views: ClassVar[bool] = False
    #: A worker may take the place of a lost one with its parameters and nothing else.
    can_be_replaced: ClassVar[bool] = True
    #: A worker may join a run with the parameters, the optimizer and the step of another.
    can_be_joined: ClassVar[bool] = True
    #: For planning, with a topology: vectors of the model's length to every neighbour per step, and when
    #: those of the neighbours are awaited: "after-gradient", "during-gradient" or "never".
    vectors: ClassVar[int] = 1
    awaits: ClassVar[str] = "after-gradient"

    def __init__(self, **options: Any):
        unknown = sorted(set(options) - set(self.options))
        if unknown:
            known = ", ".join(self.options) or "none"
            raise TypeError(
                f"{type(self).__name__} has no option {', '.join(unknown)}: its options are {known}; "
                "declare others in the attribute `options` of the class"
            )
        for option, default in self.options.items():
            words = isinstance(default, (list, tuple)) and default
            setattr(self, option, options.get(option, words[0] if words else default))
        self._given = options

    def on_start(self, cx: Context) -> None:
        """The first event, also after a resume: post what peers have not consumed at `cx.step`."""

    def on_bucket(self, cx: Context, b: int) -> None:
        """The gradient of bucket `b` is final; `cx.params[b]` and `cx.grad[b]` are the algorithm's."""

    def on_gradient(self, cx: Context) -> None:
        """The whole gradient is final; follows the last `on_bucket`."""

    def on_optimized(self, cx: Context, b: int) -> None:
        """The optimizer has run on bucket `b`, as `cx.optimize` asked."""

    def on_message(self, cx: Context, sender: int, message: Message) -> None:
        """A message has arrived whole, maybe while a gradient is computed (`cx.computing`)."""
        raise NotImplementedError

    def on_view(self, cx: Context, old: list[int]) -> None:
        """Membership has changed from the workers `old` to `cx.workers`: wait for nobody who is lost."""
        raise Error(
            f"the workers were {old} and are {cx.workers} now, and {type(self).__name__} has no "
            "on_view(self, cx, old): define it, so that nobody waits for a rank that is lost"
        )

    def on_drain(self, cx: Context) -> None:
        """No more gradients will come: send what is pending, absorb what arrives."""

    def on_leave(self, cx: Context) -> None:
        """This worker leaves with notice: hand over what must not be lost."""

    def is_ready(self) -> bool:
        """Whether the next gradient may start: parameters and gradient are not touched until it is
        handed over. Asked after every event."""
        raise NotImplementedError

    def is_drained(self) -> bool:
        """Whether nothing of this rank's is pending after `on_drain`."""
        return True

    def awaiting(self) -> list[tuple[int, str]]:
        """Which ranks it waits for, and for what: for time-outs that name the culprit."""
        return []

    def model(self, params: Any) -> Any:
        """What one would deploy from this rank: usually the parameters as they are."""
        return params


_EVENTS = (
    "on_start",
    "on_bucket",
    "on_gradient",
    "on_optimized",
    "on_message",
    "on_drain",
    "on_leave",
    "is_drained",
    "awaiting",
    "model",
)
_FLAGS = (
    "synchronous",
    "snapshot",
    "reads_gradient",
    "clips_itself",
    "keeps_mean",
    "waits_for_peers",
    "own_start",
    "reloadable",
    "needs_loss",
    "keeps_older_views",
    "can_be_replaced",
    "can_be_joined",
)


@dataclass
class Declaration:
    """What a class says of itself, as Rust reads it."""

    name: str
    class_name: str
    summary: str
    paper: str
    file: str
    options: list[tuple[str, Any]]
    state: list[str]
    defined: list[str]
    tensors: str
    topology: str | None
    vectors: int
    awaits: str


def register(algorithm: type[Algorithm]) -> type[Algorithm]:
    """Registers a class, so that run files may name it; also a decorator. Passing a class to
    `simulate` or `wrap` registers it too. A class of the same name that was registered before is
    replaced.

    >>> import quelea
    >>> @quelea.register
    ... class Alone(quelea.Algorithm):
    ...     \"\"\"Every worker trains alone.\"\"\"
    ...     def on_bucket(self, cx, b):
    ...         cx.optimize(b)
    ...     def on_message(self, cx, sender, message):
    ...         pass
    ...     def is_ready(self):
    ...         return True
    >>> [summary for name, summary, options in quelea.algorithms() if name == "alone"]
    ['Every worker trains alone.']
    """
    if not (inspect.isclass(algorithm) and issubclass(algorithm, Algorithm)):
        raise Error(f"register({algorithm!r}): must be a subclass of quelea.Algorithm")
    for method in ("on_message", "is_ready"):
        if getattr(algorithm, method) is getattr(Algorithm, method):
            arguments = "self, cx, sender, message" if method == "on_message" else "self"
            raise Error(f"{algorithm.__name__} must define {method}({arguments})")
    if algorithm.tensors not in KINDS:
        raise Error(f'tensors = {algorithm.tensors!r}: must be "torch" or "numpy"')
    # It may take seconds, in which an event would seem to be stuck.
    importlib.import_module("quelea._pytorch" if algorithm.tensors == "torch" else "numpy")
    declared = Declaration(
        name=name_of(algorithm),
        class_name=f"{algorithm.__module__}.{algorithm.__qualname__}",
        summary=_summary_of(algorithm),
        paper=algorithm.paper,
        file=_file_of(algorithm),
        options=list(algorithm.options.items()),
        state=list(algorithm.state),
        defined=_defined(algorithm),
        tensors=algorithm.tensors,
        topology=algorithm.topology,
        vectors=algorithm.vectors,
        awaits=algorithm.awaits,
    )
    for flag in _FLAGS:
        setattr(declared, flag, bool(getattr(algorithm, flag)))
    _core.register_algorithm(algorithm, declared)
    return algorithm


def name_of(algorithm: type[Algorithm]) -> str:
    """The name in run files."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", algorithm.__name__)
    return algorithm.name or words.replace("_", "-").strip("-").lower()


def resolved(algorithm: object) -> object:
    """The table of a run file that names an algorithm. Classes and objects in place of a name are
    registered; everything else is left as it is."""
    if isinstance(algorithm, dict) and "name" in algorithm:
        given = {key: value for key, value in algorithm.items() if key != "name"}
        return _table(algorithm["name"], given) or algorithm
    return _table(algorithm, {}) or algorithm


def _table(named: object, given: dict[str, Any]) -> dict[str, Any] | None:
    if isinstance(named, Algorithm):
        if not hasattr(named, "_given"):
            raise Error(
                f"{type(named).__name__}.__init__ does not call super().__init__(**options): call it"
            )
        named, given = type(named), {**named._given, **given}
    if not (inspect.isclass(named) and issubclass(named, Algorithm)):
        return None
    register(named)
    # Every worker is an object of its own: whatever is wrong with the class is found here.
    named(**given)
    return {"name": name_of(named), **given}


def _defined(algorithm: type[Algorithm]) -> list[str]:
    own = [name for name in _EVENTS if getattr(algorithm, name) is not getattr(Algorithm, name)]
    # The default of this one raises.
    return [*own, "on_view"]


def _summary_of(algorithm: type[Algorithm]) -> str:
    lines = inspect.cleandoc(algorithm.__doc__ or "an algorithm in Python").splitlines()
    return lines[0] if lines else ""


def _file_of(algorithm: type[Algorithm]) -> str:
    try:
        return inspect.getsourcefile(algorithm) or ""
    except (OSError, TypeError):
        # Typed into an interpreter.
        return ""
