"""Chooses the attention backend for a device and a model, or says why none fits."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from common.config import ATTENTION_BACKENDS
from common.errors import ConfigError
from worker_service.attention.backend import AttentionBackend
from worker_service.attention.cpu_backend import make_cpu_backend
from worker_service.attention.torch_backend import TorchBackend
from worker_service.kernels.triton_use import interpret_on_cpu, is_interpreted

_FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can do: kinds of device, dtypes, and what must divide the head size.

    has_window: sliding windows and soft caps.
    """

    devices: frozenset[str]
    dtypes: frozenset[torch.dtype]
    head_size_unit: int = 1
    has_window: bool = True


CAPABILITIES = {
    "triton": Capabilities(devices=frozenset({"cuda", "cpu"}), dtypes=_FLOATS),
    "cpu": Capabilities(
        devices=frozenset({"cpu"}),
        dtypes=frozenset({torch.float32, torch.bfloat16}),
        head_size_unit=16,
        has_window=False,
    ),
    "torch": Capabilities(devices=frozenset({"cuda", "cpu"}), dtypes=_FLOATS),
}
"""In the order of preference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a model asks of its attention on a device."""

    device: torch.device
    dtype: torch.dtype
    head_size: int
    has_window: bool = False


def select_backend(
    name: str,
    *,
    device: torch.device,
    dtype: torch.dtype,
    head_size: int,
    has_window: bool = False,
) -> AttentionBackend:
    """The backend called `name`, or for "auto" the first one that fits the device and the model.

    Raises ConfigError naming what can be chosen, or why the choice cannot work.
    """
    if name not in ATTENTION_BACKENDS:
        raise ConfigError(
            f"attention backend must be one of {', '.join(ATTENTION_BACKENDS)}, not {name!r}"
        )
    needs = Needs(device=device, dtype=dtype, head_size=head_size, has_window=has_window)
    reasons: list[str] = []
    for candidate in CAPABILITIES if name == "auto" else (name,):
        made = _make(candidate, needs, is_asked=name != "auto")
        if not isinstance(made, str):
            return made
        reasons.append(f"{candidate} {made}")
    raise ConfigError(f"no attention backend fits: {'; '.join(reasons)}")


def _make(name: str, needs: Needs, *, is_asked: bool) -> AttentionBackend | str:
    """The backend, or why it cannot serve."""
    can = CAPABILITIES[name]
    if needs.device.type not in can.devices:
        return f"needs {' or '.join(sorted(can.devices))}, not {needs.device.type}"
    if needs.dtype not in can.dtypes:
        known = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in can.dtypes))
        return f"computes in {known}, not {str(needs.dtype).removeprefix('torch.')}"
    if needs.head_size % can.head_size_unit:
        return f"needs a head size that {can.head_size_unit} divides, not {needs.head_size}"
    if needs.has_window and not can.has_window:
        return "knows no sliding window and no soft cap"
    return _MAKERS[name](needs, is_asked)


def _make_triton(needs: Needs, is_asked: bool) -> AttentionBackend | str:  # noqa: FBT001 - by table
    if find_spec("triton") is None:
        return "needs the package triton: install the extra cuda"
    if needs.device.type == "cpu":
        # Thousands of times slower than the CPU's own kernels: for those who ask by name.
        if not is_asked:
            return "is interpreted on a CPU, which is for tests"
        if not is_interpreted():
            return "is interpreted on a CPU, which TRITON_INTERPRET=1 must allow"
        interpret_on_cpu()
    # Loads Triton, which the other backends go without.
    from worker_service.attention.triton_backend import TritonBackend

    return TritonBackend()


def _make_cpu(needs: Needs, is_asked: bool) -> AttentionBackend | str:  # noqa: FBT001 - by table
    del is_asked
    made = make_cpu_backend(device=needs.device, dtype=needs.dtype, head_size=needs.head_size)
    return str(made) if isinstance(made, ConfigError) else made


def _make_torch(needs: Needs, is_asked: bool) -> AttentionBackend | str:  # noqa: FBT001 - by table
    del needs, is_asked
    return TorchBackend()


_MAKERS: dict[str, Callable[[Needs, bool], AttentionBackend | str]] = {
    "triton": _make_triton,
    "cpu": _make_cpu,
    "torch": _make_torch,
}
