"""TRL's trainer, with logits only where there are labels on every device."""

from __future__ import annotations

from typing import Any

import torch

from ryarn.faults import GuardedTrainer


class LabelledLogitsTrainer(GuardedTrainer):
    """`SFTTrainer` that scores labelled tokens alone where TRL scores them all.

    With Triton, TRL's fused head computes logits for labelled tokens alone. Without it (on a CPU)
    it goes through every token of the batch (`trl.trainer.utils.add_fused_lm_head`), which for
    answers of a dozen tokens is a third of the training step. There the loss is taken from the
    model's own `logits_to_keep`; the value is the same.
    """

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Mean cross-entropy over the labelled tokens of the step; see `SFTTrainer`."""
        if self.args.device.type != "cpu" or return_outputs:
            given: Any = (model, inputs, return_outputs, num_items_in_batch)
            return super().compute_loss(*given)  # type: ignore[no-untyped-call]
        labels = inputs["labels"]
        # One index list for all rows is what `logits_to_keep` takes: a token is kept if any row
        # has a label after it.
        kept = (labels[:, 1:] != -100).any(0).nonzero().squeeze(1)
        rest = {key: value for key, value in inputs.items() if key != "labels"}
        logits = model(**rest, use_cache=False, logits_to_keep=kept).logits.float()
        following = labels[:, kept + 1]
        scored = following != -100
        right = (logits.argmax(-1) == following)[scored].float().mean().item()
        self._metrics["train" if model.training else "eval"]["mean_token_accuracy"].append(right)
        total = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), following.flatten(), ignore_index=-100, reduction="sum"
        )
        if num_items_in_batch is None:
            return total / scored.sum().clamp(min=1)
        # The count is of all ranks, and DDP averages their gradients.
        ranks = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
        return total * ranks / num_items_in_batch
