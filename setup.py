"""Metadata lives in setup.cfg; here the optional C kernel is built.

Without a compiler everything installs and works, slower. From Python 3.11 on, one build serves all later versions (the
stable ABI has had the buffer protocol since then).
"""

import sys
import sysconfig
from glob import glob

from setuptools import Extension, setup

STABLE = sys.version_info >= (3, 11) and not sysconfig.get_config_var("Py_GIL_DISABLED")
POSIX = sys.platform != "win32"

KERNEL = Extension(
    "wds_tools.image._kernel",
    sources=sorted(glob("wds_tools/image/kernel/*.c")),
    depends=sorted(glob("wds_tools/image/kernel/*.h")),
    define_macros=[("Py_LIMITED_API", "0x030B0000")] if STABLE else [],
    py_limited_api=STABLE,
    extra_compile_args=["-std=c11", "-O3", "-Wall", "-Wextra"] if POSIX else ["/O2"],
    optional=True,
)

setup(ext_modules=[KERNEL], options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE else {})
