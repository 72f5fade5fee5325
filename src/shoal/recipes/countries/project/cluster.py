"""Start workers by SSH on the machines of cluster.toml:

    shoal start india --urls-file urls/india.txt | python cluster.py

It reads the answer of `shoal start`, whose worker_command names the run and the database; the password is in the .env
of each machine. Workers end by themselves when the run is done; `shoal workers ls` lists them, `shoal workers stop`
ends them.
"""

import json
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path


def main():
    run = json.load(sys.stdin)
    nodes = tomllib.loads(Path("cluster.toml").read_text())["nodes"]
    failed = 0
    for node in nodes:
        worker = f"nohup {run['worker_command']} >/dev/null 2>>worker-errors.log &"  # each worker logs to .shoal/logs
        script = f"cd {shlex.quote(node['folder'])} && for n in $(seq {int(node['workers'])}); do {worker} done"
        login = f"{node['user']}@{node['host']}"
        command = ["ssh", "-i", str(Path(node["key"]).expanduser()), "-o", "BatchMode=yes", login, script]
        code = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
        print(
            f"{login}: {f'failed with {code}' if code else str(node['workers']) + ' workers of run ' + run['run_id']}"
        )
        failed += code != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
