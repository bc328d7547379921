"""Say what an exported model takes and gives: pictures and keys in; keys, scores and labels out.

    serving_default   image uint8   [any, height, width, channels], pixels
    serving_float     image float32 [any, height, width, channels], the same pixels, 0 to 255
    serving_bytes     image string  [any], each an encoded JPEG or PNG of just that size

Each takes besides `key`, int64 [any], and gives `key` as it came, `scores`, float32 [any, classes], which add
up to 1, and `label`, int64 [any], the class with the highest. Any may be 0.
"""

from typing import Any

import tensorflow as tf

__all__ = ["Served"]


class Served(tf.Module):  # type: ignore[misc]  # TensorFlow ships no types
    """Hold what is exported: a model, from pixels to logits, and its signatures."""

    def __init__(self, model: Any, image_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.model = model
        self._image_shape = image_shape
        # TensorFlow Lite finds only variables that a tf.Module holds as such, and Keras 3 wraps its own in
        # objects: without this, the model that it writes has no weights and gives NaN, and there is no error.
        self._held = list(self.on_pixels(tf.uint8).graph.variables)

    def signatures(self) -> dict[str, Any]:
        """Give the functions that a SavedModel offers."""
        return {
            "serving_default": self._on_any_batch(tf.uint8),
            "serving_float": self._on_any_batch(tf.float32),
            "serving_bytes": self._on_bytes(),
        }

    def on_pixels(self, dtype: Any) -> Any:
        """Make the function that answers a batch of one picture or more."""
        image = tf.TensorSpec([None, *self._image_shape], dtype, name="image")
        return tf.function(self._answer, input_signature=[image, _KEY]).get_concrete_function()

    def _answer(self, image: Any, key: Any) -> dict[str, Any]:
        # float16 has too few digits for scores that are to add up to 1.
        scores = tf.nn.softmax(tf.cast(self.model(image, training=False), tf.float32))
        return {"key": tf.identity(key), "scores": scores, "label": tf.argmax(scores, axis=-1)}

    def _on_any_batch(self, dtype: Any) -> Any:
        image = tf.TensorSpec([None, *self._image_shape], dtype, name="image")
        return tf.function(self._answer_any, input_signature=[image, _KEY])

    def _answer_any(self, image: Any, key: Any) -> dict[str, Any]:
        # Fused convolutions fail on an empty batch, so that it gets a picture, whose answer is left out.
        count = tf.shape(image)[0]
        filling = tf.zeros([tf.cast(count == 0, tf.int32), *self._image_shape], image.dtype)
        answer = self._answer(tf.concat([image, filling], axis=0), key)
        return {"key": key, "scores": answer["scores"][:count], "label": answer["label"][:count]}

    def _on_bytes(self) -> Any:
        def answer(image: Any, key: Any) -> dict[str, Any]:
            pixels = tf.TensorSpec(self._image_shape, tf.uint8)
            return self._answer_any(tf.map_fn(self._decoded, image, fn_output_signature=pixels), key)

        return tf.function(answer, input_signature=[tf.TensorSpec([None], tf.string, name="image"), _KEY])

    def _decoded(self, encoded: Any) -> Any:
        # Grey is spread over the colours, colours are made grey, transparency is left out. The size must fit,
        # and the error names both: how to resize is for those to say who know the picture.
        image = tf.io.decode_image(encoded, channels=self._image_shape[-1], expand_animations=False)
        return tf.ensure_shape(image, self._image_shape)


_KEY = tf.TensorSpec([None], tf.int64, name="key")
