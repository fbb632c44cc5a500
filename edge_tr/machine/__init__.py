"""What this computer is and whether llama.cpp runs on it. ``isa`` runs on its own: standard
library."""
