"""Writes the small pictures of this folder, and what Pillow makes of them (expected.txt).

    python -m venv /tmp/venv && /tmp/venv/bin/pip install pillow
    /tmp/venv/bin/python reference.py

Each line of expected.txt: the file, the side of the output, the part of the picture (left, top,
width, height), and the resampled pixels, red, green and blue planes, in hexadecimal.
"""

import math
import pathlib

import PIL
from PIL import Image

HERE = pathlib.Path(__file__).parent


def picture(width, height):
    image = Image.new("RGB", (width, height))
    for y in range(height):
        for x in range(width):
            red = 127 + 120 * math.sin(x / 5) * math.cos(y / 7)
            green = 255 * x / width
            blue = 255 * ((x // 6 + y // 6) % 2)
            image.putpixel((x, y), (int(red), int(green), int(blue)))
    return image


def save():
    base = picture(48, 36)
    base.save(HERE / "rgb.png", optimize=True)
    base.save(HERE / "baseline.jpg", quality=90)
    base.save(HERE / "progressive.jpg", quality=90, progressive=True)
    base.convert("L").save(HERE / "grey.jpg", quality=90)
    base.convert("CMYK").save(HERE / "cmyk.jpg", quality=90)
    base.convert("L").save(HERE / "grey.png", optimize=True)
    base.convert("P", palette=Image.Palette.ADAPTIVE, colors=16).save(HERE / "palette.png", optimize=True)
    with_alpha = base.copy()
    with_alpha.putalpha(200)
    with_alpha.save(HERE / "alpha.png", optimize=True)


def planes(image):
    return b"".join(channel.tobytes() for channel in image.convert("RGB").split()).hex()


def expected():
    whole, middle, odd = (0, 0, 48, 36), (8.25, 2.25, 31.5, 31.5), (3, 5, 30, 22)
    for name, side, part in [
        ("rgb.png", 16, whole),
        ("rgb.png", 16, middle),
        ("rgb.png", 12, odd),
        ("rgb.png", 40, (10, 10, 12, 9)),
        ("rgb.png", 5, whole),
        ("grey.png", 16, middle),
        ("palette.png", 16, middle),
        ("alpha.png", 16, middle),
        ("baseline.jpg", 16, middle),
        ("progressive.jpg", 16, middle),
        ("grey.jpg", 16, middle),
        ("cmyk.jpg", 16, middle),
    ]:
        image = Image.open(HERE / name).convert("RGB")
        left, top, width, height = part
        box = (left, top, left + width, top + height)
        small = image.resize((side, side), Image.Resampling.BILINEAR, box=box)
        print(name, side, *part, planes(small), file=out)


if __name__ == "__main__":
    save()
    with open(HERE / "expected.txt", "w") as out:
        print("#", "Pillow", PIL.__version__, file=out)
        expected()
