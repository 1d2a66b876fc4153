"""Restart tiles."""

from wds_tools.errors import DecodeError, OptionError

try:
    from wds_tools.image import _kernel as kernel
except ImportError:
    kernel = None


def tile(data, pixels=64):
    if kernel is None:
        raise OptionError("no kernel")
    return kernel.tile(data, pixels)


def crop(data, x, y, w, h):
    found = kernel.crop(data, x, y, w, h)
    if isinstance(found, tuple):
        return found
    if found is None:
        raise OptionError(f"the box {x}, {y}, {w}, {h} does not lie in the picture")
    raise DecodeError(f"cannot crop this JPEG: {found}")
