"""Fuzzing of the tile kernel, without Python in the process: ``python -m tests.fuzz.run 2000000``.

The kernel is compiled with AddressSanitizer and UBSan around ``target.c``, by clang with libFuzzer where it is
installed, else by gcc with ``driver.c``. An input that breaks a promise or touches memory that is not its own ends the
run, and libFuzzer writes it down beside the corpus.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support import images

HERE = Path(__file__).parent
KERNEL = HERE.parent.parent / "wds_tools" / "image" / "kernel"
SANITIZERS = "address,undefined"
FLAGS = ["-std=c11", "-g", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", f"-I{KERNEL}"]
LONGEST = 4096  # bytes of an input: room for pictures of some hundred blocks


def sources() -> list[str]:
    """The kernel's files that know nothing of Python, and the target."""
    rooms = [path for path in sorted(KERNEL.glob("*.c")) if "Python.h" not in path.read_text()]
    return [str(path) for path in [HERE / "target.c", *rooms]]


def has_libfuzzer(folder: Path) -> bool:
    if shutil.which("clang") is None:
        return False
    probe = folder / "probe.c"
    probe.write_text("int LLVMFuzzerTestOneInput(const void *a, unsigned long b) { return a && b ? 0 : 0; }\n")
    command = ["clang", f"-fsanitize=fuzzer,{SANITIZERS}", str(probe), "-o", str(folder / "probe")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def build(folder: Path) -> tuple[Path, bool]:
    """The program, and whether it is libFuzzer's."""
    program = folder / "fuzz"
    covered = has_libfuzzer(folder)
    if covered:
        command = ["clang", "-O2", *FLAGS, f"-fsanitize=fuzzer,{SANITIZERS}", *sources()]
    else:
        command = ["gcc", "-O1", *FLAGS, f"-fsanitize={SANITIZERS}", *sources(), str(HERE / "driver.c")]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program, covered


def seeds(folder: Path) -> list[Path]:
    """Small files of every sampling, table kind and marker spacing, each with a tail that chooses boxes."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    files = [images.sampled_jpeg(sampling, 40, 20) for sampling in ("444", "422", "420", "440", "411")]
    files += [images.jpeg(60, 20, mode="L"), images.jpeg(3, 3), images.jpeg(33, 17, optimize=True)]
    files += [images.jpeg(progressive=True), images.cmyk_jpeg(20, 20), images.jpeg(20, 20) + b"tail"]
    spacings = {"restart_marker_blocks": 1}, {"restart_marker_blocks": 3}, {"restart_marker_rows": 1}
    files += [images.jpeg(50, 33, quality=95, **spacing) for spacing in spacings]
    paths = []
    for number, data in enumerate(files):
        path = folder / f"seed{number:02}"
        path.write_bytes(data + rng.randbytes(8))
        paths.append(path)
    return paths


def fuzz(folder: Path, runs: int, seed: int = 1) -> subprocess.CompletedProcess[str]:
    """So many executions; what the program said and how it ended."""
    folder.mkdir(parents=True, exist_ok=True)
    program, covered = build(folder)
    paths = seeds(folder / "seeds")
    if covered:
        (folder / "corpus").mkdir(exist_ok=True)
        options = [
            f"-runs={runs}",
            f"-seed={seed}",
            f"-max_len={LONGEST}",
            f"-artifact_prefix={folder}/",
            "-print_final_stats=1",
        ]
        command = [str(program), *options, str(folder / "corpus"), str(folder / "seeds")]
    else:
        command = [str(program), str(runs), str(seed), *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    done = fuzz(Path("build/fuzz").absolute(), int(sys.argv[1]), *map(int, sys.argv[2:3]))
    print(done.stderr[-6000:])
    sys.exit(done.returncode)
