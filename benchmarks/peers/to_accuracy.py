"""Train the MNIST CNN to an accuracy under MultiWorkerMirroredStrategy, as TensorFlow's guides write it.

TF_CONFIG=... python to_accuracy.py {"batch": 128, "rate": 0.05, …}

Worker 0 prints a line of JSON after each evaluation. The model is the one that tfdist ships, made by
tf_keras; the images are those that it has prepared.
"""

import json
import os
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf

from tfdist.models.model_by_name import build


class Until(tf.keras.callbacks.Callback):
    """Stop at an accuracy, which all workers have counted together."""

    def __init__(self, accuracy, per_epoch, speaks):
        super().__init__()
        self.accuracy, self.per_epoch, self.speaks = accuracy, per_epoch, speaks

    def on_epoch_end(self, epoch, logs=None):
        found = logs["val_accuracy"]
        if self.speaks:
            print(json.dumps({"step": (epoch + 1) * self.per_epoch, "accuracy": found}), flush=True)
        if np.float32(found) >= np.float32(self.accuracy):
            self.model.stop_training = True


def arrays(order, split):
    images = np.memmap(order[f"{split}_images"], np.uint8, "r").reshape(-1, 28, 28, 1)
    return images, np.memmap(order[f"{split}_labels"], np.int32, "r")


def main(order: dict) -> None:
    tf.keras.utils.set_random_seed(order["seed"])
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    batch, per_epoch = order["batch"], order["every"]
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    # On one core a thread for each step of the pipeline would only take turns with the others.
    options.threading.private_threadpool_size = 1
    train = tf.data.Dataset.from_tensor_slices(arrays(order, "train"))
    train = train.shuffle(60_000, seed=order["seed"]).repeat().batch(batch).prefetch(2).with_options(options)
    test = tf.data.Dataset.from_tensor_slices(arrays(order, "test")).batch(batch).prefetch(2)
    with strategy.scope():
        model = build("mnist_cnn", (28, 28, 1), 10)
        rate = tf.keras.optimizers.schedules.CosineDecay(order["rate"], order["steps"])
        model.compile(
            tf.keras.optimizers.SGD(rate, momentum=0.9),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.fit(
        train,
        epochs=order["steps"] // per_epoch,
        steps_per_epoch=per_epoch,
        validation_data=test.with_options(options),
        callbacks=[Until(order["until"], per_epoch, index == 0)],
        verbose=0,
    )
    # All workers have to save, and all but the first into a folder that nobody reads.
    model.save(f"{order['folder']}/model-{index}")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
