"""Weights of a repository of a hub, here a server on this machine that answers as the hub does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import timm
from foreign_names import hugging_face
from safetensors.torch import save
from small_base import ARGS, NAME

from edgevit.errors import CheckpointError
from edgevit.network.model import Headless
from edgevit.network.opening import downloaded_repository, network_without_weights, open_network
from edgevit.progress import Silent

COMMIT = "0123456789" * 4
FILES: dict[str, bytes] = {"README.md": b"more than is read", "config.json": b"{}"}


class _Hub(BaseHTTPRequestHandler):
    """The repository some/vit with FILES; another one does not exist."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        content = FILES.get(path.rpartition("/")[2])
        if path.startswith("/api/models/some/vit"):
            listing = {"id": "some/vit", "sha": COMMIT, "siblings": [{"rfilename": name} for name in FILES]}
            tree = [{"type": "file", "path": n, "size": len(c), "oid": "0" * 40} for n, c in FILES.items()]
            content = json.dumps(tree if "/tree/" in path else listing).encode()
        elif not path.startswith("/some/vit/resolve/"):
            content = None
        self.send_response(404 if content is None else 200)
        if content is None:
            self.send_header("X-Error-Code", "RepoNotFound")
            content = b""
        self.send_header("ETag", hashlib.sha256(content).hexdigest())
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    from huggingface_hub import constants

    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield url
    finally:
        server.shutdown()
        server.server_close()


def test_a_base_is_read_from_a_repository(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = timm.create_model(NAME, **{**ARGS, "num_classes": 0})
    monkeypatch.setitem(FILES, "config.json", json.dumps({"num_attention_heads": ARGS["num_heads"]}).encode())
    monkeypatch.setitem(FILES, "model.safetensors", save(hugging_face(made.state_dict(), "vit.")))
    monkeypatch.setitem(FILES, "processor_config.json", b"{}")
    opened = open_network("hf-hub:some/vit", pretrained=True, progress=Silent())
    assert isinstance(opened, Headless) and opened.network.geometry.embed == ARGS["embed_dim"]
    shape = network_without_weights("hf-hub:some/vit", pretrained=True)
    assert len(shape.dims) == len(opened.network.dims) and shape.geometry.embed == ARGS["embed_dim"]
    folder = downloaded_repository("some/vit")
    names = ["config.json", "model.safetensors", "processor_config.json"]
    assert sorted(file.name for file in folder.iterdir()) == names
    with pytest.raises(CheckpointError, match=r"hf-hub:some/vit is a repository whose .* with --pretrained alone"):
        open_network("hf-hub:some/vit")


def test_what_cannot_be_downloaded_is_one_line(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match=r"some/vit on the Hugging Face hub, or .* has none of model\.saf"):
        downloaded_repository("some/vit")
    with pytest.raises(CheckpointError, match=r"cannot download some/other from the Hugging Face hub") as refusal:
        downloaded_repository("some/other")
    assert "\n" not in str(refusal.value)
