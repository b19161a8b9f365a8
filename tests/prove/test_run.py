"""A proof from nothing to its file: here through ONNX Runtime, and on a board over SSH with the stand-in TensorRT."""

from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from places import STANDINS

from edgevit.errors import CheckpointError, RunsError
from edgevit.progress import Silent
from edgevit.prove import run as module
from edgevit.prove.record import read_proof
from edgevit.prove.request import ProveRequest
from edgevit.prove.run import run

pytestmark = pytest.mark.usefixtures("short", "two")


def test_networks_are_measured_in_turns_here_and_what_is_left_out_is_gone_on_with(tmp_path, monkeypatch):
    asked = ProveRequest(sizes=("tiny",), rounds=1, threads=1, output=tmp_path / "p.json")
    late = iter([False, False, False, True, True, True])
    with monkeypatch.context() as patched:
        patched.setattr(module._Work, "is_late", property(lambda self: next(late)))
        part = run(asked)
    assert part == read_proof(asked.output)
    assert [one.name for one in part.measured] == ["tiny", "tiny 192 tokens"]
    assert part.left_out == ("tiny 0.8 paper",) and len(part.runs) == 4

    whole = run(asked)
    assert [one.name for one in whole.measured] == ["tiny", "tiny 192 tokens", "tiny 0.8 paper"] and not whole.left_out
    dense, tokens, paper = whole.measured
    assert (dense.precision, tokens.tokens, paper.fused, whole.profile) == ("fp32", 192, None, None)
    assert all([figure.batch for figure in one.figures] == [1, 8] for one in whole.measured)
    assert dense.figures[0].ratio is None and 0 < paper.figures[1].ratio < 1
    assert whole.runs[:4] == part.runs and len(whole.runs) == 8 and whole.seconds > part.seconds

    with pytest.raises(RunsError, match="is of another asked: rounds was 1 and is 2; choose another --output"):
        run(replace(asked, rounds=2))


def test_engines_of_a_board_are_built_and_measured_there(tmp_path, sshd, board_tree, monkeypatch):
    tree = board_tree("orin-nx-16gb-jetpack6.2")
    server = sshd(EDGEVIT_BOARD_ROOT=tree, PYTHONPATH=STANDINS, STANDIN_TENSORRT="10.3.0")
    monkeypatch.setattr(module, "BATCHES", (1,))
    told = Notes()
    where = {"board": server.host, "ssh_config": Path(server.config)}
    proof = run(ProveRequest(sizes=("tiny",), rounds=1, output=tmp_path / "p.json", **where), told)
    assert proof.profile == "orin-nx-16gb" and proof.environment["jetpack"]
    assert [one.name for one in proof.measured] == ["tiny", "tiny 192 tokens", "tiny 0.8 paper"]
    for one in proof.measured:
        assert one.precision == "fp16" and one.build_s > 0 and one.fused is not None and one.refused is None
        assert one.figures[0].energy_mj > 0 and one.figures[0].roofline_share > 0
    assert [one.source.split()[0] for one in proof.published] == ["Vulcan"] * 3
    assert not [file.name for file in Path(server.folder).rglob("files/*") if file.suffix in (".engine", ".onnx")]
    assert told.notes == ["tokens: 1 networks", "shapes at 0.8: 1 networks"]


class Notes(Silent):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def test_with_a_checkpoint_what_can_have_its_weights_has_them(tmp_path, monkeypatch):
    weights = timm.create_model("deit_tiny_patch16_224").state_dict()
    weights["blocks.0.mlp.fc2.weight"].fill_(0.125)
    file = tmp_path / "w.pth"
    asked = ProveRequest(sizes=("tiny",), rounds=1, threads=1, output=tmp_path / "p.json", checkpoint=file)
    torch.save(weights, file)
    monkeypatch.setattr(module, "BATCHES", (1,))
    written, write = {}, module.write_onnx

    def noted(network, path, **how):
        written[how["metadata"]["network"]] = network.blocks[0].mlp.fc2.weight.flatten()[:2].tolist()
        write(network, path, **how)

    monkeypatch.setattr(module, "write_onnx", noted)
    proof = run(asked)
    assert written["tiny"] == written["tiny 0.8 paper"] == [0.125, 0.125] != written["tiny 192 tokens"]
    assert len(proof.asked["weights_sha256"]) == 64
    with pytest.raises(RunsError, match="is of another asked: weights_sha256 was"):
        run(replace(asked, checkpoint=None))
    few = timm.create_model("deit_tiny_patch16_224", num_classes=7).state_dict()
    torch.save(few, file)
    with pytest.raises(CheckpointError, match=r"w\.pth has 7 outputs, and the networks of a proof have 1000; give"):
        run(asked)
    with pytest.raises(CheckpointError, match="does not exist, or is no file"):
        run(replace(asked, checkpoint=tmp_path / "none.pth"))
