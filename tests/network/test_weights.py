"""Files of weights: wrapped, damaged, hostile, and of another architecture."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from small_base import ARGS, NAME, outputs

from edgevit.errors import CheckpointError
from edgevit.network.opening import open_network
from edgevit.network.weights import mlp_ratio, read_weights


class Payload:
    """What a hostile checkpoint does when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.marker),))


@pytest.mark.quick("-*", "module.-model_ema", "*-state_dict")
@pytest.mark.parametrize("wrapped", [None, "model", "state_dict", "model_state_dict", "model_ema"])
@pytest.mark.parametrize("prefix", ["", "module.", "model.", "net._orig_mod."])
def test_checkpoints_are_found_under_their_usual_wrappings(
    small_vit: Any, tmp_path: Path, wrapped: str | None, prefix: str
) -> None:
    network = small_vit(num_classes=7)
    state = {prefix + k: v for k, v in network.state_dict().items()}
    file = tmp_path / "base.pth"
    torch.save({wrapped: state, "epoch": 3, "lr": 0.1} if wrapped else state, file)
    model = open_network(NAME, checkpoint=file, model_args=ARGS)
    assert torch.equal(outputs(model), outputs(network))
    assert model.spec.timm_args["num_classes"] == model.spec.base.outputs == 7


def test_half_precision_weights_become_fp32(small_vit: Any, tmp_path: Path) -> None:
    save_file({k: v.half() for k, v in small_vit().state_dict().items()}, tmp_path / "half.safetensors")
    model = open_network(NAME, checkpoint=tmp_path / "half.safetensors", model_args=ARGS)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_the_same_weights_have_the_same_hash_whatever_the_file(small_vit: Any, tmp_path: Path) -> None:
    state = small_vit().state_dict()
    save_file(state, tmp_path / "a.safetensors")
    torch.save({"model": state}, tmp_path / "a.pth")
    one, two = (open_network(NAME, checkpoint=tmp_path / f, model_args=ARGS) for f in ("a.safetensors", "a.pth"))
    assert one.spec.base.weights_sha256 == two.spec.base.weights_sha256


def test_a_hostile_checkpoint_is_refused_and_not_executed(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    for name, content in (("a.pth", {"model": Payload(marker)}), ("b.pth", Payload(marker))):
        torch.save(content, tmp_path / name)
        with pytest.raises(CheckpointError, match="more than plain weights and was not opened"):
            read_weights(tmp_path / name)
    (tmp_path / "c.pkl").write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(CheckpointError):
        read_weights(tmp_path / "c.pkl")
    assert not marker.exists()
    pickle.loads((tmp_path / "c.pkl").read_bytes())  # it would have
    assert marker.exists()


def test_what_a_training_program_keeps_beside_weights_is_named(small_vit: Any, tmp_path: Path) -> None:
    file = tmp_path / "best.ckpt"
    torch.save({"state_dict": small_vit().state_dict(), "best": Path("best.ckpt")}, file)
    with pytest.raises(CheckpointError, match=r"more than plain weights \(pathlib\.\S*Path\) .*weights_only=False"):
        read_weights(file)


def test_numpys_numbers_and_arrays_beside_weights_are_read_and_objects_are_not(small_vit: Any, tmp_path: Path) -> None:
    file, model = tmp_path / "best.pth", small_vit()
    held = {
        "state_dict": model.state_dict(),
        "best_top1": np.float64(91.2),
        "epoch": np.int64(3),
        "images": np.arange(4, dtype=np.uint8),
        "classes": np.array(["dress", "coat"]),
        "random": np.random.default_rng(0).bit_generator.state,
    }
    torch.save(held, file)
    assert torch.equal(read_weights(file)["head.bias"], model.module.head.bias)
    torch.save({**held, "hidden": np.array([Path("x")], dtype=object)}, file)
    with pytest.raises(CheckpointError, match="more than plain weights"):
        read_weights(file)


@pytest.mark.parametrize("averaged", ["state_dict_ema", "model_ema"])
def test_averaged_weights_are_read_as_by_timm_and_that_is_said(small_vit: Any, tmp_path: Path, averaged: str) -> None:
    file = tmp_path / "model_best.pth.tar"  # as timm's train.py writes it
    last, mean, said = small_vit(), small_vit(), []
    with torch.no_grad():
        mean.module.head.bias += 1
    held = {"state_dict": last.state_dict(), averaged: mean.state_dict()}
    torch.save({**held, "args": argparse.Namespace(lr=1), "epoch": 3}, file)
    assert torch.equal(read_weights(file, said.append)["head.bias"], mean.module.head.bias)
    assert said == [
        f"{file} has 2 sets of weights: {averaged}, averaged over the training, is used, as by timm, and not "
        "state_dict; to use those, save them alone"
    ]
    assert torch.equal(outputs(open_network(NAME, checkpoint=file, model_args=ARGS)), outputs(mean))
    torch.save({**held, averaged: None}, file)  # a training without an average
    assert torch.equal(outputs(open_network(NAME, checkpoint=file, model_args=ARGS)), outputs(last))


@pytest.mark.parametrize("average", [lambda state: state, lambda state: {"module": state, "updates": 3}])
def test_weights_that_are_not_used_are_named(small_vit: Any, tmp_path: Path, average: Any) -> None:
    network, said = small_vit().module, list[str]()
    file, state = tmp_path / "last.pt", network.state_dict()
    optimizer = torch.optim.AdamW(network.parameters())
    network(torch.zeros(1, 3, 32, 32)).sum().backward()
    optimizer.step()
    held = {"model": state, "optimizer": optimizer.state_dict(), "epoch": 3}
    torch.save({**held, "ema": average({name: 2 * value for name, value in state.items()})}, file)
    assert torch.equal(read_weights(file, said.append)["head.bias"], state["head.bias"])
    assert said == [f"{file} has 2 sets of weights: model is used, and not ema; to use those, save them alone"]
    torch.save(held, file)
    read_weights(file, said.append)
    assert len(said) == 1
    torch.save({"net": state, "epoch": 3}, file)
    with pytest.raises(CheckpointError, match="does not contain plain weights, but a dict of 'net', 'epoch'; save"):
        read_weights(file)


def test_a_checkpoint_that_holds_itself_is_refused(tmp_path: Path) -> None:
    held: dict[str, Any] = {}
    held["model"] = held
    torch.save(held, tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match="does not contain plain weights"):
        read_weights(tmp_path / "x.pth")


def test_a_whole_pickled_model_is_refused(small_vit: Any, tmp_path: Path) -> None:
    torch.save(small_vit().module, tmp_path / "model.pth")
    with pytest.raises(CheckpointError, match="only if you trust the file, run this in Python") as refusal:
        read_weights(tmp_path / "model.pth")
    exec(str(refusal.value).partition("what it writes: ")[2])
    assert read_weights(tmp_path / "model.weights.pth").keys() == small_vit().state_dict().keys()


def test_a_flipped_bit_in_a_zip_is_seen_by_its_checksum(small_vit: Any, tmp_path: Path) -> None:
    file = tmp_path / "model.pth"
    torch.save(small_vit().state_dict(), file)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"was altered: the checksum of .* does not fit; copy or download"):
        read_weights(file)


def test_a_zip_without_checksums_is_read(small_vit: Any, tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(small_vit().state_dict(), tmp_path / "model.pth")
    finally:
        torch.serialization.set_crc32_options(True)
    assert read_weights(tmp_path / "model.pth").keys() == small_vit().state_dict().keys()


def test_a_pointer_of_git_lfs_says_how_to_get_the_weights(tmp_path: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 330\n"
    for name in ("model.safetensors", "model.bin"):
        (tmp_path / name).write_text(text)
        with pytest.raises(CheckpointError, match=r"is a Git LFS pointer, not a model; run `git lfs pull` in "):
            read_weights(tmp_path / name)


def test_shards_are_read_by_their_index(small_vit: Any, tmp_path: Path) -> None:
    state = small_vit().state_dict()
    names = sorted(state)
    shards = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for shard, part in shards.items():
        save_file({name: state[name] for name in part}, tmp_path / shard)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: shard for shard, part in shards.items() for name in part}}))
    read = read_weights(index)
    assert read.keys() == state.keys() and all(torch.equal(read[name], state[name]) for name in names)
    save_file({"other": torch.ones(1)}, tmp_path / "b.safetensors")
    with pytest.raises(CheckpointError, match=r"b\.safetensors has other weights than model\.safetensors\.index\.json"):
        read_weights(index)
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match=r"b\.safetensors, which model\.safetensors\.index\.json lists, is missing"
    ):
        read_weights(index)


CONTENTS: list[Any] = [[1, 2], {}, {"a": 1}, {"model": {"a": "b"}}, {"state_dict": None}, 3, {1: torch.ones(1)}]


@pytest.mark.parametrize("content", CONTENTS, ids=str)
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match="does not contain plain weights") as refusal:
        read_weights(tmp_path / "x.pth")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8), "is quantised"),
        (lambda w: (10 * w).to(torch.int8), "is of int8"),
        (lambda w: w.to(torch.complex64), "is of complex64"),
        (lambda w: w.to_sparse(), "is of layout sparse_coo"),
        (lambda w: w.to("meta"), "is of shape and type alone"),
    ],
)
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_values_that_are_no_weights_by_themselves_are_refused(
    small_vit: Any, tmp_path: Path, change: Any, said: str
) -> None:
    state = {name: change(t) if name == "head.weight" else t for name, t in small_vit().state_dict().items()}
    torch.save({**state, "seen": torch.tensor(3)}, tmp_path / "base.pth")
    with pytest.raises(CheckpointError, match=f"base.pth: head.weight {said}, and weights are floating-point"):
        open_network(NAME, checkpoint=tmp_path / "base.pth", model_args=ARGS)


@pytest.mark.parametrize("text", ["base: vit\n", '{"schema": 1}\n', "epoch,top1\n"])
def test_a_text_is_called_neither_a_pickle_nor_truncated(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.pth"
    file.write_text(text)
    with pytest.raises(CheckpointError, match=rf"^{file} is not a file of weights; give safetensors, or a file"):
        read_weights(file)


@pytest.mark.parametrize("name", ["x.pth", "x.bin", "x.safetensors", "x"])
def test_what_a_file_holds_is_told_by_its_content_and_not_by_its_name(tmp_path: Path, name: str) -> None:
    for write in (save_file, torch.save):
        write({"a": torch.ones(2)}, tmp_path / name)
        assert torch.equal(read_weights(tmp_path / name)["a"], torch.ones(2))


def test_safetensors_whose_header_is_as_long_as_a_pickle_begins_are_read(tmp_path: Path) -> None:
    """A pickle begins with 0x80, as does the length of such a header, a multiple of 8, in one file of 32."""
    seen = set()
    for letters in range(1, 257, 8):
        save_file({"a" * letters: torch.ones(2)}, tmp_path / "m.safetensors")
        seen.add((tmp_path / "m.safetensors").read_bytes()[0])
        assert torch.equal(read_weights(tmp_path / "m.safetensors")["a" * letters], torch.ones(2))
    assert 0x80 in seen


def test_zips_that_torch_did_not_save_are_called_neither_truncated_nor_dangerous(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "script.pt", "w") as script:  # as `torch.jit.save` names what is in it
        for member in ("script/data.pkl", "script/constants.pkl", "script/version"):
            script.writestr(member, "")
    np.savez(tmp_path / "a.npz", kernel=np.ones(2))
    (tmp_path / "x.pth").write_bytes((tmp_path / "a.npz").read_bytes())
    for name, said in (("script.pt", "is TorchScript"), ("a.npz", "Google's ViT"), ("x.pth", "a zip without weights")):
        with pytest.raises(CheckpointError, match=said) as refusal:
            read_weights(tmp_path / name)
        assert "\n" not in str(refusal.value) and "truncated:" not in str(refusal.value)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".old.pth"])
def test_a_missing_or_truncated_checkpoint_says_so(small_vit: Any, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"base{suffix}"
    with pytest.raises(CheckpointError, match=r"no weights at .*base"):
        read_weights(file)
    state = small_vit().state_dict()
    if suffix == ".safetensors":
        save_file(state, file)
    else:
        torch.save(state, file, _use_new_zipfile_serialization=suffix == ".pth")
    size = file.stat().st_size
    for length in (size - 1, size // 2, 1000, 100, 7, 1, 0):
        os.truncate(file, length)
        with pytest.raises(CheckpointError, match=r"truncated|plain weights") as refusal:
            read_weights(file)
        assert str(file) in str(refusal.value) and "\n" not in str(refusal.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=60), suffix=st.sampled_from([".pth", ".safetensors"]))
def test_any_bytes_are_refused_in_one_line(tmp_path: Path, data: bytes, suffix: str) -> None:
    file = tmp_path / f"noise{suffix}"
    file.write_bytes(data)
    with pytest.raises(CheckpointError) as refusal:
        read_weights(file)
    assert "\n" not in str(refusal.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 10**6), byte=st.integers(0, 255), old=st.booleans())
def test_a_spoilt_byte_is_never_a_traceback(tmp_path: Path, at: int, byte: int, old: bool) -> None:
    file = tmp_path / "spoilt.pth"
    torch.save({"a": torch.ones(3), "b": torch.zeros(2, 2)}, file, _use_new_zipfile_serialization=not old)
    data = bytearray(file.read_bytes())
    data[at % len(data)] = byte
    file.write_bytes(data)
    try:
        read_weights(file)  # some bytes do not matter
    except CheckpointError as error:
        assert "\n" not in str(error)


def test_a_folder_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no weights at"):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"depth": 3}, "lacks blocks.2.attn"),
        ({"depth": 3, "mlp_ratio": 2}, "its shapes say --model-arg depth=2 --model-arg mlp_ratio=4"),
        ({"embed_dim": 128}, "its shapes say --model-arg embed_dim=64 --model-arg num_heads=1"),
        ({"depth": 1}, "has unknown blocks.1.attn"),
        ({"embed_dim": 96}, "is [1, 1, 64], expected [1, 1, 96]"),
        ({"patch_size": 4}, "pos_embed is [1, 17, 64], expected [1, 65, 64]"),
        ({"patch_size": 4, "img_size": 16}, "patch_embed.proj.weight is [64, 3, 8, 8], expected [64, 3, 4, 4]"),
        ({"global_pool": "avg", "fc_norm": True}, "lacks fc_norm.bias, fc_norm.weight and has unknown norm.bias"),
        ({"init_values": 0.1}, "lacks blocks.0.ls1.gamma"),
        ({"num_classes": 5}, "head.weight is [10, 64], expected [5, 64]"),
    ],
)
def test_weights_of_another_architecture_say_what_differs(small_vit: Any, tmp_path: Path, args: Any, said: str) -> None:
    save_file(small_vit().state_dict(), tmp_path / "base.safetensors")
    with pytest.raises(CheckpointError, match="does not fit") as refusal:
        open_network(NAME, checkpoint=tmp_path / "base.safetensors", model_args={**ARGS, **args})
    assert said in str(refusal.value) and "--model-arg" in str(refusal.value) and "\n" not in str(refusal.value)


def test_the_ratio_gives_an_ffn_of_exactly_so_many_neurons_where_it_is_rounded_down() -> None:
    for width in range(1, 130):
        for neurons in range(1, 4 * width):
            assert int(width * mlp_ratio(neurons, width)) == neurons
    assert isinstance(mlp_ratio(256, 64), int)
