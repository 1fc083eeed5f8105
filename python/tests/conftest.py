"""What all Python tests share: ranks that are real processes, and frameworks that may be missing.

pytestmark = pytest.mark.needs("torch")

def average():
    group = thinwire.init()
    ...
    return array.tolist()

def test_ranks_end_bit_identical(ranks):
    first, second = ranks(2, average)
"""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import launch

# Of whatever is started and of tests in this process, which imports torch after this: threads that wait for
# others on busy cores take all their time.
os.environ["OMP_NUM_THREADS"] = "1"
# Its assertions say what they compare.
pytest.register_assert_rewrite("import_law")

INSTALL = {
    "torch": "pip install torch",
    "mindspore": "pip install mindspore 'numpy<2', for Python up to 3.12",
}

ROOT = Path(__file__).parents[2]
# Files begin in this order, before all others: a long one that comes last runs alone.
LONGEST = (
    "test_bench.py",
    "test_torch_examples.py",
    "test_mindspore_elastic.py",
    "test_mindspore_import.py",
    "test_torch_c10d_suite.py",
    "test_torch_backend.py",
    "test_torch_elastic.py",
    "test_torch_import.py",
    "test_torch_ray.py",
    "test_mindspore_weights.py",
    "test_torch_graph_matrix.py",
    "test_torch_fsdp.py",
    "test_pages.py",
    "test_torch_state.py",
    "test_mindspore_failures.py",
    "test_torch_fsdp_residuals.py",
    "test_torch_failures.py",
    "test_torch_fsdp_replicas.py",
    "test_torch_lightning.py",
    "test_torch_elastic_data.py",
    "test_mindspore_examples.py",
    "test_torch_reshard.py",
    "test_torch_device.py",
    "test_tutorials.py",
    "test_torch_within.py",
)
# All tests together; who reaches it sees where each thread stands, and pytest ends.
SESSION_S = 60 * 60


@pytest.fixture
def ranks() -> Callable[..., list[Any]]:
    """Runs a function or a script in `world` processes and returns what each rank returned.

    Fails with everything that the ranks said if one of them failed or took longer than `timeout`
    seconds. A test of failures themselves calls `launch.run`, which returns how each rank ended.
    """

    def run(
        world: int,
        program: Callable[..., Any] | Path | str,
        *,
        arguments: Sequence[Any] = (),
        env: Any = None,
        timeout: float = launch.PATIENCE_S,
    ) -> list[Any]:
        __tracebackhide__ = True
        outcomes = launch.run(
            world, program, arguments=arguments, env=env, timeout=timeout, wait_for_all=False
        )
        return launch.results(outcomes)

    return run


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., str]:
    """Runs the command in a folder of the test's own, and returns what it prints."""
    places = [ROOT / "target" / kind / "thinwire" for kind in ("debug", "release")]
    places.insert(0, Path(os.environ.get("THINWIRE_COMMAND", "/nowhere")))
    program = next((place for place in places if place.is_file()), None)
    if program is None:
        pytest.skip("there is no command: cargo build makes it")
    folder = tmp_path / "folder"
    folder.mkdir()

    def run(*arguments: Any) -> str:
        ended = subprocess.run(
            [program, *map(str, arguments)], cwd=folder, capture_output=True, text=True, timeout=300
        )
        assert ended.returncode == 0, f"{arguments}: {ended.stderr}"
        return ended.stdout

    run.folder, run.program = folder, program
    return run


def pytest_configure(config: pytest.Config) -> None:
    """Declares the mark of tests that need a framework, and bounds the time of everything."""
    config.addinivalue_line("markers", "needs(module, ...): skipped where a module is missing")
    # Of coordinators in this process: who starves on a busy machine is silent, and not lost.
    os.environ["THINWIRE_HEARTBEAT_TIMEOUT_S"] = "6"
    stderr = os.dup(2)  # which is not redirected between tests
    faulthandler.dump_traceback_later(SESSION_S, exit=True, file=stderr)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test whose modules are missing; in CI, where nothing may be missing, fails it."""
    give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
    for module in (module for mark in item.iter_markers("needs") for module in mark.args):
        if importlib.util.find_spec(module) is None:
            give_up(f"{module} is not installed: {INSTALL.get(module, f'pip install {module}')}")
