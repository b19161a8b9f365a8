"""The weights and the record that a suite starts from."""

from dataclasses import replace

import pytest
import timm
import torch

from edgevit.board.bench import Setting
from edgevit.board.facts import BoardFacts
from edgevit.errors import CheckpointError, RunsError
from edgevit.jobs.suite.opening import open_record, open_weights
from edgevit.jobs.suite.record import write_suite_record
from edgevit.jobs.suite.request import CharacterizeRequest
from edgevit.jobs.suite.run import characterize

SETTING = Setting("nano", BoardFacts(), None)


def test_a_record_is_of_one_checkpoint_whose_outputs_are_those_of_imagenet(tmp_path):
    file = tmp_path / "w.pth"
    asked = CharacterizeRequest(sizes=("tiny",), output=tmp_path / "p.json", checkpoint=file)
    assert open_weights(replace(asked, checkpoint=None)) is None
    weights = timm.create_model("deit_tiny_patch16_224").state_dict()
    weights["blocks.0.mlp.fc2.weight"].fill_(0.125)
    torch.save(weights, file)
    assert open_weights(asked).module.blocks[0].mlp.fc2.weight.unique().tolist() == [0.125]
    record = open_record(asked, SETTING)
    assert len(record.request["weights_sha256"]) == 64
    write_suite_record(record, asked.output)
    assert open_record(asked, SETTING) == record
    with pytest.raises(RunsError, match="is of another request: weights_sha256 was"):
        open_record(replace(asked, checkpoint=None), SETTING)
    with pytest.raises(RunsError, match="is of another board: host was nano and is orin; choose another --output"):
        open_record(asked, replace(SETTING, host="orin"))
    few = timm.create_model("deit_tiny_patch16_224", num_classes=7).state_dict()
    torch.save(few, file)
    with pytest.raises(CheckpointError, match=r"w\.pth has 7 outputs, and the networks of the suite have 1000; give"):
        open_weights(asked)
    with pytest.raises(CheckpointError, match="does not exist, or is no file"):
        characterize(replace(asked, checkpoint=tmp_path / "none.pth"))
