"""A .gguf file becomes a folder that holds the same model: weights, configuration, tokenizer, template."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from common.model_folder import read_model_folder, resolve_model
from tests.fakes.byte_tokenizer import BOS_ID, CHAT_TEMPLATE, EOS_ID, TURN_START_ID
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.tiny_gguf import VOCAB_SIZE, write_tiny_gguf
from worker_service.model_import.command import main

HE, TWELVE = VOCAB_SIZE - 2, VOCAB_SIZE - 1
TEXT = "<|turn|>hehe 1212 is he's"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """The model the files are made of."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return write_tiny_llama(folder, num_layers=2, vocab=VOCAB_SIZE)


def imported(file: Path, capsys, *options: str) -> tuple[int, str, str]:
    """Exit code, standard output and the errors of an import into a cache beside the file."""
    cache = str(file.parent / "cache")
    code = main(["import", str(file), "--cache", cache, "--dtype", "float32", *options])
    captured = capsys.readouterr()
    errors = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    return code, captured.out, "\n".join(errors)


def test_the_folder_holds_the_model_of_the_file(tmp_path: Path, checkpoint: Path, capsys):
    """Weights bit for bit, sizes, end token and chat template; found again by its name."""
    file = write_tiny_gguf(tmp_path / "tiny.Q4.gguf", checkpoint, num_layers=2)
    code, output, errors = imported(file, capsys)
    assert (code, errors) == (0, "")
    folder = Path(output.strip())
    assert folder == resolve_model("tiny.Q4-float32", cache=tmp_path / "cache")
    weights, original = (load_file(path / "model.safetensors") for path in (folder, checkpoint))
    assert weights.keys() == original.keys()
    assert all(np.array_equal(weights[name], original[name]) for name in original)
    model = read_model_folder(folder)
    assert (model.vocab_size, model.num_layers, model.dtype) == (VOCAB_SIZE, 2, "float32")
    assert (model.max_position_embeddings, model.eos_token_ids) == (2048, {EOS_ID})
    assert model.chat_template == CHAT_TEMPLATE


@pytest.mark.parametrize(
    ("pre_tokenizer", "begin", "number"),
    [
        ("gpt-2", [], [TWELVE, TWELVE]),
        ("smollm", [], [*b"1212"]),
        ("llama-bpe", [BOS_ID], [TWELVE, *b"12"]),
    ],
)
def test_text_is_read_as_the_file_says(
    tmp_path: Path,
    checkpoint: Path,
    capsys,
    *,
    pre_tokenizer: str,
    begin: list[int],
    number: list[int],
):
    """Digits are split as the method says, special tokens are whole, and a beginning is marked if asked for."""
    file = write_tiny_gguf(
        tmp_path / "tiny.gguf",
        checkpoint,
        num_layers=2,
        pre_tokenizer=pre_tokenizer,
        adds_bos=bool(begin),
    )
    _, output, _ = imported(file, capsys)
    tokenizer = Tokenizer.from_file(f"{output.strip()}/tokenizer.json")
    words = [TURN_START_ID, HE, HE, *b" ", *number, *b" is ", HE, *b"'s"]
    assert tokenizer.encode(TEXT).ids == [*begin, *words]


def test_a_method_that_is_not_known_is_refused(tmp_path: Path, checkpoint: Path, capsys):
    """Guessing it would give answers that are worse for no visible reason."""
    file = write_tiny_gguf(
        tmp_path / "tiny.gguf", checkpoint, num_layers=2, pre_tokenizer="secret-bpe"
    )
    code, output, errors = imported(file, capsys)
    assert (code, output) == (1, "")
    assert "'secret-bpe'" in errors
    assert not (tmp_path / "cache" / "models" / "tiny-float32").exists()


def test_a_family_that_is_not_served_is_refused(tmp_path: Path, checkpoint: Path, capsys):
    """The error names it, and what is served."""
    file = write_tiny_gguf(tmp_path / "tiny.gguf", checkpoint, num_layers=2, architecture="mamba")
    _, _, errors = imported(file, capsys)
    assert "'mamba'; served are: llama, gemma3" in errors


def test_another_file_of_the_same_name_is_told_apart(tmp_path: Path, checkpoint: Path, capsys):
    """The folder of the first is never taken for the second, which may have a name of its own."""
    file = write_tiny_gguf(tmp_path / "tiny.gguf", checkpoint, num_layers=2)
    _, first, _ = imported(file, capsys)
    assert imported(file, capsys) == (0, first, "")
    write_tiny_gguf(file, checkpoint, num_layers=2, adds_bos=True)
    code, _, errors = imported(file, capsys)
    assert (code, "--name" in errors) == (1, True)
    _, other, _ = imported(file, capsys, "--name", "other")
    assert Path(other.strip()).name == "other-float32"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("missing.gguf", (), "there is no file"),
        ("junk.gguf", (), "no GGUF file"),
        ("junk.gguf", ("--name", "smollm2-135m"), "another --name"),
        ("junk.gguf", ("--name", "../escape"), "another --name"),
    ],
)
def test_what_cannot_be_imported_is_one_line(tmp_path: Path, capsys, name, options, words):
    """Missing files, other files, and names that stand for something else."""
    (tmp_path / "junk.gguf").write_bytes(b"no model" * 100)
    code, output, errors = imported(tmp_path / name, capsys, *options)
    assert (code, output) == (1, "")
    assert words in errors
    assert errors.count("\n") == 0
