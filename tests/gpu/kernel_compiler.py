"""Compiles every Triton kernel for GPUs that need not be here, and says what each needs.

Run as `python -m tests.gpu.kernel_compiler`; prints one line a kernel and architecture. Kernels are
compiled in a process of their own, as one that interprets kernels cannot compile them.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel

from worker_service.kernels import (
    draw_triton,
    gate_triton,
    grouped_matmul,
    input_prep,
    kv_store,
    norm_rope,
    paged_attention,
)

CAPABILITIES = (80, 90, 100)
FIRST_WITH_E4M3 = 89
"""Older GPUs know 8-bit numbers of 5 exponent bits only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way a kernel is launched: a type for each argument, in order, and its constants."""

    name: str
    kernel: Any
    types: str
    constants: dict[str, Any] = field(default_factory=dict)
    num_warps: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a compiled kernel needs: registers a thread, bytes of shared memory."""

    registers: int
    stack_bytes: int
    shared_bytes: int


def attention(
    name: str, *, queries: int, splits: int, cache: str = "bf16", **changed: Any
) -> Variant:
    """Attention of Llama 3's shape: 4 query heads a key head, head size 128."""
    constants: dict[str, Any] = {
        "GROUP": 4,
        "GROUP_PADDED": 4,
        "HEAD_SIZE": 128,
        "HEAD_PADDED": 128,
        "BLOCK_SIZE": 16,
        "QUERIES": queries,
        "KEYS": 32,
        "NUM_SPLITS": splits,
        "WINDOW": 0,
        "HAS_CAP": False,
        "DOT": tl.bfloat16,
    }
    out = "*bf16" if splits == 1 else "*fp32"
    return Variant(
        name=f"paged_attention {name}",
        kernel=paged_attention.attend_kernel,
        types=f"*bf16 *{cache} *{cache} *i32 *i32 *i32 *i32 {out} *fp32 "
        "fp32 fp32 fp32 i64 i64 i64 i64 i32",
        constants=constants | changed,
        num_warps=8 if queries > 4 else 4,
    )


VARIANTS = (
    attention("prefill", queries=16, splits=1),
    attention("prefill, window and cap", queries=16, splits=1, WINDOW=512, HAS_CAP=True),
    attention("decode", queries=4, splits=1),
    attention("decode, 8 splits", queries=4, splits=8),
    attention("decode, fp8 cache", queries=4, splits=8, cache="fp8e4nv"),
    attention("decode, int8 cache", queries=4, splits=8, cache="i8"),
    Variant(
        name="merge_splits",
        kernel=paged_attention.merge_kernel,
        types="*fp32 *fp32 *i32 *i32 *bf16 i32",
        constants={
            "HEAD_SIZE": 128,
            "HEAD_PADDED": 128,
            "QUERIES": 1,
            "NUM_SPLITS": 8,
            "SPLITS_PADDED": 8,
        },
        num_warps=1,
    ),
    *(
        Variant(
            name=f"kv_store {cache}",
            kernel=kv_store.store_kernel,
            types=f"*bf16 *bf16 *i64 *{cache} *{cache} fp32 fp32 i64 i64 i64 i64 i64",
            constants={"HEAD_SIZE": 128, "HEAD_PADDED": 128, "LARGEST": largest},
            num_warps=1,
        )
        for cache, largest in (("bf16", 0.0), ("fp8e4nv", 448.0), ("i8", 127.0))
    ),
    *(
        Variant(
            name=f"rms_norm {'of a sum' if has_residual else 'alone'}",
            kernel=norm_rope.rms_norm_kernel,
            types="*bf16 *bf16 *bf16 *bf16 i64 i64 i32 fp32",
            constants={
                "HAS_RESIDUAL": has_residual,
                "HAS_UNIT_OFFSET": False,
                "SIZE_PADDED": 4096,
            },
        )
        for has_residual in (False, True)
    ),
    Variant(
        name="rotate",
        kernel=norm_rope.rotate_kernel,
        types="*bf16 *bf16 *bf16 i64 i64",
        constants={"HALF": 64, "HALF_PADDED": 64},
        num_warps=1,
    ),
    *(
        Variant(
            name=f"gated_activation {'gelu' if is_gelu else 'silu'}",
            kernel=gate_triton.gate_kernel,
            types="*bf16 *bf16 i64 i32",
            constants={"IS_GELU": is_gelu, "AT_ONCE": 1024},
        )
        for is_gelu in (False, True)
    ),
    *(
        Variant(
            name=f"grouped_matmul {name}",
            kernel=grouped_matmul.grouped_matmul_kernel,
            types=f"*bf16 *bf16 *i32 *i32 *fp32 *{out} i32 i32 i32 i64 i64 i64 i64",
            constants={
                "PAIRS_PER_ROW": pairs_per_row,
                "HAS_SCALE": has_scale,
                "ADDS": adds,
                "TILE_ROWS": 16,
                "TILE_OUTPUTS": 64,
                "TILE_INPUTS": 64,
                "DOT": tl.bfloat16,
            },
        )
        for name, pairs_per_row, has_scale, adds, out in (
            ("experts", 8, True, False, "bf16"),
            ("LoRA down", 1, True, False, "fp32"),
            ("LoRA up", 1, False, True, "bf16"),
        )
    ),
    Variant(
        name="input_prep",
        kernel=input_prep.gather_kernel,
        types="*i64 *i32 *i32 *i32 *i32 *i64 *i64 *i64 i32 i32 i64 i64",
        constants={"BLOCK_SIZE": 16, "AT_ONCE": 128},
        num_warps=1,
    ),
    Variant(
        name="draw",
        kernel=draw_triton.draw_kernel,
        types="*fp32 *fp32 *fp32 *fp32 *i64 *i64 *fp32 *i64 i32 i64 i32",
        constants={"AT_ONCE": 1024},
    ),
)


def compile_variant(variant: Variant, capability: int) -> CompiledKernel:
    """Compile down to a cubin."""
    names = variant.kernel.arg_names
    spelled = variant.types
    if capability < FIRST_WITH_E4M3:
        spelled = spelled.replace("fp8e4nv", "fp8e5")
    types = iter(spelled.split())
    signature = {name: "constexpr" if name in variant.constants else next(types) for name in names}
    source = ASTSource(
        fn=variant.kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in variant.constants.items()},
    )
    return triton.compile(
        source,
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": variant.num_warps},
    )


def usage(compiled: CompiledKernel) -> Usage:
    """What the cubin says of itself."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, "kernel.cubin")
        cubin.write_bytes(compiled.asm["cubin"])
        said = subprocess.run(
            [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(cubin)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return Usage(
        registers=_number(r"REG:(\d+)", said),
        stack_bytes=_number(r"STACK:(\d+)", said),
        shared_bytes=compiled.metadata.shared,
    )


def compiled_kernels() -> Iterator[str]:
    """One line a kernel and architecture."""
    for variant in VARIANTS:
        for capability in CAPABILITIES:
            compiled = compile_variant(variant, capability)
            assert compiled.asm["cubin"], f"{variant.name} has no cubin"
            used = usage(compiled)
            yield (
                f"{variant.name:36} sm_{capability:<4} {used.registers:4} registers "
                f"{used.stack_bytes:5} bytes of stack {used.shared_bytes:7} bytes shared"
            )


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found is not None, f"cuobjdump said nothing like {pattern}: {text}"
    return int(found[1])


if __name__ == "__main__":
    for line in compiled_kernels():
        print(line, flush=True)  # noqa: T201 - its purpose
