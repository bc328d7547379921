"""A user's own optimizer, loss, metrics and callbacks: for `train: {loss: own_objects:shifted}` and the like."""

import json

import tensorflow as tf

keras = tf.keras


def momentum(learning_rate, *, share=0.5):
    return keras.optimizers.SGD(learning_rate, momentum=share)


def not_an_optimizer(learning_rate):
    return learning_rate


def shifted(y_true, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True) + 1.0


def scaled(factor):
    def loss(y_true, y_pred):
        return factor * keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)

    return loss


def distance(power):
    def to_power(y_true, y_pred):
        return tf.reduce_mean(tf.abs(y_pred) ** power, axis=-1)

    return to_power


class Halved(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True) / 2


class Count(keras.metrics.Sum):
    def __init__(self):
        super().__init__(name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(tf.ones_like(y_true))


def is_zero(y_true, y_pred):
    return tf.cast(tf.equal(y_true, 0), tf.float32)


class OwnCompile(keras.Model):
    def compile(self, **options):
        super().compile(keras.optimizers.SGD(0.5), "mse")


MADE = None  # a metric, where a test sets it


def build(image_shape, classes, *, ending=None):
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(classes, ending)]
    return keras.Sequential([keras.Input(image_shape), *layers])


class Subclassed(keras.Model):
    def __init__(self, classes):
        super().__init__()
        self.answer = build_without_input(None, classes)

    def call(self, images, training=False):
        return self.answer(images)


class WithOwnSteps(Subclassed):
    def train_step(self, data):
        return super().train_step(data)

    def test_step(self, data):
        return super().test_step(data)


def build_without_input(image_shape, classes):
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(classes)]
    return keras.Sequential(layers)


def build_subclassed(image_shape, classes):
    return Subclassed(classes)


def build_with_own_steps(image_shape, classes):
    return WithOwnSteps(classes)


class TwoOptimizers(keras.Model):
    """A model whose step has an optimizer and a variable of its own."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.head_optimizer.apply(gradients, self.trainable_variables)
        self.seen.assign_add(1)
        return self.compute_metrics(x, y, self(x), None)


def with_own_optimizer(image_shape, classes):
    image = keras.Input(image_shape)
    model = TwoOptimizers(image, build(image_shape, classes)(image))
    model.head_optimizer, model.seen = keras.optimizers.Adam(0.01), tf.Variable(0, trainable=False)
    model.head_optimizer.build(model.trainable_variables)
    return model


class Recorder(keras.callbacks.Callback):
    """Write each call to a file: the hook, its index, and its logs."""

    def __init__(self, path):
        super().__init__()
        self._path = path

    def _write(self, hook, index, logs):
        logs = {name: float(value) for name, value in (logs or {}).items()}
        with open(self._path, "a") as file:
            print(json.dumps([hook, index, logs]), file=file)

    def on_train_begin(self, logs=None):
        self._write("train_begin", None, logs)

    def on_train_end(self, logs=None):
        self._write("train_end", None, {})

    def on_epoch_begin(self, epoch, logs=None):
        self._write("epoch_begin", epoch, logs)

    def on_epoch_end(self, epoch, logs=None):
        self._write("epoch_end", epoch, logs)

    def on_train_batch_begin(self, batch, logs=None):
        self._write("batch_begin", batch, {})

    def on_train_batch_end(self, batch, logs=None):
        self._write("batch_end", batch, logs)

    def on_test_begin(self, logs=None):
        self._write("test_begin", None, logs)

    def on_test_end(self, logs=None):
        self._write("test_end", None, logs)


class Stop(keras.callbacks.Callback):
    """Stop after a batch of an epoch; the weights become 0 if `clears`."""

    def __init__(self, epoch, batch, clears):
        super().__init__()
        self._epoch, self._batch, self._clears, self._now = epoch, batch, clears, 0

    def on_epoch_begin(self, epoch, logs=None):
        self._now = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self._now, batch) == (self._epoch, self._batch):
            self.model.stop_training = True

    def on_train_end(self, logs=None):
        if self._clears:
            self.model.set_weights([0 * weight for weight in self.model.get_weights()])


class Told(keras.callbacks.Callback):
    """Tell this task to end, at a batch of the first epoch or at its evaluation."""

    def __init__(self, batch):
        super().__init__()
        self._batch, self._has_ended = batch, False

    def on_train_begin(self, logs=None):
        SEEN.append(int(self.model.optimizer.iterations))

    def on_train_batch_end(self, batch, logs=None):
        if NOTICE is not None and batch == self._batch:
            NOTICE.is_received = True

    def on_train_end(self, logs=None):
        self._has_ended = True

    def on_test_begin(self, logs=None):
        if NOTICE is not None and self._batch == ("end" if self._has_ended else None):
            NOTICE.is_received = True


NOTICE, SEEN = None, []


def told(batch=None):
    return Told(batch)


def recorders(path):
    return [Recorder(path)] if path else []


def begins_a_run():
    raise AssertionError("a check has called it")


def stop(epoch, batch=0, clears=False):
    return Stop(epoch, batch, clears)


def nothing():
    pass


def build_with_sigmoid(image_shape, classes, *, loss=""):
    images = keras.Input(image_shape)
    logits = keras.layers.Dense(classes)(keras.layers.Flatten()(images))
    model = keras.Model(images, keras.layers.Lambda(tf.sigmoid)(logits))
    if loss:
        model.compile("sgd", loss)
    return model


class WithOtherResults(Subclassed):
    def test_step(self, data):
        return {"loss": super().test_step(data)["loss"], "acc": 0.5}


def build_with_other_results(image_shape, classes):
    return WithOtherResults(classes)
