"""The CPU kernels of `cpu/*.cpp`, built by the install: their typed face, or None without them.

Tensors go in as addresses (`Tensor.data_ptr()`) and sizes, so kernels need no part of torch to be
built; who calls one answers for dtype, contiguity and lifetime. `cpu/kernels.h` says what each does.
"""

import logging
from enum import IntEnum
from functools import cache
from importlib import import_module
from typing import Protocol, cast

import torch

_LOG = logging.getLogger(__name__)

_MODULE = "worker_service.kernels._native"


class Isa(IntEnum):
    """Instruction sets the kernels are written for; each is more than the one before."""

    NONE = 0
    AVX2 = 1
    AVX512_BF16 = 2


class NativeKernels(Protocol):
    """The functions of the extension module; they release the GIL."""

    def isa(self) -> int:
        """The set in use: the best of this machine unless told otherwise."""
        ...

    def use_isa(self, isa: int, /) -> bool:
        """Use a lesser set, for tests; False when the machine lacks it."""
        ...

    def num_threads(self) -> int:
        """Threads that share a kernel's work, the caller's included."""
        ...

    def set_num_threads(self, num_threads: int, /) -> None:
        """Share work among so many threads from now on."""
        ...

    def count_wrong_jobs(self, num_jobs: int, /) -> int:
        """Try the threads on jobs back to back, for tests: how many did not run each task once."""
        ...

    def packed_size_bf16(self, num_outputs: int, num_inputs: int, /) -> int:
        """Elements of a packed weight."""
        ...

    def pack_bf16(self, w_OI: int, packed: int, num_outputs: int, num_inputs: int, /) -> None:
        """Bring a weight into the order `linear_bf16` reads it in."""
        ...

    def linear_bf16(
        self,
        x_TI: int,
        packed: int,
        bias_O: int,
        y_TO: int,
        is_y_float: bool,  # noqa: FBT001 - the module knows no keywords
        num_rows: int,
        num_inputs: int,
        num_outputs: int,
        /,
    ) -> None:
        """Multiply rows by a packed weight; bias 0 is none, y is float32 or bfloat16."""
        ...

    def packed_size_int8(self, num_outputs: int, num_inputs: int, /) -> int:
        """Bytes of a packed weight of 8-bit integers."""
        ...

    def pack_int8(self, q_OI: int, packed: int, num_outputs: int, num_inputs: int, /) -> None:
        """Bring int8 integers, -128 not among them, into the order `linear_int8` reads them in."""
        ...

    def linear_int8(
        self,
        is_x_bf16: bool,  # noqa: FBT001 - the module knows no keywords
        x_TI: int,
        packed: int,
        scale_O: int,
        bias_O: int,
        y_TO: int,
        is_y_float: bool,  # noqa: FBT001
        num_rows: int,
        num_inputs: int,
        num_outputs: int,
        /,
    ) -> None:
        """Multiply rows padded to whole 32 inputs; scale and bias are float32, bias 0 is none."""
        ...

    def packed_size_int4(self, num_outputs: int, num_inputs: int, /) -> int:
        """Bytes of a packed weight of 4-bit integers, its scales and centers."""
        ...

    def pack_int4(
        self,
        q_OI: int,
        scale_OG: int,
        center_OG: int,
        packed: int,
        num_outputs: int,
        num_inputs: int,
        /,
    ) -> None:
        """Bring integers below 16, a byte each, into the order `linear_int4` reads them in."""
        ...

    def linear_int4(
        self,
        is_x_bf16: bool,  # noqa: FBT001
        x_TI: int,
        packed: int,
        bias_O: int,
        y_TO: int,
        is_y_float: bool,  # noqa: FBT001
        num_rows: int,
        num_inputs: int,
        num_outputs: int,
        /,
    ) -> None:
        """Multiply rows padded to whole 32 inputs; bias is float32, 0 is none."""
        ...

    def rms_norm(
        self,
        is_bf16: bool,  # noqa: FBT001
        x_TD: int,
        residual_TD: int,
        weight_D: int,
        out_TD: int,
        num_tokens: int,
        size: int,
        eps: float,
        /,
    ) -> None:
        """Add a residual to x, 0 is none, and write the weighted norm of the sum to out."""
        ...

    def silu_and_multiply(
        self,
        is_bf16: bool,  # noqa: FBT001
        gate_up_T2I: int,
        out_TI: int,
        num_tokens: int,
        size: int,
        /,
    ) -> None:
        """Gate each row's second half by its first."""
        ...

    def attend(
        self, step: int, qkv_THD: int, keys_KSD: int, values_KSD: int, out_TND: int, /
    ) -> None:
        """Rotate, store and attend in one layer; step is the address of an AttentionStep."""
        ...

    def greedy(
        self,
        is_bf16: bool,  # noqa: FBT001
        logits_SV: int,
        num_rows: int,
        vocabulary: int,
        tokens_S: int,
        /,
    ) -> bool:
        """Write each row's best token as int32; False when a logit is not finite."""
        ...

    def draw(
        self,
        logits_RV: int,
        temperature_R: int,
        min_p_R: int,
        seeds_R: int,
        positions_R: int,
        num_rows: int,
        vocabulary: int,
        tokens_R: int,
        /,
    ) -> None:
        """Draw each row's token as int32 from float32 logits, with the noise of sampling_ops."""
        ...

    def run_decoder_layers(
        self,
        layers: int,
        num_layers: int,
        step: int,
        keys_and_values: int,
        hidden_TD: int,
        added_TD: int,
        residual_TD: int,
        room: int,
        num_tokens: int,
        eps: float,
        /,
    ) -> None:
        """Run layers of bfloat16; layers is the address of DecoderLayer structs."""
        ...


@cache
def native_kernels() -> NativeKernels | None:
    """Find the kernels once; says in one log line why there are none."""
    try:
        kernels = cast(NativeKernels, import_module(_MODULE))
    except ImportError as error:
        _LOG.warning("torch computes without native CPU kernels: %s", error)
        return None
    if kernels.isa() == Isa.NONE:
        _LOG.warning("torch computes without native CPU kernels: they need AVX2 and FMA")
        return None
    return kernels


def native_kernels_for(x: torch.Tensor) -> NativeKernels | None:
    """The kernels that compute on such a tensor: dense, on the CPU, of a dtype they know."""
    if x.is_cpu and (x.dtype is torch.bfloat16 or x.dtype is torch.float32) and x.is_contiguous():
        return native_kernels()
    return None


def share_torch_threads() -> None:
    """Let kernels work with as many threads as torch does when the calling thread calls it."""
    if kernels := native_kernels():
        kernels.set_num_threads(torch.get_num_threads())


def reclaim_torch_threads() -> None:
    """Give torch as many threads as kernels have, where the calling thread had relieved them."""
    if kernels := native_kernels():
        torch.set_num_threads(max(torch.get_num_threads(), kernels.num_threads()))


def relieve_torch_threads() -> None:
    """Let torch compute on the calling thread alone from now on.

    Once an operation of torch was shared out, its other threads spin for milliseconds, on the cores
    that kernels need next.
    """
    torch.set_num_threads(1)
