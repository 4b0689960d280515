"""The planner's memory beside dry runs of the PyTorch engine: 8 B, 70 B and 405 B at published layouts, every kind of recompute.

Beside them stand danlu's own runs on this machine (benchmarks/plan_cpu.py, which can be run alone); they want a machine that does
nothing else, and are left out with --without-cpu.

Usage: python benchmarks/plan_verify.py [--only NAME] [--without-cpu] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "8 B, data 8, ZeRO 3": ("llama-3-8b", {"data": 8, "zero_stage": 3}),
    "70 B, tensor 8, data 8, ZeRO 1": ("llama-3-70b", {"tensor": 8, "sequence_parallel": True, "data": 8, "zero_stage": 1}),
    "70 B, tensor 8, pipeline 4": ("llama-3-70b", {"tensor": 8, "sequence_parallel": True, "pipeline": 4}),
    "405 B, tensor 8, pipeline 16, data 8, ZeRO 1": (
        "llama-3.1-405b",
        {"tensor": 8, "sequence_parallel": True, "pipeline": 16, "data": 8, "zero_stage": 1},
    ),
}


def cpu_rows() -> dict[str, float]:
    """cpu_memory_worst and cpu_step_worst of danlu's own runs."""
    import plan_cpu

    return dict(plan_cpu.worst(plan_cpu.rows()))


def main() -> None:
    from danlu.model.presets import preset
    from danlu.plan.job import Dimensions, Job
    from danlu.plan.verify import compare, table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="Layouts whose names contain this.")
    parser.add_argument("--without-cpu", action="store_true", help="Dry runs alone.")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    checks = []
    for name, (model, layout) in LAYOUTS.items():
        for recompute in ("none", "selective", "full"):
            if options.only not in name:
                continue
            shape = preset(model)
            batch = 2 * layout.get("pipeline", 1) * layout.get("data", 1)
            job = Job(Dimensions.from_shape(shape), 4096, 1, batch, recompute=recompute, **layout).check()
            found = compare(job, shape)
            print(f"{name}, recompute {recompute}\n{table(found)}\n", flush=True)
            checks += found
    result = {
        "worst_state_error": max(each.state_error for each in checks),
        "worst_activation_error": max(abs(each.activation_error) for each in checks),
        "worst_peak_error": max(abs(each.peak_error) for each in checks),
    } | ({} if options.without_cpu else cpu_rows())
    print(json.dumps(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
