"""Draw digits that look handwritten, of MNIST's shape, from a seed.

Each digit has several variants of a few strokes. A stroke is a line of points, which is bent, slanted,
turned, stretched and moved, and then drawn with a pen of a random width. An image is the sum of the pen's
Gaussian spots at all points. A spot is the product of a column and a row, so one batched matrix product draws
a whole batch.
"""

import functools
import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

AT_ONCE = 1000
CLASSES = tuple("0123456789")
VERSION = 1  # increased when the images change
_SIDE = 28
IMAGE_SHAPE = (_SIDE, _SIDE, 1)
_POINTS = 56


def draw(count: int, random: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return so many drawn digits, and their labels."""
    glyphs, variants = _alphabet()
    labels = random.integers(0, 10, count).astype(np.int32)
    first, counts = variants[labels].T
    chosen = first + random.integers(0, counts)
    return _ink(_distort(glyphs[chosen], random), random), labels


def _distort(points: Floats, random: np.random.Generator) -> Floats:
    """Bend, slant, turn, stretch and move strokes that lie in a box from -1 to 1."""
    count = len(points)

    def spread(*shape: int) -> Floats:
        return random.standard_normal((count, *shape), np.float32)

    # Long waves across the whole image imitate one person's handwriting.
    waves = np.sin(points @ (0.9 * spread(2, 3)) + math.pi * spread(1, 3))
    points = points + waves @ (0.09 * spread(3, 2))
    angle, slant = 0.22 * spread(), 0.22 * spread() + 0.08
    width, height = 0.70 * np.exp(0.16 * spread()), 0.86 * np.exp(0.12 * spread())
    turn = np.stack([np.cos(angle), np.sin(angle), -np.sin(angle), np.cos(angle)], -1).reshape(count, 2, 2)
    shape = np.stack([width, np.zeros_like(width), -slant * height, height], -1).reshape(count, 2, 2)
    moved = points @ (shape @ turn) + 0.14 * spread(1, 2)
    return np.asarray(moved, np.float32)


def _ink(points: Floats, random: np.random.Generator) -> NDArray[np.uint8]:
    """Draw strokes in a box from -1 to 1 with pens of random width and pressure."""
    count = len(points)
    centres = (points * 0.72 + 1.0) * (_SIDE / 2) - 0.5
    pen = random.uniform(0.55, 1.05, (count, 1, 1)).astype(np.float32)
    distances = np.arange(_SIDE, dtype=np.float32) - centres.transpose(2, 0, 1)[..., None]
    spots = np.exp(-0.5 * (distances / pen) ** 2)
    density = spots[1].transpose(0, 2, 1) @ spots[0]
    pressure = random.uniform(1.0, 2.0, (count, 1, 1)).astype(np.float32)
    grey = 255.0 * (1.0 - np.exp(-pressure * density**1.5))
    grey += random.uniform(0.0, 7.0, (count, 1, 1)) * random.standard_normal(grey.shape, np.float32)
    pixels: NDArray[np.uint8] = np.clip(grey, 0.0, 255.0).astype(np.uint8)[..., None]
    return pixels


@functools.cache
def _alphabet() -> tuple[Floats, NDArray[np.int64]]:
    """Return all variants of all digits as points, and each digit's first variant and number of variants."""
    variants = [
        [[_arc(0, 0, 0.75, 1, -90, 270)], [_arc(0, 0, 0.6, 1, -60, 285)]],
        [[_line(0, -1, 0, 1)], [_line(-0.45, -0.55, 0.05, -1, 0.05, 1)],
         [_line(-0.45, -0.55, 0.05, -1, 0.05, 1), _line(-0.45, 1, 0.55, 1)]],
        [[_arc(0, -0.45, 0.65, 0.55, -170, 35), _line(0.53, -0.13, -0.7, 1), _line(-0.7, 1, 0.75, 1)],
         [_arc(0, -0.45, 0.6, 0.55, -160, 60), _line(0.3, 0.03, -0.45, 0.8),
          _arc(-0.45, 0.8, 0.2, 0.18, 90, 290), _line(-0.4, 0.63, 0.75, 1)]],
        [[_arc(-0.05, -0.5, 0.6, 0.5, -150, 90), _arc(-0.05, 0.48, 0.7, 0.52, -90, 145)],
         [_line(-0.6, -1, 0.6, -1, -0.05, -0.12), _arc(-0.05, 0.43, 0.68, 0.56, -90, 150)]],
        [[_line(0.3, -1, -0.7, 0.35, 0.75, 0.35), _line(0.35, -0.2, 0.3, 1)],
         [_line(-0.55, -0.95, -0.6, 0.1, 0.65, 0.1), _line(0.5, -0.95, 0.45, 1)]],
        [[_line(0.65, -1, -0.45, -1, -0.55, -0.12), _arc(-0.05, 0.38, 0.68, 0.6, -135, 140)],
         [_line(-0.45, -0.95, -0.55, -0.12), _arc(-0.05, 0.38, 0.68, 0.6, -135, 140),
          _line(-0.45, -0.95, 0.7, -1)]],
        [[_arc(0.45, 0.4, 1.05, 1.4, -175, -95, backwards=True), _arc(0, 0.45, 0.6, 0.55, -180, 180)],
         [_line(0.2, -1, -0.5, 0.2), _arc(0.02, 0.45, 0.58, 0.52, -160, 200)]],
        [[_line(-0.65, -1, 0.65, -1, -0.15, 1)],
         [_line(-0.65, -0.75, -0.65, -1, 0.65, -1, -0.1, 1), _line(-0.35, 0, 0.55, 0)]],
        [[_arc(0, -0.5, 0.52, 0.48, 90, 450), _arc(0, 0.5, 0.64, 0.5, -90, 270)],
         [_arc(0, -0.48, 0.5, 0.5, -30, 270, backwards=True), _line(0, -0.02, 0.3, 0.15),
          _arc(0, 0.5, 0.6, 0.48, -50, 230)]],
        [[_arc(0, -0.45, 0.6, 0.55, 0, 360), _line(0.6, -0.45, 0.5, 1)],
         [_arc(-0.02, -0.45, 0.58, 0.52, 0, 360), _arc(-0.35, -0.1, 0.93, 1.05, -15, 105)]],
    ]  # fmt: skip
    glyphs = np.stack([_even(strokes) for digit in variants for strokes in digit])
    counts = np.array([len(digit) for digit in variants])
    return glyphs, np.stack([np.cumsum(counts) - counts, counts], axis=1)


def _line(*coordinates: float) -> Floats:
    return np.array(coordinates, np.float32).reshape(-1, 2)


def _arc(
    x: float, y: float, across: float, down: float, start: float, end: float, *, backwards: bool = False
) -> Floats:
    """Return a part of an ellipse; 0 degrees is to the right, 90 below."""
    angles = np.radians(np.linspace(start, end, 25))
    points = np.stack([x + across * np.cos(angles), y + down * np.sin(angles)], axis=1).astype(np.float32)
    return points[::-1] if backwards else points


def _even(strokes: list[Floats]) -> Floats:
    """Return points at equal distances along all strokes together."""
    starts = np.concatenate([stroke[:-1] for stroke in strokes])
    steps = np.concatenate([np.diff(stroke, axis=0) for stroke in strokes])
    ends = np.cumsum(np.hypot(*steps.T))
    at = np.linspace(0, ends[-1], _POINTS, endpoint=False) + ends[-1] / _POINTS / 2
    segment = np.searchsorted(ends, at)
    lengths = np.diff(ends, prepend=0)
    part = (at - (ends - lengths)[segment]) / lengths[segment]
    return np.asarray(starts[segment] + part[:, None] * steps[segment], np.float32)
