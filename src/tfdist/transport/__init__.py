"""Send tensors between tasks over TCP or shared memory, in place of TensorFlow's gRPC.

Mirrored workers form a `ring`; each worker has a `channel` to each parameter server (`ps_endpoints`).
Tasks prove to each other that they know the same secret (`authentication`). This package knows neither
Keras nor the config.
"""
