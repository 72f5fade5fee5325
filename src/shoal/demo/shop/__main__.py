"""`python -m shoal.demo.shop --port 8001`: serves the shop until Ctrl-C."""

from __future__ import annotations

import argparse
import sys

from shoal.demo.shop.serving import Shop
from shoal.demo.stand_in import serve_until_signal
from shoal.errors import ShoalError


def main() -> int:
    options = argparse.ArgumentParser(
        prog="python -m shoal.demo.shop", description="Serve the demo shop on the loopback until Ctrl-C."
    )
    options.add_argument("--port", type=int, default=8001, help="the port; 0 takes any that is free (default: 8001)")
    options.add_argument("--seed", type=int, default=7, help="another seed has other products and faults")
    chosen = options.parse_args()
    try:
        serve_until_signal(
            Shop(seed=chosen.seed, port=chosen.port).serving(),
            lambda shop: f"The shop is open at {shop.url}/ and its outlet at {shop.outlet_url}/",
        )
    except ShoalError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
