"""Draw images with captions as one PNG."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw

_SIDE = 112  # of an image's longer side, in pixels
_MARGIN = 8
_LINE = 14  # from a line of text to the next
_WIDTH, _HEIGHT = _SIDE + _MARGIN, _MARGIN + _SIDE + 2 * _LINE + _MARGIN
_MOST_COLUMNS = 8


@dataclass(frozen=True)
class Caption:
    """The two lines below an image; the second is red."""

    first: str
    second: str = ""


def draw_grid(images: Sequence[Any], captions: Sequence[Caption]) -> bytes:
    """Return a PNG of uint8 images, grey or in colour, row by row.

    Args:
        images: Arrays of [height, width, 1 or 3].
        captions: One for each image; a line that is too long is cut off.
    """
    columns = min(_MOST_COLUMNS, max(1, math.ceil(math.sqrt(len(images)))))
    rows = max(1, math.ceil(len(images) / columns))
    canvas = Image.new("RGB", (columns * _WIDTH + _MARGIN, rows * _HEIGHT + _MARGIN), "white")
    pen = ImageDraw.Draw(canvas)
    for index, (image, caption) in enumerate(zip(images, captions, strict=True)):
        left, top = index % columns * _WIDTH + _MARGIN, index // columns * _HEIGHT + _MARGIN
        canvas.paste(_scaled(image), (left, top))
        for line, (text, colour) in enumerate(((caption.first, "#202020"), (caption.second, "#c80000"))):
            while pen.textlength(text) > _SIDE:
                text = text[:-1]
            pen.text((left, top + _SIDE + line * _LINE), text, colour)
    png = io.BytesIO()
    canvas.save(png, "PNG")
    return png.getvalue()


def _scaled(image: Any) -> Image.Image:
    drawing = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    scale = _SIDE / max(drawing.size)
    width, height = (max(1, round(length * scale)) for length in drawing.size)
    return drawing.resize((width, height), Image.Resampling.NEAREST)
