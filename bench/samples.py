"""The samples of an elastic training, as its ranks have recorded them: each exactly once in a pass.

Ranks record the samples of a step before they send anything of it, and the steps that they have applied.
A step that was applied in two epochs was lost with all that had applied it first: the last epoch counts.
"""

import collections
import json
import pathlib
import sys


def passes(folder):
    """Returns the number of passes; exits unless every sample is in exactly one step of each."""
    tried, applied = collections.defaultdict(set), {}
    for file in pathlib.Path(folder).iterdir():
        for line in map(json.loads, file.read_text().splitlines()):
            if "applied" in line:
                step = line["applied"]
                applied[step] = max(line["epoch"], applied.get(step, 0))
            else:
                tried[line["step"], line["epoch"]].update(line["samples"])
    if sorted(applied) != list(range(len(applied))):
        raise SystemExit(f"steps {sorted(applied)[:3]} to {max(applied)} are not in a row")
    steps = [tried[step, epoch] for step, epoch in sorted(applied.items())]
    everything = set().union(*steps)
    count, seen = 0, set()
    for number, step in enumerate(steps):
        if twice := seen & step:
            raise SystemExit(f"step {number} has samples {sorted(twice)[:5]} of a step before it")
        seen |= step
        if seen == everything:
            count, seen = count + 1, set()
    if seen:
        raise SystemExit(f"the last pass lacks samples {sorted(everything - seen)[:5]}")
    return count


if __name__ == "__main__":
    print(passes(sys.argv[1]))
