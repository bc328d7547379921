"""Define the signatures of an exported model, from images and keys to keys, scores and labels.

    serving_default   image uint8   [any, height, width, channels], pixels
    serving_float     image float32 [any, height, width, channels], the same pixels, 0 to 255
    serving_bytes     image string  [any], each an encoded JPEG or PNG of exactly that size

A second input is `key`, int64 [any]. The outputs are `key`, unchanged; `scores`, float32 [any, classes],
which add up to 1 unless the model ends in a sigmoid; and `label`, int64 [any], the class of the highest
score. Any may be 0.
"""

from typing import Any

import tensorflow as tf

from tfdist.models.logits_or_probabilities import Outputs


class Served(tf.Module):  # type: ignore[misc]  # TensorFlow ships no types
    """A model, from pixels to logits or probabilities, with the signatures that an export contains."""

    def __init__(self, model: Any, image_shape: tuple[int, ...], outputs: Outputs) -> None:
        super().__init__()
        self.model = model
        self.outputs = outputs
        self._image_shape = image_shape
        # TensorFlow Lite finds only tf.Variables that are attributes of a tf.Module, and Keras 3 wraps its
        # variables in objects of its own. Without this list, the converter writes a model without weights,
        # whose scores are NaN, and raises no error.
        self._variables_for_lite = list(self.on_pixels(tf.uint8).graph.variables)

    def signatures(self) -> dict[str, Any]:
        """Return the functions of the SavedModel by name."""
        return {
            "serving_default": self._on_any_batch(tf.uint8),
            "serving_float": self._on_any_batch(tf.float32),
            "serving_bytes": self._on_bytes(),
        }

    def on_pixels(self, dtype: Any) -> Any:
        """Return the function for batches of at least one image."""
        image = tf.TensorSpec([None, *self._image_shape], dtype, name="image")
        return tf.function(self._answer, input_signature=[image, _KEY]).get_concrete_function()

    def _answer(self, image: Any, key: Any) -> dict[str, Any]:
        # In float16, rounded scores would not add up to 1.
        outputs = tf.cast(self.model(image, training=False), tf.float32)
        # Not a softmax of a softmax, whose scores are nearly equal for all classes.
        scores = tf.identity(outputs) if self.outputs == "probabilities" else tf.nn.softmax(outputs)
        return {"key": tf.identity(key), "scores": scores, "label": tf.argmax(scores, axis=-1)}

    def _on_any_batch(self, dtype: Any) -> Any:
        image = tf.TensorSpec([None, *self._image_shape], dtype, name="image")
        return tf.function(self._answer_any, input_signature=[image, _KEY])

    def _answer_any(self, image: Any, key: Any) -> dict[str, Any]:
        # Fused convolutions fail on an empty batch, so it gets one image, whose answer is dropped.
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
        # This converts grey to colour and colour to grey, and drops transparency. The size must be exact: the
        # caller knows best how to resize an image, and the error names both sizes.
        image = tf.io.decode_image(encoded, channels=self._image_shape[-1], expand_animations=False)
        return tf.ensure_shape(image, self._image_shape)


_KEY = tf.TensorSpec([None], tf.int64, name="key")
