"""TRL's SFTTrainer on given tokens: full fine-tuning in FP32 on this machine's CPU. Prints one JSON object.

Usage: python trl_sft.py MODEL ROWS.json OUT BATCH RATE    (rows: [{"input_ids", "labels"}, ...], in the order of training)
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import SFTConfig, SFTTrainer


class Trainer(SFTTrainer):
    def _get_train_sampler(self, *_):
        return SequentialSampler(self.train_dataset)


class Clock(TrainerCallback):
    def __init__(self):
        self.seconds, self.losses = [], []

    def on_step_begin(self, *_, **__):
        self.begun = time.perf_counter()

    def on_step_end(self, *_, **__):
        self.seconds.append(time.perf_counter() - self.begun)

    def on_log(self, _, __, ___, logs=None, **____):
        if "loss" in logs:
            self.losses.append(logs["loss"])


def main():
    model, rows, out, batch, rate = sys.argv[1:]
    told = json.loads(Path(rows).read_text())
    config = SFTConfig(
        output_dir=out,
        per_device_train_batch_size=int(batch),
        max_steps=len(told) // int(batch),
        max_length=max(len(row["input_ids"]) for row in told),
        learning_rate=float(rate),
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
        logging_steps=1,
        logging_first_step=True,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    clock = Clock()
    trainer = Trainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype="float32"),
        args=config,
        train_dataset=Dataset.from_list(told),
        processing_class=AutoTokenizer.from_pretrained(model),
        callbacks=[clock],
    )
    trainer.train()
    print(json.dumps({"losses": clock.losses, "seconds": clock.seconds}))


main()
