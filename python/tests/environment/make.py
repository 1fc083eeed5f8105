"""The virtual environment of the Python tests, made from nothing: `python make.py FOLDER`.

For tests on machines without a GPU, never shipped, and never a user's way to install torch. There,
torch comes without its 5 GB of CUDA libraries, and stand-ins take their place (stand_ins.py). Where
an NVIDIA driver is present, or the tools that make stand-ins are not, torch comes as it is.

The requirements are a complete list, so that nothing is resolved. Exit code 75 means that the package
registry cannot be reached; pip is configured by its own environment.
"""

import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

import stand_ins

REQUIREMENTS = Path(__file__).parent.with_name("requirements.txt")
UNREACHABLE = 75
IMPORTS = "import torch, mindspore, accelerate, lightning, ray.train, transformers"


def main() -> int:
    """Makes the environment in the folder that the first argument names."""
    folder = Path(sys.argv[1])
    start = time.monotonic()
    say(f"making the test environment in {folder}, some minutes")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True, with_pip=True)
    if not registry_answers(folder):
        return UNREACHABLE
    try:
        fill(folder)
    except subprocess.CalledProcessError as error:
        say(f"error: {error}")
        return 1
    say(f"test environment made in {time.monotonic() - start:.0f} s")
    return 0


def fill(folder: Path) -> None:
    """Installs everything, sees that the frameworks can be imported, and marks it as complete."""
    if stand_ins.possible() and not driver_present():
        install(folder, "--no-deps")
        stand_ins.make(next(folder.glob("lib/python*/site-packages/torch/lib")))
    else:
        install(folder)
    subprocess.run([folder / "bin" / "python", "-c", IMPORTS], check=True)
    (folder / "complete").touch()


def registry_answers(folder: Path) -> bool:
    """Whether pip finds a small package, asked without patience."""
    package = next(line for line in REQUIREMENTS.read_text().splitlines() if "iniconfig" in line)
    ask = ["install", "--dry-run", "--no-deps", "--no-cache-dir", "--retries=1", "--timeout=20"]
    found = pip(folder, *ask, package, capture_output=True, text=True)
    if found.returncode != 0:
        lines = found.stderr.strip().splitlines() or ["pip said nothing"]
        say(f"the package registry cannot be reached: {lines[-1]}")
    return found.returncode == 0


def driver_present() -> bool:
    """Whether this machine has an NVIDIA driver."""
    return Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi") is not None


def install(folder: Path, *options: str) -> None:
    """Installs the requirements."""
    arguments = ["--quiet", "--progress-bar=off", "--no-warn-conflicts", *options]
    pip(folder, "install", *arguments, "-r", str(REQUIREMENTS), check=True)


def pip(folder: Path, *arguments: str, **options) -> subprocess.CompletedProcess:
    """Runs the environment's pip."""
    return subprocess.run([folder / "bin" / "python", "-m", "pip", *arguments], **options)


def say(text: str) -> None:
    """Tells people what happens."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
