"""Where things of the repository lie that tests read."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
BOARDS = TESTS / "boards"
STANDINS = TESTS / "standins"
OWN_LOCK = "/."  # as EDGEVIT_BOARD_ROOT: this machine with all its files, under a lock in the cache and not its own
