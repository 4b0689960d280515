"""Job files that start a run on a cluster: the command line of torchrun, a batch script of SLURM, a Job of Kubernetes.

Every machine runs ``danlu train`` with its number, so that danlu's own launcher watches the ranks there. A run that is
interrupted saves, and goes on when the job is started again: that is all that a requeue has to do.
"""

from __future__ import annotations

import io
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

from danlu.errors import EXIT_STOPPED, EXIT_USAGE, UserError

GRACE_SECONDS = 180
"""Between the warning and the kill: the time to finish a step and save."""
PORT = 29500
RETRIES = 20
"""Failures of all machines after which Kubernetes gives a job up; a pod that is evicted is none."""
_POD = LiteralScalarString("""\
log="$RUN/job-$JOB_COMPLETION_INDEX.log"
danlu train "$RUN" --nodes "$NODES" --node-rank "$JOB_COMPLETION_INDEX" --rendezvous "$FIRST" > >(tee -a "$log") 2>&1 &
child=$!
trap 'kill -TERM "$child"' TERM  # an eviction: the run saves
wait "$child"; code=$?
while kill -0 "$child" 2>/dev/null; do wait "$child"; code=$?; done
sleep 1  # for the last lines
exit "$code"
""")


@dataclass(frozen=True)
class Job:
    """A run in processes per machine, one GPU each unless ``gpus`` is false.

    ``run`` is the absolute path of its folder, on a file system that all machines share.
    """

    run: Path
    nodes: int
    per_node: int
    gpus: bool

    @property
    def name(self) -> str:
        """The run's name as Kubernetes and DNS take it."""
        return re.sub(r"[^a-z0-9]+", "-", self.run.name.lower()).strip("-")[:40].strip("-") or "run"


def job(run: Path, processes: int, nodes: int, gpus: bool) -> Job:
    """UserError: the layout does not spread evenly over the machines."""
    if processes % nodes:
        even = [str(count) for count in range(1, processes + 1) if processes % count == 0][:8]
        raise UserError(
            f"--nodes {nodes}: data x tensor x pipeline = {processes} does not spread evenly; give {', '.join(even)} "
            "or another layout"
        )
    return Job(run.absolute(), nodes, processes // nodes, gpus)


def torchrun(job: Job) -> str:
    """To be run on every machine, with $NODE_RANK and, on several, $MASTER_ADDR set."""
    where = f'--nnodes {job.nodes} --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port {PORT}'
    where = "--standalone" if job.nodes == 1 else where
    return f"torchrun {where} --nproc-per-node {job.per_node} -m danlu train {shlex.quote(str(job.run))}\n"


def slurm(job: Job) -> str:
    """A batch script: one task a machine, which starts the ranks there. Requeued on preemption and at the time limit."""
    gpus = f"#SBATCH --gpus-per-node={job.per_node}\n" if job.gpus else ""
    cores = "" if job.gpus else f"#SBATCH --cpus-per-task={job.per_node}\n"
    return f"""\
#!/bin/bash
#SBATCH --job-name={job.name}
#SBATCH --nodes={job.nodes}
#SBATCH --ntasks-per-node=1
{gpus}{cores}#SBATCH --output={_directive(job.run / "job-%j.log")}
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@{GRACE_SECONDS}
# Add what your cluster wants: --time, --partition, --account. Submit with: sbatch FILE
set -u
run={shlex.quote(str(job.run))}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))

# One task a machine, whose number is SLURM_NODEID; when one fails, all end.
srun --kill-on-bad-exit=1 bash -c '
  exec danlu train "$1" --nodes {job.nodes} --node-rank "$SLURM_NODEID" --rendezvous "$2"
' danlu "$run" "$first:$port" &
step=$!

# SLURM warns {GRACE_SECONDS} seconds before the time limit: the run saves, and the job queues again to go on.
# A job that is preempted gets SIGTERM and is queued again by SLURM itself.
expired=0
trap 'expired=1; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
trap : TERM
wait "$step"; code=$?
while kill -0 "$step" 2>/dev/null; do wait "$step"; code=$?; done

if [ "$expired" -eq 1 ] && [ "$code" -ne 0 ]; then
  exec scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def kubernetes(job: Job, image: str, claim: str) -> str:
    """A headless Service and an Indexed Job, one pod a machine; the volume claim holds the folder of all runs.

    Pods that fail are made anew and go on from the last checkpoint, except where danlu says that this makes no sense.
    """
    mounted = f"/runs/{job.run.name}"
    labels = {"app.kubernetes.io/name": "danlu", "danlu/run": job.name}
    resources = {"nvidia.com/gpu": job.per_node} if job.gpus else {"cpu": job.per_node}
    container: dict[str, Any] = {
        "name": "danlu",
        "image": image,
        "command": ["bash", "-c", _POD],
        "env": [
            {"name": "RUN", "value": mounted},
            {"name": "NODES", "value": str(job.nodes)},
            {"name": "FIRST", "value": f"{job.name}-0.{job.name}:{PORT}"},
        ],
        "resources": {"limits": resources, "requests": resources},
        "volumeMounts": [{"name": "runs", "mountPath": "/runs"}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = {
        "restartPolicy": "Never",
        "subdomain": job.name,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "containers": [container],
        "volumes": [
            {"name": "runs", "persistentVolumeClaim": {"claimName": claim}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    exits = {"containerName": "danlu", "operator": "In", "values": [EXIT_USAGE, EXIT_STOPPED]}
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
        {"action": "FailJob", "onExitCodes": exits},
    ]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": job.name, "labels": labels},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels, "ports": [{"port": PORT}]},
    }
    batch = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job.name, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": job.nodes,
            "parallelism": job.nodes,
            "backoffLimit": RETRIES * job.nodes,
            "podFailurePolicy": {"rules": rules},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    return "---\n".join(_yaml(each) for each in (service, batch))


def _directive(path: Path) -> str:
    """A file name for sbatch, in which % begins a pattern; only the one for the job's number is meant."""
    return '"' + str(path.parent).replace("%", "%%") + f'/{path.name}"'


def _yaml(tree: dict[str, Any]) -> str:
    yaml, stream = YAML(), io.StringIO()
    yaml.representer.ignore_aliases = lambda _: True  # an anchor is no help to who edits the file
    yaml.width, yaml.default_flow_style = 1000, False
    yaml.dump(tree, stream)
    return stream.getvalue()
