"""What docs/coming-from.md says old commands have become is there."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

from shoal.cli.main import app
from shoal.recipes import RECIPES
from tests.support.deployments import ROOT

TEXT = (ROOT / "docs" / "coming-from.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
COMMANDS = sorted(set(re.findall(r"`(?:docker run \.\.\. )?shoal ([a-z][^`]*)`", TEXT + OPERATIONS)))


def find(command: str) -> tuple[Any, list[str]]:
    """The command itself, and the words behind it."""
    found: Any = typer.main.get_command(app)
    words = command.split()
    while hasattr(found, "commands") and words:
        found = found.commands[words.pop(0)]
    return found, words


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_and_its_options_exist(command: str) -> None:
    found, words = find(command)
    known = {option for parameter in found.params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= known


def test_each_system_has_its_recipe() -> None:
    for name in RECIPES:
        assert f"(recipes/{name}.md" in TEXT, name


# Every name that somebody who comes from one of the five systems will look for, by system.
OLD_NAMES = {
    "S0": """
        python migrate_database.py|run_profile_scraper.py|--scale profile_scraper=5|
        src.scrapers.profile_scraper|replicas: 5|db-credentials/host|run-task --count 5|
        docker compose logs -f|from_status|instance_id|timeout_minutes|claimed_by|processing_started_at|
        INITIAL|PROCESSING|PROFILED|ENHANCED|FAILED|hostname-pid|DB_HOST|GITHUB_TOKEN_2|RATE_LIMIT_DELAY|
        MAX_CLIENT_CONN|DEFAULT_POOL_SIZE|active claims|completed by instance|older than 30 minutes|
        count per status|sessions waiting for a lock|number of connections|SKIP LOCKED|TARGET_USERNAMES|
        TARGET_PROFILES|TOKEN_ROTATION_DELAY|MAX_RETRIES|RETRY_DELAY|EXPONENTIAL_BACKOFF|
        cron of the scheduler|metrics port
    """,
    "S1": """
        execution_mode|run_pipeline_resume.py|--urls-file|--resume|--fresh|url_worker.py|--run-id|
        --batch-size|--db-host|--db-password|get_stats|release_expired_leases|url_work_queue|pending|claimed|
        completed|failed|url_hash|retry_count|max_retries|error_message|queue depth|active workers|
        TOR_SOCKS_PORT|TOR_CONTROL_PORT|POSTGRES_|WORKER_BATCH_SIZE|WORKER_LEASE_SECONDS|CLAIM_BATCH_SIZE|
        platform.env|registry|run_ledger|git commit|config hash|partial|stopped|request log|pre-flight|
        Telegram|SSH|lock files|checkpoint
    """,
    "S2": """
        --run-all|--dry-run|--sequential|--update|--country|--include|--exclude|--list-scrapers|
        --list-countries|--no-save|--storage-dir|--urls-from-scratch|--log-level|--log-file|
        logs/{country}/{newspaper}|success|warning|template.yaml|configs/<country>/<newspaper>.yaml|
        rate_limit|retry_seconds|max_articles|urls.csv|news.csv|failed_urls|timeout|e-mail|
        retry of failed groups|pause between members
    """,
    "S3": """
        WORKER_COUNT|MIN_DELAY_SECONDS|MAX_DELAY_SECONDS|MAX_TARGETS_PER_BROWSER|PROXY_|run_state_workers.py|
        --workers N|--test|state_assignments|generate_city_targets|planned|in_progress|parked|STUCK|
        state_worker_{ID}.log|state_worker_pool.log|proxy_pool.log|webshare_proxies.txt|heartbeat_at|
        page_current|next_page_url|MAX_TARGET_RETRY_ATTEMPTS|recover|reset-failed|progress|orphan timeout|
        pg_locks|session breaks
    """,
    "S4": """
        /jobs/workers/start|/jobs/workers/status|/jobs/workers/performance|/jobs/queue/stats|/jobs/status|
        max_workers|backoff_factor|output_dir|processing|startup_recovery_done|total_processed|
        processing_rate_per_hour|success_rate|estimated_completion_time|reconcile|cleanup|pause, resume|
        retry of a failed video|idle|settings row
    """,
}


@pytest.mark.parametrize(
    ("system", "name"), [(system, name.strip()) for system, names in OLD_NAMES.items() for name in names.split("|")]
)
def test_every_old_name_has_its_line(system: str, name: str) -> None:
    """In the first cell of a row: that is where somebody looks."""
    cells = [line.split(" | ")[0] for line in TEXT.splitlines() if line.startswith("| ")]
    assert any(name in cell for cell in cells), system
