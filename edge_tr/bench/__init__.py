"""The command ``edge-tr bench``; scripts of developers are in ``bench/``."""
