"""`python -m underload …` does what `underload …` does, where the program is not on the path."""

import sys

from underload.cli import main

if __name__ == "__main__":
    sys.exit(main())
