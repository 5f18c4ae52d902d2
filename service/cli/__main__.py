"""`python -m service.cli` is `braid`."""

import sys

from service.cli import main

sys.exit(main())
