"""Update weights with the gradients of all replicas, by Keras's optimizers or faster ones."""
