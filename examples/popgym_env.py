"""A POPGym env by its Gymnasium id, without an adapter.

POPGym has many kinds of partially observed envs. Importing it registers them with Gymnasium, so that
Recollect accepts their ids. Install it with `pip install popgym`.

    python examples/popgym_env.py                                  # about a minute
    python examples/popgym_env.py --env popgym-AutoencodeEasy-v0   # another one
"""

from __future__ import annotations

import argparse

import popgym  # noqa: F401  (registers its envs with Gymnasium)

import recollect as rc


def main(argv: list[str] | None = None) -> None:
    """Train on one env of POPGym, with and without memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="popgym-RepeatPreviousEasy-v0", help="a POPGym id (%(default)s)")
    parser.add_argument("--steps", type=int, default=300_000, help="env steps to train for (%(default)s)")
    args = parser.parse_args(argv)

    agent = rc.train(args.env, steps=args.steps, seed=0)
    twin = rc.train(args.env, core="none", steps=args.steps, seed=0)
    print(f"{args.env}, returns between -1 and 1:")
    print("  with memory:", agent.evaluate(episodes=100))
    print("  without:    ", twin.evaluate(episodes=100))


if __name__ == "__main__":
    main()
