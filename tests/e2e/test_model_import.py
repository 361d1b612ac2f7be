"""The bundled model, as imported, is the one its authors published: it talks, and knows when to end."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from common.model_folder import read_model_folder

pytestmark = pytest.mark.model


def test_small_files_are_complete(smollm2: Path):
    """Sizes, type, end token and chat template are SmolLM2-135M-Instruct's."""
    model = read_model_folder(smollm2)
    assert (model.vocab_size, model.num_layers, model.max_position_embeddings) == (49152, 30, 8192)
    assert model.dtype == "bfloat16"
    assert model.eos_token == "<|im_end|>"
    assert model.chat_template is not None
    assert "<|im_start|>assistant" in model.chat_template
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    assert model.eos_token_ids == {tokenizer.token_to_id("<|im_end|>")}


def test_digits_are_tokens_of_their_own(smollm2: Path):
    """A space before a digit is not part of it, so that numbers read the same everywhere."""
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    assert tokenizer.encode("a  12").tokens == ["a", "ĠĠ", "1", "2"]


def test_weights_are_plain_bfloat16(smollm2: Path):
    """Every tensor is dequantized, and the tied head is stored once."""
    with safe_open(smollm2 / "model.safetensors", framework="pt") as weights:
        names = set(weights.keys())
        types = {weights.get_tensor(name).dtype for name in names}
    assert types == {torch.bfloat16}
    assert len(names) == 2 + 30 * 9
    assert "lm_head.weight" not in names


def test_transformers_answers_from_the_folder(smollm2: Path):
    """Read by transformers, the model names Paris and ends its turn."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**prompt, max_new_tokens=32, do_sample=False)
    answer = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])
    assert "Paris" in answer
    assert answer.endswith("<|im_end|>")
