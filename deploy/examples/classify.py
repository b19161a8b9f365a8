#!/usr/bin/env python3
"""Classify images, or what a camera sees, with an exported model. No edgevit needed: copy this file and `export/`.

    python3 classify.py runs/t1/export cat.jpg dog.jpg
    python3 classify.py runs/t1/export --camera csi          a CSI camera, through GStreamer; or 0, 1, /dev/video0
    python3 classify.py runs/t1/export --onnx cat.jpg        ONNX Runtime instead of the engine
    python3 classify.py runs/t1/export --plain > model.txt   what the C++ program needs to know of the model

Needs Python 3.8, numpy and Pillow; for an engine TensorRT 8.5 or later, as JetPack brings it; for ONNX onnxruntime; for
cameras cv2. Prints one line per image: its name, then the likeliest classes and their probabilities; before them
`other` where the model was derived with --reject and takes the image for none of its classes.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import shlex
import sys
from pathlib import Path
from typing import Any, Iterator

import numpy as np
from PIL import Image, ImageOps

CSI = (
    "nvarguscamerasrc ! video/x-raw(memory:NVMM),width=1280,height=720,framerate=30/1 ! nvvidconv ! "
    "video/x-raw,format=BGRx ! videoconvert ! video/x-raw,format=BGR ! appsink drop=true max-buffers=1"
)
TO_DEVICE, TO_HOST = 1, 2  # cudaMemcpyKind
NON_BLOCKING = 1  # a stream that does not wait for the default one


# -- From an image to the model's input --------------------------------------------------------------------------------


def opened(files: list[Path]) -> Iterator[tuple[str, Image.Image]]:
    """Each file's name and picture."""
    for path in files:
        try:
            with Image.open(path) as image:
                image.load()
        except (OSError, SyntaxError, ValueError) as error:  # missing, a folder, no picture, or a spoilt one
            sys.exit(f"cannot read {path}: {getattr(error, 'strerror', None) or error}; give files of pictures")
        yield str(path), image


def scaled_size(width: int, height: int, settings: dict[str, Any]) -> tuple[int, int]:
    """Width and height before the crop, by the rules of timm's evaluation transform."""
    target_h, target_w = (math.floor(side / settings["crop_pct"]) for side in settings["input_size"][1:])
    mode = settings.get("crop_mode") or "center"
    if mode == "squash":
        return target_w, target_h
    if mode == "center" and target_h == target_w:  # the shorter side to the target
        short = min(width, height)
        return int(target_w * width / short), int(target_h * height / short)
    ratios = (height / target_h, width / target_w)
    ratio = max(ratios) if mode == "border" else min(ratios)
    return round(width / ratio), round(height / ratio)


def preprocess(image: Image.Image, settings: dict[str, Any]) -> np.ndarray:
    """Resize, crop and normalise as the model was trained: float32 [1, 3, H, W]."""
    if image.mode.startswith(("I", "F")):  # converting would cut values off at 255
        sys.exit(f"an image of mode {image.mode} is deeper than 8 bits; scale it to 8 bits first, as training did")
    if settings.get("exif") == "apply":
        image = ImageOps.exif_transpose(image)
    image = image.convert("RGB")
    image = image.resize(scaled_size(*image.size, settings), getattr(Image, settings["interpolation"].upper()))
    height, width = settings["input_size"][1:]
    fill = (
        tuple(round(255 * value) for value in settings["mean"]) if settings.get("crop_mode") == "border" else (0, 0, 0)
    )
    canvas = Image.new("RGB", (max(width, image.width), max(height, image.height)), fill)
    canvas.paste(image, ((canvas.width - image.width) // 2, (canvas.height - image.height) // 2))
    left, top = round((canvas.width - width) / 2), round((canvas.height - height) / 2)
    pixels = np.asarray(canvas.crop((left, top, left + width, top + height)), np.float32) / 255
    mean, std = (np.array(settings[name], np.float32) for name in ("mean", "std"))
    return np.ascontiguousarray(((pixels - mean) / std).transpose(2, 0, 1)[None])  # [H, W, 3] -> [1, 3, H, W]


# -- From the input to logits ------------------------------------------------------------------------------------------


class Cuda:
    """The five functions of the CUDA runtime that are needed, through ctypes."""

    def __init__(self) -> None:
        for name in ("libcudart.so", "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"):
            try:
                self.library = ctypes.CDLL(name)
                break
            except OSError:
                continue
        else:
            sys.exit("no CUDA runtime (libcudart.so); try: export LD_LIBRARY_PATH=/usr/local/cuda/lib64")

    def call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self.library, name)(*arguments):
            sys.exit(f"{name} failed with CUDA error {status}")

    def malloc(self, size: int) -> int:
        pointer = ctypes.c_void_p()
        self.call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value or 0

    def stream(self) -> int:
        handle = ctypes.c_void_p()
        self.call("cudaStreamCreateWithFlags", ctypes.byref(handle), NON_BLOCKING)
        return handle.value or 0

    def copy(self, to: int, source: int, size: int, kind: int, stream: int) -> None:
        pointers = (ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(size))
        self.call("cudaMemcpyAsync", *pointers, kind, ctypes.c_void_p(stream))

    def wait(self, stream: int) -> None:
        self.call("cudaStreamSynchronize", ctypes.c_void_p(stream))


class Engine:
    """A TensorRT engine with one input and one output, run one image at a time."""

    def __init__(self, path: Path) -> None:
        try:
            import tensorrt as trt
        except ImportError as error:
            sys.exit(f"{path} needs TensorRT, and this Python has none ({error}); use the board's own, or --onnx")
        self.logger = trt.Logger(trt.Logger.WARNING)
        self.runtime = trt.Runtime(self.logger)
        self.engine = self.runtime.deserialize_cuda_engine(path.read_bytes())
        if self.engine is None:
            sys.exit(f"TensorRT {trt.__version__} cannot read {path}: was it built on this board, by this TensorRT?")
        self.context = self.engine.create_execution_context()
        if self.context is None:
            sys.exit("TensorRT cannot prepare to run the engine, as its messages above say; close other programs")
        dtypes = {trt.DataType.FLOAT: np.float32, trt.DataType.HALF: np.float16}
        names = [self.engine.get_tensor_name(i) for i in range(self.engine.num_io_tensors)]
        self.input, self.output = sorted(names, key=lambda n: self.engine.get_tensor_mode(n) != trt.TensorIOMode.INPUT)
        shape = tuple(self.engine.get_tensor_shape(self.input))
        if shape[0] < 0:  # any number of images: the fewest that it takes, of which the first is ours
            shape = tuple(self.engine.get_tensor_profile_shape(self.input, 0)[0])
            self.context.set_input_shape(self.input, shape)
        self.images = np.zeros(shape, dtypes[self.engine.get_tensor_dtype(self.input)])
        outputs = tuple(self.engine.get_tensor_shape(self.output))[1:]
        self.logits = np.empty((shape[0], *outputs), dtypes[self.engine.get_tensor_dtype(self.output)])
        self.cuda = Cuda()
        self.stream = self.cuda.stream()
        self.on_device = {
            self.input: self.cuda.malloc(self.images.nbytes),
            self.output: self.cuda.malloc(self.logits.nbytes),
        }
        for name, address in self.on_device.items():
            self.context.set_tensor_address(name, address)

    def __call__(self, image: np.ndarray) -> np.ndarray:
        self.images[0] = image[0]
        host, cuda = self.images, self.cuda
        cuda.copy(self.on_device[self.input], host.ctypes.data, host.nbytes, TO_DEVICE, self.stream)
        if not self.context.execute_async_v3(self.stream):
            sys.exit("TensorRT could not run the engine; its messages above say why")
        cuda.copy(self.logits.ctypes.data, self.on_device[self.output], self.logits.nbytes, TO_HOST, self.stream)
        cuda.wait(self.stream)
        return self.logits[0].astype(np.float32)


class Onnx:
    """Run an ONNX file with ONNX Runtime, on the GPU if possible."""

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            sys.exit(f"{path} needs ONNX Runtime, and this Python has none ({error}); try: pip install onnxruntime")
        available = onnxruntime.get_available_providers()
        providers = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in available]
        self.session = onnxruntime.InferenceSession(str(path), providers=providers)
        images = self.session.get_inputs()[0]
        batch = images.shape[0] if isinstance(images.shape[0], int) else 1
        self.name = images.name
        dtype = np.float16 if images.type == "tensor(float16)" else np.float32
        self.images = np.zeros((batch, *images.shape[1:]), dtype)

    def __call__(self, image: np.ndarray) -> np.ndarray:
        self.images[0] = image[0]
        return self.session.run(None, {self.name: self.images})[0][0].astype(np.float32)


def open_model(folder: Path, engine: Path | None, onnx: bool) -> Engine | Onnx:
    """Open the given engine or the only one in the folder; without one, or with --onnx, the ONNX file, best fp32."""
    engines = [engine] if engine else sorted(folder.glob("engines/*/*.engine"))
    if onnx or not engines:
        fp32 = folder / "model.fp32.onnx"
        files = sorted(folder.glob("model.*.onnx"))
        return Onnx(fp32 if fp32 in files or not files else files[0])
    if len(engines) > 1:
        sys.exit(
            "several engines; choose one:\n" + "\n".join(f"  --engine {shlex.quote(str(path))}" for path in engines)
        )
    return Engine(engines[0])


# -- From logits to names ----------------------------------------------------------------------------------------------


def likeliest(logits: np.ndarray, classes: list[dict[str, Any]], count: int) -> list[tuple[str, float]]:
    """Return the most probable target classes by name, with their probabilities."""
    chosen = logits[[entry["column"] for entry in classes]]
    odds = np.exp(chosen - chosen.max())
    order = np.argsort(-odds, kind="stable")[:count]
    return [(classes[i]["name"], float(odds[i] / odds.sum())) for i in order]


def threshold(record: dict[str, Any]) -> float | None:
    """Return the score below which an image belongs to no target class; None without a rejection rule."""
    rule = record.get("rejection")
    if rule and rule["score"] != "logsumexp":
        sys.exit(f"the model rejects by {rule['score']!r}, which this program does not know; take a newer one")
    return rule["threshold"] if rule else None


def score(logits: np.ndarray, classes: list[dict[str, Any]]) -> float:
    """Return the log-sum-exp of the target classes' logits."""
    chosen = logits[[entry["column"] for entry in classes]]
    return float(chosen.max() + np.log(np.exp(chosen - chosen.max()).sum()))


def frames(camera: str, count: int | None) -> Iterator[tuple[str, Image.Image]]:
    try:
        import cv2
    except ImportError as error:
        sys.exit(f"a camera needs OpenCV, and this Python has none ({error}); try: sudo apt install python3-opencv")
    if camera == "csi":
        source = cv2.VideoCapture(CSI, cv2.CAP_GSTREAMER)
    else:
        source = cv2.VideoCapture(int(camera) if camera.isdecimal() else camera)
    if not source.isOpened():
        sys.exit(f"cannot open the camera {camera}; try another: ls /dev/video*, or csi")
    try:
        number = 0
        while count is None or number < count:
            success, frame = source.read()
            if not success:
                sys.exit(f"the camera {camera} gives no more frames")
            yield f"frame {number}", Image.fromarray(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB))
            number += 1
    finally:
        source.release()


def plain(record: dict[str, Any]) -> str:
    """Convert the part of export.json that the C++ program needs into lines of words."""
    settings = record["preprocessing"]
    if (settings.get("crop_mode") or "center") != "center" or settings["input_size"][1] != settings["input_size"][2]:
        sys.exit("the C++ program knows square inputs and crop mode center only")
    lines = [
        f"size {settings['input_size'][1]}",
        f"resize {math.floor(settings['input_size'][1] / settings['crop_pct'])}",
        f"interpolation {settings['interpolation']}",
        *(f"{name} {' '.join(f'{value:.9g}' for value in settings[name])}" for name in ("mean", "std")),
        *([] if threshold(record) is None else [f"other {threshold(record):.9g}"]),
        *(f"class {entry['column']} {entry['name']}" for entry in record["classes"]),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("export", type=Path, help="the export/ folder of a model folder")
    parser.add_argument("images", nargs="*", type=Path)
    parser.add_argument("--camera", help="csi, a number, or a device such as /dev/video0")
    parser.add_argument("--frames", type=int, help="stop after so many; else Ctrl-C")
    parser.add_argument("--engine", type=Path, help="needed where there are several")
    parser.add_argument("--onnx", action="store_true", help="use ONNX Runtime")
    parser.add_argument("--top", type=int, default=1, help="classes to print per image")
    parser.add_argument("--plain", action="store_true", help="print what the C++ program needs")
    arguments = parser.parse_intermixed_args()  # options may stand between the images
    try:
        record = json.loads((arguments.export / "export.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):  # the second of an image in its place
        sys.exit(f"no export.json in {arguments.export}; give the export/ folder that `edgevit export` wrote")
    if not record["classes"]:
        sys.exit(
            "the model does not say which output is which class; write the base again, with "
            "`edgevit base ... --base-classes FILE`, and export that"
        )
    if arguments.plain:
        print(plain(record))
        return
    if not arguments.images and not arguments.camera:
        parser.error("give images, or --camera")
    least = threshold(record)
    model = open_model(arguments.export, arguments.engine, arguments.onnx)
    for name, image in frames(arguments.camera, arguments.frames) if arguments.camera else opened(arguments.images):
        logits = model(preprocess(image, record["preprocessing"]))
        best = [f"{label} {share:.3f}" for label, share in likeliest(logits, record["classes"], arguments.top)]
        if least is not None and not score(logits, record["classes"]) >= least:
            best.insert(0, "other")
        print("\t".join([name, *best]), flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
