"""The images of a prompt for an engine that prepares them itself. Runs in every process."""

from __future__ import annotations

import msgspec

from .types import Array, Images


class Pictures(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Decoded images, and the prompt that they are for as its chat template writes it: a placeholder for each.

    Attributes:
        pixels: (height, width, 3) of uint8, upright and in RGB, in the order of the placeholders.
        digests: of the files, in hexadecimal: equal files are equal images.
        written: the ids of the written prompt.
        length: how many ids the model gets for it (`AsyncEngine.expand`); 0: nobody has asked yet.
    """

    pixels: tuple[Array, ...]
    digests: tuple[str, ...]
    written: tuple[int, ...]
    length: int = 0


#: The images of a prompt in either form; which one an engine takes, its row says (`Engine.prepares_images`).
AnyImages = Images | Pictures
