"""What an answer's text is made of: thoughts, content, tool calls; and the grammar that forces a call."""
