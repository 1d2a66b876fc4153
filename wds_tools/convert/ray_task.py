"""What a Ray worker does with a task, on whichever node it is.

Ray loads what it is given before anything of ours runs, and answers with a page of trace if it cannot. So a task is a
function that needs nothing but Python, and bytes: it says in a sentence if the node has no wds_tools, or not this one.
Errors of ours come back as values, to be raised as themselves.

What goes to a node is what goes to a process of the pool: options, addresses, lines of the plan. Stores pickle
without credentials; a node finds its own in its environment, its files or its role, as `store.signing` does anywhere.
"""

from __future__ import annotations

import contextlib
import errno
import pickle
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wds_tools._version import VERSION
from wds_tools.convert.engines import Cancelled
from wds_tools.errors import ChangedError, NotFoundError, StoreError, WdsToolsError

_LOOK_SECONDS = 0.5  # between two looks whether the driver has given up

# A server, a mount or a network that is gone for a while, or for one node: worth another attempt, perhaps elsewhere.
_PASSING = (
    errno.EIO,
    errno.EAGAIN,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ECONNRESET,
    errno.ECONNABORTED,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
)


@dataclass(frozen=True)
class Answer:
    """What became of an attempt: ``result``, or the ``error`` that ended it and whether it is ``passing``."""

    node: str
    host: str
    address: str
    result: Any = None
    samples: int = 0
    source_bytes: int = 0
    error: WdsToolsError | None = None
    passing: bool = False


def pack(function: Callable[..., Any], ticks: bool, stop: bytes) -> bytes:
    """What `make_stub`'s function makes an `attempt` of; it ends early once there is a key ``stop``, see `give_up`."""
    return pickle.dumps((attempt, (VERSION, pickle.dumps(function), ticks, stop)))


def give_up(stop: bytes) -> None:
    """Tell all attempts to end.

    Not by `ray.cancel`: now and then it ends the driver instead, when an answer comes at the same moment (Ray 2.60).
    """
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(stop, b"stop", overwrite=True)


def forget(stop: bytes) -> None:
    """Leave nothing of `give_up` in the cluster."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_del(stop)


class _Driver:
    """Whether the driver still wants what we do, looked up now and then. One that cannot be asked does."""

    def __init__(self, stop: bytes) -> None:
        self._stop = stop
        self._looked = float("-inf")

    def check(self) -> None:
        from ray.exceptions import RayError
        from ray.experimental import internal_kv

        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            with contextlib.suppress(RayError):
                if internal_kv._internal_kv_get(self._stop) is not None:
                    raise Cancelled
            self._looked = time.monotonic()


def make_stub() -> Callable[[bytes, bytes], Any]:
    """The function that Ray runs. It is made in another, so that Ray sends its code and not its address."""

    def begin(packed: bytes, item: bytes) -> Any:
        try:
            function, arguments = pickle.loads(packed)
        except (ImportError, AttributeError) as error:  # no wds_tools here, or one that is quite different
            return socket.gethostname(), str(error)
        return function(*arguments, item)

    return begin


def attempt(version: str, packed: bytes, ticks: bool, stop: bytes, item: bytes) -> Any:
    """One task, once. An `Answer`, or host and reason where the task should not even begin."""
    import ray.util

    if version != VERSION:
        return socket.gethostname(), f"its version is {VERSION}"
    driver = _Driver(stop)
    # The driver counts what is finished; an attempt that is lost has counted for nobody.
    done = [0, 0]

    def tick(samples: int, size: int) -> None:
        done[0] += samples
        done[1] += size
        driver.check()

    address: Any = ray.util.get_node_ip_address  # has no types
    place = ray.get_runtime_context().get_node_id(), socket.gethostname(), address()
    function = pickle.loads(packed)
    arguments = (pickle.loads(item), tick) if ticks else (pickle.loads(item),)
    try:
        driver.check()
        result = function(*arguments)
    except Cancelled:
        return Answer(*place)
    except WdsToolsError as error:
        return Answer(*place, error=error, passing=is_passing(error))
    return Answer(*place, result, done[0], done[1])


def is_passing(error: WdsToolsError) -> bool:
    """Whether another attempt may go well: for a store that could not be reached, and for nothing else.

    A store over HTTP has tried for a minute by itself, and says so only in words; a full disk or a refusal stays what
    it is; nobody else reads a bad image better, or finds a source that has changed unchanged.
    """
    if not isinstance(error, StoreError) or isinstance(error, (NotFoundError, ChangedError)):
        return False
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _PASSING
