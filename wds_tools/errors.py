"""The exceptions that wds_tools raises on purpose.

    WdsToolsError
    ├── OptionError              an option's value cannot be used
    ├── SourceError              the tree or the list cannot be converted
    │   └── SourceChangedError   a file is gone, or not what it was when the plan was made
    ├── TargetError              the place to write to cannot take the dataset
    │   └── TargetBusyError      another conversion is writing there
    ├── StoreError               bytes could not be listed, read or written
    │   ├── NotFoundError        there is nothing of that name
    │   └── ChangedError         a name stands for other bytes than a moment ago
    ├── FormatError              bytes that are not what the format says
    │   ├── TarError             a shard is damaged, cut, or not a tar
    │   ├── IndexFileError       an .idx file cannot be read
    │   │   └── StaleIndexError  an .idx file speaks of another shard
    │   └── ManifestError        info.json cannot be read, or is of a newer version
    ├── SampleError              one sample is bad; the others are not
    │   └── DecodeError          its image bytes do not decode
    ├── TooManyErrors            more bad samples than the budget allows
    ├── WorkerError              a worker process died, or there is none to be had
    └── MissingExtraError        an optional package is not installed

Every message is one sentence or two: what, where, and what to do about it.
"""

import shlex
import sys


class WdsToolsError(Exception):
    """Anything that wds_tools expects to go wrong; every other exception is a bug."""


class OptionError(WdsToolsError, ValueError):
    """An option's value cannot be used; the message prints the value."""


class SourceError(WdsToolsError):
    """The tree or the list cannot be converted."""


class SourceChangedError(SourceError):
    """A source file is gone, or not what it was when the plan was made."""


class TargetError(WdsToolsError):
    """The place to write to cannot take the dataset."""


class TargetBusyError(TargetError):
    """Another conversion is writing to the same place."""


class StoreError(WdsToolsError, OSError):
    """Bytes could not be listed, read or written."""

    def __str__(self) -> str:
        # OSError prints its one argument as a repr in some cases; the sentence alone is wanted.
        return str(self.args[0]) if self.args else ""


class NotFoundError(StoreError):
    """There is nothing of that name."""


class ChangedError(StoreError):
    """A name stands for other bytes than when its reader began."""


class FormatError(WdsToolsError):
    """Bytes that are not what the format says."""


class TarError(FormatError):
    """A shard is damaged, cut short, or not a tar at all."""


class IndexFileError(FormatError):
    """An ``.idx`` file cannot be read."""


class StaleIndexError(IndexFileError):
    """An ``.idx`` file speaks of another shard than the one beside it."""


class ManifestError(FormatError):
    """``info.json`` cannot be read, or is of a newer version than this program."""


class SampleError(WdsToolsError):
    """One sample is bad: ``reason`` says why, ``place`` where (a path, or shard, key and offset)."""

    def __init__(self, reason: str, place: str = "") -> None:
        super().__init__(reason, place)
        self.reason = reason
        self.place = place

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}" if self.place else self.reason

    def at(self, place: str) -> "SampleError":
        """The same error, told where it happened by a caller who knows."""
        return type(self)(self.reason, place)


class DecodeError(SampleError):
    """The image bytes of a sample do not decode."""


class TooManyErrors(WdsToolsError):
    """More bad samples than the error budget allows."""


class WorkerError(WdsToolsError):
    """A worker process died before its work was done, or a cluster has none to give."""


class MissingExtraError(WdsToolsError, ImportError):
    """An optional package is not installed; the message says what to install."""

    @classmethod
    def of(cls, what: str, package: str) -> "MissingExtraError":
        """That ``what`` needs ``package``, and how to install it for this Python, whose pip may not be the one on the path."""
        return cls(f"{what} needs {package}, which is not installed; run: {_python()} -m pip install {package}")


def _python() -> str:
    return shlex.quote(sys.executable or "python")
