"""The model that reads: a GGUF file in torch, by `transformers`.

Sequences are padded on the right, so that causal attention alone keeps the padding out, and no mask is built.
The scores of all words are computed at the positions of the reply only, in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from benchmarks.kept.run_files import Ids, Scored

_FURTHEST = 255
"""Ranks are kept in a byte."""


def load(path: Path, device: str, dtype: str) -> TorchModel:
    """The weights, dequantised to a type of torch."""
    found = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=getattr(torch, dtype), local_files_only=True
    )
    return TorchModel(found, device)


def tiny(words: int, device: str = "cpu", seed: int = 0) -> TorchModel:
    """Random weights, to try the path from contexts to a table without a GPU."""
    torch.manual_seed(seed)
    shape = Qwen2Config(
        vocab_size=words,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return TorchModel(Qwen2ForCausalLM(shape), device)


class TorchModel:
    def __init__(self, model: PreTrainedModel, device: str) -> None:
        self._model = model.to(device).eval()
        self._device = device
        self._head = model.get_output_embeddings().weight.detach().float()

    @property
    def about(self) -> str:
        device = torch.cuda.get_device_name() if self._device.startswith("cuda") else self._device
        return f"{device}, torch {torch.__version__}, {self._model.dtype}"

    @torch.inference_mode()
    def score(self, sequences: Sequence[tuple[Ids, Ids]]) -> list[Scored]:
        """Log-probability and rank of every token of a reply; sequences are pairs of a context and a reply."""
        lengths = [len(context) + len(reply) - 1 for context, reply in sequences]
        read = torch.zeros(len(sequences), max(lengths), dtype=torch.int64)
        for row, (context, reply) in enumerate(sequences):
            ids = np.concatenate([context, reply[:-1]]).astype(np.int64)
            read[row, : lengths[row]] = torch.from_numpy(ids)
        with self._kernels():
            hidden = self._model.get_decoder()(
                input_ids=read.to(self._device), use_cache=False
            ).last_hidden_state
        return [
            self._scored(hidden[row, len(context) - 1 : lengths[row]], reply)
            for row, (context, reply) in enumerate(sequences)
        ]

    def _scored(self, hidden: torch.Tensor, reply: Ids) -> Scored:
        right = torch.from_numpy(np.asarray(reply, np.int64)).to(self._device)[:, None]
        words = hidden.float() @ self._head.T
        found = words.gather(1, right)
        lp = (found - words.logsumexp(-1, keepdim=True))[:, 0]
        rank = (words > found).sum(-1).clamp(max=_FURTHEST)
        return Scored(lp.cpu().numpy().astype(np.float32), rank.cpu().numpy().astype(np.uint8))

    def _kernels(self) -> AbstractContextManager[object]:
        """On a GPU never the plain kernel, whose matrix for 30,000 tokens would not fit."""
        if not self._device.startswith("cuda"):
            return nullcontext()
        return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION])
