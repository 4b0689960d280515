"""The names that users of other training tools type, and where danlu keeps them.

From Hugging Face (TrainingArguments, the example scripts, config.json), PyTorch, Megatron-LM and nanoGPT. A name that danlu uses
itself (learning_rate, weight_decay, hidden_size, ...) is found by its own section and needs no line here.
"""

from __future__ import annotations

from typing import NamedTuple


class OtherName(NamedTuple):
    """Where danlu keeps what another tool calls by this name, and the arithmetic when it is not one to one."""

    paths: tuple[str, ...]
    note: str = ""


def _to(*paths: str, note: str = "") -> OtherName:
    return OtherName(paths, note)


_MICRO_BATCH = _to("memory.micro_batch", note="train.global_batch = this x accumulation steps x processes")
_ACCUMULATION = _to(
    "train.global_batch",
    "memory.micro_batch",
    note="accumulation steps = train.global_batch / (memory.micro_batch x parallel.data)",
)
_EPOCHS = _to("train.steps", note="steps = epochs x training tokens / (data.sequence_length x train.global_batch)")
_BATCH = _to("train.global_batch", "memory.micro_batch", note="samples an optimizer step, and samples in one forward pass")
_BETA = "one list of two numbers, [beta1, beta2]"
_LENGTH = _to("data.sequence_length", note="tokens a sample; model.max_sequence_length is the model's own limit")
_PRECISION = "one of fp32, bf16, fp16"
_SHARDING = _to("parallel.zero_stage", "parallel.data", note="FSDP and ZeRO stage 3 are zero_stage: 3")
_EVALUATE = _to(
    "train.evaluate_every", "stages", note="0 validates at the end only; the stage evaluate measures the trained model"
)
_SAVE = _to("checkpoint.every", note="in steps")

OTHER_NAMES: dict[str, OtherName] = {
    # how long, and how much at once
    "max_steps": _to("train.steps"),
    "train_steps": _to("train.steps"),
    "train_iters": _to("train.steps"),
    "max_iters": _to("train.steps"),
    "num_steps": _to("train.steps"),
    "num_train_epochs": _EPOCHS,
    "max_epochs": _EPOCHS,
    "epochs": _EPOCHS,
    "train_samples": _to("train.steps", note="steps = samples / train.global_batch"),
    "per_device_train_batch_size": _MICRO_BATCH,
    "micro_batch_size": _MICRO_BATCH,
    "gradient_accumulation_steps": _ACCUMULATION,
    "accumulate_grad_batches": _ACCUMULATION,
    "global_batch_size": _to("train.global_batch"),
    "batch_size": _BATCH,
    "train_batch_size": _BATCH,
    "per_device_eval_batch_size": _to("memory.micro_batch", note="validation uses the batch of training"),
    "block_size": _LENGTH,
    "max_seq_length": _LENGTH,
    "max_length": _LENGTH,
    "seq_length": _LENGTH,
    "seq_len": _LENGTH,
    "max_seq_len": _LENGTH,
    "context_length": _LENGTH,
    "hidden_dropout": _to("train.dropout"),
    "hidden_dropout_prob": _to("train.dropout"),
    "resid_pdrop": _to("train.dropout"),
    "embd_pdrop": _to("train.dropout"),
    # the update rule and its schedule
    "lr": _to("train.optimizer.learning_rate"),
    "max_lr": _to("train.optimizer.learning_rate"),
    "min_lr": _to("train.schedule.final_ratio", note="final_ratio = min_lr / learning_rate"),
    "wd": _to("train.optimizer.weight_decay"),
    "optim": _to("train.optimizer.name"),
    "max_grad_norm": _to("train.optimizer.gradient_clipping"),
    "clip_grad": _to("train.optimizer.gradient_clipping"),
    "grad_clip": _to("train.optimizer.gradient_clipping"),
    "gradient_clip_val": _to("train.optimizer.gradient_clipping"),
    "adam_beta1": _to("train.optimizer.betas", note=_BETA),
    "adam_beta2": _to("train.optimizer.betas", note=_BETA),
    "beta1": _to("train.optimizer.betas", note=_BETA),
    "beta2": _to("train.optimizer.betas", note=_BETA),
    "adam_epsilon": _to("train.optimizer.epsilon"),
    "use_mup": _to("model.mup", note="a section: base_hidden_size"),
    "mup_base_hidden_size": _to("model.mup.base_hidden_size"),
    "adam_eps": _to("train.optimizer.epsilon"),
    "eps": _to("train.optimizer.epsilon"),
    "lr_scheduler_type": _to("train.schedule.name"),
    "lr_scheduler": _to("train.schedule.name"),
    "lr_decay_style": _to("train.schedule.name"),
    "scheduler": _to("train.schedule"),
    "warmup_ratio": _to("train.schedule.warmup_fraction", note="the same share of the steps"),
    "lr_warmup_fraction": _to("train.schedule.warmup_fraction"),
    "lr_warmup_iters": _to("train.schedule.warmup_steps"),
    "warmup_iters": _to("train.schedule.warmup_steps"),
    # precision and speed
    "bf16": _to("train.precision", note=_PRECISION),
    "fp16": _to("train.precision", note=_PRECISION),
    "tf32": _to("train.precision", note=_PRECISION),
    "dtype": _to("train.precision", note=_PRECISION),
    "torch_dtype": _to("train.precision", note=_PRECISION),
    "mixed_precision": _to("train.precision", note=_PRECISION),
    "torch_compile": _to("train.compile"),
    "use_cpu": _to("train.device", note="use_cpu: true is device: cpu"),
    "no_cuda": _to("train.device", note="no_cuda: true is device: cpu"),
    "dataloader_num_workers": _to("data.workers"),
    "num_workers": _to("data.workers"),
    "data_seed": _to("train.seed", note="it also orders the data"),
    "world_size": _to("parallel.data", "parallel.tensor", "parallel.pipeline", note="their product is the number of processes"),
    "deepspeed": _SHARDING,
    "fsdp": _SHARDING,
    "tensor_parallel": _to("parallel.tensor"),
    "pipeline_parallel": _to("parallel.pipeline"),
    "tensor_model_parallel_size": _to("parallel.tensor"),
    "pipeline_model_parallel_size": _to("parallel.pipeline"),
    "gradient_checkpointing": _to("memory.recompute", note="true is full"),
    "recompute_granularity": _to("memory.recompute"),
    "offload_param": _to("memory.offload_parameters", note="one of none, host, disk"),
    "cpu_offload": _to("memory.offload_optimizer", "memory.offload_parameters", note="each one of none, host, disk"),
    "nvme_path": _to("memory.offload_folder"),
    # saving, validating, printing
    "output_dir": _to("name", note="the run folder is runs/<name>"),
    "run_name": _to("name"),
    "save_steps": _SAVE,
    "save_interval": _SAVE,
    "save_total_limit": _to("checkpoint.keep"),
    "eval_steps": _to("train.evaluate_every", note="in steps"),
    "eval_interval": _to("train.evaluate_every", note="in steps"),
    "eval_strategy": _EVALUATE,
    "evaluation_strategy": _EVALUATE,
    "do_eval": _EVALUATE,
    "do_train": _to("stages"),
    "eval_iters": _to("train.evaluate_tokens", note="tokens = batches x samples x data.sequence_length"),
    "logging_steps": _to("watch.print_every", note="every step is recorded in any case"),
    "log_interval": _to("watch.print_every", note="every step is recorded in any case"),
    # data
    "dataset_name": _to("data.sources", note="files, folders or globs on this machine"),
    "train_file": _to("data.sources"),
    "train_files": _to("data.sources"),
    "data_path": _to("data.sources"),
    "text_column": _to("data.sources.0.text"),
    "text_column_name": _to("data.sources.0.text"),
    "dataset_text_field": _to("data.sources.0.text"),
    "validation_split_percentage": _to("data.validation_fraction", note="fraction = percentage / 100"),
    "tokenizer_name": _to("data.tokenizer.path", note="a tokenizer.json on this machine"),
    "tokenizer_name_or_path": _to("data.tokenizer.path", note="a tokenizer.json on this machine"),
    # the model
    "model_name_or_path": _to("model.hugging_face", "model.preset", note="a folder on this machine, or a named shape"),
    "model_type": _to("model.family"),
    "architectures": _to("model.family"),
    "num_hidden_layers": _to("model.layers"),
    "num_layers": _to("model.layers"),
    "n_layers": _to("model.layers"),
    "n_layer": _to("model.layers"),
    "n_embd": _to("model.hidden_size"),
    "d_model": _to("model.hidden_size"),
    "dim": _to("model.hidden_size"),
    "num_attention_heads": _to("model.heads"),
    "num_heads": _to("model.heads"),
    "n_heads": _to("model.heads"),
    "n_head": _to("model.heads"),
    "num_key_value_heads": _to("model.kv_heads"),
    "n_kv_heads": _to("model.kv_heads"),
    "num_query_groups": _to("model.kv_heads"),
    "head_dim": _to("model.head_size"),
    "kv_channels": _to("model.head_size"),
    "intermediate_size": _to("model.ffn_size"),
    "ffn_hidden_size": _to("model.ffn_size"),
    "n_inner": _to("model.ffn_size"),
    "max_position_embeddings": _to("model.max_sequence_length"),
    "n_positions": _to("model.max_sequence_length"),
    "rms_norm_eps": _to("model.norm_epsilon"),
    "layer_norm_eps": _to("model.norm_epsilon"),
    "norm_eps": _to("model.norm_epsilon"),
    "tie_word_embeddings": _to("model.tied_embeddings"),
    "attention_bias": _to("model.qkv_bias", "model.output_bias"),
    "use_qk_norm": _to("model.qk_norm"),
    "rotary_base": _to("model.rope_theta"),
    "max_window_layers": _to("model.full_attention_layers"),
    "rope_parameters": _to("model.rope_theta", "model.rope_scaling"),
    "rope_type": _to("model.rope_scaling.kind"),
    "original_max_position_embeddings": _to("model.rope_scaling.original_max_sequence_length"),
    "low_freq_factor": _to("model.rope_scaling.low_frequency_factor"),
    "high_freq_factor": _to("model.rope_scaling.high_frequency_factor"),
    # samples
    "max_new_tokens": _to("generate.max_tokens"),
    "do_sample": _to("generate.temperature", note="0 always takes the most likely token"),
    "prompt": _to("generate.prompts"),
}

OTHER_VALUES: dict[str, str] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "pytorch": "torch",
    "paddlepaddle": "paddle",
    "gpu": "cuda",
    "adam": "adamw",
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "constant_with_warmup": "constant",
    "cosine_with_min_lr": "cosine",
    "eval": "evaluate",
    "sample": "generate",
    "generation": "generate",
}
"""What other tools call the choices of a field; read only when the value is among the field's own choices."""
