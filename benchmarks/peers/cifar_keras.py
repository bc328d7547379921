"""Train Keras's small residual network on CIFAR-10 by Keras's own fit, for so many seconds of CPU time.

python cifar_keras.py {"train_images": …, "seconds": 1200, "seed": 0}

The network, optimizer, batch and augmentation are those of the recipe that Keras published: ResNet20 of the
first version, Adam, 32 examples a step, moved by a tenth and mirrored. Its learning rate falls for the first
time after 80 epochs, which no such budget comes to. At the end it prints the step and the test accuracy.
"""

import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

BATCH, MOVED = 32, 3
layers = keras.layers


class Until(keras.callbacks.Callback):
    """Stop when the time is over, which the imports have a part of."""

    steps = 0

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        self.model.stop_training = time.process_time() > self.seconds


def resnet20():
    def convolution(x, filters, size, strides=1):
        return layers.Conv2D(
            filters,
            size,
            strides,
            padding="same",
            kernel_initializer="he_normal",
            kernel_regularizer=keras.regularizers.L2(1e-4),
        )(x)

    inputs = keras.Input((32, 32, 3))
    x = layers.Rescaling(1 / 255)(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(convolution(x, 16, 3)))
    for stage in range(3):
        for block in range(3):
            filters, strides = 16 * 2**stage, 2 if stage and not block else 1
            y = layers.ReLU()(layers.BatchNormalization()(convolution(x, filters, 3, strides)))
            y = layers.BatchNormalization()(convolution(y, filters, 3))
            x = convolution(x, filters, 1, strides) if strides > 1 else x
            x = layers.ReLU()(layers.Add()([x, y]))
    x = layers.Flatten()(layers.AveragePooling2D(8)(x))
    return keras.Model(inputs, layers.Dense(10, kernel_initializer="he_normal")(x))


def altered(image, label):
    image = tf.pad(image, [[MOVED, MOVED], [MOVED, MOVED], [0, 0]], "REFLECT")
    return tf.image.random_flip_left_right(tf.image.random_crop(image, [32, 32, 3])), label


def arrays(order, split):
    images = np.memmap(order[f"{split}_images"], np.uint8, "r").reshape(-1, 32, 32, 3)
    return images, np.memmap(order[f"{split}_labels"], np.int32, "r")


def main(order: dict) -> None:
    keras.utils.set_random_seed(order["seed"])
    train = tf.data.Dataset.from_tensor_slices(arrays(order, "train")).shuffle(50_000).repeat()
    train = train.map(altered, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE)
    model = resnet20()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    until = Until(order["seconds"])
    model.fit(train, epochs=200, steps_per_epoch=50_000 // BATCH, callbacks=[until], verbose=0)
    test = tf.data.Dataset.from_tensor_slices(arrays(order, "test")).batch(256)
    accuracy = model.evaluate(test, verbose=0, return_dict=True)["accuracy"]
    print(json.dumps({"step": until.steps, "accuracy": accuracy}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
