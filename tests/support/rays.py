"""A Ray cluster of several nodes on this machine, and a driver, each in a process of its own.

Ray brings threads along, and a process that forks should have none; so nothing of Ray is loaded into the tests' own process.
Everything of the cluster dies with its holder. Nodes are small: one CPU and little shared memory each.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.support import needs, processes

ROOT = Path(__file__).parents[2]
DEADLINE = 3 * processes.DEADLINE  # a node takes seconds to start, and more on a busy machine
_MEMORY = 80 << 20
# A node that is gone is missed after two seconds, not after twenty.
_SYSTEM = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}

Answer = TypeVar("Answer")
_held: Any = None
_nodes: dict[str, Any] = {}


@dataclass
class Rays:
    """A cluster whose head has no CPU, and a driver that is connected to it."""

    holder: ProcessPoolExecutor
    driver: ProcessPoolExecutor
    environment: dict[str, str]
    address: str = ""
    nodes: set[str] = field(default_factory=set)

    def of(self, count: int) -> Rays:
        """With at least so many nodes to work on."""
        while len(self.nodes) < count:
            new = [self.holder.submit(_add, self.environment) for _ in range(count - len(self.nodes))]
            self.nodes |= {each.result(DEADLINE) for each in new}
        return self

    def kill(self, node: str) -> None:
        """End a node as a power cut does."""
        self.nodes.remove(node)
        self.holder.submit(_kill, node).result(DEADLINE)

    def begin(self, function: Callable[..., Answer], *arguments: Any) -> Future[Answer]:
        """Call ``function`` in the driver's process."""
        return self.driver.submit(function, *arguments)

    def call(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        return self.begin(function, *arguments).result(DEADLINE)


@contextlib.contextmanager
def cluster(environment: dict[str, str]) -> Iterator[Rays]:
    """A cluster without nodes yet, whose processes have this ``environment`` besides ours."""
    needs.package("ray")
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn) as holder, ProcessPoolExecutor(1, spawn) as driver:
        environment = {"PYTHONPATH": os.fspath(ROOT), **environment}
        rays = Rays(holder, driver, environment)
        try:
            rays.address = holder.submit(_start, environment).result(DEADLINE)
            rays.of(2)
            rays.call(_connect, rays.address)
            yield rays
        finally:
            for pool, end in ((driver, _leave), (holder, _stop)):
                pool.submit(end).result(DEADLINE)


def _start(environment: dict[str, str]) -> str:
    global _held
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": _MEMORY, "include_dashboard": False, "env_vars": environment}
    _held = Cluster(initialize_head=True, head_node_args={**head, "_system_config": _SYSTEM})
    return str(_held.address)


def _add(environment: dict[str, str]) -> str:
    node = _held.add_node(num_cpus=1, object_store_memory=_MEMORY, env_vars=environment)
    _nodes[node.node_id] = node
    return str(node.node_id)


def _kill(name: str) -> None:
    _held.remove_node(_nodes.pop(name), allow_graceful=False)


def _stop() -> None:
    if _held is not None:
        _held.shutdown()


def _connect(address: str) -> None:
    import ray

    ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL)


def _leave() -> None:
    import ray

    ray.shutdown()
