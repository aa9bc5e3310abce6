"""``python -m sglang_eagle31 COMMAND``."""

import sys

from sglang_eagle31.cli import main

sys.exit(main())
