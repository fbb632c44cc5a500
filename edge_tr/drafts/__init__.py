"""What to propose: candidates, the trees made of them, and the files they are kept in. Knows no
llama.cpp."""
