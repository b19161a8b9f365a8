"""Read and write model folders.

A model folder that exists is complete: it is written under a temporary name and renamed. Weights are safetensors, never
pickle.
"""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from edgevit.errors import CheckpointError, OptionError, UnknownNameError, UnsupportedModelError
from edgevit.network.builder import Builder, built, refuse_unknown
from edgevit.network.chains import narrowed_as
from edgevit.network.classifier import read_tokens, with_features, with_last_blocks
from edgevit.network.copies import without_values
from edgevit.network.creation import create_timm_network, try_once
from edgevit.network.dense import DenseFamily, within
from edgevit.network.detector import Pyramid, letterbox, takes_several_sizes
from edgevit.network.model import Model
from edgevit.network.narrow_readers import narrow_readers_as
from edgevit.network.network import Network
from edgevit.network.plain_detector import adapted, has_transform
from edgevit.network.request import check_model_folder
from edgevit.network.weights import FOREIGN, fill_network, first_line, reading
from edgevit.records.belonging import file_fault
from edgevit.records.model import BuilderFacts, ModelSpec
from edgevit.records.model_folder import ModelFolder
from edgevit.records.tokenizer import store_tokenizer, stored_tokenizer, tokenizer_text
from edgevit.records.writing import new_folder


def load(folder: str | Path, *, run_code: bool = False) -> Model:
    """Read a model folder.

    Args:
        run_code: run the file by which a network with a head of the user's is made, although it has not been a base on
            this machine; it may do whatever a program may.

    Raises:
        CheckpointError: a file is missing, altered (wrong hash) or of another schema.
        TypeError: `folder` is not a path.
    """
    if not isinstance(folder, (str, PathLike)):
        raise TypeError(f"edgevit.load takes the path of a model folder, not {type(folder).__name__}")
    check_model_folder(folder)
    files = ModelFolder(Path(folder))
    document = files.document()
    spec = document.spec
    if fault := file_fault(files.weights_file, document.weights_sha256, files.spec_file):
        raise CheckpointError(f"{fault}; copy the folder again, or derive it again")
    with reading(files.weights_file):
        state = load_file(files.weights_file)
    # The width that blocks restore for a head: that of the first base, as the base of this one may be narrower, too.
    prefix = "" if spec.builder is None else f"{spec.builder.network}."
    restores = [w for name, w in state.items() if name.startswith(prefix) and name.endswith(".restore.weight")]
    whole = max(map(len, restores), default=0)
    try:
        if spec.builder is not None:
            network = _made_again(files, spec, spec.builder, run_code)
        else:
            with without_values():
                arguments = dict(spec.timm_args)
                if whole:
                    arguments["embed_dim"] = whole
                network = Network(create_timm_network(spec.timm_name, arguments, prefix="timm_args."))
            if spec.depths and spec.tokens == "class,mean":
                network = with_last_blocks(network, len(spec.depths), spec.outputs)
            elif spec.depths:
                network = with_features(network, spec.tokens, spec.depths)
            elif spec.tokens is not None:
                read_tokens(network, spec.tokens)
    except (OptionError, UnknownNameError, UnsupportedModelError) as error:
        raise CheckpointError(f"{files.spec_file} contradicts the model: {error}") from error
    if spec.reads_texts and store_tokenizer(tokenizer_text(files.path) or "") != spec.preprocessing["tokenizer"]:
        raise CheckpointError(f"{files.tokenizer_file} is missing or was altered; copy the folder again")
    depth = len(network.read())
    if network.family_name != spec.family or len(spec.blocks) != depth:
        raise CheckpointError(
            f"{files.spec_file} describes {len(spec.blocks)} blocks of family {spec.family}, and {spec.timm_name} has "
            f"{depth} of {network.family_name}; copy the folder again, or derive it again"
        )
    if whole and spec.embed:
        device = next(network.parameters()).device
        geometry = network.geometry
        pairs = zip(geometry.bases_at(spec.embed), geometry.bases, strict=True)
        network = network.with_embedding([torch.zeros(pair, dtype=torch.float64, device=device) for pair in pairs])
    base_head_macs = network.geometry.head_macs
    if spec.narrow_readers:
        try:
            narrow_readers_as(network, spec.narrow_readers)
        except FOREIGN as error:
            raise CheckpointError(
                f"{files.spec_file} contradicts the model: it has no such layers that read its embedding "
                f"({first_line(error, 80)}); copy the folder again, or derive it again"
            ) from error
        if spec.base.embed == spec.embed:  # its base read so, too
            base_head_macs = network.geometry.head_macs
    if spec.narrowed_rest is not None and spec.rest is None:
        base_head_macs = spec.narrowed_rest.base_macs
    network.resize(spec.blocks, state)
    fill_network(network, state, files.weights_file, str(folder))
    _check_described(network, spec, files.spec_file, base_head_macs)
    try:
        try_once(network.eval(), spec.timm_name)
    except OptionError as error:
        raise CheckpointError(f"{files.spec_file} contradicts the model: {error}") from error
    return Model(network.eval(), spec)


def _made_again(files: ModelFolder, spec: ModelSpec, facts: BuilderFacts, run_code: bool) -> Network:
    """The network that the file in a folder makes, with undefined weights, and layers behind it of the right widths.

    Raises:
        CheckpointError: it is missing, was altered, or may not be run.
        UnsupportedModelError: it makes another network.
    """
    file = files.builder_file
    if fault := file_fault(file, facts.sha256, files.spec_file):
        raise CheckpointError(f"{fault}; copy the folder again, or derive it again")
    if not run_code:
        refuse_unknown(file, facts.sha256, facts.function)
    builder = Builder.at(file, facts.function)
    made = built(f"{file}:{facts.function}").float().eval()  # it may make it in fp16; the weights are of fp32
    boxes = spec.output == "boxes"
    if boxes and not has_transform(made):
        made = adapted(made, facts.network.removeprefix("detector.module."), spec.preprocessing["input_size"])
    module = Pyramid(made).eval() if boxes else made
    if spec.narrowed_rest is not None:
        try:
            narrowed_as(module, spec.narrowed_rest.layers)
        except FOREIGN as error:
            reason = f"{facts.function} makes other layers behind its backbone ({first_line(error, 80)})"
            raise UnsupportedModelError(reason) from error
    network = Network(module, within(module, facts.network, builder, read=facts.read))
    module.get_submodule(facts.network).requires_grad_()  # what a training of the head froze is distilled, too
    if boxes and takes_several_sizes(made):
        letterbox(made, network.input_size)
    return network


def _check_described(network: Network, spec: ModelSpec, file: Path, base_head_macs: int) -> None:
    """Check that a network has the costs and the input size in model.json.

    Args:
        base_head_macs: of its base.

    Raises:
        CheckpointError: it has others.
    """
    geometry = network.geometry
    of_base = geometry.with_classes(spec.base.outputs).of_base(spec.base.embed)
    of_base = replace(of_base, head_macs=base_head_macs)
    for name, stated, actual in (
        ("MACs", spec.macs, geometry.macs(spec.blocks)),
        ("parameters", spec.params, sum(p.numel() for p in network.parameters())),
        ("MACs of the base", spec.base.macs, of_base.macs(spec.base.blocks)),
        ("input size", list(spec.preprocessing["input_size"]), list(network.input_size)),
    ):
        if stated != actual:
            raise CheckpointError(
                f"{file} was altered: it states {stated} {name}, and the model has {actual}; "
                f"copy the folder again, or derive it again"
            )


def save(model: Model, folder: Path, *, overwrite: bool = False, **records: Any) -> None:
    """Write a model folder; `records` are the card and the records of `ModelFolder.write`.

    Raises:
        OutputError: the folder exists and may not be overwritten, or cannot be written.
    """
    with new_folder(folder, overwrite=overwrite) as temporary:
        files = ModelFolder(temporary)
        state = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}
        save_file(state, files.weights_file, metadata={"format": "pt"})
        files.weights_file.chmod(0o644)  # safetensors makes it private
        if isinstance(family := model.family, DenseFamily) and family.builder is not None:
            files.builder_file.write_bytes(family.builder.code)
        if model.spec.reads_texts:
            files.tokenizer_file.write_text(stored_tokenizer(model.preprocessing), encoding="utf-8")
        files.write(model.spec, **records)
