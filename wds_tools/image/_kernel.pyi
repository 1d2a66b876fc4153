# The C kernel; its sources are in kernel/.

from typing import Any

def tile(data: bytes | bytearray | memoryview, pixels: int, optimise: bool = True, /) -> bytes: ...
def crop(
    data: bytes | bytearray | memoryview, x: int, y: int, width: int, height: int, /
) -> tuple[bytes, int, int] | str | None: ...
def plain_size(data: bytes | bytearray | memoryview, /) -> tuple[int, int] | None: ...
def resize(
    pixels: Any,
    left: float,
    top: float,
    right: float,
    bottom: float,
    out: Any,
    mirrored: bool,
    portable: bool,
    /,
) -> None: ...
