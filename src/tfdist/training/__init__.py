"""Train, evaluate and predict with a compiled Keras model under any strategy."""
