"""`python -m aotdiff`"""

import sys

from aotdiff.cli import main

sys.exit(main())
