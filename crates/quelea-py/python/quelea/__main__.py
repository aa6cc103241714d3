"""``python -m quelea`` is the `quelea` command."""

import sys

from quelea._command import main

if __name__ == "__main__":
    sys.exit(main())
