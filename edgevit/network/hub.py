"""Download weights, and the configuration files beside them, from a repository of the Hugging Face hub."""

from __future__ import annotations

import shlex
from pathlib import Path

from edgevit.errors import CheckpointError
from edgevit.network.weights import first_line
from edgevit.records.names import TOKENIZER
from edgevit.records.release import CONFIGS, NAMES
from edgevit.records.tokenizer import VOCABULARY

_BESIDE = (*CONFIGS, TOKENIZER, VOCABULARY)
_SAFETENSORS, _PICKLED = ("model*.safetensors", NAMES[1]), ("pytorch_model*.bin", NAMES[3])


def downloaded_repository(name: str) -> Path:
    """Return the folder of a repository's files in the cache of huggingface_hub, which downloads what is missing.

    Raises:
        CheckpointError: there is no such repository, it is not open to this user, has no weights of these names, or
            the hub cannot be reached.
    """
    from huggingface_hub import snapshot_download

    for weights in (_SAFETENSORS, _PICKLED):
        try:
            folder = Path(snapshot_download(name, allow_patterns=[*_BESIDE, *weights]))
        except Exception as error:  # of the hub, of HTTP, of the disk
            raise CheckpointError(
                f"cannot download {name} from the Hugging Face hub ({first_line(error, 120)}); check the name, and `hf "
                f"auth login` for one that is not public, or give a folder of `hf download {shlex.quote(name)} "
                "--local-dir DIR`"
            ) from error
        if any((folder / file).is_file() for file in NAMES):
            return folder
    raise CheckpointError(
        f"{name} on the Hugging Face hub, or in its cache if the hub cannot be reached, has none of "
        f"{', '.join(NAMES)}; try again later, or give a file of weights"
    )
