"""What goes wrong with worker processes, in words that help."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager

from wds_tools.errors import OptionError, WorkerError


@contextmanager
def told_of_pickling() -> Iterator[None]:
    """Says what to do about a dataset that cannot be sent to workers which are spawned."""
    try:
        yield
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if not re.search(r"pickle|local object", str(error)):
            raise
        raise OptionError(
            f"the dataset cannot be sent to worker processes ({error}); a transform must be defined at the top of a module, "
            "so no lambda and no function in a function; num_workers=0 needs no workers"
        ) from error


@contextmanager
def worker_errors(workers: int) -> Iterator[None]:
    """What DataLoader says when a worker process is gone, as `WorkerError`; what was raised inside of one passes."""
    try:
        yield
    except (RuntimeError, ConnectionError, EOFError, FileNotFoundError) as error:
        # Killed while it hands a batch over, a worker leaves a connection that ends.
        broken = not isinstance(error, RuntimeError) and "in DataLoader worker process" not in str(error)
        if not workers or not (broken or "DataLoader worker (pid" in str(error)):
            raise
        raise WorkerError(
            f"a worker process died ({error}); if memory ran out, use fewer workers or smaller batches, "
            "then resume from the last state"
        ) from error
