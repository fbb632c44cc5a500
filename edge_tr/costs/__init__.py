"""What a decode step costs: the measured table, its running correction, what to expect of it."""
