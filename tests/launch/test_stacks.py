"""Where a process stands, by its stacks."""

from __future__ import annotations

from danlu.launch.stacks import standing

WITNESS = """\
Current thread 0x1 (most recent call first):
  File "/x/src/danlu/heartbeat.py", line 90 in _answer
  File "/x/threading.py", line 982 in run

"""


def dump(*frames: tuple[str, str]) -> str:
    lines = "".join(f'  File "{file}", line {number} in {name}\n' for number, (file, name) in enumerate(frames, 1))
    return f"{WITNESS}Thread 0x2 (most recent call first):\n{lines}"


C10D, LOGGER = "/v/torch/distributed/distributed_c10d.py", "/v/torch/distributed/c10d_logger.py"
LAYOUT, LOOP = "/x/src/danlu/engines/torch/layout.py", "/x/src/danlu/train/loop.py"


def test_in_a_collective() -> None:
    found = standing(dump((C10D, "all_reduce"), (LOGGER, "wrapper"), (LAYOUT, "sum"), (LOOP, "_step")), [])
    assert (found.waits, found.at) == ("an all-reduce", "sum (torch/layout.py:3)")


def test_the_clock_that_counts_waits_hides_none() -> None:
    waiting = ("/v/torch/distributed/pipelining/schedules.py", "_wait_batch_p2p")
    clock = ("/x/src/danlu/engines/torch/clock.py", "counted")
    found = standing(dump(clock, waiting, ("/x/src/danlu/engines/torch/pipeline.py", "run")), [])
    assert (found.waits, found.at) == ("a send or receive of the pipeline", "run (torch/pipeline.py:3)")


def test_the_call_that_was_made_and_not_what_it_is_made_of() -> None:
    inner = ((C10D, "reduce_scatter_single"), (LOGGER, "wrapper"), (C10D, "reduce_scatter_tensor"), (LOGGER, "wrapper"))
    found = standing(dump(*inner, ("/v/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_reduce")), [])
    assert found.waits == "a reduce-scatter"


def test_a_collective_of_a_tensor_is_named_by_the_flight_recorder() -> None:
    frames = (("/v/torch/_ops.py", "redispatch"), ("/v/torch/distributed/_functional_collectives.py", "wait_tensor"))
    assert (
        standing(dump(*frames, (LOOP, "_step")), ["gloo:all_reduce of group tensor"]).waits == "gloo:all_reduce of group tensor"
    )
    assert standing(dump(*frames, (LOOP, "_step")), []).waits == "a collective of tensor parallelism"


def test_computing_inside_torch_is_no_collective() -> None:
    found = standing(dump(("/v/torch/nn/functional.py", "linear"), ("/x/src/danlu/engines/torch/decoder.py", "forward")), [])
    assert (found.waits, found.at) == (None, "linear (nn/functional.py:1), from forward (torch/decoder.py:2)")


def test_waiting_for_a_gpu() -> None:
    """The stack shows nothing of the collective; the framework knows of it."""
    found = standing(dump(("/v/torch/_tensor.py", "item"), (LAYOUT, "any")), ["nccl:all_reduce of group world"])
    assert found.waits == "nccl:all_reduce of group world"


def test_a_backward_pass_in_a_thread_of_its_own() -> None:
    text = dump(("/v/torch/autograd/graph.py", "_engine_run_backward"), (LOOP, "_step")).replace(
        "Thread 0x2", f'Thread 0x3 (most recent call first):\n  File "{C10D}", line 1 in all_reduce\n\nThread 0x2'
    )
    assert standing(text, []).waits == "an all-reduce"


def test_nothing_is_known() -> None:
    assert standing("", []).waits is None
