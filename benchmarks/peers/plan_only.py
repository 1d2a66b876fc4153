"""The plan phase of a conversion, without the shards: scan, shuffle, cut, write the plan down.

Usage: plan_only.py TREE OUT WORKERS. Prints the seconds that it took, without imports, and the driver's peak MB.
"""

import os
import resource
import sys
import time

from wds_tools.convert import sources
from wds_tools.convert.conversion import Conversion
from wds_tools.convert.engines import make_engine
from wds_tools.convert.entries import Search
from wds_tools.convert.options import ConvertOptions
from wds_tools.convert.result import Quiet
from wds_tools.store.local import LocalStore

tree, out, workers = sys.argv[1:]
os.makedirs(out, exist_ok=True)
options = ConvertOptions(on_error="skip")
started = time.perf_counter()
search = Search(tree, sources.scan)
conversion = Conversion(search, LocalStore(out), options, make_engine("process", int(workers)), Quiet(), options.split)
conversion.plan_only()
seconds = time.perf_counter() - started
print(f"{seconds:.3f} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000:.0f}")
