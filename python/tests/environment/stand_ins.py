"""A stand-in for the CUDA libraries that torch is linked with: for tests on machines without a GPU.

Never shipped. torch's wheel for Linux cannot be loaded without a dozen NVIDIA libraries, gigabytes
that a machine without a GPU never calls. One small library takes the place of them all: found under
each of their names, it exports the symbols that torch's own libraries leave undefined, under the
versions that they want, and answers every call with "no device", in words where words are asked for.
Then `torch.cuda.is_available()` is False and everything for CPUs works.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

TOOLS = ("cc", "ldd", "nm")
NVIDIA = re.compile(r"_*(cu|Cupti|nccl|nvJit|nvml|nvrtc|nvshmem)")
TEXT = re.compile(r"(cuda|cudnn|cusparse|nccl|nvrtc)Get(Last)?Error(String|Name)|ncclGetLastError")
NO_DEVICE = 100  # cudaErrorNoDevice and CUDA_ERROR_NO_DEVICE


def possible() -> bool:
    """Whether this machine has Linux libraries and the tools to make more."""
    return sys.platform == "linux" and all(shutil.which(tool) for tool in TOOLS)


def make(folder: Path) -> None:
    """Puts the stand-in beside torch's libraries in `folder`, under each name that they miss."""
    libraries = sorted(folder.glob("*.so*"))
    names = missing(libraries)
    if not names:
        return
    stand_in = folder / "libthinwire_no_cuda.so"
    build(stand_in, undefined(libraries))
    for name in names:
        (folder / name).symlink_to(stand_in.name)


def missing(libraries: list[Path]) -> set[str]:
    """The libraries that the loader does not find."""
    return set(re.findall(r"^\s*(\S+) => not found$", output("ldd", *libraries), re.MULTILINE))


def undefined(libraries: list[Path]) -> dict[str, str]:
    """The symbols that `libraries` want of NVIDIA's, each with the version wanted, or "" for any."""
    wanted: dict[str, str] = {}
    for symbol in re.findall(r" U (\S+)$", output("nm", "-D", *libraries), re.MULTILINE):
        name, _, version = symbol.partition("@")
        if NVIDIA.match(name):
            wanted[name] = version or wanted.get(name, "")
    return wanted


def build(library: Path, symbols: dict[str, str]) -> None:
    """Compiles a library that exports `symbols` under their versions."""
    versions: dict[str, str] = defaultdict(str)
    for name, version in symbols.items():
        if version:
            versions[version] += f"{name}; "
    with tempfile.TemporaryDirectory() as folder:
        source, exports = Path(folder, "no_cuda.c"), Path(folder, "no_cuda.map")
        source.write_text("".join(map(function, symbols)))
        exports.write_text("".join(f"{v} {{ {names}}};\n" for v, names in versions.items()))
        options = ["-shared", "-fPIC", "-fno-builtin", "-w", f"-Wl,--version-script={exports}"]
        subprocess.run(["cc", *options, "-o", library, source], check=True)


def function(name: str) -> str:
    """A function in C of that name."""
    if TEXT.fullmatch(name):
        return f'const char *{name}(void) {{ return "no device"; }}\n'
    return f"int {name}(void) {{ return {NO_DEVICE}; }}\n"


def output(*command: str | Path) -> str:
    """What a tool prints; its complaints about single files are not ours."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout
