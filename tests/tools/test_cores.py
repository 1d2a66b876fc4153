"""Cores, as made-up control groups leave them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.commands import run_python
from wds_tools.tools.cores import cpu_quota, usable_cores

GROUPS = [
    ({}, None),
    ({"proc/self/cgroup": "0::/\n"}, None),
    ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
    ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
    # the group above has less, and a group that is not to be seen has a limit at the root
    (
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
            "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
        },
        2.0,
    ),
    ({"proc/self/cgroup": "0::/docker/0123\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3.0),
    # version 1
    (
        {
            "proc/self/cgroup": "4:memory:/m\n3:cpu,cpuacct:/c\n2:cpuset:/\n",
            "sys/fs/cgroup/cpu/c/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/c/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        0.5,
    ),
    ({"proc/self/cgroup": "nonsense", "sys/fs/cgroup/cpu.max": "1 0\n"}, None),
    ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "what ever\n"}, None),
]


@pytest.mark.parametrize(("files", "quota"), GROUPS)
def test_a_containers_limit_is_found(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert cpu_quota(tmp_path) == quota


def test_there_is_always_a_core() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason=f"{sys.platform} has no affinity")
def test_an_affinity_counts() -> None:
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
        "from wds_tools.tools.cores import usable_cores; print(usable_cores())"
    )
    assert run_python("-c", code).out == "1\n"
