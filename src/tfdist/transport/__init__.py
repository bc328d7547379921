"""Send tensors between tasks over TCP or shared memory, in place of TensorFlow's gRPC.

Mirrored workers form a `ring`; each worker has a `channel` to each `parameter_server`. Tasks prove in a
`handshake` that they know the same secret. This package knows neither Keras nor the config.
"""
