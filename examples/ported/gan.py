"""Train a generative adversarial network: two optimizers in a `train_step` of the model's own."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tfdist

tfdist.start()

LATENT = 8


class GAN(keras.Model):
    """A generator that learns to draw points on a circle, and the discriminator that judges them."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential(
            [keras.Input((LATENT,)), layers.Dense(32, activation="relu"), layers.Dense(2)]
        )
        self.discriminator = keras.Sequential(
            [keras.Input((2,)), layers.Dense(32, activation="relu"), layers.Dense(1)]
        )
        self.seed_generator = keras.random.SeedGenerator(1)
        self.d_loss_tracker = keras.metrics.Mean(name="d_loss")
        self.g_loss_tracker = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """Return the metrics that an epoch resets."""
        return [self.d_loss_tracker, self.g_loss_tracker]

    def compile(
        self, d_optimizer: keras.optimizers.Optimizer, g_optimizer: keras.optimizers.Optimizer
    ) -> None:
        """Set the optimizer of each network, and the loss."""
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

    def train_step(self, real: tf.Tensor) -> dict[str, tf.Tensor]:
        """Improve the discriminator by a batch of real and drawn points, and then the generator."""
        count = tf.shape(real)[0]
        noise = keras.random.normal((count, LATENT), seed=self.seed_generator)
        points = tf.concat([self.generator(noise), real], axis=0)
        labels = tf.concat([tf.ones((count, 1)), tf.zeros((count, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(points))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(tf.zeros((count, 1)), self.discriminator(self.generator(noise)))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        self.d_loss_tracker.update_state(d_loss)
        self.g_loss_tracker.update_state(g_loss)
        return {metric.name: metric.result() for metric in self.metrics}


angles = np.random.default_rng(0).uniform(0, 2 * np.pi, 2048)
circle = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype("float32")
data = tf.data.Dataset.from_tensor_slices(circle).batch(64)

gan = GAN()
gan.compile(d_optimizer=keras.optimizers.Adam(0.002), g_optimizer=keras.optimizers.Adam(0.002))
history = gan.fit(data, epochs=5)
print(f"discriminator loss {history.history['d_loss'][-1]:.3f}")
