"""All verdicts about other packages: the suspicions, and what the auditor says of each adapter's example.

    make test-adapters                              # makes the environments first
    .venv/bin/python bench/audits/run.py [NAME ...]

Each package runs in its own environment, `.venvs/NAME`. Writes ``bench/results/audit_candidates.json`` and
``audit_adapters.json``; with NAMEs, only their entries are replaced.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "src")]

import common  # noqa: E402

RESULTS = ROOT / "bench" / "results"
SCRIPTS = {
    "sb3": ["sb3_recurrent_ppo"],
    "skrl": ["skrl_ppo_rnn"],
    "torchrl": [],
    "rsl-rl": ["rsl_rl_ppo"],
    "tianshou": ["tianshou_ppo"],
    "rllib": ["rllib_advantages"],
    "sample-factory": ["sample_factory_vtrace"],
}
EXAMPLES = {
    "sb3": ["sb3:example"],
    "skrl": ["skrl_rnn:example"],
    "torchrl": ["torchrl_gae:example", "torchrl_gae:example_gru"],
    "rsl-rl": ["rsl:example"],
    "tianshou": ["tianshou_ppo:example"],
    "rllib": ["rllib:example"],
    "sample-factory": ["samplefactory:example", "samplefactory:example_plain"],
}
TIMEOUT = 600


def run(command: list[str], allowed: tuple[int, ...]) -> Any:
    """The JSON that the command writes."""
    with tempfile.TemporaryDirectory(prefix="audits-") as folder:
        out = Path(folder) / "out.json"
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONWARNINGS": "ignore",
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(
            [*command, "--json", str(out)],
            capture_output=True,
            text=True,
            env=env,
            cwd=folder,
            timeout=TIMEOUT,
        )
        if done.returncode not in allowed or not out.exists():
            sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return json.loads(out.read_text())


def main() -> None:
    names = sys.argv[1:] or list(EXAMPLES)
    files = {kind: RESULTS / f"audit_{kind}.json" for kind in ("candidates", "adapters")}
    found: dict[str, dict[str, Any]] = {
        kind: json.loads(file.read_text())["results"] if sys.argv[1:] and file.exists() else {}
        for kind, file in files.items()
    }
    for name in names:
        python = ROOT / ".venvs" / name / "bin" / "python"
        if not python.exists():
            sys.exit(f"there is no environment {python.parents[1]}: make test-adapters makes it")
        for script in SCRIPTS[name]:
            path = Path(__file__).with_name(f"{script}.py")
            found["candidates"][script] = run([str(python), str(path)], (0,))
            for one in found["candidates"][script]["suspicions"]:
                print(f"{name}: {one['verdict']}: {one['name']} ({one['default']})", flush=True)
        for example in EXAMPLES[name]:
            policy = f"recollect.audit.adapters.{example}"
            # 1: a check failed
            audit = run([str(python), "-m", "recollect", "audit", "--policy", policy], (0, 1))
            kept = ("part", "name", "status", "found", "measured", "tolerance", "cause")
            checks = [{key: check[key] for key in kept} for check in audit["checks"]]
            found["adapters"][example] = {"trainer": audit["env"], "checks": checks}
            failed = [check["name"] for check in checks if check["status"] == "failed"]
            print(f"{audit['env']}: {', '.join(failed) or 'nothing'} failed", flush=True)
    for kind, file in files.items():
        common.write(file, f"audit {kind}", found[kind])


if __name__ == "__main__":
    main()
