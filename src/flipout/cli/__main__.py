"""`python -m flipout.cli`"""

from . import main

main()
