"""Pictures as a model wants them, and an end-to-end inference in its parts."""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from standin_board import build, model_for, play, play_cudart, write_model

from edgevit.agent.camera import Camera
from edgevit.agent.measure import MeasurementRequest, measure
from edgevit.agent.records import Run
from edgevit.agent.runners import RunnerError

SETTINGS: dict[str, Any] = {
    "input_size": [3, 24, 24],
    "interpolation": "bicubic",
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
    "crop_pct": 0.9,
    "crop_mode": "center",
}


@pytest.fixture
def pictures(tmp_path: Path) -> list[str]:
    random = np.random.default_rng(0)
    paths = []
    for i, size in enumerate([(40, 60), (33, 21), (24, 24)]):
        path = tmp_path / f"{i}.{'png' if i else 'jpg'}"
        Image.fromarray(random.integers(0, 255, (*size, 3), np.uint8)).save(path)
        paths.append(str(path))
    return paths


@pytest.mark.parametrize("mode", ["center", "squash", "border", "corner"])
@pytest.mark.parametrize("size", [(24, 24), (16, 32), (64, 64)])
def test_pictures_are_prepared_as_on_the_host(mode: str, size: tuple[int, int], pictures: list[str]) -> None:
    from edgevit.records.preparing import image_transform

    settings = {**SETTINGS, "crop_mode": mode, "input_size": [3, *size]}
    if mode == "corner":
        settings |= {"interpolation": "bilinear", "crop_pct": 1.0}
    camera = Camera(pictures, settings)
    prepared = camera.prepare(camera.decode(3))
    transform = image_transform(settings)
    expected = [transform(Image.open(path).convert("RGB")).numpy() for path in pictures]
    assert prepared.shape == (3, 3, *size) and prepared.dtype == np.float32
    steps = 255 * np.array(SETTINGS["std"])[:, None, None] * (prepared - expected)
    assert np.abs(steps).max() < (1.001 if mode == "corner" else 0.01), "of a colour of 8 bits"


@pytest.mark.parametrize(("exif", "size"), [({}, (60, 40)), ({"exif": "apply"}, (40, 60))])
def test_a_picture_that_is_stored_turned_is_put_upright_where_the_model_says_so(
    exif: dict[str, str], size: tuple[int, int], tmp_path: Path
) -> None:
    tags = Image.Exif()
    tags[274] = 6
    Image.new("RGB", (60, 40)).save(tmp_path / "a.jpg", exif=tags)
    (picture,) = Camera([str(tmp_path / "a.jpg")], {**SETTINGS, **exif}).decode(1)
    assert (picture.size, picture.mode) == (size, "RGB")


def test_pictures_come_round_again(pictures: list[str]) -> None:
    camera = Camera(pictures, SETTINGS)
    sizes = [picture.size for _ in range(3) for picture in camera.decode(2)]
    assert sizes[:3] == sizes[3:] and len(set(sizes)) == 3


def test_what_is_missing_or_no_picture_is_named(
    pictures: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    with pytest.raises(RunnerError, match=r"bad\.jpg is no picture that Pillow can decode$"):
        Camera([str(tmp_path / "bad.jpg")], SETTINGS).decode(1)
    content = Path(pictures[1]).read_bytes()
    (tmp_path / "cut.png").write_bytes(content[: len(content) // 2])
    empty = b"\0\0\0\0IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    (tmp_path / "bad.png").write_bytes(content[:33] + empty + b"!" * 40)  # of which Pillow raises SyntaxError
    for name in ("cut.png", "bad.png"):
        with pytest.raises(RunnerError, match=rf"{name} is no picture that Pillow can decode \(.+\)"):
            Camera([str(tmp_path / name)], SETTINGS).decode(1)
    with pytest.raises(RunnerError, match=r"cannot read .*none\.jpg \(No such file"):
        Camera([str(tmp_path / "none.jpg")], SETTINGS)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(RunnerError, match=r"PIL cannot be imported .*; install it with `sudo apt install python3-pil`"):
        Camera(pictures, SETTINGS)


def used(model: Path | str, runner: str, pictures: list[str], **changes: Any) -> Run:
    """One run end to end."""
    known = dict(model_sha256="0" * 64, label="small", precision=None, runner=runner, batch=2, samples=6)
    settings = {**SETTINGS, "input_size": [3, 8, 8]}
    more = {"duration_s": 0, "warmup": 1, "warmup_seconds": 0, "images": pictures, "preprocessing": settings}
    return measure(MeasurementRequest(str(model), **{**known, **more, **changes}), lambda stage, done, **figures: None)


def test_onnx_runtime_is_measured_from_the_picture_to_the_logits_in_parts(tmp_path: Path, pictures: list[str]) -> None:
    run = used(write_model(tmp_path / "model.onnx", channels=3), "onnxruntime", pictures, options={"threads": 1})
    assert run.use() == "end to end"
    assert run.parts_ns is not None and list(run.parts_ns) == ["decode", "preprocess", "copy in", "inference"]
    named = [sum(times) for times in zip(*run.parts_ns.values(), strict=True)]
    assert all(parts <= whole for parts, whole in zip(named, run.latencies_ns, strict=True))
    assert Run.from_json(run.to_json()) == run


def test_tensorrt_tells_copies_from_the_computation_by_the_gpus_clock(
    tmp_path: Path, pictures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, tmp_path)
    play_cudart(monkeypatch, tmp_path)
    engine = build(model_for("10.3.0", tmp_path, channels=3))["engine"]
    run = used(engine, "tensorrt", pictures, options={"transfers": True}, period_ms=2)
    assert run.use() == "end to end, one per 2 ms" and run.missed is not None
    assert run.parts_ns is not None
    assert list(run.parts_ns) == ["decode", "preprocess", "copy in", "inference", "copy out"]
    assert run.gpu_ns == run.parts_ns["inference"]
    assert run.environment["transfers"] == "included"


@pytest.mark.parametrize(
    ("runner", "options", "message"),
    [
        ("onnxruntime", {}, r"images of \[2, 3, 8, 8\] were made for it, and the model takes images \[2, 4, 8, 8\]"),
        ("onnxruntime", {"transfers": False}, "this runner takes no pictures"),
    ],
)
def test_pictures_that_a_model_cannot_take_are_refused(
    runner: str, options: dict[str, Any], message: str, tmp_path: Path, pictures: list[str]
) -> None:
    with pytest.raises(RunnerError, match=message):
        used(write_model(tmp_path / "model.onnx"), runner, pictures, options=options)
