"""Classification by an engine, against ONNX Runtime on the same file; the engine is a stand-in that runs it, too."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from standin_board import CLASSES, RELEASES, STRONG, build, model_for, play, play_cudart

from edgevit.agent.classify import classify, pipe
from edgevit.agent.runners import RunnerError

COUNT, SHAPE = 11, (4, 8, 8)


def images(folder: Path, dtype: str) -> tuple[np.ndarray, str]:
    values = np.random.default_rng(3).standard_normal((COUNT, *SHAPE)).astype(dtype)
    (folder / "images.raw").write_bytes(values.tobytes())
    return values, str(folder / "images.raw")


def expected(model: Path, values: np.ndarray, columns: list[int]) -> list[int]:
    import onnxruntime as ort

    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    kind = {"tensor(float)": "float32", "tensor(float16)": "float16"}[session.get_inputs()[0].type]
    step = session.get_inputs()[0].shape[0] if isinstance(session.get_inputs()[0].shape[0], int) else 1
    padded = np.concatenate([values, values[:1].repeat(-len(values) % step, 0)]).astype(kind)
    logits = np.concatenate(
        [session.run(None, {"images": padded[i : i + step]})[0] for i in range(0, len(padded), step)]
    )
    return [int(row.argmax()) for row in logits[:COUNT, columns]]


def largest(result: dict[str, Any]) -> list[int]:
    return [int(np.argmax(row)) for row in result["rows"]]


@pytest.mark.quick("8.5.2-*", "10.3.0-*", "11.4-*")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("release", RELEASES)
def test_every_release_classifies_as_onnx_runtime_does(
    release: str, dtype: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path, release)
    model = model_for(release, tmp_path)
    values, path = images(tmp_path, dtype)
    asked: dict[str, Any] = dict(
        engine=build(model)["engine"], images=path, count=COUNT, shape=SHAPE, dtype=dtype, batch=4
    )
    columns = [4, 0, 3, 1]
    result = classify(print, "/", **asked, columns=columns)
    assert largest(result) == expected(model, values, columns) and len(set(largest(result))) > 1
    assert result["nonfinite"] == 0 and result["seconds"] > 0


@pytest.mark.parametrize("release", ["8.6.1", "10.3.0"])
def test_a_last_batch_that_is_not_full_is_filled_up_where_the_batch_is_fixed(
    release: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path, release)
    play_cudart(monkeypatch, tmp_path)
    model = model_for(release, tmp_path, batch=4)
    values, path = images(tmp_path, "float16")
    given: dict[str, Any] = dict(images=path, count=COUNT, shape=SHAPE, dtype="float16", batch=4, columns=[0, 1, 2])
    result = classify(print, "/", engine=build(model, batches=None)["engine"], **given)
    assert largest(result) == expected(model, values, [0, 1, 2])


def test_a_last_batch_below_the_least_of_the_profile_is_filled_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path)
    model = model_for("10.3.0", tmp_path)
    values, path = images(tmp_path, "float16")
    given: dict[str, Any] = dict(images=path, count=COUNT, shape=SHAPE, dtype="float16", batch=8, columns=[0, 1, 2])
    result = classify(print, "/", engine=build(model, batches=(4, 8, 8))["engine"], **given)  # 8 images, and 3
    assert largest(result) == expected(model, values, [0, 1, 2])


def test_fewer_images_than_the_batch_show_an_engine_that_is_wrong_at_that_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path, "10.3.0", "batch:8")
    model = model_for("10.3.0", tmp_path)
    values, path = images(tmp_path, "float16")
    Path(path).write_bytes(values[:3].tobytes())
    given: dict[str, Any] = dict(engine=build(model)["engine"], images=path, count=3, shape=SHAPE, dtype="float16")
    columns = list(range(CLASSES))
    right = expected(model, values, columns)[:3]
    assert largest(classify(print, "/", **given, columns=columns, batch=4)) == right
    wrong = largest(classify(print, "/", **given, columns=columns, batch=8))
    assert not any(a == b for a, b in zip(wrong, right, strict=True))


def test_a_miscompiled_engine_is_seen_in_its_predictions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play(monkeypatch, tmp_path, "10.3.0", "fp16-layernorm")
    model = model_for("10.3.0", tmp_path)
    values, path = images(tmp_path, "float16")
    columns = list(range(CLASSES))
    given: dict[str, Any] = dict(images=path, count=COUNT, shape=SHAPE, dtype="float16", batch=8, columns=columns)
    predicted = largest(classify(print, "/", engine=build(model)["engine"], **given))
    assert not any(a == b for a, b in zip(predicted, expected(model, values, columns), strict=True))


@pytest.mark.parametrize("release", STRONG)
def test_outputs_that_are_no_numbers_are_counted_in_all_columns(
    release: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path, release)
    path = model_for(release, tmp_path)
    model = onnx.load(path)
    weight = next(w for w in model.graph.initializer if w.name == "head.weight")
    broken = onnx.numpy_helper.to_array(weight).copy()
    broken[:, 2], broken[:, 4] = np.nan, np.inf
    weight.CopyFrom(onnx.numpy_helper.from_array(broken, weight.name))
    onnx.save(model, path)
    _, sent = images(tmp_path, "float16")
    given: dict[str, Any] = dict(images=sent, count=COUNT, shape=SHAPE, dtype="float16", batch=8, columns=[2, 0, 1])
    result = classify(print, "/", engine=build(path)["engine"], **given)
    assert result["nonfinite"] == 2 * COUNT
    assert np.isnan(np.array(result["rows"])).tolist() == [[True, False, False]] * COUNT


def test_an_open_engine_gives_all_outputs_of_the_images_that_arrive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path)
    values, path = images(tmp_path, "float16")
    requests = [json.dumps({"count": len(part)}).encode() + b"\n" + part.tobytes() for part in (values[:9], values[9:])]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"".join(requests))))
    sizes, content = list[int](), bytearray()

    def send(message: dict[str, Any], parts: Iterable[memoryview] = ()) -> None:
        sizes.append(message["result"]["bytes"])
        content.extend(b"".join(parts))

    engine = build(model_for("10.3.0", tmp_path))["engine"]
    given: dict[str, Any] = dict(engine=engine, shape=SHAPE, dtype="float16", batch=4)
    pipe(send, "/", **given)
    logits = np.frombuffer(content, np.float16).reshape(COUNT, CLASSES)
    assert [size // logits[0].nbytes for size in sizes] == [0, 4, 4, 1, 2] and np.ptp(logits, axis=0).min() > 0
    rows = classify(print, "/", **given, images=path, count=COUNT, columns=[2, 0])["rows"]
    assert rows == logits[:, [2, 0]].tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 12}, r"has 5632 bytes, and 12 images of \[4, 8, 8\] in float16 have 6144; send it again"),
        ({"dtype": "float64"}, r"images of float64 cannot be read; known: float16, float32"),
        ({"shape": (8, 8, 4)}, r"images of \[8, 8, 4\] were sent, and the engine takes \[4, 8, 8\]"),
        ({"columns": [0, 5]}, r"columns \[0, 5\] were asked for, and the engine has 5 outputs"),
        ({"columns": []}, r"columns \[\] were asked for"),
        ({"images": "/none.raw"}, r"cannot read /none\.raw \(No such file or directory\)"),
        ({"batch": 100}, r"batch 100 was asked for, and this engine takes batches from 1 to 8"),
    ],
)
def test_what_does_not_fit_is_one_line(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path)
    _, path = images(tmp_path, "float16")
    engine = build(model_for("10.3.0", tmp_path))["engine"]
    given = dict(engine=engine, images=path, count=COUNT, shape=SHAPE, dtype="float16", batch=8, columns=[0, 1])
    with pytest.raises(RunnerError, match=message) as error:
        classify(print, "/", **{**given, **changes})
    assert "\n" not in str(error.value)


def test_an_image_beyond_float16_is_refused_and_not_clipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play(monkeypatch, tmp_path)
    engine = build(model_for("10.3.0", tmp_path))["engine"]
    (tmp_path / "images.raw").write_bytes(np.full(SHAPE, 1e6, np.float32).tobytes())
    with pytest.raises(RunnerError, match="beyond float16"):
        classify(
            print, "/", engine=engine, images=str(tmp_path / "images.raw"), count=1, shape=SHAPE, dtype="float32",
            batch=1, columns=[0],
        )  # fmt: skip
