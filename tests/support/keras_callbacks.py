"""Callbacks of a user: records of their calls, and a learning rate that halves."""

from support.keras_models import keras


class Seen(keras.callbacks.Callback):
    """What a callback of the user's own is called with, and the weights that it reads."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def note(self, name, *values, logs=None):
        """A call, with a sum of the weights."""
        numbers = dict(sorted((logs or {}).items()))
        bias = float(self.model.get_weights()[1].sum())
        self.calls.append(((name, *values, *numbers), [*numbers.values()], bias))

    def on_train_begin(self, logs=None):
        """Before the first step."""
        self.note("train begin", self.params["epochs"], self.params["steps"])

    def on_epoch_begin(self, epoch, logs=None):
        """Before an epoch."""
        self.note("epoch begin", epoch)

    def on_epoch_end(self, epoch, logs=None):
        """After an epoch."""
        self.note("epoch end", epoch, logs=logs)

    def on_test_end(self, logs=None):
        """After an evaluation."""
        self.note("test end", logs=logs)

    def on_train_end(self, logs=None):
        """After the last epoch."""
        self.note("train end", logs=logs)


class SeenBatches(Seen):
    """The same of each batch; the learning rate changes at a batch, the weights at another."""

    def on_train_batch_begin(self, batch, logs=None):
        """Before a batch."""
        if batch == 1:
            self.model.optimizer.learning_rate = 0.2
        self.note("batch begin", batch)

    def on_train_batch_end(self, batch, logs=None):
        """After a batch."""
        self.note("batch end", batch, logs=logs)
        if batch == 2:
            self.model.set_weights([w * 0.9 for w in self.model.get_weights()])


def halved(epoch, rate):
    return rate / 2
