"""Servers that a whole session of tests shares; each starts when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support import needs, servers, swift
from wds_tools.store.options import StoreOptions
from wds_tools.store.retry import Attempts
from wds_tools.store.s3 import S3Store
from wds_tools.store.wire import Request


@pytest.fixture(scope="session")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Nginx]:
    with servers.nginx(tmp_path_factory.mktemp("nginx")) as server:
        yield server


@dataclass(frozen=True)
class Bucket:
    """A bucket of a real S3 server, whose users are in the AWS configuration: ``good`` and ``wrong``."""

    url: str
    options: StoreOptions


@pytest.fixture(scope="session")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    """Tests share it, so each takes a folder of its own."""
    needs.package("botocore")
    folder = tmp_path_factory.mktemp("swift")
    users = folder / "credentials"
    with swift.swift(folder) as server, pytest.MonkeyPatch.context() as patch:
        user = f"aws_access_key_id = {server.access_key}\naws_secret_access_key = "
        users.write_text(f"[good]\n{user}{server.secret_key}\n[wrong]\n{user}{server.secret_key[::-1]}\n")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(users))
        patch.setenv("AWS_CONFIG_FILE", str(folder / "none"))
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)
        options = StoreOptions(endpoint_url=server.endpoint, profile="good", region=swift.REGION, backoff=0)
        wire = S3Store("s3://tests", options)._wire
        wire.call(Request("", "s3://tests", "PUT"), Attempts("s3://tests", options))
        yield Bucket("s3://tests", options)
