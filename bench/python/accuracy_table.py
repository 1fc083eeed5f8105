"""From accuracy.py's JSON lines on stdin to Markdown: a row per codec, means over seeds."""

import collections
import json
import statistics
import sys


def main() -> None:
    results = collections.defaultdict(lambda: collections.defaultdict(list))
    errors = {}
    for line in sys.stdin:
        record = json.loads(line)
        if "error" in record:
            errors[record["codec"]] = record["error"]
        else:
            results[record["codec"]][record["model"]].append(record)
    print("| codec | gpt loss | to none | spread | cnn loss | cnn right | to none |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for codec, by_model in results.items():
        cells = [codec]
        for model, extra in (("gpt", "spread"), ("cnn", "accuracy")):
            losses = [record["loss"] for record in by_model[model]]
            if not losses:
                cells += ["", "", ""]
                continue
            mean, reference = statistics.mean(losses), mean_of(results, model, "loss")
            cells.append(f"{mean:.4f}")
            if extra == "spread":
                cells.append(f"{100 * (mean / reference - 1):+.2f} %")
                cells.append(f"{max(losses) - min(losses):.4f}")
            else:
                right = statistics.mean(record["accuracy"] for record in by_model[model])
                cells.append(f"{100 * right:.2f} %")
                difference = 100 * (right - mean_of(results, model, "accuracy"))
                cells.append(f"{difference:+.2f}")
        print("| " + " | ".join(cells) + " |")
    for codec, error in errors.items():
        print(f"\nno {codec}: {error}")


def mean_of(results: dict, model: str, key: str) -> float:
    return statistics.mean(record[key] for record in results["none"][model])


if __name__ == "__main__":
    main()
