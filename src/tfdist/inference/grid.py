"""Draw pictures with captions as one PNG, by nothing but NumPy and TensorFlow's encoder."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["Caption", "draw_grid"]

# Five rows of three dots a letter; each digit is a row, in octal, and its bits are the dots.
_LETTERS = {
    "A": 0o25755, "B": 0o65656, "C": 0o34443, "D": 0o65556, "E": 0o74647, "F": 0o74644, "G": 0o34553,
    "H": 0o55755, "I": 0o72227, "J": 0o11152, "K": 0o55655, "L": 0o44447, "M": 0o57755, "N": 0o65555,
    "O": 0o25552, "P": 0o65644, "Q": 0o25573, "R": 0o65655, "S": 0o34216, "T": 0o72222, "U": 0o55557,
    "V": 0o55552, "W": 0o55775, "X": 0o55255, "Y": 0o55222, "Z": 0o71247,
    "0": 0o75557, "1": 0o26227, "2": 0o61247, "3": 0o61216, "4": 0o55711, "5": 0o74616, "6": 0o34757,
    "7": 0o71222, "8": 0o75757, "9": 0o75716,
    " ": 0o00000, "-": 0o00700, "_": 0o00007, ".": 0o00002, ",": 0o00024, "%": 0o51245, "/": 0o11244,
    "(": 0o24442, ")": 0o21112, "&": 0o25253, "'": 0o22000, "+": 0o02720, "?": 0o61202,
}  # fmt: skip
_DOT = 2  # pixels of a dot's side
_PITCH = 4 * _DOT  # from a letter to the next
_LINE = 7 * _DOT  # from a line to the next

_SIDE = 112  # of a picture's longer side, in pixels
_MARGIN = 8
_CELL = (_MARGIN + _SIDE + 2 * _LINE + _MARGIN, _SIDE + _MARGIN)
_MOST_COLUMNS = 8
_WHITE, _BLACK, _RED = 255, (32, 32, 32), (200, 0, 0)


@dataclass(frozen=True)
class Caption:
    """Hold the two lines below a picture; the second is written in red."""

    first: str
    second: str = ""


def draw_grid(images: Sequence[Any], captions: Sequence[Caption]) -> bytes:
    """Draw uint8 pictures, grey or in colour, row by row, and give the PNG.

    Args:
        images: Arrays of [height, width, 1 or 3].
        captions: One for each. Letters that are not in the small font come out as question marks.
    """
    columns = min(_MOST_COLUMNS, max(1, math.ceil(math.sqrt(len(images)))))
    rows = max(1, math.ceil(len(images) / columns))
    height, width = _CELL
    canvas = np.full((rows * height + _MARGIN, columns * width + _MARGIN, 3), _WHITE, np.uint8)
    for index, (image, caption) in enumerate(zip(images, captions, strict=True)):
        top, left = index // columns * height + _MARGIN, index % columns * width + _MARGIN
        scaled = _scaled(image)
        canvas[top : top + scaled.shape[0], left : left + scaled.shape[1]] = (
            scaled  # grey is spread over colours
        )
        below = top + _SIDE + _DOT
        _write(canvas, caption.first, below, left, _BLACK)
        _write(canvas, caption.second, below + _LINE, left, _RED)
    png: bytes = tf.io.encode_png(canvas).numpy()
    return png


def _scaled(image: Any) -> Any:
    height, width = image.shape[:2]
    scale = _SIDE / max(height, width)
    down, across = (max(1, round(length * scale)) for length in (height, width))
    return image[np.arange(down) * height // down][:, np.arange(across) * width // across]


def _write(canvas: Any, text: str, top: int, left: int, colour: tuple[int, int, int]) -> None:
    for place, letter in enumerate(text.upper()[: _SIDE // _PITCH]):
        dots = _LETTERS.get(letter, _LETTERS["?"])
        inked = np.array(
            [[dots >> 3 * (4 - row) + (2 - column) & 1 for column in range(3)] for row in range(5)]
        )
        pixels = inked.astype(bool).repeat(_DOT, axis=0).repeat(_DOT, axis=1)
        at = left + place * _PITCH
        canvas[top : top + 5 * _DOT, at : at + 3 * _DOT][pixels] = colour
