"""Facts of reading a GGUF file's header."""

from pathlib import Path

import pytest
from gguf import GGUFWriter

from common.errors import ModelError
from worker_service.model_import.gguf_metadata import read_metadata


def test_a_header_without_a_model_is_refused_before_one_is_made(tmp_path: Path):
    """A file that names a family and holds neither sizes nor tensors is refused, naming what it lacks."""
    file = tmp_path / "part.gguf"
    writer = GGUFWriter(file, "llama")
    writer.add_block_count(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        ModelError, match=r"lacks llama\.embedding_length, tokenizer\.ggml\.tokens, t"
    ):
        read_metadata(file)
