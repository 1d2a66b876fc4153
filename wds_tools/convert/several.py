"""Many small requests to a store, several at a time.

What takes microseconds in a folder takes tens of milliseconds in a bucket, nearly all of it waiting. The threads are
gone when the last answer is: whoever forks afterwards has none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from wds_tools.store.base import Store
from wds_tools.store.local import LocalStore

THREADS = 16

Item = TypeVar("Item")
Result = TypeVar("Result")


def each(store: Store, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """The results in the items' order; for a local folder one after the other, in this thread.

    No more items are taken ahead of the results than there are threads. The first error ends it.
    """
    if isinstance(store, LocalStore):
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(THREADS)
    try:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
