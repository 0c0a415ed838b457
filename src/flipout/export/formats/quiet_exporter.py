"""Run torch's exporters without their messages: what matters is in the error that they raise."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

NOISY_LOGGERS = ("torch.onnx", "torch.fx.experimental.symbolic_shapes", "torch.export")


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Silence warnings about torch's own code, logs of optional packages, and graphs that are printed on an error."""
    loggers = [logging.getLogger(name) for name in NOISY_LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
