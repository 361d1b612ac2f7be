"""Captured forward passes of one stage: made after the warm-up, replayed by steps that fit.

Legend: T tokens, N query heads of this rank, H those of queries, keys and values, D model or head size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from worker_service.attention.backend import Attend
from worker_service.attention.form import PLAIN, AttentionForm
from worker_service.attention.metadata import AttentionMetadata
from worker_service.batch.input_batch import InputBatch
from worker_service.batch.shapes import (
    BatchDescriptor,
    Dispatch,
    GraphDispatcher,
    GraphMode,
    describe,
)
from worker_service.kernels.rotary import Rotation
from worker_service.models.decoder import DecoderModel
from worker_service.runner.graph_recorder import GraphRecorder, RecordedGraph
from worker_service.runner.step_buffers import StepBuffers
from worker_service.runner.workspace import Workspace

MakeAttend = Callable[[tuple[AttentionMetadata, ...]], Attend]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _AttentionCall:
    """What a layer hands its attention within a capture, and where the next piece reads the result."""

    layer: int
    qkv_THD: Tensor
    rotation: Rotation | None
    form: AttentionForm
    out_TND: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Captured:
    """Pieces of a forward pass with attention between them; FULL has one piece and no call."""

    pieces: tuple[RecordedGraph, ...]
    calls: tuple[_AttentionCall, ...]
    out_TD: Tensor


class _Attending(Attend):
    """Stands in for attention while pieces are recorded: hands every layer's call on."""

    def __init__(
        self, call: Callable[[int, Tensor, Rotation | None, AttentionForm], Tensor]
    ) -> None:
        self._call = call

    def __call__(
        self,
        layer: int,
        qkv_THD: Tensor,
        rotation: Rotation | None,
        form: AttentionForm = PLAIN,
    ) -> Tensor:
        """Hand the call on."""
        return self._call(layer, qkv_THD, rotation, form)


class StepGraphs:
    """Captures shape after shape, and runs a step by the graph that fits it.

    Without a recorder every step runs eagerly.
    """

    def __init__(
        self,
        model: DecoderModel,
        *,
        dispatcher: GraphDispatcher,
        recorder: GraphRecorder | None,
        workspace: Workspace,
        buffers: StepBuffers,
        make_attend: MakeAttend,
        num_heads: int,
    ) -> None:
        """num_heads: query heads of this rank."""
        self._model = model
        self._dispatcher = dispatcher
        self._recorder = recorder
        self._workspace = workspace
        self.buffers = buffers
        """The inputs of all graphs."""
        self._make_attend = make_attend
        self._num_heads = num_heads
        self._captured: dict[tuple[GraphMode, BatchDescriptor], _Captured] = {}

    @property
    def num_captured(self) -> int:
        """Graphs there are, those of a forward pass in pieces counted as one."""
        return len(self._captured)

    def dispatch(self, batch: InputBatch) -> Dispatch:
        """How this step runs."""
        descriptor = describe(batch, decode_len=self._dispatcher.decode_len)
        found = self._dispatcher.dispatch(descriptor)
        if (found.mode, found.key) in self._captured:
            return found
        return Dispatch(mode=GraphMode.NONE, key=descriptor)

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture every shape, in pieces first, the largest first; memory is locked afterwards."""
        if self._recorder is None:
            return
        with self._recorder.session():
            for key in self._dispatcher.keys(GraphMode.PIECEWISE):
                self._captured[GraphMode.PIECEWISE, key] = self._capture_pieces(self._recorder, key)
            for key in self._dispatcher.keys(GraphMode.FULL):
                self._captured[GraphMode.FULL, key] = self._capture_full(self._recorder, key)
        self._workspace.lock()

    def clear(self) -> None:
        """Forget all graphs and give their memory back: what they read is about to move."""
        self._captured.clear()
        self._workspace.clear()

    def run(
        self, dispatch: Dispatch, batch: InputBatch, hidden_TD: Tensor, attend: Callable[[], Attend]
    ) -> Tensor:
        """The layers' output [T, D] of a step that `dispatch` found a graph for.

        attend: the step's own attention, for graphs that have none in them.
        """
        captured = self._captured[dispatch.mode, dispatch.key]
        self.buffers.fill_tokens(dispatch.key, batch, hidden_TD)
        if dispatch.mode is GraphMode.FULL:
            self.buffers.fill_rows(dispatch.key, batch)
            captured.pieces[0].replay()
        else:
            self._run_pieces(captured, attend(), batch.num_tokens)
        # The next replay writes there, and what leaves this stage is never written again.
        return captured.out_TD[: batch.num_tokens].clone()

    def _run_pieces(self, captured: _Captured, attend: Attend, count: int) -> None:
        cut: dict[int, Rotation] = {}
        for piece, call in zip(captured.pieces, captured.calls, strict=False):
            piece.replay()
            rotation = call.rotation
            if rotation is not None:
                # Layers that turn alike hand the same object on, by which backends know it.
                rotation = cut.setdefault(
                    id(rotation), Rotation(rotation.cos_T1D[:count], rotation.sin_T1D[:count])
                )
            call.out_TND[:count] = attend(call.layer, call.qkv_THD[:count], rotation, call.form)
        captured.pieces[-1].replay()

    def _capture_pieces(self, recorder: GraphRecorder, key: BatchDescriptor) -> _Captured:
        hidden_TD = self.buffers.hidden(key.num_tokens)
        positions_T = self.buffers.positions(key.num_tokens).zero_()
        pieces: list[RecordedGraph] = []
        calls: list[_AttentionCall] = []

        def attended(qkv_THD: Tensor) -> Tensor:
            # All layers share it: each is read before the next is written.
            shape = (key.num_tokens, self._num_heads, qkv_THD.shape[-1])
            return self._workspace.get("attended", shape, qkv_THD.dtype)

        def cut(
            layer: int, qkv_THD: Tensor, rotation: Rotation | None, form: AttentionForm
        ) -> Tensor:
            pieces.append(recorder.end())
            out_TND = attended(qkv_THD)
            calls.append(
                _AttentionCall(
                    layer=layer, qkv_THD=qkv_THD, rotation=rotation, form=form, out_TND=out_TND
                )
            )
            recorder.begin()
            return out_TND

        # Kernels are compiled, and buffers made, before anything is recorded.
        skip = _Attending(lambda layer, qkv_THD, rotation, form: attended(qkv_THD))
        self._model(hidden_TD, positions_T, skip)
        recorder.begin()
        out_TD = self._model(hidden_TD, positions_T, _Attending(cut))
        pieces.append(recorder.end())
        return _Captured(pieces=tuple(pieces), calls=tuple(calls), out_TD=out_TD)

    def _capture_full(self, recorder: GraphRecorder, key: BatchDescriptor) -> _Captured:
        hidden_TD = self.buffers.hidden(key.num_tokens)
        positions_T = self.buffers.positions(key.num_tokens).zero_()
        self.buffers.clear_rows(key)
        attend = self._make_attend(self.buffers.metadata(key))
        self._model(hidden_TD, positions_T, attend)
        recorder.begin()
        out_TD = self._model(hidden_TD, positions_T, attend)
        return _Captured(pieces=(recorder.end(),), calls=(), out_TD=out_TD)
