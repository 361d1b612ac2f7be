"""The device a worker computes on: from its name to a torch device, and what Describe says of it."""

import os
from dataclasses import dataclass

import torch

from common.errors import ConfigError
from worker_service.kernels.native import native_kernels

DTYPES = ("float32", "bfloat16", "float16")
MIN_BFLOAT16_CAPABILITY = (8, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A torch device, its memory in bytes, and the floating-point types it has instructions for."""

    torch_device: torch.device
    memory_bytes: int
    dtypes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Kind and index, e.g. "cpu" or "cuda:0"."""
        return str(self.torch_device)


def find_device(name: str) -> Device:
    """Find the device "auto", "cpu", "cuda" or "cuda:N"; raises ConfigError when it is not there.

    "auto" is the first GPU, or the CPU where there is none.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return Device(
            torch_device=torch.device("cpu"), memory_bytes=_host_memory(), dtypes=_cpu_dtypes()
        )
    return _find_gpu(name)


def bind(device: Device, *, num_threads: int | None) -> None:
    """Make the device and the number of CPU threads those of the calling thread."""
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    if device.torch_device.type == "cuda":
        torch.cuda.set_device(device.torch_device)
    # The first allocation creates the device's context, which is slow and may fail.
    torch.zeros(1, device=device.torch_device)


def _find_gpu(name: str) -> Device:
    kind, _, index = name.partition(":")
    if kind != "cuda" or not (index or "0").isdecimal():
        raise ConfigError(f"device must be auto, cpu, cuda or cuda:N, not {name!r}")
    number, count = int(index or 0), torch.cuda.device_count()
    if number >= count:
        raise ConfigError(f"device {name} is not there: torch sees {count} CUDA devices")
    properties = torch.cuda.get_device_properties(number)
    has_bfloat16 = (properties.major, properties.minor) >= MIN_BFLOAT16_CAPABILITY
    return Device(
        torch_device=torch.device("cuda", number),
        memory_bytes=properties.total_memory,
        dtypes=DTYPES if has_bfloat16 else ("float32", "float16"),
    )


def _cpu_dtypes() -> tuple[str, ...]:
    """Other types run on any CPU, but several times slower than float32 where they are emulated."""
    has_bfloat16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    is_native = {
        "float32": True,
        "bfloat16": has_bfloat16 or native_kernels() is not None,
        "float16": torch.ops.mkldnn._is_mkldnn_fp16_supported(),
    }
    return tuple(dtype for dtype in DTYPES if is_native[dtype])


def _host_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
