"""A GGUF file becomes a folder in the Hugging Face layout, its weights dequantized.

The only place of a worker that imports transformers: importing is done once, off the serving path.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import PreTokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from common.errors import ModelError
from worker_service.model_import.gguf_metadata import read_metadata
from worker_service.model_import.pre_tokenizers import pre_tokenizer_of


def convert_gguf(gguf: Path, folder: Path, *, dtype: torch.dtype) -> None:
    """Write weights, configuration, tokenizer and chat template of the GGUF file into the folder.

    Raises ModelError for a file that cannot be read, or not as its authors meant it.
    """
    pre_tokenizer = pre_tokenizer_of(read_metadata(gguf))
    network = _read_network(gguf)
    _save_weights(network, folder, dtype=dtype)
    _save_config(network, folder, dtype=dtype)
    max_length = network.config.max_position_embeddings
    _save_tokenizer(gguf, folder, pre_tokenizer, max_length=max_length)


def _read_network(gguf: Path) -> PreTrainedModel:
    try:
        return AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
    except (
        Exception
    ) as error:  # transformers raises whatever a malformed file makes it stumble over
        raise ModelError(f"{gguf.name} cannot be converted: {error}") from error


def _save_weights(network: PreTrainedModel, folder: Path, *, dtype: torch.dtype) -> None:
    """Write the parameters; one that two names share, like a tied head, is written once."""
    tensors = {
        name: parameter.detach().to(dtype).contiguous()
        for name, parameter in network.named_parameters()
    }
    file = folder / "model.safetensors"
    save_file(tensors, file, metadata={"format": "pt"})
    # It is written readable by its owner alone, and a worker may run as another user.
    file.chmod(0o644)


def _save_config(network: PreTrainedModel, folder: Path, *, dtype: torch.dtype) -> None:
    # The saved weights are plain: a loader must not look for the GGUF file they came from.
    for of_the_gguf_file in ("quantization_config", "_model_name_or_path"):
        if hasattr(network.config, of_the_gguf_file):
            delattr(network.config, of_the_gguf_file)
    network.config.architectures = [type(network).__name__]
    network.config.dtype = dtype
    network.config.save_pretrained(folder)
    assert network.generation_config is not None
    network.generation_config.save_pretrained(folder)


def _save_tokenizer(
    gguf: Path, folder: Path, pre_tokenizer: PreTokenizer | None, *, max_length: int
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.model_max_length = max_length
    if pre_tokenizer is not None:
        # transformers takes that of GPT-2 where it does not know the name in the file.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.save_pretrained(folder)
