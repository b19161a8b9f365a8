"""What comes before an inference where a model is used: pictures are decoded, resized, cropped and normalised.

With Pillow and numpy, as `deploy/examples/classify.py` does it, and by the rules of `image_transform` on the host. The
pictures are read into memory first: a camera does not have them from a disk.
"""

from __future__ import annotations

import io
import math
from importlib import import_module
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Sequence

from .runners import Loaded, RunnerError

# Modules that decode and prepare pictures, with their packages in Ubuntu.
_PACKAGES = {"numpy": "python3-numpy", "PIL": "python3-pil"}


class Camera:
    """Encoded pictures, one after the other and from the beginning again."""

    def __init__(self, paths: Sequence[str], settings: dict[str, Any]) -> None:
        """`settings` are a model's own: input_size, interpolation, mean, std, crop_pct and crop_mode.

        Raises: RunnerError.
        """
        for name, package in _PACKAGES.items():
            try:
                import_module(name)
            except ImportError as error:
                raise RunnerError(
                    f"--end-to-end decodes pictures with numpy and Pillow, and {name} cannot be imported ({error}); "
                    f"install it with `sudo apt install {package}`"
                ) from error
        self._settings = settings
        try:
            encoded = [(path, Path(path).read_bytes()) for path in paths]
        except OSError as error:
            raise RunnerError(f"cannot read {error.filename} ({error.strerror}); send the pictures again") from error
        self._encoded = cycle(encoded)

    def decode(self, count: int) -> list[Any]:
        """The next pictures, in RGB."""
        from PIL import Image, ImageOps, UnidentifiedImageError

        unreadable = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)  # as Pillow says it
        pictures = []
        for path, content in islice(self._encoded, count):
            try:
                picture: Any = Image.open(io.BytesIO(content))
                if self._settings.get("exif") == "apply":
                    picture = ImageOps.exif_transpose(picture)
                pictures.append(picture.convert("RGB"))
            except UnidentifiedImageError as error:  # whose own text names the memory that it was read from
                raise RunnerError(f"{path} is no picture that Pillow can decode") from error
            except unreadable as error:
                raise RunnerError(f"{path} is no picture that Pillow can decode ({error})") from error
        return pictures

    def prepare(self, pictures: Sequence[Any]) -> Any:
        """Resize, crop and normalise: float32 [B, 3, H, W]."""
        import numpy as np

        mean, std = (np.array(self._settings[name], np.float32) for name in ("mean", "std"))
        pixels = np.stack([np.asarray(self._cropped(picture), np.float32) for picture in pictures])
        return np.ascontiguousarray(((pixels / 255 - mean) / std).transpose(0, 3, 1, 2))  # [B, H, W, 3] -> [B, 3, H, W]

    def _cropped(self, picture: Any) -> Any:
        from PIL import Image, ImageTransform

        settings = self._settings
        height, width = settings["input_size"][1:]
        mode, interpolation = settings.get("crop_mode"), getattr(Image, settings["interpolation"].upper())
        fill = tuple(round(255 * value) for value in settings["mean"]) if mode in ("border", "corner") else (0, 0, 0)
        if mode == "corner":  # as a detector does, without antialiasing, which `resize` always has
            scale = min(height / picture.height, width / picture.width)
            size = max(round(picture.width * scale), 1), max(round(picture.height * scale), 1)
            canvas = Image.new("RGB", (width, height), fill)
            whole = ImageTransform.ExtentTransform((0, 0, *picture.size))
            canvas.paste(picture.transform(size, whole, resample=interpolation))
            return canvas
        picture = picture.resize(self._scaled(*picture.size), interpolation)
        canvas = Image.new("RGB", (max(width, picture.width), max(height, picture.height)), fill)
        canvas.paste(picture, ((canvas.width - picture.width) // 2, (canvas.height - picture.height) // 2))
        x, y = round((canvas.width - width) / 2), round((canvas.height - height) / 2)
        return canvas.crop((x, y, x + width, y + height))

    def _scaled(self, width: int, height: int) -> tuple[int, int]:
        """Width and height before the crop."""
        tall, wide = (math.floor(side / self._settings["crop_pct"]) for side in self._settings["input_size"][1:])
        mode = self._settings.get("crop_mode") or "center"
        if mode == "squash":
            return wide, tall
        if mode == "center" and tall == wide:  # the shorter side to the target
            short = min(width, height)
            return int(wide * width / short), int(tall * height / short)
        ratios = (height / tall, width / wide)
        ratio = max(ratios) if mode == "border" else min(ratios)
        return round(width / ratio), round(height / ratio)


class EndToEnd:
    """Inferences that begin with encoded pictures and end with logits on the host, and the parts of their time."""

    def __init__(self, camera: Camera, loaded: Loaded, batch: int) -> None:
        """Raises: RunnerError."""
        if loaded.feed is None:
            raise RunnerError("this runner takes no pictures; leave --end-to-end out, or try onnxruntime or tensorrt")
        self._camera, self._loaded, self._feed, self._batch = camera, loaded, loaded.feed, batch
        self._last: dict[str, int] = {}

    def infer(self) -> None:
        began = perf_counter_ns()
        pictures = self._camera.decode(self._batch)
        decoded = perf_counter_ns()
        images = self._camera.prepare(pictures)
        prepared = perf_counter_ns()
        self._feed(images)
        fed = perf_counter_ns()
        self._loaded.infer()
        ended = perf_counter_ns()
        self._last = {
            "decode": decoded - began,
            "preprocess": prepared - decoded,
            "copy in": fed - prepared,
            "inference": ended - fed,
        }

    def parts_ns(self) -> dict[str, int]:
        """Durations of the last inference's parts; copies are apart from computation where the GPU times its part."""
        inside = self._loaded.parts_ns() if self._loaded.parts_ns else {}
        copied = self._last["copy in"] + inside.get("copy in", 0)
        return {**self._last, **inside, "copy in": copied}
