"""A convolutional network in Keras: its layers, loss, optimizer and metrics."""

from typing import Any

from params import Params


def build_model(params: Params) -> Any:
    """Return the compiled model. Keras is imported here, since only the chief of a job needs it."""
    import keras

    options = params.model
    keras.utils.set_random_seed(params.runconfig.seed)
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(options.filters, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dropout(options.dropout),
            keras.layers.Dense(10),
        ],
        name="digits",
    )
    model.compile(
        optimizer=keras.optimizers.Adam(options.learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model
