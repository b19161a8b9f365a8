"""The networks of a suite on the machine that runs them."""

import onnx
import pytest
import timm

from edgevit.board.connection import open_board
from edgevit.board.facts import BoardFacts
from edgevit.jobs.suite import run
from edgevit.jobs.suite.files import NetworkFiles
from edgevit.jobs.suite.suite import SuiteNetwork
from edgevit.network.network import Network
from edgevit.progress import Silent

pytestmark = pytest.mark.usefixtures("two")


def test_what_can_have_the_weights_of_a_checkpoint_has_them_in_its_file(tmp_path):
    weights = Network(timm.create_model("deit_tiny_patch16_224"))
    weights.module.blocks[0].mlp.fc2.weight.data.fill_(0.125)
    tokens, paper = (network for networks in run.suite(("tiny",)).values() for network in networks)
    with open_board(None) as here:
        files = NetworkFiles(here, BoardFacts().tensorrt, tmp_path, Silent(), "tiny", weights)
        for network, has_them in ((SuiteNetwork("tiny", "tiny"), True), (tokens, False), (paper, True)):
            values = files.network(network).module.blocks[0].mlp.fc2.weight.flatten()[:2].tolist()
            assert (values == [0.125, 0.125]) == has_them, network.name
        prepared = files.prepare(paper)
    assert prepared.precision == "fp32" and prepared.placed.refused is None and prepared.measurable is not None
    assert prepared.measurable.path.name == "tiny-0.8-paper.onnx"
    assert onnx.load(prepared.measurable.path).metadata_props[0].value == "tiny 0.8 paper"
