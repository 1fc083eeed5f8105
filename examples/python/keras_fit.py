"""A small network on noisy patterns, trained by `model.fit`; Thinwire is the lines marked with an arrow.

    thinwire run --ranks 2 -- python examples/python/keras_fit.py --codec int8
    KERAS_BACKEND=jax torchrun --nproc-per-node 2 examples/python/keras_fit.py

It runs on every backend of Keras 3. Each rank trains on its part; rank 0 prints the accuracy on images
that nobody has trained on, and saves the model, which loads without Thinwire.
"""

import argparse

import keras
import numpy as np

import thinwire
import thinwire.keras

CLASSES, SIDE = 10, 16


def main() -> None:
    """Trains on every rank of the job."""
    options = parsed()
    group = thinwire.init()  # <-- who is who, from the launcher's environment
    keras.utils.set_random_seed(1)
    images, labels = patterns(2000)
    held_out = 400
    mine = slice(held_out + group.rank, None, group.world)

    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(CLASSES),
        ]
    )
    optimizer = thinwire.keras.distributed(  # <-- the exchange
        keras.optimizers.Adam(2e-3), codec=options.codec
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    callbacks = [thinwire.keras.Broadcast(), thinwire.keras.MetricAverage()]  # <-- the same start
    history = model.fit(
        images[mine],
        labels[mine],
        batch_size=options.batch,
        epochs=options.epochs,
        callbacks=callbacks,
        verbose=0,
    )
    if group.rank == 0:
        losses = " ".join(f"{each:.3f}" for each in history.history["loss"])
        _, accuracy = model.evaluate(images[:held_out], labels[:held_out], verbose=0)
        print(
            f"{group.world} ranks, codec {options.codec}: loss {losses}, "
            f"{100 * accuracy:.1f} % of {held_out} right"
        )
        if options.save:
            model.save(options.save)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--codec", default="auto")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32, help="images per rank and step")
    parser.add_argument("--save", help="where rank 0 saves the model, as model.keras")
    return parser.parse_args()


def patterns(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of ten patterns under noise, and which each is."""
    draws = np.random.default_rng(0)
    coarse = draws.random((CLASSES, SIDE // 4, SIDE // 4)) > 0.5
    labels = draws.integers(0, CLASSES, count)
    images = np.kron(coarse, np.ones((4, 4)))[labels] + draws.normal(size=(count, SIDE, SIDE))
    return images[..., None].astype(np.float32), labels.astype(np.int32)


if __name__ == "__main__":
    main()
