"""Which tensors are given to Triton kernels: those on a GPU, and on a CPU none unless asked for."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import Tensor


class _CpuUse:
    """Whether tensors on the CPU are given to interpreted kernels: decided once, for the process."""

    is_on = False


def interpret_on_cpu() -> None:
    """Give tensors on the CPU to interpreted kernels from now on."""
    _CpuUse.is_on = True


def stop_interpreting() -> None:
    """Undo `interpret_on_cpu`, for tests."""
    _CpuUse.is_on = False


def runs_triton(x: Tensor) -> bool:
    """Whether what is computed of x is computed by Triton."""
    return _CpuUse.is_on or (x.is_cuda and _has_triton())


def is_interpreted() -> bool:
    """Whether Triton was told, by TRITON_INTERPRET=1, to interpret kernels."""
    import triton

    return bool(triton.knobs.runtime.interpret)  # pyright: ignore[reportAttributeAccessIssue]


# Each loads Triton when its kernels are first used, as most workers go without.


@cache
def norm_rope() -> Any:
    """The module of norms and rotations."""
    return import_module("worker_service.kernels.norm_rope")


@cache
def gate_triton() -> Any:
    """The module of gates."""
    return import_module("worker_service.kernels.gate_triton")


@cache
def draw_triton() -> Any:
    """The module of draws."""
    return import_module("worker_service.kernels.draw_triton")


@cache
def grouped_matmul() -> Any:
    """The module of matmuls by group."""
    return import_module("worker_service.kernels.grouped_matmul")


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
