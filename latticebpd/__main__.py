"""``python -m latticebpd``: the command line, for launchers such as ``torchrun -m``."""

from latticebpd.cli import main

main()
