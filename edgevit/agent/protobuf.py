"""What an ONNX file holds, read without the onnx package, which a board does not have: types of inputs, and nodes.

TensorRT's parser takes a DOUBLE input for a FLOAT one and says nothing: only the file itself tells.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Callable, Iterator, Tuple, TypeVar, Union

from .runners import RunnerError

# Field numbers of onnx.proto: ModelProto.graph, GraphProto.input, ValueInfoProto.name and .type, TypeProto.tensor_type,
# TypeProto.Tensor.elem_type.
GRAPH, INPUT, NAME, TYPE, TENSOR_TYPE, ELEMENT = 7, 11, 1, 2, 1, 1
# ModelProto.metadata_props, StringStringEntryProto.key and .value.
METADATA, KEY, VALUE = 14, 1, 2
# GraphProto.node, NodeProto.input, .output, .name and .op_type.
NODE, NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_TYPE = 1, 1, 2, 3, 4

_TYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    6: "int32",
    7: "int64",
    8: "string",
    9: "bool",
    10: "float16",
    11: "float64",
    16: "bfloat16",
}

VARINT, BYTES, FIXED = 0, 2, {1: 8, 5: 4}  # kinds of fields on the wire; the fixed ones and their sizes
_LONGEST_VARINT = 10

_Span = Tuple[int, int]  # beginning and end of a field that has a length
T = TypeVar("T")


@dataclass(frozen=True)
class Node:
    """A node of a graph; the names of tensors say what it is connected to."""

    name: str
    kind: str  # name of the operator
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def input_types(path: str) -> dict[str, str]:
    """Return the type of each input.

    Raises:
        RunnerError: it is no ONNX file.
    """
    return _read(path, _input_types)


def graph_nodes(path: str) -> list[Node]:
    """Return the nodes in the order of the file.

    Raises:
        RunnerError: it is no ONNX file.
    """

    def nodes(content: mmap.mmap) -> list[Node]:
        return [_node(content, at) for at in _messages(content, (0, len(content)), GRAPH, NODE)]

    return _read(path, nodes)


def metadata(path: str) -> dict[str, str]:
    """Return the metadata of an ONNX file, by key.

    Raises:
        RunnerError: it is no ONNX file.
    """

    def entries(content: mmap.mmap) -> dict[str, str]:
        texts = (_texts(content, entry, KEY, VALUE) for entry in _messages(content, (0, len(content)), METADATA))
        return {"".join(pair[KEY]): "".join(pair[VALUE]) for pair in texts}

    return _read(path, entries)


def _read(path: str, read: Callable[[mmap.mmap], T]) -> T:
    try:
        # Mapped, not read: the weights are skipped, and the file may be larger than what is free.
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return read(content)
    except OSError as error:
        raise RunnerError(f"cannot read {path} ({error.strerror}); send the model again") from error
    except ValueError as error:  # an empty file cannot be mapped
        raise RunnerError(f"{path} is no ONNX file ({error}); export the model again") from None


def _input_types(content: mmap.mmap) -> dict[str, str]:
    types: dict[str, str] = {}
    for declared in _messages(content, (0, len(content)), GRAPH, INPUT):
        names = [content[start:end] for start, end in _messages(content, declared, NAME)]
        elements = [
            value
            for tensor in _messages(content, declared, TYPE, TENSOR_TYPE)
            for number, value in _fields(content, tensor)
            if number == ELEMENT and isinstance(value, int)
        ]
        if names and elements:
            types[names[-1].decode("utf-8", "replace")] = _TYPES.get(elements[-1], f"type {elements[-1]}")
    if not types:
        raise ValueError("it declares no input")
    return types


def _node(content: mmap.mmap, within: _Span) -> Node:
    texts = _texts(content, within, NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_TYPE)
    name, kind = ("".join(texts[number][-1:]) for number in (NODE_NAME, NODE_TYPE))
    return Node(name, kind, tuple(texts[NODE_INPUT]), tuple(texts[NODE_OUTPUT]))


def _texts(content: mmap.mmap, within: _Span, *numbers: int) -> dict[int, list[str]]:
    """The texts of these fields, each in order."""
    texts: dict[int, list[str]] = {number: [] for number in numbers}
    for number, value in _fields(content, within):
        if number in texts and not isinstance(value, int):
            texts[number].append(content[slice(*value)].decode("utf-8", "replace"))
    return texts


def _messages(content: mmap.mmap, within: _Span, *path: int) -> Iterator[_Span]:
    """Yield each message that is reached by these field numbers."""
    for number, value in _fields(content, within):
        if number == path[0] and not isinstance(value, int):
            if len(path) == 1:
                yield value
            else:
                yield from _messages(content, value, *path[1:])


def _fields(content: mmap.mmap, within: _Span) -> Iterator[tuple[int, Union[int, _Span]]]:
    """Yield number and value of each field.

    Raises:
        ValueError: it is not protobuf.
    """
    at, end = within
    while at < end:
        key, at = _varint(content, at, end)
        kind = key & 7
        if kind == VARINT:
            value, at = _varint(content, at, end)
            yield key >> 3, value
            continue
        if kind == BYTES:
            size, at = _varint(content, at, end)
        elif kind in FIXED:
            size = FIXED[kind]
        else:
            raise ValueError(f"a field of kind {kind} at byte {at}")
        if at + size > end:
            raise ValueError(f"it ends within a field, at byte {end}")
        yield key >> 3, (at, at + size)
        at += size


def _varint(content: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    """Return a number and where it ends."""
    value = 0
    for i in range(min(_LONGEST_VARINT, end - at)):
        byte = content[at + i]
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, at + i + 1
    raise ValueError(f"no number at byte {at}")
