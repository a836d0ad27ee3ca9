"""`python -m pipeline`: the commands of `photonic` where the package was sent and not installed, as in a job of Ray."""

import sys

from pipeline.cli import main

sys.exit(main())
