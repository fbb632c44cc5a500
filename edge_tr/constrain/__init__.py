"""What a text must look like: JSON schemas and GBNF, enforced token by token."""
