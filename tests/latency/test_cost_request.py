"""What `edgevit cost` is asked, and what of it is refused before torch is imported."""

from pathlib import Path

import pytest

from edgevit.errors import EdgeVitError
from edgevit.latency.cost_request import CostRequest

NAME = "deit_tiny_patch16_224"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"shape": "round"}, "no shape policy 'round'"),
        ({"output": Path("table.txt")}, "--output table.txt ends in neither .yaml nor .json"),
        (
            {"output": Path("/no/table.yaml")},
            "cannot write /no/table.yaml: it is a folder, or its folder is missing",
        ),
        ({"output": Path("/proc/table.yaml")}, "cannot write /proc/table.yaml: "),
        ({"rounds": 1}, "--rounds 1 is not in [2, 2**31); one run of each does not tell how sure it is"),
        ({"points": 0}, "--points"),
        ({"base": "runs/nothing"}, "no model folder at runs/nothing; check the path"),
        ({"base": "hf-hub:some/vit"}, "files are downloaded by other commands; get them by `hf download some/vit"),
        ({"runner": "x"}, "no runner 'x'"),
    ],
)
def test_what_cannot_be_is_refused(given, said):
    with pytest.raises(EdgeVitError) as error:
        CostRequest(**{"base": NAME, **given}).check()
    assert said in str(error.value)


def test_a_folder_is_no_file_for_the_table(tmp_path):
    (tmp_path / "t.yaml").mkdir()
    with pytest.raises(EdgeVitError, match=r"t\.yaml: it is a folder, or its folder is missing; choose"):
        CostRequest(base=NAME, output=tmp_path / "t.yaml").check()


def test_a_folder_brings_its_own_arguments(tmp_path):
    with pytest.raises(EdgeVitError, match="is a model folder and brings its own arguments; leave --model-arg out"):
        CostRequest(base=tmp_path, model_args={"depth": 2}).check()
    with pytest.raises(EdgeVitError, match="is not a complete model folder"):
        CostRequest(base=tmp_path).check()


def test_a_name_alone_is_enough():
    request = CostRequest(base=NAME)
    request.check()
    assert (request.runs_on, request.rounds, request.shape) == ("onnxruntime", 5, "fused")
