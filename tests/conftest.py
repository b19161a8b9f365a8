"""Shared by all tests: small real models, small real image folders, and the command line as a person types it.

torch is imported inside the fixtures: the agent's tests run where there is none.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forks
import pytest
from hypothesis import HealthCheck, settings
from places import OWN_LOCK, nodes_of, syntax_of
from quick_hypothesis import make_tables_quickly
from rewriting import share_rewriting

pytest_plugins = ("board_fixtures", "exports")

for name in ("COLUMNS", "LINES"):  # readline exports them to the workers; tables are as wide as in a pipe
    os.environ.pop(name, None)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # these models are too small for more, also in subprocesses

# How long an example takes says how busy the machine is, and nothing of the code. The same examples each time, so that
# a red run says something of a change; `pytest --hypothesis-profile=explore` draws others.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("edgevit", settings.get_profile("explore"), derandomize=True, database=None, max_examples=50)
settings.register_profile("quick", settings.get_profile("edgevit"), max_examples=15)  # of `make test`
settings.load_profile("edgevit")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background jobs; tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # until everything is imported
frozen = {"modules": 0}  # how many were imported when they were last kept out of collections


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow, and put first what shares the server of forks, or the syntax of all files.

    Each worker that needs one makes its own, in 3 to 12 s, and the first tests go to one worker.
    """
    shared = {id(made) for made in (forks, forks.Program, forks.server, forks.in_two_processes, nodes_of, syntax_of)}
    files = {item.path: getattr(item, "module", None) for item in items}
    first = {path for path, module in files.items() if shared & set(map(id, vars(module).values()))}
    items.sort(key=lambda item: item.path not in first)
    for item in items:
        quick = item.get_closest_marker("quick")
        if quick and hasattr(item, "callspec") and not any(fnmatchcase(item.callspec.id, ids) for ids in quick.args):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep what was imported out of every garbage collection: with torch it is so much that one takes 0.3 s."""
    from exports import keep_operators

    gc.freeze()  # what is garbage by now is little, and to find it takes as long as one of those collections
    frozen["modules"] = len(sys.modules)
    gc.enable()
    keep_operators()
    if memory := sys.modules.get("accelerate.utils.memory"):  # it would collect after each of many short trainings
        vars(memory)["gc"] = SimpleNamespace(collect=lambda: 0)


def keep_out_of_collections() -> None:
    gc.collect()
    gc.freeze()
    frozen["modules"] = len(sys.modules)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """The first export and the first training import as much again: a collection takes 0.07 s more from then on."""
    if len(sys.modules) > frozen["modules"] + 100:
        keep_out_of_collections()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Clean up last of all, after pytest's own collections: else each goes through all that was imported."""
    config.add_cleanup(gc.unfreeze)  # or libraries would report what they think has leaked
    share_rewriting(config)
    make_tables_quickly(constants=config.getoption("hypothesis_profile", None) != "quick")


TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 10}


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep what derivations cache out of the user's own folder, and measure this machine under a lock in there.

    Under "/" the jobs of all workers, and of whoever else uses this machine, take turns.
    """
    home = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home))
        patch.setenv("EDGEVIT_BOARD_ROOT", OWN_LOCK)
        patch.setattr(os, "fsync", lambda _: None)  # against power cuts, which no test makes: it waits for the disk
        yield home


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give the tests of a file a cache that no other file fills."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def small_vit() -> Callable[..., Any]:
    """Make a small timm ViT with random weights, biases included; a name and timm's arguments may be given."""
    import timm
    import torch
    from small_models import usual_args

    from edgevit.network.families import family_like
    from edgevit.network.network import Network

    def make(name: str = "vit_tiny_patch16_224", **args: Any) -> Network:
        torch.manual_seed(0)
        made = timm.create_model(name, **{**usual_args(name), **args})
        network = Network(family_like(made).interchange.adopted(made).eval())
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)  # timm starts biases and more at 0 or 1
        return network

    return make


@pytest.fixture(scope="session")
def of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run of pytest, whose workers may leave there what the others need, too, under its last name."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if own.name.startswith("popen-") else own  # xdist's workers lie in one folder


@pytest.fixture(scope="session")
def digits_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, of_all_workers: Path, small_vit: Callable[..., Any]
) -> Path:
    """Weights of a small ViT that has seen a few of scikit-learn's digits, and knows most of them."""
    file = tmp_path_factory.mktemp("base") / "digits.safetensors"
    kept = of_all_workers / file.name
    if not kept.exists():  # to learn takes 2 s
        learn_digits(small_vit(), file)
        file.rename(kept)
    shutil.copy(kept, file)
    return file


def learn_digits(network: Any, file: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from edgevit.data.task import open_task
    from edgevit.network.model import describe

    model = describe(network, "vit_tiny_patch16_224", TINY)
    task = open_task("digits", None, preprocessing=model.preprocessing, base_outputs=10)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    network.train()
    order = torch.randperm(len(task.train)).split(64)
    images, labels = next(task.train.batches(len(task.train)))
    for _ in range(4):
        for batch in order:
            torch.nn.functional.cross_entropy(network(images[batch]), labels[batch]).backward()
            optimizer.step()
            optimizer.zero_grad()
    save_file(network.state_dict(), file)


@pytest.fixture(scope="session")
def image_folder() -> Callable[..., Path]:
    """Write a folder of class folders: `image_folder(root, {"cat": 5})` makes root/cat/0.png ... 4.png."""
    import numpy as np
    from PIL import Image

    def make(root: Path, counts: dict[str, int]) -> Path:
        random = np.random.default_rng(zlib.crc32(root.name.encode()))  # no copies between train/ and val/
        for name, count in counts.items():
            (root / name).mkdir(parents=True)
            for i in range(count):
                Image.fromarray(random.integers(0, 255, (40, 48, 3), np.uint8)).save(root / name / f"{i}.png")
        return root

    return make


@pytest.fixture
def board_tree(tmp_path: Path) -> Callable[[str], Path]:
    """Set up a captured board, such as "orin-nx-16gb-jetpack6.2", with its stand-in programs, to read and to change."""
    from places import BOARDS

    def make(name: str) -> Path:
        root = tmp_path / "boards" / name
        based_on = BOARDS / name / "based-on.txt"
        bases = [BOARDS / based_on.read_text().strip()] if based_on.exists() else []
        for source in (*bases, BOARDS / name, BOARDS / "programs"):
            shutil.copytree(source, root, dirs_exist_ok=True)
        for line in (root / "sys.txt").read_text().splitlines():
            path, _, value = line.partition(":")
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(value + "\n")
        return root

    return make


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def told(self) -> list[str]:
        """The lines on stderr, but for stages that took long because the machine is busy."""
        return [line for line in self.err.splitlines() if not re.search(r": done in \d+:\d\d", line)]

    @property
    def error(self) -> str:
        """The only line on stderr, of a command that failed as it should."""
        assert (self.code, self.out) == (1, ""), self
        *before, last = self.told
        assert not before and last.startswith("error: "), self.err
        return last


@pytest.fixture
def edgevit_main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Run the real command line in this process: torch is imported once."""

    def run(*arguments: object) -> Outcome:
        from edgevit.cli.app import main

        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["edgevit", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Outcome(code, *capsys.readouterr())

    return run
