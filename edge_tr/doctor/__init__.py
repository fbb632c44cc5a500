"""What is wrong with this machine and build, and the report that is sent to us."""
