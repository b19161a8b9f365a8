"""How to train is filled in by the method, and refused where it cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from edgevit.errors import OptionError, UnknownNameError
from edgevit.train.compute import open_compute
from edgevit.train.settings import Training, batch_of_few, fill


def test_a_method_that_is_gentle_warms_up_and_the_others_train_as_published():
    published = fill(Training(steps=200), gentle=False)
    filled = {"warmup_steps": 0, "lr_by_loss": False, "teacher": "none", "teacher_weight": 0.9, "token_weight": 0.0}
    assert published == Training(steps=200, batch_size=256, augment="crop", **filled)
    of_features = fill(Training(), gentle=True, teacher_weight=1.0, augment="views")
    assert (of_features.teacher_weight, of_features.augment) == (1.0, "views")
    gentle = fill(Training(steps=200), gentle=True)
    assert (gentle.warmup_steps, gentle.lr_by_loss) == (20, True)
    asked = Training(
        steps=200, batch_size=16, warmup_steps=3, lr_by_loss=False, augment="flip", teacher="finetuned",
        teacher_weight=0.4, token_weight=0.5,
    )  # fmt: skip
    assert fill(asked, gentle=True, imitates_base=True, augment="views") == asked, "what the user says holds"


@pytest.mark.parametrize(("images", "batch"), [(20, 32), (700, 32), (1023, 32), (1024, 64), (5000, 256), (10**6, 256)])
def test_the_steps_of_a_pass_over_few_images_are_at_least_sixteen(images: int, batch: int) -> None:
    assert batch_of_few(images) == batch
    assert batch_of_few(images, parts=64) == max(batch, 64), "a micro-batch has an image"


def test_a_method_that_imitates_its_base_has_it_as_its_teacher_where_there_is_training() -> None:
    filled = fill(Training(steps=200), gentle=True, imitates_base=True)
    assert (filled.teacher, filled.token_weight, filled.has_teacher) == ("restricted", 1.0, True)
    assert not replace(filled, steps=0).has_teacher
    untaught = fill(Training(steps=200, teacher="none"), gentle=True, imitates_base=True)
    assert untaught.teacher == "none" and not untaught.has_teacher


@pytest.mark.parametrize(
    ("training", "error", "message"),
    [
        ({"device": "cuda"}, OptionError, "no cuda device"),
        ({"device": "gpu"}, UnknownNameError, "no device 'gpu'"),
        ({"precision": "fp16"}, OptionError, "fp16 trains on CUDA only"),
        ({"precision": "int8"}, UnknownNameError, "no precision 'int8'"),
        ({"batch_size": 10, "grad_accum": 3}, OptionError, "does not divide into 3 micro-batches"),
        ({"steps": -1}, OptionError, r"--steps -1 is not in \[0, 2\*\*31\)"),
        ({"lr": 0.0}, OptionError, r"--lr 0 is not in \(0, 1\]"),
        ({"lr": 3.0}, OptionError, r"--lr 3 is not in \(0, 1\]"),
        ({"augment": "flop"}, UnknownNameError, "did you mean 'flip'"),
        ({"teacher": "nobody"}, UnknownNameError, "no teacher 'nobody'"),
        ({"teacher_weight": 1.2}, OptionError, r"--teacher-weight 1\.2 is not in \[0, 1\]"),
        ({"teacher_weight": float("nan")}, OptionError, r"--teacher-weight nan is not in \[0, 1\]"),
        ({"teacher_temperature": 0.0}, OptionError, "--teacher-temperature 0 is not a finite number above 0"),
        ({"token_weight": -1.0}, OptionError, "--token-weight -1 is not a finite number of at least 0"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(training, error, message):
    if training.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    settings = Training(**{"device": "cpu", **training})
    with pytest.raises(error, match=message):
        settings.check()
        open_compute(settings)
