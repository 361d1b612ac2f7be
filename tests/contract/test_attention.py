"""Every attention backend against attention written out naively over a dense cache.

Legend: N query heads, K key heads, D head size, T tokens of a step, H = N + 2K.
"""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from tests.fakes.native_isa import native_isa
from tests.fakes.paged_steps import Row, row_positions, row_slots, small_cache, step_metadata
from worker_service.attention.backend import Attend, AttentionBackend
from worker_service.attention.cpu_backend import CpuBackend
from worker_service.attention.torch_backend import TorchBackend
from worker_service.attention.torch_plan import TileSizes
from worker_service.attention.triton_backend import TritonBackend
from worker_service.kernels.native import Isa
from worker_service.kernels.rotary import Rotation

torch.set_num_threads(1)

NUM_BLOCKS = 400

BACKENDS: dict[str, TileSizes | Isa | None] = {
    "torch, one tile": TileSizes(),
    "torch, small tiles": TileSizes(decode=40, chunk=7),
    "torch, tiny tiles": TileSizes(decode=5, chunk=3),
    "triton, interpreted": None,
    "cpu, AVX2": Isa.AVX2,
    "cpu, AVX-512": Isa.AVX512_BF16,
}


@pytest.fixture(params=BACKENDS.values(), ids=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[AttentionBackend]:
    """One backend in one of its forms."""
    if isinstance(request.param, TileSizes):
        yield TorchBackend(request.param)
        return
    if request.param is None:
        yield TritonBackend()
        return
    with native_isa(request.param, num_threads=2) as kernels:
        yield CpuBackend(kernels)


def naive(q_LND: Tensor, k_CKD: Tensor, v_CKD: Tensor) -> Tensor:
    """Causal attention of the last L of C tokens, in float64."""
    num_queries, num_heads, head_size = q_LND.shape
    context, num_kv_heads, _ = k_CKD.shape
    k = k_CKD.double().repeat_interleave(num_heads // num_kv_heads, dim=1)
    v = v_CKD.double().repeat_interleave(num_heads // num_kv_heads, dim=1)
    scores = torch.einsum("lnd,cnd->nlc", q_LND.double(), k) * head_size**-0.5
    visible = torch.ones(num_queries, context).tril(context - num_queries).bool()
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("nlc,cnd->lnd", weights, v)


def rotation_at(positions_T: Tensor, *, head_size: int, dtype: torch.dtype) -> Rotation:
    """A rotation whose angles differ by position and pair."""
    angles = positions_T[:, None, None].double() / (1 + torch.arange(head_size // 2))
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return Rotation(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1))


def turned(x_THD: Tensor, rotation: Rotation) -> Tensor:
    """x rotated in float64, pair by pair as complex numbers."""
    half = x_THD.shape[-1] // 2
    x = torch.complex(x_THD[..., :half].double(), x_THD[..., half:].double())
    turn = torch.complex(
        rotation.cos_T1D[..., half:].double(), rotation.sin_T1D[..., half:].double()
    )
    return torch.cat(((x * turn).real, (x * turn).imag), dim=-1)


class Sequences:
    """Sequences with random projections, stored in scattered blocks of one cache layer."""

    def __init__(
        self,
        backend: AttentionBackend,
        lens: list[int],
        *,
        shape: tuple[int, int, int],
        block_size: int,
        dtype: torch.dtype = torch.float32,
        is_rotated: bool = False,
    ) -> None:
        """shape is N, K, D."""
        generator = torch.Generator().manual_seed(len(lens) * 1000 + sum(lens))
        order = (torch.randperm(NUM_BLOCKS - 1, generator=generator) + 1).tolist()
        num_heads, num_kv_heads, head_size = shape
        self._backend = backend
        self._shape = shape
        self._dtype = dtype
        self._block_size = block_size
        self._is_rotated = is_rotated
        self._blocks = [[order.pop() for _ in range(-(-n // block_size))] for n in lens]
        self._qkv = [
            torch.randn(n, num_heads + 2 * num_kv_heads, head_size, generator=generator).to(dtype)
            for n in lens
        ]
        self._cache = small_cache(
            num_layers=1,
            num_kv_heads=num_kv_heads,
            head_size=head_size,
            num_blocks=NUM_BLOCKS,
            block_size=block_size,
            dtype=dtype,
        )

    def run(self, spans: list[tuple[int, int, int]]) -> Tensor:
        """Run a step of (sequence, start, stop) rows and compare every output with naive attention."""
        rows = [
            Row(blocks=self._blocks[index], num_cached=start, num_tokens=stop - start)
            for index, start, stop in spans
        ]
        metadata = step_metadata(rows, block_size=self._block_size)
        attend = Attend(self._backend, self._cache, metadata)
        qkv_THD = torch.cat([self._qkv[index][start:stop] for index, start, stop in spans])
        rotation = self._rotation(row_positions(rows)) if self._is_rotated else None
        out_TND = attend(0, qkv_THD, rotation)
        expected = torch.cat([self._expected(*span) for span in spans])
        tolerance = 1e-5 if self._dtype == torch.float32 else 2.5e-2
        assert out_TND.dtype == self._dtype
        assert out_TND.is_contiguous()
        torch.testing.assert_close(out_TND.double(), expected, rtol=0, atol=tolerance)
        return out_TND

    def _rotation(self, positions_T: Tensor) -> Rotation:
        return rotation_at(positions_T, head_size=self._shape[2], dtype=self._dtype)

    def _expected(self, index: int, start: int, stop: int) -> Tensor:
        num_heads, num_kv_heads, _ = self._shape
        qkv = self._qkv[index][:stop]
        q, k, v = qkv.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
        if self._is_rotated:
            rotation = self._rotation(torch.arange(stop))
            q, k = turned(q, rotation), turned(k, rotation)
        return naive(q[start:], k, v)


SHAPES = {
    "grouped": (6, 2, 16),
    "multi-head": (4, 4, 32),
    "multi-query": (5, 1, 64),
    "SmolLM2": (9, 3, 64),
    "uneven": (3, 1, 48),
    "large": (8, 1, 128),
}


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_steps_equal_naive_attention(
    backend: AttentionBackend, shape: tuple[int, int, int], block_size: int
) -> None:
    """Prompts, chunks behind a context, and decodes of ragged lengths, apart and mixed."""
    sequences = Sequences(backend, [37, 9, 64, 21], shape=shape, block_size=block_size)
    sequences.run([(0, 0, 30)])
    sequences.run([(0, 30, 31), (1, 0, 1), (2, 0, 50)])
    sequences.run([(2, 50, 61), (0, 31, 32), (3, 0, 20), (1, 1, 5)])
    sequences.run([(0, 32, 33), (1, 5, 6), (2, 61, 62), (3, 20, 21)])
    sequences.run([(1, 6, 9), (2, 62, 64), (0, 33, 37)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_queries_and_keys_are_rotated(backend: AttentionBackend, dtype: torch.dtype) -> None:
    """Each token turns by its own position, in chunks and decodes; values do not turn."""
    sequences = Sequences(
        backend, [90, 20], shape=(6, 2, 32), block_size=16, dtype=dtype, is_rotated=True
    )
    sequences.run([(0, 0, 70)])
    sequences.run([(0, 70, 71), (1, 0, 19)])
    sequences.run([(0, 71, 72), (1, 19, 20)])
    sequences.run([(0, 72, 90)])


def test_long_contexts_are_put_together(backend: AttentionBackend) -> None:
    """Contexts of many spans, tiles and blocks of queries, with ends inside and on their bounds."""
    sequences = Sequences(backend, [700, 257, 256], shape=(2, 1, 16), block_size=16)
    sequences.run([(0, 0, 90), (1, 0, 255), (2, 0, 255)])
    sequences.run([(0, 90, 650), (1, 255, 256), (2, 255, 256)])
    sequences.run([(0, 650, 651), (1, 256, 257)])
    sequences.run([(0, 651, 700)])


@pytest.mark.parametrize("head_size", [16, 64])
def test_bfloat16_accumulates_in_float32(backend: AttentionBackend, head_size: int) -> None:
    """bfloat16 inputs give outputs that are off by their own rounding only."""
    sequences = Sequences(
        backend, [33, 300], shape=(4, 2, head_size), block_size=4, dtype=torch.bfloat16
    )
    sequences.run([(0, 0, 32), (1, 0, 240)])
    sequences.run([(0, 32, 33), (1, 240, 298)])
    sequences.run([(1, 298, 299)])


def attend_to_ones(
    backend: AttentionBackend, rows: list[Row], *, change: Callable[[Tensor], None], padding: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Attend with ones everywhere the rows own slots: output, keys and values of the cache."""
    cache = small_cache(num_layers=1, num_kv_heads=1, head_size=16, num_blocks=6, block_size=4)
    keys_KSD, values_KSD = cache.slots(0)
    for row in rows:
        for tensor in (keys_KSD, values_KSD):
            tensor[:, row_slots(row, 4)[: row.num_cached]] = 1.0
    metadata = step_metadata(rows, block_size=4, padding=padding)
    change(metadata.slot_mapping)
    qkv_THD = torch.ones(sum(row.num_tokens for row in rows), 3, 16)
    out_TND = Attend(backend, cache, metadata)(0, qkv_THD, None)
    return out_TND, keys_KSD, values_KSD


def test_negative_slot_stores_nothing(backend: AttentionBackend) -> None:
    """Tokens with slot -1 leave the whole cache as it was; the others are stored."""

    def drop(slots_T: Tensor) -> None:
        slots_T[1] = slots_T[3] = -1

    rows = [
        Row(blocks=[1], num_cached=0, num_tokens=3),
        Row(blocks=[2], num_cached=1, num_tokens=1),
        Row(blocks=[3], num_cached=0, num_tokens=1),
    ]
    _, keys_KSD, values_KSD = attend_to_ones(backend, rows, change=drop, padding=0)
    for tensor in (keys_KSD, values_KSD):
        assert (~tensor[0, :, 0].isnan()).nonzero().flatten().tolist() == [4, 6, 8, 12]


def test_table_padding_is_never_read(backend: AttentionBackend) -> None:
    """Columns of the block table past a row's blocks may hold anything, even ids out of range."""
    rows = [
        Row(blocks=[1, 2, 3], num_cached=8, num_tokens=1),
        Row(blocks=[4], num_cached=1, num_tokens=1),
        Row(blocks=[5], num_cached=1, num_tokens=2),
    ]
    out, _, _ = attend_to_ones(backend, rows, change=lambda _: None, padding=1 << 30)
    torch.testing.assert_close(out, torch.ones(4, 1, 16))


@pytest.mark.parametrize("isa", [Isa.AVX2, Isa.AVX512_BF16])
def test_company_changes_nothing_in_a_decode_row(isa: Isa) -> None:
    """The native backend decodes a row bit for bit alike alone, in a batch, and beside a prompt."""
    with native_isa(isa, num_threads=2) as kernels:
        sequences = Sequences(CpuBackend(kernels), [300, 40], shape=(4, 2, 32), block_size=16)
        sequences.run([(0, 0, 290), (1, 0, 30)])
        alone = sequences.run([(0, 290, 291)])
        beside_a_decode = sequences.run([(1, 30, 31), (0, 290, 291)])[1:]
        beside_a_prompt = sequences.run([(0, 290, 291), (1, 31, 40)])[:1]
    assert torch.equal(alone, beside_a_decode)
    assert torch.equal(alone, beside_a_prompt)
