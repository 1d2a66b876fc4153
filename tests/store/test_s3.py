"""A bucket: on a real server what it takes to get in, to list and to write; on a scripted one what real ones do rarely."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import needs, streams
from wds_tools.errors import MissingExtraError, NotFoundError, OptionError, StoreError
from wds_tools.store.options import StoreOptions
from wds_tools.store.s3 import S3Store
from wds_tools.store.upload import MIN_PART

if TYPE_CHECKING:
    from tests.conftest import Bucket

BIG = random.Random(0).randbytes(2 * MIN_PART + 1000)  # three parts


@pytest.fixture
def store(bucket: Bucket, tmp_path: Path) -> S3Store:
    return S3Store(f"{bucket.url}/{tmp_path.name}", bucket.options)


def uploads(store: S3Store) -> int:
    """How many multipart uploads are under way in the bucket."""
    target = replace(store.request(""), target="?uploads=")
    return store._wire.call(target, store._attempts(target)).body.count(b"<Upload>")


# ── on a real server ──────────────────────────────────────────────────────────────────────────────────────────


def test_what_takes_several_parts_is_whole(store: S3Store) -> None:
    chunks = [BIG[at : at + 3_000_000] for at in range(0, len(BIG), 3_000_000)]
    store.write_atomic("big.tar", chunks)
    assert store.size("big.tar") == len(BIG)
    assert store.read("big.tar") == BIG
    assert store.version("big.tar").tag.endswith('-3"')
    assert store.read("big.tar", MIN_PART - 5, 10) == BIG[MIN_PART - 5 : MIN_PART + 5]


def test_a_maker_that_fails_between_parts_leaves_no_upload(store: S3Store) -> None:
    def chunks() -> Iterator[bytes]:
        yield BIG
        assert uploads(store) == before + 1
        assert store.list() == []
        raise ValueError("bad sample")

    before = uploads(store)
    with pytest.raises(ValueError, match="bad sample"):
        store.write_atomic("big.tar", chunks())
    assert uploads(store) == before
    assert store.list() == []


def test_pages_of_names_are_put_together(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    names = sorted(f"p-{number:02d} +%&.tar" for number in range(7))
    for name in names:
        store.write_atomic(name, [b"x"])
    from wds_tools.store import s3

    monkeypatch.setattr(s3, "PAGE", 3)
    assert store.list("p-") == names


def test_fault_37_a_wrong_secret_is_asked_for_once_more_and_refused(bucket: Bucket) -> None:
    store = S3Store(bucket.url, replace(bucket.options, profile="wrong"))
    with pytest.raises(
        StoreError, match=r"s3://tests/a: the server refuses \(HTTP 403 SignatureDoesNotMatch\); check the cr"
    ):
        store.read("a")


def test_a_bucket_or_name_that_is_not_there_is_not_found(store: S3Store, bucket: Bucket) -> None:
    with pytest.raises(NotFoundError, match=r"s3://tests/.*/a does not exist \(HTTP 404 NoSuchKey\)"):
        store.read("a")
    with pytest.raises(NotFoundError, match=r"s3://nowhere/a does not exist \(HTTP 404"):
        S3Store("s3://nowhere", bucket.options).read("a")
    with pytest.raises(NotFoundError, match="s3://nowhere"):
        S3Store("s3://nowhere", bucket.options).list()


def test_without_credentials_requests_go_unsigned_and_it_is_said(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options in (replace(bucket.options, anonymous=True), replace(bucket.options, profile=None)):
        with pytest.raises(StoreError, match=r"HTTP 40[03].*was not signed"):
            S3Store(bucket.url, options).read("a")


def test_a_profile_and_an_endpoint_come_from_the_configuration(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bucket.options.endpoint_url is not None
    S3Store(f"{bucket.url}/{tmp_path.name}", bucket.options).write_atomic("a", [b"x"])
    monkeypatch.setenv("AWS_PROFILE", "good")
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.options.endpoint_url)
    assert S3Store(f"{bucket.url}/{tmp_path.name}").read("a") == b"x"
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StoreError, match=r"s3://tests: .*nobody.*check the AWS configuration"):
        S3Store(bucket.url).read("a")


def configure(values: dict[str, str]) -> None:
    os.environ.update(values)


def read_elsewhere(store: S3Store) -> bytes:
    return store.read("a", 1, 3)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_fault_46_a_bucket_that_was_used_works_in_another_process(store: S3Store, method: str) -> None:
    store.write_atomic("a", [b"hello"])
    assert read_elsewhere(store) == b"ell"
    # A forkserver that another test has started knows nothing of this one's environment.
    configuration = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    with multiprocessing.get_context(method).Pool(2, configure, [configuration]) as pool:
        assert pool.map(read_elsewhere, [store] * 4) == [b"ell"] * 4
    assert read_elsewhere(store) == b"ell"


def test_secrets_are_in_no_pickle_message_or_repr(store: S3Store, bucket: Bucket) -> None:
    store.list()
    shown = [repr(store), repr(vars(store)), repr(store.request("a")), pickle.dumps(store).decode("latin1")]
    for made in (store, S3Store(bucket.url, replace(bucket.options, profile="wrong"))):
        with pytest.raises(StoreError) as caught:
            made.read("nothing")
        shown += traceback.format_exception(caught.value)
    for text in shown:
        assert "SECRET" not in text
        assert "TERCES" not in text
        assert "Signature=" not in text


# ── on a scripted one ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[streams.Server]:
    needs.package("botocore")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mine")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a").write_bytes(b"hello")
    with streams.served(tmp_path) as server:
        yield server


def at(server: streams.Server, **options: object) -> S3Store:
    return S3Store("s3://b", StoreOptions(endpoint_url=server.url, backoff=0, retries=2, **options))  # type: ignore[arg-type]


def says(code: int, xml: str, **headers: str) -> streams.Act:
    return lambda handler, path: handler.reply(code, xml.encode(), **headers)


EXPIRED = [
    says(403, "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"),
    says(400, "<Error><Code>ExpiredToken</Code></Error>"),
]


@pytest.mark.parametrize("refused", EXPIRED, ids=["403", "token"])
def test_fault_36_credentials_that_expired_are_asked_for_once_more(
    scripted: streams.Server, monkeypatch: pytest.MonkeyPatch, refused: streams.Act
) -> None:
    store = at(scripted)
    assert store.read("a") == b"hello"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
    scripted.script.extend([refused])
    assert store.read("a") == b"hello"
    keys = [
        headers["Authorization"].partition("Credential=")[2].partition("/")[0] for _, _, headers in scripted.requests
    ]
    assert keys == ["me", "me", "renewed"]
    scripted.requests.clear()
    scripted.always = refused
    with pytest.raises(StoreError, match=r"s3://b/a: the server refuses \(HTTP 40[03] \w+\)"):
        store.read("a")
    assert len(scripted.requests) == 2


def test_fault_36_one_that_expires_in_the_middle_goes_on_at_the_byte(scripted: streams.Server) -> None:
    scripted.script.extend([streams.cut(2), EXPIRED[0]])
    assert at(scripted).read("a", 0, 5) == b"hello"
    assert scripted.ranges() == ["bytes=0-4", "bytes=2-4", "bytes=2-4"]


@pytest.mark.parametrize("code", [301, 400])
def test_a_wrong_region_is_corrected_by_the_server(scripted: streams.Server, code: int) -> None:
    store = at(scripted, region="us-east-1")
    scripted.script.extend(
        [says(code, "<Error><Code>PermanentRedirect</Code></Error>", x_amz_bucket_region="eu-west-3")]
    )
    assert store.read("a") == b"hello"
    assert store.read("a") == b"hello"
    regions = [headers["Authorization"].split("/")[2] for _, _, headers in scripted.requests]
    assert regions == ["us-east-1", "eu-west-3", "eu-west-3"]


def test_a_request_that_came_too_slowly_is_sent_again(scripted: streams.Server) -> None:
    scripted.script.extend([says(400, "<Error><Code>RequestTimeout</Code></Error>")])
    assert at(scripted).read("a") == b"hello"


def test_fault_38_no_signature_goes_to_another_server(scripted: streams.Server, tmp_path: Path) -> None:
    with streams.served(tmp_path) as other:
        scripted.script.extend([streams.moved(f"{other.url}/b/a")])
        assert at(scripted).read("a") == b"hello"
        assert "Authorization" in scripted.requests[0][2]
        assert not {"Authorization", "X-Amz-Security-Token"} & other.requests[0][2].keys()


def upload(*completing: streams.Act) -> list[streams.Act]:
    """What a server answers to an upload of three parts, up to its completion."""
    begun = says(200, "<InitiateMultipartUploadResult><UploadId>u/1</UploadId></InitiateMultipartUploadResult>")
    return [begun, *[says(200, "", ETag='"e"')] * 3, *completing]


DONE = says(200, "<CompleteMultipartUploadResult/>")


def test_the_requests_of_an_upload(scripted: streams.Server) -> None:
    scripted.script.extend(upload(DONE))
    at(scripted).write_atomic("x", [BIG])
    assert [(method, path) for method, path, _ in scripted.requests] == [
        ("POST", "/b/x?uploads="),
        *[("PUT", f"/b/x?partNumber={number}&uploadId=u%2F1") for number in (1, 2, 3)],
        ("POST", "/b/x?uploadId=u%2F1"),
    ]


def test_fault_29_a_part_that_is_lost_is_sent_again(scripted: streams.Server) -> None:
    acts = upload(DONE)
    scripted.script.extend([*acts[:2], streams.no_answer, streams.status(503), *acts[2:]])
    at(scripted).write_atomic("x", [BIG])
    assert [path.partition("partNumber=")[2][:1] for method, path, _ in scripted.requests if method == "PUT"] == list(
        "12223"
    )


@pytest.mark.parametrize("where", [1, 3, 4])
def test_an_upload_that_cannot_go_on_is_aborted(scripted: streams.Server, where: int) -> None:
    scripted.script.extend([*upload()[:where], streams.status(403), streams.status(403)])
    with pytest.raises(StoreError, match=r"s3://b/x: the server refuses \(HTTP 403\)"):
        at(scripted).write_atomic("x", [BIG])
    assert scripted.requests[-1][:2] == ("DELETE", "/b/x?uploadId=u%2F1")


def test_an_error_under_a_good_status_is_an_error(scripted: streams.Server) -> None:
    scripted.script.extend(upload(says(200, "<Error><Code>InvalidPart</Code></Error>")))
    with pytest.raises(StoreError, match=r"s3://b/x cannot be written: the server refuses \(InvalidPart\)"):
        at(scripted).write_atomic("x", [BIG])
    assert scripted.requests[-1][0] == "DELETE"
    scripted.script.extend(upload(says(200, "<Error><Code>InternalError</Code></Error>"), DONE))
    at(scripted).write_atomic("x", [BIG])


def test_a_completion_whose_answer_was_lost_counts(scripted: streams.Server) -> None:
    (scripted.root / "b" / "x").write_bytes(BIG)
    gone = says(404, "<Error><Code>NoSuchUpload</Code></Error>")
    scripted.script.extend(upload(streams.no_answer, gone))
    at(scripted).write_atomic("x", [BIG])
    scripted.script.extend(upload(gone))
    with pytest.raises(NotFoundError):
        at(scripted).write_atomic("x", [BIG])
    (scripted.root / "b" / "x").write_bytes(b"another's")
    scripted.script.extend(upload(streams.no_answer, gone))
    with pytest.raises(NotFoundError):
        at(scripted).write_atomic("x", [BIG])


@pytest.mark.parametrize("xml", ["", "<html>", "<html/>", "<Error><Code>x</Code></Error>"])
def test_what_is_no_list_is_refused(scripted: streams.Server, xml: str) -> None:
    scripted.always = says(200, xml)
    with pytest.raises(StoreError, match=r"s3://b cannot be listed"):
        at(scripted).list()


# ── addresses ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("root", "options", "url"),
    [
        ("s3://plain-b/x", {}, "https://plain-b.s3.eu-west-3.amazonaws.com/x/a%20b%2B"),
        ("s3://with.dots/", {}, "https://s3.eu-west-3.amazonaws.com/with.dots/a%20b%2B"),
        ("s3://b1b", {"region": "cn-north-1"}, "https://b1b.s3.cn-north-1.amazonaws.com.cn/a%20b%2B"),
        ("s3://b1b/x/y/", {"endpoint_url": "http://h:9000/"}, "http://h:9000/b1b/x/y/a%20b%2B"),
        ("s3://b1b", {"endpoint_url": "https://storage.googleapis.com"}, "https://storage.googleapis.com/b1b/a%20b%2B"),
    ],
)
def test_a_bucket_is_in_the_hosts_name_where_that_can_be(root: str, options: dict[str, str], url: str) -> None:
    needs.package("botocore")
    store = S3Store(root, StoreOptions(anonymous=True, **{"region": "eu-west-3", **options}))  # type: ignore[arg-type]
    assert store._wire.access.sign(store.request("a b+")) == (url, {})


@pytest.mark.parametrize("root", ["s3://", "s3:///x", "s3://a b/x", "s3:/bucket", "bucket", "s3://u:p@b/x"])
def test_what_is_no_bucket_is_refused(root: str) -> None:
    with pytest.raises(OptionError, match="is no address in S3; write s3://bucket/prefix"):
        S3Store(root)


def test_a_secret_in_an_address_is_not_repeated() -> None:
    with pytest.raises(OptionError) as refused:
        S3Store("s3://user:secret@bucket/x?signature=secret")
    assert "secret" not in str(refused.value)


def test_without_botocore_it_is_said_what_to_install() -> None:
    code = """
import sys
sys.modules["botocore"] = None
from wds_tools.errors import MissingExtraError
from wds_tools.store.s3 import S3Store
try:
    S3Store("s3://bucket/x").read("a")
except MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (
        done.stdout
        == f"s3://bucket needs botocore, which is not installed; run: {sys.executable} -m pip install botocore\n"
    ), done.stderr
    assert issubclass(MissingExtraError, ImportError)


def test_botocore_is_loaded_by_the_first_request_only() -> None:
    code = "import sys; from wds_tools.store.s3 import S3Store; S3Store('s3://b1b'); print('botocore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
