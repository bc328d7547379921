"""Draw coloured, textured shapes of CIFAR-10's size, from a seed.

Each class is a region of the plane, defined by a function that is negative inside. The region is turned,
stretched and moved. It has one texture, and the ground around it has another: stripes, checks, blobs or
plain, in random colours. Only the outline depends on the class, and colour, brightness and place do not.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Outline = Callable[[Floats, Floats], Floats]

AT_ONCE = 100
VERSION = 1  # increased when the images change
_SIDE = 32
IMAGE_SHAPE = (_SIDE, _SIDE, 3)


def draw(count: int, random: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return so many drawn images, and their labels."""
    # Sorted, so that one call draws all images of a class.
    labels = np.sort(random.integers(0, len(CLASSES), count)).astype(np.int32)
    images = _paint(_cover(labels, random), random)
    order = random.permutation(count)
    return images[order], labels[order]


def _cover(labels: NDArray[np.int32], random: np.random.Generator) -> Floats:
    """Return the part of each pixel that the shape covers, from 0 to 1."""
    count = len(labels)

    def uniform(low: float, high: float) -> Floats:
        return random.uniform(low, high, (count, 1, 1)).astype(np.float32)

    size = uniform(0.42, 0.80)
    stretch = np.exp(uniform(-0.22, 0.22))
    angle = uniform(-np.pi, np.pi)
    places = np.linspace(-1, 1, _SIDE, dtype=np.float32)
    x = places[None, None, :] - (0.85 - size) * uniform(-1, 1)
    y = places[None, :, None] - (0.85 - size) * uniform(-1, 1)
    along = (x * np.cos(angle) + y * np.sin(angle)) / (size * stretch)
    across = (y * np.cos(angle) - x * np.sin(angle)) / (size / stretch)
    outside = np.empty_like(along)
    bounds = np.searchsorted(labels, np.arange(len(_OUTLINES) + 1))
    for outline, start, end in zip(_OUTLINES.values(), bounds[:-1], bounds[1:], strict=True):
        outside[start:end] = outline(along[start:end], across[start:end])
    pixel = 2 / _SIDE
    return np.asarray(np.clip(0.5 - outside * size / pixel, 0, 1), np.float32)


def _paint(cover: Floats, random: np.random.Generator) -> NDArray[np.uint8]:
    count = len(cover)
    colours = _colours(count, random)
    shape = _fill(colours[:, 0], colours[:, 1], random)
    ground = _fill(colours[:, 2], colours[:, 3], random)
    image = ground + cover[..., None] * (shape - ground)
    # Light falls from one side.
    slope = random.uniform(-0.25, 0.25, (2, count, 1, 1)).astype(np.float32)
    places = np.linspace(-1, 1, _SIDE, dtype=np.float32)
    image *= (1 + slope[0] * places[None, None, :] + slope[1] * places[None, :, None])[..., None]
    image += random.uniform(0, 0.05, (count, 1, 1, 1)) * random.standard_normal(image.shape, np.float32)
    return np.clip(image * 255, 0, 255).astype(np.uint8)


def _colours(count: int, random: np.random.Generator) -> Floats:
    """Return two colours for the shape and two clearly different ones for the ground: [count, 4, 3]."""
    shape = random.uniform(0.1, 0.9, (count, 1, 3)).astype(np.float32)
    away = random.standard_normal((count, 1, 3), np.float32)
    away *= 0.55 / np.linalg.norm(away, axis=-1, keepdims=True)
    # A component outside of 0 to 1 moves to the other side of the shape's.
    ground = np.where((shape + away < 0) | (shape + away > 1), shape - away, shape + away)
    pairs = np.concatenate([shape, shape, ground, ground], axis=1)
    shades = random.uniform(-0.15, 0.15, (count, 4, 3)).astype(np.float32)
    return np.clip(pairs + shades, 0, 1)


def _fill(one: Floats, other: Floats, random: np.random.Generator) -> Floats:
    """Return whole images of a random texture in two colours each: [count, side, side, 3]."""
    count = len(one)
    places = np.linspace(-1, 1, _SIDE, dtype=np.float32)

    def wave() -> Floats:
        angle, phase = random.uniform(0, 2 * np.pi, (2, count, 1, 1)).astype(np.float32)
        pitch = random.uniform(4, 14, (count, 1, 1)).astype(np.float32)
        return np.asarray(np.sin(pitch * (np.cos(angle) * places + np.sin(angle) * places[:, None]) + phase))

    first, second = wave(), wave()
    kind = random.integers(0, 4, (count, 1, 1))  # plain, stripes, checks, blobs
    mixed = np.select([kind == 0, kind == 1, kind == 2], [0.0, first * 3, first * second * 4], first + second)
    part = np.clip(0.5 + 0.5 * mixed, 0, 1).astype(np.float32)[..., None]
    return one[:, None, None] + part * (other - one)[:, None, None]


def _polygon(*corners: tuple[float, float]) -> Outline:
    """Return the function of the signed distance to a polygon, negative inside."""

    def outline(x: Floats, y: Floats) -> Floats:
        nearest, inside = np.full_like(x, 9.0), np.zeros(x.shape, bool)
        for (x0, y0), (x1, y1) in zip(corners, corners[1:] + corners[:1], strict=True):
            dx, dy = x1 - x0, y1 - y0
            part = np.clip(((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy), 0, 1)
            np.minimum(nearest, (x - x0 - part * dx) ** 2 + (y - y0 - part * dy) ** 2, out=nearest)
            if dy:
                inside ^= ((y0 > y) != (y1 > y)) & (x < (y - y0) * (dx / dy) + x0)
        return np.asarray(np.where(inside, -1, 1) * np.sqrt(nearest), np.float32)

    return outline


def _regular(corners: int, dent: float = 1.0) -> Outline:
    """Return a polygon with corners on the unit circle; every second one is at radius `dent`."""
    angles = np.arange(corners) * 2 * np.pi / corners
    radii = np.where(np.arange(corners) % 2, dent, 1.0)
    return _polygon(*zip(radii * np.cos(angles), radii * np.sin(angles), strict=True))


def _disc(x: Floats, y: Floats) -> Floats:
    return np.asarray(np.hypot(x, y) - 0.9)


def _ring(x: Floats, y: Floats) -> Floats:
    return np.asarray(np.abs(np.hypot(x, y) - 0.72) - 0.22)


def _crescent(x: Floats, y: Floats) -> Floats:
    return np.asarray(np.maximum(np.hypot(x, y) - 0.95, 0.78 - np.hypot(x - 0.45, y)))


def _heart(x: Floats, y: Floats) -> Floats:
    x = np.abs(x)
    lobe = np.hypot(x - 0.42, y + 0.32) - 0.5
    tip = np.maximum((0.78 * x + 0.62 * y) - 0.52, -y - 0.12)
    return np.asarray(np.minimum(lobe, np.maximum(tip, -x)))


_OUTLINES: dict[str, Outline] = {
    "disc": _disc,
    "ring": _ring,
    "crescent": _crescent,
    "heart": _heart,
    "triangle": _regular(3),
    "square": _regular(4),
    "star": _regular(10, dent=0.42),
    "cross": _polygon(
        *[(0.3, 0.95), (0.3, 0.3), (0.95, 0.3), (0.95, -0.3), (0.3, -0.3), (0.3, -0.95)],
        *[(-0.3, -0.95), (-0.3, -0.3), (-0.95, -0.3), (-0.95, 0.3), (-0.3, 0.3), (-0.3, 0.95)],
    ),
    "arrow": _polygon(
        *[(1.0, 0.0), (0.1, 0.8), (0.1, 0.3), (-0.95, 0.3), (-0.95, -0.3), (0.1, -0.3), (0.1, -0.8)]
    ),
    "hourglass": _polygon((-0.75, -0.9), (0.75, -0.9), (0.12, 0.0), (0.75, 0.9), (-0.75, 0.9), (-0.12, 0.0)),
}
CLASSES = tuple(_OUTLINES)
