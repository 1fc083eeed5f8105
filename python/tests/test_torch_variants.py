"""Random trainings under every kind of codec, against a reference in one process that sums in f64.

    pytest python/tests/test_torch_variants.py                          # a few
    THINWIRE_VARIANTS=200 pytest -s python/tests/test_torch_variants.py # 200, in a few minutes

torch_variants.py draws them: networks in turns, experts, models over some of the ranks, FSDP2, `join`,
several backward passes. Law of each step and parameter, summed over the ranks of a model:

    gradient seen by the optimizer + residuals after = true average + residuals before + m * momenta before

and where no rank used a parameter, nothing is seen, and nothing that is kept changes. Without residuals the
gradient is the true average. Under "ef21" the mean that is kept is the gradient, and the sum of the shifts.
A training may end in an InvalidError; these are counted by what they say.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import launch

pytestmark = pytest.mark.needs("torch")

COUNT = int(os.environ.get("THINWIRE_VARIANTS", "24"))
CODEC = os.environ.get("THINWIRE_VARIANTS_CODEC")
"""In place of all codecs; "plain" is PyTorch alone."""
IN_A_LAUNCH = 24
# Of the largest number in a sum; f32 has 2^-24 for each rounding.
TOLERANCE = 2e-5
ROUNDED = {"bf16": 2.0**-6, "powersgd:2": 2e-4}
# How far a mean may be from the gradient: two encodings of values and of their change.
SHIFTED = {"int8": 8 / 254, "int4": 8 / 14}


@functools.cache
def played(chunk: int) -> tuple[list[launch.Outcome], dict[tuple[int, int], Any]]:
    """How ranks ended that played some trainings, and by training and rank what they saw."""
    import torch

    import torch_variants

    numbers = range(chunk * IN_A_LAUNCH, min(COUNT, (chunk + 1) * IN_A_LAUNCH))
    with tempfile.TemporaryDirectory() as folder:
        arguments = [folder, list(numbers), CODEC]
        world = torch_variants.WORLD
        outcomes = launch.run(world, torch_variants.play, arguments=arguments, wait_for_all=False)
        files = [(number, rank) for number in numbers for rank in range(world)]
        return outcomes, {
            key: torch.load(file)
            for key in files
            if (file := Path(folder, f"{key[0]}.{key[1]}")).exists()
        }


def results(number: int) -> list[dict[str, Any]]:
    """What each rank saw of a training."""
    outcomes, found = played(number // IN_A_LAUNCH)
    if (number, len(outcomes) - 1) not in found:
        launch.results(outcomes)
    return [found[number, rank] for rank in range(len(outcomes))]


def refusal(number: int) -> str | None:
    """What is said where a training is refused; AssertionError for any other end."""
    errors = {rank: each["error"] for rank, each in enumerate(results(number)) if "error" in each}
    said = [text for kind, text in errors.values() if kind == "InvalidError"]
    expected = said and all(kind in ("InvalidError", "PeerError") for kind, _ in errors.values())
    assert expected or not errors, errors
    return said[0] if said else None


@pytest.mark.parametrize("number", range(COUNT))
def test_nothing_of_a_gradient_is_lost_or_invented(number: int) -> None:
    import torch_variants

    said = refusal(number)
    if said is not None:
        assert "\n" not in said and "hint" in said
        return
    variant = torch_variants.drawn(number)
    found = list(faults(variant, results(number)))
    assert not found, "\n".join([str(variant), *found[:8]])


def test_few_trainings_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = collections.Counter(
        re.sub(r"[0-9]+", "N", text) for number in range(COUNT) if (text := refusal(number))
    )
    with capsys.disabled():
        print("".join(f"\nrefused {count} of {COUNT}: {text}" for text, count in said.items()))
    assert said.total() <= COUNT / 5


def faults(variant: Any, found: list[dict[str, Any]]) -> Iterator[str]:
    """Where a training breaks the law."""
    import torch_variants

    own = own_gradients(variant)
    for place, groups in enumerate(variant.groups):
        for ranks in torch_variants.GROUPS[groups]:
            shared = Shared(variant, place, ranks, own, found)
            for name, _ in variant.models()[place].named_parameters():
                for text in shared.faults(name):
                    yield f"{variant.networks[place]}.{name} of ranks {ranks}, {text}"


def own_gradients(variant: Any) -> list[list[list[dict[str, Any]]]]:
    """By rank, step and model the sums of a rank's own gradients, in f64; none of what it did not use."""
    import torch_variants

    def own_step(step: int, rank: int) -> list[dict[str, Any]]:
        models = [model.double() for model in variant.models()]
        for number in range(len(variant.passes)):
            variant.loss(models, step, number, rank).backward()
        return [
            {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
            for model in models
        ]

    ranks = range(torch_variants.WORLD)
    return [[own_step(step, rank) for step in range(variant.steps_of(rank))] for rank in ranks]


@dataclasses.dataclass
class Shared:
    """A model over some ranks: what is true, and what these ranks saw and kept."""

    variant: Any
    place: int
    ranks: list[int]
    own: list[list[list[dict[str, Any]]]]
    found: list[dict[str, Any]]

    def faults(self, name: str) -> Iterator[str]:
        """Where one parameter breaks the law."""
        steps = range(self.variant.steps_of(self.ranks[0]))
        for step in steps:
            if not self.agree(step, name):
                yield f"step {step}: ranks see other gradients"
        if self.variant.divides_by_initial is not None:  # what is kept is known at the end alone
            yield from self.law(name, list(steps), -1, 0)
            return
        for step in steps:
            yield from self.law(name, [step], step - 1, step)

    def law(self, name: str, steps: list[int], before: int, after: int) -> Iterator[str]:
        """Whether steps keep the law, between the places `before` and `after` of what is kept."""
        seen = sum(self.seen(step, name) for step in steps)
        true = sum(self.true(step, name) for step in steps)
        if not any(self.used(step, name) for step in steps):
            yield from self.law_of_rest(name, seen, before, after)
        elif f"mean.{name}" in self.entry(after, self.ranks[0]):
            yield from self.law_of_means(name, seen, true, after)
        else:
            factor = self.variant.hook.get("momentum_correction", 0.0)
            owed = true + factor * self.kept("momentum", before, name)
            owed = owed + self.kept("residual", before, name)
            limit = ROUNDED.get(self.variant.codec, TOLERANCE) * self.scale
            left = seen + self.kept("residual", after, name)
            yield from unequal("lost or invented", left, owed, limit, after)

    def law_of_rest(self, name: str, seen: Any, before: int, after: int) -> Iterator[str]:
        """Of a parameter that no rank used."""
        yield from unequal("seen of a gradient of nobody", seen, 0.0 * seen, 0.0, after)
        for part in ("residual", "momentum", "shift", "mean"):
            old, new = self.kept(part, before, name), self.kept(part, after, name)
            yield from unequal(f"changed in {part} without a gradient", new, old, 0.0, after)

    def law_of_means(self, name: str, seen: Any, true: Any, after: int) -> Iterator[str]:
        """Of a parameter under "ef21"."""
        mean = self.kept("mean", after, name) / len(self.ranks)
        exact, near = TOLERANCE * self.scale, SHIFTED.get(self.variant.codec, 2.0) * self.scale
        yield from unequal("between gradient and mean", seen, mean, exact, after)
        yield from unequal(
            "between mean and shifts", mean, self.kept("shift", after, name), exact, after
        )
        yield from unequal("between gradient and truth", seen, true, near, after)

    def seen(self, step: int, name: str) -> Any:
        """The gradient that optimizers saw, zero where there was none."""
        return self.or_zero(self.found[self.ranks[0]]["seen"][step][self.place].get(name))

    def agree(self, step: int, name: str) -> bool:
        """Whether all ranks that made a step saw the same bits."""
        made = [self.found[rank]["seen"][step : step + 1] for rank in self.ranks]
        all_seen = [self.or_zero(each[0][self.place].get(name)) for each in made if each]
        return all(bool((each == all_seen[0]).all()) for each in all_seen)

    def true(self, step: int, name: str) -> Any:
        """The average of the ranks' own gradients."""
        made = [self.own[rank][step : step + 1] for rank in self.ranks]
        parts = [each[0][self.place].get(name) for each in made if each]
        by_active = self.variant.divides_by_initial is False
        return sum(map(self.or_zero, parts)) / (len(parts) if by_active else len(self.ranks))

    def used(self, step: int, name: str) -> bool:
        """Whether a rank has a gradient of its own."""
        made = [self.own[rank][step : step + 1] for rank in self.ranks]
        return any(name in each[0][self.place] for each in made if each)

    def kept(self, part: str, where: int, name: str) -> Any:
        """The sum over ranks of what is kept of a parameter, nothing before the first step."""
        entries = [self.entry(where, rank).get(f"{part}.{name}") for rank in self.ranks]
        shape = self.shapes[name]
        return sum(
            self.or_zero(None)
            if values is None or where < 0 or not values.numel()
            # FSDP2 pads the last rows.
            else values.double().flatten()[: shape.numel()].reshape(shape)
            for values in entries
        )

    def entry(self, where: int, rank: int) -> dict[str, Any]:
        """What a rank keeps."""
        entry: dict[str, Any] = self.found[rank]["kept"][where][self.place]
        return entry

    def or_zero(self, values: Any) -> Any:
        """In f64."""
        import torch

        return torch.zeros((), dtype=torch.float64) if values is None else values.double()

    @functools.cached_property
    def shapes(self) -> dict[str, Any]:
        """The shape of each parameter."""
        model = self.variant.models()[self.place]
        return {name: parameter.shape for name, parameter in model.named_parameters()}

    @functools.cached_property
    def scale(self) -> float:
        """The largest number that occurs in any sum."""
        kept = [step[self.place] for rank in self.ranks for step in self.found[rank]["kept"]]
        own = [step[self.place] for rank in self.ranks for step in self.own[rank]]
        tensors = [values for step in kept + own for values in step.values() if values.numel()]
        return max((float(values.abs().max()) for values in tensors), default=0.0)


def unequal(fault: str, left: Any, right: Any, limit: float, step: int) -> Iterator[str]:
    """Says so where two tensors differ by more than `limit`."""
    error = float((left - right).abs().max())
    if not error <= limit:
        yield f"step {step}: {error:.2e} is {fault}, expected at most {limit:.1e}"
