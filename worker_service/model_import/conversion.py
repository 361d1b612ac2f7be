"""A GGUF file becomes a folder in the Hugging Face layout, its weights dequantized.

The only place of a worker that imports transformers: importing is done once, off the serving path.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from worker_service.model_import.bundled import BundledModel


def convert_gguf(model: BundledModel, gguf: Path, folder: Path, *, dtype: torch.dtype) -> None:
    """Write weights, configuration, tokenizer and chat template of the GGUF file into the folder."""
    network = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    _save_weights(network, folder, dtype=dtype)
    _save_config(network, folder, dtype=dtype)
    _save_tokenizer(model, gguf, folder, max_length=network.config.max_position_embeddings)


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
        delattr(network.config, of_the_gguf_file)
    network.config.architectures = [type(network).__name__]
    network.config.dtype = dtype
    network.config.save_pretrained(folder)
    assert network.generation_config is not None
    network.generation_config.save_pretrained(folder)


def _save_tokenizer(model: BundledModel, gguf: Path, folder: Path, *, max_length: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.model_max_length = max_length
    if model.splits_digits:
        # The GGUF file only names its pre-tokenizer, and transformers takes the GPT-2 one for all.
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
            [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
        )
    tokenizer.save_pretrained(folder)
