"""`python -m underload.cli …` does what `underload …` does."""

import sys

from underload.cli import main

if __name__ == "__main__":
    sys.exit(main())
