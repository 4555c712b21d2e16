"""Check finished texts against the target model's greedy choices, position by position (teacher forcing).

The model reads the texts once. In float32 a decode under exact acceptance has no divergence. In half precision it may:
passes of different lengths round differently, and either of two nearly tied tokens may win, as in any speculative
decoder and in ``generate()`` itself; the margin distinguishes such ties from mistakes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from latticebpd.decoding.decode_rows import until_end
from latticebpd.decoding.session import Session
from latticebpd.models.transformers.transformers_model import Model, TransformersModel
from latticebpd.verification.forward import Forward


@dataclass(frozen=True)
class Divergence:
    """The first position where a row's text differs from the target model's choice.

    row: index of the row; column: index in ``sequences[row]``.
    token: the text's; expected: the model's.
    margin: logit of ``expected`` minus that of ``token``, >= 0.
    """

    row: int
    column: int
    token: int
    expected: int
    margin: float


@dataclass(frozen=True)
class Losslessness:
    """The result of a check.

    divergences: the first of each row that has one.
    rows: number of texts; tokens: compared new tokens, up to each row's first divergence.
    """

    divergences: list[Divergence]
    rows: int
    tokens: int

    @property
    def lossless(self) -> bool:
        """Whether every row is the target model's own text."""
        return not self.divergences

    def __str__(self) -> str:
        if self.lossless:
            return f"{self.tokens} tokens of {self.rows} rows, all the base model's own"
        first = self.divergences[0]
        at = f"row {first.row}, column {first.column}: token {first.token}"
        expected = f"where the base model writes {first.expected} (logit margin {first.margin:.2e})"
        return f"{len(self.divergences)} of {self.rows} rows diverge; {at}, {expected}"


@torch.inference_mode()
def check_lossless(
    model: Model,
    sequences: Tensor | Sequence[Sequence[int]],
    prompt_length: int = 1,
    *,
    attention_mask: Tensor | Sequence[Sequence[int]] | None = None,
    input_ids: Tensor | Sequence[Sequence[int]] | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    batch_size: int = 8,
) -> Losslessness:
    """Compare texts with the target model's greedy decoding, token by token.

    sequences: ``[rows, length]``, as ``generate`` returns them: padded prompts, new tokens, padding.
    prompt_length: columns of the prompts, padding included; 1 for an encoder–decoder's start token.
    attention_mask: ``[rows, prompt_length]``, 0 where a prompt is padding; for an encoder–decoder, of the sources.
    input_ids: an encoder–decoder's sources, ``[rows, n]``.
    eos_token_id: token or tokens that end a text; by default the model's own.
    pad_token_id: fills rows that end early, by default the model's own; at a row's end it is not compared.
    Raises ValueError: shapes that do not fit, no sources for an encoder–decoder, texts across LongRoPE's boundary.
    """
    base = TransformersModel.of(model)
    ids = torch.as_tensor(sequences).cpu()
    if ids.ndim != 2 or not 1 <= prompt_length <= ids.shape[1]:
        got = f"{tuple(ids.shape)} and {prompt_length}"
        raise ValueError(f"expected sequences [rows, length] with 1 <= prompt_length <= length, got {got}")
    if base.is_encoder_decoder != (input_ids is not None):
        raise ValueError("expected input_ids, the sources, for an encoder–decoder and for no other model")
    sources = None if input_ids is None else torch.as_tensor(input_ids).to(base.device)
    # The mask is that of the prompts or, for an encoder–decoder, of the sources.
    masked = (len(ids), prompt_length) if sources is None else (len(ids), sources.shape[-1])
    mask = torch.ones(masked, dtype=torch.long) if attention_mask is None else torch.as_tensor(attention_mask)
    for name, tensor in (("attention_mask", mask), ("input_ids", sources)):
        if tensor is not None and tuple(tensor.shape) != masked:
            raise ValueError(f"expected {name} of shape {masked}, got {tuple(tensor.shape)}")
    session = Session.begin(
        base, ids[:, :prompt_length] if sources is None else sources, attention_mask=mask, eos_token_id=eos_token_id,
        pad_token_id=pad_token_id, stop_strings=[], max_new_tokens=max(1, ids.shape[1] - prompt_length),
    )  # fmt: skip
    ends, pad = frozenset(session.settings.eos_ids), session.settings.pad_id
    prompts, texts = session.prompts.tokens, [until_end(row[prompt_length:].tolist(), ends) for row in ids]
    for text in texts if pad not in ends else ():
        while text and text[-1] == pad:
            text.pop()

    divergences: list[Divergence] = []
    compared = 0
    for start in range(0, len(ids), batch_size):
        rows = range(start, min(start + batch_size, len(ids)))
        read = [prompts[row] + texts[row] for row in rows]
        encoded = session.prompts.encoded
        source = None if encoded is None else encoded.select(torch.tensor(rows, device=base.device))
        verified = Forward(base, source).nodes({**base.padded_text(read), "use_cache": False})
        for i, row in enumerate(rows):
            first, text, rules = len(prompts[row]) - 1, texts[row], session.texts[row]
            logits = verified.logits_of([i] * len(text), range(first, first + len(text))).float()
            if rules.processors and text:
                logits = torch.stack([rules.processed(text[:at], line) for at, line in enumerate(logits)])
            expected = logits.argmax(dim=-1).tolist()
            at = next((at for at, token in enumerate(text) if token != expected[at]), None)
            compared += len(text) if at is None else at + 1
            if at is not None:
                margin = float(logits[at, expected[at]] - logits[at, text[at]])
                divergences.append(Divergence(row, prompt_length + at, text[at], expected[at], margin))
    return Losslessness(divergences, len(ids), compared)
