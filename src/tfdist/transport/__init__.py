"""Send tensors between tasks over TCP or shared memory, in place of TensorFlow's gRPC.

Mirrored workers form a `ring`; each worker has a `channel` to each parameter server (`worker_and_ps_ends`).
Tasks prove to each other that they know the same secret (`authentication`). This package knows neither
Keras nor the config.
"""
