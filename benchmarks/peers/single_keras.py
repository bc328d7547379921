"""Train in one process by Keras's own fit, as its guides write it; print a stamp after each quarter.

python single_keras.py {"model": "cifar10_cnn", "options": {}, "augment": "cifar10_2016", ...}

The model is the one that tfdist ships; the data are those that it has prepared.
"""

import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from tfdist.models.model_by_name import build


class Stamps(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(json.dumps([time.monotonic(), time.process_time()]), flush=True)


def altered(image, label):
    """Alter an image as TensorFlow's CIFAR-10 tutorial did; the model standardises it."""
    image = tf.image.random_crop(tf.cast(image, tf.float32), [24, 24, 3])
    image = tf.image.random_flip_left_right(image)
    image = tf.image.random_brightness(image, max_delta=63)
    return tf.image.random_contrast(image, lower=0.2, upper=1.8), label


def main(work: dict) -> None:
    images, labels, test_images, test_labels = (
        np.memmap(work[name], kind, "r").reshape(shape)
        for name, kind, shape in (
            ("train_images", np.uint8, (-1, *work["image_shape"])),
            ("train_labels", np.int32, (-1,)),
            ("test_images", np.uint8, (-1, *work["image_shape"])),
            ("test_labels", np.int32, (-1,)),
        )
    )
    train = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(10_000).repeat()
    if work["augment"] == "cifar10_2016":
        train = train.map(altered, num_parallel_calls=tf.data.AUTOTUNE)
    train = train.batch(work["batch"]).prefetch(tf.data.AUTOTUNE)
    test = tf.data.Dataset.from_tensor_slices((test_images, test_labels)).batch(work["batch"])
    model = build(work["model"], tuple(work["image_shape"]), 10, **work["options"])
    rate = work["rate"]
    adam = work["optimizer"] == "adam"
    optimizer = keras.optimizers.Adam(rate) if adam else keras.optimizers.SGD(rate, momentum=0.9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    quarter = work["steps"] // 4
    model.fit(train, epochs=4, steps_per_epoch=quarter, callbacks=[Stamps()], verbose=0)
    model.evaluate(test, verbose=0)
    model.export(work["folder"], verbose=False)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
