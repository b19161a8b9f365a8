"""Maps are judged by target maps beside the images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dense_networks import write_depth, write_frames
from PIL import Image

import edgevit
from edgevit.errors import DataError
from edgevit.exporting.targets import class_overlaps, find_targets, mean_iou, own_score, read_targets, score_maps
from edgevit.network.output import Map

PREPROCESSING = {
    "input_size": [3, 16, 16], "mean": [0.0] * 3, "std": [1.0] * 3, "crop_pct": 1.0, "interpolation": "nearest",
    "crop_mode": "center",
}  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Squares, and where they are."""
    write_frames(tmp_path / "images" / "day", 6)
    for file in sorted((tmp_path / "images" / "day").iterdir()):
        mask = np.asarray(Image.open(file).convert("L")) > 128
        place = tmp_path / "masks" / "day" / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(mask).save(place)
    return tmp_path


def test_targets_are_resized_as_their_images(data: Path) -> None:
    targets = find_targets(data, PREPROCESSING)
    assert targets is not None and len(targets.images) == 6
    read = read_targets(targets, Map("foreground"), range(2, 5))
    (images, _) = next(targets.images.read([range(2, 5)]))
    assert read.shape == (3, 16, 16) and torch.equal(read, (images.mean(1) > 0.5).float())
    score, error = score_maps(Map("foreground"), 20 * (read[:, None] - 0.5), read)
    assert error is not None and score.tolist() == [1, 1, 1] and float(error.max()) < 1e-4
    flipped, _ = score_maps(Map("foreground"), 20 * (0.5 - read[:, None]), read)
    assert flipped.tolist() == [0, 0, 0]


def test_values_are_numbers_of_arrays_and_classes_those_of_pixels(data: Path) -> None:
    place = data / "masks" / "day"
    (place / "000.png").unlink()
    np.save(place / "000.npy", np.full((32, 32), 7.5))
    Image.fromarray(np.full((32, 32), 51, np.uint8)).save(place / "001.png")
    targets = find_targets(data, PREPROCESSING)
    assert targets is not None
    values = read_targets(targets, Map("values"), range(2))
    assert values.unique().tolist() == pytest.approx([0.2, 7.5])
    score, error = score_maps(Map("values"), torch.full((1, 1, 16, 16), 2.5), values[:1])
    assert error is not None and float(error) == 5 and float(score) == 0.5
    classes = torch.full((1, 16, 16), 255.0)  # not judged
    classes[0, :4], classes[0, 4:8] = 1, 0
    logits = torch.tensor([0.0, 1.0]).reshape(1, 2, 1, 1).expand(1, 2, 16, 16)
    assert float(score_maps(Map("classes"), logits, classes)[0]) == 0.5


CLASSES = """

def build_classes():
    torch.manual_seed(1)
    module = Depth()
    module.last = nn.Conv2d(8, 4, 3, padding=1)
    return module
"""


def test_the_mean_iou_of_classes_is_that_of_the_pixels_of_all_images(
    data: Path, tmp_path: Path, own_cache: Path, edgevit_main: Any
) -> None:
    file, folder = write_depth(tmp_path), tmp_path / "classes"
    file.write_text(file.read_text() + CLASSES)
    edgevit.base(f"{file}:build_classes", output="map:classes", out=folder)
    for i, mask in enumerate(sorted((data / "masks" / "day").iterdir())):
        numbers = np.asarray(Image.open(mask)).astype(np.uint8) * (1 + i % 2)  # 3 is in no target
        numbers[:5] = 255  # not judged
        Image.fromarray(numbers).save(mask)
    network, judged = edgevit.load(folder), edgevit.evaluate(folder, data, batch_size=4).targets
    targets = find_targets(data, network.preprocessing)
    assert targets is not None and judged is not None and judged.mean_iou is not None
    with torch.inference_mode():
        found = network(next(targets.images.read([range(6)]))[0]).argmax(1).numpy()
    expected = read_targets(targets, Map("classes"), range(6)).numpy()
    of_class = [((found == c) & (expected != 255), expected == c) for c in range(4)]
    ious = [(f & e).sum() / (f | e).sum() for f, e in of_class if (f | e).any()]
    assert 0 < np.mean(ious) < 1 and judged.mean_iou == pytest.approx(np.mean(ious))
    shown = " ".join(edgevit_main("evaluate", folder, "--data", data).out.split())
    assert f"agrees to {judged.score:.2%} with the target maps, mean IoU {judged.mean_iou:.2%}" in shown
    told = json.loads(edgevit_main("evaluate", folder, "--data", data, "--json").out)
    assert told["targets"]["mean_iou"] == pytest.approx(judged.mean_iou)


def test_classes_that_occur_nowhere_have_no_iou() -> None:
    logits = torch.tensor([[[[1.0, 0.0, 1.0]], [[0.0, 1.0, 0.0]], [[0.5, 0.5, 0.5]]]])  # classes 0, 1, 0, never 2
    overlaps = class_overlaps(Map("classes"), logits, torch.tensor([[[0.0, 0.0, 255.0]]]))
    assert overlaps.tolist() == [[1, 0, 0], [2, 1, 0]] and mean_iou(overlaps) == 0.25
    assert mean_iou(class_overlaps(Map("classes"), logits, torch.full((1, 1, 3), 255.0))) is None


def test_data_without_masks_has_no_targets(tmp_path: Path) -> None:
    assert find_targets(write_frames(tmp_path / "images", 2), PREPROCESSING) is None and not find_targets(None, {})


def test_what_does_not_fit_is_one_line(data: Path) -> None:
    place = data / "masks" / "day"
    Image.fromarray(np.zeros((8, 16), np.uint8)).save(place / "001.png")
    targets = find_targets(data, PREPROCESSING)
    assert targets is not None
    with pytest.raises(DataError, match=r"001.png is 16 x 8, and its image 32 x 32; resize it"):
        read_targets(targets, Map("foreground"), range(2))
    with pytest.raises(DataError, match="the map of an image is 1 x 8 x 8, and its target 16 x 16; give targets"):
        score_maps(Map("values"), torch.zeros(1, 1, 8, 8), torch.zeros(1, 16, 16))
    with pytest.raises(
        DataError, match=r"3 x 16 x 16, and its target 16 x 16; .* derive or import it with --output map:c"
    ):
        score_maps(Map("values"), torch.zeros(1, 3, 16, 16), torch.zeros(1, 16, 16))
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(place / "001.png")
    with pytest.raises(DataError, match=r"has the shape \[32, 32, 3\], expected one number per pixel"):
        read_targets(targets, Map("foreground"), range(2))
    Image.fromarray(np.zeros((32, 32), np.uint16)).save(place / "001.png")
    with pytest.raises(DataError, match=r"has uint16 pixels, and values of a map are from 0 to 1; give a .npy file"):
        read_targets(targets, Map("values"), range(2))
    (place / "001.png").unlink()
    with pytest.raises(DataError, match=r"001.png needs one target, .*001.png or .npy, and has none"):
        find_targets(data, PREPROCESSING)


THREE = """

class Three(Depth):
    def forward(self, images):
        x = super().forward(images)
        return torch.cat([x, x + 2, x + 1], 1)  # of the second class everywhere
"""


def test_labels_that_are_no_classes_are_refused_and_255_is_not_judged(
    data: Path, tmp_path: Path, own_cache: Path
) -> None:
    file, place = write_depth(tmp_path), data / "masks" / "day"
    file.write_text(file.read_text() + THREE)
    edgevit.base(f"{file}:Three", output="map:classes", out=tmp_path / "m")

    def judge(*columns: float) -> float:
        """Inner columns of one target are of these classes, and the rest of it is of none, as are all others."""
        for i in range(6):
            labels = np.full((32, 32), 255, np.float32)
            if i == 4:
                labels[:, 10 : 10 + len(columns)] = columns
            (place / f"{i:03}.png").unlink(missing_ok=True)
            np.save(place / f"{i:03}.npy", labels)
        judged = edgevit.evaluate(tmp_path / "m", data).targets
        assert judged is not None
        return judged.score

    assert judge(1, 1, 0, 2) == 0.5 and judge(1, -1, -100) == 1
    for wrong, seen in (((100, 1, 139), "100 to 139"), ((3,), "3"), ((0.5, 1), "0.5")):
        with pytest.raises(
            DataError, match=rf"004.npy has labels that are no classes: {seen}, expected 0 to 2, or 255"
        ):
            judge(*wrong)
    with pytest.raises(DataError, match=r"none of the 6 targets in .* has a pixel of a class; give others"):
        judge()


SCORED = """

class Scored(Depth):
    def score(self, maps, targets):
        return (maps[:, 0].mean((1, 2)) - targets.mean((1, 2))).abs()


class Whole(Depth):
    def score(self, maps, targets):
        return 0.5


class Broken(Depth):
    def score(self, maps, targets):
        return maps[:, 7]
"""


def test_a_score_of_the_module_replaces_edgevits_own(data: Path, tmp_path: Path, own_cache: Path) -> None:
    file = write_depth(tmp_path)
    file.write_text(file.read_text() + SCORED)
    folders = {name: tmp_path / name for name in ("Scored", "Whole", "Broken")}
    for name, folder in folders.items():
        edgevit.base(f"{file}:{name}", output="map", out=folder)
    judged, network = edgevit.evaluate(folders["Scored"], data).targets, edgevit.load(folders["Scored"])
    targets = find_targets(data, network.preprocessing)
    assert targets is not None and judged is not None
    with torch.inference_mode():
        maps = network(next(targets.images.read([range(6)]))[0])
    expected = (maps.mean((1, 2, 3)) - read_targets(targets, Map("values"), range(6)).mean((1, 2))).abs().mean()
    assert judged.own and judged.error is None and judged.score == pytest.approx(float(expected), rel=1e-4)
    with pytest.raises(DataError, match="score of Whole returns a float for 6 maps, expected a finite number for each"):
        edgevit.evaluate(folders["Whole"], data)
    with pytest.raises(DataError, match=r"score of Broken raised IndexError: .*; correct it"):
        edgevit.evaluate(folders["Broken"], data)


def test_a_lack_of_memory_is_not_the_fault_of_a_score() -> None:
    class Scoring(torch.nn.Module):
        def score(self, maps: Any, targets: Any) -> Any:
            raise MemoryError("of this machine")

    with pytest.raises(MemoryError):
        own_score(Scoring(), torch.zeros(1, 1, 2, 2), torch.zeros(1, 2, 2))
