"""Which graph a step is given: facts of the dispatcher."""

import pytest

from worker_service.batch.shapes import (
    BatchDescriptor,
    GraphDispatcher,
    GraphMode,
    default_capture_sizes,
)

SIZES = (4, 1, 16, 8, 2)


def decode(rows: int, *, length: int = 1) -> BatchDescriptor:
    """A step whose rows all decode `length` tokens."""
    return BatchDescriptor(
        num_tokens=rows * length, num_rows=rows, max_query_len=length, is_uniform_decode=True
    )


def mixed(num_tokens: int) -> BatchDescriptor:
    """A step with a chunk of a prompt in it."""
    return BatchDescriptor(num_tokens=num_tokens, num_rows=2, max_query_len=num_tokens - 1)


@pytest.fixture
def full() -> GraphDispatcher:
    """Everything that can be is in one graph; at most 8 rows."""
    return GraphDispatcher(GraphMode.FULL, SIZES, most_rows=8)


def test_keys_come_largest_first(full: GraphDispatcher):
    """Whatever the order they were given in, and no more rows than a step has."""
    assert [key.num_tokens for key in full.keys(GraphMode.PIECEWISE)] == [16, 8, 4, 2, 1]
    assert [key.num_rows for key in full.keys(GraphMode.FULL)] == [8, 4, 2, 1]


@pytest.mark.parametrize(("rows", "padded"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8)])
def test_uniform_decodes_have_a_full_graph(full: GraphDispatcher, rows: int, padded: int):
    """The smallest with as many rows."""
    found = full.dispatch(decode(rows))
    assert (found.mode, found.key) == (GraphMode.FULL, decode(padded))


def test_full_is_for_uniform_decodes_alone(full: GraphDispatcher):
    """Other steps of as many tokens run in pieces."""
    found = full.dispatch(mixed(5))
    assert found.mode is GraphMode.PIECEWISE
    assert found.key.num_tokens == 8


def test_pieces_do_not_ask_for_rows(full: GraphDispatcher):
    """The key is relaxed: any rows of up to as many tokens are the same to them."""
    few = full.dispatch(BatchDescriptor(num_tokens=7, num_rows=1, max_query_len=7))
    many = full.dispatch(BatchDescriptor(num_tokens=7, num_rows=6, max_query_len=2))
    assert few.key == many.key
    assert (few.key.num_rows, few.key.max_query_len) == (None, None)
    assert few.key in full.keys(GraphMode.PIECEWISE)


def test_more_rows_than_any_full_graph_run_in_pieces(full: GraphDispatcher):
    """Nine decodes: there is a graph of 16 tokens, and none of so many rows."""
    assert full.dispatch(decode(9)).mode is GraphMode.PIECEWISE


def test_larger_than_all_graphs_runs_eagerly_and_unpadded(full: GraphDispatcher):
    """Nothing is padded for nothing."""
    found = full.dispatch(mixed(17))
    assert (found.mode, found.key) == (GraphMode.NONE, mixed(17))


@pytest.mark.parametrize("field", [{"has_encoder_inputs": True}, {"num_adapters": 1}])
def test_what_graphs_do_not_hold_runs_eagerly(full: GraphDispatcher, field: dict[str, int]):
    """Encoder inputs and adapters have no place in a captured forward pass."""
    asked = BatchDescriptor(
        num_tokens=1, num_rows=1, max_query_len=1, is_uniform_decode=True, **field
    )
    assert full.dispatch(asked).mode is GraphMode.NONE


def test_piecewise_has_no_full_graph():
    """Decodes run in pieces too."""
    dispatcher = GraphDispatcher(GraphMode.PIECEWISE, SIZES, most_rows=8)
    assert dispatcher.keys(GraphMode.FULL) == []
    assert dispatcher.dispatch(decode(3)).mode is GraphMode.PIECEWISE


def test_without_graphs_everything_runs_eagerly():
    """There are no keys to capture."""
    dispatcher = GraphDispatcher(GraphMode.NONE, SIZES, most_rows=8)
    assert dispatcher.keys(GraphMode.PIECEWISE) == dispatcher.keys(GraphMode.FULL) == []
    assert dispatcher.dispatch(decode(1)).mode is GraphMode.NONE


def test_rows_with_drafts_are_uniform_when_all_have_as_many():
    """Three tokens a row: shapes are whole rows, and one without its drafts is none."""
    dispatcher = GraphDispatcher(GraphMode.FULL, (3, 6, 16), most_rows=8, decode_len=3)
    assert [key.num_tokens for key in dispatcher.keys(GraphMode.FULL)] == [15, 6, 3]
    found = dispatcher.dispatch(decode(3, length=3))
    assert (found.mode, found.key.num_rows, found.key.num_tokens) == (GraphMode.FULL, 5, 15)
    assert dispatcher.dispatch(mixed(9)).mode is GraphMode.PIECEWISE


def test_usual_sizes_are_dense_where_steps_are_small():
    """And none is larger than a step may be."""
    assert default_capture_sizes(20) == (1, 2, 4, 8, 16)
    assert default_capture_sizes(8192)[-1] == 512
