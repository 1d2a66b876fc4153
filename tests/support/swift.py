"""An S3 server: OpenStack Swift with its s3api, from Debian's packages, as four small processes and memcached."""

from __future__ import annotations

import contextlib
import getpass
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import needs
from tests.support.servers import Process, free_port

ACCESS_KEY, SECRET_KEY = "test:tester", "SECRETSECRET"
REGION = "us-east-1"

_PROXY = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {folder}
log_name = proxy
[pipeline:main]
pipeline = catch_errors gatekeeper healthcheck cache s3api tempauth copy slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
min_segment_size = 5242880
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = SECRETSECRET .admin
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{memcached}
"""
_PLAIN_FILTERS = ("catch_errors", "gatekeeper", "healthcheck", "copy", "slo", "dlo")
_PROXY += "".join(f"[filter:{name}]\nuse = egg:swift#{name}\n" for name in _PLAIN_FILTERS)

_SERVER = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
disable_fallocate = true
fallocate_reserve = 0
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
recon_cache_path = {folder}/recon
"""


# Where things lie: one device, one copy of each. What swift-ring-builder does in nine runs.
_RINGS = """
import sys
from swift.common.ring import RingBuilder
folder, *servers = sys.argv[1:]
for server in servers:
    kind, port = server.split(":")
    ring = RingBuilder(4, 1, 0)
    ring.add_dev(dict(region=1, zone=1, ip="127.0.0.1", port=int(port), device="d1", weight=1, meta=""))
    ring.rebalance()
    ring.get_ring().save(f"{folder}/{kind}.ring.gz")
"""


@dataclass(frozen=True)
class Swift:
    """Its address, and the user that it knows."""

    endpoint: str
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY


@contextlib.contextmanager
def swift(folder: Path) -> Iterator[Swift]:
    """Swift with its files in ``folder``, on a file system with extended attributes."""
    kinds = ("account", "container", "object")
    programs = {kind: needs.tool(f"swift-{kind}-server") for kind in (*kinds, "proxy")}
    memcached, python = needs.tool("memcached"), needs.tool("/usr/bin/python3")  # the one that Debian's Swift is for
    (folder / "devices" / "d1").mkdir(parents=True)
    (folder / "recon").mkdir()
    (folder / "swift.conf").write_text(
        "[swift-hash]\nswift_hash_path_prefix = a\nswift_hash_path_suffix = b\n"
        "[storage-policy:0]\nname = one\ndefault = yes\n"
    )
    ports = {kind: free_port() for kind in (*kinds, "proxy", "memcached")}
    values = {"folder": folder, "user": getpass.getuser(), "memcached": ports["memcached"]}
    with contextlib.ExitStack() as stack:
        rings = subprocess.run(
            [python, "-c", _RINGS, str(folder), *(f"{kind}:{ports[kind]}" for kind in kinds)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert rings.returncode == 0, rings.stdout + rings.stderr
        started = []
        for kind in kinds:
            config = folder / f"{kind}.conf"
            config.write_text(_SERVER.format(kind=kind, port=ports[kind], **values))
            started.append(Process([programs[kind], str(config)], ports[kind], folder / f"{kind}.log"))
        cache = [memcached, "-l", "127.0.0.1", "-p", str(ports["memcached"]), "-m", "16", "-u", str(values["user"])]
        started.append(Process(cache, ports["memcached"], folder / "memcached.log"))
        config = folder / "proxy.conf"
        config.write_text(_PROXY.format(port=ports["proxy"], **values))
        started.append(Process([programs["proxy"], str(config)], ports["proxy"], folder / "proxy.log"))
        for process in started:
            stack.enter_context(process)
        for process in started:
            process.until_it_answers()
        yield Swift(f"http://127.0.0.1:{ports['proxy']}")
