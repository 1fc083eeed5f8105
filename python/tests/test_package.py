"""The wheel: complete, with the command, free of any framework, and one for every Python from 3.10."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path

import numpy
import pytest

import public_names

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


def start(clean: Path, *arguments: str) -> subprocess.Popen:
    """Starts the command that pip has installed, in the clean environment's folder."""
    return start_as(clean, [clean.parent / "thinwire"], *arguments)


def start_as(clean: Path, words: list[str | Path], *arguments: str) -> subprocess.Popen:
    """Starts the command by these words."""
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [*words, *arguments]
    return subprocess.Popen(command, env=variables, cwd=clean.parents[1], **output)


def finish(process: subprocess.Popen) -> subprocess.CompletedProcess:
    """Waits for the end of a process, and returns what it has written since."""
    with process:
        out, error = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


def start_sleeping_ranks(clean: Path) -> tuple[subprocess.Popen, list[int]]:
    """Starts two ranks that wait for their end, and returns their launcher and their process ids."""
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    launcher = start(clean, "run", "--ranks", "2", "--", str(clean), "-c", code)
    # Rank 0 speaks for the job, and the other one aside.
    lines = [launcher.stdout.readline(), launcher.stderr.readline()]
    return launcher, [int(line.split()[-1]) for line in lines]


def wait_until_gone(processes: list[int]) -> None:
    """Returns when none of these processes is there."""
    end = time.monotonic() + 60
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < end:
                os.kill(process, 0)
                time.sleep(0.02)
            raise AssertionError(f"process {process} is still there")


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
    licenses = {name.split("/licenses/")[1] for name in names if "/licenses/" in name}
    assert {"LICENSE", "LICENSE-APACHE", "LICENSE-MIT"} <= licenses
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


def test_command_starts_without_numpy(clean):
    done = run(clean, "import sys, thinwire.command; print('numpy' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


def test_root_sets_up_exits_and_forks_without_groups(clean):
    # Jobs of `thinwire.elastic` and servers have no `thinwire.Group`.
    done = run(clean, "import sys, thinwire; print('thinwire.lifetime' in sys.modules)")
    assert done.stdout == "True\n", done.stderr


def test_command_says_its_version_and_refuses_what_it_does_not_know(clean):
    said = finish(start(clean, "-V"))
    assert said.returncode == 0 and f"{said.stdout.strip().replace(' ', '-')}-" in WHEEL
    refused = finish(start(clean, "train", "--ranksx", "2"))
    assert refused.returncode == 2 and refused.stdout == ""
    error, hint = refused.stderr.splitlines()
    assert error.startswith("error: unexpected argument '--ranksx'") and hint.startswith("hint: ")


def test_command_trains_two_ranks(clean):
    size = ["--steps", "4", "--layers", "1", "--width", "32", "--batch", "2"]
    trained = finish(start(clean, "train", *size))
    assert trained.returncode == 0, trained.stderr
    assert "validation loss" in trained.stdout
    assert (clean.parents[1] / "report.html").is_file()


def test_programs_are_ranks_with_usual_signals_and_one_that_fails_is_named(clean):
    code = (
        "import os, signal, sys, thinwire;"
        "group = thinwire.init();"
        "print(group.rank, group.world, signal.getsignal(signal.SIGINT).__name__);"
        "group.close(); sys.exit(7 * group.rank)"
    )
    ended = finish(start(clean, "run", "--ranks", "2", "--", str(clean), "-c", code))
    assert ended.stdout == "0 2 default_int_handler\n", ended.stderr
    said = ended.stderr.splitlines()
    assert said == ["[rank 1] 1 2 default_int_handler", "error: rank 1 exited with code 7"]
    assert ended.returncode == 2


def test_command_is_a_module_and_so_are_its_ranks(clean):
    module = [clean, "-m", "thinwire"]
    assert finish(start_as(clean, module, "--version")).stdout.startswith("thinwire ")
    size = ["--steps", "2", "--layers", "1", "--width", "32", "--batch", "2"]
    trained = finish(start_as(clean, module, "train", *size, "--ranks", "2"))
    assert trained.returncode == 0, trained.stderr
    # As a script, the module's file would make `thinwire.torch` importable as `torch`.
    code = (
        "import runpy, sys; from thinwire import _core;"
        "_core.command = lambda words, arguments: print(*words[1:], *arguments);"
        "sys.argv = ['ignored', 'train'];"
        "runpy.run_module('thinwire', run_name='__main__')"
    )
    assert run(clean, code).stdout == "-m thinwire train\n"


@pytest.mark.parametrize("ending, code", [("SIGINT", 130), ("SIGTERM", 143)])
def test_signal_to_the_command_ends_all_ranks(clean, ending, code):
    launcher, ranks = start_sleeping_ranks(clean)
    launcher.send_signal(getattr(signal, ending))
    ended = finish(launcher)
    assert ended.returncode == code and "command.py" not in ended.stderr, ended.stderr
    wait_until_gone(ranks)


def test_killed_rank_is_named_and_ends_the_others(clean):
    launcher, ranks = start_sleeping_ranks(clean)
    os.kill(ranks[0], signal.SIGKILL)
    ended = finish(launcher)
    assert ended.returncode == 2 and "killed by signal 9 (SIGKILL)" in ended.stderr
    wait_until_gone(ranks)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a rank to its launcher")
def test_no_rank_outlives_a_killed_command(clean):
    launcher, ranks = start_sleeping_ranks(clean)
    launcher.kill()
    assert finish(launcher).returncode == -signal.SIGKILL
    wait_until_gone(ranks)


@pytest.mark.needs("torch", "mindspore")
@pytest.mark.parametrize(
    "module", ["thinwire", "thinwire.torch", "thinwire.torch.graph", "thinwire.mindspore"]
)
def test_public_names_are_those_of_before(module):
    public_names.expect_as_before(module)


@pytest.mark.needs("torch")
def test_submodules_are_reachable_after_one_import():
    program = "import thinwire.torch; thinwire.torch.graph.Loader, thinwire.torch.hook"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


@pytest.mark.needs("mindspore")
@pytest.mark.parametrize("name", ["Exchange", "Reducer"])
def test_classes_beside_their_functions_warn(name):
    public_names.expect_class_to_warn(f"thinwire.mindspore.{name}")


def test_seeds_have_one_default_in_python_and_in_the_command():
    files = public_names.FOLDER.glob("*.txt")
    found = re.findall(r"\bseed: '?int'? = (\d+)", "".join(file.read_text() for file in files))
    command = [sys.executable, "-m", "thinwire", "graph", "partition", "--help"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (default,) = re.findall(r"--seed <N>[^-]*\[default: (\d+)\]", shown)
    assert len(found) > 20 and set(found) == {default}
