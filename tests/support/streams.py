"""Small datasets to stream, ways to look at what came, and an HTTP server that honours ranges or misbehaves.

A sample's image has one colour of its own and its label is its number, so that what was read can be told from pixels
and labels alone.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import io
import os
import re
import socket
import ssl
import struct
import tarfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from tests.support import images
from wds_tools.convert.options import ConvertOptions
from wds_tools.convert.run import convert_tree
from wds_tools.image.arrays import encode_npy
from wds_tools.image.presets import RandomResizedCrop

SAMPLES = 23
PER_SHARD = 5  # 5 shards, of which the last is short


@functools.cache
def picture(number: int, size: int = 8) -> bytes:
    """A PNG of one colour, which says the number."""
    return images.saved(Image.new("RGB", (size, size), (number % 256, number // 256, 255 - number % 256)), "png")


def array(number: int, height: int = 80, width: int = 72) -> bytes:
    """An npy file of pixels like no other's: more bytes than are read with one call."""
    return encode_npy(np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8))


@functools.cache
def photograph(number: int, width: int = 96, height: int = 64) -> bytes:
    """A JPEG like no other's, with detail everywhere."""
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (8, 12, 3), np.uint8))
    return images.saved(coarse.resize((width, height), Image.Resampling.BICUBIC), "jpg", quality=90)


def number_of(pixels: Any) -> int:
    """The number that a picture of (3, height, width) says."""
    return int(pixels[0, 0, 0]) + 256 * int(pixels[1, 0, 0])


def convert(folder: Path, samples: int = SAMPLES, per_shard: int = PER_SHARD, split: str = "train") -> Path:
    """A dataset by our own conversion: a class for each residue by three, shards in the order of the names."""
    tree = folder.parent / f"{folder.name}-{split}-tree"
    for number in range(samples):
        path = tree / f"c{number % 3}" / f"s{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
    convert_tree(tree, folder, ConvertOptions(split=split, max_count=per_shard, shuffle=False), workers=0)
    return folder


def sample(number: int, **fields: Any) -> dict[str, Any]:
    """What webdataset's writer takes; None leaves a field out."""
    made = {"__key__": f"k{number:04d}", "png": picture(number), "cls": str(number).encode(), **fields}
    return {name: value for name, value in made.items() if value is not None}


def pack(folder: Path, samples: Iterable[dict[str, Any]], per_shard: int = PER_SHARD, name: str = "train") -> Path:
    """Shards by webdataset's own writer: without indexes, without a manifest."""
    from webdataset.writer import ShardWriter  # slow to load

    folder.mkdir(parents=True, exist_ok=True)
    with ShardWriter(str(folder / f"{name}-%06d.tar"), maxcount=per_shard, verbose=0) as writer:
        for each in samples:
            writer.write(dict(each))
    return folder


def numbered(folder: Path, count: int = SAMPLES, per_shard: int = PER_SHARD, indexed: bool = True) -> Path:
    """Shards whose labels are the numbers 0 to ``count``; with ``indexed``, indexes and a manifest beside them."""
    pack(folder, map(sample, range(count)), per_shard)
    if indexed:
        index(folder)
    return folder


def tarred(members: Iterable[tuple[str, bytes]], form: str = "ustar", end: bytes = bytes(1024)) -> bytes:
    """A shard by tarfile, of any members."""
    file = io.BytesIO()
    formats = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
    with tarfile.open(fileobj=file, mode="w", format=formats[form]) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        size = archive.offset
    return file.getvalue()[:size] + end


def index(folder: Path) -> Path:
    from wds_tools.tools.indexing import index_shards

    index_shards(folder, workers=0)
    return folder


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """A file with other bytes; shards are read-only."""
    data = change(path.read_bytes())
    path.unlink()
    path.write_bytes(data)


def keys(samples: Iterable[dict[str, Any]]) -> list[str]:
    return [each["__key__"] for each in samples]


def labels(batches: Iterable[Any]) -> list[list[int]]:
    """The labels of each batch; they are its last entry."""
    return [batch[-1].tolist() for batch in batches]


def flat(batches: Iterable[Iterable[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


# -- what spawned workers must be able to import


def every_second(numbers: list[int]) -> list[int]:
    return numbers[::2]


def same(value: Any) -> Any:
    return value


def read_all(dataset: Any) -> list[str]:
    """In a process of its own: what the dataset gives there, by position and by iteration."""
    return [dataset[number]["__key__"] for number in range(len(dataset))] + sorted(keys(dataset))


def noisy(image: Any) -> Any:
    """A transform that draws from all three generators."""
    import random

    import numpy as np
    import torch

    image = image.rotate(90 * random.randrange(4))
    pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float()
    return pixels + float(np.random.rand()) + torch.rand(pixels.shape)


class Killer:
    """A transform that kills its own process at the first picture of this number, unless it is process ``spare``."""

    def __init__(self, number: int) -> None:
        self.number, self.spare = number, os.getpid()

    def __call__(self, image: Any) -> Any:
        if os.getpid() != self.spare and image.getpixel((0, 0))[0] == self.number:
            os.kill(os.getpid(), 9)
        return image


class DeadlyCrop(RandomResizedCrop):
    """A preset that kills its own process at the first picture of this number, unless it is process ``spare``."""

    def __init__(self, size: int, number: int) -> None:
        super().__init__(size)
        self.number, self.spare = number, os.getpid()

    def render(self, data: bytes | memoryview, seed: int, out: Any) -> None:
        super().render(data, seed, out)
        if os.getpid() != self.spare and number_of(out) == self.number:
            os.kill(os.getpid(), 9)


class Exploder:
    """A transform with a mistake in it."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, image: Any) -> Any:
        raise self.error


# -- HTTP

Act = Callable[["_Handler", Path], None]


class Server:
    """A folder over HTTP on loopback. Each request takes the next act of ``script``, or is answered as it should be."""

    def __init__(self, root: Path, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.root = root
        self.over = threading.Event()  # whoever stalls, stalls until this server ends
        self.script: deque[Act] = deque()
        self.always: Act | None = None
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        handler = type("Handler", (_Handler,), {"owner": self})
        listener = type("Listener", (http.server.ThreadingHTTPServer,), {"request_queue_size": 128})
        self._server = listener(("127.0.0.1", port), handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *args: None  # type: ignore[method-assign]  # clients hang up here
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Server:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    def counts(self) -> Counter[str]:
        """Requests by method."""
        return Counter(method for method, _, _ in self.requests)

    def ranges(self) -> list[str]:
        return [headers["Range"] for _, _, headers in self.requests if "Range" in headers]


class _Handler(http.server.BaseHTTPRequestHandler):
    owner: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args: Any) -> None:
        """Not on the tests' output."""

    def answer(self) -> None:
        owner = self.owner
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        owner.requests.append((self.command, self.path, dict(self.headers)))
        path = owner.root / urlsplit(self.path).path.lstrip("/")
        act = owner.script.popleft() if owner.script else owner.always or honest
        with contextlib.suppress(ConnectionError):
            act(self, path)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        headers.setdefault("Content_Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def wanted(self, path: Path) -> tuple[bytes, int, int] | None:
        """The bytes of the range that is asked for, where it begins, and the whole size; None without a range."""
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        data = path.read_bytes()
        return (data[int(match[1]) : int(match[2]) + 1], int(match[1]), len(data)) if match else None

    def part(self, path: Path, **headers: str) -> bytes:
        """Say all about the range that is asked for, and answer with its bytes, unsent."""
        data, start, size = self.wanted(path) or (b"", 0, 0)
        self.send_response(206)
        headers = {"Content_Length": str(len(data)), "ETag": tag(path)} | headers
        headers.setdefault("Content_Range", f"bytes {start}-{start + len(data) - 1}/{size}")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        return data

    def hang_up(self) -> None:
        """End the connection, so that the client sees a reset."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_WR)


def tag(path: Path) -> str:
    """The ETag of a file: a file that is replaced has another one."""
    status = path.stat()
    return f'"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"'


def honest(handler: _Handler, path: Path) -> None:
    if not path.is_file():
        handler.reply(404, b"nothing here")
    elif handler.headers.get("If-Match", tag(path)) != tag(path):
        handler.reply(412)
    elif (found := handler.wanted(path)) is None:
        handler.reply(200, path.read_bytes(), ETag=tag(path))
    elif not found[0]:
        handler.reply(416, Content_Range=f"bytes */{found[2]}")
    else:
        handler.wfile.write(handler.part(path))


def status(code: int, **headers: str) -> Act:
    return lambda handler, path: handler.reply(code, b"no", **headers)


def page(handler: _Handler, path: Path) -> None:
    """What a captive portal says to everything, with a good status."""
    handler.reply(200, b"<!DOCTYPE html><title>Please sign in</title>")


def page_in_ranges(handler: _Handler, path: Path) -> None:
    """The same from a server that honours ranges."""
    body = b"<!DOCTYPE html><title>Please sign in</title>".ljust(4096)
    match = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
    if match is None:
        return handler.reply(200, body)
    part = body[int(match[1]) : int(match[2]) + 1]
    return handler.reply(206, part, Content_Range=f"bytes {match[1]}-{int(match[1]) + len(part) - 1}/{len(body)}")


def without_ranges(handler: _Handler, path: Path) -> None:
    handler.reply(200, path.read_bytes())


def whole_as_range(handler: _Handler, path: Path) -> None:
    """The range is stated, and the status says that all of the file comes."""
    data, start, size = handler.wanted(path) or (b"", 0, 0)
    handler.reply(200, path.read_bytes(), Content_Range=f"bytes {start}-{start + len(data) - 1}/{size}")


def another_range(handler: _Handler, path: Path) -> None:
    data, start, size = handler.wanted(path) or (b"", 0, 0)
    handler.reply(206, data, Content_Range=f"bytes {start + 1}-{start + len(data)}/{size}")


def cut(after: int) -> Act:
    """The right beginning, then the connection ends after so many bytes."""

    def act(handler: _Handler, path: Path) -> None:
        handler.wfile.write(handler.part(path)[:after])
        handler.close_connection = True

    return act


def no_answer(handler: _Handler, path: Path) -> None:
    handler.hang_up()


def moved(to: str, code: int = 302) -> Act:
    return lambda handler, path: handler.reply(code, b"", Location=to)


@contextlib.contextmanager
def served(root: Path, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    with Server(root, tls) as server:
        yield server
