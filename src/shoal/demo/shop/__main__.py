"""`python -m shoal.demo.shop --port 8001`: serves the shop until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys

from shoal.demo.shop.serving import Shop
from shoal.errors import ShoalError


def main() -> int:
    options = argparse.ArgumentParser(
        prog="python -m shoal.demo.shop", description="Serve the demo shop on the loopback until Ctrl-C."
    )
    options.add_argument("--port", type=int, default=8001, help="the port; 0 takes any that is free (default: 8001)")
    options.add_argument("--seed", type=int, default=7, help="another seed has other products and faults")
    chosen = options.parse_args()
    stops = {signal.SIGINT, signal.SIGTERM}
    # Blocked before the server's thread starts, so that sigwait receives the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    try:
        with Shop(seed=chosen.seed, port=chosen.port).serving() as shop:
            print(f"The shop is open at {shop.url}/ and its outlet at {shop.outlet_url}/", flush=True)
            print("Stop it with Ctrl-C.", flush=True)
            signal.sigwait(stops)
    except ShoalError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
