"""``python -m cpembed``: the command line."""

import sys

from cpembed.cli import main

sys.exit(main())
