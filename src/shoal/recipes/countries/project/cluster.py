"""Start workers by SSH on the machines of cluster.toml:

    shoal start india --urls-file urls/india.txt | python cluster.py

It reads the answer of `shoal start`, whose worker_command names the run and the database. The .env of each machine has
the password: PGPASSWORD, or POSTGRES_PASSWORD beside POSTGRES_HOST. Workers end when the run is done; errors
before they have a log are in worker-errors.log. `shoal workers ls` lists them, `shoal workers stop` ends them.
"""

import json
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path


def main():
    try:
        run = json.load(sys.stdin)
        run_id, (program, *arguments) = run["run_id"], shlex.split(run["worker_command"])
    except (ValueError, KeyError, TypeError):
        print("`shoal start` gave no answer of a distributed scraper; no worker was started.", file=sys.stderr)
        return 1
    nodes = tomllib.loads(Path("cluster.toml").read_text())["nodes"]
    failed = 0
    for node in nodes:
        # By SSH no virtual environment is active: `shoal` of a node says where the program is there.
        shoal = shlex.quote(node.get("shoal", program))
        # Each worker logs to .shoal/logs.
        worker = f"nohup {shoal} {shlex.join(arguments)} >/dev/null 2>>worker-errors.log &"
        # What is started in the background has no exit code, so the program is looked for first.
        script = (
            f"cd {shlex.quote(node['folder'])} || exit; "
            f"command -v {shoal} >/dev/null || {{ echo there is no {shoal} >&2; exit 127; }}; "
            f"for n in $(seq {int(node['workers'])}); do {worker} done"
        )
        login = f"{node['user']}@{node['host']}"
        command = ["ssh", "-i", str(Path(node["key"]).expanduser()), "-o", "BatchMode=yes", login, script]
        code = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
        print(f"{login}: {f'failed with {code}' if code else str(node['workers']) + ' workers of run ' + run_id}")
        failed += code != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
