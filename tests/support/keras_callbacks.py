"""Callbacks of a user: records of their calls, and a learning rate that halves."""

from support.keras_models import keras


class Seen(keras.callbacks.Callback):
    """Callback that records its calls and the weights at each."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def note(self, name, *values, logs=None):
        """Record a call, with a sum of the weights."""
        numbers = dict(sorted((logs or {}).items()))
        bias = float(self.model.get_weights()[1].sum())
        self.calls.append(((name, *values, *numbers), [*numbers.values()], bias))

    def on_train_begin(self, logs=None):
        self.note("train begin", self.params["epochs"], self.params["steps"])

    def on_epoch_begin(self, epoch, logs=None):
        self.note("epoch begin", epoch)

    def on_epoch_end(self, epoch, logs=None):
        self.note("epoch end", epoch, logs=logs)

    def on_test_end(self, logs=None):
        self.note("test end", logs=logs)

    def on_train_end(self, logs=None):
        self.note("train end", logs=logs)


class SeenBatches(Seen):
    """The same for batches; changes the learning rate in one batch, and the weights in another."""

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 1:
            self.model.optimizer.learning_rate = 0.2
        self.note("batch begin", batch)

    def on_train_batch_end(self, batch, logs=None):
        self.note("batch end", batch, logs=logs)
        if batch == 2:
            self.model.set_weights([w * 0.9 for w in self.model.get_weights()])


def halved(epoch, rate):
    return rate / 2
