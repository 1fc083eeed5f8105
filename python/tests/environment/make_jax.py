"""The virtual environment of the tests of JAX, Keras and TensorFlow: `python make_jax.py FOLDER`.

As make.py makes the other one, from a complete list of requirements: nothing is resolved, exit code 75
means that the package registry cannot be reached, and the marker `complete` comes last. All of it is for
CPUs, so there is nothing to stand in for.
"""

import subprocess
import sys
from pathlib import Path

import make

make.REQUIREMENTS = Path(__file__).parent.with_name("requirements-jax.txt")
IMPORTS = "import jax, optax, flax, equinox, tensorflow, keras"


def fill(folder: Path) -> None:
    """Installs everything, sees that the frameworks can be imported, and marks it as complete."""
    make.install(folder, "--no-deps")
    subprocess.run([folder / "bin" / "python", "-c", IMPORTS], check=True)
    (folder / "complete").touch()


make.fill = fill

if __name__ == "__main__":
    sys.exit(make.main())
