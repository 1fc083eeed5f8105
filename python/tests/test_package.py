"""The wheel: one for every Python from 3.10, complete, and importable without any framework."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy
import pytest

WHEEL = os.environ.get("THINWIRE_WHEEL")
pytestmark = pytest.mark.skipif(not WHEEL, reason="no wheel at hand: run `cargo xtask python`")


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> Path:
    """The Python of an environment with the wheel and NumPy, which is borrowed, and nothing else."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder)
    python = folder / "bin" / "python"
    site = next(folder.glob("lib/python*/site-packages"))
    for part in Path(numpy.__file__).parents[1].glob("numpy*"):
        (site / part.name).symlink_to(part)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--quiet"]
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*pip, WHEEL], env=alone, check=True, timeout=600)
    return python


def run(python: Path, code: str) -> subprocess.CompletedProcess:
    """Runs `code` without this process's environment variables for Python."""
    command = [python, "-I", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_import_brings_no_framework(clean):
    imports = "import sys, thinwire; print(thinwire.__version__)"
    frameworks = "print({'torch', 'mindspore'} & set(sys.modules))"
    done = run(clean, f"{imports}; {frameworks}")
    assert done.returncode == 0, done.stderr
    version, loaded = done.stdout.splitlines()
    assert f"thinwire-{version}-" in WHEEL and loaded == "set()"


@pytest.mark.parametrize("framework", ["torch", "mindspore"])
def test_missing_framework_is_named_with_the_way_to_get_it(clean, framework):
    done = run(clean, f"import thinwire.{framework}")
    message = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0
    assert message.startswith(("ImportError: ", "ModuleNotFoundError: "))
    assert framework in message and "pip install" in message


def test_wheel_is_complete_and_holds_no_tests():
    with zipfile.ZipFile(WHEEL) as wheel:
        names = wheel.namelist()
    wanted = ["thinwire/py.typed", "thinwire/_core.pyi", "thinwire/_core.abi3.so"]
    assert set(wanted) <= set(names)
    assert sum("/licenses/LICENSE" in name for name in names) == 3
    assert not [name for name in names if not name.startswith(("thinwire/", "thinwire-"))]


def test_one_wheel_serves_every_python():
    assert "-cp310-abi3-" in Path(WHEEL).name


def test_stubs_are_those_of_the_binary():
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "--concise", "thinwire._core"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
