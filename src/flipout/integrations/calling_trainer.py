"""The Hugging Face Trainer that calls a callback, and the folder that it resumes from.

The Trainer passes neither of them to its callbacks. Both are needed: reporting callbacks run before those of the user,
so that a number added to the logs would not reach them; and the state of a pruner is in the folder that is resumed.
They are read from the call stack. Where they are not found, callers fall back on what the Trainer does pass.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import Trainer


def calling_trainer() -> tuple[Trainer | None, str | None]:
    """The Trainer whose training loop has called, and its `resume_from_checkpoint`, if there is one."""
    from transformers import Trainer

    frame = inspect.currentframe()
    while frame is not None:
        trainer = frame.f_locals.get("self")
        if isinstance(trainer, Trainer):
            folder = frame.f_locals.get("resume_from_checkpoint")
            return trainer, folder if isinstance(folder, str) else None
        frame = frame.f_back
    return None, None
