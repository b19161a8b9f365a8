"""Heads fitted to bases that have none, and all that is done with such a base."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from small_base import ARGS, write_checkpoint

import edgevit
from edgevit.derivation.request import DeriveRequest
from edgevit.derivation.session.opening import open_for
from edgevit.derivation.solve.head import FEWEST, best_head, open_task_for
from edgevit.derivation.supernet_request import SupernetRequest
from edgevit.errors import DataError, OptionError
from edgevit.network.opening import open_network
from edgevit.progress import Silent
from edgevit.train.ridge import cross_validate
from edgevit.train.settings import Teacher, Training

# skd cuts super-networks, and those have their own test.
FEW: dict[str, dict[str, Any]] = {
    **{name: {"calibration_images": 32} for name in ("corp", "mdp", "nvit", "taylor", "wanda", "dcvit")},
    "heart": {"calibration_images": 8, "probes": 1},
    "xpruner": {"calibration_images": 16, "mask_passes": 1},
}
NAME, DISTILLED = "vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"
PREPROCESSING = {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0, "interpolation": "bicubic"}
DIGITS = [str(digit) for digit in range(10)]


@pytest.fixture(scope="session")
def headless(small_vit: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of a ViT that has no classifier; its features tell digits apart all the same."""
    file = tmp_path_factory.mktemp("headless") / "backbone.safetensors"
    save_file(small_vit(num_classes=0).state_dict(), file)
    return file


class Notes(edgevit.progress.Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    warn = note


def given(headless: Path, **more: Any) -> dict[str, Any]:
    opening = {"checkpoint": headless, "model_args": ARGS, "preprocessing": PREPROCESSING, "data": "digits"}
    return {**opening, **more}


@pytest.mark.slow
def test_a_base_without_a_head_is_written_with_one_for_all_classes_of_the_data(headless: Path, tmp_path: Path) -> None:
    progress = Notes()
    model = edgevit.base(NAME, out=tmp_path / "base", progress=progress, **given(headless))
    assert model.classes == DIGITS and model.spec.output_names == DIGITS and model.spec.head == "full"
    said = [note for note in progress.notes if "head" in note]
    assert said[0].startswith(f"{NAME} gets a linear head, fitted to 1297 training images of 10 classes")
    assert re.search(r", in about \d+ s; less where the cache has it$", said[0])
    assert "of 143 validation images" in said[1] and said[1] in (tmp_path / "base" / "README.md").read_text()
    seen = edgevit.evaluate(tmp_path / "base", "digits")
    assert seen.top1 > 0.6, "chance is 0.1"
    images = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(edgevit.load(tmp_path / "base")(images), model(images))


@pytest.mark.slow
def test_by_another_seed_than_usual_a_written_base_says_which_images_its_head_has_seen(headless, tmp_path) -> None:
    for seed, told in ((42, False), (7, True)):
        progress = Notes()
        asked = given(headless, training=Training(seed=seed, device="cpu"))
        edgevit.base(NAME, out=tmp_path / str(seed), progress=progress, **asked)
        assert any("as --seed 7 splits them" in text for text in progress.notes) == told


def test_the_head_of_a_distilled_deit_is_one_for_both_tokens(small_vit: Any, tmp_path: Path) -> None:
    save_file(small_vit(DISTILLED, num_classes=0).state_dict(), tmp_path / "deit.safetensors")
    model = edgevit.base(
        DISTILLED, out=tmp_path / "base", classes=["3", "5", "8"], **given(tmp_path / "deit.safetensors")
    )
    network: Any = model
    assert torch.equal(network.module.head.weight, network.module.head_dist.weight)
    assert model.classes == ["3", "5", "8"] and edgevit.evaluate(tmp_path / "base", "digits").top1 > 0.7


@pytest.fixture(scope="module")
def blind(headless: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, whose class token sees no patches."""
    state = load_file(headless)
    for name in state:
        if "attn.proj" in name:
            state[name].zero_()
    file = tmp_path_factory.mktemp("blind") / "backbone.safetensors"
    save_file(state, file)
    return file


def test_a_head_reads_the_mean_of_the_patches_too_where_that_helps_and_so_does_what_is_derived(
    headless: Path, tmp_path: Path
) -> None:
    asked = given(headless, classes="3,5,8", rate=0.4, training=Training(steps=0, device="cpu"))
    progress = Notes()
    derived = edgevit.derive(NAME, out=tmp_path / "small", progress=progress, **asked)
    fitted = derived.record.fitted_head
    assert fitted.reads.tokens == derived.model.spec.tokens == "class,mean"
    assert fitted.reads.class_and_mean > fitted.reads.pooled
    assert any("a linear head of the class token and the mean of the patches (" in note for note in progress.notes)
    assert any("have not learnt the classes; --derive-from better" in note for note in progress.notes)
    loaded = edgevit.load(tmp_path / "small")
    assert derived.top1 > derived.record.accuracy.base_restricted.top1 - 0.1 > 0.7
    names: dict[str, Any] = {
        "timm": timm, "torch": torch, "spec": json.loads((tmp_path / "small" / "model.json").read_text()),
        "state": load_file(tmp_path / "small" / "model.safetensors"),
    }  # fmt: skip
    if any(block.qk != block.vo or block.tokens for block in loaded.dims):
        assert loaded.plain_loader() is None
        return
    exec(loaded.plain_loader() or "", names)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(names["model"].eval()(images), loaded(images), rtol=1e-4, atol=1e-4)


def test_a_head_reads_several_blocks_where_that_is_clearly_better_and_so_does_what_is_derived(
    headless: Path, tmp_path: Path
) -> None:
    asked = given(headless, classes="3,5,8", rate=0.6, training=Training(steps=0, device="cpu"), head_blocks=4)
    progress = Notes()
    derived = edgevit.derive(NAME, out=tmp_path / "small", progress=progress, **asked)
    last, spec = derived.record.fitted_head.reads.last, derived.model.spec
    assert last.is_chosen and last.accuracy > derived.record.fitted_head.reads.class_and_mean + last.error
    assert (spec.tokens, spec.depths, last.blocks) == ("class,mean", (1, 2), 2)
    (said,) = [note for note in progress.notes if "a linear head of" in note]
    assert "the mean of the patches after each of the last 2 blocks (" in said and "all blocks and tokens stay" in said
    assert spec.macs < 0.41 * spec.base.macs and len(spec.blocks) == 2
    assert derived.top1 > derived.record.accuracy.base_restricted.top1 - 0.1 > 0.75
    assert edgevit.evaluate(tmp_path / "small").top1 == derived.top1
    exported = edgevit.export(tmp_path / "small", data="digits", fp16=False)
    assert exported.parity["fp32"].error < 1e-4 and exported.accuracy.files["fp32"].agreement == 1
    with pytest.raises(OptionError, match="--remove-blocks 1: the head of this base reads several blocks; derive from"):
        edgevit.derive(tmp_path / "small", out=tmp_path / "m", data="digits", rate=0.3, remove_blocks=1)
    with pytest.raises(
        OptionError, match="heart drops tokens, and the head of this base reads all of those after some"
    ):
        edgevit.derive(tmp_path / "small", out=tmp_path / "m", data="digits", rate=0.3, method="heart")


def test_several_blocks_are_not_asked_for_in_vain(headless: Path, tmp_path: Path) -> None:
    asked = given(write_checkpoint(tmp_path), classes="3,5,8", rate=0.5, out=tmp_path / "m", head_blocks=4)
    with pytest.raises(OptionError, match=r"^--head-blocks 4: a head is fitted .* this has one; give --new-head, or"):
        edgevit.derive(NAME, **asked)
    edgevit.base(NAME, out=tmp_path / "base", **given(headless, classes=["3", "5", "8"]))
    with pytest.raises(OptionError, match=r"^--head-blocks 4: .* whose head has not been replaced before; give such a"):
        edgevit.base(tmp_path / "base", out=tmp_path / "n", new_head=True, data="digits", head_blocks=4)


def test_a_head_of_several_blocks_must_gain_more_than_a_standard_error() -> None:
    random, labels = torch.Generator().manual_seed(0), torch.arange(300) % 3
    told = torch.nn.functional.one_hot(labels).double()
    noise = torch.randn(3, 300, 3, generator=random, dtype=torch.float64)
    weak, other = told + noise[0], told + 1.2 * noise[1]

    def chosen(*features: torch.Tensor) -> tuple[int, list[float]]:
        return best_head([cross_validate(f, labels) for f in features], labels)

    assert chosen(weak, weak) == (0, []) and chosen(other, weak)[0] == 1
    place, (error,) = chosen(other, weak, torch.cat([weak, other], 1))
    assert place == 2 and 0.01 < error < 0.05, "they err on different images"
    slightly = weak.clone()
    slightly[:4] = 10 * told[:4]
    gain = cross_validate(slightly, labels).accuracy - cross_validate(weak, labels).accuracy
    place, (error,) = chosen(other, weak, slightly)
    assert 0 < gain < error and place == 1


def test_the_last_block_alone_is_read_where_earlier_ones_say_the_same(headless: Path, tmp_path: Path) -> None:
    state = load_file(headless)
    for name in state:
        if name.startswith("blocks.1.") and ("attn.proj" in name or "mlp.fc2" in name):
            state[name].zero_()
    save_file(state, tmp_path / "idle.safetensors")
    progress = Notes()
    asked = given(tmp_path / "idle.safetensors", classes=["3", "5", "8"], progress=progress, head_blocks=4)
    model = edgevit.base(NAME, out=tmp_path / "base", **asked)
    assert model.spec.tokens == "class,mean" and not model.spec.depths
    (said,) = [note for note in progress.notes if "a linear head of" in note]
    assert "of the class token and the mean of the patches (" in said and "standard error of the difference" in said


@pytest.mark.slow
def test_a_base_with_a_head_of_several_blocks_is_trained_and_gets_another_head(headless: Path, tmp_path: Path) -> None:
    training = Training(steps=6, batch_size=32, device="cpu", evaluations=2)
    asked = given(headless, classes=["3", "5", "8"], training=training, head_blocks=4)
    base = edgevit.base(NAME, out=tmp_path / "base", **asked)
    assert base.spec.depths == (1, 2) and edgevit.load(tmp_path / "base").spec == base.spec
    again = edgevit.base(
        tmp_path / "base", out=tmp_path / "again", new_head=True, data="digits", classes=["1", "2"], head_blocks=4
    )
    assert (again.spec.depths, again.spec.outputs) == ((1, 2), 2)
    assert edgevit.evaluate(tmp_path / "again", "digits").top1 > 0.8
    asked = given(headless, classes="3,5,8", rate=0.3, training=training, derive_from="better", head_blocks=4)
    derived = edgevit.derive(NAME, out=tmp_path / "small", **asked)
    assert derived.record.start is not None and derived.model.spec.depths == (1, 2) and derived.top1 > 0.7


@pytest.mark.slow
def test_what_timm_pools_is_read_where_more_does_not_help(blind: Path, tmp_path: Path) -> None:
    """The class token is the same for all images, and adds nothing to the mean of the patches."""
    asked = given(blind, model_args={**ARGS, "global_pool": "avg", "fc_norm": False}, classes=["3", "5", "8"])
    progress = Notes()
    model = edgevit.base(NAME, out=tmp_path / "base", progress=progress, **asked)
    said = next(note for note in progress.notes if "a linear head of" in note)
    assert "a linear head of what timm pools (" in said and model.spec.tokens is None
    assert edgevit.evaluate(tmp_path / "base", "digits").top1 > 0.7


@pytest.mark.slow
def test_files_of_a_head_of_class_token_and_mean_are_like_the_folder(headless: Path, tmp_path: Path) -> None:
    edgevit.base(NAME, out=tmp_path / "base", **given(headless, classes=["3", "5", "8"]))
    exported = edgevit.export(tmp_path / "base", data="digits", fp16=False)
    assert exported.parity["fp32"].error < 1e-4 and exported.accuracy.files["fp32"].agreement == 1
    with pytest.raises(OptionError, match="reads class,mean, and its features would be two in one"):
        edgevit.base(tmp_path / "base", out=tmp_path / "features", output="features")
    again = edgevit.base(tmp_path / "base", out=tmp_path / "again", new_head=True, data="digits", classes=["1", "2"])
    assert again.spec.tokens == "class,mean" and again.spec.outputs == 2


@pytest.mark.quick("forge-options0-subset")
@pytest.mark.parametrize(
    ("method", "options", "head"),
    [
        ("forge", {}, "subset"),
        ("nuwa", {"purification": "none"}, "subset"),
        ("nuwa", {"purification": "none"}, "full"),
        ("vulcan", {}, "subset"),
        *((name, FEW.get(name, {}), "subset") for name in ("heart", "taylor")),
    ],
)
def test_a_method_derives_from_a_fitted_head(
    headless: Path, tmp_path: Path, method: str, options: dict[str, Any], head: str
) -> None:
    teacher: Teacher = "restricted" if method in ("forge", "vulcan") else "none"
    training = Training(steps=2, batch_size=32, device="cpu", evaluations=1, teacher=teacher)
    asked = {"classes": "3,5,8", "rate": 0.3, "method": method, "options": options, "training": training, "head": head}
    derived = edgevit.derive(NAME, out=tmp_path / "small", **given(headless, **asked))
    record = json.loads((tmp_path / "small" / "derivation.json").read_text())
    assert record["fitted_head"]["images_per_class"] == {"3": 132, "5": 131, "8": 125}
    assert record["fitted_head"]["validation_accuracy"] > 0.8 and record["fitted_head"]["temperature"] > 1
    assert record["assumptions"]["classes_from"] == "fitted head"
    assert record["assumptions"]["base_check"]["neighbours"] == [], "it was fitted to images as they are read now"
    assert record["accuracy"]["base_full_head"]["top1"] == record["accuracy"]["base_restricted"]["top1"] > 0.8
    assert derived.model.classes == ["3", "5", "8"] and derived.model.spec.outputs == 3
    assert edgevit.evaluate(tmp_path / "small").top1 == record["accuracy"]["derived"]["top1"]


@pytest.mark.slow
def test_without_a_cache_the_same_head_is_fitted_again(headless: Path, tmp_path: Path) -> None:
    asked = given(headless, classes="3,5,8", rate=0.3, method="nuwa", options={"purification": "none"}, cache=False)
    one, two = (edgevit.derive(NAME, out=tmp_path / name, **asked).model.spec for name in ("one", "two"))
    assert one.base == two.base, "else nothing could be gone on with"


def test_a_head_is_fitted_once_for_derivations_of_one_task(headless: Path, tmp_path: Path) -> None:
    progress = Notes()
    asked = given(headless, classes="0,1", method="nuwa", options={"purification": "none"}, cache=tmp_path / "cache")
    for rate in (0.3, 0.5):
        edgevit.derive(NAME, out=tmp_path / f"r{rate}", rate=rate, progress=progress, **asked)
    assert progress.notes.count("reusing head from the cache") == 1
    assert sum("the base's features have not learnt the classes" in note for note in progress.notes) == 2


def test_the_base_that_derive_names_has_its_head(headless: Path, edgevit_main: Any, tmp_path: Path) -> None:
    args = [word for key, value in ARGS.items() for word in ("--model-arg", f"{key}={value}")]
    base = [NAME, "--checkpoint", headless, *args, "--mean", "0.5", "--std", "0.5", "--crop-pct", "1"]
    task = ["--data", "digits", "--classes", "3,5,8", "--seed", "7", "--validation-fraction", "0.2"]
    budget = ["--rate", "0.3", "--method", "nuwa", "--set", "nuwa.purification=none"]
    derived = edgevit_main("derive", *base, *task, *budget, "--reject", "0.1", "--out", tmp_path / "small")
    assert derived.code == 0, derived.err
    line = next(line for line in derived.out.splitlines() if "edgevit base" in line)
    made = edgevit_main(*shlex.split(line.partition("edgevit ")[2]))
    assert made.code == 0, made.err
    small, whole = (edgevit.load(tmp_path / name).spec for name in ("small", "base"))
    assert small.base == whole.base and small.class_names == whole.class_names


def test_a_new_head_is_that_of_the_base_without_its_classifier(headless: Path, small_vit: Any, tmp_path: Path) -> None:
    """Also where a slice of a super-network is to know other classes."""
    vit = small_vit(num_classes=6)
    vit.load_state_dict(load_file(headless), strict=False)
    save_file(vit.state_dict(), tmp_path / "classifier.safetensors")
    of_body = edgevit.base(NAME, out=tmp_path / "body", **given(headless))
    asked = {**given(tmp_path / "classifier.safetensors"), "new_head": True}
    made = edgevit.base(NAME, out=tmp_path / "new", **asked)
    assert made.classes == DIGITS
    torch.testing.assert_close(made.state_dict(), of_body.state_dict())
    training = Training(steps=0, device="cpu")
    derived = edgevit.derive(NAME, out=tmp_path / "m", rate=0.3, method="magnitude", training=training, **asked)
    assert derived.record.fitted_head is not None and derived.record.accuracy.derived.images == 357
    with pytest.raises(DataError, match=r"10 classes .* and the base 6 outputs, .* or --new-head if it does not know"):
        edgevit.derive(NAME, out=tmp_path / "no", rate=0.3, **{**asked, "new_head": False})


@pytest.mark.slow
def test_a_slice_of_a_network_for_every_size_gets_a_new_head(headless: Path, tmp_path: Path) -> None:
    training = Training(steps=2, batch_size=32, device="cpu", evaluations=1)
    asked = {**given(headless), "classes": "3,5,8"}
    options = {"points": 2, "proxy_images": 32}
    edgevit.supernet(NAME, out=tmp_path / "net", rate=0.5, training=training, options=options, **asked)
    slices = {"method": "skd", "supernet": tmp_path / "net", "rate": 0.2, "new_head": True}
    derived = edgevit.derive(
        data="digits", classes="0,1,2", out=tmp_path / "slice", training=Training(steps=0, device="cpu"), **slices
    )
    assert derived.top1 > 0.5 and edgevit.load(tmp_path / "slice").classes == ["0", "1", "2"]
    with pytest.raises(OptionError, match="--data is missing"):
        edgevit.derive(out=tmp_path / "none", **slices)


@pytest.mark.slow
def test_a_network_for_every_size_is_made_of_a_base_without_a_head(headless: Path, tmp_path: Path) -> None:
    training = Training(steps=2, batch_size=32, device="cpu", evaluations=1)
    made = edgevit.supernet(
        NAME,
        out=tmp_path / "net",
        rate=0.5,
        training=training,
        options={"points": 2, "proxy_images": 32},
        **given(headless),
    )
    assert made.record.fitted_head.validation_accuracy > 0.6
    edgevit.derive(method="skd", supernet=tmp_path / "net", rate=0.2, classes="3,5", out=tmp_path / "slice")
    assert edgevit.load(tmp_path / "slice").classes == ["3", "5"]


def test_labels_beside_the_weights_say_which_output_is_which_class(tmp_path: Path) -> None:
    digits = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]
    base = write_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"label_names": list(map(str, digits)), "model_args": ARGS}))
    asked: dict[str, Any] = {"base": base, "data": "digits", "out": tmp_path / "m", "classes": "7,0"}
    for request in (DeriveRequest(**asked), SupernetRequest(**asked)):
        found = open_network(base, **request.opening())
        task = open_task_for(found, request, Silent())
        assert task.base_columns == [9, 3]
        opened = open_for(found, request, "subset", task, Silent())
        assert opened.assumed is not None and opened.assumed.record().classes_from == "config.json"
    given = DeriveRequest(**asked, base_classes=list(map(str, range(10))))
    assert open_task_for(found, given, Silent()).base_columns == [7, 0]
    (tmp_path / "config.json").write_text(json.dumps({"label_names": list("abcdefghij"), "model_args": ARGS}))
    with pytest.raises(DataError, match=r"names the outputs 'a', .* and the data has other classes: '0'"):
        open_task_for(open_network(base), DeriveRequest(**{**asked, "classes": None}), Silent())


def test_a_class_of_too_few_images_is_one_line(headless: Path, image_folder: Any, tmp_path: Path) -> None:
    data = image_folder(tmp_path / "data", {"cat": 30, "dog": FEWEST + 1})
    with pytest.raises(DataError, match=r"class 'dog' has 4 training images, and a head is fitted to 5 .* --classes"):
        edgevit.base(NAME, out=tmp_path / "base", **given(headless, data=data))
    assert not (tmp_path / "base").exists()


def test_what_a_base_without_a_head_cannot_do_is_one_line(headless: Path, tmp_path: Path) -> None:
    asked = given(headless)
    with pytest.raises(OptionError, match="no classifier whose outputs --base-classes could name"):
        edgevit.base(NAME, out=tmp_path / "base", base_classes=DIGITS, **asked)
    with pytest.raises(OptionError, match="has no classifier, and gives features: --probe knn,linear tells"):
        edgevit.evaluate(NAME, **asked)
    with pytest.raises(DataError, match="give --data, images of the classes"):
        edgevit.base(NAME, out=tmp_path / "base", **given(headless, data=None, classes="3,5"))
    assert not list(tmp_path.iterdir())


def test_features_that_are_no_numbers_are_one_line(small_vit: Any, tmp_path: Path) -> None:
    network = small_vit(num_classes=0)
    state = {**network.state_dict(), "patch_embed.proj.weight": network.module.patch_embed.proj.weight * 1e38}
    save_file({k: v.detach() for k, v in state.items()}, tmp_path / "wild.safetensors")
    with pytest.raises(DataError, match="the base's features are no finite numbers"):
        edgevit.base(NAME, out=tmp_path / "base", **given(tmp_path / "wild.safetensors"))
