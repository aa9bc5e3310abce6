"""``python -m sglang_eagle31 COMMAND``."""

import sys

from sglang_eagle31.tools.cli import main

sys.exit(main())
