"""The trainer callback: self-test first, then progress to the curriculum, statistics to the log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ryarn.contract import Contract, make_contract
from ryarn.errors import UserError
from ryarn.processes import check_running

if TYPE_CHECKING:
    from ryarn.rope import Extension

_ENOUGH = 32
"""Documents to have seen at a span before their share that does not fit it means something."""


class ExtensionCallback(TrainerCallback):
    """Carries an extension through a `transformers.Trainer` or any trainer built on it.

    The step comes from the trainer's own state, so a resumed run draws what the uninterrupted one
    would have drawn. Every checkpoint, and the output folder at the end, gets the RoPE contract.

    Under TRL's `DPOTrainer` the answers to one prompt share their positions, and the reference pass
    (the same model without its adapter) meets the positions of the pass before it.

    Raises:
        SelfTestError: At the start, if the model does not do what the method needs.
        UserError: At the start, if the trainer has another model; while training, when nothing was
            drawn, or most documents are longer than the span and so keep contiguous positions: the
            method would silently be another one.
    """

    def __init__(self, extension: Extension) -> None:
        self.extension = extension
        self._seen: dict[int, tuple[int, int]] = {}
        self._drawn = self._unbroken = 0
        self._reference = False
        self._contract: Contract | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """See that this is the extended model, and run the self-test on it as it is now."""
        model = kwargs.get("model")
        if model is not None and self.extension.rope_map.decoder not in set(model.modules()):
            raise UserError(
                "ExtensionCallback: the trainer's model is not the one given to extend(), so no "
                "position would be drawn; give extend() and the trainer the same model"
            )
        if _is_preference(args):
            self.pair_rows(model)
        if (tokenizer := kwargs.get("processing_class")) is not None:
            # A multimodal model's processor has one inside.
            self.extension.read_sentences(getattr(tokenizer, "tokenizer", tokenizer))
        check_running()
        self.extension.verify(model)
        # Here, where all processes are: of sharded weights, one alone can't take a fingerprint.
        rope_map = self.extension.rope_map
        of = rope_map.decoder if model is None else model
        self._contract = make_contract(of, rope_map, self.extension.method)

    def pair_rows(self, model: Any, *, reference: bool = True) -> None:
        """Draw for pairs; under TRL's `DPOTrainer` it happens by itself.

        Args:
            model: The trainer's model.
            reference: Whether each batch is also read by a reference model.

        Raises:
            UserError: The reference would be another model than the extended one.
        """
        if reference:
            self._check_reference(model)
        self.extension.pair_rows()
        self._reference = reference

    def _check_reference(self, model: Any) -> None:
        """Refuse a reference that would be taken at other positions, or under other scaling."""
        method = self.extension.method
        if not method.randomizes and method.train_factor is None:
            return
        if model is not None and not hasattr(model, "peft_config"):
            raise UserError(
                "preference training without an adapter has a reference model of its own, which "
                "extend() did not see: train an adapter (peft_config) and give no ref_model, so "
                "that the extended model itself, adapter off, is the reference"
            )

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Tell the curriculum which optimizer step comes next."""
        self.extension.set_progress(state.global_step, state.max_steps)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop when nothing was drawn, or when most documents don't fit the span."""
        stats = self.extension.stats
        if not self.extension.method.randomizes:
            return
        if not stats.documents:
            raise UserError(
                "no positions were drawn in this step, so it trained on contiguous ones: the model "
                "ran with a cache (prefix tuning?) or not in training mode"
            )
        if self._reference and 2 * stats.without_gradients != stats.documents:
            raise UserError(
                f"preference training: {stats.documents - stats.without_gradients} answers were "
                f"read by the policy and {stats.without_gradients} by the reference at drawn "
                "positions, so the two don't compare: give the trainer no ref_model"
            )
        self._check_sentences()
        documents, contiguous = self._seen.get(stats.span, (0, 0))
        documents, contiguous = documents + stats.documents, contiguous + stats.contiguous
        self._seen[stats.span] = documents, contiguous
        if documents >= _ENOUGH and 2 * contiguous > documents:
            raise UserError(
                f"{contiguous} of {documents} documents are longer than the span {stats.span} and "
                "keep contiguous positions: raise method.spans or shorten the rows"
            )

    def _check_sentences(self) -> None:
        """Refuse text without sentences: it would only be moved, never stretched."""
        stats = self.extension.stats
        self._drawn += stats.documents
        self._unbroken += stats.unbroken
        if self._drawn >= _ENOUGH and 2 * self._unbroken > self._drawn:
            raise UserError(
                f"{self._unbroken} of {self._drawn} documents have no border between sentences "
                "(code? tables?), so their positions stay contiguous: use method chunked-yarn, "
                "which cuts anywhere"
            )

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Put the last step's draws beside its loss, for every logger that comes after."""
        stats = self.extension.stats
        if logs is None or "loss" not in logs or not stats.documents:
            return
        drawn = {
            "positions/span": stats.span,
            "positions/max": stats.max_position,
            "positions/mean_stretch": round(stats.mean_stretch, 3),
            "positions/documents": stats.documents,
            "positions/contiguous_documents": stats.contiguous,
        }
        logs.update(drawn)
        state.log_history[-1].update(drawn)

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Lay the RoPE contract into the checkpoint."""
        self._write(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}", state)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Lay the RoPE contract where the trainer saves the final adapter by default."""
        self._write(Path(str(args.output_dir)), state)

    def _write(self, folder: Path, state: TrainerState) -> None:
        if self._contract is not None and state.is_world_process_zero and folder.is_dir():
            self._contract.save(folder)


def _is_preference(args: TrainingArguments) -> bool:
    """Whether these are the arguments of TRL's `DPOTrainer`."""
    return any(kind.__name__ == "DPOConfig" for kind in type(args).__mro__)
