"""A new folder, filled whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from wds_tools.errors import TargetError


@contextmanager
def new_folder(target: str) -> Iterator[str]:
    """A hidden folder in ``target`` to write to, whose content moves up when the block ends and goes when it fails.

    ``target`` must be empty or not there, else `TargetError`; so is what the system says against making it.
    """
    made = not os.path.lexists(target)
    try:
        os.makedirs(target, exist_ok=True)
        _refuse_content(os.listdir(target), target)
        part = tempfile.mkdtemp(prefix=".part-", dir=target)
    except (FileExistsError, NotADirectoryError):
        raise TargetError(f"{target!r} is a file, or lies below one; give a new folder") from None
    except OSError as error:
        raise TargetError(f"cannot write to {target!r}: {error.strerror}; choose another folder") from error
    try:
        yield part
        _refuse_content(set(os.listdir(target)) - {os.path.basename(part)}, target)
        for name in os.listdir(part):
            os.rename(os.path.join(part, name), os.path.join(target, name))
        os.rmdir(part)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):
                os.rmdir(target)
        raise


def _refuse_content(names: list[str] | set[str], target: str) -> None:
    if names:
        raise TargetError(f"{target!r} is not empty; give a new folder")
