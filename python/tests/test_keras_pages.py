"""Every block about Keras and TensorFlow on the pages for users runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import rank
from test_pages import KERAS


@pytest.mark.needs("keras", "tensorflow")
def test_blocks_of_keras_run(ranks):
    run = rank.load(Path(__file__).with_name("pages_keras.py"), "run")
    first, second = ranks(2, run, arguments=[KERAS])
    assert first == second and len(first) >= len(KERAS)
