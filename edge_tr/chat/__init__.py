"""Text around an answer: its pieces, tool calls, the messages of a conversation."""
