"""Prune a small GPT-2 under the Hugging Face Trainer, with a checkpoint to resume from."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from flipout.integrations.transformers import Prune

torch.manual_seed(0)
config = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=16, bos_token_id=0, eos_token_id=0)
rows = [torch.arange(16) + first for first in range(48)]  # the text counts: the next token is one more
data = [{"input_ids": row, "labels": row} for row in rows]
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    num_train_epochs=20,
    per_device_train_batch_size=8,
    learning_rate=3e-3,
    save_steps=60,
    report_to="none",
    disable_tqdm=True,
    dataloader_pin_memory=False,
)


def train(resume: bool) -> torch.nn.Module:
    prune = Prune("flipout", sparsity=0.9, summary=resume)
    model: torch.nn.Module = GPT2LMHeadModel(config)
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[prune])
    trainer.train(resume_from_checkpoint=f"{arguments.output_dir}/checkpoint-60" if resume else None)
    return model


whole, resumed = train(resume=False), train(resume=True)
same = all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
print(f"identical to the last bit: {same}")
