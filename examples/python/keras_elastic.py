"""A small network on noisy patterns, trained by ranks that come and go; Thinwire is the lines marked with
an arrow.

    thinwire run --ranks 2:4 --restarts 10 -- python examples/python/keras_elastic.py

Kill a rank: the others repeat the step, and the launcher starts another one, which joins. It runs on
every backend of Keras 3.
"""

import argparse

import keras
from keras_fit import CLASSES, SIDE, patterns

import thinwire.keras


def main() -> None:
    """Trains on every rank of the job."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--codec", default="auto")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64, help="images per step, over all ranks")
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    images, labels = patterns(2000)
    held_out = 400

    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(CLASSES),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"])
    elastic = thinwire.keras.Elastic(model, options.batch, options.codec)  # <-- joins the job
    data = elastic.dataset((images[held_out:], labels[held_out:]), seed=1)  # <-- its parts
    model.fit(
        data,
        epochs=options.epochs,
        initial_epoch=elastic.initial_epoch,  # <-- the pass in which the job is
        callbacks=[elastic.callback()],  # <-- ends the steps of all ranks
        verbose=0,
    )
    if elastic.rank == 0:
        _, accuracy = model.evaluate(images[:held_out], labels[:held_out], verbose=0)
        print(f"{elastic.steps} steps, {100 * accuracy:.1f} % of {held_out} right")


if __name__ == "__main__":
    main()
