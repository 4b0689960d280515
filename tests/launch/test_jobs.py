"""Job files: they parse, hold the right counts, and the scripts start a run that trains."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from danlu.cli import cli
from danlu.errors import UserError
from danlu.launch import jobs
from danlu.launch.jobs import Job

RUN = Path("/shared/runs/My run_1.5%")
SHIMS = {
    # As many tasks as machines were asked for, one after the other in number and all at a time.
    "srun": """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for node in 0 1; do SLURM_NODEID=$node SLURM_PROCID=$node SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 "$@" & pids+=($!); done
code=0; for pid in "${pids[@]}"; do wait "$pid" || code=$?; done; exit $code
""",
    "scontrol": """#!/bin/bash
if [ "$1" = show ]; then echo 127.0.0.1; echo other; else echo "$@" >> "$SHIM_LOG"; fi
""",
    "scancel": """#!/bin/bash
echo scancel "$@" >> "$SHIM_LOG"
""",
}


def checked(script: str) -> str:
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return script


def test_slurm() -> None:
    script = checked(jobs.slurm(Job(RUN, 4, 8, gpus=True)))
    directives = dict(line.removeprefix("#SBATCH --").partition("=")[::2] for line in script.splitlines() if "#SBATCH" in line)
    assert directives["nodes"] == "4" and directives["ntasks-per-node"] == "1" and directives["gpus-per-node"] == "8"
    assert "requeue" in directives and directives["open-mode"] == "append"
    assert directives["output"] == '"/shared/runs/My run_1.5%%/job-%j.log"'
    assert "--nodes 4 --node-rank" in script and f"run={shlex.quote(str(RUN))}" in script
    assert "gpus" not in jobs.slurm(Job(RUN, 4, 8, gpus=False))


def test_torchrun() -> None:
    one, several = (shlex.split(checked(jobs.torchrun(Job(RUN, nodes, 8, gpus=True)))) for nodes in (1, 4))
    assert one == ["torchrun", "--standalone", "--nproc-per-node", "8", "-m", "danlu", "train", str(RUN)]
    assert several[:3] == ["torchrun", "--nnodes", "4"]
    assert several[several.index("--node-rank") + 1] == "$NODE_RANK"


def test_kubernetes() -> None:
    text = jobs.kubernetes(Job(RUN, 4, 8, gpus=True), "registry/danlu:1", "runs")
    service, job = YAML(typ="safe").load_all(io.StringIO(text))
    name = "my-run-1-5"
    assert (service["kind"], service["metadata"]["name"], service["spec"]["clusterIP"]) == ("Service", name, "None")
    spec: dict[str, Any] = job["spec"]
    assert (job["apiVersion"], job["kind"], spec["completionMode"]) == ("batch/v1", "Job", "Indexed")
    assert spec["completions"] == spec["parallelism"] == 4
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == name and service["spec"]["selector"] == spec["template"]["metadata"]["labels"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    values = {each["name"]: each["value"] for each in container["env"]}
    assert values == {"RUN": f"/runs/{RUN.name}", "NODES": "4", "FIRST": f"{name}-0.{name}:29500"}
    assert '--node-rank "$JOB_COMPLETION_INDEX"' in checked(container["command"][2])
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "runs"
    # A wrong recipe, and a run that stopped itself, are not tried again; an eviction is no failure.
    ignore, fail = spec["podFailurePolicy"]["rules"]
    assert pod["restartPolicy"] == "Never"  # which the policy needs
    assert (ignore["action"], ignore["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert (fail["action"], fail["onExitCodes"]["values"]) == ("FailJob", [2, 3])


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 12), (3, 4), (12, 1)])
def test_processes_are_spread_evenly(nodes: int, per_node: int) -> None:
    assert jobs.job(RUN, 12, nodes, gpus=True) == Job(RUN, nodes, per_node, True)


def test_processes_that_do_not_spread() -> None:
    with pytest.raises(UserError, match=r"--nodes 5: .* = 12 does not spread evenly; give 1, 2, 3, 4, 6, 12 or another layout"):
        jobs.job(RUN, 12, 5, gpus=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give one of --slurm, --kubernetes and --torchrun"),
        (["--kubernetes"], "--kubernetes needs --image"),
        (["--slurm", "--image", "x"], "--image and --claim belong to --kubernetes"),
        (["--slurm", "--nodes", "3"], "does not spread evenly; give 1, 2 or another layout"),
    ],
)
def test_a_job_that_cannot_be(recipe_file: Path, tmp_path: Path, options: list[str], message: str) -> None:
    """Nothing is written."""
    made = CliRunner().invoke(cli, ["launch", str(recipe_file), "parallel.data=2", "--runs", str(tmp_path / "runs"), *options])
    assert isinstance(made.exception, UserError) and message in str(made.exception)
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def launched(recipe_file: Path, tmp_path: Path) -> Callable[..., tuple[str, Path]]:
    """What `danlu launch` prints for a run of two processes, and the run's folder."""

    def launch(*options: str) -> tuple[str, Path]:
        runs = tmp_path / "runs"
        command = ["launch", str(recipe_file), "parallel.data=2", "train.evaluate_every=0", "--runs", str(runs), *options]
        made = CliRunner().invoke(cli, command)
        assert made.exit_code == 0, made.output
        return made.stdout, runs / "tiny"

    return launch


def environment(tmp_path: Path, **variables: str) -> dict[str, str]:
    """With danlu, python, torchrun and the shims on the path."""
    shims = tmp_path / "shims"
    shims.mkdir()
    for name, text in SHIMS.items():
        (shims / name).write_text(text)
        (shims / name).chmod(0o755)
    path = os.pathsep.join([str(shims), str(Path(sys.executable).parent), os.environ["PATH"]])
    return os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "SHIM_LOG": str(tmp_path / "shim.log"), **variables}


def trained(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text("utf-8"))
    assert summary["steps"] == 12
    assert (run / "report.html").is_file()
    return summary


@pytest.mark.slow
def test_the_slurm_script_trains_on_two_machines(launched: Callable[..., tuple[str, Path]], tmp_path: Path) -> None:
    """Two launchers on the loopback, which share the folder; only the first prints and writes."""
    script, run = launched("--slurm", "--nodes", "2")
    variables = environment(tmp_path, SLURM_JOB_ID=str(os.getpid()), SLURM_JOB_NODELIST="node[0-1]")
    done = subprocess.run(["bash", "-c", script], env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("step 12: validation loss") == done.stdout.count("report: ") == 1
    trained(run)
    assert {path.name for path in (run / "logs").glob("node-*")} == {"node-0", "node-1"}
    assert not (tmp_path / "shim.log").exists()


@pytest.mark.slow
def test_the_slurm_script_queues_again_at_the_time_limit(tmp_path: Path) -> None:
    """The warning reaches the step; whatever it ends with then, the job goes on later. Here a sleep stands for the step."""
    script = jobs.slurm(Job(tmp_path, 2, 1, gpus=False)).replace("trap : TERM\n", "trap : TERM\n(sleep 0.3; kill -USR1 $$) &\n")
    variables = environment(tmp_path, SLURM_JOB_ID="7", SLURM_JOB_NODELIST="node[0-1]")
    shims = tmp_path / "shims"
    (shims / "srun").write_text("#!/bin/bash\nwhile ! [ -e $SHIM_LOG ]; do sleep 0.05; done; sleep 0.2; exit 130\n")
    done = subprocess.run(["bash", "-c", script], env=variables, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "shim.log").read_text().splitlines() == ["scancel --signal=TERM 7", "requeue 7"]


@pytest.mark.slow
def test_the_torchrun_line_trains(launched: Callable[..., tuple[str, Path]], tmp_path: Path) -> None:
    """The first rank prepares the data, while the other waits; the same command again has nothing to do."""
    line, run = launched("--torchrun")
    variables = environment(tmp_path)
    for _ in range(2):
        done = subprocess.run(["bash", "-c", line], env=variables, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        trained(run)
    assert "already trained: 12 of 12 steps" in done.stdout


@pytest.mark.slow
def test_srun_starts_every_rank(recipe_file: Path, tmp_path: Path) -> None:
    """`srun danlu train` with a task a rank; they end as torchrun's would."""
    variables = environment(tmp_path, SLURM_JOB_ID=str(os.getpid()), SLURM_NNODES="1", SLURM_STEP_NODELIST="localhost")
    command = f"srun danlu train {shlex.quote(str(recipe_file))} --runs {tmp_path}/runs parallel.data=2"
    done = subprocess.run(["bash", "-c", command], env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    trained(tmp_path / "runs" / "tiny")
    wrong = subprocess.run(
        ["bash", "-c", f"{command} name=other parallel.data=1"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert wrong.returncode == 2
    assert "parallel: data x tensor x pipeline = 1, but 2 processes were started by srun" in wrong.stderr
    assert not (tmp_path / "runs" / "other").exists()
