"""A base as a folder, from Python: all outputs, or some of them under the names that were given."""

import json

import pytest
import timm
import torch
from small_base import ARGS, PREPROCESSING, assert_same_weights, press_ctrl_c_in_step, write_checkpoint

import edgevit
from edgevit.errors import DataError, Interrupted, OptionError, OutputError
from edgevit.progress import Silent
from edgevit.train.settings import Training

NAMES = [f"digit {i}" for i in range(10)]


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    file = write_checkpoint(tmp_path_factory.mktemp("base"))
    return {"checkpoint": file, "model_args": ARGS, "preprocessing": PREPROCESSING}


def test_some_outputs_answer_as_the_whole_base_does(opened, tmp_path):
    images = torch.randn(2, 3, 32, 32)
    whole = edgevit.base("vit_tiny_patch16_224", out=tmp_path / "whole", base_classes=NAMES, **opened)
    some = edgevit.base(
        "vit_tiny_patch16_224", out=tmp_path / "some", base_classes=NAMES, classes=["digit 7", "digit 0"], **opened
    )
    assert whole.classes == NAMES and some.classes == ["digit 7", "digit 0"]
    torch.testing.assert_close(edgevit.load(tmp_path / "some")(images), whole(images)[:, [7, 0]])
    assert (tmp_path / "whole" / "README.md").read_text().count("With plain timm") == 1


class Noting(Silent):
    """Keep the remarks and warnings."""

    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)

    def warn(self, text):
        self.notes.append(f"warning: {text}")


def test_an_order_of_outputs_that_only_the_data_gives_is_said_to_be_assumed(opened, tmp_path, image_folder):
    data = image_folder(tmp_path / "data", dict.fromkeys(NAMES, 1))

    def notes(**asked):
        said = Noting()
        edgevit.base("vit_tiny_patch16_224", out=tmp_path / "m", overwrite=True, progress=said, **asked, **opened)
        return [note for note in said.notes if not note.startswith(unchecked)]

    unchecked = "warning: the base is not checked on images: class 'digit "  # which one image cannot tell
    assumed = "of 10 outputs, assumed from the alphabet of the data's folders: --base-classes FILE gives another order"
    some = f"classes: digit 7 is output 7, digit 0 is output 0 {assumed}"
    assert notes(data=data, classes=["digit 7", "digit 0"]) == [some]
    assert notes(data=data)[0].endswith(assumed)
    assert notes(data=data, base_classes=NAMES[::-1]) == notes(base_classes=NAMES) == notes() == []
    image_folder(data, {"digit x": 1})
    (warning,) = notes(data=data)
    assert warning.startswith("warning: the data has 11 classes and the base 10 outputs, so that it does not name them")


def test_labels_beside_the_weights_name_the_outputs(tmp_path, image_folder):
    file = write_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"label_names": NAMES, "model_args": ARGS}))
    said = Noting()
    whole = edgevit.base(file, out=tmp_path / "whole", progress=said)
    assert whole.classes == NAMES and whole.spec.timm_args == {**ARGS, "num_classes": 10}
    assert said.notes[-1].endswith("of 10 outputs, as config.json beside the weights says")
    some = edgevit.base("vit_tiny_patch16_224", checkpoint=file, out=tmp_path / "some", classes=["digit 7", "digit 0"])
    assert [(c.name, c.base_index) for c in some.spec.classes] == [("digit 7", 7), ("digit 0", 0)]
    given = edgevit.base(file, out=tmp_path / "given", base_classes=NAMES[::-1])
    assert given.classes == NAMES[::-1]
    data = image_folder(tmp_path / "data", {"digit 0": 1, "digit ten": 1})
    with pytest.raises(DataError, match=r"names the outputs 'digit 0', .* the data has other classes: 'digit ten'"):
        edgevit.base(file, out=tmp_path / "other", data=data)


def test_images_of_other_classes_than_a_model_folder_names_do_not_check_it_and_that_is_said(
    opened, tmp_path, image_folder
):
    edgevit.base("vit_tiny_patch16_224", out=tmp_path / "m", base_classes=NAMES, **opened)
    data, said = image_folder(tmp_path / "data", {"digit 0": 5, "digit ten": 5}), Noting()
    edgevit.base(tmp_path / "m", out=tmp_path / "n", data=data, progress=said)
    assert said.notes == [
        f"warning: the base is not checked on images: {data} has 1 of its 10 classes, and two are needed"
    ]


def test_a_list_of_another_length_and_a_folder_in_the_way_are_refused(opened, tmp_path):
    with pytest.raises(DataError):
        edgevit.base("vit_tiny_patch16_224", out=tmp_path / "m", base_classes=NAMES[:3], **opened)
    (tmp_path / "m").mkdir()
    with pytest.raises(OutputError):
        edgevit.base("vit_tiny_patch16_224", out=tmp_path / "m", **opened)


def test_a_base_without_a_classifier_is_written_as_it_is_where_there_are_no_images(tmp_path):
    said, backbone = Noting(), timm.create_model("vit_tiny_patch16_224", **{**ARGS, "num_classes": 0})
    model = edgevit.base(backbone, out=tmp_path / "m", progress=said)
    assert said.notes[-1] == "vit_tiny_patch16_224 has no classifier: its outputs are features; to fit one give --data"
    images, again = torch.randn(2, 3, 32, 32), edgevit.load(tmp_path / "m")
    assert again.spec.outputs == 0 and again.classes == [] and again(images).shape == (2, again.geometry.embed)
    torch.testing.assert_close(again(images), model(images))
    card = (tmp_path / "m" / "README.md").read_text()
    assert "vit_tiny_patch16_224 without a classifier." in card and "features = model(" in card
    with pytest.raises(DataError, match="give --data, images of the classes that a head is to be fitted to"):
        edgevit.base(backbone, classes=NAMES, out=tmp_path / "n")
    fitted = edgevit.base(tmp_path / "m", data="digits", classes="3,5", accept_weak_base=True, out=tmp_path / "fitted")
    assert fitted.classes == ["3", "5"] and again.spec.outputs == 0


def trained(checkpoint, out, *, steps, lr=3e-3, **more):
    training = Training(steps=steps, batch_size=32, lr=lr, device="cpu", evaluations=2)
    options = {"checkpoint": checkpoint, "model_args": ARGS, "preprocessing": PREPROCESSING, "data": "digits"}
    options |= {"classes": ["3", "7", "9"], "cache": False, "training": training}
    options |= {"accept_weak_base": True, "accept_preprocessing": True}
    return edgevit.base("vit_tiny_patch16_224", out=out, **options, **more)


def test_a_base_is_trained_on_its_classes_and_goes_on_after_an_interruption(digits_checkpoint, tmp_path, monkeypatch):
    told = Noting()
    whole = trained(digits_checkpoint, tmp_path / "whole", steps=12, progress=told)
    assert any(text.startswith("It was trained: 12 steps") for text in told.notes), "nothing is pruned here"
    assert whole.classes == ["3", "7", "9"]
    card = (tmp_path / "whole" / "README.md").read_text()
    assert "\nIt was trained: 12 steps on the classes changed its validation loss from " in card
    with monkeypatch.context() as patch:
        press_ctrl_c_in_step(6, patch)
        with pytest.raises(Interrupted, match=r"--resume goes on from .*resumed\.partial"):
            trained(digits_checkpoint, tmp_path / "resumed", steps=12)
    assert not (tmp_path / "resumed").exists()
    with pytest.raises(OutputError, match="add --resume"):
        trained(digits_checkpoint, tmp_path / "resumed", steps=12)
    resumed = trained(digits_checkpoint, tmp_path / "resumed", steps=12, resume=True)
    assert_same_weights(whole.state_dict(), resumed.state_dict())
    assert not (tmp_path / "resumed.partial").exists()


def test_training_that_does_not_help_leaves_the_base_as_it_was(digits_checkpoint, tmp_path):
    given = trained(digits_checkpoint, tmp_path / "given", steps=0)
    worse = trained(digits_checkpoint, tmp_path / "worse", steps=3, lr=0.9)
    assert_same_weights(given.state_dict(), worse.state_dict())
    assert "It is as it was before training: 3 steps" in (tmp_path / "worse" / "README.md").read_text()


def test_training_without_images_of_known_classes_is_refused(opened, tmp_path, image_folder):
    data = image_folder(tmp_path / "data", dict.fromkeys("abc", 4))
    for options, error in (
        ({}, "--steps trains the base on classes; give --data"),
        ({"data": data}, "which are not known; give --base-classes FILE"),
    ):
        with pytest.raises(OptionError, match=error):
            edgevit.base(
                "vit_tiny_patch16_224",
                out=tmp_path / "m",
                training=Training(steps=1, device="cpu"),
                **opened,
                **options,
            )
