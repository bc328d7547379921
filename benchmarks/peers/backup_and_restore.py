"""Run one task of what TensorFlow's guides write for tf_keras: fit with BackupAndRestore, and no more.

TF_CONFIG=... python backup_and_restore.py DATA.npz BACKUPS STEPS STEPS_PER_EPOCH BATCH_SIZE
"""

import os
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from linear import build


def main(file: str, backups: str, steps: int, per_epoch: int, batch_size: int) -> None:
    """Serve, or train to the end."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if "ps" in resolver.cluster_spec().jobs:
        if resolver.task_type in ("worker", "ps"):
            os.environ["GRPC_FAIL_FAST"] = "use_caller"
            server = tf.distribute.Server(
                resolver.cluster_spec(),
                job_name=resolver.task_type,
                task_index=resolver.task_id,
                protocol="grpc",
            )
            server.join()
        strategy = tf.distribute.ParameterServerStrategy(resolver)
    else:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    arrays = np.load(file)
    batches = tf.data.Dataset.from_tensor_slices((arrays["x_train"], arrays["y_train"]))
    batches = batches.shuffle(1000).repeat().batch(batch_size)
    with strategy.scope():
        model = build((28, 28, 1), 10)
        model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    kept = tf.keras.callbacks.BackupAndRestore(backups)
    model.fit(batches, epochs=steps // per_epoch, steps_per_epoch=per_epoch, callbacks=[kept], verbose=0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
