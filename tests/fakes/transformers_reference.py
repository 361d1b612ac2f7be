"""The truth: greedy tokens of `transformers` in float32 on the same weights, and how clear each was.

A token may differ from the reference only at a near-tie, where the reference's two best logits are
less than NEAR_TIE apart; what follows such a place is another text and is not compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

NEAR_TIE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceText:
    """Greedy tokens of one prompt and, for each, the reference's gap between its two best logits."""

    token_ids: tuple[int, ...]
    gaps: tuple[float, ...]


class TransformersReference:
    """A model folder read by `transformers` in float32."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._model.generation_config.eos_token_id = None

    def greedy(self, prompt: Sequence[int], num_tokens: int) -> ReferenceText:
        """Continue a prompt by num_tokens tokens, past any end of sequence."""
        with torch.inference_mode():
            generated = self._model.generate(
                torch.tensor([list(prompt)]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=num_tokens,
                do_sample=False,
                pad_token_id=0,
                return_dict_in_generate=True,
                output_logits=True,
            )
        best = [logits[0].topk(2).values for logits in generated.logits]
        return ReferenceText(
            token_ids=tuple(generated.sequences[0, len(prompt) :].tolist()),
            gaps=tuple(float(first - second) for first, second in best),
        )


def near_ties(name: str, tokens: Sequence[int], reference: ReferenceText) -> list[str]:
    """Compare tokens with the reference; the excused difference as a line for the test's output.

    Fails at a difference where the reference was clear, and when the lengths differ.
    """
    assert len(tokens) == len(reference.token_ids), f"{name}: {len(tokens)} tokens"
    for position, (token, truth) in enumerate(zip(tokens, reference.token_ids, strict=True)):
        if token != truth:
            gap = reference.gaps[position]
            assert gap < NEAR_TIE, (
                f"{name}: token {position} is {token}, the reference says {truth} "
                f"with a gap of {gap:.2e}"
            )
            return [f"{name}: near-tie at token {position}, gap {gap:.2e}"]
    return []
