"""TensorRT's timing cache: what it has measured of kernels, kept so that the next build need not measure it again.

One file per TensorRT, kind of GPU and power mode: times of one are worth nothing on another, and at other clocks or
with parts of the GPU off other kernels are the fastest. A file begins with the hash of the rest: a damaged one is found
out here, and not by TensorRT.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator

from .files import cache_folder
from .runners import RunnerError

_HASH_BYTES = hashlib.sha256().digest_size


@dataclass
class TimingCache:
    path: str
    content: bytes  # cache as TensorRT wrote it; empty at first
    bytes_before: int = 0
    bytes_after: int = 0
    attached: Any = None  # TensorRT's own object, which must live until the build is done

    def attach(self, config: Any, remarks: list[str]) -> None:
        """Hand it to a build; one that TensorRT does not want is left out, and that is said."""
        self.attached = config.create_timing_cache(self.content)
        if self.attached is None or not config.set_timing_cache(self.attached, False):
            remarks.append(f"the timing cache {self.path} is of another TensorRT or GPU, and was started anew")
            self.attached = config.create_timing_cache(b"")
            config.set_timing_cache(self.attached, False)
        else:
            self.bytes_before = len(self.content)

    def save(self, config: Any, remarks: list[str]) -> None:
        """Keep what the build has added; a cache that cannot be written costs the next build time, and no more."""
        content = bytes(memoryview(config.get_timing_cache().serialize()))
        self.bytes_after = len(content)
        try:
            with replacing(self.path) as temporary:
                Path(temporary).write_bytes(hashlib.sha256(content).digest() + content)
        except RunnerError as error:
            remarks.append(f"the timing cache is not kept: {error}")

    def to_dict(self) -> dict[str, object]:
        return {"path": self.path, "bytes_before": self.bytes_before, "bytes_after": self.bytes_after}


def find_timing_cache(
    trt: Any, capability: str | None, power_mode: str | None, remarks: list[str]
) -> TimingCache | None:
    """Read the cache of this TensorRT, GPU and power mode; None where the GPU is unknown."""
    if capability is None:
        remarks.append("no timing cache: the kind of GPU is not known; see `edgevit board`")
        return None
    parts = (
        f"tensorrt-{trt.__version__}",
        f"sm{capability.replace('.', '')}",
        re.sub(r"[^\w-]", "_", power_mode or ""),
    )
    path = os.path.join(cache_folder(), "timing", "-".join(filter(None, parts)) + ".cache")
    stored = b""
    with suppress(OSError):
        stored = Path(path).read_bytes()
    digest, content = stored[:_HASH_BYTES], stored[_HASH_BYTES:]
    if stored and hashlib.sha256(content).digest() != digest:
        remarks.append(f"the timing cache {path} is damaged, and was started anew")
        content = b""
    return TimingCache(path, content)


@contextmanager
def replacing(path: str) -> Iterator[str]:
    """Give a temporary name that becomes `path` when the block ends well.

    Raises:
        RunnerError: it cannot be written.
    """
    temporary = f"{path}.{os.getpid()}.part"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise RunnerError(f"cannot write {path} ({error.strerror}); see `df -h {os.path.dirname(path)}`") from error
    finally:
        with suppress(OSError):
            os.remove(temporary)
