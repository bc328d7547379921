"""The code that depends on Keras: steps of Keras 2 and 3, losses, metrics, optimizers and callbacks."""
