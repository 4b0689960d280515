"""CTranslate2 or OpenVINO GenAI with 8-bit weights, in their own environment: asked by benchmarks/inference.py in JSON lines.

    PYTHON inference.py ctranslate2|openvino FOLDER CONVERTED

FOLDER is a model in the Hugging Face layout; it is converted first, to the folder CONVERTED, if that is not there. Each line
of the input is {"prompts": [[token, ...], ...], "new": 32}; each line of the output, after "ready", is {"seconds": CPU seconds,
"answers": [[token, ...], ...]}. One thread computes. Weights are in memory of their own, not mapped from the file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Tokens = list[list[int]]
Answer = Callable[[Tokens, int], Tokens]


def main() -> None:
    name, folder, converted = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print what they like
    if not converted.is_dir():
        convert(name, folder, converted)
    answer = {"ctranslate2": ctranslate2, "openvino": openvino}[name](converted)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        began = time.process_time()
        made = answer(asked["prompts"], asked["new"])
        print(json.dumps({"seconds": time.process_time() - began, "answers": made}), file=answers, flush=True)


def convert(name: str, folder: Path, converted: Path) -> None:
    """By the peer's own program, to 8-bit weights."""
    programs = Path(sys.executable).parent
    command: dict[str, list[Any]] = {
        "ctranslate2": ["ct2-transformers-converter", "--model", folder, "--output_dir", converted, "--quantization", "int8"],
        "openvino": ["optimum-cli", "export", "openvino", "--model", folder, "--task", "text-generation-with-past"],
    }
    settings = ["--weight-format", "int8", converted] if name == "openvino" else []
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run([programs / command[name][0], *command[name][1:], *settings], check=True, env=offline)


def ctranslate2(converted: Path) -> Answer:
    """Prompts of one length at once, as a batch; its vocabulary is asked by text."""
    import ctranslate2 as library

    generator = library.Generator(str(converted), compute_type="int8", inter_threads=1, intra_threads=1)
    words = json.loads((converted / "vocabulary.json").read_text(encoding="utf-8"))

    def answer(prompts: Tokens, new: int) -> Tokens:
        made = generator.generate_batch(
            [[words[token] for token in prompt] for prompt in prompts],
            max_length=new,
            min_length=new,
            include_prompt_in_result=False,
            sampling_topk=1,
        )
        return [each.sequences_ids[0] for each in made]

    return answer


def openvino(converted: Path) -> Answer:
    """Its continuous batching, all prompts in one step, without a cache of prefixes, as no two prompts are alike."""
    import numpy as np
    import openvino as library
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.max_num_batched_tokens, scheduler.max_num_seqs, scheduler.cache_size = 4096, 64, 1
    scheduler.dynamic_split_fuse, scheduler.enable_prefix_caching = False, False
    settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "ENABLE_MMAP": False}
    pipe = genai.ContinuousBatchingPipeline(str(converted), scheduler, "CPU", settings)

    def answer(prompts: Tokens, new: int) -> Tokens:
        config = genai.GenerationConfig(max_new_tokens=new, min_new_tokens=new, ignore_eos=True, do_sample=False)
        inputs = [library.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        return [each.m_generation_ids[0] for each in pipe.generate(inputs, [config] * len(inputs))]

    return answer


if __name__ == "__main__":
    main()
