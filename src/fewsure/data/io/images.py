"""From the bytes of an image file to an array of one size."""

import io
import warnings

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from fewsure.errors import FewsureError

MAX_PIXELS = 64 * 2**20
"""More than a photograph has. A small file can claim any size, so the claim is checked before decoding."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")
KINDS = "PNG, JPEG, WebP, BMP or TIFF"
"""The formats, in words."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")


def is_image(path: str) -> bool:
    """Whether a file's name says that it is an image; other files in an archive are left alone.

    >>> is_image("n01443537/n01443537_0.JPEG")
    True
    """
    return path.lower().endswith(SUFFIXES)


def decode(data: bytes, where: str, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """An image as uint8 of `shape` (C, H, W): grey if C = 1, else RGB; grey images become RGB where RGB is expected.

    It is turned as its EXIF orientation says. 16 bits become 8, transparent pixels white, and of several frames the
    first is taken. An image of another size is stretched to H × W with Pillow's Lanczos filter, which is antialiased:
    it averages over the pixels that fall together. `where` names the image in errors.
    """
    channels, height, width = shape
    image = opened(data, where, grey=channels == 1)
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    pixels = np.asarray(image).reshape(height, width, channels)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def opened(data: bytes, where: str, *, grey: bool = False) -> Image.Image:
    """An image as RGB, or as grey values, of its own size; `where` names it in errors."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{image.width} × {image.height} pixels are too many")
        return _with_bytes(ImageOps.exif_transpose(image)).convert("L" if grey else "RGB")
    except UnidentifiedImageError as error:  # whose words are about an object in memory
        raise FewsureError(
            f"expected {where} to be a {KINDS} image, but it cannot be decoded (it is another kind of file)"
        ) from error
    except Exception as error:  # Pillow has no one exception for a damaged image: each format raises its own
        raise FewsureError(f"expected {where} to be a {KINDS} image, but it cannot be decoded ({error})") from error


def _with_bytes(image: Image.Image) -> Image.Image:
    """The image with 8 bits a channel, and opaque."""
    if image.mode.startswith("I"):  # 16 bits, in one of Pillow's ways
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise ValueError(f"its values from {values.min()} to {values.max()} do not fit into 16 bits")
        return Image.fromarray((values // 257).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("its pixels are floats, of which nobody knows the range; save it with 8 or 16 bits")
    if "A" in image.getbands() or "transparency" in image.info:
        opaque = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", opaque.size, "white"), opaque)
    return image
