"""The report that `treetrain train` leaves in its folder, however the run ends."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from treetrain.errors import UnsupportedModelError
from treetrain.models.shape import measure_shape
from treetrain.report.inspection import DEFAULT_SHAPE
from treetrain.report.run_folder import write_report
from treetrain.training.observers import RunOutline, Watch
from treetrain.training.trainer import StepMetrics
from treetrain.tree.metrics import ModelShape


def watch_for_report(model: Any, tokenizer: Any, say: Callable[[str], None]) -> Watch:
    """Make what writes the report of a run.

    Args:
        model: the model, whose sizes the FLOP bound is for.
        tokenizer: turns ids of the trees into text.
        say: prints a line for a person.

    Returns:
        A watch for `run_training`.
    """
    try:
        shape = measure_shape(model)
    except UnsupportedModelError as error:
        shape = DEFAULT_SHAPE
        say(f"note: the FLOP bound of the report is that of another model: {error}")
    return lambda outline: _Reporter(outline, shape, tokenizer.decode, say)


class _Reporter:
    """Writes the report when the run is left."""

    def __init__(
        self,
        outline: RunOutline,
        shape: ModelShape,
        decode: Callable[[Any], str],
        say: Callable[[str], None],
    ) -> None:
        self._outline = outline
        self._shape = shape
        self._decode = decode
        self._say = say

    def __enter__(self) -> Self:
        return self

    def tell(self, metrics: StepMetrics) -> None:
        """Nothing is shown of a step before the end: its line is in the folder."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        samples = [sample for batch in self._outline.batches for sample in batch.samples]
        try:
            written = write_report(
                self._outline.folder, samples, shape=self._shape, decode=self._decode
            )
        # A report that fails must hide neither a trained model nor why the run ended.
        except (OSError, ValueError) as fault:
            self._say(f"note: report.html was not written: {fault}")
            return
        for note in written.notes:
            self._say(f"note: {note}")
        self._say(f"report: {written.page}")
