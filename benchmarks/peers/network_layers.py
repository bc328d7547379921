"""Describe the models of the network benchmark for every framework: weights by layer, and examples."""

from math import prod
from typing import Any, NamedTuple

import numpy as np

__all__ = ["EXAMPLES", "LAYERS", "ROWS", "TOKENS", "VOCABULARY", "WIDTH", "Layer", "examples", "time_shares"]

EXAMPLES = 4096
VOCABULARY, WIDTH, TOKENS, BLOCKS = 16_000, 256, 16, 2  # of the transformer
ROWS, COLUMNS = 1_000_000, 32  # of the two towers' table


class Layer(NamedTuple):
    """Describe the weights of a layer.

    Attributes:
        weights: Their shapes, as Keras has them.
        positions: How often the first of them is multiplied for an example.
        is_table: Whether it is a table, of which an example reads a row for each of its numbers.
    """

    weights: tuple[tuple[int, ...], ...]
    positions: int = 1
    is_table: bool = False


def _dense(inputs: int, outputs: int, positions: int = 1) -> Layer:
    return Layer(((inputs, outputs), (outputs,)), positions)


def _convolution(inputs: int, outputs: int, side: int) -> Layer:
    return Layer(((5, 5, inputs, outputs), (outputs,)), side * side)


def _block() -> list[Layer]:
    normalization = Layer(((WIDTH,), (WIDTH,)), TOKENS)
    square = _dense(WIDTH, WIDTH, TOKENS)
    feed_forward = [_dense(WIDTH, 4 * WIDTH, TOKENS), _dense(4 * WIDTH, WIDTH, TOKENS)]
    return [normalization, *[square] * 4, normalization, *feed_forward]


LAYERS: dict[str, list[Layer]] = {
    "mnist_cnn": [_convolution(1, 32, 28), _convolution(32, 64, 14), _dense(3136, 1024), _dense(1024, 10)],
    "cifar10_cnn": [
        _convolution(3, 64, 24),
        _convolution(64, 64, 12),
        _dense(2304, 384),
        _dense(384, 192),
        _dense(192, 10),
    ],
    "transformer": [
        Layer(((VOCABULARY, WIDTH),), 0, is_table=True),
        Layer(((TOKENS, WIDTH),), 0),
        *(layer for _ in range(BLOCKS) for layer in _block()),
        Layer(((WIDTH,), (WIDTH,)), TOKENS),
        _dense(WIDTH, VOCABULARY),
    ],
    "two_tower": [
        Layer(((ROWS, COLUMNS),), 0, is_table=True),
        *[_dense(COLUMNS, 128), _dense(128, 64)] * 2,
    ],
}
_IMAGES = {"mnist_cnn": (28, 28, 1), "cifar10_cnn": (24, 24, 3)}
_NUMBERS = {"transformer": VOCABULARY, "two_tower": ROWS}
_ANSWERS = {"transformer": VOCABULARY, "two_tower": 2}


def examples(model: str, seed: int) -> tuple[Any, Any]:
    """Return random inputs and answers: images, or tokens; what is in them changes nothing in the speed."""
    rng = np.random.default_rng(seed)
    answers = rng.integers(0, _ANSWERS.get(model, 10), size=EXAMPLES).astype("int32")
    if model in _IMAGES:
        return rng.integers(0, 256, size=(EXAMPLES, *_IMAGES[model])).astype("uint8"), answers
    return rng.integers(0, _NUMBERS[model], size=(EXAMPLES, TOKENS)).astype("int32"), answers


def time_shares(model: str) -> list[float]:
    """Return the share of the multiplications that each layer does."""
    counts = [prod(layer.weights[0]) * layer.positions for layer in LAYERS[model]]
    return [count / sum(counts) for count in counts]
