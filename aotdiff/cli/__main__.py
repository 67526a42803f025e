"""`python -m aotdiff.cli`"""

import sys

from aotdiff.cli import main

sys.exit(main())
