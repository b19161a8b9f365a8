"""An unfinished folder survives a stop and says how to go on; one that holds no work is no obstacle after an error."""

import pytest
from PIL import Image
from recorded_progress import RecordedProgress
from small_base import derive, write_checkpoint
from small_models import ARGS, random_base

import edgevit
from edgevit.data.splitting import PARTS
from edgevit.data.task import open_task, reopen
from edgevit.derivation.request import DeriveRequest
from edgevit.derivation.session.opening import Opened, open_without_labels, resumable
from edgevit.errors import DataError, Interrupted
from edgevit.network.model import describe
from edgevit.records.unfinished import differences
from edgevit.train.settings import Training


@pytest.mark.parametrize(("stop", "said"), [(KeyboardInterrupt(), "stopped"), (Interrupted("at step 3"), "at step 3")])
def test_a_stop_says_how_to_go_on_and_removes_nothing(tmp_path, stop, said):
    (tmp_path / "request.json").write_text("{}")
    with pytest.raises(Interrupted) as error, resumable(tmp_path, is_main=True):
        raise stop
    assert str(error.value) == f"{said}; the same command with --resume goes on from {tmp_path}"
    assert (tmp_path / "request.json").exists()


@pytest.mark.parametrize("is_main", [True, False])
def test_an_error_takes_away_a_folder_without_work_once(tmp_path, is_main):
    folder = tmp_path / "m.partial"
    folder.mkdir()
    (folder / "request.json").write_text("{}")
    with pytest.raises(DataError, match="too few"), resumable(folder, is_main=is_main):
        raise DataError("too few")
    assert folder.exists() != is_main


def test_an_unfinished_run_goes_on_with_the_same_images_and_not_with_others_of_their_names_and_sizes(tmp_path):
    base = describe(random_base(depth=1), "vit_tiny_patch16_224", {**ARGS, "depth": 1})

    def resolved(shades):
        for name, shade in shades.items():
            (tmp_path / name).mkdir(exist_ok=True)
            for i in range(4):
                Image.new("RGB", (8, 8), (shade, i, 0)).save(tmp_path / name / f"{i}.bmp")
        task = open_task(tmp_path, None, preprocessing=base.preprocessing, base_outputs=2)
        opened = Opened("b", base, None, task, None, None, None, "subset", base.with_columns([0, 1]))
        return opened.resume_key(Training())

    first = resolved({"cat": 10, "dog": 200})
    assert differences(first, resolved({"cat": 10, "dog": 200})) == []
    assert differences(first, resolved({"cat": 200, "dog": 10})) == ["the content of data differs"]


def test_images_for_features_are_split_class_by_class_where_a_sweep_will_probe_them(tmp_path, image_folder):
    data = image_folder(tmp_path / "photos", {"cat": 40, "dog": 3})
    base = describe(random_base(depth=1), "vit_tiny_patch16_224", {**ARGS, "depth": 1})
    asked = {"base": "b", "data": data, "out": tmp_path / "m", "output": "features", "rate": 0.5, "cache": False}
    asked["training"] = Training(device="cpu")
    probed, plain = (
        open_without_labels(base, DeriveRequest(**asked, by_class=by_class), RecordedProgress()).task
        for by_class in (True, False)
    )
    assert [sum("dog" in str(file) for file in probed.part(part).references) for part in PARTS] == [1, 1, 1]
    assert plain.fingerprint() != probed.fingerprint() == reopen(probed.record(), base.preprocessing).fingerprint()


@pytest.mark.quick("42-0.3-True")
@pytest.mark.parametrize(("seed", "fraction", "warned"), [(42, 0.1, False), (7, 0.1, True), (42, 0.3, True)])
def test_images_that_the_base_was_made_with_are_not_held_out_without_a_word(tmp_path, seed, fraction, warned):
    base = derive(write_checkpoint(tmp_path), tmp_path / "base", method="random", training={"steps": 0})
    said = RecordedProgress()
    edgevit.derive(
        base.folder, data="digits", classes="3,7", rate=0.1, method="random", out=tmp_path / "out", progress=said,
        training=Training(steps=0, device="cpu", seed=seed), validation_fraction=fraction, accept_weak_base=True,
    )  # fmt: skip
    told = [line for line in said.warnings if "images that are now held out" in line]
    assert bool(told) == warned
    assert all("give --seed 42 --validation-fraction 0.1, by which it was made" in line for line in told)
